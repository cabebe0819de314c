"""Greedy search for the set that maximises (1 - theta) log det C_S + theta sum q.

Each step adds the row with the largest gain, in O(m^2 N) altogether (Chen, Zhang and Zhou 2018,
"Fast greedy MAP inference for determinantal point process"). Three searches find the same picks.
The size decides which one runs, and docs/evidence/benchmarks.md has the measurements:

- `_pivoted_cholesky`, LAPACK's, for a kernel of at most 64 rows without constraints.
- `_DenseSearch`, over all rows of a kernel, otherwise.
- `adcs.dpp.greedy_lazy.LazySearch`, over a kernel of more than 1,024 rows if quality counts or
  many rows are chosen, and over features without forming their kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dgemv
from scipy.linalg.lapack import dpstrf

from adcs._types import Float64Array, IndexArray
from adcs.dpp.constraints import Constraints, ResolvedConstraints
from adcs.dpp.greedy_lazy import FeatureRowSource, KernelRowSource, LazySearch
from adcs.dpp.kernel import as_quality, as_similarity, check_m, check_theta, combine, total
from adcs.dpp.tolerances import EXCLUDED, LOWEST_SCORE, Scorer, best_row, tie_order

_NO_CONSTRAINTS = Constraints()
_SMALL = 64  # up to this many rows the kernel is formed, and pivoted Cholesky is tried first
_LARGE = 1024  # up to this many rows the kernel is formed if at least half of them are chosen
_MANY = 300  # from this many picks the lazy search over a large kernel pays at theta = 0


@dataclass(frozen=True)
class Selection:
    """A set of m rows.

    With given rows (`Constraints.given`), gains, log_det and objective are what the set adds to
    them.

    Attributes
    ----------
    indices
        The rows, in the order in which they were picked.
    gains
        What each pick added to the objective: (1 - theta) log residual^2 + theta q. It is -inf
        for a pick that adds no direction of its own (theta < 1).
    log_det
        log det C_S, of the similarity alone; -inf when the picks are linearly dependent.
    objective
        (1 - theta) log det C_S + theta sum q.
    rank
        The number of picks that have a direction of their own. If it is below m, the other picks
        come from a new greedy search over the remaining rows.

    Examples
    --------
    >>> selection = greedy_map([[1.0, 0.6], [0.6, 1.0]], 2)
    >>> selection.indices, selection.gains.round(3), selection.rank
    (array([0, 1]), array([ 0.   , -0.446]), 2)
    """

    indices: IndexArray
    gains: Float64Array
    log_det: float
    objective: float
    rank: int


def greedy_map(
    similarity: ArrayLike,
    m: int,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    constraints: Constraints = _NO_CONSTRAINTS,
) -> Selection:
    """Choose m rows greedily, given the similarity C (N x N, ones on its diagonal).

    Returns exactly m distinct rows. Gains that differ by rounding alone tie, and a tie goes to the
    lower index. If fewer than m rows are linearly independent, the rest are chosen by a new greedy
    search over the remaining rows, repeated as often as needed, with gains of -inf.

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
        Which rows may be chosen, which must be (they are picked first), which are chosen already,
        and how many per group.

    Examples
    --------
    >>> c = [[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> greedy_map(c, 2).indices
    array([0, 2])
    >>> greedy_map(c, 2, quality=[1.0, 9.0, 0.0], theta=0.9).indices
    array([1, 0])
    """
    c = as_similarity(similarity)
    scorer = Scorer.of_kernel(similarity, quality, theta=check_theta(theta))
    return greedy_map_trusted(c, m, scorer, quality=quality, constraints=constraints)


def greedy_map_trusted(
    similarity: Float64Array,
    m: int,
    scorer: Scorer,
    *,
    quality: ArrayLike | None = None,
    constraints: Constraints = _NO_CONSTRAINTS,
) -> Selection:
    """Like `greedy_map`, without validating the kernel.

    Validation reads all of C, which for small m takes longer than the search. The caller also
    says how exact C is.

    Parameters
    ----------
    similarity, m, quality, constraints
        As in `greedy_map`.
    scorer
        Theta, and how exact C is.

    Examples
    --------
    >>> rows = np.array([[2.0, 0.0], [3.0, 0.1], [0.0, 1.0]], dtype=np.float32)
    >>> c = np.array([[1.0, 0.999, 0.0], [0.999, 1.0, 0.033], [0.0, 0.033, 1.0]])
    >>> greedy_map_trusted(c, 2, Scorer.of_features(rows, None, theta=0.0)).indices
    array([0, 2])
    """
    q = as_quality(quality, similarity.shape[0])
    return _search_kernel(similarity, q, scorer, constraints, m)


def greedy_map_features(
    features: ArrayLike,
    m: int,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    constraints: Constraints = _NO_CONSTRAINTS,
    unit: bool = False,
    name: str = "features",
) -> Selection:
    """Choose m rows greedily, given N vectors of d numbers; otherwise like `greedy_map`.

    Rows are compared by direction. For many rows neither the kernel nor a copy of the rows is
    formed.

    Parameters
    ----------
    features
        N x d updates; float32 stays float32.
    m, quality, theta, constraints
        As in `greedy_map`.
    unit
        If true, rows whose norm is not one are refused.
    name
        What errors call the rows.

    Examples
    --------
    >>> greedy_map_features([[2.0, 0.0], [3.0, 0.1], [0.0, 1.0]], 2).indices
    array([0, 2])
    """
    theta = check_theta(theta)
    rows = FeatureRowSource(features, unit=unit, name=name)
    q = as_quality(quality, rows.n)
    scorer = Scorer.of_features(features, quality, theta=theta)
    return greedy_map_rows(rows, m, scorer, quality=q, constraints=constraints)


def greedy_map_rows(
    rows: FeatureRowSource,
    m: int,
    scorer: Scorer,
    *,
    quality: Float64Array,
    constraints: Constraints = _NO_CONSTRAINTS,
) -> Selection:
    """Like `greedy_map_features`, for rows that were checked before.

    Parameters
    ----------
    rows
        The rows.
    m, quality, constraints
        As in `greedy_map_features`.
    scorer
        Theta, and how exact the rows are.

    Examples
    --------
    >>> features = np.array([[2.0, 0.0], [3.0, 0.1], [0.0, 1.0]])
    >>> scorer = Scorer.of_features(features, None, theta=0.0)
    >>> greedy_map_rows(FeatureRowSource(features), 2, scorer, quality=np.zeros(3)).indices
    array([0, 2])
    """
    m, q = check_m(m, rows.n), quality
    if rows.n <= max(_SMALL, min(2 * m, _LARGE)):
        return _search_kernel(rows.gram(), q, scorer, constraints, m)
    resolved = constraints.resolve(rows.n, m)
    most = m + resolved.given.size
    return _run(lambda: LazySearch(rows, scorer, q, most), q, scorer, resolved, m)


def _search_kernel(
    c: Float64Array, quality: Float64Array, scorer: Scorer, constraints: Constraints, m: int
) -> Selection:
    n = c.shape[0]
    if n <= _SMALL and not constraints:
        picks = _pivoted_cholesky(c, scorer, quality, check_m(m, n))
        if picks is not None:
            return _selection(picks, quality, scorer)
    resolved = constraints.resolve(n, m)
    most = m + resolved.given.size
    if n > _LARGE and (scorer.theta > 0.0 or m >= _MANY):
        rows = KernelRowSource(c)
        return _run(lambda: LazySearch(rows, scorer, quality, most), quality, scorer, resolved, m)
    return _run(lambda: _DenseSearch(c, scorer, quality, most), quality, scorer, resolved, m)


class _Search(Protocol):
    """One greedy search over its candidates."""

    def admit(self, rows: IndexArray) -> None:
        """Make rows candidates."""

    def exclude(self, rows: NDArray[np.bool_]) -> None:
        """Remove the rows of a mask from the candidates."""

    def picks(self) -> Iterator[tuple[int, float]]:
        """Add the best candidate and yield it with its r^2, until none adds a direction."""


def _run(
    new_search: Callable[[], _Search],
    quality: Float64Array,
    scorer: Scorer,
    resolved: ResolvedConstraints,
    m: int,
) -> Selection:
    """Choose m rows: required ones first, then the best, with a new search when rank runs out."""
    run = _Run(new_search, quality, scorer, resolved)
    if resolved.given.size:
        run.condition(resolved.given)
    if resolved.required.size:
        run.fill(resolved.required, resolved.required.size)
        run.add_dependent(resolved.required)
    while run.fill(run.remaining(), m) < m:
        run.restart()
    return _selection(run.picks, quality, scorer)


def _selection(picks: list[tuple[int, float]], quality: Float64Array, scorer: Scorer) -> Selection:
    """Return picks, each a row and its r^2, as a Selection."""
    index = np.array([row for row, _ in picks], dtype=np.intp)
    log, floor = math.log, scorer.floor
    logs = [log(square) if square > floor else -math.inf for _, square in picks]
    q, log_det = quality[index], math.fsum(logs)
    return Selection(
        indices=index,
        gains=scorer.gains(np.array(logs), q),
        log_det=log_det,
        objective=combine(log_det, total(q), scorer.theta),
        rank=len(logs) - logs.count(-math.inf),
    )


class _Run:
    """The picks so far, and the search that finds the next."""

    def __init__(
        self,
        new_search: Callable[[], _Search],
        quality: Float64Array,
        scorer: Scorer,
        resolved: ResolvedConstraints,
    ) -> None:
        self._new_search, self._search = new_search, new_search()
        self._quality, self._scorer, self._resolved = quality, scorer, resolved
        self._capped, self._slots = resolved.capped, resolved.caps.copy()
        self._first_search = True
        self.picks: list[tuple[int, float]] = []

    def condition(self, rows: IndexArray) -> None:
        """Start the search from the span of rows that are chosen already."""
        self._search.admit(rows)
        for _ in self._search.picks():
            pass

    def remaining(self) -> IndexArray:
        """Return the rows that may still be chosen."""
        allowed = self._resolved.allowed
        if self.picks:
            allowed = allowed.copy()
            allowed[[row for row, _ in self.picks]] = False
        free = allowed.nonzero()[0]
        return free[self._slots[self._resolved.codes[free]] > 0] if self._capped else free

    def fill(self, rows: IndexArray, size: int) -> int:
        """Add the best of rows until there are size picks or no new direction is left."""
        picks, capped = self.picks, self._capped
        if len(picks) < size:
            self._search.admit(rows)
            for row, square in islice(self._search.picks(), size - len(picks)):
                picks.append((row, square if self._first_search else 0.0))
                if capped:
                    self._use_slot(row)
        return len(picks)

    def add_dependent(self, rows: IndexArray) -> None:
        """Add those of the required rows that the search left out: they add no direction."""
        left = np.setdiff1d(rows, [row for row, _ in self.picks])
        while left.size:
            # Their residuals are equal, so quality decides.
            weight = self._scorer.quality_term(self._quality[left])
            best = float(weight.max())
            position = best_row(weight, best - self._scorer.quality_error * abs(best))
            self.picks.append((int(left[position]), 0.0))
            if self._capped:
                self._use_slot(int(left[position]))
            left = np.delete(left, position)

    def restart(self) -> None:
        """Start a new search; its picks are diverse among themselves only."""
        self._first_search = False
        self._search = self._new_search()

    def _use_slot(self, row: int) -> None:
        """Use one of the slots of a row's group, and exclude the group after its last one."""
        group = self._resolved.codes[row]
        self._slots[group] -= 1
        if self._slots[group] == 0:
            self._search.exclude(self._resolved.codes == group)


class _DenseSearch:
    """Greedy search over all rows of a kernel.

    Examples
    --------
    >>> scorer = Scorer.of_kernel(np.eye(2), None, theta=0.5)
    >>> search = _DenseSearch(np.eye(2), scorer, np.array([1.0, 2.0]), m=2)
    >>> search.admit(np.arange(2))
    >>> next(search.picks())
    (1, 1.0)
    """

    def __init__(
        self, similarity: Float64Array, scorer: Scorer, quality: Float64Array, m: int
    ) -> None:
        n = similarity.shape[0]
        self._c, self._scorer, self._m = similarity, scorer, m
        self._floor = scorer.floor if scorer.theta < 1.0 else -math.inf
        self._smallest = 1.0  # r^2 among the chosen rows
        self._all_weights = scorer.quality_term(quality)
        self._weight = np.full(n, EXCLUDED)  # of the candidates
        # At theta = 0 the score is r^2 itself, and one array serves as weight, r^2 and score,
        # -inf for excluded rows; otherwise r^2 is kept for all rows.
        self._square = self._weight if scorer.theta == 0.0 else np.ones(n)
        self._score = self._weight if scorer.theta == 0.0 else np.empty(n)
        self._shrink = np.empty(n)
        # Coordinates of all rows in the orthonormal basis of the chosen ones.
        self._coordinates = np.empty((n, m), order="F")
        self._chosen: list[int] = []

    def admit(self, rows: IndexArray) -> None:
        """Make rows candidates."""
        if self._scorer.theta > 0.0:
            self._weight[rows] = self._all_weights[rows]
            return
        # Their r^2 was not kept up to date while they were excluded.
        self._square[rows] = 1.0
        for k in range(len(self._chosen)):
            self._square[rows] -= self._coordinates[rows, k] ** 2

    def exclude(self, rows: NDArray[np.bool_]) -> None:
        """Remove the rows of a mask from the candidates."""
        self._weight[rows] = EXCLUDED

    def picks(self) -> Iterator[tuple[int, float]]:
        """Add the best candidate and yield it with its r^2, until none adds a direction."""
        weight, squares, score = self._weight, self._square, self._score
        c, coordinates, shrink = self._c, self._coordinates, self._shrink
        scorer, floor, chosen, last = self._scorer, self._floor, self._chosen, self._m - 1
        # Looked up once: a pick takes microseconds.
        item, argmax, squared, subtract = score.item, score.argmax, np.square, np.subtract
        mixed = score is not squares
        widest = scorer.widest_margin()
        smallest, recheck_threshold = self._smallest, scorer.recheck_threshold(1.0)
        k = len(chosen)
        while True:
            if mixed:
                scorer.score(squares, weight, out=score)
            row = int(argmax())
            best = item(row)
            square = squares.item(row) if mixed else best
            if best == EXCLUDED:
                return
            if square <= floor:
                weight[squares <= floor] = EXCLUDED
                continue
            score[row] = EXCLUDED
            if item(argmax()) >= best - widest:
                score[row] = best
                row = best_row(score, scorer.tie_limit(best, square, weight.item(row)))
                square = squares.item(row)
            weight[row] = EXCLUDED
            if square * smallest < recheck_threshold and self._is_dependent(row, square):
                if scorer.theta == 1.0:  # quality alone decides
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

    def _is_dependent(self, row: int, square: float) -> bool:
        """Return whether a small r^2 is only rounding."""
        if square <= self._scorer.floor or not self._chosen:
            return square <= self._scorer.floor
        known = self._coordinates[:, : len(self._chosen)]
        coefficients = solve_triangular(known[self._chosen].T, known[row], check_finite=False)
        return not self._scorer.is_significant(square, coefficients)


def _pivoted_cholesky(
    similarity: Float64Array, scorer: Scorer, quality: Float64Array, m: int
) -> list[tuple[int, float]] | None:
    """Return the greedy picks by one call of LAPACK's pivoted Cholesky, or None.

    Its pivots are the greedy picks, but it handles neither ties nor tiny residuals. All picks are
    checked at once; None means that `_DenseSearch` has to find them. It factorises the whole
    kernel, which pays for small kernels only.

    >>> scorer = Scorer.of_kernel(np.eye(2), None, theta=0.0)
    >>> _pivoted_cholesky(np.eye(2), scorer, np.zeros(2), 2)
    [(0, 1.0), (1, 1.0)]
    """
    if scorer.theta == 1.0:
        return None
    weight = scorer.quality_term(quality)
    scale = np.ones(1)
    kernel = similarity
    if scorer.theta > 0.0:
        with np.errstate(over="ignore"):
            exponent = (weight - weight.max()) / (2.0 * (1.0 - scorer.theta))
        if exponent.min() < -100.0:
            return None
        scale = np.exp(exponent)
        kernel = similarity * scale * scale[:, None]
    factor, pivots, rank, _ = dpstrf(kernel, tol=0.0, lower=1)
    if rank < m:
        return None
    order = pivots - 1
    if scorer.theta > 0.0:
        factor /= scale[order, None]
    candidate = _triangle(order.size, m)  # row i is a candidate at step j <= i
    shrink = np.where(candidate, factor[:, :m], 0.0)
    shrink *= shrink
    squares = (1.0 + shrink) - shrink.cumsum(axis=1)  # before each step
    weight = weight[order]
    score = np.where(candidate, scorer.score(squares, weight[:, None]), EXCLUDED)
    picked = squares.diagonal()
    least = float(picked.min())
    if least <= scorer.floor or least < scorer.recheck_threshold(least):
        return None
    with np.errstate(over="ignore"):
        margin = scorer.tie_margin(picked, weight[:m])
        tied = score >= np.maximum(score.max(axis=0) - margin, LOWEST_SCORE)
    preference = tie_order(order)
    winners = order[preference[tied[preference].argmax(axis=0)]]
    if (winners != order[:m]).any():
        return None
    return list(zip(order[:m].tolist(), picked.tolist(), strict=True))


@lru_cache(maxsize=8)
def _triangle(n: int, m: int) -> NDArray[np.bool_]:
    return np.tri(n, m, dtype=bool)
