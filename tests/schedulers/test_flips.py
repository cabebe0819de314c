"""FLIPS by hand: clusters and clients in turn."""

from __future__ import annotations

import numpy as np
import pytest

import adcs
from adcs.schedulers.flips import cluster_labels


def labelled(scheduler, rows):
    """Report the label counts of clients 1, 2, ..."""
    reports = [adcs.ClientReport(c, 0, label_counts=row) for c, row in enumerate(rows, start=1)]
    scheduler.observe(0, reports, "probe")
    return scheduler


THREE_AND_ONE = [[90, 0], [80, 1], [85, 1], [0, 9]]


def test_clusters_and_clients_in_turn():
    """{1, 2, 3} and {4}, m = 2: {1, 4}, {2, 4}, {3, 4}, {1, 4}."""
    scheduler = labelled(adcs.FLIPS(), THREE_AND_ONE)
    cohorts = [scheduler.select(r, [1, 2, 3, 4], 2).clients for r in range(4)]
    assert cohorts == [(1, 4), (2, 4), (3, 4), (1, 4)]


def test_small_clusters_are_not_starved():
    """m = 1 with three clusters: each has its turn, although m < k."""
    rows = [[9, 0, 0], [8, 0, 0], [0, 9, 0], [0, 8, 0], [0, 0, 9], [0, 0, 8]]
    scheduler = labelled(adcs.FLIPS(), rows)
    cohorts = [scheduler.select(r, [1, 2, 3, 4, 5, 6], 1).clients[0] for r in range(6)]
    assert cohorts == [1, 3, 5, 2, 4, 6]


def test_an_exhausted_cluster_gives_its_slots_to_others():
    scheduler = labelled(adcs.FLIPS(), THREE_AND_ONE)
    assert set(scheduler.select(0, [1, 2, 3, 4], 3).clients) == {1, 2, 4}
    # Client 4's cluster has 1 selection and that of the others 2; client 4 is away.
    assert scheduler.select(1, [1, 2, 3], 1).clients == (3,)


def test_clients_without_a_histogram_are_a_cluster_of_their_own():
    scheduler = labelled(adcs.FLIPS(), THREE_AND_ONE)
    cohort = scheduler.select(0, [1, 2, 3, 4, 5, 6], 3)
    assert cohort.clients == (1, 4, 5)
    assert dict(cohort.diagnostics["clusters"])[5] == -1


def test_required_clients_count_for_their_cluster():
    scheduler = labelled(adcs.FLIPS(required=[2]), THREE_AND_ONE)
    assert scheduler.select(0, [1, 2, 3, 4], 2).clients == (2, 4)


def test_the_number_of_clusters_is_that_of_the_best_index():
    rng = np.random.default_rng(0)
    for k in (2, 3, 5):
        rows = np.repeat(np.eye(k), 6, axis=0) + 0.01 * rng.random((6 * k, k))
        labels = cluster_labels(rows, 10, rng)
        assert len(set(labels.tolist())) == k


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_clients(n):
    assert len(cluster_labels(np.eye(3)[:n], 10, np.random.default_rng(0))) == n
    scheduler = labelled(adcs.FLIPS(), np.eye(3)[:n].tolist())
    assert len(scheduler.select(0, list(range(1, n + 1)), 2).clients) == min(n, 2)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="max_clusters"):
        adcs.FLIPS(max_clusters=1)
