"""Statistics of records: curves over rounds, means with intervals, paired differences.

`METRICS` declares the metrics of tables; `metrics_of` has those of runs whose clients are judged by
another metric than accuracy. The value of a run is, for accuracies, the mean over the last tenth of
evaluations, which evens out the fluctuation between rounds; for what adds up over a run
(selections, updates, bytes, seconds) it is the last value. Intervals are 95 % Student intervals
over seeds, from three seeds on. Differences are taken seed by seed, because compared runs share
their mini-batches.

An interval of a bounded quantity is cut off at the bounds. The estimated mean lies within them, so
this does not reduce the coverage. A transformation such as the logit would keep the interval inside
as well, but has no value at 0 and 1, which worst accuracies often reach.

Schedulers that are compared with one baseline make several tests of one table. Their p-values are
corrected by Holm's method (Scandinavian Journal of Statistics 6, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.metrics import CLIENT_METRICS

Record = Mapping[str, Any]
"""A record of a run folder."""

Bounds = tuple[float, float]

ANY: Bounds = (-math.inf, math.inf)
SHARE: Bounds = (0.0, 1.0)
COST: Bounds = (0.0, math.inf)


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:.1f} s"


def _traffic(record: Record) -> float | None:
    return float(record["bytes_up"] + record["bytes_down"]) if "bytes_up" in record else None


@dataclass(frozen=True)
class Metric:
    """A metric of tables: how it is read from records, summarised and shown.

    Attributes
    ----------
    heading
        The heading of its column.
    bounds
        The values between which it lies; intervals are cut off there.
    total
        Whether it adds up over a run, so that its last value counts; otherwise it is the mean over
        the last tenth of evaluations.
    compared
        Whether tables show differences to the baseline, and figures show curves.
    label
        Its name on the axis of a figure.
    text
        A number as text.
    value
        Its value in a record; by default the field of its name.
    cost
        Whether it is a cost, which is often the same at every seed and then has no interval.
    lower_is_better
        Whether the best value is the smallest.

    Examples
    --------
    >>> METRICS["bytes"].heading, METRICS["bytes"].text(2.5e9)
    ('traffic', '2.50 GB')
    """

    heading: str
    bounds: Bounds = SHARE
    total: bool = False
    compared: bool = False
    label: str = ""
    text: Callable[[float], str] = "{:.3f}".format
    value: Callable[[Record], float | None] | None = None
    cost: bool = False
    lower_is_better: bool = False


def _cost(
    heading: str,
    text: Callable[[float], str],
    value: Callable[[Record], float | None] | None = None,
) -> Metric:
    """Return a metric that adds up over a run, and of which less is better."""
    return Metric(
        heading, COST, total=True, text=text, value=value, cost=True, lower_is_better=True
    )


METRICS: dict[str, Metric] = {
    "worst": Metric("worst", compared=True, label="worst test accuracy"),
    "worst20": Metric("worst 20 %", compared=True, label="mean test accuracy of the worst 20 %"),
    "average": Metric("average", compared=True, label="average test accuracy"),
    "std": Metric("std", (0.0, 0.5), lower_is_better=True),
    "tv": Metric("TV", total=True, text="{:.4f}".format, lower_is_better=True),
    "jain": Metric("Jain", total=True),
    "updates": _cost("updates", "{:,.0f}".format),
    "bytes": _cost("traffic", _bytes, _traffic),
    "seconds": _cost("virtual time", _seconds),
}
"""The metrics of tables, in the order of their columns. A metric is declared here and nowhere else;
a record that lacks it leaves its column out."""

COMPARED = tuple(name for name, metric in METRICS.items() if metric.compared)
"""The metrics of which differences to the baseline are shown."""

BOUNDS: dict[str, Bounds] = {
    **{name: metric.bounds for name, metric in METRICS.items()},
    "ratio": SHARE,
    "bias": COST,
}
"""The bounds of metrics and of other quantities that figures show."""


def metrics_of(metric: str = "accuracy") -> dict[str, Metric]:
    """Return the metrics of tables where clients are judged by a metric of `CLIENT_METRICS`.

    >>> worst = metrics_of("rmse")["worst"]
    >>> worst.heading, worst.label, worst.lower_is_better
    ('worst RMSE', 'worst test RMSE', True)
    >>> metrics_of() == METRICS
    True
    """
    judged = CLIENT_METRICS[metric]
    found = dict(METRICS)
    for field in ("worst", "worst20", "average"):
        if metric == "accuracy":
            break
        found[field] = replace(
            METRICS[field],
            heading=f"{METRICS[field].heading} {judged.label}",
            bounds=judged.bounds,
            label=METRICS[field].label.replace("accuracy", judged.label),
            lower_is_better=judged.lower_is_better,
        )
    found["std"] = replace(METRICS["std"], bounds=(0.0, judged.bounds[1] / 2.0))
    return found


def metric_of(records: Iterable[Record]) -> str:
    """Return the metric by which clients are judged in records.

    >>> metric_of([{"metric": "rmse"}]), metric_of([{"worst": 0.5}])
    ('rmse', 'accuracy')
    """
    return next((str(record["metric"]) for record in records if "metric" in record), "accuracy")


FEWEST = 3
"""With fewer seeds there is no interval: that of two is 13 times as wide as they are apart."""

LEVEL = 0.05
"""A difference is shown if its p-value, corrected, is below this."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, half the width of its 95 % interval (None for none), what it is made of.

    >>> found = Estimate(0.2, 0.25, n=3, bounds=SHARE)
    >>> found.low, found.high, found.is_cut
    (0.0, 0.45, True)
    """

    mean: float
    half: float | None
    n: int
    values: tuple[float, ...] = ()
    bounds: Bounds = ANY

    @property
    def low(self) -> float:
        """The interval's lower end; the mean itself where there is no interval."""
        return min(self.mean, max(self.mean - (self.half or 0.0), self.bounds[0]))

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return max(self.mean, min(self.mean + (self.half or 0.0), self.bounds[1]))

    @property
    def is_cut(self) -> bool:
        """Whether the interval would pass a bound, and ends there instead."""
        half = self.half or 0.0
        return self.mean - half < self.bounds[0] or self.mean + half > self.bounds[1]

    @property
    def p(self) -> float | None:
        """The p-value of Student's two-sided test that the mean is zero; None with no interval.

        >>> round(estimate([1.0, 2.0, 3.0]).p, 4)
        0.0742
        """
        if self.half is None:
            return None
        if self.mean == 0.0 or self.half == 0.0:
            return 1.0 if self.mean == 0.0 else 0.0
        from scipy import stats

        t = abs(self.mean) / self.half * _student_quantile(self.n)
        return float(2.0 * stats.t.sf(t, self.n - 1))


