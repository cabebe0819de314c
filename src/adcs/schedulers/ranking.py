"""Ranking of clients by one number that they reported in this round."""

from __future__ import annotations

from adcs._types import ClientId
from adcs.dpp.tolerances import descending
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
    values, order = numbers.tolist(), descending(numbers)
    if len(reported) == len(clients) and not scheduler.constraints:
        pairs = [[reported[i], values[i]] for i in order[:m]]
        return Cohort.of([client for client, _ in pairs], scores=pairs, drawn=[])
    scores = dict(zip(reported, values, strict=True))
    ranked = [reported[i] for i in order]
    others = [client for client in clients if client not in scores]
    if (others and len(ranked) < m) or scheduler.constraints:
        others = [others[i] for i in scheduler.rng(server_round).permutation(len(others))]
    chosen = scheduler.take([*ranked, *others], m)
    return Cohort.of(
        chosen,
        scores=[[client, scores[client]] for client in chosen if client in scores],
        drawn=[client for client in chosen if client not in scores],
    )
