"""LiveADCS with one of its ideas switched off, and a rival without one of its advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adcs.dpp.kernel import Float64Array, FloatArray, IndexArray
from adcs.schedulers.base import Source
from adcs.schedulers.beliefs import Beliefs, tame
from adcs.schedulers.live import CLIP, LiveADCS
from adcs.schedulers.power_of_choice import PowerOfChoice
from adcs.signals.report import ClientId, ClientReport


class NoReuse(LiveADCS):
    """Training replies are ignored: all that is known comes from probes within the budget."""

    remembers = frozenset[Source]({"enrolment", "probe"})


class RawQuality(LiveADCS):
    """Quality is the loss itself, so that theta has the loss's unit."""

    def scores(self, known: list[ClientId]) -> Float64Array:
        """Return the believed losses."""
        return self.beliefs.loss[self._places(known)]


class NoUncertainty(LiveADCS):
    """A loss counts the same, however long ago it was heard."""

    def scores(self, known: list[ClientId]) -> Float64Array:
        """Return the believed losses in deviations over clients."""
        losses = tame(self.beliefs.loss[self._places(known)])
        q = (losses - losses.mean()) / (losses.std() or 1.0)
        return np.asarray(np.clip(q, -CLIP, CLIP))


class NoPrediction(LiveADCS):
    """A loss is what it was when last heard."""

    def _step(self, reports: list[ClientReport]) -> None:
        pass


class NoSmoothing(LiveADCS):
    """A report is believed as it is."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.beliefs = _Credulous()


class _Credulous(Beliefs):
    def _correct(self, clients: IndexArray, losses: Float64Array, round: int) -> None:
        super()._correct(clients, losses, round)
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

    def learn(self, round: int, reports: Sequence[ClientReport], source: Source) -> None:
        """Remember the reports of the round before, and keep these for the next."""
        if source != "probe":
            super().learn(round, reports, source)
            return
        # Told as of this round, or they would not be ranked by.
        super().learn(round, [replace(r, round=round) for r in self._held or reports], source)
        self._held = list(reports)

    def state(self) -> dict[str, Any]:
        """Return all that was learned."""
        held = [[report.client, report.round, report.loss] for report in self._held]
        return {**super().state(), "held": held}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._held = [ClientReport(c, at, loss=loss) for c, at, loss in state["held"]]
