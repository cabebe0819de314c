"""Rows that are chosen already: in the determinant and in the caps, never in the result."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adcs.dpp import greedy
from adcs.dpp.constraints import Constraints
from adcs.dpp.exact import exact_map, improve
from adcs.dpp.explain import explain
from adcs.dpp.facility_location import facility_location, pairwise_distances
from adcs.dpp.greedy import greedy_map, greedy_map_features
from adcs.dpp.kernel import alpha, similarity, unit_rows
from adcs.dpp.sampling import sample_mdpp


@st.composite
def problems(draw: Any) -> tuple[np.ndarray, np.ndarray, float, list[int], int]:
    """Return rows, quality, theta, given rows and m, for at most 12 rows of full rank."""
    n = draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    rows = rng.standard_normal((n, n + 3))
    theta = draw(st.sampled_from([0.0, 0.3, 0.8, 0.95]))
    held = draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    m = draw(st.integers(1, n - len(held)))
    return rows, rng.standard_normal(n), theta, sorted(held), m


def objective(c: np.ndarray, q: np.ndarray, theta: float, rows: list[int]) -> float:
    log_det = np.linalg.slogdet(c[np.ix_(rows, rows)])[1] if rows else 0.0
    return (1.0 - theta) * log_det + theta * q[rows].sum()


@pytest.mark.parametrize("lazy", [False, True])
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_each_pick_is_the_best_with_given_and_earlier_picks(lazy: bool, problem: Any) -> None:
    rows, q, theta, held, m = problem
    c = similarity(unit_rows(rows))
    limits = greedy._SMALL, greedy._LARGE, greedy._MANY
    if lazy:
        greedy._SMALL = greedy._LARGE = greedy._MANY = 0
    try:
        constraints = Constraints(given=held)
        found = [
            greedy_map(c, m, quality=q, theta=theta, constraints=constraints),
            greedy_map_features(rows, m, quality=q, theta=theta, constraints=constraints),
        ]
    finally:
        greedy._SMALL, greedy._LARGE, greedy._MANY = limits
    for selection in found:
        assert selection.indices.size == selection.rank == m
        together = list(held)
        for pick, gain in zip(selection.indices.tolist(), selection.gains, strict=True):
            before = objective(c, q, theta, together)
            gains = {
                row: objective(c, q, theta, [*together, row]) - before
                for row in range(len(rows))
                if row not in together
            }
            assert pick in gains
            assert gains[pick] == pytest.approx(max(gains.values()), abs=1e-8)
            assert gain == pytest.approx(gains[pick], abs=1e-8)
            together.append(pick)
        added = objective(c, q, theta, together) - objective(c, q, theta, held)
        assert selection.objective == pytest.approx(added, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_exact_search_and_swaps_count_given_rows(problem: Any) -> None:
    rows, q, theta, held, m = problem
    c = similarity(unit_rows(rows))
    free = [i for i in range(len(rows)) if i not in held]
    base = objective(c, q, theta, held)
    best = max(objective(c, q, theta, [*held, *chosen]) - base for chosen in combinations(free, m))
    constraints = Constraints(given=held)
    exact = exact_map(c, m, quality=q, theta=theta, constraints=constraints)
    assert not set(exact.indices.tolist()) & set(held)
    assert exact.objective == pytest.approx(best, abs=1e-8)
    start = greedy_map(c, m, quality=q, theta=theta, constraints=constraints)
    swapped, gain = improve(start, c, quality=q, theta=theta, constraints=constraints)
    assert swapped.objective == pytest.approx(start.objective + gain, abs=1e-8)
    for out in swapped.indices.tolist():  # no swap is better
        kept = [*held, *(i for i in swapped.indices.tolist() if i != out)]
        for row in set(free) - set(swapped.indices.tolist()):
            after = objective(c, q, theta, [*kept, row]) - base
            assert after <= swapped.objective + 1e-8


def test_exact_search_with_dependent_given_rows() -> None:
    rows = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 3.0]])
    found = exact_map(similarity(unit_rows(rows)), 1, constraints=Constraints(given=[0, 1]))
    assert found.indices.tolist() == [3]
    assert found.objective == pytest.approx(np.log(0.9))


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_explanations_count_given_rows(problem: Any) -> None:
    rows, q, theta, held, m = problem
    c = similarity(unit_rows(rows))
    constraints = Constraints(given=held, groups=[i % 2 for i in range(len(rows))], caps=len(rows))
    selection = greedy_map(c, m, quality=q, theta=theta, constraints=constraints)
    found = explain(c, selection.indices, q, theta, constraints=constraints)
    assert [pick.gain for pick in found.picks] == pytest.approx(selection.gains, abs=1e-8)
    for pick in found.picks:
        assert pick.score.total == pytest.approx(pick.gain, abs=1e-8)
    left_out = [miss.row for miss in found.left_out]
    assert left_out == sorted(set(range(len(rows))) - set(held) - set(selection.indices.tolist()))
    for miss in found.left_out:
        assert miss.score.total <= miss.winning.total + 1e-8


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_facility_location_covers_what_given_rows_do_not(problem: Any) -> None:
    rows, _, _, held, m = problem
    d = pairwise_distances(rows)
    result = facility_location(d, m, constraints=Constraints(given=held))
    free = [i for i in range(len(rows)) if i not in held]

    def cost(centres: list[int]) -> float:
        nearest = d[np.ix_(free, centres)].min(axis=1) if centres else np.full(len(free), d.max())
        return float(nearest.sum())

    together = list(held)
    for pick in result.indices.tolist():
        assert pick not in together
        assert cost([*together, pick]) == pytest.approx(
            min(cost([*together, row]) for row in free if row not in together)
        )
        together.append(pick)
    assert result.cost == pytest.approx(cost(together))
    assert set(result.assignment.tolist()) <= set(together)
    assert (result.assignment[together] == together).all()


@pytest.mark.parametrize("theta", [0.0, 0.6])
def test_samples_follow_the_determinant_with_given_rows(theta: float) -> None:
    rng = np.random.default_rng(3)
    c, q = similarity(unit_rows(rng.standard_normal((6, 7)))), rng.standard_normal(6)
    held = [1, 4]
    weight = np.exp(alpha(theta) * q)
    kernel = weight[:, None] * c * weight
    pairs = [pair for pair in combinations(range(6), 2) if not set(pair) & set(held)]
    p = np.array([np.linalg.det(kernel[np.ix_([*held, *s], [*held, *s])]) for s in pairs])
    p /= p.sum()
    draws = sample_mdpp(c, 2, rng=rng, quality=q, theta=theta, size=6000, given=held)
    share = np.array([(draws == pair).all(axis=1).mean() for pair in pairs])
    assert share.sum() == 1.0
    assert (np.abs(share - p) < 4.5 * np.sqrt(p * (1 - p) / 6000) + 1e-9).all()


def test_given_rows_count_towards_caps() -> None:
    groups = ["a", "a", "a", "b", "b"]
    constraints = Constraints(groups=groups, caps={"a": 2}, given=[0])
    chosen = greedy_map(np.eye(5), 3, constraints=constraints).indices.tolist()
    assert sum(groups[i] == "a" for i in chosen) == 1
    full = Constraints(groups=groups, caps={"a": 1}, given=[0, 1])  # above the cap already
    assert greedy_map(np.eye(5), 2, constraints=full).indices.tolist() == [3, 4]


def test_given_rows_need_not_be_candidates_nor_independent() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1e-3], [0.0, 1.0]])
    constraints = Constraints(candidates=[2, 3], given=[0, 1])
    assert greedy_map_features(rows, 1, constraints=constraints).indices.tolist() == [3]
    # The span of the given rows holds all candidates: the picks add no direction.
    copies = greedy_map_features(np.ones((4, 2)), 2, constraints=Constraints(given=[0, 2]))
    assert copies.indices.tolist() == [1, 3]
    assert (copies.rank, copies.log_det) == (0, -math.inf)


@pytest.mark.parametrize(
    ("constraints", "named"),
    [
        (Constraints(given=[1], required=[1]), "both given and required"),
        (Constraints(given=[1, 1]), "distinct"),
        (Constraints(given=[5]), "given must lie between"),
        (Constraints(given=[0, 1]), "m must"),
    ],
)
def test_given_rows_are_checked(constraints: Constraints, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        greedy_map(np.eye(3), 2, constraints=constraints)
