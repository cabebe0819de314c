"""OCS: the clients with the largest updates (Chen, Horvath, Richtarik, 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.schedulers.ranking import ranked_cohort
from adcs.schedulers.sampling import bernoulli_cohort, example_counts, refuse_caps


class OCS(Scheduler):
    """The m largest update norms of this round: optimal client sampling as in the paper.

    Parameters
    ----------
    independent
        The original method instead: each client is included independently with its own
        probability p and weight 1/p, unnormalised. The probabilities add up to m and minimise the
        variance; the cohort's size is random and may be zero. A client without a norm is taken to
        have the mean norm. Caps would bias the estimate and are refused.
    by_size
        With `independent`: multiply norms by the number of examples. The variance is smallest if
        the engine weighs clients by their number of examples, as Flower does.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    The m largest norms. With `independent`, p_n = min(1, (m + l - N) ||g_n|| / (sum of the l
    smallest norms)), with l the largest number for which no p of them exceeds one, and weight
    1 / p_n.

    References
    ----------
    Chen, Horvath, Richtarik: Optimal client sampling for federated learning. 2020,
    arXiv:2010.13723.

    Examples
    --------
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = OCS()
    >>> scheduler.observe(0, [ClientReport(c, 0, norm=c) for c in (1, 2, 3)], "probe")
    >>> scheduler.select(0, (1, 2, 3), 2).clients
    (3, 2)
    """

    family = "norm"
    observed_sources = frozenset[Source]({"enrolment", "probe"})

    def __init__(self, *, independent: bool = False, by_size: bool = False, **common: Any) -> None:
        super().__init__(**common)
        if by_size and not independent:
            raise ValueError("by_size goes with independent sampling only")
        self.independent = independent
        self.by_size = by_size
        self.fixed_size = not independent
        if independent:
            refuse_caps(self)

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask all clients for the norms of their updates."""
        return Request(clients, frozenset({"norm"}))

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Rank clients by the norms of this round, or sample by them."""
        if not self.independent:
            return ranked_cohort(self, server_round, clients, m, "update_norm")
        reported, values = self.reports.fresh_values("update_norm", server_round, clients)
        known = dict(zip(reported, values.tolist(), strict=True))
        mean = float(np.mean(values)) if reported else 1.0
        norms = np.array([known.get(client, mean) for client in clients])
        if self.by_size:
            norms *= example_counts(self.reports, clients)
        return bernoulli_cohort(self, server_round, clients, optimal_probabilities(norms, m))


def optimal_probabilities(norms: Float64Array, m: int) -> Float64Array:
    """Return the inclusion probabilities of least variance that add up to m.

    The largest norms get probability one, the others p_n = (m + l - N) ||g_n|| / sum of the l
    smallest norms, with l the largest number for which no p exceeds one.

    >>> optimal_probabilities(np.array([1.0, 1.0, 2.0, 100.0]), 2)
    array([0.25, 0.25, 0.5 , 1.  ])
    """
    n = norms.size
    if m >= n:
        return np.ones(n)
    if norms.max() == 0.0:
        return np.full(n, m / n)
    scaled = norms / norms.max()
    order = np.argsort(scaled, kind="stable")
    ascending = scaled[order]
    totals = np.cumsum(ascending)
    count = np.arange(1, n + 1)
    # l is the largest count with (m + l - n) * (its largest norm) <= (its total).
    fits = (m + count - n > 0) & ((m + count - n) * ascending <= totals)
    last = int(np.flatnonzero(fits)[-1])
    p = np.ones(n)
    expected = m + last + 1 - n
    if totals[last] > 0.0:
        p[order[: last + 1]] = np.minimum(1.0, expected * ascending[: last + 1] / totals[last])
    else:
        p[order[: last + 1]] = expected / (last + 1)
    return p
