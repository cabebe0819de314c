"""Seeded draws that several schedulers share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adcs.dpp.kernel import Float64Array, IndexArray
from adcs.schedulers.base import Cohort, Scheduler
from adcs.signals.book import ReportBook
from adcs.signals.report import ClientId


def sizes(known: ReportBook, clients: Sequence[ClientId]) -> Float64Array:
    """Return each client's number of examples; the mean of the others for one that told none."""
    told = [known[client].examples if client in known else None for client in clients]
    given = [size for size in told if size is not None and size > 0]
    mean = sum(given) / len(given) if given else 1.0
    return np.array([mean if size is None else float(size) for size in told])


def race(rng: np.random.Generator, weights: Float64Array) -> IndexArray:
    """Return all indices in the order of draws without replacement, proportional to weights.

    An exponential race: the fastest of clocks with these rates comes first. Weights of zero come
    last, in random order.

    >>> race(np.random.default_rng(0), np.array([0.0, 1.0, 0.0]))[0].item()
    1
    """
    times = rng.exponential(size=weights.size)
    with np.errstate(divide="ignore"):
        finish = np.where(weights > 0.0, times / weights, np.inf)
    return np.lexsort((times, finish))


def round_at_random(value: float, rng: np.random.Generator) -> int:
    """Return one of the two whole numbers around value, equal to it in expectation."""
    whole = math.floor(value)
    return whole + int(rng.random() < value - whole)


def include(
    scheduler: Scheduler, round: int, clients: tuple[ClientId, ...], p: Float64Array
) -> Cohort:
    """Return each client with its own probability p, weighted by 1/p; required ones surely."""
    required = set(scheduler.rules.required)
    p = np.where([client in required for client in clients], 1.0, p)
    chosen = np.flatnonzero(scheduler.rng(round).random(len(clients)) < p)
    return Cohort(
        clients=tuple(clients[i] for i in chosen),
        weights=tuple(float(1.0 / p[i]) for i in chosen),
        normalise=False,
        diagnostics={"expected_size": float(p.sum())},
    )


def refuse_caps(scheduler: Scheduler) -> None:
    """Raise if a scheduler that includes clients independently was given caps."""
    if scheduler.rules.caps is not None:
        raise ValueError("caps cannot be kept when clients are included independently")
