"""Greedy search for the set that maximises (1 - theta) log det C_S + theta sum q.

Each step adds the row with the largest gain, in O(m^2 N) altogether (Chen, Zhang and Zhou 2018,
"Fast greedy MAP inference for determinantal point process").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array, IndexArray
from adcs.dpp.constraints import Constraints, ResolvedConstraints
from adcs.dpp.greedy_dense import DenseSearch, pivoted
from adcs.dpp.greedy_lazy import LazySearch
from adcs.dpp.kernel import as_quality, as_similarity, check_m, check_theta, combine
from adcs.dpp.numbers import total
from adcs.dpp.row_sources import FeatureRowSource, KernelRowSource
from adcs.dpp.selection import Selection
from adcs.dpp.tolerances import NOT, Scoring

_NONE = Constraints()
_TINY = 64  # up to so many rows LAPACK's pivoted Cholesky is tried first
_FEW = 1024  # up to so many rows the dense search is the faster one
_GRAM, _MOST = 256, 4096  # up to so many rows the kernel is formed: always, and if m is large


class Search(Protocol):
    """One greedy run over the rows that are open to it."""

    def open(self, rows: IndexArray) -> None:
        """Let rows into the race."""

    def close(self, rows: NDArray[np.bool_]) -> None:
        """Take the rows of a mask out of the race."""

    def race(self) -> Iterator[tuple[int, float]]:
        """Add the best row and yield it with its r^2, until no row in the race adds anything."""


def greedy_map(
    similarity: ArrayLike,
    m: int,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    constraints: Constraints = _NONE,
) -> Selection:
    """Choose m rows greedily, given the similarity C (N x N, ones on its diagonal).

    Exactly m distinct rows are returned. Gains that differ by rounding alone tie, and a tie goes
    to the lower index. Where fewer than m rows are linearly independent, the rest are chosen by a
    fresh greedy over the remainder, as often as it takes, with gains of -inf.

    Parameters
    ----------
    similarity
        The kernel C.
    m
        How many rows to choose.
    quality
        One number q for each row; None means zeros.
    theta
        Weight of quality, from 0 (diversity alone) to 1 (the m best qualities).
    constraints
        Who may be chosen, who must be (they are picked first), and how many per group.

    Examples
    --------
    >>> c = [[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> greedy_map(c, 2).indices
    array([0, 2])
    >>> greedy_map(c, 2, quality=[1.0, 9.0, 0.0], theta=0.9).indices
    array([1, 0])
    """
    c = as_similarity(similarity)
    scoring = Scoring.of_kernel(similarity, quality, theta=check_theta(theta))
    return greedy_map_trusted(c, m, scoring, quality=quality, constraints=constraints)


def greedy_map_trusted(
    similarity: Float64Array,
    m: int,
    scoring: Scoring,
    *,
    quality: ArrayLike | None = None,
    constraints: Constraints = _NONE,
) -> Selection:
    """Choose m rows greedily, given a kernel by one who made it and knows it to be right.

    To see whether C is finite and symmetric with ones on its diagonal, all of it has to be read,
    which for small m takes longer than choosing; and only who made it knows how exact it is.

    Parameters
    ----------
    similarity, m, quality, constraints
        As in `greedy_map`.
    scoring
        How exact C is, and theta.

    Examples
    --------
    >>> rows = np.array([[2.0, 0.0], [3.0, 0.1], [0.0, 1.0]], dtype=np.float32)
    >>> c = np.array([[1.0, 0.999, 0.0], [0.999, 1.0, 0.033], [0.0, 0.033, 1.0]])
    >>> greedy_map_trusted(c, 2, Scoring.of_features(rows, None, theta=0.0)).indices
    array([0, 2])
    """
    q = as_quality(quality, similarity.shape[0])
    return _greedy_kernel(similarity, q, scoring, constraints, m)


def greedy_map_features(
    features: ArrayLike,
    m: int,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    constraints: Constraints = _NONE,
    unit: bool = False,
    name: str = "features",
) -> Selection:
    """Choose m rows greedily, given N vectors of length d; otherwise like `greedy_map`.

    The rows are compared by direction. Few rows go through their kernel; of many, neither the
    kernel nor a copy is formed.

    Parameters
    ----------
    features
        N x d updates; float32 stays float32.
    m, quality, theta, constraints
        As in `greedy_map`.
    unit
        Whether the rows are meant to have length one; then any that do not are refused.
    name
        What the rows are called in errors.

    Examples
    --------
    >>> greedy_map_features([[2.0, 0.0], [3.0, 0.1], [0.0, 1.0]], 2).indices
    array([0, 2])
    """
    theta = check_theta(theta)
    rows = FeatureRowSource(features, unit=unit, name=name)
    q, m = as_quality(quality, rows.n), check_m(m, rows.n)
    scoring = Scoring.of_features(features, quality, theta=theta)
    if rows.n <= max(_GRAM, min(2 * m, _MOST)):
        return _greedy_kernel(rows.gram(), q, scoring, constraints, m)
    room = constraints.resolve(rows.n, m)
    most = m + room.given.size
    return _greedy(lambda: LazySearch(rows, scoring, q, most), q, scoring, room, m)


def _greedy_kernel(
    c: Float64Array, quality: Float64Array, scoring: Scoring, constraints: Constraints, m: int
) -> Selection:
    n = c.shape[0]
    if n <= _TINY and not constraints:
        picks = pivoted(c, scoring, quality, check_m(m, n))
        if picks is not None:
            return _selection(picks, quality, scoring)
    room = constraints.resolve(n, m)
    most = m + room.given.size
    if n <= _FEW:
        return _greedy(lambda: DenseSearch(c, scoring, quality, most), quality, scoring, room, m)
    rows = KernelRowSource(c)
    return _greedy(lambda: LazySearch(rows, scoring, quality, most), quality, scoring, room, m)


def _greedy(
    search: Callable[[], Search],
    quality: Float64Array,
    scoring: Scoring,
    room: ResolvedConstraints,
    m: int,
) -> Selection:
    run = _Run(search, quality, scoring, room)
    if room.given.size:
        run.condition(room.given)
    if room.required.size:
        run.fill(room.required, room.required.size)
        run.force(room.required)
    while run.fill(run.remaining(), m) < m:
        run.restart()
    return _selection(run.picks, quality, scoring)


def _selection(
    picks: list[tuple[int, float]], quality: Float64Array, scoring: Scoring
) -> Selection:
    """Return picks, each a row and its r^2, with what they are worth."""
    index = np.array([row for row, _ in picks], dtype=np.intp)
    log, floor = math.log, scoring.floor
    logs = [log(square) if square > floor else NOT for _, square in picks]
    q, log_det = quality[index], math.fsum(logs)
    return Selection(
        indices=index,
        gains=scoring.gains(np.array(logs), q),
        log_det=log_det,
        objective=combine(log_det, total(q), scoring.theta),
        rank=len(logs) - logs.count(NOT),
    )


class _Run:
    """The picks so far, and the search that finds the next."""

    def __init__(
        self,
        search: Callable[[], Search],
        quality: Float64Array,
        scoring: Scoring,
        room: ResolvedConstraints,
    ) -> None:
        self._new_search, self._search = search, search()
        self._quality, self._scoring, self._room = quality, scoring, room
        self._capped, self._places = room.capped, room.caps.copy()
        self._first = True
        self.picks: list[tuple[int, float]] = []

    def condition(self, rows: IndexArray) -> None:
        """Let the search start from the span of rows that are chosen already."""
        self._search.open(rows)
        for _ in self._search.race():
            pass

    def remaining(self) -> IndexArray:
        """Return the rows that may still be chosen."""
        free = self._room.allowed.nonzero()[0]
        if self.picks:
            free = np.setdiff1d(free, [row for row, _ in self.picks])
        return free[self._places[self._room.codes[free]] > 0] if self._capped else free

    def fill(self, rows: IndexArray, size: int) -> int:
        """Add the best of rows until there are size picks or no new direction is left."""
        picks, first, capped = self.picks, self._first, self._capped
        if len(picks) < size:
            self._search.open(rows)
            for pick in islice(self._search.race(), size - len(picks)):
                picks.append(pick if first else (pick[0], 0.0))
                if capped:
                    self._count(pick[0])
        return len(picks)

    def force(self, rows: IndexArray) -> None:
        """Take those of rows that are left: they must be in, though they add no direction."""
        left = np.setdiff1d(rows, [row for row, _ in self.picks])
        while left.size:
            weight = self._scoring.weigh(self._quality[left])
            best = float(weight.max())
            # Their residuals are equal, so quality decides.
            place = int((weight >= best - self._scoring.quality_blur * abs(best)).argmax())
            self.picks.append((int(left[place]), 0.0))
            if self._capped:
                self._count(int(left[place]))
            left = np.delete(left, place)

    def restart(self) -> None:
        """Forget the picks: those that follow are spread anew over the remainder."""
        self._first = False
        self._search = self._new_search()

    def _count(self, row: int) -> None:
        """Take up a place of a row's group, and close the group with its last one."""
        group = self._room.codes[row]
        self._places[group] -= 1
        if self._places[group] == 0:
            self._search.close(self._room.codes == group)
