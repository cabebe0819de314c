"""Theorem 2: a bound on the gradient norm under biased selection, and its inverse functions.

With eta = E eta_l <= 1/(8 L), after T rounds of E local steps each,

    (1/T) sum_t E||grad f(w_t)||^2  <=  4 (f(w_0) - f*) / (eta T)            optimisation
                                      + 5 epsilon^2                         bias
                                      + 16 L eta (nu_sel + sigma^2/(m E))   variance
                                      + (5/6) L^2 eta_l^2 G^2 (E-1)(2E-1)   drift.

As a function of eta this is A/eta + B eta + C eta^2 + D: convex, with one best step size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from scipy.optimize import brentq


@dataclass(frozen=True)
class Constants:
    """The constants of the problem and of the selection in Theorem 2.

    Attributes
    ----------
    gap
        f(w_0) - f*, or an upper bound on it.
    smoothness
        L: every f_i is L-smooth.
    m
        Cohort size. For cohorts whose weights a differ, 1 / sum a_i^2.
    epsilon
        Bound on the selection bias ||E[g_t | F_t] - grad f(w_t)||.
    selection_variance
        nu_sel, bound on the variance of g_t over the selection's own randomness; 0 for ADCS.
    sigma
        sigma^2 bounds the variance of a client's stochastic gradient.
    second_moment
        G: G^2 bounds the mean squared norm of a client's stochastic gradient. It matters only
        if a round has several local steps.

    Examples
    --------
    >>> Constants(gap=2.3, smoothness=10.0, m=18, epsilon=0.05, sigma=1.0).max_lr(steps=1)
    0.0125
    """

    gap: float
    smoothness: float
    m: float
    epsilon: float = 0.0
    selection_variance: float = 0.0
    sigma: float = 0.0
    second_moment: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{item.name} must be finite and not negative, got {value}")
        if self.smoothness == 0.0 or self.m == 0.0:
            raise ValueError("smoothness and m must be positive")

    def max_lr(self, steps: int) -> float:
        """Return the largest local learning rate that Theorem 2 allows: 1 / (8 L E)."""
        return 1.0 / (8.0 * self.smoothness * _steps(steps))


@dataclass(frozen=True)
class ConvergenceBound:
    """The four terms of Theorem 2.

    Examples
    --------
    >>> ConvergenceBound(optimisation=0.5, bias=0.25, variance=0.125, drift=0.0).total
    0.875
    """

    optimisation: float
    bias: float
    variance: float
    drift: float

    @property
    def total(self) -> float:
        """The bound on the average squared gradient norm."""
        return self.optimisation + self.bias + self.variance + self.drift


def convergence_bound(
    constants: Constants, *, lr: float, rounds: int, steps: int = 1
) -> ConvergenceBound:
    """Return Theorem 2's bound on the average of ||grad f(w_t)||^2 over rounds 0 .. T-1.

    Parameters
    ----------
    constants
        The constants of the problem.
    lr
        eta_l, the learning rate of local steps; the new model is the mean of local models.
    rounds
        T.
    steps
        E, local steps in a round.

    Raises
    ------
    ValueError
        If eta = E lr exceeds 1 / (8 L): the theorem does not apply then.

    Examples
    --------
    >>> constants = Constants(gap=2.0, smoothness=1.0, m=10, epsilon=0.1, sigma=1.0)
    >>> bound = convergence_bound(constants, lr=0.1, rounds=1000)
    >>> round(bound.optimisation, 12), round(bound.bias, 12), round(bound.variance, 12)
    (0.08, 0.05, 0.16)
    >>> convergence_bound(constants, lr=0.2, rounds=1000)
    Traceback (most recent call last):
    ...
    ValueError: the round's step size E lr must be at most 1/(8 L) = 0.125, got 0.2
    """
    e, c = _steps(steps), constants
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    eta = e * lr
    limit = 1.0 / (8.0 * c.smoothness)
    if not 0.0 < eta <= limit * (1.0 + 1e-12):
        if eta > 0.0:
            raise ValueError(
                f"the round's step size E lr must be at most 1/(8 L) = {limit:.6g}, got {eta:.6g}"
            )
        raise ValueError(f"lr must be positive, got {lr}")
    return ConvergenceBound(
        optimisation=4.0 * c.gap / (eta * rounds),
        bias=5.0 * c.epsilon**2,
        variance=16.0 * c.smoothness * eta * (c.selection_variance + c.sigma**2 / (c.m * e)),
        drift=5.0 / 6.0 * (c.smoothness * lr * c.second_moment) ** 2 * (e - 1) * (2 * e - 1),
    )


def rounds_for(constants: Constants, target: float, *, lr: float, steps: int = 1) -> int:
    """Return the least T at which the bound is at most the target.

    >>> constants = Constants(gap=2.0, smoothness=1.0, m=10, epsilon=0.1, sigma=1.0)
    >>> rounds_for(constants, 0.25, lr=0.1)
    2000
    >>> rounds_for(constants, 0.2, lr=0.1)
    Traceback (most recent call last):
    ...
    ValueError: at lr = 0.1 no number of rounds brings the bound to 0.2: it stays above 0.21
    """
    once = convergence_bound(constants, lr=lr, rounds=1, steps=steps)
    floor = once.total - once.optimisation
    if not target > floor:
        raise ValueError(
            f"at lr = {lr:g} no number of rounds brings the bound to {target:g}: "
            f"it stays above {floor:.6g}"
        )
    # If the target is met exactly at an integer, rounding must not add a round.
    return max(1, math.ceil(once.optimisation / (target - floor) * (1.0 - 1e-12)))


def best_lr(constants: Constants, *, rounds: int, steps: int = 1) -> float:
    """Return the learning rate at which the bound is least, for a number of rounds.

    >>> constants = Constants(gap=2.0, smoothness=1.0, m=10, epsilon=0.1, sigma=1.0)
    >>> round(best_lr(constants, rounds=1000), 6)
    0.070711
    """
    limit = constants.max_lr(steps)
    if constants.gap == 0.0:
        raise ValueError("with gap = 0 the bound has no best learning rate: smaller is better")

    def slope(lr: float) -> float:
        # lr times the bound's derivative: optimisation goes as 1/lr, variance as lr, drift as lr^2
        at = convergence_bound(constants, lr=lr, rounds=rounds, steps=steps)
        return at.variance + 2.0 * at.drift - at.optimisation

    if slope(limit) <= 0.0:
        return limit
    low = limit
    while slope(low) > 0.0:
        low *= 0.1
    return float(brentq(slope, low, limit, xtol=1e-300, rtol=1e-12))


def lr_for(constants: Constants, target: float, *, rounds: int, steps: int = 1) -> float:
    """Return the largest learning rate at which the bound is at most the target.

    >>> constants = Constants(gap=2.0, smoothness=1.0, m=10, epsilon=0.1, sigma=1.0)
    >>> lr = lr_for(constants, 0.3, rounds=1000)
    >>> round(convergence_bound(constants, lr=lr, rounds=1000).total, 9)
    0.3
    """

    def excess(lr: float) -> float:
        return convergence_bound(constants, lr=lr, rounds=rounds, steps=steps).total - target

    limit = constants.max_lr(steps)
    if excess(limit) <= 0.0:
        return limit
    best = best_lr(constants, rounds=rounds, steps=steps)
    if excess(best) > 0.0:
        raise ValueError(
            f"in {rounds} rounds no learning rate brings the bound to {target:g}: "
            f"the least is {excess(best) + target:.6g}, at lr = {best:.6g}"
        )
    return float(brentq(excess, best, limit, rtol=1e-12))


def _steps(steps: int) -> int:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return steps
