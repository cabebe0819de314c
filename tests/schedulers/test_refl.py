"""REFL by hand: rising availability, rest, forecasts of clients."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import adcs
from adcs.schedulers.availability import AvailabilityHistory


def test_the_history_by_hand():
    """a is followed in 3 rounds and stays in 2: 3/5; b is followed once and leaves: 1/3."""
    history = AvailabilityHistory()
    for server_round, seen in enumerate([["a"], ["a", "b"], ["a"], []]):
        history.update(server_round, seen)
        history.update(server_round, ["x"])  # a round counts once
    np.testing.assert_allclose(history.stays(["a", "b", "c"]), [3 / 5, 1 / 3, 1 / 2])
    history.update(9, ["a"])  # a gap: nothing is known of the rounds between
    history.update(11, [])
    np.testing.assert_allclose(history.stays(["a"]), [3 / 5])
    twin = AvailabilityHistory()
    twin.restore(history.state())
    assert twin.state() == history.state()


def test_clients_that_come_and_go_are_first():
    """Client 3 leaves after every visit and client 2 after every second one."""
    scheduler = adcs.REFL(rest=0)
    seen = [[1, 2, 3], [1, 2], [1, 3], [1, 2], [1, 2, 3], [1], [1, 2, 3]]
    for server_round, available in enumerate(seen):
        scheduler.select(server_round, available, 1)
    cohort = scheduler.select(7, [1, 2, 3], 3)
    assert cohort.clients == (3, 2, 1)
    # 3: 4 followed (the last one here), 1 stayed: 2/6; 2: 5 and 3: 4/7; 1: 7 and 7: 8/9.
    assert dict(cohort.diagnostics["availability"]) == pytest.approx({3: 2 / 6, 2: 4 / 7, 1: 8 / 9})


def test_a_client_rests_for_five_rounds():
    scheduler = adcs.REFL()
    picks = [scheduler.select(r, range(6), 1).clients[0] for r in range(12)]
    assert Counter(picks[:5]).most_common(1)[0][1] == 1
    for r in range(5, 12):
        assert picks[r] not in picks[r - 4 : r]


def test_if_too_few_have_rested_the_longest_rested_follow():
    scheduler = adcs.REFL(rest=10)
    first = scheduler.select(0, range(4), 2).clients
    second = scheduler.select(1, range(4), 2).clients
    assert not set(first) & set(second)
    assert set(scheduler.select(2, range(4), 2).clients) == set(first)


def test_a_clients_own_forecast_counts():
    scheduler = adcs.REFL(rest=0)
    scheduler.observe(0, [adcs.ClientReport(1, 0, availability=0.1)], "enrolment")
    scheduler.observe(0, [adcs.ClientReport(2, 0, availability=0.9)], "training")
    assert scheduler.select(0, [1, 2, 3], 3).clients == (1, 3, 2)


def test_ties_are_shuffled():
    assert len({adcs.REFL(seed=s).select(0, range(9), 3).clients for s in range(9)}) > 1


def test_fewer_clients_while_others_are_at_work():
    scheduler = adcs.REFL(adaptive=True)
    sizes = [len(scheduler.select(r, range(20), 6, range(20, 20 + r)).clients) for r in range(6)]
    assert sizes == [6, 5, 4, 3, 3, 3]


def test_pending_clients_count_as_available():
    scheduler = adcs.REFL(rest=0)
    for server_round in range(4):
        scheduler.select(server_round, [1], 1, [2])
    assert scheduler._availability.stays([2]) == pytest.approx([4 / 5])


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="rest"):
        adcs.REFL(rest=-1)
