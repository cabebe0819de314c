"""Greedy search that looks at few rows: a fresh pool, and old bounds for everybody else.

A residual only shrinks as rows are chosen, so an old score is an upper bound on today's. The pool
holds the rows with the best bounds, and their residuals follow every pick. As long as the pool's
leader beats the best bound outside, nobody outside needs to be looked at. When it does not, the
rows above it are brought up to date by one matrix product, and the pool is drawn anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from adcs._types import Float64Array, IndexArray
from adcs.dpp.row_sources import RowSource
from adcs.dpp.tolerances import LOWEST, NOT, Scoring

_SAMPLE = 1 << 16  # how many scores are enough to tell a quantile
_OFTEN = 16  # picks between refills below which they come too often
_CROWD = 64  # rows too close to call in float32, per pick, with which it is not worth going on


class LazySearch:
    """One greedy run: rows are opened to the race, and the best one is added again and again.

    Examples
    --------
    >>> from adcs.dpp.row_sources import KernelRowSource
    >>> scoring = Scoring.of_kernel(np.eye(2), None, theta=0.5)
    >>> search = LazySearch(KernelRowSource(np.eye(2)), scoring, np.array([1.0, 2.0]), m=2)
    >>> search.open(np.arange(2))
    >>> next(search.race())
    (1, 1.0)
    """

    def __init__(self, rows: RowSource, scoring: Scoring, quality: Float64Array, m: int) -> None:
        rows.restart(m)
        n, size = rows.n, rows.pool_size
        self._rows, self._scoring = rows, scoring
        self._all_weights = scoring.weigh(quality)
        self._floor = scoring.floor if scoring.theta < 1.0 else NOT
        self._k = 0  # picks that have a direction of their own
        self._smallest = 1.0  # r^2 among them
        # Every r^2 below is an upper bound, and too large by at most its slack.
        # Outside the pool: bounds, the number of picks they rest on, and the scores they give.
        self._bound = np.ones(n)
        self._slack = np.zeros(n)
        self._depth = np.zeros(n, dtype=np.int32)
        self._outside = np.full(n, NOT)
        self._ceiling = NOT
        self._reach = size  # how many rows a refill looks at
        self._last = 0  # k at the last refill
        # The pool: a slot whose weight is -inf is free.
        self._row = np.zeros(size, dtype=np.intp)
        self._square = np.zeros(size)
        self._weight = np.full(size, NOT)
        self._score = np.empty(size)
        self._pool_slack = np.zeros(size)
        self._settled = 0  # how many slots were too close to call without looking again

    def open(self, rows: IndexArray) -> None:
        """Let rows outside the pool into the race."""
        self._outside[rows] = self._scoring.score(self._bound[rows], self._all_weights[rows])
        self._ceiling = float(self._outside.max())

    def close(self, rows: NDArray[np.bool_]) -> None:
        """Take the rows of a mask out of the race, wherever they are."""
        self._outside[rows] = NOT
        self._weight[rows[self._row]] = NOT

    def race(self) -> Iterator[tuple[int, float]]:
        """Add the best row and yield it with its r^2, until no row in the race adds anything."""
        while (slot := self._leader()) is not None:
            row, square = int(self._row[slot]), float(self._square[slot])
            self._weight[slot] = NOT
            if self._dependent(slot):
                yield row, 0.0
                continue
            square, shrink, error = self._rows.extend(slot, row, square)
            self._square -= shrink
            if error is not None:
                self._square += error
                self._pool_slack += 2.0 * error
            self._k += 1
            self._smallest = min(self._smallest, square)
            yield row, square

    def _dependent(self, slot: int) -> bool:
        """Say whether a row of the pool adds no direction."""
        square, scoring = float(self._square[slot]), self._scoring
        if square <= scoring.floor or square >= scoring.doubtful(self._smallest) or not self._k:
            return square <= scoring.floor
        return not self._rows.significant(slot, int(self._row[slot]), square, scoring)

    def _leader(self) -> int | None:
        """Return the slot of the best row in the race, after refilling the pool if need be."""
        scoring, weight = self._scoring, self._weight
        while True:
            score, square = scoring.score(self._square, weight, out=self._score), self._square
            slot = int(score.argmax())
            best = float(score[slot])
            if best == NOT:
                if self._ceiling == NOT:
                    return None
                self._refill(NOT, NOT, -1)
                continue
            top = float(square[slot])
            if top <= self._floor:
                weight[square <= self._floor] = NOT
                continue
            slack = float(self._pool_slack[slot])
            if slack > 0.01 * top and self._sharpen():
                continue
            margin = scoring.tolerance(top, float(weight[slot]))
            if slack:
                best = scoring.one(top - slack, float(weight[slot]))
            low = max(best - margin, LOWEST)
            tied = (score >= low).nonzero()[0]
            if tied.size > 1 or self._ceiling >= low:
                if slack:
                    self._settled += tied.size
                    if self._settled > _CROWD * (self._k + 8) and self._sharpen():
                        continue
                slot, best, margin = self._settle(tied)
                if slot < 0:
                    continue
                low = max(best - margin, LOWEST)
                if self._ceiling >= low and self._refill(low, best + margin, int(self._row[slot])):
                    continue
            if self._floor > NOT and self._dependent(slot):
                weight[slot] = NOT
                continue
            return slot

    def _settle(self, tied: IndexArray) -> tuple[int, float, float]:
        """Return the best of some slots by their exact r^2, its score and the margin of a tie."""
        rows, weight = self._row[tied], self._weight[tied]
        square = self._rows.squares(rows, self._square[tied])
        self._square[tied] = square
        self._pool_slack[tied] = 0.0
        score = self._scoring.score(square, weight)
        score[square <= self._floor] = NOT
        first = int(score.argmax())
        best = float(score[first])
        if best == NOT:
            return -1, best, 0.0
        margin = self._scoring.tolerance(float(square[first]), float(weight[first]))
        equal = (score >= max(best - margin, LOWEST)).nonzero()[0]
        return int(tied[equal[rows[equal].argmin()]]), best, margin

    def _sharpen(self) -> bool:
        """Start over with exact squares, the pool included; False if they are exact already."""
        if not self._rows.sharpen():
            return False
        # Bounds that rest on no pick are computed from scratch, and exactly, before they are used.
        self._evict((self._weight > NOT).nonzero()[0], 0)
        self._depth[:] = 0
        self._slack[:] = 0.0
        self._ceiling = float(self._outside.max())
        return True

    def _refill(self, low: float, high: float, leader: int) -> bool:
        """Draw the pool anew if a row outside may beat the leader; say whether one may.

        Scores from low to high tie with the leader's, and a tie goes to the lower row.
        """
        outside = self._outside
        rivals = outside > high
        if leader > 0:
            rivals[:leader] |= outside[:leader] >= low
        count = int(np.count_nonzero(rivals))
        if count == 0:
            self._ceiling = float(outside.max())
            return False
        # Few large refills beat many small ones: reach further while they come too often.
        if self._k - self._last < _OFTEN:
            self._reach = min(4 * self._reach, outside.size)
        elif self._k - self._last > 2 * _OFTEN:
            self._reach = max(self._reach // 2, self._row.size)
        self._last = self._k
        self._refresh(self._best_outside(max(self._reach, 2 * count), low))
        self._draw(low, high)
        self._ceiling = float(outside.max())
        return True

    def _best_outside(self, count: int, low: float) -> IndexArray:
        """Return about count of the best rows outside, and all whose score is low or more."""
        outside = self._outside
        stride = max(1, outside.size // _SAMPLE)
        sample = outside[::stride]
        place = count // stride + 1
        level = np.partition(sample, -place)[-place] if place <= sample.size else NOT
        if low > NOT:
            level = min(level, low)
        return (outside >= level if level > NOT else outside > NOT).nonzero()[0]

    def _refresh(self, rows: IndexArray) -> None:
        """Bring the bounds of rows up to date with the whole basis."""
        depth = self._depth[rows]
        for start in np.flatnonzero(np.bincount(depth)):
            if start == self._k:
                break
            part = rows if depth[0] == start and (depth == start).all() else rows[depth == start]
            for i in range(0, part.size, self._rows.chunk):
                self._refresh_chunk(part[i : i + self._rows.chunk], int(start))
        self._depth[rows] = self._k

    def _refresh_chunk(self, rows: IndexArray, start: int) -> None:
        shrink, error = self._rows.projections(rows, start)
        old = self._bound[rows]
        fresh = (old if start else 1.0) - shrink
        if error is not None:
            fresh += error
            error *= 2.0
            self._slack[rows] = error + self._slack[rows] if start else error
        np.minimum(fresh, old, out=fresh)
        self._bound[rows] = fresh
        score = self._scoring.score(fresh, self._all_weights[rows])
        score[fresh <= self._floor] = NOT
        self._outside[rows] = score

    def _draw(self, low: float, high: float) -> None:
        """Fill the pool with the best of itself and the fresh rows, ties going to the lower row."""
        size = self._row.size
        near = self._best_outside(2 * size, low)
        near = near[self._depth[near] == self._k]
        alive = (self._weight > NOT).nonzero()[0]
        score = np.concatenate((self._score[alive], self._outside[near]))
        taken = np.ones(score.size, dtype=bool)
        if score.size > size:
            rows = np.concatenate((self._row[alive], near))
            score[(score >= low) & (score <= high)] = high
            last = np.partition(score, -size)[-size]
            taken = score > last
            equal = (score == last).nonzero()[0]
            room = size - int(np.count_nonzero(taken))
            taken[equal[np.argsort(rows[equal])[:room]]] = True
        self._evict(alive[~taken[: alive.size]], self._k)
        coming = near[taken[alive.size :]]
        slots = (self._weight == NOT).nonzero()[0][: coming.size]
        self._row[slots] = coming
        self._rows.load(slots, coming)
        self._square[slots] = self._bound[coming]
        self._pool_slack[slots] = self._slack[coming]
        self._weight[slots] = self._all_weights[coming]
        self._outside[coming] = NOT

    def _evict(self, slots: IndexArray, depth: int) -> None:
        """Move slots of the pool outside, with bounds that rest on depth picks."""
        rows = self._row[slots]
        self._bound[rows] = self._square[slots]
        self._slack[rows] = self._pool_slack[slots]
        self._depth[rows] = depth
        self._outside[rows] = self._scoring.score(self._square[slots], self._weight[slots])
        self._weight[slots] = NOT
