"""Random sampling that several schedulers share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adcs._types import ClientId, Float64Array, IndexArray
from adcs.reports.store import ReportStore
from adcs.schedulers.base import Cohort, Scheduler


def example_counts(reports: ReportStore, clients: Sequence[ClientId]) -> Float64Array:
    """Return each client's number of examples; the mean of the others where it is not reported.

    >>> from adcs.reports import ClientReport
    >>> reports = ReportStore()
    >>> refused = reports.record([ClientReport(1, 0, examples=10), ClientReport(2, 0, examples=30)])
    >>> example_counts(reports, [1, 2, 3])
    array([10., 30., 20.])
    """
    counts = [reports[c].examples if c in reports else None for c in clients]
    reported = [count for count in counts if count is not None and count > 0]
    mean = sum(reported) / len(reported) if reported else 1.0
    return np.array([mean if count is None else float(count) for count in counts])


def weighted_permutation(rng: np.random.Generator, weights: Float64Array) -> IndexArray:
    """Return all indices in the order of draws without replacement, proportional to weights.

    Each index gets an exponential time with its weight as rate, and the times are sorted. Weights
    of zero come last, in random order.

    >>> weighted_permutation(np.random.default_rng(0), np.array([0.0, 1.0, 0.0]))[0].item()
    1
    """
    times = rng.exponential(size=weights.size)
    with np.errstate(divide="ignore"):
        finish = np.where(weights > 0.0, times / weights, np.inf)
    return np.lexsort((times, finish))


def stochastic_round(value: float, rng: np.random.Generator) -> int:
    """Return one of the two whole numbers around value, equal to it in expectation.

    >>> stochastic_round(2.0, np.random.default_rng(0))
    2
    """
    whole = math.floor(value)
    return whole + int(rng.random() < value - whole)


def bernoulli_cohort(
    scheduler: Scheduler, server_round: int, clients: tuple[ClientId, ...], p: Float64Array
) -> Cohort:
    """Include each client independently with probability p and weight 1/p.

    Required clients are included with probability one.

    >>> from adcs import Uniform
    >>> bernoulli_cohort(Uniform(), 0, ("a", "b"), np.array([1.0, 0.0])).clients
    ('a',)
    """
    required = set(scheduler.constraints.required)
    p = np.where([client in required for client in clients], 1.0, p)
    chosen = np.flatnonzero(scheduler.rng(server_round).random(len(clients)) < p)
    return Cohort(
        clients=tuple(clients[i] for i in chosen),
        weights=tuple(float(1.0 / p[i]) for i in chosen),
        normalise=False,
        diagnostics={"expected_size": float(p.sum())},
    )


def refuse_caps(scheduler: Scheduler) -> None:
    """Raise if a scheduler that includes clients independently was given caps.

    >>> from adcs import Uniform
    >>> refuse_caps(Uniform())
    """
    if scheduler.constraints.caps is not None:
        raise ValueError("caps cannot be kept when clients are included independently")
