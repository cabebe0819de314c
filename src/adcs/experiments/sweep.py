"""Sweeps: one scheduler at every point of a grid of settings, and the best point by a metric.

    OUT/
      sweep.json      the scheduler, the grid and the metric
      run-1, run-2    run folders, one for each combination of experiment settings
      confirm         the best point again, on other seeds (--confirm)
      summary.md, table.csv, figures

Points that differ in settings of the scheduler share a run, and so their mini-batches. A setting of
the experiment, such as the learning rate, takes a run for each of its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from adcs._validation import check_choice, check_int, did_you_mean, did_you_mean_path
from adcs.experiments import tables
from adcs.experiments.comparison import RUNS, Comparison, shown
from adcs.experiments.config import SETTINGS, Experiment, from_dict
from adcs.experiments.figures import write_csv
from adcs.experiments.merge import SWEEP
from adcs.experiments.report import is_png, setting
from adcs.experiments.runner import Progress, check_part, tasks
from adcs.experiments.specs import SCHEDULER, parts
from adcs.experiments.statistics import COMPARED, Estimate, Metric, metrics_of
from adcs.experiments.sweep_figure import LARGEST, sweep_figure
from adcs.experiments.validation import check_value
from adcs.run_folder import next_folder, plain, read_json, refuse_foreign, write_atomically
from adcs.simulation.partition import check_settings

NOT_SWEPT = ("seeds", "first_seed", "baseline", "pass_width")
"""Settings that are the same at every point: points are compared seed by seed."""

FORM = {"scheduler": str, "label": str, "grid": dict[str, list[Any]], "metric": str}
"""What sweep.json holds beside the experiment, by type."""


@dataclass(frozen=True)
class Point:
    """A point of the grid.

    Attributes
    ----------
    settings
        The value of each axis.
    run
        The number of its run, from 1.
    label
        The label of its scheduler in that run.

    Examples
    --------
    >>> Point({"theta": 0.5, "lr": 0.1}, 1, "theta=0.5").name
    'theta=0.5, lr=0.1'
    """

    settings: Mapping[str, Any]
    run: int
    label: str

    @property
    def name(self) -> str:
        """The settings as text."""
        return _words(self.settings)


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


@dataclass(frozen=True)
class Grid:
    """A scheduler, the values of each axis, and the experiment of all other settings.

    Parameters
    ----------
    scheduler, label
        The spec of the scheduler and its label.
    axes
        Values by the name of a setting, of the scheduler, the experiment or the partition.
    experiment
        The other settings; its schedulers do not count.

    Examples
    --------
    >>> grid = Grid("ADCS", "ADCS", {"theta": [0.2, 0.8], "lr": [0.1, 0.01]}, Experiment())
    >>> [(point.name, point.run, point.label) for point in grid.points][:2]
    [('theta=0.2, lr=0.1', 1, 'theta=0.2'), ('theta=0.2, lr=0.01', 2, 'theta=0.2')]
    >>> [experiment.training.lr for experiment in grid.experiments]
    [0.1, 0.01]
    >>> Grid("ADCS", "ADCS", {"thet": [0.2]}, Experiment())
    Traceback (most recent call last):
    ...
    ValueError: grid: neither ADCS nor an experiment has a setting 'thet'; did you mean theta?
    """

    scheduler: str
    label: str
    axes: Mapping[str, Sequence[Any]]
    experiment: Experiment

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError("grid must have at least one setting with its values, got none")
        for name, values in self.axes.items():
            self._check(name, values)
        list(self.experiments)  # Every point is checked before the first one runs.

    def _check(self, name: str, values: Sequence[Any]) -> None:
        if name in NOT_SWEPT and name not in self._own:
            raise ValueError(
                f"grid: {name} is the same at every point; give it as --{_dashed(name)}"
            )
        known = [*self._own, *self._partition, *SETTINGS]
        if name not in known:
            kind = parts(self.scheduler)[1]
            hint = did_you_mean(name, [each for each in known if each not in NOT_SWEPT])
            raise ValueError(
                f"grid: neither {kind} nor an experiment has a setting {name!r}; {hint}"
            )
        if not values:
            raise ValueError(f"grid: {name} must have at least one value, got none")
        texts = [repr(value) for value in values]
        if len(set(texts)) < len(texts):
            raise ValueError(f"grid: the values of {name} must be distinct, got {list(values)!r}")
        given = parts(self.scheduler)[2]
        if name in self._own and name in given:
            raise ValueError(f"grid: {name} is set in the scheduler {self.scheduler} already")

    @cached_property
    def _own(self) -> list[str]:
        """The settings of the scheduler."""
        return list(SCHEDULER.settings(SCHEDULER.read(self.scheduler)[0]))

    @cached_property
    def _partition(self) -> list[str]:
        """The settings of the kind of partition."""
        partition = self.experiment.partition
        try:
            return list(check_settings(partition.kind, partition.settings))
        except ValueError:
            return []

    @property
    def points(self) -> list[Point]:
        """The points, the last axis fastest."""
        runs = {_words(self._outer(each)): i for i, each in enumerate(self._runs(), start=1)}
        return [
            Point(each, runs[_words(self._outer(each))], self._label(each))
            for each in self._every()
        ]

    @property
    def experiments(self) -> Iterator[Experiment]:
        """The experiment of each run."""
        own = [name for name in self.axes if name in self._own]
        for outer in self._runs():
            inner = [
                dict(zip(own, values, strict=True))
                for values in product(*(self.axes[name] for name in own))
            ]
            specs = {self._label(each): self._spec(each) for each in inner}
            table = {k: v for k, v in outer.items() if k in self._partition}
            options = {k: v for k, v in outer.items() if k not in table}
            if table:
                options["partition_settings"] = table
            yield self.experiment.replace(schedulers=specs, **options)

    def _every(self) -> list[dict[str, Any]]:
        return [
            dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())
        ]

    def _runs(self) -> list[dict[str, Any]]:
        """Return the settings of the experiment in each run."""
        found = {_words(self._outer(each)): self._outer(each) for each in self._every()}
        return list(found.values())

    def _outer(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in self._own}

    def _label(self, settings: Mapping[str, Any]) -> str:
        own = {name: value for name, value in settings.items() if name in self._own}
        return _words(own) or self.label

    def _spec(self, settings: Mapping[str, Any]) -> str:
        where, name, given = parts(self.scheduler)
        words = ", ".join(f"{key}={value!r}" for key, value in {**given, **settings}.items())
        return f"{where}:{name}({words})" if where else f"{name}({words})"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class Sweep:
    """A sweep and its folder.

    Made by `Sweep.create` or `Sweep.open`; `run` runs what is not done and writes the report.

    Examples
    --------
    >>> import tempfile
    >>> experiment = Experiment.of(data="synthetic", clients=10, m=4, rounds=20, eval_every=10)
    >>> grid = Grid("ADCS", "ADCS", {"theta": [0.2, 0.8]}, experiment)
    >>> sweep = Sweep.create(grid, tempfile.mkdtemp() + "/sweep")
    >>> [comparison.folder.name for comparison in sweep.runs]
    ['run-1']
    """

    def __init__(self, folder: Path, grid: Grid, metric: str, runs: Sequence[Comparison]) -> None:
        self.folder = folder
        self.grid = grid
        self.metric = metric
        self.runs = list(runs)

    @classmethod
    def create(
        cls,
        grid: Grid,
        out: str | Path | None = None,
        *,
        metric: str = "worst",
        part: Sequence[int] | None = None,
    ) -> Sweep:
        """Make the folder of a sweep; nothing is run yet.

        Parameters
        ----------
        grid
            What to run.
        out
            The folder; by default the first of runs/sweep-1, runs/sweep-2, ... that is free.
        metric
            The metric by which a point is the best.
        part
            (i, n) makes the folder of part i of n: see `adcs.experiments.merge_parts`.
        """
        check_choice("metric", metric, COMPARED)
        name = "sweep"
        described: dict[str, Any] = {
            "scheduler": grid.scheduler,
            "label": grid.label,
            "grid": {name: list(values) for name, values in grid.axes.items()},
            "metric": metric,
            "experiment": grid.experiment.as_dict(),
        }
        if part is not None:
            i, n = described["part"] = check_part(part)
            name = f"{name}-part{i}of{n}"
        path = next_folder(RUNS, name) if out is None else Path(out)
        refuse_foreign(path, ())
        runs, before = [], 0
        for number, experiment in enumerate(grid.experiments, start=1):
            # Tasks are dealt out over all runs, so that parts have the same number of them.
            share = None if part is None else ((part[0] - 1 - before) % part[1] + 1, part[1])
            runs.append(Comparison.create(experiment, path / f"run-{number}", part=share))
            before += len(tasks(experiment))
        # Written last: a folder without it is no sweep.
        text = json.dumps(plain(described), indent=2) + "\n"
        write_atomically(path / SWEEP, text.encode())
        return cls(path, grid, metric, runs)

    @classmethod
    def open(cls, path: str | Path) -> Sweep:
        """Open the folder of a sweep, finished or not."""
        path = Path(path)
        if not (path / SWEEP).is_file():
            why = f"it has no {SWEEP}" if path.exists() else "there is no such folder"
            hint = "" if path.exists() else did_you_mean_path(path)
            raise FileNotFoundError(f"{path} is not the folder of a sweep: {why}{hint}")
        held = read_json(path / SWEEP, "start a new sweep")
        try:
            for key, kind in FORM.items():
                check_value(key, held.get(key), kind)
            experiment = from_dict(held["experiment"])
            grid = Grid(held["scheduler"], held["label"], held["grid"], experiment)
            check_choice("metric", held["metric"], COMPARED)
            count = len(list(grid.experiments))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(
                f"{path / SWEEP} holds settings that cannot be used: {error}; bring back the file "
                "as it was, or start a new sweep"
            ) from error
        runs = [Comparison.open(path / f"run-{number}") for number in range(1, count + 1)]
        return cls(path, grid, held["metric"], runs)

    @property
    def part(self) -> tuple[int, int] | None:
        """(i, n) if this is part i of n of a sweep."""
        part = read_json(self.folder / SWEEP, "start a new sweep").get("part")
        return None if part is None else check_part(part)

    @property
    def tasks(self) -> int:
        """The number of tasks in this folder."""
        return sum(len(tasks(each.experiment, each.part)) for each in self.runs)

    def run(
        self,
        *,
        jobs: int | None = None,
        progress: bool | Progress = True,
        cluster: str | None = None,
        confirm: int | None = None,
    ) -> None:
        """Run what is not done and write the report; a part has no report.

        Parameters
        ----------
        jobs
            Number of processes; None takes one for each core.
        progress
            Whether progress is shown, or a function that is called with the run-rounds done and
            their total.
        cluster
            A Ray cluster to run on, HOST:PORT or "auto"; None runs on this machine.
        confirm
            Number of further seeds on which the best point runs again.
        """
        if confirm is not None and self.part:
            raise ValueError(
                "--confirm runs the best point again, and a part does not know it: merge the parts "
                "and resume with --confirm"
            )
        with shown(progress, "sweep") as report:
            for each, done in zip(self.runs, self._before(report), strict=True):
                each.run_tasks(jobs=jobs, progress=done, cluster=cluster)
        if self.part:
            return
        if confirm is not None:
            check_int("confirm", confirm, minimum=1)
            self._confirm(confirm, jobs, progress, cluster)
        self.report()

    def _before(self, report: Progress | None) -> Iterator[Progress | bool]:
        """Yield, for each run, a function that reports its progress as that of the sweep."""
        sizes = [
            sum(len(task.labels) for task in tasks(each.experiment, each.part))
            * each.experiment.training.rounds
            for each in self.runs
        ]
        for number in range(len(sizes)):
            yield False if report is None else _after(report, sum(sizes[:number]), sum(sizes))

    def _confirm(
        self, seeds: int, jobs: int | None, progress: bool | Progress, cluster: str | None
    ) -> None:
        """Run the best point on seeds that the sweep has not used."""
        best = self.best
        used = self.grid.experiment.run
        experiment = self.runs[best.run - 1].experiment
        experiment = experiment.replace(
            schedulers={best.label: experiment.schedulers[best.label]},
            first_seed=used.first_seed + used.seeds,
            seeds=seeds,
        )
        path = self.folder / "confirm"
        if path.exists():
            found = Comparison.open(path)
            if difference := experiment.difference(found.experiment):
                raise ValueError(
                    f"{path} holds another confirmation, {difference}; delete it, or choose the "
                    "same number of seeds"
                )
        else:
            found = Comparison.create(experiment, path)
        with shown(progress, "confirm") as report:
            found.run_tasks(jobs=jobs, progress=report or False, cluster=cluster)

    @cached_property
    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """The estimates of each metric at each point, by the point's name."""
        rows = [{row.label: row for row in each.rows()} for each in self.runs]
        return {point.name: rows[point.run - 1][point.label].cells for point in self.grid.points}

    @property
    def _metrics(self) -> dict[str, Metric]:
        return metrics_of(self.grid.experiment.metric)

    @property
    def best(self) -> Point:
        """The point of the best mean of the metric; the first of equal ones."""
        sign = -1.0 if self._metrics[self.metric].lower_is_better else 1.0
        found = [
            (sign * self.estimates[point.name][self.metric].mean, point)
            for point in self.grid.points
            if self.estimates[point.name][self.metric].n
        ]
        if not found:
            raise ValueError(f"{self.folder} has no values of {self.metric} yet")
        return max(found, key=lambda pair: pair[0])[1]

    def _ties(self) -> str:
        """Return the points that reach the same as the best one, in words."""
        best = self.best.name
        means = {name: found[self.metric].mean for name, found in self.estimates.items()}
        tied = [name for name in means if name != best and means[name] == means[best]]
        if not tied:
            return ""
        more = f" and {len(tied) - 1} more" if len(tied) > 1 else ""
        return f" (tied with {tied[0]}{more})"

    @property
    def confirmed(self) -> Estimate | None:
        """The metric of the best point on the seeds of the confirmation; None if there is none."""
        path = self.folder / "confirm"
        if not (path / "config.json").is_file():
            return None
        found = Comparison.open(path)
        if found.unfinished:
            return None
        return found.rows()[0].cells[self.metric]

    def conclusion(self) -> str:
        """Return the best point in words, and what its number is worth."""
        points, seeds = len(self.grid.points), self.grid.experiment.run.seeds
        best, metric = self.best, self._metrics[self.metric]
        value = tables.format_estimate(self.estimates[best.name][self.metric], self.metric)
        text = f"Best of {points} points by {metric.heading}: {best.name}{self._ties()}, {value}"
        text += f" over {seeds} seeds" if seeds > 1 else " at one seed"
        confirmed = self.confirmed
        if confirmed is not None:
            again = tables.format_estimate(confirmed, self.metric)
            return (
                f"{text}; {again} on {confirmed.n} other seed{'s' if confirmed.n > 1 else ''}, "
                "which took no part in the choice: report that number."
            )
        if points == 1:
            return f"{text}."
        return (
            f"{text}. This number is flattered, because it is the best of {points}; an interval "
            "does not account for the choice. --confirm 5 runs the point again on other seeds."
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and cells of the table, a line for each point."""
        cells = self.estimates
        metrics = [name for name in self._metrics if any(found[name].n for found in cells.values())]
        heads = ["point", *[self._metrics[name].heading for name in metrics]]
        rows = [
            [point, *[tables.format_estimate(found[name], name) for name in metrics]]
            for point, found in cells.items()
        ]
        return heads, rows

    def report(self) -> list[Path]:
        """Write summary.md, table.csv and the figure; return the files."""
        for each in self.runs:
            if each.unfinished:
                raise ValueError(f"{each.folder} is not finished; resume the sweep")
        points, cells = self.grid.points, self.estimates
        numbers = [
            [*point.settings.values(), name, found.mean, found.low, found.high, found.n]
            for point in points
            for name, found in cells[point.name].items()
            if found.n
        ]
        heads = [*self.grid.axes, "measure", "mean", "low", "high", "seeds"]
        written = [write_csv(self.folder / "table.csv", heads, numbers)]
        values = {_key(point.settings.values()): cells[point.name][self.metric] for point in points}
        best = _key(self.best.settings.values())
        axes = {name: _key(each) for name, each in self.grid.axes.items()}
        metric = self._metrics[self.metric]
        title = f"{self.grid.label}: {metric.label}"
        stem = self.folder / "figures" / "sweep"
        figure = sweep_figure(stem, title, metric.label, axes, values, best)
        drawn = (
            "\n".join(f"![{path.stem}](figures/{path.name})" for path in figure if is_png(path))
            or f"A grid of more than {LARGEST} maps is not drawn."
        )
        first = self.runs[0].experiment.replace(schedulers={self.grid.label: self.grid.scheduler})
        text = "\n\n".join(
            [
                f"# Sweep of {self.grid.label} over {len(points)} points",
                f"{setting(first)} Settings of the grid: {_axes_in_words(self.grid.axes)}.",
                f"**{self.conclusion()}**",
                *[f"**{note}**" for each in self.runs for note in each.notes],
                tables.markdown_table(*self.table()),
                tables.table_note(range(self.grid.experiment.run.seeds)),
                drawn,
            ]
        )
        summary = self.folder / "summary.md"
        write_atomically(summary, (text + "\n").encode())
        return [*written, *figure, summary]


def _key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values as a key; lists become tuples.

    >>> _key([0.5, [64, 32]])
    (0.5, (64, 32))
    """
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _after(report: Progress, before: int, total: int) -> Progress:
    """Return a function that reports progress after so many run-rounds of other runs."""
    return lambda done, _: report(before + done, total)


def _axes_in_words(axes: Mapping[str, Sequence[Any]]) -> str:
    """Return the axes in words.

    >>> _axes_in_words({"theta": [0.2, 0.8], "lr": [0.1]})
    'theta 0.2, 0.8; lr 0.1'
    """
    return "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in axes.items())
