from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adcs.dpp.constraints import Constraints
from adcs.dpp.facility_location import facility_location, pairwise_distances


def random_distances(seed, n, dim=5):
    return pairwise_distances(np.random.default_rng(seed).normal(size=(n, dim)))


def uneven_distances(seed, n):
    """Distances that differ by direction: symmetric ones often tie, i for j against j for i."""
    d = random_distances(seed, n)
    return d * np.random.default_rng(seed).uniform(1.0, 1.1, size=(n, n))


def cost(distances, chosen):
    return distances[:, list(chosen)].min(axis=1).sum()


@pytest.mark.parametrize("optimizer", ["NaiveGreedy", "LazyGreedy"])
@pytest.mark.parametrize(("n", "m"), [(12, 4), (40, 39), (150, 30)])
def test_equals_submodlib(n, m, optimizer, oracle):
    submodlib = oracle("submodlib")
    for seed in range(3):
        d = uneven_distances(seed, n)
        peer = submodlib.FacilityLocationFunction(
            n=n, mode="dense", sijs=d.max() - d, separate_rep=False
        ).maximize(budget=m, optimizer=optimizer, stopIfZeroGain=False, show_progress=False)
        result = facility_location(d, m)
        assert result.indices.tolist() == [i for i, _ in peer]
        # The peer works in float32.
        np.testing.assert_allclose(result.gains, [g for _, g in peer], rtol=1e-3, atol=1e-2)


def test_the_first_pick_is_the_medoid_and_gains_are_decreases_in_cost():
    d = random_distances(7, 30)
    result = facility_location(d, 6)
    assert result.indices[0] == d.sum(axis=1).argmin()
    costs = [30 * d.max()] + [cost(d, result.indices[:k]) for k in range(1, 7)]
    np.testing.assert_allclose(result.gains, -np.diff(costs))
    assert result.cost == pytest.approx(costs[-1])


def test_reaches_1_minus_1_over_e_of_the_best_decrease():
    for seed in range(5):
        d = random_distances(seed, 11, dim=2)
        start = 11 * d.max()
        best = max(start - cost(d, s) for s in combinations(range(11), 4))
        fall = start - facility_location(d, 4).cost
        assert (1 - 1 / np.e) * best <= fall <= best + 1e-9


def test_assignment_is_to_the_nearest_and_to_oneself():
    rows = np.array([[0.0], [1.0], [1.0], [5.0], [6.0]])
    d = pairwise_distances(rows)
    result = facility_location(d, 5)
    np.testing.assert_array_equal(result.assignment, np.arange(5))
    d = random_distances(1, 20)
    result = facility_location(d, 5)
    for i, j in enumerate(result.assignment):
        assert d[i, j] == d[i, result.indices].min()


def test_equal_rows_fill_up_in_index_order_with_no_gain():
    result = facility_location(np.zeros((5, 5)), 4)
    assert result.indices.tolist() == [0, 1, 2, 3]
    assert result.gains.tolist() == [0.0] * 4
    assert result.cost == 0.0


def test_only_candidates_count():
    rows = np.array([[0.0], [1.0], [2.0], [100.0], [101.0], [102.0], [103.0]])
    d = pairwise_distances(rows)
    result = facility_location(d, 1, constraints=Constraints(candidates=[0, 1, 2]))
    assert result.indices.tolist() == [1]
    assert result.cost == 2.0
    assert result.assignment.tolist() == [1, 1, 1, -1, -1, -1, -1]


def test_required_rows_come_first_and_caps_hold():
    d = random_distances(3, 12)
    labels = np.arange(12) % 3
    result = facility_location(
        d, 6, constraints=Constraints(required=[4, 1, 10], groups=labels, caps={0: 2, 1: 3})
    )
    assert set(result.indices[:3]) == {1, 4, 10}
    taken = np.bincount(labels[result.indices], minlength=3)
    assert taken[0] <= 2
    assert taken[1] == 3
    # Greedy among those that may still be in: the rest of group 1 may not.
    gains = {j: cost(d, [1, 4, 10]) - cost(d, [1, 4, 10, j]) for j in range(12) if j % 3 != 1}
    assert result.indices[3] == max(gains, key=lambda j: gains[j])


