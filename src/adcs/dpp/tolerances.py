"""Rounding, ties and the order within a tie: one rule for every search and ranking.

Numbers that differ by rounding alone tie, and a tie goes to the lowest row index. How wide a tie
is, who wins it, and when a residual counts as zero are decided here and nowhere else.

The score of a candidate in a greedy search is (1 - theta) log r^2 + theta q, where r is the norm
of the part of its unit vector outside the span of the rows chosen so far. Quality is not part of
the linear algebra, so nothing overflows, and rank depends on r^2 alone, whatever the qualities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import Float64Array, IndexArray
from adcs._validation import as_numbers

Number = TypeVar("Number", float, Float64Array)

FLOAT32_PRECISION, FLOAT64_PRECISION = (float(np.finfo(t).eps) for t in (np.float32, np.float64))
"""The relative rounding of numbers of either type."""

EXCLUDED = -np.inf
"""The score of a row that is not a candidate."""

LOWEST_SCORE = -float(np.finfo(np.float64).max)
"""The least score that a candidate can have."""

COST_TIE = 1e-12
"""Costs and distances tie within this fraction of the cost (facility location)."""

EXPLAINED_TIE = 1e-6
"""Scores tie within this fraction where an explanation looks for a row's closest pick."""

_SET_TIE = 1e-10  # objectives tie within this much for each row of the set


# --- who wins a tie -------------------------------------------------------------------------------


def tie_winner(rows: IndexArray) -> int:
    """Return the position, in rows, of the row that wins a tie: the lowest index.

    >>> tie_winner(np.array([7, 2, 5]))
    1
    """
    return int(rows.argmin())


def tie_order(rows: IndexArray) -> IndexArray:
    """Return the positions of tied rows in the order in which ties prefer them.

    >>> tie_order(np.array([7, 2, 5]))
    array([1, 2, 0])
    """
    return rows.argsort()


def preferred_to(row: int) -> slice:
    """Return the rows that win a tie against row, as a slice of all rows.

    >>> np.arange(5)[preferred_to(2)]
    array([0, 1])
    """
    return slice(0, row)


def best_row(scores: Float64Array, low: float) -> int:
    """Return the winner of the tie among the rows whose score is low or more.

    >>> best_row(np.array([1.0, 3.0, 2.9999]), low=2.9)
    1
    """
    tied = (scores >= low).nonzero()[0]
    return int(tied[tie_winner(tied)])


# --- how wide a tie is ----------------------------------------------------------------------------


def precision(array: ArrayLike) -> float:
    """Return the relative rounding of the numbers in array, at least that of float64.

    >>> precision(np.zeros(2, dtype=np.float32))
    1.1920928955078125e-07
    """
    dtype = getattr(array, "dtype", None)
    if dtype is None or dtype.kind != "f":
        return FLOAT64_PRECISION
    return max(FLOAT64_PRECISION, float(np.finfo(dtype).eps))  # all computation is in float64


def quality_precision(quality: ArrayLike | None) -> float:
    """Return the relative rounding of numbers as they were given.

    Values that are all exact in float32 were most likely computed in float32, whatever their
    type is now. Those that differ by its rounding only have to tie: at the first round every
    client's loss is the same number. Integers are not rounded at all.

    >>> quality_precision(np.array([np.float32(0.1), np.float32(0.2)], dtype=np.float64))
    1.1920928955078125e-07
    >>> quality_precision([0.1, 0.2])
    2.220446049250313e-16
    """
    narrow = True
    if quality is not None:
        values = as_numbers(quality, "quality").astype(np.float64, copy=False)
        if np.asarray(quality).dtype.kind in "iu":
            return FLOAT64_PRECISION
        with np.errstate(over="ignore"):
            narrow = bool((values.astype(np.float32) == values).all())
    return FLOAT32_PRECISION if narrow else FLOAT64_PRECISION


def tie_width(values: Float64Array) -> float:
    """Return the relative difference up to which values that clients reported tie.

    >>> tie_width(np.array([0.1, 0.2])) < 1e-14
    True
    """
    return 8.0 * quality_precision(values)


def tie_groups(ordered: Float64Array, width: float) -> IndexArray:
    """Return, for values in rising or falling order, the number of the tie that each is in.

    A tie holds the values within a relative width of its first value. Comparing neighbours only
    would chain many close values into one tie, however far apart its ends are.

    >>> tie_groups(np.array([1.0, 1.1, 1.2, 5.0]), width=0.15)
    array([0, 0, 1, 2])
    """
    new = np.ones(ordered.size, dtype=bool)
    first = 0
    with np.errstate(over="ignore"):
        new[1:] = np.abs(np.diff(ordered)) > width * np.abs(ordered[:-1])
        for i in np.flatnonzero(~new).tolist():
            if new[i - 1]:
                first = i - 1
            new[i] = abs(ordered[i] - ordered[first]) > width * abs(ordered[first])
    return np.cumsum(new) - 1


def descending(values: Float64Array) -> list[int]:
    """Return indices by falling value, tied values in tie order.

    >>> descending(np.array([1.0, 3.0, 1.0 + 1e-16, 2.0]))
    [1, 3, 0, 2]
    """
    order = (-values).argsort(kind="stable")
    falling = values[order]
    gaps, near = falling[:-1] - falling[1:], 8.0 * np.abs(falling[:-1])
    # Values that differ in float32 do not tie: most often the precision need not be determined.
    if not (gaps > FLOAT32_PRECISION * near).all():
        tied = tie_groups(falling, tie_width(values))
        preference = np.empty_like(order)
        preference[tie_order(order)] = np.arange(order.size)
        order = order[np.lexsort((preference, tied))]
    ranked: list[int] = order.tolist()
    return ranked


