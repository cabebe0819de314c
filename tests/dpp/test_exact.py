from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adcs.dpp.constraints import Constraints
from adcs.dpp.exact import exact_map, improve
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import objective, similarity, unit_rows


def grouped(seed, groups=10, each=3, noise=0.3, dim=60):
    """Groups of similar rows, and qualities that go with the groups."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, dim)) / np.sqrt(dim)
    rows = np.repeat(centres, each, axis=0)
    rows = rows + noise * rng.normal(size=rows.shape) / np.sqrt(dim)
    quality = np.repeat(rng.uniform(0, 2.5, groups), each) + 0.1 * rng.normal(size=groups * each)
    return similarity(unit_rows(rows)), quality


def scattered(seed, n, dim):
    rng = np.random.default_rng(seed)
    return similarity(unit_rows(rng.normal(size=(n, dim)))), rng.normal(size=n)


def exhaustive(c, m, quality, theta, allowed=lambda s: True):
    """The largest objective over all sets of m rows that are allowed and independent."""
    best = -np.inf
    for s in combinations(range(len(c)), m):
        if not allowed(s) or np.linalg.eigvalsh(c[np.ix_(s, s)])[0] < 1e-12:
            continue
        best = max(best, objective(c, s, quality, theta))
    return best


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.8, 0.99])
@pytest.mark.parametrize(("n", "m", "dim"), [(8, 3, 20), (10, 6, 10), (12, 5, 6), (11, 9, 30)])
def test_equals_exhaustive_search_and_is_above_greedy_and_improve(n, m, dim, theta):
    for seed in range(3):
        c, q = scattered(seed, n, dim)
        best = exhaustive(c, m, q, theta)
        greedy = greedy_map(c, m, quality=q, theta=theta)
        better, gain = improve(greedy, c, quality=q, theta=theta)
        exact = exact_map(c, m, quality=q, theta=theta)
        assert exact.objective == pytest.approx(best, abs=1e-8)
        assert greedy.objective <= exact.objective + 1e-9
        assert greedy.objective <= better.objective <= exact.objective + 1e-9
        assert gain == pytest.approx(better.objective - greedy.objective, abs=1e-9)


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.9])
def test_equals_exhaustive_search_under_constraints(theta):
    labels = np.arange(12) % 4
    for seed in range(4):
        c, q = scattered(seed, 12, 9)
        constraints = Constraints(
            candidates=np.delete(np.arange(12), 5), required=[2, 7], groups=labels, caps=2
        )

        def allowed(s):
            return {2, 7} <= set(s) and 5 not in s and np.bincount(labels[list(s)]).max() <= 2

        greedy = greedy_map(c, 6, quality=q, theta=theta, constraints=constraints)
        better, _ = improve(greedy, c, quality=q, theta=theta, constraints=constraints)
        exact = exact_map(c, 6, quality=q, theta=theta, constraints=constraints)
        assert exact.objective == pytest.approx(exhaustive(c, 6, q, theta, allowed), abs=1e-8)
        assert allowed(tuple(better.indices))
        assert allowed(tuple(exact.indices))
        assert greedy.objective - 1e-9 <= better.objective <= exact.objective + 1e-9


@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_equals_exhaustive_search_over_several_blocks(theta):
    for seed, (c, q) in enumerate([scattered(0, 16, 20), grouped(0, groups=5, noise=0.2)]):
        sets = np.array(list(combinations(range(len(c)), 8)))
        logs = np.linalg.slogdet(c[sets[:, :, None], sets[:, None, :]])[1]
        best = ((1 - theta) * logs + theta * q[sets].sum(axis=1)).max()
        exact = exact_map(c, 8, quality=q, theta=theta)
        assert exact.objective == pytest.approx(best, abs=1e-8), seed


@pytest.mark.parametrize("theta", [0.0, 0.4])
def test_small_blocks_give_valid_bounds(monkeypatch, theta):
    # With blocks of three, nearly every correlation lies between blocks, also under caps.
    monkeypatch.setattr("adcs.dpp.exact_bounds._BLOCK", 3)
    labels = [0, 1, 2] * 4
    for seed in range(2):
        for m in (3, 5, 8):
            c, q = scattered(seed, 12, 12)
            exact = exact_map(c, m, quality=q, theta=theta)
            assert exact.objective == pytest.approx(exhaustive(c, m, q, theta), abs=1e-8)

            def allowed(s):
                return max(sum(labels[i] == g for i in s) for g in range(3)) <= 3

            constraints = Constraints(groups=labels, caps=3)
            exact = exact_map(c, m, quality=q, theta=theta, constraints=constraints)
            best = exhaustive(c, m, q, theta, allowed)
            assert exact.objective == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.95])
def test_duplicates_leave_the_search_exact(theta):
    c, q = scattered(3, 5, 8)
    twice = np.tile(np.arange(5), 2)
    c, q = c[np.ix_(twice, twice)], np.concatenate([q, q + 0.5])
    exact = exact_map(c, 5, quality=q, theta=theta)
    assert exact.rank == 5
    assert exact.objective == pytest.approx(exhaustive(c, 5, q, theta), abs=1e-8)


def test_a_rank_below_m_gives_the_greedy_solution():
    c, q = scattered(0, 9, 3)
    exact = exact_map(c, 5, quality=q, theta=0.5)
    greedy = greedy_map(c, 5, quality=q, theta=0.5)
    np.testing.assert_array_equal(exact.indices, greedy.indices)
    assert exact.objective == -np.inf
    assert exact.rank == 3


def test_caps_that_lead_greedy_into_a_dependent_set():
    # Greedy takes rows 0 and 2 and is left with row 3, a copy of row 2; {0, 1, 3} is independent.
    e = np.eye(3)
    c = similarity(np.stack([e[0], e[1], e[2], e[2]]))
    constraints = Constraints(groups=["a", "b", "b", "c"], caps=1)
    q = [1.0, 0.0, 0.5, 0.0]
    assert greedy_map(c, 3, quality=q, theta=0.5, constraints=constraints).rank == 2
    exact = exact_map(c, 3, quality=q, theta=0.5, constraints=constraints)
    assert sorted(exact.indices) == [0, 1, 3]


def test_theta_one_takes_the_best_qualities():
    c, q = scattered(1, 10, 4)
    exact = exact_map(c, 4, quality=q, theta=1.0)
    np.testing.assert_array_equal(exact.indices, np.argsort(-q)[:4])
    worst = greedy_map(c, 4, quality=-q, theta=1.0)
    better, gain = improve(worst, c, quality=q, theta=1.0)
    assert set(better.indices) == set(exact.indices)
    assert gain == pytest.approx(q[exact.indices].sum() - q[worst.indices].sum())


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.5, 0.8, 0.95])
def test_thirty_rows_in_ten_groups(theta):
    # Too many sets to list: the order of rows must not matter, and no local search may get above.
    c, q = grouped(0)
    exact = exact_map(c, 18, quality=q, theta=theta)
    shuffled = np.random.default_rng(1).permutation(30)
    again = exact_map(c[np.ix_(shuffled, shuffled)], 18, quality=q[shuffled], theta=theta)
    assert again.objective == pytest.approx(exact.objective, abs=1e-8)
    rng = np.random.default_rng(2)
    for _ in range(20):
        start = greedy_map(
            c,
            18,
            quality=q,
            theta=theta,
            constraints=Constraints(required=rng.choice(30, 5, replace=False).tolist()),
        )
        reached, _ = improve(start, c, quality=q, theta=theta)
        assert reached.objective <= exact.objective + 1e-8


def test_gains_belong_to_the_order_and_sum_to_the_objective():
    c, q = grouped(2)
    exact = exact_map(c, 12, quality=q, theta=0.3)
    assert exact.gains.sum() == pytest.approx(exact.objective)
    values = [objective(c, exact.indices[:k], q, 0.3) for k in range(1, 13)]
    np.testing.assert_allclose(np.cumsum(exact.gains), values, atol=1e-9)
    assert exact.objective == pytest.approx(objective(c, exact.indices, q, 0.3))


def test_a_tie_returns_the_greedy_set():
    greedy = greedy_map(np.eye(7), 3)
    exact = exact_map(np.eye(7), 3)
    np.testing.assert_array_equal(exact.indices, greedy.indices)
    better, gain = improve(greedy, np.eye(7))
    assert better is greedy
    assert gain == 0.0


def test_reaching_the_node_limit_is_an_error():
    c, _ = scattered(0, 24, 30)
    with pytest.raises(RuntimeError, match="node_limit = 2 was reached"):
        exact_map(c, 12, node_limit=2)


def test_improve_refuses_a_selection_outside_the_constraints():
    c, _ = scattered(0, 6, 10)
    chosen = greedy_map(c, 3)
    others = np.setdiff1d(np.arange(6), chosen.indices)
    with pytest.raises(ValueError, match="not among the candidates"):
        improve(chosen, c, constraints=Constraints(candidates=others))
    with pytest.raises(ValueError, match="required row"):
        improve(chosen, c, constraints=Constraints(required=[int(others[0])]))


def test_max_swaps_bounds_the_work():
    c, q = scattered(4, 12, 12)
    start = greedy_map(c, 5, quality=-q, theta=0.9)
    once, first = improve(start, c, quality=q, theta=0.9, max_swaps=1)
    assert np.intersect1d(once.indices, start.indices).size == 4
    _, all_of_them = improve(start, c, quality=q, theta=0.9)
    assert 0 < first < all_of_them


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 9),
    theta=st.sampled_from([0.0, 0.1, 0.6, 0.999]),
    data=st.data(),
)
def test_any_small_instance_is_solved_exactly(seed, n, theta, data):
    m = data.draw(st.integers(1, n))
    c, q = scattered(seed, n, n + 2)
    exact = exact_map(c, m, quality=1e3 * q, theta=theta)
    best = exhaustive(c, m, 1e3 * q, theta)
    assert exact.objective == pytest.approx(best, abs=1e-7)
    assert len(set(exact.indices.tolist())) == m
