"""LiveADCS with one of its ideas switched off, and a rival without one of its advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.reports.report import ClientReport
from adcs.schedulers.base import Source
from adcs.schedulers.live_adcs import (
    MAX_QUALITY,
    LiveADCS,
    LiveKernel,
    LossTracker,
    clip_outliers,
)
from adcs.schedulers.power_of_choice import PowerOfChoice


class NoReuse(LiveADCS):
    """Training replies are ignored: all that is known comes from probes within the budget."""

    observed_sources = frozenset[Source]({"enrolment", "probe"})


class RawQuality(LiveADCS):
    """Quality is the estimated loss itself, so that theta has the loss's unit."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.quality = lambda losses, variances, unanswered: losses


class NoUncertainty(LiveADCS):
    """Quality is the standardised loss, whatever its variance."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.quality = _certain_loss


def _certain_loss(
    losses: Float64Array, variances: Float64Array, unanswered: IndexArray
) -> Float64Array:
    losses = clip_outliers(losses)
    q = (losses - losses.mean()) / (losses.std() or 1.0)
    return np.asarray(np.clip(q, -MAX_QUALITY, MAX_QUALITY))


class NoPrediction(LiveADCS):
    """A loss stays what it was at the last report."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss_tracker = _Unpredicted()


class _Unpredicted(LossTracker):
    def predict(self, products: Float64Array) -> None:
        """Do nothing."""


class NoSmoothing(LiveADCS):
    """A report replaces the estimate."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss_tracker = _Unsmoothed()


class _Unsmoothed(LossTracker):
    def update(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Take reports of losses at the model of a round, as they are."""
        super().update(rows, losses, server_round)
        self.loss[rows] = losses


class EqualWeights(LiveADCS):
    """All clients of the cohort have the same weight."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.weighting = _equal_weights


def _equal_weights(
    cosines: Float64Array, norms: Float64Array, log_shares: Float64Array, chosen: IndexArray
) -> Float64Array:
    return np.full(chosen.size, 1.0 / chosen.size)


class NoDiversity(LiveADCS):
    """The cohort has the largest qualities, similar or not; its weights are fitted all the same."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.kernel = _OrthogonalKernel()


class _OrthogonalKernel(LiveKernel):
    def similarity(self, rows: IndexArray) -> Float64Array | None:
        """Return a similarity in which no client resembles another."""
        return np.eye(rows.size)


class OtherBatch(PowerOfChoice):
    """PowerOfChoice by the losses of the round before.

    In the simulator a client's loss is that of the very mini-batch it will train on, so who ranks
    by fresh losses picks mini-batches as well as clients. Here it picks clients alone, by losses
    that are one step old.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._held: list[ClientReport] = []

    def _observe(self, server_round: int, reports: Sequence[ClientReport], source: Source) -> None:
        """Remember the reports of the round before, and keep these for the next."""
        if source != "probe":
            super()._observe(server_round, reports, source)
            return
        # Told as of this round, or they would not be ranked by.
        super()._observe(
            server_round,
            [replace(r, server_round=server_round) for r in self._held or reports],
            source,
        )
        self._held = list(reports)

    def state(self) -> dict[str, Any]:
        """Return all that was learned."""
        held = [[report.client, report.server_round, report.loss] for report in self._held]
        return {**super().state(), "held": held}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._held = [ClientReport(c, at, loss=loss) for c, at, loss in state["held"]]
