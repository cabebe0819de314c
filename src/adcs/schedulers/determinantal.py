"""The kernel that ADCS and StaticDPP choose from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.greedy import Selection, greedy_map_features, greedy_map_trusted
from adcs.dpp.kernel import check_theta, similarity, unit_rows
from adcs.dpp.tolerances import Scoring
from adcs.reports.quality import (
    Quality,
    Scale,
    check_gamma,
    check_quality,
    effective_scale,
    has_quality,
    qualities,
)
from adcs.reports.report import ClientReport
from adcs.schedulers.snapshot import Picked, SnapshotScheduler

GRAM_LIMIT = 2000
"""Up to this many clients the similarity is kept as a matrix; beyond, it is computed as needed."""


class DeterminantalScheduler(SnapshotScheduler):
    """Base of schedulers that maximise (1 - theta) log det C_S + theta sum q.

    Parameters
    ----------
    theta
        Weight of quality against diversity, in [0, 1].
    quality, gamma, scale
        The quality score: see `adcs.reports.quality.qualities`.
    **common
        `refresh_every`, `sketch`: see `SnapshotScheduler`; and `Scheduler`'s.
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
        self._kernel: tuple[Any, FloatArray, Float64Array | None] | None = None

    @property
    def _uses_quality(self) -> bool:
        return self.theta > 0.0

    def knows(self, report: ClientReport | None) -> bool:
        """Return whether the report brings an update and all that the quality needs."""
        if report is None or not super().knows(report):
            return False
        return not self._uses_quality or has_quality(report, self.quality, self.gamma)

    def kernel(self, known: list[ClientId]) -> tuple[FloatArray, Float64Array | None]:
        """Return the unit updates of these clients and, unless they are many, C."""
        key = (self.reports.version, known)
        if self._kernel is None or self._kernel[0] != key:
            unit = unit_rows(self.reports.vectors(known))
            gram = similarity(unit) if len(known) <= GRAM_LIMIT else None
            self._kernel = (key, unit, gram)
        return self._kernel[1], self._kernel[2]

    def scoring(self, unit: FloatArray, q: Float64Array) -> Scoring:
        """Return how exact the kernel is: as exact as the updates that it was made of."""
        return Scoring.of_features(unit, q, theta=self.theta)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._kernel = None

    def scores(self, known: list[ClientId]) -> Float64Array:
        """Return the quality scores q of these clients, compared with each other."""
        if not self._uses_quality:
            return np.zeros(len(known))
        reports = [self.reports[client] for client in known]
        return qualities(reports, self.quality, gamma=self.gamma, scale=self.scale)

    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Picked:
        """Take the greedy MAP of the kernel."""
        unit, gram = self.kernel(known)
        q = self.scores(known)
        if gram is None:
            selection = greedy_map_features(
                unit, m, quality=q, theta=self.theta, constraints=constraints, unit=True
            )
        else:
            selection = greedy_map_trusted(
                gram, m, self.scoring(unit, q), quality=q, constraints=constraints
            )
        return self.describe(known, q, selection)

    def describe(self, known: list[ClientId], q: Float64Array, selection: Selection) -> Picked:
        """Return a selection as clients, with its diagnostics."""
        chosen = [known[i] for i in selection.indices]
        return Picked(
            chosen,
            diagnostics={
                "gains": [
                    [client, finite(gain)]
                    for client, gain in zip(chosen, selection.gains, strict=True)
                ],
                "quality": [
                    [client, float(q[i])]
                    for client, i in zip(chosen, selection.indices, strict=True)
                ],
                "objective": finite(selection.objective),
                "log_det": finite(selection.log_det),
                "rank": selection.rank,
                "oldest_report": self.oldest(known),
            },
        )

    def oldest(self, known: list[ClientId]) -> int:
        """Return the round of the oldest report among these clients'."""
        return min(int(self.reports[client].server_round) for client in known)


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None for -inf."""
    return float(value) if math.isfinite(value) else None
