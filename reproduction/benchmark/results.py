"""The numbers of the benchmark: one row for each case, scheduler and seed."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adcs.experiments import Estimate, Record, curves, format_number, paired
from reproduction.benchmark.protocol import BASELINE

METRICS = ("worst", "worst20", "average")
COSTS = ("updates", "bytes", "seconds")


@dataclass(frozen=True)
class Row:
    """The result of one scheduler with one seed of a case.

    Attributes
    ----------
    case, scheduler, seed
        Which one.
    worst, worst20, average
        Accuracies, means over the last tenth of evaluations.
    updates, bytes, seconds
        Costs of the whole run.
    bytes_to_reach, seconds_to_reach
        Costs until the average accuracy is at least Uniform's final one of the same seed, with
        rounds that wait for everybody; infinity if it never is.
    """

    case: str
    scheduler: str
    seed: int
    worst: float
    worst20: float
    average: float
    updates: float
    bytes: float
    seconds: float
    bytes_to_reach: float
    seconds_to_reach: float


def rows_of(
    case: str, records: Sequence[Record], target: Mapping[int, float] | None = None
) -> list[Row]:
    """Return the rows of a case from the records of all its runs.

    Parameters
    ----------
    case
        Its name.
    records
        The records.
    target
        The average accuracy to be reached, by seed; by default the baseline's final one.
    """
    last = {field: curves(records, field).last() for field in (*METRICS, *COSTS)}
    seeds = curves(records, "average").seeds
    reached = {cost: cost_to_reach(records, cost, target) for cost in ("bytes", "seconds")}
    return [
        Row(
            case,
            label,
            seed,
            **{field: float(last[field][label][i]) for field in (*METRICS, *COSTS)},
            bytes_to_reach=float(reached["bytes"][label][i]),
            seconds_to_reach=float(reached["seconds"][label][i]),
        )
        for label in last["average"]
        for i, seed in enumerate(seeds)
    ]


def cost_to_reach(
    records: Sequence[Record], cost: str, target: Mapping[int, float] | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return each scheduler's cost until its average accuracy is a target, seed by seed.

    The cost is that of the first evaluation at which the accuracy is at least the target of the
    seed, by default the baseline's final one; infinity if there is none.

    Examples
    --------
    >>> def record(scheduler, server_round, average, seconds):
    ...     place = {"scheduler": scheduler, "seed": 0, "server_round": server_round}
    ...     return {**place, "average": average, "seconds": seconds}
    >>> slow = [record("Uniform", r, r / 10, 3.0 * r) for r in range(5)]
    >>> fast = [record("Oort", r, r / 5, 1.0 * r) for r in range(5)]
    >>> cost_to_reach([*slow, *fast], "seconds", {0: 0.4})
    {'Uniform': array([12.]), 'Oort': array([2.])}
    """
    found, costs = curves(records, "average"), curves(records, cost)
    if target is None:
        targets = found.last()[BASELINE]
    else:
        targets = np.array([target[seed] for seed in found.seeds])
    spent = {}
    for label, values in found.values.items():
        reached = values >= targets[:, None]
        first = reached.argmax(axis=1)
        at = costs.values[label][np.arange(first.size), first]
        spent[label] = np.where(reached.any(axis=1), at, np.inf)
    return spent


def format_reached(costs: NDArray[np.float64], field: str) -> str:
    """Return the mean cost over the seeds that reached the accuracy, and how many did if not all.

    >>> format_reached(np.array([100.0, 120.0]), "seconds")
    '110 s'
    >>> format_reached(np.array([100.0, np.inf]), "seconds")
    '100 s (1 of 2 seeds)'
    >>> format_reached(np.array([np.inf, np.inf]), "seconds")
    'never'
    """
    reached = np.isfinite(costs)
    if not reached.any():
        return "never"
    mean = format_number(float(costs[reached].mean()), field)
    return mean if reached.all() else f"{mean} ({int(reached.sum())} of {costs.size} seeds)"


class Results:
    """All rows, by case and scheduler.

    Examples
    --------
    >>> rows = [Row("a", name, 0, *[x] * 8) for name, x in (("Uniform", 0.5), ("Mine", 0.75))]
    >>> results = Results(rows)
    >>> results.schedulers("a"), results.difference("a", "Mine", "worst").mean
    (['Uniform', 'Mine'], 0.25)
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[str, dict[str, dict[int, Row]]] = {}
        for row in rows:
            self._rows.setdefault(row.case, {}).setdefault(row.scheduler, {})[row.seed] = row

    @property
    def cases(self) -> list[str]:
        """The cases that have rows."""
        return list(self._rows)

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [r for c in self._rows.values() for s in c.values() for r in s.values()]

    def of_seeds(self, count: int, cases: Collection[str]) -> Results:
        """Return the results of some cases with their first seeds only."""
        kept = []
        for case in cases:
            seeds = sorted({r.seed for s in self._rows[case].values() for r in s.values()})[:count]
            kept += [r for r in self.rows if r.case == case and r.seed in seeds]
        return Results(kept)

    def target(self, case: str) -> dict[int, float]:
        """Return the baseline's final average accuracy, by seed."""
        return {seed: row.average for seed, row in self._rows[case][BASELINE].items()}

    def schedulers(self, case: str) -> list[str]:
        """Return the schedulers of a case."""
        return list(self._rows[case])

    def values(self, case: str, scheduler: str, field: str) -> NDArray[np.float64]:
        """Return a field, seed by seed."""
        found = self._rows[case][scheduler]
        return np.array([getattr(found[seed], field) for seed in sorted(found)], dtype=np.float64)

    def mean(self, case: str, scheduler: str, field: str) -> float:
        """Return the mean of a field over seeds."""
        return float(self.values(case, scheduler, field).mean())

    def difference(
        self, case: str, scheduler: str, field: str, baseline: str = BASELINE
    ) -> Estimate:
        """Return the paired difference to another scheduler."""
        return paired(self.values(case, scheduler, field), self.values(case, baseline, field))

    def difference_to_best(
        self, case: str, scheduler: str, field: str, rivals: Sequence[str]
    ) -> Estimate:
        """Return the difference to the best of some rivals, which is chosen by the other seeds.

        The best of many by the same seeds is partly the luckiest. At each seed the rival is
        the one with the largest mean over the other seeds.

        >>> worst = {"Mine": (5, 5), "A": (5, 6), "B": (6, 4)}
        >>> rows = [Row("a", k, s, *[worst[k][s]] * 8) for k in worst for s in (0, 1)]
        >>> Results(rows).difference_to_best("a", "Mine", "worst", ["A", "B"]).mean
        0.5
        """
        table = np.stack([self.values(case, rival, field) for rival in rivals])
        others = table.sum(axis=1, keepdims=True) - table
        chosen = table[others.argmax(axis=0), np.arange(table.shape[1])]
        return paired(self.values(case, scheduler, field), chosen)

    def traffic_ratio(self, case: str, scheduler: str) -> float:
        """Return the traffic as a multiple of the baseline's."""
        return self.mean(case, scheduler, "bytes") / self.mean(case, BASELINE, "bytes")


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: _text(v) for k, v in asdict(row).items()})


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                line["case"],
                line["scheduler"],
                int(line["seed"]),
                **{
                    each.name: float(line[each.name])
                    for each in fields(Row)
                    if each.name not in ("case", "scheduler", "seed")
                },
            )
            for line in csv.DictReader(file)
        ]


def _text(value: object) -> object:
    return f"{value:.10g}" if isinstance(value, float) and math.isfinite(value) else value
