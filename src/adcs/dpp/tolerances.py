"""How a greedy search compares candidates: score, ties, and when a direction is exhausted.

The score of a candidate is (1 - theta) log r^2 + theta q, where r is what remains of its unit
vector outside the span of the rows chosen so far. Quality stays out of the linear algebra, so
nothing overflows, and rank is decided on r^2 alone, whatever the qualities are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import Float64Array
from adcs.dpp.kernel import FLOAT64_PRECISION, quality_precision

Number = TypeVar("Number", float, Float64Array)
EPS = FLOAT64_PRECISION
NOT = -np.inf  # the score of a row that is not in the race
LOWEST = -float(np.finfo(np.float64).max)  # the score of a row that is


def precision(array: ArrayLike) -> float:
    """Return the relative rounding of the numbers in array as they are computed with.

    >>> precision(np.zeros(2, dtype=np.float32))
    1.1920928955078125e-07
    """
    dtype = getattr(array, "dtype", None)
    if dtype is None or dtype.kind != "f":
        return EPS
    return max(EPS, float(np.finfo(dtype).eps))  # what is finer is computed with in float64


@dataclass(frozen=True)
class Scoring:
    """Scores of candidates and the tolerances that go with them.

    Attributes
    ----------
    theta
        Weight of quality against diversity.
    floor
        A squared residual of at most this counts as zero: the row adds no direction.
    blur
        Rounding of a squared residual, whatever its size.
    tilt
        Rounding of the unit vectors themselves; it moves r^2 by 2 * tilt * r * sqrt(1 - r^2).
    quality_blur
        Rounding of a quality, relative to it.

    Examples
    --------
    >>> scoring = Scoring.of_features(np.eye(2), None, theta=0.0)
    >>> scoring.gains(np.log([1.0, 0.25]), np.zeros(2)).round(3)
    array([ 0.   , -1.386])
    """

    theta: float
    floor: float
    blur: float
    tilt: float
    quality_blur: float

    @classmethod
    def of_kernel(
        cls, similarity: ArrayLike, quality: ArrayLike | None, *, theta: float
    ) -> Scoring:
        """Return the scoring for a given kernel: rounded entries blur r^2 itself."""
        eps = precision(similarity)
        blur = 256 * EPS + (8 * eps if eps > EPS else 0.0)
        return cls(theta, 64 * eps, blur, 0.0, 2 * quality_precision(quality))

    @classmethod
    def of_features(
        cls, features: ArrayLike, quality: ArrayLike | None, *, theta: float
    ) -> Scoring:
        """Return the scoring for given rows: rounded entries tilt the rows, which is far less."""
        eps = precision(features)
        floor = max(64 * EPS, (64 * eps) ** 2)
        tilt = eps if eps > EPS else 0.0
        return cls(theta, floor, 256 * EPS, tilt, 2 * quality_precision(quality))

    def doubtful(self, smallest: float) -> float:
        """Return the r^2 below which rounding may be all there is, and a second look is due.

        Smallest is the least r^2 among the picks so far: small ones magnify rounding.
        """
        return 2.0**20 * self.floor / smallest

    def significant(self, square: float, coefficients: Float64Array) -> bool:
        """Say whether r^2, computed from a kernel, is more than rounding.

        The row minus its combination of the chosen ones is what r^2 is the squared length of, and
        large coefficients in that combination magnify the rounding of the kernel's entries.
        """
        magnified = (1.0 + float(np.abs(coefficients).sum())) ** 2
        return square > self.floor * max(1.0, magnified / 16.0)

    def weigh(self, quality: Float64Array) -> Float64Array:
        """Return theta * q, the part of a score that never changes."""
        return self.theta * quality if self.theta > 0.0 else np.zeros_like(quality)

    def score(
        self, squares: Float64Array, weight: Float64Array, out: Float64Array | None = None
    ) -> Float64Array:
        """Return scores for squared residuals and weights theta * q.

        A weight of -inf keeps a row out. At theta = 0 the score is r^2 itself, which orders the
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

    def one(self, square: float, weight: float) -> float:
        """Return the score of a single row."""
        if self.theta == 0.0:
            return square + weight
        return weight if self.theta == 1.0 else (1.0 - self.theta) * math.log(square) + weight

    def tolerance(self, square: Number, weight: Number) -> Number:
        """Return how far below a score another one may lie and still count as equal."""
        if self.theta == 1.0:
            return self.quality_blur * abs(weight)
        noise = self.blur + 0.0 * square
        if self.tilt:
            noise += self.tilt * (2.0 * (square * abs(1.0 - square)) ** 0.5 + self.tilt)
        if self.theta == 0.0:
            return noise
        return (1.0 - self.theta) * noise / square + self.quality_blur * abs(weight)

    def gains(self, log_squares: Float64Array, quality: Float64Array) -> Float64Array:
        """Return what picks add to the objective, given log r^2, which may be -inf."""
        if self.theta == 1.0:
            return quality
        return (1.0 - self.theta) * log_squares + self.weigh(quality)
