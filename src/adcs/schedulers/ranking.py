"""What schedulers that rank clients by one fresh number have in common."""

from __future__ import annotations

from adcs._types import ClientId
from adcs.dpp.tolerances import descending
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
