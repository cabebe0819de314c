"""Seeded draws that several schedulers share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adcs._types import ClientId, Float64Array, IndexArray
from adcs.reports.store import ReportStore
from adcs.schedulers.base import Cohort, Scheduler


def example_counts(known: ReportStore, clients: Sequence[ClientId]) -> Float64Array:
    """Return each client's number of examples; the mean of the others for one that told none."""
    told = [known[client].examples if client in known else None for client in clients]
    given = [size for size in told if size is not None and size > 0]
    mean = sum(given) / len(given) if given else 1.0
    return np.array([mean if size is None else float(size) for size in told])


def weighted_permutation(rng: np.random.Generator, weights: Float64Array) -> IndexArray:
    """Return all indices in the order of draws without replacement, proportional to weights.

    An exponential race: the fastest of clocks with these rates comes first. Weights of zero come
    last, in random order.

    >>> weighted_permutation(np.random.default_rng(0), np.array([0.0, 1.0, 0.0]))[0].item()
    1
    """
    times = rng.exponential(size=weights.size)
    with np.errstate(divide="ignore"):
        finish = np.where(weights > 0.0, times / weights, np.inf)
    return np.lexsort((times, finish))


def stochastic_round(value: float, rng: np.random.Generator) -> int:
    """Return one of the two whole numbers around value, equal to it in expectation."""
    whole = math.floor(value)
    return whole + int(rng.random() < value - whole)


def bernoulli_cohort(
    scheduler: Scheduler, server_round: int, clients: tuple[ClientId, ...], p: Float64Array
) -> Cohort:
    """Return each client with its own probability p, weighted by 1/p; required ones surely."""
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
    """Raise if a scheduler that includes clients independently was given caps."""
    if scheduler.constraints.caps is not None:
        raise ValueError("caps cannot be kept when clients are included independently")
