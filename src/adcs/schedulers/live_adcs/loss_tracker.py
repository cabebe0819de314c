"""What a server believes of its clients' losses between the reports it gets.

A client's loss is followed by a Kalman filter with one number for each client. A report is a
noisy look at it; between reports it falls, to first order, by eta <u_j, step>, and its variance
grows by the drift of every round. eta, the noise and the drift are learned from the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.reports.report import ABSURD

MEMORY = 0.999
"""Share of what eta, noise and drift were learned from that is kept at each batch of reports."""

OUTLIER_DEVIATIONS = 5.0
"""Numbers beyond so many typical deviations are taken for so many: reports may be lies."""

MIN_SAMPLES = 10.0
"""With fewer surprises than this, nothing is said of noise and drift."""

GROSS_ERROR_RATIO = 1e4
"""Among the first surprises, squares beyond so many times their median are left out."""


class LossTracker:
    """Estimates of the losses of clients, who are numbered from 0 in the order of their coming.

    Attributes
    ----------
    loss : float64 array
        The estimated loss of each client.
    heard : int array
        The round of each client's last report.

    Examples
    --------
    A first report is believed. While nothing is known of the noise, so are the next ones.

    >>> tracker = LossTracker()
    >>> tracker.update(np.array([0, 1]), np.array([2.0, 1.0]), server_round=0)
    >>> tracker.update(np.array([1]), np.array([0.5]), server_round=1)
    >>> tracker.loss
    array([2. , 0.5])
    """

    def __init__(self) -> None:
        self.loss: Float64Array = np.empty(0)
        self.heard: IndexArray = np.empty(0, dtype=np.intp)
        self._variance: Float64Array = np.empty(0)
        self._last: Float64Array = np.empty(0)
        self._fallen: Float64Array = np.empty(0)
        # Sums of x y and x x for eta; of 1, age, age^2, e^2 and age e^2 for noise and drift.
        self._slope: Float64Array = np.zeros(2)
        self._surprise: Float64Array = np.zeros(5)

    def update(self, clients: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Take reports of losses at the model of a round; clients new to it come in order."""
        known = clients < self.loss.size
        old, said = clients[known], losses[known]
        if old.size:
            self._learn(old, said, server_round)
            self._correct(old, said, server_round)
        if not known.all():
            self.loss = np.append(self.loss, losses[~known])
            self._last = np.append(self._last, losses[~known])
            fresh = np.zeros(int((~known).sum()))
            self._fallen = np.append(self._fallen, fresh)
            self._variance = np.append(self._variance, fresh + np.inf)
            self.heard = np.append(self.heard, np.full(fresh.size, server_round, dtype=np.intp))

    def predict(self, products: Float64Array) -> None:
        """Take the inner products <u_j, step> of all clients' updates with a global step."""
        self._fallen += products
        xy, xx = self._slope
        with np.errstate(over="ignore"):
            eta = xy / xx if xy > 0.0 and xx > 0.0 else 0.0
            if 0.0 < eta < np.inf:
                # No loss is reported beyond this, so none is predicted to be.
                self.loss = np.clip(self.loss - eta * products, -ABSURD, ABSURD)

    @property
    def noise(self) -> tuple[float, float]:
        """The variance of a report, and the drift: by how much a loss's variance grows a round.

        Both come from the squares of surprises, which grow with the age of what was believed:
        a line fitted to them, with its slope kept between flat and through the origin.
        """
        n, age, age2, e2, age_e2 = self._surprise
        if n < MIN_SAMPLES:
            return np.inf, np.inf
        mean, mean_age = e2 / n, age / n
        spread = age2 - age * mean_age
        steepest = mean / max(mean_age, 1.0)
        drift = (age_e2 - mean_age * e2) / spread if spread > 1e-9 * age2 else 0.0
        drift = min(max(drift, 1e-3 * steepest), steepest)
        return max(mean - drift * mean_age, 1e-3 * mean), drift

    def variance(self, server_round: int) -> Float64Array:
        """Return how uncertain each loss is at a round.

        Infinite while the drift is unknown, and for a client that was heard only once.
        """
        drift = self.noise[1]
        if not np.isfinite(drift):
            return np.full(self.loss.size, np.inf)
        return np.asarray(self._variance + drift * np.maximum(server_round - self.heard, 0))

    def _learn(self, clients: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Learn from reports how fast losses fall and how far off the tracker were."""
        x, y = self._fallen[clients], self._last[clients] - losses
        age = (server_round - self.heard[clients]).astype(np.float64)
        surprise = (losses - self.loss[clients]) ** 2
        n, *_, e2, _ = self._surprise
        # While there is little to compare with, only what is out of all proportion stands out.
        limit = (
            OUTLIER_DEVIATIONS**2 * e2 / n
            if n >= MIN_SAMPLES
            else GROSS_ERROR_RATIO * float(np.median(surprise))
        )
        if limit > 0.0:
            honest = surprise <= limit
            x, y = x[honest], y[honest]
            surprise = np.minimum(surprise, limit) if n >= MIN_SAMPLES else surprise[honest]
            age = age if n >= MIN_SAMPLES else age[honest]
        self._slope = MEMORY * self._slope + [x @ y, x @ x]
        self._surprise = MEMORY * self._surprise + [
            age.size,
            age.sum(),
            age @ age,
            surprise.sum(),
            age @ surprise,
        ]

    def _correct(self, clients: IndexArray, losses: Float64Array, server_round: int) -> None:
        noise, drift = self.noise
        gain = np.ones(clients.size)
        variance = np.full(clients.size, np.inf)
        if np.isfinite(noise):
            before = self._variance[clients] + drift * np.maximum(
                server_round - self.heard[clients], 0
            )
            certain = np.isfinite(before)
            before = np.where(certain, before, 0.0)
            gain = np.where(certain, before / np.maximum(before + noise, 1e-300), 1.0)
            variance = np.where(certain, (1.0 - gain) * before, noise)
        self.loss[clients] += gain * (losses - self.loss[clients])
        self._variance[clients] = variance
        self._last[clients] = losses
        self._fallen[clients] = 0.0
        self.heard[clients] = server_round

    def state(self) -> dict[str, Any]:
        """Return everything believed as arrays."""
        return {name: value.copy() for name, value in vars(self).items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        for name in vars(self):
            setattr(self, name, np.array(state[name]))


def clip_outliers(losses: Float64Array) -> Float64Array:
    """Return losses with those pulled in that are far from the rest: they may be lies.

    >>> float(clip_outliers(np.array([1.0, 1.1, 0.9, 1.0, 1.2, 1e9])).max().round(2))
    1.79
    """
    middle = np.median(losses)
    typical = 1.4826 * float(np.median(np.abs(losses - middle)))
    if typical == 0.0:
        return losses
    return np.clip(
        losses, middle - OUTLIER_DEVIATIONS * typical, middle + OUTLIER_DEVIATIONS * typical
    )