def set_tie(quality: ArrayLike | None, theta: float, m: int) -> float:
    """Return the difference of objectives below which two sets of m rows tie.

    >>> set_tie(None, theta=0.5, m=10)
    1e-09
    """
    largest = 0.0 if quality is None else float(np.abs(as_numbers(quality, "quality")).max())
    return m * (_SET_TIE + 2 * quality_precision(quality) * theta * largest)


# --- scores of a greedy search --------------------------------------------------------------------


@dataclass(frozen=True)
class Scorer:
    """The scores of candidates, and the rounding errors of these scores.

    Attributes
    ----------
    theta
        Weight of quality against diversity.
    floor
        A squared residual of at most this counts as zero: the row adds no direction.
    kernel_error
        Rounding error of a squared residual, whatever its size.
    direction_error
        Rounding error of the unit vectors, an angle e. It moves r^2 by 2 e r sqrt(1 - r^2).
    quality_error
        Relative rounding error of a quality.

    Examples
    --------
    >>> scorer = Scorer.of_features(np.eye(2), None, theta=0.0)
    >>> scorer.gains(np.log([1.0, 0.25]), np.zeros(2)).round(3)
    array([ 0.   , -1.386])
    """

    theta: float
    floor: float
    kernel_error: float
    direction_error: float
    quality_error: float

    @classmethod
    def of_kernel(cls, similarity: ArrayLike, quality: ArrayLike | None, *, theta: float) -> Scorer:
        """Return the scorer for a given kernel, whose rounded entries change r^2 directly.

        >>> Scorer.of_kernel(np.eye(2), None, theta=0.5).direction_error
        0.0
        """
        eps = precision(similarity)
        rounded = 8 * eps if eps > FLOAT64_PRECISION else 0.0
        kernel_error = 256 * FLOAT64_PRECISION + rounded
        return cls(theta, 64 * eps, kernel_error, 0.0, 2 * quality_precision(quality))

    @classmethod
    def of_features(cls, features: ArrayLike, quality: ArrayLike | None, *, theta: float) -> Scorer:
        """Return the scorer for given rows, whose rounding changes r^2 far less.

        >>> Scorer.of_features(np.eye(2, dtype=np.float32), None, theta=0.5).direction_error
        1.1920928955078125e-07
        """
        eps = precision(features)
        floor = max(64 * FLOAT64_PRECISION, (64 * eps) ** 2)
        direction_error = eps if eps > FLOAT64_PRECISION else 0.0
        kernel_error = 256 * FLOAT64_PRECISION
        return cls(theta, floor, kernel_error, direction_error, 2 * quality_precision(quality))

    def recheck_threshold(self, smallest: float) -> float:
        """Return the r^2 below which rounding may be all of it, and a check is needed.

        Smallest is the least r^2 among the picks so far: small ones magnify rounding.
        """
        return 2.0**20 * self.floor / smallest

    def is_significant(self, square: float, coefficients: Float64Array) -> bool:
        """Return whether an r^2 computed from a kernel is more than rounding.

        r^2 is the squared norm of the row minus its combination of the chosen rows. Large
        coefficients in that combination magnify the rounding of the kernel's entries.
        """
        magnified = (1.0 + float(np.abs(coefficients).sum())) ** 2
        return square > self.floor * max(1.0, magnified / 16.0)

    def quality_term(self, quality: Float64Array) -> Float64Array:
        """Return theta * q, the constant part of a score."""
        return self.theta * quality if self.theta > 0.0 else np.zeros_like(quality)

    def score(
        self, squares: Float64Array, weight: Float64Array, out: Float64Array | None = None
    ) -> Float64Array:
        """Return scores for squared residuals and weights theta * q.

        A weight of -inf excludes a row. At theta = 0 the score is r^2 itself, which orders the
        rows as its logarithm does and costs less.
        """
        if self.theta == 1.0:
            return np.add(weight, 0.0, out=out)
        if self.theta == 0.0:
            return np.add(squares, weight, out=out)
        out = np.maximum(squares, 0.5 * self.floor, out=out)
        np.log(out, out=out)
        out *= 1.0 - self.theta
        out += weight
        return out

    def score_one(self, square: float, weight: float) -> float:
        """Return the score of a single row."""
        if self.theta == 0.0:
            return square + weight
        return weight if self.theta == 1.0 else (1.0 - self.theta) * math.log(square) + weight

    def tie_margin(self, square: Number, weight: Number) -> Number:
        """Return how far below a score another one may lie and still tie."""
        if self.theta == 1.0:
            return self.quality_error * abs(weight)
        error = self.kernel_error + 0.0 * square
        if self.direction_error:
            e = self.direction_error
            error += e * (2.0 * (square * abs(1.0 - square)) ** 0.5 + e)
        if self.theta == 0.0:
            return error
        return (1.0 - self.theta) * error / square + self.quality_error * abs(weight)

    def widest_margin(self) -> float:
        """Return the largest margin of any tie, infinite where it has no limit."""
        return self.tie_margin(0.5, 0.0) if self.theta == 0.0 else math.inf

    def tie_limit(self, best: float, square: float, weight: float) -> float:
        """Return the least score that ties with the best one, given its r^2 and weight."""
        return max(best - self.tie_margin(square, weight), LOWEST_SCORE)

    def gains(self, log_squares: Float64Array, quality: Float64Array) -> Float64Array:
        """Return what picks add to the objective, given log r^2, which may be -inf."""
        if self.theta == 1.0:
            return quality
        return (1.0 - self.theta) * log_squares + self.quality_term(quality)
