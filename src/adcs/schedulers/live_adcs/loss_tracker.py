"""Estimates of clients' losses between their reports.

A Kalman filter with one number for each client. A report is a noisy observation of the client's
loss. Between reports the loss falls by eta times the inner products of the client's update with the
global steps, which is its first-order fall, and by a trend in each round, which corrects what the
first order leaves out. Its variance grows by the drift of every round. eta and trend are fitted to
the falls between reports, noise and drift to what the estimates missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.reports.report import MAX_VALUE

MEMORY = 0.999
"""Forgetting factor of the sums behind all fits, at each batch of reports."""

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
        The estimated loss of each client at its last report.
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

    The loss of client 1 has fallen by 0.5 in a round, so that of client 0 is taken to have as well.

    >>> tracker.estimate(server_round=1)
    array([1.5, 0.5])
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
        # With x the products, a the age and y the fall since a client's last report, the sums of
        # x x, x a, a a, x y and a y; then, with e what was missed, of 1, a, a a, e e and a e e.
        self._fall_sums: Float64Array = np.zeros(5)
        self._innovation_sums: Float64Array = np.zeros(5)

    def update(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Take reports of losses at the model of a round; new rows continue the numbering.

        NaN is the loss of a new row whose client has not reported one: its estimate is the mean.
        """
        known = rows < self.loss.size
        old, reported = rows[known], losses[known]
        if (first := np.isnan(self.loss[old])).any():
            self._set(old[first], reported[first], server_round)
            old, reported = old[~first], reported[~first]
        if old.size:
            self._fit(old, reported, server_round)
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
        """Take the inner products <u_j, step> of all clients with a global step."""
        self._products += products

    @property
    def slopes(self) -> tuple[float, float]:
        """Return eta and the trend: least squares of the falls by products and ages; eta >= 0."""
        xx, xa, aa, xy, ay = self._fall_sums
        if not aa > 0.0:
            return 0.0, 0.0
        # In units in which both have mean square one, whatever the unit of updates.
        scale = np.sqrt(xx)
        if not 0.0 < scale < np.inf:
            return 0.0, float(ay / aa)
        cosine = xa / scale / np.sqrt(aa)
        rest = 1.0 - cosine**2
        eta = (xy / scale - cosine * ay / np.sqrt(aa)) / rest / scale if rest > 1e-9 else 0.0
        eta = max(float(eta), 0.0) if np.isfinite(eta) else 0.0
        return eta, float((ay - eta * xa) / aa)

    def estimate(self, server_round: int, rows: IndexArray | None = None) -> Float64Array:
        """Return the estimated losses at a round, of all clients or of some."""
        some = slice(None) if rows is None else rows
        eta, trend = self.slopes
        age = np.maximum(server_round - self.reported_at[some], 0)
        with np.errstate(over="ignore", invalid="ignore"):
            fall = eta * self._products[some] + trend * age
        # Losses beyond this are not reported, so none is predicted.
        losses = np.clip(self.loss[some] - np.nan_to_num(fall), -MAX_VALUE, MAX_VALUE)
        if (missing := np.isnan(losses)).any():
            losses[missing] = 0.0 if missing.all() else losses[~missing].mean()
        return losses

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

    def _set(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Take first reports of rows that had none."""
        self.loss[rows] = self._reported_loss[rows] = losses
        self._products[rows] = 0.0
        self.reported_at[rows] = server_round

    def _fit(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Update the sums behind eta, trend, noise and drift."""
        x, y = self._products[rows], self._reported_loss[rows] - losses
        age = (server_round - self.reported_at[rows]).astype(np.float64)
        squares = (losses - self.estimate(server_round, rows)) ** 2
        n, *_, e2, _ = self._innovation_sums
        # While there is little to compare with, only gross errors are left out.
        limit = (
            OUTLIER_DEVIATIONS**2 * e2 / n
            if n >= MIN_SAMPLES
            else GROSS_ERROR_RATIO * float(np.median(squares))
        )
        a = age
        if limit > 0.0:
            inliers = squares <= limit
            x, y, a = x[inliers], y[inliers], age[inliers]
            squares = np.minimum(squares, limit) if n >= MIN_SAMPLES else squares[inliers]
            age = age if n >= MIN_SAMPLES else a
        with np.errstate(over="ignore", invalid="ignore"):
            self._fall_sums = MEMORY * self._fall_sums + [x @ x, x @ a, a @ a, x @ y, a @ y]
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
        expected = self.estimate(server_round, rows)
        self.loss[rows] = expected + gain * (losses - expected)
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
