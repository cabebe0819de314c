"""FedCS: as many clients as fit into the deadline (Nishio and Yonetani, ICC 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs._validation import check_int, check_number
from adcs.schedulers.base import Cohort, Scheduler, Source


class FedCS(Scheduler):
    """Random candidates, as many of them as can download, compute and upload in time.

    A cohort has at most m clients, and none if nobody fits.

    Parameters
    ----------
    deadline
        Seconds of a round, > 0.
    candidates
        How many clients are drawn at random to choose from, >= 1; None draws m.
    download_share
        From 0 to 1: the share of a client's communication time that is download.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    Clients download at the same time and upload one after the other. With u a client's time to
    compute, l that to upload, D(S) the slowest download of a set, and Theta the time at which the
    uploads of S end after the downloads, the next client is

        argmin D(S + k) - D(S) + l_k + max(0, u_k - Theta)

    Theta grows by l_k + max(0, u_k - Theta), and k is kept if D(S + k) + Theta is at most the
    deadline, else dropped. This is repeated until no candidate is left.

    Reading
    -------
    The candidates, m at random, are the paper's resource request. A required client is taken first,
    whether or not it fits. Clients of unknown time are left out; if no candidate's time is known,
    all candidates are taken, so that they report it.

    References
    ----------
    Nishio, Yonetani: Client selection for federated learning with heterogeneous resources in mobile
    edge. ICC 2019.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = FedCS(deadline=10.0)
    >>> times = {1: (4, 2), 2: (2, 3), 3: (9, 2)}
    >>> facts = [
    ...     ClientReport(c, 0, compute_seconds=u, communication_seconds=t)
    ...     for c, (u, t) in times.items()
    ... ]
    >>> scheduler.observe(0, facts, "enrolment")
    >>> scheduler.select(0, [1, 2, 3], 3).clients
    (2, 1)
    """

    family = "time"
    fixed_size = False
    observed_sources = frozenset[Source]({"enrolment", "training"})
    training_signals = frozenset[str]()
    needed_signals = frozenset({"compute_seconds", "communication_seconds"})

    def __init__(
        self,
        *,
        deadline: float = 180.0,
        candidates: int | None = None,
        download_share: float = 0.5,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.deadline = check_number("deadline", deadline, above=0)
        if candidates is not None:
            candidates = check_int("candidates", candidates, minimum=1)
        self.candidates = candidates
        self.download_share = check_number("download_share", download_share, minimum=0, maximum=1)

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Draw candidates, and keep those that fit."""
        rng = self.rng(server_round)
        count = m if self.candidates is None else self.candidates
        drawn = np.sort(rng.permutation(len(clients))[:count])
        builder = self.constraints.builder(clients, m, self.pending)
        candidates = [clients[i] for i in drawn]
        candidates += [client for client in builder.required if client not in set(candidates)]
        compute = self.reports.last_values("compute_seconds", candidates)
        traffic = self.reports.last_values("communication_seconds", candidates)
        known = np.flatnonzero(~np.isnan(compute) & ~np.isnan(traffic))
        chosen = builder.fill(builder.required)
        if known.size == 0:
            chosen += builder.fill(candidates)
            return Cohort.of(chosen, seconds=None)
        down = self.download_share * traffic
        order, seconds = fit_deadline(
            compute[known],
            traffic[known] - down[known],
            down[known],
            self.deadline,
            first=[i for i, row in enumerate(known) if candidates[row] in set(chosen)],
        )
        chosen += builder.fill(candidates[known[i]] for i in order)
        return Cohort.of(chosen, seconds=seconds)


def fit_deadline(
    compute: Float64Array,
    upload: Float64Array,
    download: Float64Array,
    deadline: float,
    first: Any = (),
) -> tuple[list[int], float]:
    """Return rows that fit into the deadline, in the order of the greedy, and when they end.

    Parameters
    ----------
    compute, upload, download
        Seconds of each row.
    deadline
        Seconds of the round.
    first
        Rows that are taken first, whether or not they fit.

    Examples
    --------
    >>> u, l, d = np.array([4.0, 2.0, 9.0]), np.array([1.0, 2.0, 1.0]), np.ones(3)
    >>> fit_deadline(u, l, d, deadline=10.0)
    ([1, 0], 6.0)
    """
    slowest = elapsed = 0.0
    chosen: list[int] = []
    free = np.ones(compute.size, dtype=bool)
    for row in first:
        slowest = max(slowest, float(download[row]))
        elapsed += float(upload[row]) + max(0.0, float(compute[row]) - elapsed)
        free[row] = False
        chosen.append(int(row))
    while free.any():
        added = upload + np.maximum(0.0, compute - elapsed)
        cost = np.maximum(download - slowest, 0.0) + added
        row = int(np.argmin(np.where(free, cost, np.inf)))
        free[row] = False
        wait = max(slowest, float(download[row]))
        if wait + elapsed + float(added[row]) <= deadline:
            slowest, elapsed = wait, elapsed + float(added[row])
            chosen.append(row)
    return chosen, slowest + elapsed
