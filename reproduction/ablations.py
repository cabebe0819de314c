"""LiveADCS with one of its ideas switched off, and a rival without one of its advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray, IndexArray
from adcs.reports.report import ClientReport
from adcs.schedulers.base import Source
from adcs.schedulers.live_adcs.loss_tracker import LossTracker, clip_outliers
from adcs.schedulers.live_adcs.scheduler import MAX_QUALITY, LiveADCS
from adcs.schedulers.power_of_choice import PowerOfChoice


class NoReuse(LiveADCS):
    """Training replies are ignored: all that is known comes from probes within the budget."""

    observed_sources = frozenset[Source]({"enrolment", "probe"})


class RawQuality(LiveADCS):
    """Quality is the loss itself, so that theta has the loss's unit."""

    def scores(self, known: list[ClientId]) -> Float64Array:
        """Return the believed losses."""
        return self.loss_tracker.loss[self._places(known)]


class NoUncertainty(LiveADCS):
    """A loss counts the same, however long ago it was heard."""

    def scores(self, known: list[ClientId]) -> Float64Array:
        """Return the believed losses in deviations over clients."""
        losses = clip_outliers(self.loss_tracker.loss[self._places(known)])
        q = (losses - losses.mean()) / (losses.std() or 1.0)
        return np.asarray(np.clip(q, -MAX_QUALITY, MAX_QUALITY))


class NoPrediction(LiveADCS):
    """A loss is what it was when last heard."""

    def _step(self, reports: list[ClientReport]) -> None:
        pass


class NoSmoothing(LiveADCS):
    """A report is believed as it is."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.loss_tracker = _Credulous()


class _Credulous(LossTracker):
    def _correct(self, clients: IndexArray, losses: Float64Array, server_round: int) -> None:
        super()._correct(clients, losses, server_round)
        self.loss[clients] = losses


class EqualWeights(LiveADCS):
    """All of the cohort count the same."""

    def weights(self, known: list[ClientId], chosen: IndexArray) -> Float64Array:
        """Return equal weights."""
        return np.full(chosen.size, 1.0 / chosen.size)


class NoDiversity(LiveADCS):
    """The cohort has the largest qualities, alike or not; its weights are fitted all the same."""

    def kernel(self, known: list[ClientId]) -> tuple[FloatArray, Float64Array | None]:
        """Return a kernel in which nobody resembles anybody."""
        return self.live.directions(self._places(known)), np.eye(len(known))


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
