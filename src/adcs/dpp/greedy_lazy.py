"""Greedy search that looks at few rows, of a kernel or of features.

A residual only shrinks as rows are chosen, so an earlier score is an upper bound on the present
one. The pool holds the rows with the best bounds, and their residuals are updated at every pick.
While the pool's best row beats the best bound outside, no row outside needs to be looked at. When
it does not, one matrix product updates the rows above it, and the pool is filled anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.dpp.kernel import as_table, similarity, unit_rows
from adcs.dpp.tolerances import EXCLUDED, Scorer, preferred_to, tie_order, tie_winner

_CHUNK = 1 << 21  # bytes of rows in one matrix product: small enough to stay in cache
_POOL = 1 << 20  # entries of the feature rows in the pool; four times as many of a million rows
_KERNEL_POOL = 256  # the fewest rows of a kernel in the pool
_SMALL_NORM, _LARGE_NORM = 1e-24, 1e24  # squared norms between which float32 cannot overflow
_QUANTILE_SAMPLE = 1 << 16  # this many scores are enough to estimate a quantile
_REFILL_INTERVAL = 16  # picks between refills; below it, a refill looks at more rows
_CLOSE_CALLS = 64  # ties per pick that float32 cannot decide, from which float64 pays


class RowSource(Protocol):
    """N unit rows, an orthonormal basis of the chosen ones, and a pool of rows."""

    n: int
    pool_size: int
    chunk: int  # how many rows to project at a time

    def restart(self, m: int) -> None:
        """Discard the basis; at most m vectors will follow."""

    def load(self, slots: IndexArray, rows: IndexArray) -> None:
        """Copy rows into slots of the pool."""

    def extend_basis(
        self, slot: int, row: int, square: float
    ) -> tuple[float, Float64Array, Float64Array | None]:
        """Add a row of the pool to the basis.

        Returns its r^2, by how much that of each row of the pool shrinks, and the error of that,
        None if it is exact.
        """

    def is_significant(self, slot: int, row: int, square: float, scorer: Scorer) -> bool:
        """Return whether a small r^2 of a row of the pool is more than rounding."""

    def exact_squares(self, rows: IndexArray, bound: Float64Array) -> Float64Array:
        """Return r^2 of rows of the pool in float64; bound is what the pool has for them."""

    def projections(self, rows: IndexArray, start: int) -> tuple[Float64Array, Float64Array | None]:
        """Return the squared norms of rows along the basis from start on, and their error."""

    def use_float64(self) -> bool:
        """Use float64 for all rows from now on; return False if it is used already."""


class LazySearch:
    """Greedy search over rows.

    Examples
    --------
    >>> scorer = Scorer.of_features(np.eye(2), None, theta=0.5)
    >>> search = LazySearch(FeatureRowSource(np.eye(2)), scorer, np.array([1.0, 2.0]), m=2)
    >>> search.admit(np.arange(2))
    >>> next(search.picks())
    (1, 1.0)
    """

    def __init__(self, rows: RowSource, scorer: Scorer, quality: Float64Array, m: int) -> None:
        rows.restart(m)
        n, size = rows.n, rows.pool_size
        self._rows, self._scorer = rows, scorer
        self._all_weights = scorer.quality_term(quality)
        self._floor = scorer.floor if scorer.theta < 1.0 else -math.inf
        self._k = 0  # picks that have a direction of their own
        self._smallest = 1.0  # r^2 among them
        # Every r^2 below is an upper bound, and too large by at most its slack.
        # Outside the pool: bounds, the number of picks they are based on, and their scores.
        self._bound = np.ones(n)
        self._slack = np.zeros(n)
        self._depth = np.zeros(n, dtype=np.int32)
        self._outside = np.full(n, EXCLUDED)
        self._outside_max = EXCLUDED
        self._refill_size = size  # how many rows a refill looks at
        self._last_refill = 0  # k at the last refill
        # The pool: a slot whose weight is -inf is free.
        self._row = np.zeros(size, dtype=np.intp)
        self._square = np.zeros(size)
        self._weight = np.full(size, EXCLUDED)
        self._score = np.empty(size)
        self._pool_slack = np.zeros(size)
        self._close_calls = 0  # how many slots had to be recomputed in float64

    def admit(self, rows: IndexArray) -> None:
        """Make rows, all of them outside the pool, candidates."""
        self._outside[rows] = self._scorer.score(self._bound[rows], self._all_weights[rows])
        self._outside_max = float(self._outside.max())

    def exclude(self, rows: NDArray[np.bool_]) -> None:
        """Remove the rows of a mask from the candidates."""
        self._outside[rows] = EXCLUDED
        self._weight[rows[self._row]] = EXCLUDED

    def picks(self) -> Iterator[tuple[int, float]]:
        """Add the best candidate and yield it with its r^2, until none adds a direction."""
        while (slot := self._best_slot()) is not None:
            row, square = int(self._row[slot]), float(self._square[slot])
            self._weight[slot] = EXCLUDED
            if self._is_dependent(slot):
                yield row, 0.0
                continue
            square, shrink, error = self._rows.extend_basis(slot, row, square)
            self._square -= shrink
            if error is not None:
                self._square += error
                self._pool_slack += 2.0 * error
            self._k += 1
            self._smallest = min(self._smallest, square)
            yield row, square

    def _is_dependent(self, slot: int) -> bool:
        """Return whether a row of the pool adds no direction."""
        square, scorer = float(self._square[slot]), self._scorer
        large = square >= scorer.recheck_threshold(self._smallest)
        if square <= scorer.floor or large or not self._k:
            return square <= scorer.floor
        return not self._rows.is_significant(slot, int(self._row[slot]), square, scorer)

    def _best_slot(self) -> int | None:
        """Return the pool slot of the best candidate, after a refill if needed; None if none."""
        scorer, weight = self._scorer, self._weight
        while True:
            score, square = scorer.score(self._square, weight, out=self._score), self._square
            slot = int(score.argmax())
            best = float(score[slot])
            if best == EXCLUDED:
                if self._outside_max == EXCLUDED:
                    return None
                self._refill(EXCLUDED, EXCLUDED, -1)
                continue
            top = float(square[slot])
            if top <= self._floor:
                weight[square <= self._floor] = EXCLUDED
                continue
            slack = float(self._pool_slack[slot])
            if slack > 0.01 * top and self._use_float64():
                continue
            own_weight = float(weight[slot])
            # The lowest score that the best row may have, less the margin of a tie.
            least = scorer.score_one(top - slack, own_weight) if slack else best
            low = scorer.tie_limit(least, top, own_weight)
            tied = (score >= low).nonzero()[0]
            if tied.size > 1 or self._outside_max >= low:
                if slack:
                    self._close_calls += tied.size
                    if self._close_calls > _CLOSE_CALLS * (self._k + 8) and self._use_float64():
                        continue
                slot, low, high = self._decide(tied)
                if slot < 0:
                    continue
                if self._outside_max >= low and self._refill(low, high, int(self._row[slot])):
                    continue
            if self._scorer.theta < 1.0 and self._is_dependent(slot):
                weight[slot] = EXCLUDED
                continue
            return slot

    def _decide(self, tied: IndexArray) -> tuple[int, float, float]:
        """Return the winner of some slots by their exact r^2, and the range of scores that tie.

        The slot is -1 if none of them adds a direction.
        """
        rows, weight = self._row[tied], self._weight[tied]
        square = self._rows.exact_squares(rows, self._square[tied])
        self._square[tied] = square
        self._pool_slack[tied] = 0.0
        score = self._scorer.score(square, weight)
        score[square <= self._floor] = EXCLUDED
        first = int(score.argmax())
        best, top, own_weight = float(score[first]), float(square[first]), float(weight[first])
        if best == EXCLUDED:
            return -1, best, best
        low = self._scorer.tie_limit(best, top, own_weight)
        high = best + self._scorer.tie_margin(top, own_weight)
        equal = (score >= low).nonzero()[0]
        return int(tied[equal[tie_winner(rows[equal])]]), low, high

    def _use_float64(self) -> bool:
        """Switch to exact squares and empty the pool; return False if they are exact already."""
        if not self._rows.use_float64():
            return False
        # Bounds based on no pick are computed from the start, and exactly, before they are used.
        self._evict((self._weight > EXCLUDED).nonzero()[0], 0)
        self._depth[:] = 0
        self._slack[:] = 0.0
        self._outside_max = float(self._outside.max())
        return True

    def _refill(self, low: float, high: float, winner: int) -> bool:
        """Fill the pool anew if a row outside may beat the winner; return whether one may.

        Scores from low to high tie with the winner's.
        """
        outside = self._outside
        rivals = outside > high
        if winner >= 0:
            rivals[preferred_to(winner)] |= outside[preferred_to(winner)] >= low
        count = int(np.count_nonzero(rivals))
        if count == 0:
            self._outside_max = float(outside.max())
            return False
        # Few large refills are faster than many small ones.
        if self._k - self._last_refill < _REFILL_INTERVAL:
            self._refill_size = min(4 * self._refill_size, outside.size)
        elif self._k - self._last_refill > 2 * _REFILL_INTERVAL:
            self._refill_size = max(self._refill_size // 2, self._row.size)
        self._last_refill = self._k
        self._update_bounds(self._best_outside(max(self._refill_size, 2 * count), low))
        self._fill_pool(low, high)
        self._outside_max = float(outside.max())
        return True

    def _best_outside(self, count: int, low: float) -> IndexArray:
        """Return about count of the best rows outside, and all whose score is low or more."""
        outside = self._outside
        stride = max(1, outside.size // _QUANTILE_SAMPLE)
        sample = outside[::stride]
        rank = count // stride + 1
        level = np.partition(sample, -rank)[-rank] if rank <= sample.size else EXCLUDED
        if low > EXCLUDED:
            level = min(level, low)
        return (outside >= level if level > EXCLUDED else outside > EXCLUDED).nonzero()[0]

    def _update_bounds(self, rows: IndexArray) -> None:
        """Update the bounds of rows to the whole basis."""
        depth = self._depth[rows]
        for start in np.flatnonzero(np.bincount(depth)):
            if start == self._k:
                break
            part = rows if depth[0] == start and (depth == start).all() else rows[depth == start]
            for i in range(0, part.size, self._rows.chunk):
                self._update_chunk(part[i : i + self._rows.chunk], int(start))
        self._depth[rows] = self._k

    def _update_chunk(self, rows: IndexArray, start: int) -> None:
        shrink, error = self._rows.projections(rows, start)
        old = self._bound[rows]
        fresh = (old if start else 1.0) - shrink
        if error is not None:
            fresh += error
            error *= 2.0
            self._slack[rows] = error + self._slack[rows] if start else error
        np.minimum(fresh, old, out=fresh)
        self._bound[rows] = fresh
        score = self._scorer.score(fresh, self._all_weights[rows])
        score[fresh <= self._floor] = EXCLUDED
        self._outside[rows] = score

    def _fill_pool(self, low: float, high: float) -> None:
        """Fill the pool with the best of itself and the updated rows outside."""
        size = self._row.size
        near = self._best_outside(2 * size, low)
        near = near[self._depth[near] == self._k]
        held = (self._weight > EXCLUDED).nonzero()[0]
        score = np.concatenate((self._score[held], self._outside[near]))
        taken = np.ones(score.size, dtype=bool)
        if score.size > size:
            rows = np.concatenate((self._row[held], near))
            score[(score >= low) & (score <= high)] = high
            last = np.partition(score, -size)[-size]
            taken = score > last
            equal = (score == last).nonzero()[0]
            free = size - int(np.count_nonzero(taken))
            taken[equal[tie_order(rows[equal])[:free]]] = True
        self._evict(held[~taken[: held.size]], self._k)
        entering = near[taken[held.size :]]
        slots = (self._weight == EXCLUDED).nonzero()[0][: entering.size]
        self._row[slots] = entering
        self._rows.load(slots, entering)
        self._square[slots] = self._bound[entering]
        self._pool_slack[slots] = self._slack[entering]
        self._weight[slots] = self._all_weights[entering]
        self._outside[entering] = EXCLUDED

    def _evict(self, slots: IndexArray, depth: int) -> None:
        """Move slots of the pool outside, with bounds based on depth picks."""
        rows = self._row[slots]
        self._bound[rows] = self._square[slots]
        self._slack[rows] = self._pool_slack[slots]
        self._depth[rows] = depth
        self._outside[rows] = self._scorer.score(self._square[slots], self._weight[slots])
        self._weight[slots] = EXCLUDED


class KernelRowSource:
    """Rows known by their kernel C: a Cholesky factorisation, a column for each row.

    Examples
    --------
    >>> rows = KernelRowSource(np.array([[1.0, 0.6], [0.6, 1.0]]))
    >>> rows.restart(m=2)
    >>> rows.load(np.array([0, 1]), np.array([0, 1]))
    >>> rows.extend_basis(0, 0, 1.0)[1]
    array([1.  , 0.36])
    """

    def __init__(self, kernel: Float64Array) -> None:
        self.n = self.chunk = kernel.shape[0]
        self.pool_size = min(self.n, _KERNEL_POOL + self.n // 32)
        self._c = kernel
        self._held = np.zeros(self.pool_size, dtype=np.intp)

    def restart(self, m: int) -> None:
        """Discard the basis."""
        self._k = self._known = 0
        self._chosen = np.zeros(m, dtype=np.intp)
        self._factor = np.zeros((m, m))
        self._pool = np.empty((m, self._held.size))
        self._all = np.empty((m, self.n))

    def load(self, slots: IndexArray, rows: IndexArray) -> None:
        """Copy the coordinates of rows into slots of the pool."""
        self._held[slots] = rows
        if self._k:
            self._pool[: self._k, slots] = self._all[: self._k].take(rows, axis=1)

    def extend_basis(
        self, slot: int, row: int, square: float
    ) -> tuple[float, Float64Array, Float64Array | None]:
        """Add a row of the pool to the basis."""
        k, root = self._k, square**0.5
        own, new = self._pool[:k, slot], self._pool[k]
        self._chosen[k] = row
        self._factor[k, :k] = own
        self._factor[k, k] = root
        np.dot(own, self._pool[:k], out=new)
        np.subtract(self._c[row].take(self._held), new, out=new)
        new /= root
        self._k += 1
        return square, new * new, None

    def is_significant(self, slot: int, row: int, square: float, scorer: Scorer) -> bool:
        """Return whether a small r^2 of a row of the pool is more than rounding."""
        k = self._k
        coefficients = solve_triangular(
            self._factor[:k, :k], self._pool[:k, slot], trans=1, lower=True, check_finite=False
        )
        return scorer.is_significant(square, coefficients)

    def exact_squares(self, rows: IndexArray, bound: Float64Array) -> Float64Array:
        """Return the bound, which is exact."""
        return bound

    def projections(self, rows: IndexArray, start: int) -> tuple[Float64Array, Float64Array | None]:
        """Return the squared norms of rows along the basis from start on."""
        old, k = self._known, self._k
        if old < k:
            block = self._c[self._chosen[old:k]]
            block -= self._factor[old:k, :old] @ self._all[:old]
            self._all[old:k] = solve_triangular(
                self._factor[old:k, old:k], block, lower=True, check_finite=False
            )
            self._known = k
        part = self._all[start:k]
        return np.einsum("ij,ij->j", part, part)[rows], None

    def use_float64(self) -> bool:
        """Return False: everything is in float64 from the start."""
        return False


class FeatureRowSource:
    """Rows given as vectors.

    No N x N or N x m array is formed, nor a copy of the rows. The basis is in float64. Rows are
    multiplied in float32, with a bound on the error, until that is not exact enough.

    Examples
    --------
    >>> rows = FeatureRowSource([[3.0, 4.0], [0.0, 2.0]])
    >>> rows.restart(m=2)
    >>> round(rows.extend_basis(0, 0, 1.0)[0], 12)
    1.0
    >>> rows.exact_squares(np.array([1]), np.ones(1)).round(12)
    array([0.36])
    """

    def __init__(
        self,
        features: ArrayLike,
        *,
        unit: bool = False,
        name: str = "features",
        squares: NDArray[np.floating[Any]] | None = None,
        index: IndexArray | None = None,
    ) -> None:
        self._index = index
        self._in_order = index is None or bool((index[1:] > index[:-1]).all())
        rows = as_table(features, name) if squares is None else np.asarray(features)
        squares = squared_norms(rows) if squares is None else squares
        in_range = bool((squares > _SMALL_NORM).all() and (squares < _LARGE_NORM).all())
        if not in_range:  # too small or large, or zero or not finite, which unit_rows refuses
            rows = unit_rows(rows, name)
        if unit and not np.allclose(squares, 1.0, rtol=0.0, atol=1e-2):
            worst = int(np.abs(squares - 1.0).argmax())
            raise ValueError(
                f"{name} must have norm one if unit=True: "
                f"row {worst} has norm {float(np.sqrt(squares[worst])):g}"
            )
        self.n, self._d = rows.shape if index is None else (index.size, rows.shape[1])
        most = max(4, _POOL // self._d)
        # A larger pool is refilled less often, which pays if a refill reads very many rows.
        many = max(min(most, self.n // 32), min(4 * most, self.n // 64))
        self.pool_size = min(self.n, max(most // 4, many))
        self.chunk = max(1, _CHUNK // (4 * self._d))
        self._x = rows
        self._squared_norms = squares if in_range else squared_norms(rows)
        # Rounding of a dot product of unit vectors in float32, of the basis and of the norms.
        self._dot_error = (min(self._d, 2.0 * self._d**0.5) + 4.0) * 2.0**-24

    def restart(self, m: int) -> None:
        """Discard the basis; at most m vectors will follow."""
        self._k = 0
        self._exact = False
        self._basis = np.empty((m, self._d))
        self._basis32 = np.empty((m, self._d), dtype=np.float32)
        self._pool: FloatArray = np.zeros((self.pool_size, self._d), np.float32)

    def _at(self, rows: IndexArray) -> IndexArray:
        return rows if self._index is None else self._index[rows]

    def gram(self) -> Float64Array:
        """Return the kernel C of all rows.

        >>> FeatureRowSource([[3.0, 4.0], [0.0, 2.0]]).gram()
        array([[1. , 0.8],
               [0.8, 1. ]])
        """
        return similarity(self._x if self._index is None else self._x[self._index])

    def load(self, slots: IndexArray, rows: IndexArray) -> None:
        """Copy rows into slots of the pool, scaled to norm one."""
        if self._exact:
            self._pool[slots] = self._unit64(rows)
            return
        at = self._at(rows)
        block = self._x.take(at, axis=0).astype(np.float32, copy=False)
        block *= (1.0 / np.sqrt(self._squared_norms[at])).astype(np.float32, copy=False)[:, None]
        self._pool[slots] = block

    def extend_basis(
        self, slot: int, row: int, square: float
    ) -> tuple[float, Float64Array, Float64Array | None]:
        """Add a row of the pool to the basis."""
        k = self._k
        vector = self._residual(row)
        square = float(vector @ vector)
        vector /= square**0.5
        self._basis[k] = self._basis32[k] = vector
        self._k += 1
        if self._exact:
            return square, (self._pool @ vector) ** 2, None
        shrink = (self._pool @ self._basis32[k]).astype(np.float64) ** 2
        return square, shrink, self._error(1, shrink)

    def is_significant(self, slot: int, row: int, square: float, scorer: Scorer) -> bool:
        """Return whether a small r^2 of a row of the pool is more than rounding."""
        vector = self._residual(row)
        return float(vector @ vector) > scorer.floor

    def exact_squares(self, rows: IndexArray, bound: Float64Array) -> Float64Array:
        """Return r^2 of rows of the pool in float64; bound is what the pool has for them."""
        if self._exact or not self._k:
            return bound
        exact, basis = self._unit64(rows), self._basis[: self._k]
        # The product for a few rows would spend its time on copying the basis.
        few = rows.size <= 4
        coordinates = np.array([basis @ row for row in exact]) if few else exact @ basis.T
        return np.asarray(1.0 - np.einsum("ij,ij->i", coordinates, coordinates))

    def projections(self, rows: IndexArray, start: int) -> tuple[Float64Array, Float64Array | None]:
        """Return the squared norms of rows along the basis from start on, and their error."""
        if self._exact:
            coordinates: FloatArray = self._unit64(rows) @ self._basis[start : self._k].T
            return np.einsum("ij,ij->i", coordinates, coordinates), None
        # If the rows are nearly all of a range, computing the range is cheaper than copying rows.
        at = self._at(rows)
        first, last = int(at[0]), int(at[-1])
        whole = self._in_order and last - first < 1.3 * at.size
        block = self._x[first : last + 1] if whole else self._x.take(at, axis=0)
        # A short and wide product is faster than a tall and narrow one.
        coordinates = self._basis32[start : self._k] @ block.astype(np.float32, copy=False).T
        squares = np.einsum("ij,ij->j", coordinates, coordinates)
        squares = squares[at - first] if whole else squares
        out = squares / self._squared_norms[at].astype(np.float64, copy=False)
        return out, self._error(self._k - start, out)

    def use_float64(self) -> bool:
        """Use float64 for all rows from now on; return False if it is used already."""
        if self._exact:
            return False
        self._exact = True
        self._pool = np.zeros_like(self._pool, dtype=np.float64)  # to be loaded again
        return True

    def _residual(self, row: int) -> Float64Array:
        """Return the part of a unit row outside the span of the basis."""
        basis = self._basis[: self._k]
        vector: Float64Array = self._x[row if self._index is None else self._index[row]].astype(
            np.float64
        )
        vector /= (vector @ vector) ** 0.5
        vector -= (basis @ vector) @ basis
        if vector @ vector < 0.1:
            # The residual is small beside what was subtracted, so a second pass is needed.
            vector -= (basis @ vector) @ basis
        return vector

    def _error(self, count: int, total: Float64Array) -> Float64Array:
        """Return the error of a sum of count squared coordinates in float32."""
        error = np.sqrt(total)
        error *= 2.0 * count**0.5 * self._dot_error
        error += self._dot_error * total
        error += count * self._dot_error**2
        return error

    def _unit64(self, rows: IndexArray) -> Float64Array:
        block = self._x.take(self._at(rows), axis=0).astype(np.float64, copy=False)
        block /= np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
        return block


def squared_norms(rows: FloatArray) -> NDArray[np.floating[Any]]:
    """Return the squared norm of each row in its own precision.

    >>> squared_norms(np.array([[3.0, 4.0]]))
    array([25.])
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return np.asarray(np.einsum("ij,ij->i", rows, rows))
