"""Estimates of clients' losses between their reports.

A Kalman filter with one number for each client. A report is a noisy observation of the client's
loss. Between reports the loss falls, to first order, by eta <u_j, step>, and its variance grows by
the drift of every round. eta, noise and drift are estimated from the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.reports.report import MAX_VALUE

MEMORY = 0.999
"""Forgetting factor of the sums behind eta, noise and drift, at each batch of reports."""

OUTLIER_DEVIATIONS = 5.0
"""Clip values beyond this many robust standard deviations: reports are untrusted."""

MIN_SAMPLES = 10.0
"""Noise and drift are estimated from at least this many innovations."""

GROSS_ERROR_RATIO = 1e4
"""Among the first innovations, drop squares beyond this many times their median."""


class LossTracker:
    """Estimates of clients' losses; clients are rows, numbered from 0.

    Attributes
    ----------
    loss : float64 array
        The estimated loss of each client.
    reported_at : int array
        The round of each client's last report.

    Examples
    --------
    A first report is taken as it is. While the noise is unknown, so are the next ones.

    >>> tracker = LossTracker()
    >>> tracker.update(np.array([0, 1]), np.array([2.0, 1.0]), server_round=0)
    >>> tracker.update(np.array([1]), np.array([0.5]), server_round=1)
    >>> tracker.loss
    array([2. , 0.5])
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all rows and estimates."""
        self.loss: Float64Array = np.empty(0)
        self.reported_at: IndexArray = np.empty(0, dtype=np.intp)
        self._variance: Float64Array = np.empty(0)
        self._reported_loss: Float64Array = np.empty(0)
        self._products: Float64Array = np.empty(0)  # <u_j, step>, summed since the last report
        # Sums of x y and x x for eta; of 1, age, age^2, e^2 and age e^2 for noise and drift.
        self._slope_sums: Float64Array = np.zeros(2)
        self._innovation_sums: Float64Array = np.zeros(5)

    def update(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Take reports of losses at the model of a round; new rows continue the numbering."""
        known = rows < self.loss.size
        old, reported = rows[known], losses[known]
        if old.size:
            self._estimate(old, reported, server_round)
            self._correct(old, reported, server_round)
        if not known.all():
            self.loss = np.append(self.loss, losses[~known])
            self._reported_loss = np.append(self._reported_loss, losses[~known])
            zeros = np.zeros(int((~known).sum()))
            self._products = np.append(self._products, zeros)
            self._variance = np.append(self._variance, zeros + np.inf)
            now = np.full(zeros.size, server_round, dtype=np.intp)
            self.reported_at = np.append(self.reported_at, now)

    def predict(self, products: Float64Array) -> None:
        """Lower all losses by eta times the inner products <u_j, step> with a global step."""
        self._products += products
        xy, xx = self._slope_sums
        with np.errstate(over="ignore"):
            eta = xy / xx if xy > 0.0 and xx > 0.0 else 0.0
            if 0.0 < eta < np.inf:
                # Losses beyond this are not reported, so none is predicted.
                self.loss = np.clip(self.loss - eta * products, -MAX_VALUE, MAX_VALUE)

    @property
    def noise(self) -> tuple[float, float]:
        """The variance of a report, and the drift: the growth of a loss's variance a round.

        Both come from the squared innovations, which grow with the age of the estimate: a line is
        fitted to them, its slope bounded by zero and by the line through the origin.
        """
        n, age, age2, e2, age_e2 = self._innovation_sums
        if n < MIN_SAMPLES:
            return np.inf, np.inf
        mean, mean_age = e2 / n, age / n
        spread = age2 - age * mean_age
        steepest = mean / max(mean_age, 1.0)
        drift = (age_e2 - mean_age * e2) / spread if spread > 1e-9 * age2 else 0.0
        drift = min(max(drift, 1e-3 * steepest), steepest)
        return max(mean - drift * mean_age, 1e-3 * mean), drift

    def variance(self, server_round: int) -> Float64Array:
        """Return the variance of each estimate at a round.

        Infinite while the drift is unknown, and for a client with a single report.
        """
        drift = self.noise[1]
        if not np.isfinite(drift):
            return np.full(self.loss.size, np.inf)
        return np.asarray(self._variance + drift * np.maximum(server_round - self.reported_at, 0))

    def _estimate(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Update the sums behind eta, noise and drift."""
        x, y = self._products[rows], self._reported_loss[rows] - losses
        age = (server_round - self.reported_at[rows]).astype(np.float64)
        squares = (losses - self.loss[rows]) ** 2
        n, *_, e2, _ = self._innovation_sums
        # While there is little to compare with, only gross errors are left out.
        limit = (
            OUTLIER_DEVIATIONS**2 * e2 / n
            if n >= MIN_SAMPLES
            else GROSS_ERROR_RATIO * float(np.median(squares))
        )
        if limit > 0.0:
            inliers = squares <= limit
            x, y = x[inliers], y[inliers]
            squares = np.minimum(squares, limit) if n >= MIN_SAMPLES else squares[inliers]
            age = age if n >= MIN_SAMPLES else age[inliers]
        self._slope_sums = MEMORY * self._slope_sums + [x @ y, x @ x]
        self._innovation_sums = MEMORY * self._innovation_sums + [
            age.size,
            age.sum(),
            age @ age,
            squares.sum(),
            age @ squares,
        ]

    def _correct(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Move estimates towards reports by the Kalman gain."""
        noise, drift = self.noise
        gain = np.ones(rows.size)
        variance = np.full(rows.size, np.inf)
        if np.isfinite(noise):
            prior = self._variance[rows] + drift * np.maximum(
                server_round - self.reported_at[rows], 0
            )
            finite = np.isfinite(prior)
            prior = np.where(finite, prior, 0.0)
            gain = np.where(finite, prior / np.maximum(prior + noise, 1e-300), 1.0)
            variance = np.where(finite, (1.0 - gain) * prior, noise)
        self.loss[rows] += gain * (losses - self.loss[rows])
        self._variance[rows] = variance
        self._reported_loss[rows] = losses
        self._products[rows] = 0.0
        self.reported_at[rows] = server_round

    def state(self) -> dict[str, Any]:
        """Return everything as arrays."""
        return {name.lstrip("_"): value.copy() for name, value in vars(self).items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        for name in vars(self):
            setattr(self, name, np.array(state[name.lstrip("_")]))


def clip_outliers(losses: Float64Array) -> Float64Array:
    """Return losses clipped to `OUTLIER_DEVIATIONS` robust standard deviations from the median.

    >>> float(clip_outliers(np.array([1.0, 1.1, 0.9, 1.0, 1.2, 1e9])).max().round(2))
    1.79
    """
    median = np.median(losses)
    deviation = 1.4826 * float(np.median(np.abs(losses - median)))
    if deviation == 0.0:
        return losses
    reach = OUTLIER_DEVIATIONS * deviation
    return np.clip(losses, median - reach, median + reach)
