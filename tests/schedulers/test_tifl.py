"""TiFL by hand: tiers, credits and probabilities."""

from __future__ import annotations

from collections import Counter

import pytest

import adcs
from adcs.schedulers.tifl import tier_probabilities


def timed(scheduler, seconds):
    """Report the times of clients 0, 1, ... at enrolment."""
    facts = [
        adcs.ClientReport(c, 0, compute_seconds=s / 2, communication_seconds=s / 2)
        for c, s in enumerate(seconds)
    ]
    scheduler.observe(0, facts, "enrolment")
    return scheduler


def accuracies(scheduler, server_round, values):
    reports = [
        adcs.ClientReport(c, server_round, held_out_accuracy=value)
        for c, value in enumerate(values)
    ]
    scheduler.observe(server_round, reports, "probe")


def test_probabilities_by_hand():
    """Accuracies .8, .6: 1/3, 2/3; three tiers: 3/6 for the worst, then 2/6 and 1/6."""
    assert tier_probabilities([0.8, 0.6], [0, 1]) == pytest.approx([1 / 3, 2 / 3])
    assert tier_probabilities([0.5, 0.9, 0.1], [0, 1, 2]) == pytest.approx([2 / 6, 1 / 6, 3 / 6])


def test_tiers_are_equal_chunks_by_time_and_unknown_clients_are_slowest():
    scheduler = timed(adcs.TiFL(tiers=2), [4.0, 1.0, 3.0, 2.0])
    assert scheduler._make_tiers((0, 1, 2, 3, 9)) == [[1, 3], [2, 0, 9]]


def test_a_cohort_is_out_of_one_tier_and_may_be_small():
    scheduler = timed(adcs.TiFL(tiers=2), [1.0, 2.0, 30.0, 40.0])
    for server_round in range(1, 20):
        cohort = scheduler.select(server_round, range(4), 3)
        assert set(cohort.clients) in ({0, 1}, {2, 3})


def test_accuracy_is_asked_at_each_interval():
    scheduler = adcs.TiFL(interval=3)
    assert [r for r in range(7) if scheduler.request(r, range(2), 1).clients] == [0, 3, 6]
    assert scheduler.request(0, range(2), 1).signals == {"held_out_accuracy"}


def test_the_worse_tier_is_drawn_twice_as_often():
    scheduler = timed(adcs.TiFL(tiers=2, interval=1000, rounds=10**6), [1.0, 2.0])
    accuracies(scheduler, 0, [0.8, 0.6])
    tiers = Counter(scheduler.select(r, range(2), 1).diagnostics["tier"] for r in range(1500))
    assert tiers[1] / 1500 == pytest.approx(2 / 3, abs=0.05)


def test_probabilities_stay_while_the_last_tier_improves():
    scheduler = timed(adcs.TiFL(tiers=2, interval=1), [1.0, 2.0])
    accuracies(scheduler, 0, [0.8, 0.6])
    last = scheduler.select(0, range(2), 1).diagnostics["tier"]
    assert scheduler._p == pytest.approx([1 / 3, 2 / 3])
    # The last tier has risen above the other one: nothing changes.
    improved = [0.8, 0.6]
    improved[last] += 0.01
    improved[1 - last] = 0.99 if last else 0.01
    accuracies(scheduler, 1, improved)
    scheduler.select(1, range(2), 1)
    assert scheduler._p == pytest.approx([1 / 3, 2 / 3])
    # It has not: the ranking of the new accuracies counts.
    accuracies(scheduler, 2, [0.1, 0.2])
    scheduler.select(2, range(2), 1)
    assert scheduler._p == pytest.approx([2 / 3, 1 / 3])


def test_credits_are_spent_and_given_again():
    """rounds = 4, tiers = 2: two credits each, so that four rounds have two of each tier."""
    scheduler = timed(adcs.TiFL(tiers=2, rounds=4, interval=100), [1.0, 2.0])
    tiers = [scheduler.select(r, range(2), 1).diagnostics["tier"] for r in range(1, 9)]
    assert Counter(tiers[:4]) == Counter(tiers[4:]) == {0: 2, 1: 2}


def test_a_tier_that_is_away_is_not_drawn():
    scheduler = timed(adcs.TiFL(tiers=2), [1.0, 2.0, 30.0, 40.0])
    for server_round in range(10):
        assert set(scheduler.select(server_round, [2, 3], 2).clients) == {2, 3}


def test_without_times_all_clients_are_one_tier_and_the_signal_is_named():
    cohort = adcs.TiFL().select(1, range(6), 4)
    assert len(cohort.clients) == 4
    assert "TiFL needs 'compute_seconds'" in cohort.diagnostics["missing"][0]


@pytest.mark.parametrize("settings", [{"tiers": 0}, {"interval": 0}, {"rounds": 0}])
def test_wrong_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        adcs.TiFL(**settings)
