"""The base class: checks of settings, requests and cohorts, and the repr."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs import Cohort, Scheduler
from adcs.experiments.specs import make_scheduler


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: adcs.ADCS(theta=1.2), "1.2"),
        (lambda: adcs.ADCS(theta=float("nan")), "nan"),
        (lambda: adcs.ADCS(refresh_every=0), "0"),
        (lambda: adcs.ADCS(quality="lost"), "lost"),
        (lambda: adcs.ADCS(gamma=-0.1), "-0.1"),
        (lambda: adcs.ADCS(scale="log"), "log"),
        (lambda: adcs.ADCS(gamma=0.5, scale="raw"), "scale"),
        (lambda: adcs.ADCS(sketch=64), "64"),
        (lambda: adcs.ADCS(seed=-1), "-1"),
        (lambda: adcs.PowerOfChoice(candidates=0), "0"),
        (lambda: adcs.Uniform(by_size=True, independent=True), "by_size"),
    ],
)
def test_wrong_settings_are_named(make, named):
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        make()


def test_state_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="Uniform"):
        adcs.ADCS().restore(adcs.Uniform().state())


def test_ids_may_be_numpy_integers() -> None:
    cohort = adcs.Uniform().select(0, np.arange(5), 3)
    assert cohort.clients == adcs.Uniform().select(0, range(5), 3).clients
    assert all(type(client) is int for client in cohort.clients)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (["a", "b"], "a Cohort, got list"),
        (adcs.Cohort.of(["a", "a"]), "distinct clients"),
        (adcs.Cohort.of(["a", "x"]), "out of those available"),
        (adcs.Cohort.of(["a"]), "must return 2 clients, got 1"),
        (adcs.Cohort.of(["a", "b", "c"]), "must return 2 clients, got 3"),
        (adcs.Cohort(("a", "b"), (1.0,)), "a weight for each of 2 clients, got 1"),
    ],
)
def test_a_cohort_that_breaks_the_contract_raises(answer, named) -> None:
    class Own(adcs.Scheduler):
        def _select(self, server_round, clients, m):
            return answer

    with pytest.raises(ValueError, match=rf"Own\._select must .*{named}|Own\._select {named}"):
        Own().select(0, ["a", "b", "c"], 2)


def test_a_cohort_is_checked_again_when_clients_change() -> None:
    class Stubborn(adcs.Scheduler):
        always = adcs.Cohort.of(["a", "b"])

        def _select(self, server_round, clients, m):
            return self.always

    scheduler = Stubborn()
    assert scheduler.select(0, ("a", "b", "c"), 2).clients == ("a", "b")
    with pytest.raises(ValueError, match="out of those available"):
        scheduler.select(1, ("b", "c", "d"), 2)


class Unconstrained(adcs.Scheduler):
    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(clients[:m])


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (None, "must return a Request, got NoneType"),
        (adcs.Request((1, 2), frozenset({"lss"})), "signals out of .*, got frozenset.*lss"),
        (adcs.Request((1, 2), "loss"), "signals out of .*, got 'loss'"),
        (adcs.Request((1, 2)), r"signals out of .*, got frozenset\(\)"),
        (adcs.Request((1, 99), frozenset({"loss"})), "available clients, each once, got 99"),
        (adcs.Request((1, 1), frozenset({"loss"})), "each once, got one of them twice"),
    ],
)
def test_an_invalid_request_raises(answer, named) -> None:
    class Asking(Unconstrained):
        def _request(self, server_round, clients, m):
            return answer

    with pytest.raises(
        ValueError, match=rf"Asking\._request must .*{named}|Asking\._request {named}"
    ):
        Asking().request(0, [1, 2, 3], 2)


def test_weights_must_be_positive() -> None:
    class Weighing(adcs.Scheduler):
        def _select(self, server_round, clients, m):
            return adcs.Cohort(clients[:m], (1.0, 0.0))

    with pytest.raises(ValueError, match="must return positive weights"):
        Weighing().select(0, [1, 2, 3], 2)


def test_reports_are_a_mapping(probed) -> None:
    scheduler = probed(adcs.ADCS(), 0, np.eye(3))
    assert list(scheduler.reports) == [0, 1, 2]
    assert {client: report.loss for client, report in scheduler.reports.items()} == {
        0: 1.0,
        1: 1.0,
        2: 1.0,
    }
    assert scheduler.reports.get("unknown") is None


def test_every_new_cohort_is_checked():
    class Lapsing(Scheduler):
        def _select(self, server_round, clients, m):
            return Cohort.of(clients[:m] if server_round == 0 else [clients[0]] * m)

    scheduler, available = Lapsing(), ("a", "b", "c")
    assert scheduler.select(0, available, 2).clients == ("a", "b")
    with pytest.raises(ValueError, match="distinct clients"):
        scheduler.select(1, available, 2)


@pytest.mark.parametrize("wrong", [2.5, True, 0, -1])
def test_refresh_every_must_be_a_whole_number(wrong):
    with pytest.raises(ValueError, match="refresh_every must be a whole number >= 1"):
        adcs.ADCS(refresh_every=wrong)


share = st.floats(0.0, 1.0, exclude_max=True)
count = st.integers(1, 10**6)
sketch = st.none() | st.builds(
    adcs.Sketcher,
    size=st.integers(1, 4096),
    kind=st.sampled_from(["count", "sparse", "gaussian"]),
    dtype=st.sampled_from(["int8", "float32"]),
    seed=st.integers(0, 2**64 - 1),
)
client = st.integers(0, 2**64) | st.text(max_size=5)
common = {
    "seed": st.integers(0, 2**40) | st.integers(0, 9).map(np.int64),
    "groups": st.dictionaries(client, st.text(max_size=3) | st.integers() | st.tuples(count)),
}
kernel = {
    "theta": share | share.map(np.float64),
    "quality": st.sampled_from(["loss", "norm", "examples", "communication"]),
    "scale": st.sampled_from([None, "standard", "rank"]),
    "sketch": sketch,
}
SETTINGS = {
    adcs.Uniform: {"by_size": st.booleans()},
    adcs.PowerOfChoice: {"candidates": st.none() | count},
    adcs.OCS: {"independent": st.booleans()},
    adcs.DivFL: {"refresh_every": count, "by_cluster": st.booleans(), "sketch": sketch},
    adcs.StaticDPP: {**kernel, "sample": st.booleans()},
    adcs.ADCS: {**kernel, "refresh_every": count, "gamma": share},
    adcs.LiveADCS: {
        "theta": share,
        "patience": st.none() | st.floats(1.0, 1e300),
        "refresh_every": st.none() | count,
        "probe_share": st.floats(0.0, 1e300),
        "sketch": sketch,
    },
}
made = st.one_of(
    [
        st.fixed_dictionaries({}, optional={**common, **own}).map(lambda s, kind=kind: kind(**s))
        for kind, own in SETTINGS.items()
    ]
)


def content(scheduler):
    """Return the settings of a scheduler, those of its parts included."""
    return {
        name: vars(value) if name in ("constraints", "probe_budget", "waiting_rule") else value
        for name, value in vars(scheduler).items()
        if isinstance(value, (bool, int, float, str, frozenset, adcs.Sketcher, type(None)))
        or name in ("constraints", "probe_budget", "waiting_rule")
    }


class TestRepr:
    @given(made)
    @settings(max_examples=300, deadline=None)
    def test_repr_makes_the_same_scheduler(self, scheduler):
        text = repr(scheduler)
        for twin in (eval(text, vars(adcs)), make_scheduler(text, seed=scheduler.seed)):
            assert type(twin) is type(scheduler)
            assert content(twin) == content(scheduler)
        assert repr(eval(text, vars(adcs))) == text

    def test_defaults_are_left_out(self):
        assert repr(adcs.ADCS(theta=0.5)) == "ADCS(theta=0.5)"
        assert repr(adcs.ADCS(theta=0.8, seed=0, sketch=None, caps=None)) == "ADCS()"
        assert repr(adcs.StaticDPP(theta=0.8)) == "StaticDPP(theta=0.8)"
        assert repr(adcs.Uniform(seed=np.int64(3))) == "Uniform(seed=3)"
        groups = {np.int64(1): "a", 2: "a"}
        one = adcs.OCS(groups=groups, caps={"a": 1}, required=iter([1]))
        assert repr(one) == "OCS(groups={1: 'a', 2: 'a'}, caps={'a': 1}, required=(1,))"

    def test_repr_of_own_schedulers(self):
        class Mine(adcs.LiveADCS):
            def __init__(self, decay=0.5, *, horizon=3, **common):
                super().__init__(patience=horizon, **common)

        class Yours(Mine):
            pass

        assert repr(Mine()) == "Mine()"
        assert repr(Mine(0.25, theta=0.1)) == "Mine(decay=0.25, theta=0.1)"
        assert repr(Yours(horizon=9)) == "Yours(horizon=9)"
        assert list(inspect.signature(Mine).parameters) == ["decay", "horizon", "common"]
        assert repr(adcs.ADCS(quality=len)) == "ADCS(quality=len)"

    def test_copies_have_the_same_repr(self):
        scheduler = adcs.ADCS(theta=0.25)
        for twin in (copy.deepcopy(scheduler), pickle.loads(pickle.dumps(scheduler))):
            assert repr(twin) == "ADCS(theta=0.25)"
        drawn = adcs.Uniform(required=(client for client in "ab"))
        assert repr(copy.deepcopy(drawn)) == "Uniform(required=('a', 'b'))"
