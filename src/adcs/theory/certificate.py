"""Certificates: upper bounds on the optimum, and the distance of a chosen set from them.

The objective F(S) = (1 - theta) log det C_S + theta sum q is submodular with F(empty) = 0: the gain
of a row only shrinks as the set grows. It is monotone only if no gain is negative, but with
ones on the diagonal every gain of log det is at most zero. So the usual bound, F(S) plus the m
largest remaining gains, does not hold here. These always hold:

singletons   F(T) <= sum over T of F({i}): the m largest theta q_i (Hadamard).
eigenvalues  log det L_T is at most the sum of the m largest log eigenvalues of L = Q C Q
             (interlacing); and the same with C and the m largest q apart.
gains        F(T) <= F(S) + sum_{T less S} F(i | S) - sum_{S less T} F(j | all but j): the remaining
             gains, less the least that the rows of S not in T can be worth. Where F is monotone
             the last sum is not negative and may be dropped, which is the usual bound. Used
             for S the chosen set and for S = all rows.
greedy       (1 - 1/e): see `least_gain`.
relaxation   a concave function on fractional sets that is F on sets ("linx", Anstreicher 2020).

The relaxation. For x in [0, 1]^N with sum x = m and X = diag(x), let

    phi(x) = (1/2) log det(gamma C X C + I - X) - (m/2) log gamma.

It is concave in x, and at the indicator of a set S it is log det C_S, for any gamma > 0: the Schur
complement of gamma C_S C_S in the matrix is the identity (K. M. Anstreicher, "Efficient solution of
maximum-entropy sampling problems", Operations Research 68, 2020). Hence the maximum of
(1 - theta) phi(x) + theta q x over fractional x is at least that over sets. A concave function lies
under its tangents, so every x visited on the way gives a valid bound, at the vertex where the
tangent is largest, and convergence is not needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from adcs._types import Float64Array, IndexArray
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import (
    as_quality,
    as_similarity,
    check_m,
    check_theta,
    combine,
    log_det,
    objective,
)

_ALLOWANCE = 1e-9  # added to a bound, relatively: rounding must not make it too low
_GAINS_CONDITION = 1e7  # condition number up to which gains are computed from an inverse
_RELAXATION_CONDITION = 1e-9  # least ratio of eigenvalues up to which Frank-Wolfe goes on
_STEPS = 30  # of Frank-Wolfe


@dataclass(frozen=True)
class Certificate:
    """The objective of a chosen set, and an upper bound for all sets of its size.

    Attributes
    ----------
    objective
        F(S) of the chosen set.
    upper
        The least of the bounds on the optimum.
    bounds
        Every bound by its name; inf if it does not apply.

    Examples
    --------
    >>> certificate = certify([[1.0, 0.6], [0.6, 1.0]], [0], quality=[2.0, 1.0], theta=0.5)
    >>> print(certificate)
    at most 0 nats from optimal (singletons)
    """

    objective: float
    upper: float
    bounds: dict[str, float]

    @property
    def gap(self) -> float:
        """The largest possible distance from the optimum, in nats."""
        return self.upper - self.objective if self.upper > self.objective else 0.0

    @property
    def tightest(self) -> str:
        """The name of the least bound."""
        return min(self.bounds, key=lambda name: self.bounds[name])

    def __str__(self) -> str:
        return f"at most {self.gap:.3g} nats from optimal ({self.tightest})"


def certify(
    similarity: ArrayLike,
    chosen: ArrayLike,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
) -> Certificate:
    """Bound how far a set of rows is from the best of its size.

    Takes O(N^3) time.

    Parameters
    ----------
    similarity
        The kernel C, ones on its diagonal.
    chosen
        The set, found by any method.
    quality, theta
        As the set was chosen with.

    Examples
    --------
    >>> c = [[1.0, 0.5, 0.7], [0.5, 1.0, 0.0], [0.7, 0.0, 1.0]]
    >>> print(certify(c, [1, 2]))
    at most 0 nats from optimal (singletons)
    >>> print(certify(c, [0, 1]))
    at most 0.288 nats from optimal (singletons)
    """
    theta = check_theta(theta)
    c = as_similarity(similarity)
    n = c.shape[0]
    q = as_quality(quality, n)
    index = np.unique(np.asarray(chosen, dtype=np.intp))
    m = check_m(index.size, n)
    if index.size != np.size(chosen) or index[0] < 0 or index[-1] >= n:
        raise ValueError(f"chosen must be distinct indices between 0 and {n - 1}, got {chosen!r}")
    value = objective(c, index, q, theta)
    bounds = {"singletons": theta * _top(q, m)}
    if theta < 1.0:
        bounds["eigenvalues"] = _eigenvalues(c, q, theta, m)
        bounds["gains"] = min(_gains(c, q, theta, m, index), _gains(c, q, theta, m, np.arange(n)))
        bounds["greedy"] = _greedy(c, q, theta, m)
        bounds["relaxation"] = _relaxed_optimum(c, m, q, theta)
    # Linear algebra is rounded, and a bound must not be too low.
    for name, bound in list(bounds.items())[1:]:
        if math.isfinite(bound):
            bounds[name] = bound + _ALLOWANCE * max(1.0, abs(bound))
    return Certificate(objective=value, upper=min(bounds.values()), bounds=bounds)


def least_gain(
    similarity: ArrayLike, quality: ArrayLike | None = None, theta: float = 0.0
) -> float:
    """Return the least that any row adds to any set; -inf if C is singular and theta < 1.

    The objective is monotone exactly if this is not negative. By submodularity it is reached when
    a row joins all others: it is the least of (1 - theta) log(1 / (C^-1)_ii) + theta q_i. A
    sufficient condition is that L = Q C Q has no eigenvalue below one.

    Greedy's guarantee F(S) >= (1 - 1/e) max F needs a monotone, submodular F with F(empty) = 0.
    Since all sets compared have m rows, F may be shifted: F(S) - g |S| with g = least_gain is
    monotone, has the same best sets and the same greedy picks. So, for the greedy set S,

        max F <= m g + (F(S) - m g) / (1 - 1/e),

    whatever the sign of g. With g = 0 it is the usual statement. If g is very negative, as for
    similar rows, the bound is valid but loose.

    Examples
    --------
    >>> round(least_gain([[1.0, 0.6], [0.6, 1.0]]), 4)
    -0.4463
    >>> round(least_gain([[1.0, 0.6], [0.6, 1.0]], [1.0, 2.0], theta=0.5), 4)
    0.2769
    """
    theta = check_theta(theta)
    c = as_similarity(similarity)
    return float(_last_gains(c, as_quality(quality, c.shape[0]), theta).min())


def _top(values: Float64Array, m: int) -> float:
    return float(np.sort(values)[values.size - m :].sum())


def _eigenvalues(c: Float64Array, q: Float64Array, theta: float, m: int) -> float:
    """Return the least of the eigenvalue bounds on L = Q C Q and on C with q apart."""
    lift = q - q.max()
    scale = np.exp(theta / (2.0 * (1.0 - theta)) * lift)
    both = (1.0 - theta) * _top_logs(scale[:, None] * c * scale[None, :], m) + theta * m * q.max()
    return float(min(both, (1.0 - theta) * _top_logs(c, m) + theta * _top(q, m)))


def _top_logs(kernel: Float64Array, m: int) -> float:
    values = np.linalg.eigvalsh(kernel)
    # Computed eigenvalues have this error, and a bound must not be too low.
    values = np.maximum(values, 0.0) + kernel.shape[0] * np.finfo(np.float64).eps * values[-1]
    return _top(np.log(values), m)


def _gains(c: Float64Array, q: Float64Array, theta: float, m: int, base: IndexArray) -> float:
    """Return the bound from the gains over a base set S, and the last gains of its rows.

    The right-hand side is F(S) less the last gains of all of S, plus one number for each row of T:
    the best T takes the m largest.
    """
    last = _last_gains(c, q, theta)[base]
    if not np.isfinite(last).all():
        return math.inf
    rest = np.setdiff1d(np.arange(q.size), base)
    block = c[np.ix_(base, base)]
    cross = np.linalg.solve(block, c[np.ix_(base, rest)])
    residual = 1.0 - np.einsum("ij,ij->j", c[np.ix_(base, rest)], cross)
    remaining = (1.0 - theta) * np.log(np.maximum(residual, 1e-300)) + theta * q[rest]
    value = objective(c, base, q, theta)
    return value - float(last.sum()) + _top(np.concatenate([remaining, last]), m)


def _last_gains(c: Float64Array, q: Float64Array, theta: float) -> Float64Array:
    """Return F(i | all but i) for every row."""
    if theta == 1.0:
        return q
    values = np.linalg.eigvalsh(c)
    if values[0] < values[-1] / _GAINS_CONDITION:
        return np.full(q.size, -math.inf)
    gains: Float64Array = -(1.0 - theta) * np.log(np.linalg.inv(c).diagonal()) + theta * q
    return gains


def _greedy(c: Float64Array, q: Float64Array, theta: float, m: int) -> float:
    """Return the bound on the optimum that follows from greedy's guarantee."""
    least = float(_last_gains(c, q, theta).min())
    if not math.isfinite(least):
        return math.inf
    reached = greedy_map(c, m, quality=q, theta=theta).objective
    return m * least + (reached - m * least) / (1.0 - math.exp(-1.0))


