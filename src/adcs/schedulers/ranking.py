"""Ranking of clients by one number that they reported in this round."""

from __future__ import annotations

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs.dpp.kernel import FLOAT32_PRECISION, quality_precision
from adcs.reports.quality import tie_groups
from adcs.schedulers.base import Cohort, Scheduler


def ranked_cohort(
    scheduler: Scheduler, server_round: int, clients: tuple[ClientId, ...], m: int, number: str
) -> Cohort:
    """Return the m clients with the largest numbers reported this round.

    If fewer than m clients have reported, others are drawn at random. Numbers that differ by
    rounding only tie, and ties go to the smaller client id.

    >>> from adcs import ClientReport, PowerOfChoice
    >>> scheduler = PowerOfChoice()
    >>> scheduler.observe(0, [ClientReport(c, 0, loss=c / 10) for c in (1, 2, 3)], "probe")
    >>> ranked_cohort(scheduler, 0, (1, 2, 3), 2, "loss").clients
    (3, 2)
    """
    reported, numbers = scheduler.reports.fresh_values(number, server_round, clients)
    scores = dict(zip(reported, numbers.tolist(), strict=True))
    ranked = [reported[i] for i in descending(numbers)]
    others = [client for client in clients if client not in scores]
    if (others and len(ranked) < m) or scheduler.constraints:
        others = [others[i] for i in scheduler.rng(server_round).permutation(len(others))]
    chosen = scheduler.take([*ranked, *others], m)
    return Cohort.of(
        chosen,
        scores=[[client, scores[client]] for client in chosen if client in scores],
        drawn=[client for client in chosen if client not in scores],
    )


def descending(values: Float64Array) -> list[int]:
    """Return indices by falling value; values equal up to rounding stay in their order.

    >>> descending(np.array([1.0, 3.0, 1.0 + 1e-16, 2.0]))
    [1, 3, 0, 2]
    """
    order = (-values).argsort(kind="stable")
    falling = values[order]
    gaps, near = falling[:-1] - falling[1:], 8.0 * np.abs(falling[:-1])
    # Values that differ in float32 differ; mostly the precision need not be found out.
    if not (gaps > FLOAT32_PRECISION * near).all():
        tied = tie_groups(falling, 8.0 * quality_precision(values))
        order = order[np.lexsort((order, tied))]
    ranked: list[int] = order.tolist()
    return ranked
