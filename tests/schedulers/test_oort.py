"""Oort: utilities by hand, exploration and the pacer on a scripted federation."""

from __future__ import annotations

import math

import numpy as np
import pytest

import adcs
from adcs.schedulers.oort import oort_scores

EXPLOIT = {"exploration": 0.0, "exploration_min": 0.0}


def reported(scheduler, rms, *, seconds=None, examples=None, server_round=0):
    """Report RMS losses of clients 1, 2, ... after training."""
    reports = [
        adcs.ClientReport(
            c + 1,
            server_round,
            rms_loss=loss,
            examples=None if examples is None else examples[c],
            compute_seconds=None if seconds is None else seconds[c],
        )
        for c, loss in enumerate(rms)
    ]
    scheduler.observe(server_round, reports, "training")
    return scheduler


def test_utilities_by_hand():
    """R = 10, U = (8, 4, 2), L = (9, 5, 1): 1 + .160, .3336 + .2146, .0003 + .4799."""
    scores = oort_scores(np.array([8.0, 4.0, 2.0]), np.array([9, 5, 1]), 10)
    np.testing.assert_allclose(scores, [1.160, 0.548, 0.480], atol=5e-4)


def test_slow_clients_lose_utility():
    """With s = (5, 20, 5) and T = 10 the second keeps (10 / 20)^2 of 0.548: 0.137."""
    scheduler = adcs.Oort(**EXPLOIT, percentile=50)
    scheduler.observe(0, [adcs.ClientReport(9, 0, compute_seconds=s) for s in (10.0,)], "enrolment")
    reported(scheduler, [8.0, 4.0, 2.0], seconds=[5.0, 20.0, 5.0], examples=[1, 1, 1])
    scheduler._history.last = {1: 8, 2: 4, 3: 0}
    scheduler._history.counts = {1: 1, 2: 1, 3: 1}
    cohort = scheduler.select(9, [1, 2, 3], 3)
    assert cohort.diagnostics["preferred_seconds"] == 10.0
    scores = dict(cohort.diagnostics["scores"])
    assert [round(scores[c], 3) for c in (1, 2, 3)] == [1.160, 0.137, 0.480]


def test_examples_count_in_the_utility_and_large_ones_are_clipped():
    """U = (40, 20, 10, 5), clipped at place int(4 * .5) = 2 of (5, 10, 20, 40), which is 20."""
    scheduler = reported(adcs.Oort(**EXPLOIT, clip=0.5), [4, 2, 1, 0.5], examples=[10] * 4)
    scores = dict(scheduler.select(0, [1, 2, 3, 4], 4).diagnostics["scores"])
    least, scale = 0.999 * 5, 40 - 0.999 * 5
    expected = [(20 - least) / scale, (20 - least) / scale, (10 - least) / scale, 0.005 / scale]
    np.testing.assert_allclose([scores[c] for c in (1, 2, 3, 4)], expected, rtol=1e-12)


def test_only_clients_near_the_cut_off_are_exploited():
    scheduler = reported(adcs.Oort(**EXPLOIT), [9.0, 8.9, 1.0, 0.5])
    for server_round in range(1, 30):
        assert set(scheduler.select(server_round, [1, 2, 3, 4], 2).clients) == {1, 2}


def test_all_slots_are_exploited_when_nobody_is_left_to_explore():
    """With m = 3 and every client explored, k = 3: the cut-off is .95 of the third best.

    So clients 1 to 4, all near it, are drawn, and client 5 never is. By k = int(.1 * 3) = 0 the
    best three would be taken in every round.
    """
    scheduler = reported(adcs.Oort(exploration_decay=1.0), [9.0, 8.9, 8.8, 8.7, 1.0])
    cohorts = [set(scheduler.select(r, [1, 2, 3, 4, 5], 3).clients) for r in range(1, 40)]
    assert set.union(*cohorts) == {1, 2, 3, 4}
    assert len({frozenset(cohort) for cohort in cohorts}) == 4


def test_a_stale_loss_keeps_a_client_out():
    """Two of four clients look bad and are trained; the others are not, whatever happens to them.

    Utilities are known of selected clients only. The losses of clients 3 and 4 rise unseen to 9,
    and the bonus sqrt(0.1 ln R / L) does not make up for it in 50 rounds.
    """
    scheduler = reported(adcs.Oort(), [5.0, 5.0, 1.0, 1.0])
    scheduler._history.add([1, 2, 3, 4], 0)
    for server_round in range(1, 50):
        cohort = scheduler.select(server_round, [1, 2, 3, 4], 2).clients
        assert set(cohort) == {1, 2}
        losses = {1: 5.0, 2: 5.0, 3: 9.0, 4: 9.0}
        replies = [adcs.ClientReport(c, server_round, rms_loss=losses[c]) for c in cohort]
        scheduler.observe(server_round, replies, "training")


