"""Reports of unusual types and magnitudes, with restores in between."""

from __future__ import annotations

import enum
import json
import math
import sys
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs import ClientReport
from adcs._serialization import pack, unpack
from adcs.reports.sketch import Sketch
from adcs.reports.table import ReportTable

SKETCH = adcs.Sketcher(size=8)
SCHEDULERS = {
    "Uniform by size": partial(adcs.Uniform, by_size=True),
    "PowerOfChoice": partial(adcs.PowerOfChoice, candidates=3),
    "OCS": adcs.OCS,
    "OCS independent": partial(adcs.OCS, independent=True, by_size=True),
    "DivFL": partial(adcs.DivFL, refresh_every=2, by_cluster=True),
    "DivFL sketched": partial(adcs.DivFL, sketch=SKETCH),
    "StaticDPP sampled": partial(adcs.StaticDPP, theta=0.5, sample=True),
    "ADCS": partial(adcs.ADCS, refresh_every=2),
    "ADCS diverse": partial(adcs.ADCS, theta=0.0),
    "ADCS with communication": partial(adcs.ADCS, gamma=0.5),
    "ADCS by rank": partial(adcs.ADCS, scale="rank", quality="norm"),
    "ADCS of examples": partial(adcs.ADCS, quality="examples", scale="standard"),
    "ADCS sketched": partial(adcs.ADCS, sketch=SKETCH),
    "LiveADCS": adcs.LiveADCS,
    "LiveADCS sketched": partial(adcs.LiveADCS, sketch=SKETCH, patience=1.0),
    "LiveADCS probing": partial(adcs.LiveADCS, refresh_every=2, probe_share=0.5),
}


class Site(str, enum.Enum):  # noqa: UP042 - whose str() is not its value
    NORTH = "north"


class Number(enum.IntEnum):
    SEVEN = 7


# Ids as reported, and in plain types.
IDS = {1: 0, 2: np.int64(1), 3: np.uint8(2), 4: Number.SEVEN, 5: Site.NORTH, 6: np.str_("a")}
IDS |= {7: "b", 8: -3, 9: 2**64 - 1, 10: np.uint64(2**63 + 5), 11: "", 12: np.int32(40)}
NAMES = [0, 1, 2, 7, "north", "a", "b", -3, 2**64 - 1, 2**63 + 5, "", 40]
BAD_IDS = [(1, 2), None, True, 1.5, b"x", np.bool_(False), np.array(3), [4], {}, 3 + 1j]
TYPES = [np.float16, np.float32, np.float64, np.longdouble, ">f4", np.int32]
WIDTH = 6


def make_update(rng, kind):
    """Return an update near one of three directions, up to rounding."""
    base = np.eye(3, WIDTH)[rng.integers(3)] * 10.0 + 1.0
    values = base * (1.0 + 1e-7 * rng.integers(-2, 3, WIDTH)) if rng.random() < 0.7 else base
    values = values * 2.0 ** rng.integers(-3, 3) if kind != np.int32 else np.rint(values)
    whole = values.astype(kind)
    return [whole[:2].reshape(1, 2), list(whole[2:])] if rng.random() < 0.2 else whole


def make_report(rng, client, server_round):
    report = {"loss": rng.choice([1.0, 1.0 + 1e-7, 2.0]), "norm": np.float32(rng.random() + 0.1)}
    report |= {"update": make_update(rng, TYPES[rng.integers(len(TYPES))])}
    report |= {"examples": np.int16(rng.integers(1, 99)), "compute_seconds": np.array(2.0)}
    report |= {"communication_seconds": int(rng.integers(1, 9)) * 10 ** int(rng.integers(0, 25))}
    fault = rng.integers(20)
    if fault < 3:
        report |= [{"loss": 10**25}, {"loss": 1j}, {"examples": 10**400}][fault]
    elif fault == 3:
        report["update"] = np.ones(WIDTH + 1)
    elif fault < 7:
        values = rng.normal(size=SKETCH.size).astype([np.float64, np.float16, np.int8][fault - 4])
        report["sketch"] = Sketch(values, np.float32(3.0), np.int64(WIDTH))
        report["update"] = None
    elif fault == 7:
        report["sketch"] = Sketch(np.ones((2, 4)), 1.0, WIDTH)
    return ClientReport(client, np.int64(server_round), **report)


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_restored_equals_uninterrupted_whatever_was_reported(name, seed):
    rng = np.random.default_rng(seed)
    whole = SCHEDULERS[name]()
    for server_round in range(4):
        available = [IDS[i] for i in sorted(rng.permutation(12)[: rng.integers(4, 13)] + 1)]
        m = int(rng.integers(1, 6))
        batches = [
            [
                make_report(rng, client, server_round)
                for client in (*asked, BAD_IDS[rng.integers(10)])
            ]
            for asked in (available, available[::2])
        ]
        twin = SCHEDULERS[name]()
        twin.restore(unpack(pack(whole.state())))
        for each in (whole, twin):
            each.request(server_round, available, m)
            each.observe(server_round, batches[0], "probe")
        again = SCHEDULERS[name]()
        again.restore(unpack(pack(twin.state())))  # in the middle of a round
        again.request(server_round, available, m)
        cohorts = [each.select(server_round, available, m) for each in (whole, twin, again)]
        assert cohorts[0] == cohorts[1] == cohorts[2]
        json.dumps([*cohorts[0].clients, dict(cohorts[0].diagnostics)], allow_nan=False)
        assert {*cohorts[0].clients} <= {*NAMES}
        for each in (whole, twin):
            each.observe(server_round, batches[1], "training")
        assert pack(whole.state()) == pack(twin.state())


