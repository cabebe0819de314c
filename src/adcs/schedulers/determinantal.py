"""Base class of ADCS and StaticDPP: the DPP over a snapshot of all clients' updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.kernel import check_theta, similarity, unit_rows
from adcs.dpp.tolerances import Scorer
from adcs.reports.quality import (
    Quality,
    Scale,
    check_gamma,
    check_quality,
    effective_scale,
    has_quality,
    has_quality_columns,
    qualities,
)
from adcs.reports.report import ClientReport
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Cohort
from adcs.schedulers.client_dpp import GRAM_LIMIT, ClientDPP
from adcs.schedulers.snapshot import SnapshotScheduler


class DeterminantalScheduler(SnapshotScheduler):
    """Base class of schedulers that maximise (1 - theta) log det C_S + theta sum q.

    Parameters
    ----------
    theta
        Weight of quality against diversity, in [0, 1].
    quality, gamma, scale
        The quality score: see `adcs.reports.quality.qualities`.
    **common
        `refresh_every`, `sketch`: see `SnapshotScheduler`; and `Scheduler`'s.

    Examples
    --------
    >>> scheduler = DeterminantalScheduler(theta=0.0, refresh_every=20)
    >>> updates = {"a": [1.0, 0.1], "b": [1.0, 0.0], "c": [0.0, 1.0]}
    >>> scheduler.observe(0, [ClientReport(c, 0, update=updates[c]) for c in updates], "probe")
    >>> scheduler.select(0, ["a", "b", "c"], 2).clients
    ('a', 'c')
    """

    def __init__(
        self,
        *,
        theta: float,
        quality: Quality = "loss",
        gamma: float = 0.0,
        scale: Scale | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.theta = check_theta(theta)
        self.quality = check_quality(quality)
        self.gamma = check_gamma(gamma)
        self.scale = effective_scale(self.gamma, scale)
        if self._uses_quality and (quality == "loss" or callable(quality)):
            self.signals = frozenset({"update", "loss"})
        self.dpp: ClientDPP | None = None
        self._kernel: tuple[Any, FloatArray, Float64Array | None] | None = None

    @property
    def _uses_quality(self) -> bool:
        return self.theta > 0.0

    def _is_selectable(self, report: ClientReport | None) -> bool:
        """Return whether the report has an update and all that the quality needs."""
        if report is None or not super()._is_selectable(report):
            return False
        return not self._uses_quality or has_quality(report, self.quality, self.gamma)

    def _all_selectable(self, table: ReportTable) -> bool:
        """Return whether all reports have a sketch and all that the quality needs."""
        if not super()._all_selectable(table):
            return False
        return not self._uses_quality or has_quality_columns(table, self.quality, self.gamma)

    def _make_dpp(self, known: list[ClientId]) -> ClientDPP:
        """Return the DPP over these clients; the kernel is computed once for each snapshot."""
        key = (self.reports.version, known)
        if self._kernel is None or self._kernel[0] != key:
            unit = unit_rows(self.reports.vectors(known))
            gram = similarity(unit) if len(known) <= GRAM_LIMIT else None
            self._kernel = (key, unit, gram)
        _, unit, gram = self._kernel
        q = np.zeros(len(known))
        if self._uses_quality:
            table = self.reports.current_table(known)
            reports: Sequence[ClientReport] = table or [self.reports[client] for client in known]
            q = qualities(reports, self.quality, gamma=self.gamma, scale=self.scale)
        return ClientDPP(known, unit, gram, q, Scorer.of_features(unit, q, theta=self.theta))

    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Cohort:
        """Return the greedy MAP of the DPP."""
        self.dpp = self._make_dpp(known)
        selection = self.dpp.greedy(m, constraints)
        chosen = [known[i] for i in selection.indices]
        oldest = self.reports.oldest_round(known)
        return Cohort.of(chosen, **self.dpp.diagnostics(selection), oldest_report=oldest)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self.dpp = self._kernel = None
