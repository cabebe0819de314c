"""LiveADCS with one part replaced, and PowerOfChoice without knowledge of mini-batches.

Each class is a scheduler that `adcs compare` takes as `reproduction/variants.py:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from adcs import ClientReport, LiveADCS, PowerOfChoice
from adcs.dpp import alpha
from adcs.schedulers import Cohort, Source
from adcs.schedulers.live_adcs import (
    EMPHASIS_POWER,
    LiveKernel,
    LossTracker,
    standardised_loss,
)

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


class NoReuse(LiveADCS):
    """Training replies are ignored; only probes within the budget are used."""

    observed_sources = frozenset[Source]({"enrolment", "probe"})


class RawQuality(LiveADCS):
    """Quality is the estimated loss itself, so that theta has the loss's unit."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.quality = lambda losses, *others: losses


class NoUncertainty(LiveADCS):
    """Quality is the standardised loss, whatever its variance."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.quality = _certain_loss


def _certain_loss(
    losses: Floats, variances: Floats, unanswered: Indices, normals: Floats
) -> Floats:
    zeros = np.zeros_like(normals)
    return standardised_loss(losses, zeros, unanswered, zeros)


class NoDiscount(LiveADCS):
    """A loss that does not respond to training counts as any other."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss_tracker = _Responsive()


class _Responsive(LossTracker):
    def response(self, server_round: int, rows: Indices) -> Floats:
        return np.ones(rows.size)


class NoPrediction(LiveADCS):
    """A loss stays what it was at the last report."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss_tracker = _Unpredicted()


class _Unpredicted(LossTracker):
    def estimate(self, server_round: int, rows: Indices | None = None) -> Floats:
        """Return the losses at the last reports."""
        return self.loss if rows is None else self.loss[rows]


class NoTrend(LiveADCS):
    """Between reports a loss falls by its first-order fall alone."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss_tracker = _FirstOrder()


class _FirstOrder(LossTracker):
    @property
    def slopes(self) -> tuple[float, float]:
        """Return eta, fitted alone, and no trend."""
        xx, _, _, xy, _ = self._fall_sums
        return (float(xy / xx), 0.0) if xy > 0.0 else (0.0, 0.0)


class NoDraw(LiveADCS):
    """Quality is the estimate of the loss plus one standard deviation, instead of a draw."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.quality = _upper_loss


def _upper_loss(losses: Floats, variances: Floats, unanswered: Indices, normals: Floats) -> Floats:
    return standardised_loss(losses, variances, unanswered, np.ones_like(normals))


class FullEmphasis(LiveADCS):
    """Losses count in full, and the DPP fills all slots, whether or not updates persist."""

    @property
    def emphasis(self) -> float:
        """How much losses count."""
        return 1.0


class NoBalance(FullEmphasis):
    """The DPP fills all slots, and losses count as the persistence of updates squared."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.quality = self._emphasised

    def _emphasised(self, *given: Any) -> Floats:
        return self.kernel.persistence**EMPHASIS_POWER * standardised_loss(*given)


class NoWaitingBonus(LiveADCS):
    """Slots that balance go by updates alone, however long clients have waited."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.waiting_bonus = _no_bonus


def _no_bonus(waits: Indices, unanswered: Indices) -> Floats:
    return np.zeros(waits.size)


class NoSmoothing(LiveADCS):
    """A report replaces the estimate."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss_tracker = _Unsmoothed()


class _Unsmoothed(LossTracker):
    def update(self, rows: Indices, losses: Floats, server_round: int) -> None:
        """Take reports of losses at the model of a round, as they are."""
        super().update(rows, losses, server_round)
        self.loss[rows] = losses


class FittedWeights(LiveADCS):
    """Weights with which the step of a cohort approximates a weighted mean of all clients' updates.

    In that mean clients count as exp(rho^2 alpha q). Only the part of a client's own update that
    persists counts in its inner product with the mean; the rest is noise. What the fitted weights,
    which are not negative, lack to one is shared equally.
    """

    def _select(self, server_round: int, clients: tuple[Any, ...], m: int) -> Cohort:
        cohort = super()._select(server_round, clients, m)
        known = [] if self.dpp is None else list(self.dpp.clients)
        at = {client: i for i, client in enumerate(known)}
        chosen = np.array([at[c] for c in cohort.clients if c in at], dtype=np.intp)
        if not chosen.size:
            return cohort
        weights = self._fitted(chosen)
        fitted = {known[i]: float(weight) for i, weight in zip(chosen, weights, strict=True)}
        mean = float(weights.mean())
        return replace(cohort, weights=tuple(fitted.get(c, mean) for c in cohort.clients))

    def _fitted(self, chosen: Indices) -> Floats:
        """Return the weights of clients, from their positions among the known ones."""
        assert self.dpp is not None
        rows = np.arange(len(self.dpp.clients)) if self.dpp.rows is None else self.dpp.rows
        shares = np.exp(self.emphasis * alpha(self.theta) * self.dpp.quality)
        shares /= shares.sum()
        gram = self.kernel.inner_products(rows[chosen])[:, rows]
        gram /= np.mean(self.kernel.norms[rows] ** 2)
        own = gram[:, chosen]
        noise = (1.0 - self.kernel.persistence) * own.diagonal() * shares[chosen]
        lower = np.linalg.cholesky(own + 0.03 * np.eye(chosen.size))
        weights, _ = nnls(lower.T, np.linalg.solve(lower, gram @ shares - noise))
        weights += max(0.0, 1.0 - weights.sum()) / chosen.size
        return np.asarray(np.maximum(weights / weights.sum(), 0.02 / chosen.size))


class NoDiversity(LiveADCS):
    """The DPP's slots go to the largest qualities; the rest is balanced."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.kernel = _OrthogonalKernel()


class _OrthogonalKernel(LiveKernel):
    def similarity(self, rows: Indices) -> Floats | None:
        """Return a similarity in which no client resembles another."""
        return np.eye(rows.size)


class OtherBatch(PowerOfChoice):
    """PowerOfChoice by the losses of the previous round.

    In the simulator a client reports the loss of the mini-batch that it trains on next. A ranking
    by these losses chooses mini-batches as well as clients. The losses of the previous round are
    from other mini-batches, so this ranking chooses clients only.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._held: list[ClientReport] = []

    def _observe(self, server_round: int, reports: Sequence[ClientReport], source: Source) -> None:
        """Use the reports of the previous round, and keep these for the next."""
        if source != "probe":
            super()._observe(server_round, reports, source)
            return
        # PowerOfChoice ranks by reports of this round only.
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