def test_exploration_decays_to_its_minimum_and_ends_when_nobody_is_left():
    """Of m = 4, exploration .5 leaves int(.5 * 4) = 2 for exploitation, and .25 leaves 3."""
    settings = {"exploration": 1.0, "exploration_decay": 0.5, "exploration_min": 0.25}
    scheduler = adcs.Oort(**settings)
    clients = list(range(1, 13))
    explored: set[int] = set()
    sizes = []
    for server_round in range(8):
        cohort = scheduler.select(server_round, clients, 4)
        new = set(cohort.clients) - explored
        sizes.append(len(new))
        assert set(cohort.diagnostics["explored"]) == new
        explored |= new
        replies = [adcs.ClientReport(c, server_round, rms_loss=1.0) for c in cohort.clients]
        scheduler.observe(server_round, replies, "training")
    # Round 1 has nobody to exploit; then shares of .25 leave one slot until all are explored.
    assert sizes == [4, 1, 1, 1, 1, 1, 1, 1]
    assert scheduler.select(20, clients[:4], 4).diagnostics["exploration"] == 0.25


def test_exploration_prefers_many_examples_and_speed():
    scheduler = adcs.Oort(exploration=1.0, exploration_decay=1.0, percentile=0)
    facts = [
        adcs.ClientReport(c, 0, examples=1 + 1000 * (c < 6), compute_seconds=1.0 + 1e4 * (c == 0))
        for c in range(40)
    ]
    scheduler.observe(0, facts, "enrolment")
    # Of the 5 best, the fast ones of 1001 examples, one is drawn.
    drawn = {scheduler.select(0, list(range(40)), 1).clients[0] for _ in range(5)}
    assert drawn <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("expired", [True, False])
def test_the_pacer_ignores_clients_without_a_loss(expired):
    """Their utility is unknown: it was NaN, which ended the pacer and could not be saved."""
    scheduler = reported(adcs.Oort(**EXPLOIT, pacer_window=1), [1.0, 3.0])
    scheduler.select(0, [1, 2], 2)
    if expired:
        reported(scheduler, [1.0, 3.0])
        scheduler.expire([1])
    else:
        scheduler.observe(0, [adcs.ClientReport(1, 0, update=[1.0])], "training")
        scheduler.observe(0, [adcs.ClientReport(2, 0, rms_loss=3.0)], "training")
    scheduler.select(1, [1, 2], 2)
    assert scheduler.state()["utilities"][-1] == 3.0
    adcs.Oort(**EXPLOIT, pacer_window=1).from_bytes(scheduler.to_bytes())


@pytest.mark.parametrize(
    ("utility", "expected"),
    [
        (lambda r: 1.0, 35.0),  # flat: relaxed
        (lambda r: 0.5 if r < 4 else 1.0, 30.0),  # neither flat nor sharp
        (lambda r: 0.01 if r < 4 else 9.0, 25.0),  # sharp: tightened
    ],
)
def test_the_pacer(utility, expected):
    """W = 4: the pacer compares rounds 1-4 with 5-8, and those with 9-12."""
    scheduler = adcs.Oort(**EXPLOIT, pacer_window=4)
    clients = [1, 2, 3]
    for server_round in range(12):
        cohort = scheduler.select(server_round, clients, 2)
        loss = utility(server_round)
        replies = [
            adcs.ClientReport(c, server_round, rms_loss=loss, examples=1, compute_seconds=c)
            for c in cohort.clients
        ]
        scheduler.observe(server_round, replies, "training")
    assert scheduler._percentile == expected


def test_the_preferred_duration_is_a_percentile():
    facts = [adcs.ClientReport(c, 0, compute_seconds=float(c)) for c in range(1, 11)]
    for percentile, seconds in [(0, 1.0), (10, 2.0), (95, 10.0), (100, None)]:
        scheduler = adcs.Oort(percentile=percentile)
        scheduler.observe(0, facts, "enrolment")
        cohort = scheduler.select(0, list(range(1, 11)), 2)
        assert cohort.diagnostics["preferred_seconds"] == seconds


def test_clients_selected_too_often_are_passed_over_but_not_all():
    scheduler = reported(adcs.Oort(**EXPLOIT, max_picks=2), [9.0, 1.0, 1.0, 1.0])
    picks = [scheduler.select(r, [1, 2, 3, 4], 1).clients[0] for r in range(8)]
    assert picks[:3] == [1, 1, 1]
    assert picks[3] != 1
    full = scheduler.select(9, [1, 2, 3, 4], 4)
    assert set(full.clients) == {1, 2, 3, 4}


def test_the_mean_loss_stands_in_and_the_missing_signal_is_named():
    scheduler = adcs.Oort(**EXPLOIT)
    scheduler.observe(0, [adcs.ClientReport(c, 0, loss=c) for c in (1, 2)], "training")
    cohort = scheduler.select(1, [1, 2], 1)
    assert cohort.clients == (2,)
    [sentence] = cohort.diagnostics["missing"]
    assert sentence.startswith("Oort needs 'rms_loss' (the root mean square of the losses")
    assert "return it as a metric of that name" in sentence


@pytest.mark.parametrize(
    "settings",
    [
        {"exploration": 1.5},
        {"exploration_decay": 0.0},
        {"exploration_min": -0.1},
        {"cutoff": 2},
        {"clip": math.nan},
        {"penalty": -1},
        {"percentile": 101},
        {"pacer_step": 0},
        {"pacer_window": 0},
        {"max_picks": 0},
    ],
)
def test_wrong_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        adcs.Oort(**settings)
