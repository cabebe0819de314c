"""Label histograms: counting, noise and reading."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adcs.reports.histogram import count_labels, label_counts
from adcs.reports.report import ClientReport
from adcs.reports.store import ReportStore


def test_counts_without_noise():
    assert count_labels(np.array([3, 0, 3, 1], dtype=np.uint8), 5).tolist() == [1, 1, 0, 2, 0]
    assert count_labels([], 2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "epsilon", "reason"),
    [
        ([0, 5], 5, None, "labels must lie between 0 and 4, got 0 to 5"),
        ([-1], 5, None, "labels must lie between 0 and 4, got -1 to -1"),
        ([0.5], 5, None, "labels must be a row of whole numbers"),
        ([[1]], 5, None, "labels must be a row of whole numbers"),
        ([1], 0, None, "classes must be a whole number >= 1, got 0"),
        ([1], 5, 0.0, "epsilon must be a number > 0, got 0"),
        ([1], 5, float("nan"), "epsilon must be a number > 0, got nan"),
    ],
)
def test_wrong_arguments(labels, classes, epsilon, reason):
    with pytest.raises(ValueError, match=reason):
        count_labels(labels, classes, epsilon=epsilon)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_noise_is_discrete_laplace(epsilon):
    """P(k) = (1 - a) / (1 + a) a^|k| with a = exp(-epsilon): neighbours differ by a factor a."""
    noise = count_labels([], 400_000, epsilon=epsilon, rng=np.random.default_rng(5))
    a = math.exp(-epsilon)
    for k in range(-3, 4):
        expected = (1 - a) / (1 + a) * a ** abs(k)
        error = 5 * math.sqrt(expected / noise.size)
        assert np.mean(noise == k) == pytest.approx(expected, abs=error)


def test_two_histograms_have_different_noise():
    assert count_labels([], 50, epsilon=0.1).tolist() != count_labels([], 50, epsilon=0.1).tolist()


def test_the_number_of_classes_is_that_of_most_clients():
    store = ReportStore()
    rows = {"a": [1, 1, 1], "b": [2, 2], "c": [-5, 7]}
    store.record([ClientReport(c, 0, label_counts=row) for c, row in rows.items()])
    clients, counts = label_counts(store, ["a", "b", "c"])
    assert clients == ["b", "c"]
    assert counts.tolist() == [[2.0, 2.0], [0.0, 7.0]]
    assert label_counts(store, ["x"])[0] == []