@pytest.mark.parametrize("sketch", [None, SKETCH])
def test_ids_are_plain_in_states_and_diagnostics(sketch):
    scheduler = adcs.LiveADCS(sketch=sketch)
    fine = [ClientReport(c, 0, loss=1.0, update=np.ones(5)) for c in ("x", "y", "z")]
    ids = [np.int64(3), np.str_("a"), Number.SEVEN, Site.NORTH, *BAD_IDS]
    zero = [ClientReport(c, 0, loss=1.0, update=np.zeros(5)) for c in ids]
    short = [ClientReport(np.int64(4), 0, loss=1.0, update=np.ones(2))]
    scheduler.observe(0, [*fine, *zero, *short], "training")
    state = unpack(pack(scheduler.state()))
    named = [client for client, _ in state["refused"]]
    assert named == [3, "a", 7, "north", *[repr(bad) for bad in BAD_IDS], 4]
    twin = adcs.LiveADCS(sketch=sketch)
    twin.restore(state)
    assert twin.select(0, ["x", "y"], 1) == scheduler.select(0, ["x", "y"], 1)


def test_large_ints_are_valid_losses_and_complex_numbers_are_not():
    scheduler = adcs.ADCS()
    updates = np.eye(3)
    losses = [10**25, np.complex128(3 + 9j), 2]
    reports = [ClientReport(c, 0, loss=losses[c], update=updates[c]) for c in range(3)]
    scheduler.observe(0, reports, "probe")
    cohort = scheduler.select(0, range(3), 2)
    assert [entry["client"] for entry in cohort.diagnostics["refused"]] == [1]
    assert cohort.diagnostics["quality"][0] == [0, 1e25]
    large = adcs.ADCS(quality="examples")
    reports = [ClientReport(c, 0, examples=10 ** (25 - c), update=updates[c]) for c in range(3)]
    large.observe(0, reports, "probe")
    assert large.select(0, range(3), 1).clients == (0,)


SIZES = [1e30, 1e20, 1.0, 1e-30, 1e-160, sys.float_info.min, 5e-324, 0.0]


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
def test_values_of_any_valid_magnitude_are_computed_with(name, seed, sizes):
    """Losses, norms and updates at the limits of validity raise no warning."""
    rng = np.random.default_rng(seed)
    scheduler = SCHEDULERS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for server_round in range(6):
            m = int(rng.integers(1, 5))
            scheduler.request(server_round, range(8), m)
            for source in ("probe", "training"):
                reports = [
                    ClientReport(
                        c,
                        server_round,
                        loss=rng.choice(sizes) * rng.choice([-1.0, 1.0, 0.5]),
                        norm=rng.choice([rng.choice(sizes), None]),
                        update=rng.choice(sizes, 4) * rng.choice([-1.0, 1.0, 0.3], 4),
                        communication_seconds=rng.choice(sizes),
                        examples=int(rng.choice(sizes)),
                    )
                    for c in range(8)
                ]
                scheduler.observe(server_round, reports, source)
                if source == "probe":
                    cohort = scheduler.select(server_round, range(8), m)
                    assert len({*cohort.clients}) == len(cohort.clients)
                    assert all(math.isfinite(weight) for weight in cohort.weights)
        if isinstance(scheduler, adcs.LiveADCS):
            assert np.isfinite(scheduler.loss_tracker.loss).all()
        pack(scheduler.state())


