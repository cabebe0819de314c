"""What a scheduler asks of clients, and what that costs, found by running it on made-up answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adcs._types import ClientId
from adcs.reports.report import FACTS, NUMBER_BYTES, SIGNALS, Signal
from adcs.reports.sketch import Sketcher
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Request, Scheduler

MEASURED_CLIENTS = 200
"""At more clients, the requests of this many are counted and scaled."""

_WIDTH = 8  # numbers in a made-up update


@dataclass(frozen=True)
class SchedulerCosts:
    """What a scheduler asks for, and its cost in a round beyond the training of the cohort.

    Attributes
    ----------
    with_training
        Signals that it reads of training replies.
    probed
        Signals that it asks for in probes.
    facts
        Facts that it needs clients to add to any reply.
    evaluations, updates
        Evaluations of the loss, and updates that are computed and not trained on.
    bytes_down, bytes_up
        Traffic of probes, and of signals that come with training replies.

    Examples
    --------
    >>> from adcs import PowerOfChoice
    >>> costs = scheduler_costs(PowerOfChoice(), clients=50, m=5, size=1000)
    >>> costs.probed, costs.evaluations, costs.bytes_up
    (('loss',), 50.0, 200.0)
    """

    with_training: tuple[str, ...]
    probed: tuple[str, ...]
    facts: tuple[str, ...]
    evaluations: float
    updates: float
    bytes_down: float
    bytes_up: float


def scheduler_costs(
    scheduler: Scheduler,
    clients: int = 100,
    m: int = 10,
    size: int = 7850,
    *,
    classes: int = 10,
    rounds: int = 100,
) -> SchedulerCosts:
    """Return what a new scheduler asks for and what that costs in a round, on average.

    Clients are always available, and their answers are made up.

    Parameters
    ----------
    scheduler
        The scheduler; it is used up.
    clients, m, size
        N, m and d: the numbers of clients, of clients in a cohort, and of model parameters.
    classes
        The number of classes, for label histograms.
    rounds
        How many rounds are run.
    """
    n = min(clients, MEASURED_CLIENTS)
    cohort_size = max(1, round(m * n / clients))
    rng = np.random.default_rng(0)
    everyone: tuple[ClientId, ...] = tuple(range(n))
    scheduler.observe(0, _facts(everyone, rng), "enrolment")
    model_bytes, probed = NUMBER_BYTES * size, set[str]()
    evaluations = updates = down = up = 0.0
    runs = rounds if type(scheduler)._request is not Scheduler._request else 0
    for server_round in range(runs):
        request = scheduler.request(server_round, everyone, cohort_size)
        answers = _answers(request, server_round, classes, rng)
        scheduler.observe(server_round, answers, "probe")
        cohort = scheduler.select(server_round, everyone, cohort_size)
        replies = Request(cohort.clients, scheduler.training_signals, scheduler.sketch)
        scheduler.observe(server_round, _answers(replies, server_round, classes, rng), "training")
        probed |= request.signals if request.clients else set()
        signals = [SIGNALS[name] for name in request.signals]
        work = {signal.work for signal in signals}
        asked = len(request.clients)
        up += asked * sum(_bytes(signal, size, classes, request.sketch) for signal in signals)
        down += asked * model_bytes * bool(work - {"none"})
        evaluations += asked * ("update" not in work and "evaluation" in work)
        # A client that is probed and then trains downloads the model once.
        trained = len(set(request.clients) & set(cohort.clients))
        down -= trained * model_bytes * bool(work - {"none"})
        if "update" in work:
            updates += asked - trained
            if "update" in request.signals and request.sketch is None:
                up -= trained * model_bytes
    scale = clients / n / max(runs, 1)
    reads = "training" in scheduler.observed_sources
    with_training = sorted(scheduler.training_signals) if reads else []
    # The server takes these from the trained model.
    added = [SIGNALS[name] for name in with_training if SIGNALS[name].work != "update"]
    facts = [n for n in scheduler.needed_signals if n in FACTS and not SIGNALS[n].requestable]
    return SchedulerCosts(
        with_training=tuple(with_training),
        probed=tuple(sorted(probed)),
        facts=tuple(sorted(facts)),
        evaluations=evaluations * scale,
        updates=updates * scale,
        bytes_down=down * scale,
        bytes_up=up * scale + m * sum(_bytes(signal, size, classes, None) for signal in added),
    )


def _bytes(signal: Signal, size: int, classes: int, sketch: Sketcher | None) -> int:
    return signal.wire_bytes(NUMBER_BYTES * size, sketch, classes)


def _facts(clients: tuple[ClientId, ...], rng: np.random.Generator) -> ReportTable:
    n = len(clients)
    return ReportTable(
        clients,
        0,
        examples=rng.integers(10, 100, n),
        compute_seconds=rng.uniform(0.1, 2.0, n),
        communication_seconds=rng.uniform(0.1, 2.0, n),
    )


def _answers(
    request: Request, server_round: int, classes: int, rng: np.random.Generator
) -> ReportTable:
    """Return made-up answers to a request, by the declarations of its signals."""
    n = len(request.clients)
    columns: dict[str, Any] = {}
    for name in sorted(request.signals) if n else ():
        signal = SIGNALS[name]
        if signal.kind == "vector":
            rows = rng.standard_normal((n, _WIDTH))
            if request.sketch is None:
                columns[name] = rows
            else:
                columns["sketch"] = [request.sketch.sketch(row) for row in rows]
        elif signal.kind == "per_class":
            columns[name] = rng.uniform(0.0, 9.0, (n, classes))
        else:
            columns[name] = rng.uniform(0.1, min(2.0, signal.maximum), n)
    return ReportTable(request.clients, server_round, **columns)
