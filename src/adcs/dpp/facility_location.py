"""Facility location: rows that represent all others (DivFL, Balakrishnan et al., ICLR 2022).

The cost of a set S is sum_i min_{j in S} d_ij, the distance from every row to the nearest chosen
one. The decrease in cost is monotone and submodular, so greedy reaches 1 - 1/e of the largest
decrease. A gain computed earlier is an upper bound, so most gains need not be computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array, IndexArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.kernel import as_rows
from adcs.dpp.tolerances import COST_TIE, EXCLUDED, best_row, tie_order

_CLOSE = 1e-2  # of |a|^2 + |b|^2; below it, d^2 would lose digits by cancellation
_BATCH = 64  # gains computed at a time


@dataclass(frozen=True)
class FacilityResult:
    """A set of m rows that represent the candidates.

    Attributes
    ----------
    indices
        The rows, in the order in which they were picked.
    gains
        The decrease in cost by each pick. Before the first pick, every candidate is at the largest
        distance that occurs.
    assignment
        For each row, the chosen or given row nearest to it: itself if chosen or given, -1 for
        any other row that is not a candidate.
    cost
        The sum over candidates of the distance to the nearest chosen or given row.

    Examples
    --------
    >>> facility_location([[0.0, 2.0], [2.0, 0.0]], 1).cost
    2.0
    """

    indices: IndexArray
    gains: Float64Array
    assignment: IndexArray
    cost: float


def pairwise_distances(updates: ArrayLike) -> Float64Array:
    """Return the Euclidean distances between rows, symmetric, zero on the diagonal.

    Distances come from inner products. Rows close to each other are subtracted instead, because
    inner products would lose digits.

    >>> pairwise_distances([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
    array([[0., 5., 5.],
           [5., 0., 0.],
           [5., 0., 0.]])
    """
    rows = as_rows(updates)
    exponent = 0
    if rows.dtype == np.float32:
        rows = rows.astype(np.float64)  # the squares of any float32 fit
    else:
        # A power of two keeps squares in range without rounding.
        exponent = int(np.frexp(np.abs(rows).max())[1])
        rows = np.ldexp(rows, -exponent)
    gram = rows @ rows.T
    squared_norms = np.diagonal(gram)
    both = squared_norms[:, None] + squared_norms
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
    """Choose m rows greedily so that every candidate is near one of them.

    The first pick is the medoid. Returns exactly m distinct rows, even if the last ones gain
    nothing; a tie goes to the lower index. Rows that are not candidates are not chosen, and their
    distances do not count.

    Parameters
    ----------
    distances
        N x N, as from `pairwise_distances`.
    m
        How many rows to choose.
    constraints
        As in `greedy_map`; given rows already cover the rows near them.

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
    # Sums of the largest distances would overflow; a power of two does not round them.
    shift = 64 if d.max() > 1e290 else 0
    d = np.ldexp(d, -shift) if shift else d
    resolved = constraints.resolve(n, m)
    members = np.flatnonzero(resolved.allowed)
    cover = _Cover(d, members)
    slots = resolved.caps.copy()
    picks: list[int] = []
    gains: list[float] = []
    for row in resolved.given:
        cover.add(int(row))
    required = np.zeros(n, dtype=bool)
    required[resolved.required] = True
    free = resolved.allowed.copy()
    while len(picks) < m:
        first = len(picks) < resolved.required.size
        row, gain = cover.best(free & (required if first else slots[resolved.codes] > 0))
        picks.append(row)
        gains.append(gain)
        cover.add(row)
        free[row] = False
        slots[resolved.codes[row]] -= 1
    chosen = np.array(picks, dtype=np.intp)
    centres = np.append(chosen, resolved.given)
    centres = centres[tie_order(centres)]
    assignment = np.full(n, -1, dtype=np.intp)
    assignment[members] = _nearest(d[np.ix_(members, centres)], centres)
    assignment[centres] = centres
    with np.errstate(over="ignore"):
        most = np.finfo(np.float64).max
        scaled_gains = np.minimum(np.ldexp(gains, shift), most)
        cost = min(float(np.ldexp(cover.nearest.sum(), shift)), float(most))
    return FacilityResult(chosen, scaled_gains, assignment, cost)


class _Cover:
    """Distances from each candidate to the nearest pick, and upper bounds on further gains."""

    def __init__(self, distances: Float64Array, members: IndexArray) -> None:
        self._distances = np.ascontiguousarray(distances[members].T)  # a row for each possible pick
        self.nearest = np.full(members.size, self._distances[members].max())
        self._bound = np.full(distances.shape[1], np.inf)

    def best(self, candidates: NDArray[np.bool_]) -> tuple[int, float]:
        """Return the row of a mask that lowers the cost most, and by how much."""
        fresh = ~candidates
        top = -np.inf
        tolerance = COST_TIE * float(self.nearest.sum())
        while True:
            stale = np.flatnonzero(~fresh & (self._bound >= top - tolerance))
            if stale.size == 0:
                break
            if stale.size > _BATCH:
                stale = stale[np.argpartition(-self._bound[stale], _BATCH)[:_BATCH]]
            decrease = self.nearest - self._distances[stale]
            self._bound[stale] = np.maximum(decrease, 0.0).sum(axis=1)
            fresh[stale] = True
            top = max(top, float(self._bound[stale].max()))
        row = best_row(np.where(candidates, self._bound, EXCLUDED), top - tolerance)
        return row, float(self._bound[row])

    def add(self, row: int) -> None:
        """Add a pick."""
        np.minimum(self.nearest, self._distances[row], out=self.nearest)


def _nearest(distances: Float64Array, chosen: IndexArray) -> IndexArray:
    """Return for each row the nearest of chosen, which is in tie order."""
    least = distances.min(axis=1, keepdims=True)
    position: IndexArray = (distances <= least * (1.0 + COST_TIE)).argmax(axis=1)
    return chosen[position]
