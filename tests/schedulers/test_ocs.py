"""OCS."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adcs
from adcs.schedulers.ocs import optimal_probabilities


def test_original_probabilities_by_hand():
    p = optimal_probabilities(np.array([1.0, 1.0, 2.0]), 2)
    np.testing.assert_allclose(p, [0.5, 0.5, 1.0])


@given(
    st.lists(st.floats(0.0, 1e6), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_probabilities_are_probabilities(norms, m):
    p = optimal_probabilities(np.array(norms), m)
    assert ((p >= 0) & (p <= 1)).all()
    nonzero = sum(n > 0 for n in norms)
    if nonzero >= m:
        assert p.sum() == pytest.approx(min(m, len(norms)))


def test_original_is_unbiased():
    scheduler = adcs.OCS(independent=True)
    norms = np.array([0.2, 0.5, 1.0, 4.0, 2.0])
    total = np.zeros(5)
    for server_round in range(4000):
        reports = [adcs.ClientReport(c, server_round, norm=n) for c, n in enumerate(norms)]
        scheduler.observe(server_round, reports, "probe")
        cohort = scheduler.select(server_round, range(5), 2)
        assert not cohort.normalise
        total[list(cohort.clients)] += cohort.weights
    np.testing.assert_allclose(total / 4000, 1.0, atol=0.2)


def test_independent_refuses_caps():
    with pytest.raises(ValueError, match="caps"):
        adcs.OCS(independent=True, groups={1: "a"}, caps=1)


def test_optimal_sampling_by_size_has_the_least_variance() -> None:
    share = np.array([0.7, 0.1, 0.1, 0.1])
    spreads = {}
    for by_size in (False, True):
        scheduler = adcs.OCS(independent=True, by_size=by_size)
        totals = []
        for server_round in range(2000):
            reports = [
                adcs.ClientReport(c, server_round, norm=1.0, examples=int(1000 * share[c]))
                for c in range(4)
            ]
            scheduler.observe(server_round, reports, "probe")
            cohort = scheduler.select(server_round, range(4), 2)
            totals.append(share[list(cohort.clients)] @ cohort.weights if cohort.clients else 0.0)
        assert np.mean(totals) == pytest.approx(1.0, abs=0.06)
        spreads[by_size] = np.var(totals)
    assert spreads[True] < 0.08 < 0.4 < spreads[False]


def test_norms_of_zero_have_equal_probabilities():
    np.testing.assert_allclose(
        optimal_probabilities(np.array([0.0, 5.0, 0.0, 0.0]), 2), [1 / 3, 1, 1 / 3, 1 / 3]
    )


def test_if_all_norms_are_zero_probabilities_are_equal():
    assert optimal_probabilities(np.zeros(4), 2).tolist() == [0.5] * 4


class Scripted:
    """A random generator that returns given numbers."""

    def __init__(self, numbers):
        self.numbers = numbers

    def random(self, size):
        assert size == len(self.numbers)
        return self.numbers


@pytest.mark.parametrize("m", [1, 2, 4])
def test_independent_sampling_is_unbiased_by_enumeration(m, monkeypatch) -> None:
    """Over all 2^5 outcomes, the mean of sum p w g is sum p g."""
    norms = np.array([0.2, 0.5, 1.0, 4.0, 2.0])
    chance, share = optimal_probabilities(norms, m), np.arange(1.0, 6.0) / 15.0
    updates = np.random.default_rng(0).standard_normal(5)
    scheduler = adcs.OCS(independent=True)
    reports = [adcs.ClientReport(c, 0, norm=norm) for c, norm in enumerate(norms)]
    scheduler.observe(0, reports, "probe")
    mean = 0.0
    for outcome in itertools.product([True, False], repeat=5):
        included = np.array(outcome)
        numbers = np.where(included, chance / 2, (1 + chance) / 2)
        monkeypatch.setattr(scheduler, "rng", lambda r, numbers=numbers: Scripted(numbers))
        cohort = scheduler.select(0, range(5), m)
        p = np.prod(np.where(included, chance, 1 - chance))
        rows = list(cohort.clients)
        if p > 0.0:
            assert rows == np.flatnonzero(included).tolist()
            mean += p * float(share[rows] * cohort.weights @ updates[rows])
    assert mean == pytest.approx(float(share @ updates), rel=1e-9)
