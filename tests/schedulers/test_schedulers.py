"""What each scheduler does that the contract does not say."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs._serialization import pack
from adcs.dpp.tolerances import descending
from adcs.experiments.specs import make_scheduler
from adcs.reports.quality import rescale
from adcs.schedulers.ocs import optimal_probabilities
from adcs.testing import Crowd


def clustered(groups: int = 5, each: int = 3, width: int = 40, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.standard_normal((groups, width)), each, axis=0)
    return centres + 0.1 * rng.standard_normal((groups * each, width))


def told(scheduler, server_round, updates, losses=None, **more):
    losses = [1.0] * len(updates) if losses is None else losses
    reports = [
        adcs.ClientReport(c, server_round, loss=loss, update=update, **more)
        for c, (update, loss) in enumerate(zip(updates, losses, strict=True))
    ]
    scheduler.observe(server_round, reports, "probe")
    return scheduler


class TestUniform:
    def test_all_clients_equally_often(self):
        counts = Counter()
        scheduler = adcs.Uniform(seed=5)
        for server_round in range(3000):
            counts.update(scheduler.select(server_round, range(10), 3).clients)
        share = np.array([counts[c] for c in range(10)]) / 3000
        assert np.abs(share - 0.3).max() < 0.04

    def test_by_size_follows_sizes(self):
        scheduler = adcs.Uniform(by_size=True)
        sizes = [adcs.ClientReport(c, 0, examples=n) for c, n in enumerate([100, 300, 600])]
        scheduler.observe(0, sizes, "enrolment")
        firsts = Counter(scheduler.select(r, range(3), 1).clients[0] for r in range(4000))
        assert abs(firsts[2] / 4000 - 0.6) < 0.03
        assert abs(firsts[0] / 4000 - 0.1) < 0.03

    def test_independent_is_unbiased(self):
        scheduler = adcs.Uniform(independent=True)
        cohorts = [scheduler.select(r, range(6), 2) for r in range(5000)]
        estimate = np.mean([sum(c.weights) for c in cohorts])
        assert abs(estimate - 6.0) < 0.15
        assert any(not c.clients for c in cohorts)
        assert not scheduler.fixed_size

    def test_asks_nobody(self):
        assert adcs.Uniform().request(0, range(5), 2) == adcs.Request()


class TestPowerOfChoice:
    def test_asks_all_for_losses(self):
        request = adcs.PowerOfChoice().request(3, range(6), 2)
        assert request.clients == tuple(range(6))
        assert request.signals == {"loss"}

    def test_candidates_are_drawn_by_size_without_replacement(self):
        scheduler = adcs.PowerOfChoice(candidates=4)
        sizes = [adcs.ClientReport(c, 0, examples=1 if c < 8 else 1000) for c in range(10)]
        scheduler.observe(0, sizes, "enrolment")
        asked = [scheduler.request(r, range(10), 2).clients for r in range(50)]
        assert all(len(set(a)) == 4 for a in asked)
        assert sum(8 in a and 9 in a for a in asked) > 45

    def test_ranks_only_this_rounds_answers(self):
        scheduler = adcs.PowerOfChoice()
        scheduler.observe(0, [adcs.ClientReport(9, 0, loss=99.0)], "probe")
        scheduler.observe(1, [adcs.ClientReport(c, 1, loss=c) for c in (1, 2, 3)], "probe")
        assert scheduler.select(1, [1, 2, 3, 9], 2).clients == (3, 2)

    def test_training_losses_are_not_answers(self):
        scheduler = adcs.PowerOfChoice()
        scheduler.observe(0, [adcs.ClientReport(1, 0, loss=99.0)], "training")
        scheduler.observe(0, [adcs.ClientReport(c, 0, loss=1.0) for c in (2, 3)], "probe")
        assert set(scheduler.select(0, [1, 2, 3], 2).clients) == {2, 3}


class TestOCS:
    def test_original_probabilities_by_hand(self):
        p = optimal_probabilities(np.array([1.0, 1.0, 2.0]), 2)
        np.testing.assert_allclose(p, [0.5, 0.5, 1.0])

    @given(
        st.lists(st.floats(0.0, 1e6), min_size=1, max_size=12),
        st.integers(1, 12),
    )
    def test_probabilities_are_probabilities(self, norms, m):
        p = optimal_probabilities(np.array(norms), m)
        assert ((p >= 0) & (p <= 1)).all()
        nonzero = sum(n > 0 for n in norms)
        if nonzero >= m:
            assert p.sum() == pytest.approx(min(m, len(norms)))

    def test_original_is_unbiased(self):
        scheduler = adcs.OCS(independent=True)
        norms = np.array([0.2, 0.5, 1.0, 4.0, 2.0])
        total = np.zeros(5)
        for server_round in range(4000):
            reports = [adcs.ClientReport(c, server_round, norm=n) for c, n in enumerate(norms)]
            scheduler.observe(server_round, reports, "probe")
            cohort = scheduler.select(server_round, range(5), 2)
            assert not cohort.normalise
            total[list(cohort.clients)] += cohort.weights
        np.testing.assert_allclose(total / 4000, 1.0, atol=0.2)

    def test_independent_refuses_caps(self):
        with pytest.raises(ValueError, match="caps"):
            adcs.OCS(independent=True, groups={1: "a"}, caps=1)


class TestADCS:
    def test_asks_every_r_rounds(self):
        scheduler = adcs.ADCS(refresh_every=20)
        told(scheduler, 0, clustered())
        asked = [r for r in range(100) if scheduler.request(r, range(15), 5).clients]
        assert asked == [0, 20, 40, 60, 80]
        assert scheduler.request(20, range(15), 5).signals == {"update", "loss"}

    def test_equals_select_on_the_same_updates(self):
        updates = clustered()
        losses = np.random.default_rng(2).uniform(1, 3, 15)
        scheduler = told(adcs.ADCS(theta=0.7), 0, updates, losses)
        cohort = scheduler.select(0, range(15), 6)
        assert list(cohort.clients) == list(adcs.select(updates, 6, quality=losses, theta=0.7))

    def test_ignores_training_replies(self):
        scheduler = told(adcs.ADCS(), 0, clustered())
        before = scheduler.select(0, range(15), 5).clients
        rng = np.random.default_rng(1)
        replies = [adcs.ClientReport(c, 0, loss=50.0, update=rng.random(40)) for c in before]
        scheduler.observe(0, replies, "training")
        assert scheduler.select(1, range(15), 5).clients == before

    def test_diversity_takes_one_of_each_group(self):
        scheduler = told(adcs.ADCS(theta=0.2), 0, clustered())
        assert sorted(c // 3 for c in scheduler.select(0, range(15), 5).clients) == [0, 1, 2, 3, 4]

    def test_last_kernel_serves_when_nobody_answers(self):
        scheduler = told(adcs.ADCS(refresh_every=2), 0, clustered())
        first = scheduler.select(0, range(15), 5).clients
        assert scheduler.request(2, range(15), 5).clients
        assert scheduler.select(2, range(15), 5).clients == first

    def test_strangers_get_their_share(self):
        scheduler = told(adcs.ADCS(), 0, clustered())
        available = tuple(range(20))
        taken = [
            sum(c >= 15 for c in scheduler.select(r, available, 8).clients) for r in range(1, 400)
        ]
        assert np.mean(taken) == pytest.approx(8 * 5 / 20, abs=0.1)
        assert set(taken) == {2}

    def test_share_of_one_in_many_is_right_on_average(self):
        scheduler = told(adcs.ADCS(), 0, clustered())
        available = tuple(range(16))
        taken = [15 in scheduler.select(r, available, 5).clients for r in range(1, 1000)]
        assert np.mean(taken) == pytest.approx(5 / 16, abs=0.05)

    def test_a_client_without_what_the_quality_needs_is_a_stranger(self):
        scheduler = adcs.ADCS(gamma=0.5)
        reports = [
            adcs.ClientReport(
                c, 0, loss=1.0, update=u, communication_seconds=None if c == 3 else float(c)
            )
            for c, u in enumerate(clustered())
        ]
        scheduler.observe(0, reports, "probe")
        picked = [scheduler.select(r, range(15), 14).clients for r in range(30)]
        assert all(len(p) == 14 for p in picked)
        assert any(3 in p for p in picked)

    def test_communication_quality_prefers_the_fast(self):
        updates = np.eye(6)
        scheduler = adcs.ADCS(theta=0.8, gamma=1.0)
        reports = [
            adcs.ClientReport(c, 0, loss=9.0, update=u, communication_seconds=10.0 - c)
            for c, u in enumerate(updates)
        ]
        scheduler.observe(0, reports, "probe")
        assert scheduler.select(0, range(6), 2).clients == (5, 4)

    def test_many_clients_go_by_features(self):
        rng = np.random.default_rng(0)
        updates = rng.standard_normal((2500, 16)).astype(np.float32)
        losses = rng.random(2500)
        scheduler = told(adcs.ADCS(theta=0.6), 0, updates, losses)
        chosen = scheduler.select(0, range(2500), 10).clients
        assert list(chosen) == list(adcs.select(updates, 10, quality=losses, theta=0.6))

    def test_first_round_losses_that_differ_by_float32_rounding_tie(self):
        updates = np.eye(8)
        near = np.nextafter(np.float32(2.3025851), np.float32(3), dtype=np.float32)
        losses = [2.3025851, float(near)] * 4
        losses = [float(np.float32(x)) for x in losses]
        assert told(adcs.ADCS(), 0, updates, losses).select(0, range(8), 3).clients == (0, 1, 2)


class TestStaticDPP:
    def test_same_cohort_for_ever(self):
        crowd = Crowd(range(15))
        scheduler = adcs.StaticDPP()
        cohorts = {crowd.play(scheduler, r, 5).clients for r in range(30)}
        assert len(cohorts) == 1

    def test_samples_vary_and_repeat_by_seed(self):
        crowd = Crowd(range(15))
        one, two = adcs.StaticDPP(sample=True), adcs.StaticDPP(sample=True)
        first = [crowd.play(one, r, 5).clients for r in range(10)]
        assert len(set(map(frozenset, first))) > 3
        assert first == [crowd.play(two, r, 5).clients for r in range(10)]

    def test_sampling_beyond_the_rank_takes_the_mode(self):
        scheduler = adcs.StaticDPP(sample=True)
        told(scheduler, 0, np.repeat(np.eye(3), 2, axis=0))
        assert len(scheduler.select(0, range(6), 5).clients) == 5

    def test_sample_refuses_caps_and_theta_one(self):
        with pytest.raises(ValueError, match="caps"):
            adcs.StaticDPP(sample=True, required=[1])
        with pytest.raises(ValueError, match="theta"):
            adcs.StaticDPP(sample=True, theta=1.0)


class TestDivFL:
    def test_represents_every_group(self):
        scheduler = told(adcs.DivFL(), 0, clustered())
        assert sorted(c // 3 for c in scheduler.select(0, range(15), 5).clients) == [0, 1, 2, 3, 4]

    def test_cluster_weights_count_everyone(self):
        scheduler = told(adcs.DivFL(by_cluster=True), 0, clustered())
        assert sum(scheduler.select(0, range(15), 4).weights) == 15


class TestRules:
    MAKES = (adcs.Uniform, adcs.PowerOfChoice, adcs.OCS, adcs.DivFL, adcs.StaticDPP, adcs.ADCS)

    @settings(max_examples=60, deadline=None)
    @given(
        which=st.integers(0, 5),
        cap=st.integers(1, 3),
        required=st.sets(st.integers(0, 11), max_size=2),
        m=st.integers(2, 10),
        heard=st.sets(st.integers(0, 11)),
        seed=st.integers(0, 100),
    )
    def test_caps_and_required_hold_for_everyone(self, which, cap, required, m, heard, seed):
        groups = {c: c % 4 for c in range(12)}
        if any(sum(groups[c] == g for c in required) > cap for g in range(4)):
            with pytest.raises(ValueError, match="required"):
                self.MAKES[which](groups=groups, caps=cap, required=required)
            return
        scheduler = self.MAKES[which](groups=groups, caps=cap, required=required, seed=seed)
        crowd = Crowd(range(12))
        answers = crowd.answer(0, scheduler.request(0, range(12), m))
        scheduler.observe(0, [r for r in answers if r.client in heard], "probe")
        cohort = scheduler.select(0, range(12), m)
        counts = Counter(groups[c] for c in cohort.clients)
        assert max(counts.values()) <= cap
        assert required <= set(cohort.clients)
        assert len(cohort.clients) == min(m, 4 * cap)

    def test_required_client_that_is_away_is_no_error(self):
        assert len(adcs.Uniform(required=["x"]).select(0, ["a", "b"], 1).clients) == 1

    def test_more_required_than_places(self):
        with pytest.raises(ValueError, match="more than m = 1"):
            adcs.ADCS(required=[1, 2]).select(0, [1, 2, 3], 1)

    def test_caps_per_group_by_name(self):
        groups = {c: "north" if c < 6 else "south" for c in range(12)}
        scheduler = told(adcs.ADCS(groups=groups, caps={"north": 1}), 0, clustered(4, 3))
        chosen = scheduler.select(0, range(12), 5).clients
        assert sum(c < 6 for c in chosen) == 1

    @pytest.mark.parametrize("make", [*MAKES, adcs.LiveADCS])
    def test_made_up_ids_share_a_group(self, make):
        """A gang of unknown ids gets one group's places, whatever the caps are given as."""
        groups = {c: f"site {c % 3}" for c in range(6)}
        crowd = Crowd([*range(6), *(f"made up {c}" for c in range(9))])

        def places(**settings):
            scheduler = make(groups=groups, **settings)
            counts = []
            for server_round in range(3):
                chosen = crowd.play(scheduler, server_round, 9).clients
                counts.append(sum(isinstance(client, str) for client in chosen))
            return counts

        assert places(caps=2) == [2] * 3
        named = {"site 0": 2, "site 1": 1, "site 2": 2}
        assert places(caps=named) == [1] * 3  # the smallest, where they have none
        assert places(caps={**named, "unknown": 3}) == [3] * 3
        assert places(caps={**named, "guests": 0}, unknown_group="guests") == [0] * 3
        assert max(places(caps=named, unknown_group="site 2")) <= 2
        assert places(caps={"site 1": 1}, unknown_group=None)[0] >= 4  # each one its own
        assert min(places(caps=1, unknown_group=None)) >= 6

    def test_unknown_clients_that_are_required_have_their_cap_too(self):
        with pytest.raises(ValueError, match="required has 2 clients of group 'unknown', cap 1"):
            adcs.ADCS(groups={0: "a"}, caps=1, required=["x", "y"])
        adcs.ADCS(groups={0: "a"}, caps=1, required=["x", "y"], unknown_group=None)
        adcs.ADCS(required=["x", "y"])

    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"groups": [1, 2]}, r"groups must map client ids to groups, got \[1, 2\]"),
            ({"groups": {1.5: "a"}}, r"groups must name clients by ints or strings, got 1\.5"),
            ({"groups": {1: ["a"]}}, r"a group must be hashable, .* got \['a'\]"),
            ({"unknown_group": ["a"]}, r"a group must be hashable, .* got \['a'\]"),
            ({"required": [(1, 2)]}, r"required must name clients .* got \(1, 2\)"),
        ],
    )
    def test_rules_that_cannot_be_are_refused(self, settings, named):
        with pytest.raises(ValueError, match=named):
            adcs.Uniform(**settings)

    def test_ids_of_rules_are_plain(self):
        scheduler = adcs.Uniform(
            groups={np.int64(1): "a", np.int64(2): "a"}, caps=1, required=[np.int64(2)]
        )
        chosen = scheduler.select(0, range(3), 2).clients
        assert {type(client) for client in chosen} == {int}
        assert set(chosen) == {0, 2}

    def test_caps_need_groups(self):
        with pytest.raises(ValueError, match="groups"):
            adcs.Uniform(caps=2)


