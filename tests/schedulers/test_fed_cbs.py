"""FedCBS: QCID by hand, and the draw probabilities by enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

import adcs
from adcs.schedulers.fed_cbs import imbalance


def labelled(scheduler, rows):
    """Report the label counts of clients 1, 2, ..."""
    reports = [adcs.ClientReport(c, 0, label_counts=row) for c, row in enumerate(rows, start=1)]
    scheduler.observe(0, reports, "probe")
    return scheduler


def test_imbalance_by_hand():
    """(10, 0): 1 - 1/2; (6, 4): .36 + .16 - .5; pooled (16, 4): .18 and (6, 14): .08."""
    rows = np.array([[10.0, 0], [6, 4], [16, 4], [6, 14]])
    np.testing.assert_allclose(imbalance(rows), [0.5, 0.02, 0.18, 0.08], atol=1e-12)


def draw_probabilities(scheduler, server_round, rows, pool, free, place):
    return scheduler._probabilities(
        server_round,
        [1, 2, 3],
        np.array(rows, dtype=float),
        np.array(pool, dtype=float),
        np.array(free),
        place,
    )


def test_draw_probabilities_by_hand():
    """t = 1: 2, 2, 50 of 54; after the third .18^-2 and .08^-2: .165 and .835."""
    rows = [[10, 0], [0, 10], [6, 4]]
    scheduler = adcs.FedCBS()
    first = draw_probabilities(scheduler, 0, rows, [0, 0], [True, True, True], 1)
    np.testing.assert_allclose(first, [0.037, 0.037, 0.926], atol=5e-4)
    second = draw_probabilities(scheduler, 0, rows, [6, 4], [True, True, False], 2)
    np.testing.assert_allclose(second, [0.165, 0.835, 0.0], atol=5e-4)


def test_late_places_go_to_clients_with_little_data():
    """To a pool of (20, 20), (9, 0) and (10, 0) give QCID 9^2 / 2 / 49^2 and 10^2 / 2 / 50^2.

    At the 18th place the ratio of probabilities is (49 * 10 / 50 / 9)^36 = 21.45, although the
    clients differ by one example. The exponent is the definition's.
    """
    counts, pool = np.array([[9.0, 0.0], [10.0, 0.0]]), np.array([20.0, 20.0])
    free = np.array([True, True])
    p = adcs.FedCBS()._probabilities(0, [0, 1], counts, pool, free, 18)
    assert p[0] / p[1] == pytest.approx(21.45, abs=0.01)


def test_the_bonus_by_hand():
    """t = e^2, T = (1, 2): 10 sqrt(3) and 10 sqrt(3 / 2) beside 1 / .5 and 1 / .5."""
    scheduler = adcs.FedCBS()
    scheduler._history.add([2], 0)
    p = draw_probabilities(
        scheduler, math.e**2 - 1, [[1, 0], [0, 1], [1, 1]], [0, 0], [True, True, False], 1
    )
    one, two = 2 + 10 * math.sqrt(3), 2 + 10 * math.sqrt(1.5)
    np.testing.assert_allclose(p, [one / (one + two), two / (one + two), 0.0], rtol=1e-9)


def test_cohorts_have_the_probabilities_of_the_enumeration():
    """All ordered pairs out of three clients, in round 0, over 3,000 seeds."""
    rows = np.array([[10.0, 0], [2, 8], [6, 4]])

    def chance(pair):
        first = 1 / imbalance(rows)
        second = imbalance(rows + rows[pair[0]]) ** -2.0
        second[pair[0]] = 0.0
        return first[pair[0]] / first.sum() * second[pair[1]] / second.sum()

    expected = {pair: chance(pair) for pair in itertools.permutations(range(3), 2)}
    assert sum(expected.values()) == pytest.approx(1.0)
    drawn = Counter()
    for seed in range(3000):
        scheduler = labelled(adcs.FedCBS(seed=seed), rows)
        drawn[tuple(c - 1 for c in scheduler.select(0, [1, 2, 3], 2).clients)] += 1
    for pair, p in expected.items():
        assert drawn[pair] / 3000 == pytest.approx(p, abs=0.03), pair


def test_perfectly_balanced_labels_are_floored():
    scheduler = labelled(adcs.FedCBS(), [[5, 5], [5, 5], [10, 0]])
    for server_round in range(5):
        assert scheduler.select(0, [1, 2, 3], 2).clients in {(1, 2), (2, 1)}, server_round


def test_the_cohort_complements_pending_clients():
    scheduler = labelled(adcs.FedCBS(exploration=0.0), [[10, 0], [0, 10], [10, 0], [9, 0]])
    hits = [scheduler.select(r, [2, 3, 4], 1, [1]).clients[0] for r in range(30)]
    assert hits.count(2) == 30


def test_clients_without_a_histogram_come_last_and_are_asked_again():
    scheduler = labelled(adcs.FedCBS(), [[10, 0], [0, 10]])
    assert scheduler.request(0, [1, 2, 3], 2).clients == (3,)
    cohort = scheduler.select(0, [1, 2, 3], 3)
    assert cohort.clients[2] == 3
    assert scheduler.request(1, [1, 2, 3], 2).clients == ()
    assert scheduler.request(20, [1, 2, 3], 2).clients == (3,)
    twin = adcs.FedCBS()
    twin.from_bytes(scheduler.to_bytes())
    assert twin.request(1, [1, 2, 3], 2).clients == ()


def test_noised_histograms_are_read():
    scheduler = labelled(adcs.FedCBS(), [[10, -3], [-2, 10], [-1, -1]])
    assert scheduler.select(0, [1, 2, 3], 2).clients in {(1, 2), (2, 1)}


def test_the_missing_histogram_is_named():
    [sentence] = adcs.FedCBS().select(3, [1, 2], 1).diagnostics["missing"]
    assert sentence.startswith("FedCBS needs 'label_counts' (the number of training examples of")


@pytest.mark.parametrize("settings", [{"exploration": -1}, {"floor": 0}])
def test_wrong_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        adcs.FedCBS(**settings)
