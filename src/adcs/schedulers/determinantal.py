"""Base class of ADCS and StaticDPP: the DPP over a snapshot of all clients' updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.kernel import check_theta, similarity, unit_rows
from adcs.dpp.tolerances import Scorer
from adcs.reports.histogram import label_counts
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
from adcs.reports.sketch import Sketcher
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Cohort, Request
from adcs.schedulers.by_labels import HistogramRequests
from adcs.schedulers.client_dpp import GRAM_LIMIT, ClientDPP
from adcs.schedulers.directions import Kernel, make_directions
from adcs.schedulers.snapshot import SnapshotScheduler


class DeterminantalScheduler(SnapshotScheduler):
    """Base class of schedulers that maximise (1 - theta) log det C_S + theta sum q.

    Parameters
    ----------
    theta
        Weight of quality against diversity, in [0, 1].
    quality, gamma, scale
        The quality score: see `adcs.reports.quality.qualities`.
    kernel
        "updates", or "labels" for a kernel of label histograms: no update is asked for.
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
        kernel: Kernel = "updates",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.directions = make_directions(kernel)
        self.theta = check_theta(theta)
        self.quality = check_quality(quality)
        self.gamma = check_gamma(gamma)
        self.scale = effective_scale(self.gamma, scale)
        if self._uses_quality and (quality == "loss" or callable(quality)):
            self.signals = frozenset({"update", "loss"})
        if self.directions.sent_once:
            _check_without_updates(self.quality, self.sketch)
            self.signals = self.signals - {"update"} | {self.directions.signal}
            self.needed_signals = frozenset({self.directions.signal})
        self._histograms = HistogramRequests()
        self.dpp: ClientDPP | None = None
        self._kernel: tuple[Any, FloatArray, Float64Array | None] | None = None

    @property
    def _uses_quality(self) -> bool:
        return self.theta > 0.0

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask for the snapshot when it is due; histograms are asked for once."""
        if not self.directions.sent_once:
            request = super()._request(server_round, clients, m)
            if request.clients and request.sketch is None:
                self.dpp = self._kernel = None  # New updates replace it, and they may be large.
            return request
        lacking = self._histograms.due(server_round, clients, self.reports)
        signals = self.signals if lacking else self.signals - {self.directions.signal}
        due = self.refresh_every is not None and server_round % self.refresh_every == 0
        asked = clients if due and "loss" in signals else lacking
        return Request(asked, signals) if asked else Request()

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Choose among the known clients, and draw among the unknown."""
        if self.directions.sent_once:
            self._histograms.note(server_round, self.reports)
        return super()._select(server_round, clients, m)

    def known_clients(self, clients: tuple[ClientId, ...]) -> list[ClientId]:
        """Return those of the clients whose reports suffice to be chosen by."""
        if self.directions.sent_once:
            return label_counts(self.reports, clients)[0]
        return super().known_clients(clients)

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
            self.dpp = self._kernel = None  # Whole updates of large models are not held twice.
            unit = self._unit_vectors(known)
            gram = similarity(unit) if len(known) <= GRAM_LIMIT else None
            self._kernel = (key, unit, gram)
        _, unit, gram = self._kernel
        q = np.zeros(len(known))
        if self._uses_quality:
            reports = self.reports.current_table(known)
            q = self._qualities(reports or [self.reports[client] for client in known])
        return ClientDPP(known, unit, gram, q, Scorer.of_features(unit, q, theta=self.theta))

    def _unit_vectors(self, known: list[ClientId]) -> FloatArray:
        """Return the updates, or histograms, of the known clients, scaled to norm one."""
        if self.directions.sent_once:
            rows = [self.directions.vector(self.reports[client]) for client in known]
            return unit_rows(np.stack([row for row in rows if row is not None]), overwrite=True)
        table = self.reports.current_table(known)
        is_held = table is not None and table.sketches is not None  # the store's own array
        return unit_rows(self.reports.vectors(known), overwrite=not is_held)

    def _qualities(self, reports: Sequence[ClientReport]) -> Float64Array:
        """Return the qualities; with histograms, that of a client that reports none is the mean."""
        if not self.directions.sent_once:
            return qualities(reports, self.quality, gamma=self.gamma, scale=self.scale)
        reported = np.array([has_quality(r, self.quality, self.gamma) for r in reports])
        q = np.zeros(len(reports))
        if reported.any():
            found = [r for r, has in zip(reports, reported, strict=True) if has]
            q[reported] = qualities(found, self.quality, gamma=self.gamma, scale=self.scale)
            q[~reported] = q[reported].mean()
        return q

    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Cohort:
        """Return the greedy MAP of the DPP."""
        self.dpp = self._make_dpp(known)
        selection = self.dpp.greedy(m, constraints)
        chosen = [known[i] for i in selection.indices]
        oldest = self.reports.oldest_round(known)
        return Cohort.of(chosen, **self.dpp.diagnostics(selection), oldest_report=oldest)

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        if not self.directions.sent_once:
            return super().state()
        return {**super().state(), "requested": self._histograms.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._histograms.restore(state.get("requested", ()))
        self.dpp = self._kernel = None


def _check_without_updates(quality: Quality, sketch: Sketcher | None) -> None:
    """Raise if a setting needs updates, which a kernel of labels does without."""
    if quality == "norm":
        raise ValueError("quality must not be 'norm' with kernel='labels', which has no updates")
    if sketch is not None:
        raise ValueError("sketch must be None with kernel='labels', which has no updates")