def _relaxed_optimum(
    similarity: Float64Array, m: int, quality: Float64Array, theta: float
) -> float:
    """Return an upper bound on (1 - theta) log det C_S + theta sum q over sets of m rows.

    By Frank-Wolfe from the uniform x, at the gamma that short runs find best. theta must be below
    1.

    >>> c = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> round(_relaxed_optimum(c, 2, np.zeros(3), 0.0), 1)
    0.0
    """
    if m == quality.size:  # one set only
        everyone = np.arange(m)
        return combine(log_det(similarity, everyone), float(quality.sum()), theta)
    problem = _Relaxation(similarity, m, quality, theta)
    # The bound is convex in log gamma (Anstreicher 2020).
    search = minimize_scalar(
        lambda t: problem.bound(math.exp(t), steps=6),
        bounds=(-3.0, 8.0),
        method="bounded",
        options={"maxiter": 8},
    )
    return min(float(search.fun), problem.bound(math.exp(float(search.x)), steps=_STEPS))


class _Relaxation:
    def __init__(self, c: Float64Array, m: int, q: Float64Array, theta: float) -> None:
        self.c, self.m, self.q, self.theta = c, m, q, theta

    def bound(self, gamma: float, steps: int) -> float:
        """Return the least of the tangents' maxima at the points that Frank-Wolfe visits."""
        n = self.q.size
        x = np.full(n, self.m / n)
        best = math.inf
        for _ in range(steps):
            values, vectors = np.linalg.eigh(self._matrix(gamma, x))
            if values[0] < _RELAXATION_CONDITION * values[-1]:
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