class NoArray:
    """Like a tensor that requires a gradient: its conversion to an array fails."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    "bad",
    [
        ClientReport(1, 0, loss=1.0, update=NoArray()),
        ClientReport(1, 0, loss=1.0, update=[NoArray()]),
        ClientReport(1, 0, loss=1.0, update=np.ma.masked_array([1.0, 2.0], mask=[0, 1])),
        ClientReport(1, 0, loss=1.0, update=[np.ma.masked_array([1.0, 2.0], mask=[0, 1])]),
        ClientReport(1, 0, loss=1.0, update={0: 1.0, 1: 2.0}),
        ClientReport(1, 0, loss=1.0, update=np.array(["a", "b"], np.dtypes.StringDType())),
        ClientReport(1, 0, loss=NoArray()),
        ClientReport(1, np.timedelta64(0), loss=1.0),
        ClientReport(np.timedelta64(1), 0, loss=1.0),
    ],
    ids=lambda bad: f"{bad.client!r} {bad.server_round!r} {bad.update!r:.30} {bad.examples!r}",
)
def test_a_report_of_a_wrong_kind_is_refused_alone(name, bad):
    scheduler = SCHEDULERS[name]()
    good = ClientReport(0, 0, loss=1.0, update=[1.0, 2.0], examples=3.0)
    source = "training" if "training" in scheduler.observed_sources else "probe"
    if source not in scheduler.observed_sources:
        source = next(iter(scheduler.observed_sources))
    scheduler.observe(0, [bad, good], source)
    cohort = scheduler.select(0, [0, 1], 1)
    assert len(cohort.diagnostics["refused"]) == 1
    assert scheduler.reports[0].examples == 3


@pytest.mark.parametrize("name", SCHEDULERS)
def test_large_float32_updates_give_no_warning(name):
    scheduler = SCHEDULERS[name]()
    updates = np.array([[1e25, 1.0], [1.0, 1e29], [1e25, 1e25]], np.float32)
    reports = [ClientReport(c, 0, loss=1.0, update=row) for c, row in enumerate(updates)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in sorted(scheduler.observed_sources):
            scheduler.observe(0, reports, source)
        assert scheduler.select(0, [0, 1, 2], 2).diagnostics["refused"] == []


def test_the_norm_of_a_large_float32_update_is_exact():
    report = ClientReport(0, 0, update=np.array([3e25, 4e25], np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert report.update_norm == pytest.approx(5e25, rel=1e-6)


def test_fractions_of_examples_are_kept() -> None:
    table = ReportTable((0, 1), 0, loss=np.ones(2), examples=np.array([0.3, 2.0]))
    for reports in (table, list(table)):
        scheduler = adcs.Uniform(by_size=True)
        scheduler.observe(0, reports, "enrolment")
        assert [scheduler.reports[c].examples for c in (0, 1)] == [0.3, 2]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda s: s.observe(0, None, "probe"), "reports must be a list of ClientReport, got None"),
        (lambda s: s.observe(0, ClientReport(0, 0), "probe"), "reports must be a list"),
        (lambda s: s.observe(0, [], np.array(["probe", "x"])), "source must be one of"),
        (lambda s: s.observe(0, [], None), "source must be one of .* got None"),
        (lambda s: s.observe(0, [], "porbe"), "did you mean probe"),
        (lambda s: s.select(0, None, 2), "client ids must be a list"),
        (lambda s: s.request(0, 7, 2), "client ids must be a list .* got 7"),
        (lambda s: s.select(0, [1, 2], 2, pending=None), "pending must be a list .* got None"),
        (lambda s: s.select(np.timedelta64(0), [1, 2], 2), "server_round must be a whole number"),
        (lambda s: s.select(0, [np.timedelta64(1)], 2), "client ids must be ints or strings"),
        (lambda s: s.select(0, [10**5000] * 2, 2), "got a value of type int more than once"),
        (lambda s: s.select(0, ["x" * 10_000] * 2, 2), r"got 'x{59}\.\.\. more than once"),
        (lambda s: type(s)(seed=np.timedelta64(1)), "seed must be a whole number"),
    ],
)
@pytest.mark.parametrize("make", [adcs.ADCS, adcs.LiveADCS, adcs.OCS])
def test_calls_with_a_wrong_kind_raise_a_sentence(make, call, named):
    with pytest.raises(ValueError, match=named):
        call(make())
