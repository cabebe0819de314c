"""FedCBS: cohorts whose pooled labels are balanced (Zhang et al., ICML 2023)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs._validation import check_number
from adcs.reports.histogram import label_counts
from adcs.schedulers.base import Cohort
from adcs.schedulers.by_labels import LabelScheduler


class FedCBS(LabelScheduler):
    """Clients drawn one after the other so that the labels of the cohort are balanced.

    Parameters
    ----------
    exploration
        lambda >= 0: the weight of the bonus for clients that were seldom selected.
    floor
        The smallest QCID, > 0: values below it count as equally balanced.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    The imbalance of a set of clients, with B classes and `share` of their pooled examples:

        QCID(S) = sum over classes of share^2 - 1 / B

    The first client c is drawn in proportion to
    QCID(c)^-1 + lambda sqrt(3 ln t / (2 T_c)), with t the round counted from 1 and T_c one more
    than the number of c's selections. The j-th is drawn in proportion to QCID(S + c)^-j.

    Reading
    -------
    The exponents 1, 2, ..., m and lambda = 10 are those of public copies. The co-author's
    FedProphet differs: the first client is the argmax with lambda = 1, exponents grow linearly
    from 1 to 10, and the best of six cohorts is kept; it floors the power QCID^j at 0.001, which
    makes late draws nearly uniform. Here QCID itself is floored. Counts of pending clients are in
    the pool from the beginning. Clients without a histogram come last.

    References
    ----------
    Zhang, Li, Tang, Sun, Qin, Zhang, Chen: Fed-CBS: A heterogeneity-aware client sampling
    mechanism for federated learning via class-imbalance reduction. ICML 2023.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = FedCBS()
    >>> counts = {"a": [10, 0], "b": [9, 1], "c": [0, 10]}
    >>> reports = [ClientReport(c, 0, label_counts=row) for c, row in counts.items()]
    >>> scheduler.observe(0, reports, "probe")
    >>> cohort = scheduler.select(0, ["a", "b", "c"], 2)
    >>> "c" in cohort.clients, round(cohort.diagnostics["qcid"], 3) <= 0.005
    (True, True)
    """

    def __init__(self, *, exploration: float = 10.0, floor: float = 1e-6, **common: Any) -> None:
        super().__init__(**common)
        self.exploration = check_number("exploration", exploration, minimum=0)
        self.floor = check_number("floor", floor, above=0)

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Draw clients one after the other, those without a histogram last."""
        self._note(server_round)
        rng = self.rng(server_round)
        everyone, table = label_counts(self.reports, self._with_pending(clients))
        row = {client: i for i, client in enumerate(everyone)}
        pool = np.zeros(table.shape[1])
        for client in self.pending:
            if client in row:
                pool = pool + table[row[client]]
        known = [client for client in clients if client in row]
        counts = table[[row[client] for client in known]]
        builder = self.constraints.builder(clients, m, self.pending)
        chosen = builder.fill(builder.required)
        free = np.array([client not in set(chosen) for client in known], dtype=bool)
        for client in chosen:
            if client in row:
                pool = pool + table[row[client]]
        while builder.slots_left and free.any():
            p = self._probabilities(server_round, known, counts, pool, free, len(chosen) + 1)
            i = int(rng.choice(len(known), p=p))
            free[i] = False
            if builder.admit(known[i]):
                chosen.append(known[i])
                pool = pool + counts[i]
        unknown = [client for client in clients if client not in row]
        chosen += builder.fill(unknown[i] for i in rng.permutation(len(unknown)))
        self._history.add(chosen, server_round)
        qcid = imbalance(pool[None])[0] if pool.any() else None
        return Cohort.of(
            chosen,
            qcid=None if qcid is None else float(qcid),
            drawn=[client for client in chosen if client not in row],
        )

    def _probabilities(
        self,
        server_round: int,
        known: list[ClientId],
        counts: Float64Array,
        pool: Float64Array,
        free: Any,
        place: int,
    ) -> Float64Array:
        """Return the probability of each client to be drawn for a place, counted from 1."""
        logs = -place * np.log(np.maximum(imbalance(counts + pool), self.floor))
        logs[~free] = -np.inf
        if place == 1:
            picks = self._history.picks(known) + 1.0
            bonus = self.exploration * np.sqrt(3.0 * math.log(server_round + 1) / (2.0 * picks))
            weights = np.where(free, np.exp(logs) + bonus, 0.0)
        else:
            weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())


def imbalance(counts: Float64Array) -> Float64Array:
    """Return QCID of each row of pooled label counts: 0 for balanced labels.

    >>> imbalance(np.array([[10.0, 0.0], [6.0, 4.0], [5.0, 5.0]])).round(3)
    array([0.5 , 0.02, 0.  ])
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    return np.asarray(np.square(shares).sum(axis=1) - 1.0 / counts.shape[1])
