"""A concave relaxation of the search for the best set, and the upper bound that it gives.

For x in [0, 1]^N with sum x = m and X = diag(x), let

    phi(x) = (1/2) log det(gamma C X C + I - X) - (m/2) log gamma.

It is concave in x, and at the indicator of a set S it is log det C_S, for any gamma > 0: the Schur
complement of gamma C_S C_S in the matrix is the identity (K. M. Anstreicher, "Efficient solution of
maximum-entropy sampling problems", Operations Research 68, 2020). Hence the maximum of
(1 - theta) phi(x) + theta q x over fractional x is at least that over sets. A concave function lies
under its tangents, so every x visited on the way gives a valid bound, at the vertex where the
tangent is largest: nothing has to converge.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar

from adcs._types import Float64Array
from adcs.dpp.kernel import combine, log_det

_STEPS = 30
_CONDITION = 1e-9  # smallest to largest eigenvalue from which an inverse is trusted


def relaxed_optimum(similarity: Float64Array, m: int, quality: Float64Array, theta: float) -> float:
    """Return an upper bound on (1 - theta) log det C_S + theta sum q over sets of m rows.

    By Frank-Wolfe from the uniform x, at the gamma that short runs find best. theta must be below
    1.

    >>> c = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> round(relaxed_optimum(c, 2, np.zeros(3), 0.0), 1)
    0.0
    """
    if m == quality.size:  # one set only
        everyone = np.arange(m)
        return combine(log_det(similarity, everyone), float(quality.sum()), theta)
    problem = _Problem(similarity, m, quality, theta)
    # The bound is convex in log gamma (Anstreicher 2020).
    search = minimize_scalar(
        lambda t: problem.bound(math.exp(t), steps=6),
        bounds=(-3.0, 8.0),
        method="bounded",
        options={"maxiter": 8},
    )
    return min(float(search.fun), problem.bound(math.exp(float(search.x)), steps=_STEPS))


class _Problem:
    def __init__(self, c: Float64Array, m: int, q: Float64Array, theta: float) -> None:
        self.c, self.m, self.q, self.theta = c, m, q, theta

    def bound(self, gamma: float, steps: int) -> float:
        """Return the least of the tangents' maxima at the points that Frank-Wolfe visits."""
        n = self.q.size
        x = np.full(n, self.m / n)
        best = math.inf
        for _ in range(steps):
            values, vectors = np.linalg.eigh(self._matrix(gamma, x))
            if values[0] < _CONDITION * values[-1]:
                break
            value = self._objective(float(np.log(values).sum()), gamma, x)
            slope = self._slope((vectors / values) @ vectors.T, gamma)
            vertex = np.zeros(n)
            vertex[np.argsort(slope)[n - self.m :]] = 1.0
            best = min(best, value + float(slope @ (vertex - x)))
            step = minimize_scalar(
                lambda t, at=x, d=vertex - x: -self._value(gamma, at + t * d),
                bounds=(0.0, 1.0),
                method="bounded",
                options={"xatol": 1e-3, "maxiter": 8},
            ).x
            x = x + step * (vertex - x)
        return best

    def _value(self, gamma: float, x: Float64Array) -> float:
        return self._objective(float(np.linalg.slogdet(self._matrix(gamma, x))[1]), gamma, x)

    def _objective(self, log_det: float, gamma: float, x: Float64Array) -> float:
        phi = 0.5 * (log_det - self.m * math.log(gamma))
        return (1.0 - self.theta) * phi + self.theta * float(self.q @ x)

    def _slope(self, inverse: Float64Array, gamma: float) -> Float64Array:
        own = np.einsum("ij,ji->i", self.c @ inverse, self.c)
        phi = 0.5 * (gamma * own - inverse.diagonal())
        total: Float64Array = (1.0 - self.theta) * phi + self.theta * self.q
        return total

    def _matrix(self, gamma: float, x: Float64Array) -> Float64Array:
        matrix: Float64Array = gamma * (self.c * x) @ self.c + np.diag(1.0 - x)
        return matrix
