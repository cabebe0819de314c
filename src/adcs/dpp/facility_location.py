"""Facility location: rows that represent all others (DivFL, Balakrishnan et al., ICLR 2022).

A set S costs sum_i min_{j in S} d_ij, the distance from every row to the nearest chosen one. The
fall in cost is monotone and submodular, so greedy reaches 1 - 1/e of the best fall, and a gain
computed earlier is an upper bound for later: most need not be computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array, IndexArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.kernel import as_rows

_TIE = 1e-12  # of the cost: differences below it are rounding
_CLOSE = 1e-2  # of |a|^2 + |b|^2: below it, cancellation would show in d^2
_BATCH = 64  # gains refreshed at a time


@dataclass(frozen=True)
class FacilityResult:
    """A set of m rows that represent the candidates.

    Attributes
    ----------
    indices
        The rows, in the order in which they were picked.
    gains
        By how much each pick lowered the cost. Before the first pick every candidate counts as
        being at the largest distance that occurs.
    assignment
        For each row, the chosen or given row nearest to it: itself if chosen or given, -1 for
        any other row that is not a candidate.
    cost
        The sum over candidates of the distance to the nearest chosen or given row.
    """

    indices: IndexArray
    gains: Float64Array
    assignment: IndexArray
    cost: float


def pairwise_distances(updates: ArrayLike) -> Float64Array:
    """Return the Euclidean distances between rows, symmetric, zero on the diagonal.

    Distances come from inner products; rows close to each other, for which that would cancel,
    are subtracted instead.

    >>> pairwise_distances([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
    array([[0., 5., 5.],
           [5., 0., 0.],
           [5., 0., 0.]])
    """
    rows = as_rows(updates)
    exponent = 0
    if rows.dtype == np.float32:
        rows = rows.astype(np.float64)  # whose range holds the squares of any float32
    else:
        # A power of two keeps squares in range and rounds nothing.
        exponent = int(np.frexp(np.abs(rows).max())[1])
        rows = np.ldexp(rows, -exponent)
    gram = rows @ rows.T
    lengths = np.diagonal(gram)
    both = lengths[:, None] + lengths
    square = both - 2.0 * gram
    close = np.triu(square <= _CLOSE * both, k=1)
    distances: Float64Array = np.sqrt(np.maximum(np.triu(square, k=1), 0.0))
    for i in np.flatnonzero(close.any(axis=1)):
        others = np.flatnonzero(close[i])
        distances[i, others] = np.linalg.norm(rows[others] - rows[i], axis=1)
    with np.errstate(over="ignore"):
        result: Float64Array = np.ldexp(distances + distances.T, exponent)
    if np.isinf(result.max()):
        raise ValueError("updates are too far apart: a distance between them is beyond float64")
    return result


def facility_location(
    distances: ArrayLike,
    m: int,
    *,
    constraints: Constraints = Constraints(),  # noqa: B008 - frozen
) -> FacilityResult:
    """Choose m rows greedily so that every candidate is near to one of them.

    The first pick is the medoid. Exactly m distinct rows are returned, even where the last ones
    gain nothing; a tie goes to the lower index. Rows that are not candidates play no part:
    neither can they be chosen, nor are distances to them counted.

    Parameters
    ----------
    distances
        N x N, as from `pairwise_distances`.
    m
        How many rows to choose.
    constraints
        Who may be chosen, who must be (they are picked first), and how many per group.

    Examples
    --------
    >>> result = facility_location(pairwise_distances([[0.0], [1.0], [2.0], [10.0]]), 2)
    >>> result.indices, result.assignment, result.cost
    (array([1, 3]), array([1, 1, 1, 3]), 2.0)
    """
    d = as_rows(distances, "distances").astype(np.float64, copy=False)
    n = d.shape[0]
    if d.shape != (n, n):
        raise ValueError(f"distances must be square, got shape {d.shape}")
    if d.min() < 0.0:
        raise ValueError(f"distances must not be negative, got {d.min():g}")
    # Sums of the largest distances would overflow; a power of two rounds nothing of them.
    shift = 64 if d.max() > 1e290 else 0
    d = np.ldexp(d, -shift) if shift else d
    room = constraints.resolve(n, m)
    among = np.flatnonzero(room.allowed)
    cover = _Cover(d, among)
    places = room.caps.copy()
    picks: list[int] = []
    gains: list[float] = []
    for row in room.given:
        cover.add(int(row))
    required = np.zeros(n, dtype=bool)
    required[room.required] = True
    free = room.allowed.copy()
    while len(picks) < m:
        first = len(picks) < room.required.size
        row, gain = cover.best(free & (required if first else places[room.codes] > 0))
        picks.append(row)
        gains.append(gain)
        cover.add(row)
        free[row] = False
        places[room.codes[row]] -= 1
    chosen = np.array(picks, dtype=np.intp)
    centres = np.sort(np.append(chosen, room.given))
    assignment = np.full(n, -1, dtype=np.intp)
    assignment[among] = _nearest(d[np.ix_(among, centres)], centres)
    assignment[centres] = centres
    with np.errstate(over="ignore"):
        most = np.finfo(np.float64).max
        lowered = np.minimum(np.ldexp(gains, shift), most)
        cost = min(float(np.ldexp(cover.nearest.sum(), shift)), float(most))
    return FacilityResult(chosen, lowered, assignment, cost)


class _Cover:
    """Distances from each candidate to the nearest pick, and bounds on gains of further picks."""

    def __init__(self, distances: Float64Array, among: IndexArray) -> None:
        self._distances = np.ascontiguousarray(distances[among].T)  # a row for each possible pick
        self.nearest = np.full(among.size, self._distances[among].max())
        self._bound = np.full(distances.shape[1], np.inf)

    def best(self, open_: NDArray[np.bool_]) -> tuple[int, float]:
        """Return the row, of those open, that lowers the cost most, and by how much."""
        fresh = ~open_
        top = -np.inf
        tolerance = _TIE * float(self.nearest.sum())
        while True:
            stale = np.flatnonzero(~fresh & (self._bound >= top - tolerance))
            if stale.size == 0:
                break
            if stale.size > _BATCH:
                stale = stale[np.argpartition(-self._bound[stale], _BATCH)[:_BATCH]]
            fall = self.nearest - self._distances[stale]
            self._bound[stale] = np.maximum(fall, 0.0).sum(axis=1)
            fresh[stale] = True
            top = max(top, float(self._bound[stale].max()))
        row = int(np.flatnonzero(open_ & (self._bound >= top - tolerance))[0])
        return row, float(self._bound[row])

    def add(self, row: int) -> None:
        """Let a row be picked."""
        np.minimum(self.nearest, self._distances[row], out=self.nearest)


def _nearest(distances: Float64Array, chosen: IndexArray) -> IndexArray:
    """Return for each row the nearest of chosen, the first of equals."""
    least = distances.min(axis=1, keepdims=True)
    place: IndexArray = (distances <= least * (1.0 + _TIE)).argmax(axis=1)
    return chosen[place]
