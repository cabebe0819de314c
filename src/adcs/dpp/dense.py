"""Greedy search over all rows of a kernel at once, for kernels that are not large."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dgemv
from scipy.linalg.lapack import dpstrf

from adcs.dpp.kernel import Float64Array, IndexArray
from adcs.dpp.scoring import NOT, Scoring


class DenseSearch:
    """One greedy run: rows are opened to the race, and the best one is added again and again.

    Examples
    --------
    >>> scoring = Scoring.of_kernel(np.eye(2), None, theta=0.5)
    >>> search = DenseSearch(np.eye(2), scoring, np.array([1.0, 2.0]), m=2)
    >>> search.open(np.arange(2))
    >>> search.add()
    (1, 1.0)
    """

    def __init__(
        self, similarity: Float64Array, scoring: Scoring, quality: Float64Array, m: int
    ) -> None:
        n = similarity.shape[0]
        self._c, self._scoring, self._m = similarity, scoring, m
        self._floor = scoring.floor if scoring.theta < 1.0 else NOT
        self._smallest = 1.0  # r^2 among the chosen
        self._doubtful = scoring.doubtful(self._smallest)
        self._all_weights = scoring.weigh(quality)
        self._weight = np.full(n, NOT)  # of the rows in the race
        self._square = np.ones(n)
        self._score = np.empty(n)
        self._coordinates = np.empty((m, n))  # of all rows in the basis of the chosen ones
        self._k = 0
        self._chosen: list[int] = []

    def open(self, rows: IndexArray) -> None:
        """Let rows into the race."""
        self._weight[rows] = self._all_weights[rows]

    def close(self, rows: NDArray[np.bool_]) -> None:
        """Take the rows of a mask out of the race."""
        self._weight[rows] = NOT

    def add(self) -> tuple[int, float] | None:
        """Add the best row and return it with its r^2; None if no row in the race adds anything."""
        row = self._leader()
        if row is None:
            return None
        self._weight[row] = NOT
        square = self._square.item(row)
        if square < self._doubtful and self._dependent(row, square):
            return row, 0.0
        k = self._k
        self._k += 1
        self._chosen.append(row)
        if square < self._smallest:
            self._smallest = square
            self._doubtful = self._scoring.doubtful(square)
        if self._k < self._m:
            known, new = self._coordinates[:k], self._coordinates[k]
            scale = square**-0.5
            np.multiply(self._c[row], scale, out=new)
            if k:
                # new -= scale * known[:, row] @ known, in place.
                dgemv(-scale, known.T, known[:, row], 1.0, new, overwrite_y=1)
            self._square -= np.multiply(new, new, out=self._score)
        return row, square

    def _leader(self) -> int | None:
        weight, squares, scoring = self._weight, self._square, self._scoring
        while True:
            score = scoring.score(squares, weight, out=self._score)
            row = int(score.argmax())
            best, square = score.item(row), squares.item(row)
            if best == NOT:
                return None
            if square <= self._floor:
                weight[squares <= self._floor] = NOT
                continue
            # Rows are in order, so the first that ties is the lowest.
            row = int((score >= best - scoring.tolerance(square, weight.item(row))).argmax())
            square = squares.item(row)
            if square >= self._doubtful or self._floor == NOT or not self._dependent(row, square):
                return row
            weight[row] = NOT

    def _dependent(self, row: int, square: float) -> bool:
        """Say whether a small r^2 is nothing but rounding."""
        if square <= self._scoring.floor or not self._k:
            return square <= self._scoring.floor
        known = self._coordinates[: self._k]
        coefficients = solve_triangular(known[:, self._chosen], known[:, row], check_finite=False)
        return not self._scoring.significant(square, coefficients)


def pivoted(
    similarity: Float64Array, scoring: Scoring, quality: Float64Array, m: int
) -> list[tuple[int, float]] | None:
    """Return the same picks by one call of LAPACK's pivoted Cholesky, or None.

    Its pivots are the greedy picks, but it knows neither ties nor tiny residuals. All picks are
    checked at once, and None says that they have to be found one by one. It factorises to the
    end, which pays for small kernels only.

    >>> pivoted(np.eye(2), Scoring.of_kernel(np.eye(2), None, theta=0.0), np.zeros(2), 2)
    [(0, 1.0), (1, 1.0)]
    """
    if scoring.theta == 1.0:
        return None
    weight = scoring.weigh(quality)
    scale = np.ones(1)
    kernel = similarity
    if scoring.theta > 0.0:
        exponent = (weight - weight.max()) / (2.0 * (1.0 - scoring.theta))
        if exponent.min() < -100.0:
            return None
        scale = np.exp(exponent)
        kernel = similarity * scale * scale[:, None]
    factor, pivots, rank, _ = dpstrf(kernel, tol=0.0, lower=1)
    if rank < m:
        return None
    order = pivots - 1
    if scoring.theta > 0.0:
        factor /= scale[order, None]
    possible = _triangle(order.size, m)  # row i is still there at step j <= i
    shrink = np.where(possible, factor[:, :m], 0.0)
    shrink *= shrink
    squares = (1.0 + shrink) - shrink.cumsum(axis=1)  # before each step
    weight = weight[order]
    score = np.where(possible, scoring.score(squares, weight[:, None]), NOT)
    picked = squares.diagonal()
    least = float(picked.min())
    if least <= scoring.floor or least < scoring.doubtful(least):
        return None
    tied = score >= score.max(axis=0) - scoring.tolerance(picked, weight[:m])
    rows = order[:m]
    if (np.where(tied, order[:, None], order.size).min(axis=0) != rows).any():
        return None
    return list(zip(rows.tolist(), picked.tolist(), strict=True))


@lru_cache(maxsize=8)
def _triangle(n: int, m: int) -> NDArray[np.bool_]:
    return np.tri(n, m, dtype=bool)
