"""FedCS by hand: who fits into the deadline."""

from __future__ import annotations

import numpy as np
import pytest

import adcs
from adcs.schedulers.fedcs import fit_deadline


def timed(scheduler, times):
    """Report (compute, communication) seconds of clients 1, 2, ..."""
    facts = [
        adcs.ClientReport(c, 0, compute_seconds=u, communication_seconds=t)
        for c, (u, t) in enumerate(times, start=1)
    ]
    scheduler.observe(0, facts, "enrolment")
    return scheduler


def test_the_greedy_by_hand():
    """Deadline 10, downloads 1, (u, l) = (4, 1), (2, 2), (9, 1): client 2, 1; 3 would end at 11."""
    u, up, d = np.array([4.0, 2, 9]), np.array([1.0, 2, 1]), np.ones(3)
    assert fit_deadline(u, up, d, 10.0) == ([1, 0], 6.0)
    assert fit_deadline(u, up, d, 11.0) == ([1, 0, 2], 11.0)
    assert fit_deadline(u, up, d, 4.9) == ([], 0.0)


def test_a_slow_download_counts_once():
    """Downloads 5 and 5: 5 + (1 + 1), then the second adds 1 alone; a third of 9 does not fit."""
    u, up, d = np.array([1.0, 1, 1]), np.array([1.0, 1, 1]), np.array([5.0, 5, 9])
    assert fit_deadline(u, up, d, 10.0) == ([0, 1], 8.0)


def test_computation_overlaps_with_earlier_uploads():
    """After the first upload ends at 4, a computation of 3 costs nothing."""
    u, up, d = np.array([2.0, 3.0]), np.array([2.0, 1.5]), np.zeros(2)
    assert fit_deadline(u, up, d, 5.5) == ([0, 1], 5.5)


def test_cohorts():
    scheduler = timed(adcs.FedCS(deadline=10.0), [(4, 2), (2, 3), (9, 2)])
    # Half of the communication is download: (1, 1.5, 1), uploads (1, 1.5, 1).
    cohort = scheduler.select(0, [1, 2, 3], 3)
    assert (cohort.clients, cohort.diagnostics["seconds"]) == ((2, 1), 6.5)
    assert timed(adcs.FedCS(deadline=1.0), [(4, 2)]).select(0, [1], 1).clients == ()


def test_candidates_are_drawn_and_m_is_not_exceeded():
    scheduler = timed(adcs.FedCS(candidates=4), [(1, 1)] * 6)
    sizes = {len(scheduler.select(r, range(1, 7), 3).clients) for r in range(10)}
    assert sizes == {3}
    assert len({scheduler.select(r, range(1, 7), 3).clients for r in range(10)}) > 1


def test_required_clients_are_taken_whether_or_not_they_fit():
    scheduler = timed(adcs.FedCS(deadline=5.0, required=[1]), [(9, 2), (1, 1)])
    assert scheduler.select(0, [1, 2], 2).clients == (1,)


def test_unknown_clients_are_left_out_unless_nothing_is_known():
    scheduler = timed(adcs.FedCS(), [(1, 1)])
    assert scheduler.select(0, [1, 2], 2).clients == (1,)
    cohort = adcs.FedCS().select(1, [1, 2], 2)
    assert set(cohort.clients) == {1, 2}
    assert "FedCS needs 'communication_seconds'" in cohort.diagnostics["missing"][0]


@pytest.mark.parametrize("settings", [{"deadline": 0}, {"candidates": 0}, {"download_share": 2}])
def test_wrong_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        adcs.FedCS(**settings)