@cache  # A figure has an interval at each evaluation, all of the same number of seeds.
def _student_quantile(n: int) -> float:
    from scipy import stats  # Imported here: it takes longer than all else of `adcs --help`.

    return float(stats.t.ppf(0.975, n - 1))


def estimate(values: Iterable[float], bounds: Bounds = ANY) -> Estimate:
    """Return the mean and its 95 % Student interval; values that are not finite are left out.

    Parameters
    ----------
    values
        A number for each seed.
    bounds
        What the quantity lies between: the interval is cut off there.

    Examples
    --------
    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, round(found.half, 3), found.n
    (2.0, 2.484, 3)
    >>> estimate([0.5, 0.7])
    Estimate(mean=0.6, half=None, n=2, values=(0.5, 0.7), bounds=(-inf, inf))
    """
    x = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    if x.size == 0:
        return Estimate(float("nan"), None, 0, (), bounds)
    mean, n, kept = float(x.mean()), int(x.size), tuple(x.tolist())
    if n < FEWEST:
        return Estimate(mean, None, n, kept, bounds)
    half = float(_student_quantile(n) * x.std(ddof=1) / np.sqrt(n))
    return Estimate(mean, half, n, kept, bounds)


def paired(
    a: Sequence[float] | Float64Array, b: Sequence[float] | Float64Array, bounds: Bounds = SHARE
) -> Estimate:
    """Return the mean of a - b over seeds with its interval; a and b lie within the bounds.

    >>> paired([0.6, 0.7], [0.5, 0.6]).mean
    0.1
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    width = bounds[1] - bounds[0]
    found = estimate(difference, (-width, width))
    # Sums in another order differ in their last bits: equal runs are to have a difference of 0.
    return replace(found, mean=round(found.mean, 12))


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method.

    The smallest of k is multiplied by k, the next by k - 1, and so on; none is smaller than one
    before it, or larger than 1. If all with a corrected value below 0.05 are called shown, the
    probability of one wrong call or more is at most 0.05.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found = [1.0] * len(p)
    least = 0.0
    for position, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = max(least, min(1.0, (len(p) - position) * p[i]))
        found[i] = least
    return found


def corrected(differences: Mapping[str, Estimate]) -> dict[str, float]:
    """Return the p-values of differences, corrected by Holm's method; those without are left out.

    >>> corrected({"A": Estimate(0.0, 0.1, 5), "B": Estimate(0.1, None, 2)})
    {'A': 1.0}
    """
    found = {name: e.p for name, e in differences.items() if e.p is not None}
    return dict(zip(found, holm(list(found.values())), strict=True))


@dataclass(frozen=True)
class Curves:
    """One field of all runs over rounds.

    Attributes
    ----------
    field
        Its name.
    rounds
        The rounds that were evaluated.
    seeds
        The seeds, one row of `values` for each.
    values
        For each scheduler an array of seeds x rounds, NaN where there is no record.
    metric
        The metric by which clients are judged.

    Examples
    --------
    >>> found = Curves("worst", np.array([0, 5]), (0,), {"U": np.array([[0.25, 0.5]])})
    >>> found.last()
    {'U': array([0.5])}
    """

    field: str
    rounds: IndexArray
    seeds: tuple[int, ...]
    values: dict[str, Float64Array]
    metric: str = "accuracy"

    def last(self) -> dict[str, Float64Array]:
        """Return, for each scheduler, a number for each seed: see the module's first lines."""
        if self.rounds.size == 0:
            return {label: np.full(len(self.seeds), np.nan) for label in self.values}
        total = self.field in METRICS and METRICS[self.field].total
        count = 1 if total else max(1, self.rounds.size // 10)
        return {label: table[:, -count:].mean(axis=1) for label, table in self.values.items()}

    def band(self, label: str) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return mean, lower and upper end of the interval over seeds, round by round.

        With fewer than three seeds the ends are the smallest and the largest value.
        """
        metrics = metrics_of(self.metric)
        bounds = (
            metrics[self.field].bounds if self.field in metrics else BOUNDS.get(self.field, ANY)
        )
        table = self.values[label]
        known = np.isfinite(table)
        n = known.sum(axis=0)
        quantiles = np.array([_student_quantile(k) if k >= FEWEST else np.nan for k in n.tolist()])
        with np.errstate(all="ignore"):  # Rounds without a number have none here either.
            mean = table.sum(axis=0, where=known) / n
            squares = ((table - mean) ** 2).sum(axis=0, where=known)
            half = quantiles * np.sqrt(squares / (n - 1)) / np.sqrt(n)
            low = np.minimum(mean, np.maximum(mean - half, bounds[0]))
            high = np.maximum(mean, np.minimum(mean + half, bounds[1]))
        few = (n > 0) & (n < FEWEST)
        low[few] = table.min(axis=0, where=known, initial=np.inf)[few]
        high[few] = table.max(axis=0, where=known, initial=-np.inf)[few]
        return mean, low, high

    def smooth(self, window: int) -> Curves:
        """Return the running mean over so many evaluations: see `running_mean`."""
        return Curves(
            self.field,
            self.rounds,
            self.seeds,
            {
                label: np.array([running_mean(row, window) for row in table])
                for label, table in self.values.items()
            },
            self.metric,
        )


def running_mean(values: Float64Array, window: int) -> Float64Array:
    """Return the mean of each value and its neighbours, equally many on both sides.

    The window is an odd number. It shrinks towards the ends, where the first and the last value
    stand for themselves: no point is the mean of later ones alone.

    >>> running_mean(np.array([0.0, 3.0, 6.0, 3.0]), 3)
    array([0., 3., 4., 3.])
    """
    if window % 2 == 0:
        raise ValueError(f"window must be odd, got {window}")
    found, last = values.astype(np.float64), values.size - 1
    half = min(window // 2, last // 2)
    if half > 0:
        windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1)
        found[half : last - half + 1] = windows.mean(axis=1)
    for k in range(1, half):
        found[k] = values[: 2 * k + 1].mean()
        found[last - k] = values[last - 2 * k :].mean()
    return found


def curves(records: Iterable[Record], field: str, labels: Sequence[str] | None = None) -> Curves:
    """Return one field of the records as curves.

    Parameters
    ----------
    records
        Records of a run folder.
    field
        A field of theirs, or "bytes": up and down together.
    labels
        The schedulers wanted, in this order; all by default, in the order of appearance.

    Examples
    --------
    >>> run = {"scheduler": "U", "seed": 0}
    >>> records = [{**run, "server_round": r, "worst": r / 10} for r in (0, 5)]
    >>> curves(records, "worst").values["U"]
    array([[0. , 0.5]])
    """
    found: dict[tuple[str, int, int], float] = {}
    lines = list(records)
    read = _reader(field)
    for record in lines:
        value = read(record)
        if value is not None:
            found[record["scheduler"], int(record["seed"]), int(record["server_round"])] = value
    rounds = sorted({key[2] for key in found})
    seeds = sorted({key[1] for key in found})
    names = list(dict.fromkeys(key[0] for key in found)) if labels is None else list(labels)
    position = {r: i for i, r in enumerate(rounds)}
    row = {seed: i for i, seed in enumerate(seeds)}
    values = {name: np.full((len(seeds), len(rounds)), np.nan) for name in names}
    for (name, seed, r), value in found.items():
        if name in values:
            values[name][row[seed], position[r]] = value
    return Curves(field, np.array(rounds, dtype=np.intp), tuple(seeds), values, metric_of(lines))


def value_of(record: Record, field: str) -> float | None:
    """Return a field of a record as a number, None where it has none.

    >>> value_of({"bytes_up": 3, "bytes_down": 4}, "bytes")
    7.0
    """
    return _reader(field)(record)


def _reader(field: str) -> Callable[[Record], float | None]:
    """Return what reads a field of a record as a number."""
    if field in METRICS and (read := METRICS[field].value) is not None:
        return read

    def number(record: Record) -> float | None:
        value = record.get(field)
        return None if value is None else float(value)

    return number


@dataclass(frozen=True)
class Row:
    """One scheduler's line of the table.

    Attributes
    ----------
    label
        The scheduler.
    cells
        Estimates by field.
    differences
        Differences to the baseline by field, seed by seed.
    p
        Their p-values by field, corrected by Holm's method over the schedulers of the table.
    left_out
        Seeds by field whose value is no finite number, and does not count.
    metric
        The metric by which clients are judged.

    Examples
    --------
    >>> end = {"scheduler": "ADCS", "seed": 0, "server_round": 9, "worst": 0.6}
    >>> [row] = summarise([end], ["ADCS"])
    >>> row.label, row.cells["worst"].mean
    ('ADCS', 0.6)
    """

    label: str
    cells: dict[str, Estimate]
    differences: dict[str, Estimate]
    p: dict[str, float]
    left_out: dict[str, tuple[int, ...]]
    metric: str = "accuracy"


def summarise(
    records: Iterable[Record], labels: Sequence[str], baseline: str | None = None
) -> list[Row]:
    """Return the table of a comparison.

    Parameters
    ----------
    records
        Records of a run folder.
    labels
        The schedulers, in the order of the lines.
    baseline
        The scheduler that the others' accuracies are compared with, seed by seed.

    Examples
    --------
    >>> end = {"seed": 0, "server_round": 9}
    >>> lines = [{**end, "scheduler": s, "worst": w} for s, w in ("A1", "B3")]
    >>> rows = summarise(lines, ["A", "B"], baseline="A")
    >>> rows[1].cells["worst"].mean, rows[1].differences["worst"].mean
    (3.0, 2.0)
    """
    lines = list(records)
    seeds = sorted({int(record["seed"]) for record in lines})
    judged = metric_of(lines)
    rows = [Row(label, {}, {}, {}, {}, judged) for label in labels]
    for field, metric in metrics_of(judged).items():
        found = curves(lines, field, labels)
        last = found.last()
        shown = any(np.isfinite(numbers).any() for numbers in last.values())
        # An accuracy that no run has was lost; a TV distance may not be defined.
        shown |= not metric.total and any(field in record for record in lines)
        for row in rows:
            numbers = last[row.label]
            row.cells[field] = estimate(numbers, metric.bounds)
            finite = {seed for seed, x in zip(found.seeds, numbers, strict=True) if np.isfinite(x)}
            if shown and finite != set(seeds):
                row.left_out[field] = tuple(seed for seed in seeds if seed not in finite)
        if baseline is None or not metric.compared:
            continue
        others = [row for row in rows if row.label != baseline]
        for row in others:
            row.differences[field] = paired(last[row.label], last[baseline], metric.bounds)
        p = corrected({row.label: row.differences[field] for row in others})
        for row in others:
            if row.label in p:
                row.p[field] = p[row.label]
    return rows


def final_ratios(records: Iterable[Record], label: str) -> Float64Array:
    """Return the share of selections that fell on each group: seeds x groups, by the last record.

    >>> record = {"scheduler": "U", "seed": 0, "server_round": 9, "group_ratios": [0.5, 0.5]}
    >>> final_ratios([record], "U")
    array([[0.5, 0.5]])
    """
    last: dict[int, Record] = {}
    for record in records:
        if record["scheduler"] == label and record.get("group_ratios") is not None:
            seed = int(record["seed"])
            if seed not in last or record["server_round"] >= last[seed]["server_round"]:
                last[seed] = record
    return np.array([last[seed]["group_ratios"] for seed in sorted(last)], dtype=np.float64)


def trained(records: Iterable[Record], m: int) -> dict[str, float]:
    """Return, for each scheduler, how many updates were trained on, of m in each round.

    It is the mean over seeds of a share, by the ledger of the last records.

    >>> run = {"scheduler": "U", "seed": 0, "server_round": 10}
    >>> trained([{**run, "updates": 12, "extra_updates": 2}], m=4)
    {'U': 0.25}
    """
    last: dict[str, dict[int, Record]] = {}
    for record in records:
        if record["server_round"] and "extra_updates" in record:
            last.setdefault(record["scheduler"], {})[int(record["seed"])] = record
    return {
        label: float(
            np.mean(
                [
                    (r["updates"] - r["extra_updates"]) / (m * r["server_round"])
                    for r in ends.values()
                ]
            )
        )
        for label, ends in last.items()
    }


def diverged(records: Iterable[Record]) -> dict[str, list[int]]:
    """Return the schedulers and seeds whose models ended far worse than they began.

    Their test loss is no number at the end, or more than twice what it was at the start.

    >>> diverged([{"scheduler": "U", "seed": 3, "test_loss": loss} for loss in (2.3, 5.0)])
    {'U': [3]}
    """
    found: dict[tuple[str, int], list[float]] = {}
    for record in records:
        if "test_loss" in record:  # null in a record is what was no number
            loss = math.inf if record["test_loss"] is None else float(record["test_loss"])
            found.setdefault((record["scheduler"], int(record["seed"])), []).append(loss)
    labels: dict[str, list[int]] = {}
    for (label, seed), losses in sorted(found.items(), key=lambda item: item[0][1]):
        if not losses[-1] <= 2.0 * losses[0]:
            labels.setdefault(label, []).append(seed)
    return labels
