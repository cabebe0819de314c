"""Work in flight of a run: how it starts, what of it is held, and how a buffer is aggregated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adcs._types import FloatArray, IndexArray
from adcs.reports.report import ClientReport, with_plain_types
from adcs.reports.table import ReportTable
from adcs.rounds import Buffered
from adcs.simulation.aggregation import Aggregation, check_aggregate
from adcs.simulation.costs import RoundCosts
from adcs.simulation.in_flight import Job, give_up_after, wait_limits
from adcs.simulation.local_rounds import LocalRound
from adcs.simulation.network import Network
from adcs.simulation.run import Run


def start_jobs(run: Run, network: Network, costs: RoundCosts, server_round: int) -> IndexArray:
    """Let the selected clients of a run begin to train; return those whose reply will arrive.

    The clock of the run is the seconds of its ledger. Clients are charged what they receive.
    """
    assert run.in_flight is not None
    clients, flight, now = run.selected, run.in_flight, run.ledger.seconds
    seconds = costs.training_seconds(clients)
    fails = network.fails(server_round, clients)
    limits = wait_limits(network.settings.deadline, flight.deadlines["training"], clients)
    gives_up = give_up_after(seconds, limits, fails)
    for i, (bytes_up, is_charged) in enumerate(costs.send(clients)):
        flight.jobs.append(
            Job(
                client=int(clients[i]),
                server_round=server_round,
                arrives=math.inf if fails[i] else now + float(seconds[i]),
                gives_up=now + float(gives_up[i]),
                seconds=None if is_charged else float(seconds[i]),
                bytes_up=bytes_up,
                is_charged=is_charged,
                weight=float(run.cohort_weights[i]),
            )
        )
    arriving: IndexArray = clients[~fails]
    return arriving


def hold_reports(jobs: Sequence[Job], reports: ReportTable) -> None:
    """Keep the report of each job until its reply arrives; arrays may be buffers and are copied."""
    for job, report in zip(jobs, reports, strict=True):
        job.report = with_plain_types(report)
        if isinstance(report.update, np.ndarray):
            held = np.array(report.update) if job.update is None else job.update
            job.report = replace(job.report, update=held)


def hold_updates(jobs: Sequence[Job], local: LocalRound, index: int) -> None:
    """Keep the update of each job, and the model's statistics after it, until it is aggregated."""
    if not jobs:
        return
    clients = np.array([job.client for job in jobs], dtype=np.intp)
    statistics = local.buffers(index, clients)
    for job, row, after in zip(jobs, local.updates(index, clients), statistics, strict=True):
        job.update = np.array(row)
        job.statistics = np.array(after)


def aggregate_buffer(
    jobs: Sequence[Job],
    mode: Buffered,
    rule: Aggregation,
    server_round: int,
    statistics: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the aggregated update of the replies in a buffer, and the new statistics.

    Each update is scaled by the discount of its staleness, so that old replies make the step
    shorter; statistics move by as much towards those of the reply.

    Parameters
    ----------
    jobs
        The replies; at least one.
    mode
        The buffered mode, with its discounts.
    rule
        How updates are aggregated.
    server_round
        The version of the model.
    statistics
        The model's statistics now; empty if it has none.

    Examples
    --------
    >>> from adcs.simulation import Mean
    >>> jobs = [Job(c, c, 1.0, 9.0, 1.0, 0, False, 0.5) for c in (0, 3)]
    >>> for job in jobs:
    ...     job.update, job.statistics = np.array([4.0]), np.empty(0)
    >>> aggregate_buffer(jobs, Buffered(2, 2), Mean(), 3, np.empty(0))[0]
    array([3.])
    """
    weights = np.array([job.weight for job in jobs])
    shares = weights / weights.sum()
    stale = [server_round - job.server_round for job in jobs]
    discounts = np.array([mode.discount(age) for age in stale])
    updates = np.stack([job.update for job in jobs if job.update is not None])
    updates *= discounts[:, None].astype(updates.dtype)
    total = check_aggregate(rule.aggregate(updates, shares), updates.shape[1])
    after = np.stack([job.statistics for job in jobs if job.statistics is not None])
    moved = (shares * discounts).astype(statistics.dtype) @ (after - statistics)
    return total, statistics + moved


def reports_of(jobs: Sequence[Job]) -> list[ClientReport]:
    """Return the reports that jobs hold."""
    return [job.report for job in jobs if job.report is not None]
