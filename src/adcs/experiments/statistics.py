"""From records to statistics: curves over rounds, means with intervals, paired differences.

A number of a run is, for accuracies, its mean over the last tenth of evaluations, which evens out
the fluctuation from one round to the next; for what adds up over a run (selections, updates,
bytes, seconds) it is the last value. Seeds give the spread: intervals are 95 % Student intervals
over seeds, and differences are taken seed by seed, since compared runs share their mini-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from adcs._types import Float64Array, IndexArray

ACCURACIES = ("worst", "worst20", "average", "std")
"""Fields that are averaged over the last tenth of evaluations."""

TOTALS = ("tv", "jain", "updates", "bytes", "seconds")
"""Fields of which the last value counts."""

Record = Mapping[str, Any]


class Estimate(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval, None where there is none.

    >>> Estimate(0.5, 0.25, n=3).low
    0.25
    """

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float:
        """The interval's lower end; the mean itself where there is no interval."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + (self.half or 0.0)


def estimate(values: Iterable[float]) -> Estimate:
    """Return the mean and its 95 % Student interval; values that are NaN are left out.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, half=2.48413..., n=3)
    >>> estimate([0.5])
    Estimate(mean=0.5, half=None, n=1)
    """
    x = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    if x.size == 0:
        return Estimate(float("nan"), None, 0)
    mean = float(x.mean())
    if x.size == 1:
        return Estimate(mean, None, 1)
    half = float(stats.t.ppf(0.975, x.size - 1) * x.std(ddof=1) / np.sqrt(x.size))
    return Estimate(mean, half, int(x.size))


def paired(a: Sequence[float] | Float64Array, b: Sequence[float] | Float64Array) -> Estimate:
    """Return the mean of a - b over seeds with its interval.

    >>> paired([0.6, 0.7], [0.5, 0.6]).mean
    0.1
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    found = estimate(difference)
    return found._replace(mean=round(found.mean, 12))


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

    def last(self) -> dict[str, Float64Array]:
        """Return, for each scheduler, a number for each seed: see the module's first lines."""
        if self.rounds.size == 0:
            return {label: np.full(len(self.seeds), np.nan) for label in self.values}
        count = max(1, self.rounds.size // 10) if self.field not in TOTALS else 1
        return {label: table[:, -count:].mean(axis=1) for label, table in self.values.items()}

    def band(self, label: str) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return mean, lower and upper end of the interval over seeds, round by round."""
        found = [estimate(column) for column in self.values[label].T]
        mean, low, high = zip(*[(e.mean, e.low, e.high) for e in found], strict=True)
        return np.array(mean), np.array(low), np.array(high)

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
    last = values.size - 1
    sides = [min(window // 2, i, last - i) for i in range(values.size)]
    return np.array([values[i - k : i + k + 1].mean() for i, k in enumerate(sides)])


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
    for record in records:
        value = value_of(record, field)
        if value is not None:
            found[record["scheduler"], int(record["seed"]), int(record["server_round"])] = value
    rounds = sorted({key[2] for key in found})
    seeds = sorted({key[1] for key in found})
    names = list(dict.fromkeys(key[0] for key in found)) if labels is None else list(labels)
    place = {r: i for i, r in enumerate(rounds)}
    row = {seed: i for i, seed in enumerate(seeds)}
    values = {name: np.full((len(seeds), len(rounds)), np.nan) for name in names}
    for (name, seed, r), value in found.items():
        if name in values:
            values[name][row[seed], place[r]] = value
    return Curves(field, np.array(rounds, dtype=np.intp), tuple(seeds), values)


def value_of(record: Record, field: str) -> float | None:
    """Return a field of a record as a number, None where it has none.

    >>> value_of({"bytes_up": 3, "bytes_down": 4}, "bytes")
    7.0
    """
    if field == "bytes":
        return float(record["bytes_up"] + record["bytes_down"]) if "bytes_up" in record else None
    value = record.get(field)
    return None if value is None else float(value)


@dataclass(frozen=True)
class Row:
    """One scheduler's line of the table: estimates by field, and differences to the baseline."""

    label: str
    cells: dict[str, Estimate]
    differences: dict[str, Estimate]


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
    last = {field: curves(lines, field, labels).last() for field in (*ACCURACIES, *TOTALS)}
    rows = []
    for label in labels:
        cells = {field: estimate(numbers[label]) for field, numbers in last.items()}
        differences = {}
        if baseline is not None and label != baseline:
            for field in ("worst", "worst20", "average"):
                differences[field] = paired(last[field][label], last[field][baseline])
        rows.append(Row(label, cells, differences))
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
