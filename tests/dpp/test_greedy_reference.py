"""Greedy search against a greedy in 60-digit arithmetic, on the inputs that break float64 code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from adcs.dpp import greedy, greedy_lazy
from adcs.dpp.greedy import greedy_map, greedy_map_features
from adcs.dpp.kernel import similarity, unit_rows

N, D, M = 30, 40, 18
EPS = np.finfo(np.float64).eps
THETAS = (0.0, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999, 0.9999)


def exact_kernel(x: np.ndarray) -> list[list[Any]]:
    """C of the rows of x, which are taken to be exact, in the working precision of mpmath."""
    wide = [[mpmath.mpf(float(v)) for v in row] for row in x]
    unit = [[v / mpmath.sqrt(mpmath.fdot(row, row)) for v in row] for row in wide]
    return [[mpmath.fdot(a, b) for b in unit] for a in unit]


def reference(c: list[list[Any]], q: np.ndarray, theta: float, m: int) -> tuple[list[int], int]:
    """Greedy picks and their rank, with the ties, rank and restarts of adcs.dpp.greedy."""
    picks: list[int] = []
    rank = 0
    while len(picks) < m:
        left = [i for i in range(len(c)) if i not in picks]
        square = {i: mpmath.mpf(1) for i in left}
        coordinates: dict[int, list[Any]] = {i: [] for i in left}
        first = not picks
        while len(picks) < m:
            race = [i for i in left if i not in picks and square[i] > 64 * EPS]
            if not race:
                break
            score = {i: (1 - theta) * mpmath.log(square[i]) + theta * float(q[i]) for i in race}
            best = max(race, key=lambda i: score[i])
            margin = (1 - theta) * 256 * EPS / square[best] + 2 * EPS * theta * abs(q[best])
            pick = min(i for i in race if score[i] >= score[best] - margin)
            picks.append(pick)
            rank += first
            root, own = mpmath.sqrt(square[pick]), coordinates[pick]
            for i in left:
                new = (c[pick][i] - mpmath.fdot(own, coordinates[i])) / root
                if i != pick:
                    coordinates[i] = [*coordinates[i], new]
                    square[i] -= new**2
    return picks, rank


def random_updates(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((N, D)), rng.random(N) * 3


def groups_of_three(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    centres = np.repeat(rng.standard_normal((10, D)), 3, axis=0)
    return centres + 0.1 * rng.standard_normal((N, D)), rng.random(N) * 3


def duplicates(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scale = np.tile([1.0, 3.0, 0.7], 10)[:, None]
    return np.repeat(rng.standard_normal((10, D)), 3, axis=0) * scale, rng.random(N)


def near_duplicates(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    centres = np.repeat(rng.standard_normal((10, D)), 3, axis=0)
    return centres + 1e-5 * rng.standard_normal((N, D)), rng.random(N) * 3


def tiny_qualities(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((N, D)), 10.0 ** rng.uniform(-305, -295, N)


def spread_qualities(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((N, D)), 10.0 ** rng.uniform(-3, 6, N)


CASES: list[Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]] = [
    random_updates,
    groups_of_three,
    duplicates,
    near_duplicates,
    tiny_qualities,
    spread_qualities,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_order_is_that_of_60_digits(
    case: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, q = case(np.random.default_rng(7))
    c = similarity(unit_rows(x))
    with mpmath.workdps(60):
        exact = exact_kernel(x)
        expected = {theta: reference(exact, q, theta, M) for theta in THETAS}

    def check() -> None:
        for theta, (picks, rank) in expected.items():
            by_kernel = greedy_map(c, M, quality=q, theta=theta)
            by_features = greedy_map_features(x, M, quality=q, theta=theta)
            assert by_kernel.indices.tolist() == picks, f"kernel, theta = {theta}"
            assert by_features.indices.tolist() == picks, f"features, theta = {theta}"
            assert by_kernel.rank == by_features.rank == rank

    check()
    # The same picks by the dense search, and by the lazy search with a small pool.
    monkeypatch.setattr(greedy, "_SMALL", 0)
    for theta, (picks, _) in expected.items():
        assert greedy_map(c, M, quality=q, theta=theta).indices.tolist() == picks, theta
    monkeypatch.setattr(greedy, "_LARGE", 0)
    monkeypatch.setattr(greedy, "_MANY", 0)
    monkeypatch.setattr(greedy_lazy, "_KERNEL_POOL", 5)
    monkeypatch.setattr(greedy_lazy, "_POOL", 6 * D)
    check()


def test_float32_updates_give_the_order_of_their_exact_values() -> None:
    x, q = random_updates(np.random.default_rng(3))
    x = x.astype(np.float32)
    with mpmath.workdps(60):
        exact = exact_kernel(x)
        for theta in (0.0, 0.5, 0.95):
            picks, _ = reference(exact, q, theta, M)
            selection = greedy_map_features(x, M, quality=q, theta=theta)
            assert selection.indices.tolist() == picks
