"""What schedulers that rank clients by one fresh number have in common."""

from __future__ import annotations

import numpy as np

from adcs._types import ClientId
from adcs.dpp.kernel import FLOAT32_PRECISION, quality_precision
from adcs.reports.quality import tie_groups
from adcs.schedulers.base import Cohort, Scheduler


def ranked_cohort(
    scheduler: Scheduler, server_round: int, clients: tuple[ClientId, ...], m: int, number: str
) -> Cohort:
    """Return the m clients that told the highest numbers this round, then a seeded draw.

    The draw is among those that told none. Numbers that differ by rounding only tie, and ties go
    to the smaller client id.
    """
    told, numbers = scheduler.reports.fresh_values(number, server_round, clients)
    scores = dict(zip(told, numbers.tolist(), strict=True))
    ranked = [told[i] for i in descending(numbers)]
    silent = [client for client in clients if client not in scores]
    if (silent and len(ranked) < m) or scheduler.constraints:
        silent = [silent[i] for i in scheduler.rng(server_round).permutation(len(silent))]
    chosen = scheduler.take([*ranked, *silent], m)
    return Cohort.of(
        chosen,
        scores=[[client, scores[client]] for client in chosen if client in scores],
        drawn=[client for client in chosen if client not in scores],
    )


def descending(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[int]:
    """Return indices by falling value; values equal up to rounding stay in their order.

    >>> descending(np.array([1.0, 3.0, 1.0 + 1e-16, 2.0]))
    [1, 3, 0, 2]
    """
    order = (-values).argsort(kind="stable")
    falling = values[order]
    gaps, near = falling[:-1] - falling[1:], 8.0 * np.abs(falling[:-1])
    # What differs in float32 differs: most often the question of precision does not arise.
    if not (gaps > FLOAT32_PRECISION * near).all():
        tied = tie_groups(falling, 8.0 * quality_precision(values))
        order = order[np.lexsort((order, tied))]
    ranked: list[int] = order.tolist()
    return ranked
