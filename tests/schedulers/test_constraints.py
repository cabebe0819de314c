"""Caps and required clients."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs.testing import FakeClients

MAKES = (adcs.Uniform, adcs.PowerOfChoice, adcs.OCS, adcs.DivFL, adcs.StaticDPP, adcs.ADCS)


@settings(max_examples=60, deadline=None)
@given(
    which=st.integers(0, 5),
    cap=st.integers(1, 3),
    required=st.sets(st.integers(0, 11), max_size=2),
    m=st.integers(2, 10),
    reporting=st.sets(st.integers(0, 11)),
    seed=st.integers(0, 100),
)
def test_caps_and_required_clients_hold_for_all_schedulers(
    which, cap, required, m, reporting, seed
):
    groups = {c: c % 4 for c in range(12)}
    if any(sum(groups[c] == g for c in required) > cap for g in range(4)):
        with pytest.raises(ValueError, match="required"):
            MAKES[which](groups=groups, caps=cap, required=required)
        return
    scheduler = MAKES[which](groups=groups, caps=cap, required=required, seed=seed)
    fake = FakeClients(range(12))
    answers = fake.answer(0, scheduler.request(0, range(12), m))
    scheduler.observe(0, [r for r in answers if r.client in reporting], "probe")
    cohort = scheduler.select(0, range(12), m)
    counts = Counter(groups[c] for c in cohort.clients)
    assert max(counts.values()) <= cap
    assert required <= set(cohort.clients)
    assert len(cohort.clients) == min(m, 4 * cap)


def test_a_required_client_may_be_unavailable():
    assert len(adcs.Uniform(required=["x"]).select(0, ["a", "b"], 1).clients) == 1


def test_more_required_clients_than_m_raise():
    with pytest.raises(ValueError, match="more than m = 1"):
        adcs.ADCS(required=[1, 2]).select(0, [1, 2, 3], 1)


def test_caps_per_group_by_name(clustered, probed):
    groups = {c: "north" if c < 6 else "south" for c in range(12)}
    scheduler = probed(adcs.ADCS(groups=groups, caps={"north": 1}), 0, clustered(4, 3))
    chosen = scheduler.select(0, range(12), 5).clients
    assert sum(c < 6 for c in chosen) == 1


@pytest.mark.parametrize("make", [*MAKES, adcs.LiveADCS])
def test_unknown_ids_share_a_group(make):
    """A set of unknown ids gets one group's slots, whatever the caps are given as."""
    groups = {c: f"site {c % 3}" for c in range(6)}
    fake = FakeClients([*range(6), *(f"made up {c}" for c in range(9))])

    def slots_of_unknown(**settings):
        scheduler = make(groups=groups, **settings)
        counts = []
        for server_round in range(3):
            chosen = fake.run_round(scheduler, server_round, 9).clients
            counts.append(sum(isinstance(client, str) for client in chosen))
        return counts

    assert slots_of_unknown(caps=2) == [2] * 3
    named = {"site 0": 2, "site 1": 1, "site 2": 2}
    assert slots_of_unknown(caps=named) == [1] * 3  # the smallest, where they have none
    assert slots_of_unknown(caps={**named, "unknown": 3}) == [3] * 3
    assert slots_of_unknown(caps={**named, "guests": 0}, unknown_group="guests") == [0] * 3
    assert max(slots_of_unknown(caps=named, unknown_group="site 2")) <= 2
    assert slots_of_unknown(caps={"site 1": 1}, unknown_group=None)[0] >= 4  # each one its own
    assert min(slots_of_unknown(caps=1, unknown_group=None)) >= 6


def test_unknown_required_clients_count_towards_the_cap_of_their_group():
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
        ({"unknown_group": (["a"],)}, r"a group must be hashable, .* got \(\['a'\],\)"),
        ({"required": [(1, 2)]}, r"required must name clients .* got \(1, 2\)"),
        ({"required": 5}, "required must be a list of client ids, got 5"),
        ({"required": "site-1"}, "required must be a list of client ids, got 'site-1'"),
        ({"required": None}, "required must be a list of client ids, got None"),
        ({"required": [np.timedelta64(1)]}, "required must name clients .*timedelta64"),
        ({"groups": {0: "x"}, "caps": {"X": 1}}, "caps must name groups .* got 'X'"),
        ({"groups": {1: 1}, "caps": {1: None, 2: 1}}, "caps must name groups .* got 2"),
        ({"groups": {0: "x"}, "caps": np.timedelta64(1)}, "caps must be a whole number >= 0"),
        ({"groups": {0: "x"}, "caps": {None: 1}, "unknown_group": None}, "caps must name groups"),
        ({"groups": {0: float("nan")}}, "a group must be equal to itself, got nan"),
        ({"groups": {0: "x"}, "caps": "1"}, "caps must be a whole number >= 0, got '1'"),
    ],
)
def test_invalid_constraints_raise(settings, named):
    with pytest.raises(ValueError, match=named):
        adcs.Uniform(**settings)


def test_ids_in_constraints_become_plain():
    scheduler = adcs.Uniform(
        groups={np.int64(1): "a", np.int64(2): "a"}, caps=1, required=[np.int64(2)]
    )
    chosen = scheduler.select(0, range(3), 2).clients
    assert {type(client) for client in chosen} == {int}
    assert set(chosen) == {0, 2}


def test_a_known_client_in_the_unknown_group_does_not_lift_its_cap():
    for clients in (["a", "b"], [0, 2, 3, 4]):
        scheduler = adcs.ADCS(groups={0: "unknown", 1: "g"}, caps={"g": 1})
        assert len(scheduler.select(0, clients, 4).clients) == 1
    unlimited = adcs.ADCS(groups={0: "unknown", 1: "g"}, caps={"g": 1, "unknown": None})
    assert len(unlimited.select(0, [0, 2, 3, 4], 4).clients) == 4


def test_a_group_without_limit_beside_one_with_a_cap():
    scheduler = adcs.ADCS(groups={1: 1, 2: 2}, caps={1: None, 2: 1})
    assert len(scheduler.select(0, [1, 5, 6], 3).clients) == 2


@pytest.mark.parametrize("cap", [np.int64(1), np.uint8(1)])
def test_caps_of_numpy_become_plain(cap):
    for caps in (cap, {"a": cap}):
        scheduler = adcs.ADCS(groups={0: "a", 1: "a"}, caps=caps)
        assert len(scheduler.select(0, [0, 1], 2).clients) == 1
        assert "np." not in repr(scheduler)


def test_caps_need_groups():
    with pytest.raises(ValueError, match="groups"):
        adcs.Uniform(caps=2)


class Unconstrained(adcs.Scheduler):
    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(clients[:m])


def test_the_base_class_checks_constraints() -> None:
    groups = dict.fromkeys(range(10), "one")
    with pytest.raises(ValueError, match=r"must take 9, which is required"):
        Unconstrained(required=[9]).select(0, range(10), 3)
    with pytest.raises(ValueError, match=r"at most 2 of group 'one', took 3"):
        Unconstrained(groups={**groups, 9: "two"}, caps={"one": 2}).select(0, range(10), 3)
