"""Uniform: random sampling of clients (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from adcs._types import ClientId
from adcs.schedulers.base import Cohort, Scheduler, Source
from adcs.schedulers.sampling import (
    bernoulli_cohort,
    example_counts,
    refuse_caps,
    weighted_permutation,
)


class Uniform(Scheduler):
    """m clients drawn at random, without replacement.

    Parameters
    ----------
    by_size
        Draw with probabilities proportional to the number of examples reported at enrolment; a
        client without a report is taken to have the mean number.
    independent
        Include each client independently with probability m / N: m clients on average, sometimes
        none. Updates are divided by that probability, so that their sum is an unbiased estimate of
        the update of all clients. Caps would bias it and are refused.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    Every set of m clients has the same probability; with `independent`, each client is included
    with probability m / N and weight N / m.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-efficient learning of deep
    networks from decentralized data. AISTATS 2017.

    Examples
    --------
    >>> len(Uniform(seed=1).select(0, range(30), 18).clients)
    18
    >>> cohort = Uniform(independent=True).select(0, range(30), 18)
    >>> cohort.normalise, round(cohort.weights[0], 4)
    (False, 1.6667)
    """

    family = "random"
    observed_sources = frozenset[Source]({"enrolment"})

    def __init__(self, *, by_size: bool = False, independent: bool = False, **common: Any) -> None:
        super().__init__(**common)
        if by_size and independent:
            raise ValueError("by_size and independent cannot both be set")
        self.by_size = by_size
        self.independent = independent
        self.fixed_size = not independent
        if independent:
            refuse_caps(self)

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Draw the cohort."""
        n = len(clients)
        if self.independent:
            return bernoulli_cohort(self, server_round, clients, np.full(n, min(1.0, m / n)))
        rng = self.rng(server_round)
        if self.by_size:
            order = weighted_permutation(rng, example_counts(self.reports, clients))
        elif self.constraints:
            order = rng.permutation(n)
        else:
            order = rng.choice(n, size=min(m, n), replace=False)
        return Cohort.of(self.take([clients[i] for i in order.tolist()], m))