def test_distances_are_exact_where_inner_products_cancel():
    rng = np.random.default_rng(0)
    base = rng.normal(size=50)
    step = rng.normal(size=50)
    rows = np.stack([base, base + 1e-9 * step, base, -base])
    d = pairwise_distances(rows)
    assert d[0, 1] == pytest.approx(np.linalg.norm(rows[1] - rows[0]), rel=1e-9)
    assert d[0, 2] == 0.0
    assert d[0, 3] == pytest.approx(2 * np.linalg.norm(base))
    np.testing.assert_array_equal(d, d.T)
    assert (np.diagonal(d) == 0).all()


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_distances_keep_the_scale(scale):
    rows = np.random.default_rng(0).normal(size=(9, 4))
    expected = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.testing.assert_allclose(pairwise_distances(scale * rows), scale * expected, rtol=1e-12)
    np.testing.assert_array_equal(pairwise_distances(np.zeros((3, 2))), np.zeros((3, 3)))


@pytest.mark.parametrize("scale", [1e-40, 1.0, 1e36])
def test_distances_of_float32_are_those_of_the_same_numbers_in_float64(scale):
    rows = (scale * np.random.default_rng(0).normal(size=(9, 40))).astype(np.float32)
    rows[1] = rows[0] * np.float32(1.0001)  # close enough to be subtracted
    wide = pairwise_distances(rows.astype(np.float64))
    np.testing.assert_array_equal(pairwise_distances(rows), wide)


def test_bad_distances_are_refused():
    with pytest.raises(ValueError, match=r"distances must be square, got shape \(2, 3\)"):
        facility_location(np.zeros((2, 3)), 1)
    with pytest.raises(ValueError, match="distances must not be negative, got -1"):
        facility_location([[0.0, -1.0], [-1.0, 0.0]], 1)
    with pytest.raises(ValueError, match="distances must be finite: row 0 holds nan"):
        facility_location([[0.0, np.nan], [np.nan, 0.0]], 1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 100), data=st.data())
def test_exactly_m_whatever_the_order_of_rows(seed, n, data):
    m = data.draw(st.integers(1, n))
    d = uneven_distances(seed, n)
    order = np.random.default_rng(seed).permutation(n)
    result = facility_location(d, m)
    again = facility_location(d[np.ix_(order, order)], m)
    np.testing.assert_array_equal(order[again.indices], result.indices)
    np.testing.assert_array_equal(order[again.assignment], result.assignment[order])
    assert np.unique(result.indices).size == m
    assert (result.gains >= 0).all()
    assert (np.diff(result.gains) <= 1e-9).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), copies=st.integers(2, 4), m=st.integers(1, 8))
def test_of_equal_rows_the_first_is_taken(seed, copies, m):
    rows = np.tile(np.random.default_rng(seed).normal(size=(8, 40)), (copies, 1))
    result = facility_location(pairwise_distances(rows), m)
    assert (result.indices < 8).all()


def test_rows_that_are_not_candidates_do_not_change_the_result():
    for seed in range(50):
        d = uneven_distances(seed, 14) * np.random.default_rng(seed).uniform(1, 9, size=14)
        among = np.sort(np.random.default_rng(seed).choice(14, 8, replace=False))
        part = facility_location(d, 4, constraints=Constraints(candidates=among))
        alone = facility_location(d[np.ix_(among, among)], 4)
        assert part.indices.tolist() == among[alone.indices].tolist()
        np.testing.assert_allclose(part.gains, alone.gains)
    far = pairwise_distances([[0.0], [1.0], [2.0], [3.0], [4.0], [1e16]])
    result = facility_location(far, 2, constraints=Constraints(candidates=range(5)))
    assert result.indices[0] == 2
