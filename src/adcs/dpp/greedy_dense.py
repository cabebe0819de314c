"""Greedy search over all rows of a kernel at once, for kernels that are not large."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dgemv
from scipy.linalg.lapack import dpstrf

from adcs._types import Float64Array, IndexArray
from adcs.dpp.tolerances import LOWEST, NOT, Scoring


class DenseSearch:
    """One greedy run: rows are opened to the race, and the best one is added again and again.

    Examples
    --------
    >>> scoring = Scoring.of_kernel(np.eye(2), None, theta=0.5)
    >>> search = DenseSearch(np.eye(2), scoring, np.array([1.0, 2.0]), m=2)
    >>> search.open(np.arange(2))
    >>> next(search.race())
    (1, 1.0)
    """

    def __init__(
        self, similarity: Float64Array, scoring: Scoring, quality: Float64Array, m: int
    ) -> None:
        n = similarity.shape[0]
        self._c, self._scoring, self._m = similarity, scoring, m
        self._floor = scoring.floor if scoring.theta < 1.0 else NOT
        self._smallest = 1.0  # r^2 among the chosen
        self._all_weights = scoring.weigh(quality)
        self._weight = np.full(n, NOT)  # of the rows in the race
        # At theta = 0 the score is r^2 itself, and one array is all three, -inf for rows that are
        # out; otherwise r^2 is kept for all rows.
        self._square = self._weight if scoring.theta == 0.0 else np.ones(n)
        self._score = self._weight if scoring.theta == 0.0 else np.empty(n)
        self._shrink = np.empty(n)
        # Of all rows, in the basis of the chosen ones.
        self._coordinates = np.empty((n, m), order="F")
        self._chosen: list[int] = []

    def open(self, rows: IndexArray) -> None:
        """Let rows into the race."""
        if self._scoring.theta > 0.0:
            self._weight[rows] = self._all_weights[rows]
            return
        # They were out, so their r^2 has to be made up for.
        self._square[rows] = 1.0
        for k in range(len(self._chosen)):
            self._square[rows] -= self._coordinates[rows, k] ** 2

    def close(self, rows: NDArray[np.bool_]) -> None:
        """Take the rows of a mask out of the race."""
        self._weight[rows] = NOT

    def race(self) -> Iterator[tuple[int, float]]:
        """Add the best row and yield it with its r^2, until no row in the race adds anything."""
        weight, squares, score = self._weight, self._square, self._score
        c, coordinates, shrink = self._c, self._coordinates, self._shrink
        scoring, floor, chosen, last = self._scoring, self._floor, self._chosen, self._m - 1
        # Looked up once: a pick is a matter of microseconds.
        item, argmax, squared, subtract = score.item, score.argmax, np.square, np.subtract
        mixed = score is not squares
        # At theta = 0 the tolerance is the largest where r^2 is one half.
        widest = math.inf if mixed else scoring.tolerance(0.5, 0.0)
        smallest, doubtful = self._smallest, scoring.doubtful(1.0)
        k = len(chosen)
        while True:
            if mixed:
                scoring.score(squares, weight, out=score)
            row = int(argmax())
            best = item(row)
            square = squares.item(row) if mixed else best
            if best == NOT:
                return
            if square <= floor:
                weight[squares <= floor] = NOT
                continue
            score[row] = NOT
            if item(argmax()) >= best - widest:
                score[row] = best
                low = max(best - scoring.tolerance(square, weight.item(row)), LOWEST)
                # Rows are in order, so the first that ties is the lowest.
                row = int((score >= low).argmax())
                square = squares.item(row)
            weight[row] = NOT
            if square * smallest < doubtful and self._dependent(row, square):
                if floor == NOT:  # quality alone decides
                    yield row, 0.0
                continue
            chosen.append(row)
            if square < smallest:
                self._smallest = smallest = square
            if k < last:
                known, new = coordinates[:, :k], coordinates[:, k]
                new[:] = c[row]
                if k:  # the first r^2 is one
                    scale = square**-0.5
                    # new = (new - known @ known[row]) * scale; f2py is slow on strided vectors.
                    dgemv(-scale, known, known[row].copy(), scale, new, overwrite_y=1)
                squared(new, out=shrink)
                subtract(squares, shrink, out=squares)
            k += 1
            yield row, square

    def _dependent(self, row: int, square: float) -> bool:
        """Say whether a small r^2 is nothing but rounding."""
        if square <= self._scoring.floor or not self._chosen:
            return square <= self._scoring.floor
        known = self._coordinates[:, : len(self._chosen)]
        coefficients = solve_triangular(known[self._chosen].T, known[row], check_finite=False)
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
        with np.errstate(over="ignore"):
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
    with np.errstate(over="ignore"):
        low = np.maximum(score.max(axis=0) - scoring.tolerance(picked, weight[:m]), LOWEST)
    tied = score >= low
    rows = order[:m]
    if (np.where(tied, order[:, None], order.size).min(axis=0) != rows).any():
        return None
    return list(zip(rows.tolist(), picked.tolist(), strict=True))


@lru_cache(maxsize=8)
def _triangle(n: int, m: int) -> NDArray[np.bool_]:
    return np.tri(n, m, dtype=bool)
