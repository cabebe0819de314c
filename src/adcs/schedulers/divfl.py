"""DivFL: clients that represent the others (Balakrishnan et al., ICLR 2022)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from adcs._types import ClientId
from adcs.dpp.constraints import Constraints
from adcs.dpp.facility_location import facility_location, pairwise_distances
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Cohort
from adcs.schedulers.snapshot import SnapshotScheduler


class DivFL(SnapshotScheduler):
    """Facility location on distances between updates: the chosen clients represent all others.

    Parameters
    ----------
    refresh_every
        R: all clients are probed for their updates every R rounds.
    by_cluster
        Weight each chosen client by the number of clients that it represents, instead of
        equally.
    sketch
        A `Sketcher` if clients are to send sketches in place of whole updates.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    The set S of m clients that minimises the sum over all clients k of the smallest distance
    ||g_k - g_i||, i in S, by the greedy algorithm.

    References
    ----------
    Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes: Diverse client selection for federated learning
    via submodular maximization. ICLR 2022.

    Examples
    --------
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = DivFL(by_cluster=True)
    >>> updates = {1: [1.0, 0.0], 2: [1.1, 0.0], 3: [0.9, 0.0], 4: [0.0, 5.0]}
    >>> scheduler.observe(0, [ClientReport(c, 0, update=updates[c]) for c in updates], "probe")
    >>> cohort = scheduler.select(0, (1, 2, 3, 4), 2)
    >>> cohort.clients, cohort.weights
    ((1, 4), (3.0, 1.0))
    """

    family = "diversity"

    def __init__(
        self,
        *,
        refresh_every: int = 20,
        by_cluster: bool = False,
        sketch: Sketcher | None = None,
        **common: Any,
    ) -> None:
        super().__init__(refresh_every=refresh_every, sketch=sketch, **common)
        self.by_cluster = by_cluster

    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Cohort:
        """Return the greedy facility location over the known clients' updates."""
        distances = pairwise_distances(self.reports.vectors(known))
        result = facility_location(distances, m, constraints=constraints)
        chosen = [known[i] for i in result.indices]
        gains = [[client, float(g)] for client, g in zip(chosen, result.gains, strict=True)]
        cohort = Cohort.of(chosen, gains=gains)
        if not self.by_cluster:
            return cohort
        counts = np.bincount(result.assignment, minlength=len(known))
        return replace(cohort, weights=tuple(float(counts[i]) for i in result.indices))
