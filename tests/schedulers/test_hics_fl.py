"""HiCSFL: entropies, distances and probabilities by hand."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import adcs
from adcs.schedulers.hics_fl import bias_entropies, cluster_probabilities


def observed(scheduler, changes, sizes=None):
    """Let all clients 0, 1, ... be selected once and report the changes of their biases."""
    scheduler.select(0, range(len(changes)), len(changes))
    reports = [
        adcs.ClientReport(c, 0, output_bias_update=db, examples=None if sizes is None else sizes[c])
        for c, db in enumerate(changes)
    ]
    scheduler.observe(0, reports, "training")
    return scheduler


def test_entropies_by_hand():
    """softmax(1, 1) = (1/2, 1/2): ln 2; softmax(ln 3, 0) = (3/4, 1/4): .562; T scales."""
    changes = np.array([[1.0, 1.0], [math.log(3), 0.0]])
    np.testing.assert_allclose(bias_entropies(changes, 1.0), [0.693147, 0.562335], atol=1e-6)
    np.testing.assert_allclose(bias_entropies(0.1 * changes, 0.1), [0.693147, 0.562335], atol=1e-6)
    assert bias_entropies(np.array([[1e6, -1e6]]), 1e-4) == pytest.approx([0.0])


def test_distances_by_hand(monkeypatch):
    """The angle of (1, 1) and (ln 3, 0) is pi / 4, and 10 |.693 - .562| = 1.308."""
    seen = []
    monkeypatch.setattr(
        "adcs.schedulers.hics_fl.ward_clusters",
        lambda condensed, n, clusters: seen.append(condensed) or np.zeros(n, dtype=int),
    )
    observed(adcs.HiCSFL(temperature=1.0), [[1.0, 1.0], [math.log(3), 0.0]]).select(1, range(2), 1)
    assert seen[0] == pytest.approx([0.785398 + 1.308118], abs=1e-5)


def test_probabilities_by_hand():
    """gamma = 2: exp(2 H) = (4, 3.079): .565 and .435; within a cluster by examples."""
    entropy = np.array([math.log(2), 0.562335, 0.562335])
    p = cluster_probabilities(entropy, np.array([0, 1, 1]), np.array([5.0, 1.0, 3.0]), 2.0)
    np.testing.assert_allclose(p, [0.565, 0.435 / 4, 0.435 * 3 / 4], atol=5e-4)


def test_a_label_that_makes_more_clusters_is_drawn_more_often():
    """Labels of three clients each, M = m = 4: one label makes 3 clusters, the other 1.

    All entropies are equal, so each cluster has probability 1/4: 3/4 for the clients of one label.
    With a cluster for each label both have 1/2. Bias changes of one label differ by noise alone.
    """
    first = [[1.0, -1.0, e, -e] for e in (0.0, 0.2, 0.4)]
    second = [[-1.0, 1.0, e, -e] for e in (0.0, 1e-6, 2e-6)]
    changes = np.array(first + second)
    entropy = np.ones(6)
    for clusters, share in ((4, 3 / 4), (2, 1 / 2)):
        labels = adcs.HiCSFL(clusters=clusters)._cluster(changes, entropy, 4)
        p = cluster_probabilities(entropy, labels, np.ones(6), 4.0)
        assert p[:3].sum() == pytest.approx(share)


def test_draws_have_these_probabilities():
    scheduler = adcs.HiCSFL(temperature=1.0, sharpness=2.0, clusters=2, rounds=10**9)
    observed(scheduler, [[1.0, 1.0], [math.log(3), 0.0]])
    picks = Counter(scheduler.select(r, range(2), 1).clients[0] for r in range(1, 2001))
    assert picks[0] / 2000 == pytest.approx(0.565, abs=0.05)


def test_the_preference_falls_to_none_at_the_last_round():
    scheduler = adcs.HiCSFL(temperature=1.0, sharpness=50.0, clusters=2, rounds=100)
    observed(scheduler, [[1.0, 1.0], [math.log(9), 0.0]])
    assert [scheduler.select(r, range(2), 1).clients[0] for r in range(1, 9)] == [0] * 8
    assert {scheduler.select(r, range(2), 1).clients[0] for r in range(100, 130)} == {0, 1}


def test_everyone_is_selected_once_in_the_first_rounds():
    scheduler = adcs.HiCSFL()
    seen = []
    for server_round in range(4):
        cohort = scheduler.select(server_round, range(10), 3)
        replies = [
            adcs.ClientReport(c, server_round, output_bias_update=[c, -c]) for c in cohort.clients
        ]
        scheduler.observe(server_round, replies, "training")
        seen += cohort.clients
    assert set(seen) == set(range(10))
    assert len(set(seen[:9])) == 9


def test_a_client_that_has_not_reported_is_tried_again_later():
    scheduler = adcs.HiCSFL()
    cohorts = [scheduler.select(r, range(4), 2).clients for r in range(4)]
    assert set(cohorts[0]) | set(cohorts[1]) == {0, 1, 2, 3}
    assert set(cohorts[2]) == set(cohorts[0])


def test_one_cluster_and_more_clusters_than_clients():
    for clusters in (1, 9):
        scheduler = observed(adcs.HiCSFL(clusters=clusters), [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        assert len(scheduler.select(1, range(3), 2).clients) == 2


def test_a_change_of_another_size_is_not_used():
    scheduler = observed(adcs.HiCSFL(), [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0, 5.0]])
    assert len(scheduler.select(1, range(3), 2).clients) == 2


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0}, {"entropy_weight": -1}, {"clusters": 0}, {"sharpness": -1}, {"rounds": 0}],
)
def test_wrong_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        adcs.HiCSFL(**settings)
