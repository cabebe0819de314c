"""Estimates of clients' losses between reports, by a Kalman filter for each client.

Between reports the loss falls by eta times the inner products of the client's update with the
global steps, which is its first-order fall, and by a trend in each round, which corrects what the
first order leaves out. Its variance grows by the drift of every round. All four numbers come from
consecutive reports, not from estimates: an estimate that lags behind would otherwise pass for
noise, and noise makes the filter lag. eta and trend are fitted to the falls between reports. What
the fit leaves of two falls that follow each other has one report in common, so that their
covariance is minus the variance of a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.reports.report import MAX_VALUE

MEMORY = 1000.0
"""The sums behind all fits forget at this number of reports: what was true early is not later."""

PATIENT_REPORTS = 5.0
"""After this many reports, half of what a client's loss has not fallen counts against it."""

ENOUGH_FALL = 0.5
"""A loss that has fallen by this fraction of the fall of the median responds to training."""

FALL_DOUBT = 3.0
"""How many standard deviations of a report a fall is uncertain by."""

NOISE_DEVIATIONS = 3.0
"""In noise and drift no fall is further from the fit than this many standard deviations."""

OUTLIER_DEVIATIONS = 5.0
"""Clip values beyond this many robust standard deviations: reports are untrusted."""

MIN_SAMPLES = 10.0
"""Noise and drift are estimated from at least this many falls."""

GROSS_ERROR_RATIO = 1e4
"""Among the first falls, drop squares beyond this many times their median."""


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
        self._last_rest: Float64Array = np.empty(0)  # what the fit has left of the last fall
        # At each client's first report: its loss, and the median of all; and how many it has sent.
        self._first_loss: Float64Array = np.empty(0)
        self._first_median: Float64Array = np.empty(0)
        self._report_count: Float64Array = np.empty(0)
        # With x the products, a the age and y the fall since a client's last report, the sums of
        # x x, x a, a a, x y and a y; then, with e the rest of y and e' that of the fall before, of
        # 1, a and e e, and of 1 and e e' where there is a fall before.
        self._fall_sums: Float64Array = np.zeros(5)
        self._rest_sums: Float64Array = np.zeros(5)

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
            self._last_rest = np.append(self._last_rest, zeros + np.nan)
            self._first_loss = np.append(self._first_loss, losses[~known])
            self._report_count = np.append(self._report_count, zeros)
            now = np.full(zeros.size, server_round, dtype=np.intp)
            self.reported_at = np.append(self.reported_at, now)
            median = np.median(self.estimate(server_round))
            self._first_median = np.append(self._first_median, zeros + median)

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

        A fall has the variance of two reports and the drift between them. Two that follow each
        other share a report, which counts in one with the opposite sign of the other.
        """
        n, age, squares, pairs, products = self._rest_sums
        if n < MIN_SAMPLES:
            return np.inf, np.inf
        mean = squares / n
        noise = -products / pairs if pairs >= MIN_SAMPLES else mean / 4.0
        noise = min(max(noise, 1e-3 * mean), (1.0 - 1e-3) * mean / 2.0)
        return noise, (mean - 2.0 * noise) / max(age / n, 1.0)

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
        self.loss[rows] = self._reported_loss[rows] = self._first_loss[rows] = losses
        self._products[rows] = 0.0
        self.reported_at[rows] = server_round

    def response(self, server_round: int, rows: IndexArray) -> Float64Array:
        """Return how far losses have fallen, as a fraction of what is enough, from 0 to 1.

        Enough is `ENOUGH_FALL` of the fall of the median loss since the client's first report, less
        `FALL_DOUBT`. A client with few reports has hardly been trained: what its loss has not
        fallen counts against it as its reports grow in number.
        """
        noise = self.noise[0]
        if not np.isfinite(noise):
            return np.ones(rows.size)
        losses, doubt = self.estimate(server_round, rows), FALL_DOUBT * np.sqrt(noise)
        enough = ENOUGH_FALL * np.maximum(self._first_median[rows] - np.median(losses), 0.0)
        fallen = np.nan_to_num(self._first_loss[rows] - losses)
        scale = np.maximum(enough - doubt, doubt)
        with np.errstate(over="ignore"):  # It is clipped to one.
            missing = np.divide(
                enough - doubt - fallen, scale, out=np.zeros(rows.size), where=scale > 0.0
            )
        count = self._report_count[rows]
        blame = count / (count + PATIENT_REPORTS)
        return np.asarray(1.0 - blame * np.clip(missing, 0.0, 1.0))

    def _fit(self, rows: IndexArray, losses: Float64Array, server_round: int) -> None:
        """Update the sums behind eta, trend, noise and drift, and the falls of clients."""
        x, y = self._products[rows], self._reported_loss[rows] - losses
        age = (server_round - self.reported_at[rows]).astype(np.float64)
        eta, trend = self.slopes
        with np.errstate(over="ignore", invalid="ignore"):
            expected = np.nan_to_num(eta * x + trend * age)
        # Losses are at most `MAX_VALUE`, so no fall is larger than twice that.
        rest = y - np.clip(expected, -2.0 * MAX_VALUE, 2.0 * MAX_VALUE)
        self._report_count[rows] += 1.0
        n, _, e2, *_ = self._rest_sums
        if n >= MIN_SAMPLES:
            fitted = rest**2 <= OUTLIER_DEVIATIONS**2 * e2 / n
            reach = NOISE_DEVIATIONS * np.sqrt(e2 / n)
            if reach > 0.0:
                rest = np.clip(rest, -reach, reach)
            else:
                fitted[:] = True
        else:  # There is little to compare with: only gross errors are left out.
            fitted = rest**2 <= GROSS_ERROR_RATIO * float(np.median(rest**2))
            rest[~fitted] = np.nan
        keep = np.exp(-rows.size / MEMORY)
        x, y, a = x[fitted], y[fitted], age[fitted]
        with np.errstate(over="ignore", invalid="ignore"):
            self._fall_sums = keep * self._fall_sums + [x @ x, x @ a, a @ a, x @ y, a @ y]
        products = rest * self._last_rest[rows]
        self._last_rest[rows] = rest
        pairs, held = np.isfinite(products), np.isfinite(rest)
        self._rest_sums = keep * self._rest_sums + [
            held.sum(),
            age[held].sum(),
            (rest[held] ** 2).sum(),
            pairs.sum(),
            products[pairs].sum(),
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