class TestSettings:
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
    def test_wrong_settings_are_named(self, make, named):
        with pytest.raises(ValueError, match=named.replace(".", r"\.")):
            make()

    def test_state_of_another_kind_is_refused(self):
        with pytest.raises(ValueError, match="Uniform"):
            adcs.ADCS().restore(adcs.Uniform().state())


def test_descending_ties_keep_their_order():
    values = np.array([1.0, 2.0, 2.0 + 4e-16, 2.0, 0.5])
    assert descending(values) == [1, 2, 3, 0, 4]


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.8])
@pytest.mark.parametrize("make", [adcs.ADCS, adcs.LiveADCS, adcs.StaticDPP])
@pytest.mark.parametrize("seed", range(4))
def test_copies_add_no_direction_in_any_precision(make, theta, seed) -> None:
    """Ten directions three times over, of any lengths, in float64, float32 and as sketches."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.standard_normal((10, 300)), 3, axis=0)
    rows *= rng.uniform(0.1, 9.0, (30, 1)) if seed % 2 else 1.0
    losses = rng.uniform(0.5, 2.5, 30)
    sketcher = adcs.Sketcher(size=256, dtype="float32")
    cohorts = []
    for kind in ("float64", "float32", "sketch"):
        scheduler = make(theta=theta, sketch=sketcher if kind == "sketch" else None)
        reports = [
            adcs.ClientReport(
                client,
                0,
                loss=float(losses[client]),
                update=None if kind == "sketch" else row.astype(kind),
                sketch=sketcher.sketch(row) if kind == "sketch" else None,
            )
            for client, row in enumerate(rows)
        ]
        scheduler.observe(0, reports, "probe")
        cohorts.append(scheduler.select(0, range(30), 18))
    assert [cohort.diagnostics["rank"] for cohort in cohorts] == [10, 10, 10]
    assert set(cohorts[0].clients) == set(cohorts[1].clients)
    if make is not adcs.LiveADCS:  # whose quality is not the loss itself
        chosen = adcs.select(rows, m=18, quality=losses, theta=theta)
        assert set(cohorts[0].clients) == set(chosen.tolist())


def test_ids_may_be_numpy_integers() -> None:
    cohort = adcs.Uniform().select(0, np.arange(5), 3)
    assert cohort.clients == adcs.Uniform().select(0, range(5), 3).clients
    assert all(type(client) is int for client in cohort.clients)


def test_a_sample_that_cannot_be_computed_is_the_mode() -> None:
    rows = np.random.default_rng(0).standard_normal((30, 40))
    cohorts = []
    for sample in (True, False):
        scheduler = adcs.StaticDPP(sample=sample, theta=0.8)
        reports = [adcs.ClientReport(c, 0, loss=7.0 * c, update=rows[c]) for c in range(30)]
        scheduler.observe(0, reports, "probe")
        cohorts.append(scheduler.select(0, range(30), 10).clients)
    assert cohorts[0] == cohorts[1]


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
def test_a_choice_that_breaks_the_contract_is_not_trained_by(answer, named) -> None:
    class Own(adcs.Scheduler):
        def _select(self, server_round, clients, m):
            return answer

    with pytest.raises(ValueError, match=rf"Own\._select must .*{named}|Own\._select {named}"):
        Own().select(0, ["a", "b", "c"], 2)


def test_a_choice_is_looked_at_again_when_clients_change() -> None:
    class Stubborn(adcs.Scheduler):
        always = adcs.Cohort.of(["a", "b"])

        def _select(self, server_round, clients, m):
            return self.always

    scheduler = Stubborn()
    assert scheduler.select(0, ("a", "b", "c"), 2).clients == ("a", "b")
    with pytest.raises(ValueError, match="out of those available"):
        scheduler.select(1, ("b", "c", "d"), 2)


def test_many_close_losses_are_not_one_tie() -> None:
    losses = np.random.default_rng(0).uniform(2.302, 2.303, 10_000).astype(np.float32)
    scheduler = adcs.PowerOfChoice()
    reports = [adcs.ClientReport(c, 0, loss=loss) for c, loss in enumerate(losses)]
    scheduler.observe(0, reports, "probe")
    chosen = scheduler.select(0, range(10_000), 10).clients
    rounding = 8 * np.finfo(np.float32).eps * losses.max()
    assert losses[list(chosen)].min() >= np.sort(losses)[-10] - rounding
    assert np.unique(rescale(losses.astype(np.float64), "rank")).size > 100


def test_optimal_sampling_by_size_has_the_least_variance() -> None:
    share = np.array([0.7, 0.1, 0.1, 0.1])
    spreads = {}
    for by_size in (False, True):
        scheduler = adcs.OCS(independent=True, by_size=by_size)
        totals = []
        for server_round in range(2000):
            reports = [
                adcs.ClientReport(c, server_round, norm=1.0, examples=int(1000 * share[c]))
                for c in range(4)
            ]
            scheduler.observe(server_round, reports, "probe")
            cohort = scheduler.select(server_round, range(4), 2)
            totals.append(share[list(cohort.clients)] @ cohort.weights if cohort.clients else 0.0)
        assert np.mean(totals) == pytest.approx(1.0, abs=0.06)
        spreads[by_size] = np.var(totals)
    assert spreads[True] < 0.08 < 0.4 < spreads[False]


class Lawless(adcs.Scheduler):
    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(clients[:m])


def test_rules_are_held_by_the_base_class() -> None:
    groups = dict.fromkeys(range(10), "one")
    with pytest.raises(ValueError, match=r"must take 9, which is required"):
        Lawless(required=[9]).select(0, range(10), 3)
    with pytest.raises(ValueError, match=r"at most 2 of group 'one', took 3"):
        Lawless(groups={**groups, 9: "two"}, caps={"one": 2}).select(0, range(10), 3)


@pytest.mark.parametrize("make", [adcs.ADCS, adcs.LiveADCS])
def test_sketches_of_other_updates_are_refused(make) -> None:
    sketcher, rng = adcs.Sketcher(size=64), np.random.default_rng(0)
    scheduler = make(sketch=sketcher)
    lengths = [1000] * 8 + [700] * 2
    reports = [
        adcs.ClientReport(c, 0, loss=1.0, sketch=sketcher.sketch(rng.standard_normal(d)))
        for c, d in enumerate(lengths)
    ]
    raw = adcs.ClientReport(10, 0, loss=1.0, update=rng.standard_normal(64))
    scheduler.observe(0, [*reports, raw], "probe")
    refused = scheduler.select(0, range(11), 5).diagnostics["refused"]
    assert {entry["client"] for entry in refused} == {8, 9, 10}


def test_late_evidence_does_not_replace_newer() -> None:
    scheduler = adcs.ADCS(theta=1.0)
    rows = np.eye(3)
    told(scheduler, 20, rows, [1.0, 2.0, 3.0])
    late = adcs.ClientReport(0, 0, loss=9.0, update=rows[0], examples=7)
    scheduler.observe(20, [late], "probe")
    assert scheduler.select(20, range(3), 1).clients == (2,)
    assert scheduler.reports[0].examples == 7
    # Rounds that begin anew are no late evidence.
    told(scheduler, 0, rows, [5.0, 2.0, 3.0])
    assert scheduler.select(0, range(3), 1).clients == (0,)


def test_live_weights_at_any_theta() -> None:
    rng = np.random.default_rng(0)
    for theta in (0.99, 0.999, 0.9999, 1.0 - 1e-9):
        scheduler = told(adcs.LiveADCS(theta=theta), 0, rng.normal(size=(20, 8)), [1.0] * 19 + [50])
        cohort = scheduler.select(0, range(20), 5)
        assert 19 in cohort.clients
        assert np.isfinite(cohort.weights).all()


def test_live_keeps_each_update_once() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 5000))
    sizes = [len(pack(told(make(), 0, rows).state())) for make in (adcs.ADCS, adcs.LiveADCS)]
    assert sizes[1] < 1.1 * sizes[0]


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
def test_a_request_that_cannot_be_carried_out_is_refused(answer, named) -> None:
    class Asking(Lawless):
        def _request(self, server_round, clients, m):
            return answer

    with pytest.raises(
        ValueError, match=rf"Asking\._request must .*{named}|Asking\._request {named}"
    ):
        Asking().request(0, [1, 2, 3], 2)


def test_weights_are_positive() -> None:
    class Weighing(adcs.Scheduler):
        def _select(self, server_round, clients, m):
            return adcs.Cohort(clients[:m], (1.0, 0.0))

    with pytest.raises(ValueError, match="must return positive weights"):
        Weighing().select(0, [1, 2, 3], 2)


def test_what_is_known_is_a_mapping() -> None:
    scheduler = told(adcs.ADCS(), 0, np.eye(3))
    assert list(scheduler.reports) == [0, 1, 2]
    assert {client: report.loss for client, report in scheduler.reports.items()} == {
        0: 1.0,
        1: 1.0,
        2: 1.0,
    }
    assert scheduler.reports.get("stranger") is None


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
    """All that a scheduler is made of, parts of its own included."""
    return {
        name: vars(value) if name in ("rules", "budget") else value
        for name, value in vars(scheduler).items()
        if isinstance(value, (bool, int, float, str, frozenset, adcs.Sketcher, type(None)))
        or name in ("rules", "budget")
    }


class TestRepr:
    @given(made)
    @settings(max_examples=300, deadline=None)
    def test_it_makes_the_same_scheduler(self, scheduler):
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

    def test_a_scheduler_of_one_s_own(self):
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

    def test_copies_keep_it(self):
        scheduler = adcs.ADCS(theta=0.25)
        for twin in (copy.deepcopy(scheduler), pickle.loads(pickle.dumps(scheduler))):
            assert repr(twin) == "ADCS(theta=0.25)"
        drawn = adcs.Uniform(required=(client for client in "ab"))
        assert repr(copy.deepcopy(drawn)) == "Uniform(required=('a', 'b'))"
