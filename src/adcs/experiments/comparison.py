"""Comparisons from Python: `adcs.compare` runs schedulers side by side, for a `Comparison`.

The run folder is that of `adcs compare`: either one resumes and reads what the other has written.
"""

from __future__ import annotations

import base64
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from adcs._npz import gigabytes, memory
from adcs._validation import check_choice, did_you_mean_path
from adcs.experiments import tables
from adcs.experiments.config import SETTINGS, Experiment
from adcs.experiments.figures import draw_lines
from adcs.experiments.inputs import Schedulers, data_settings, object_spec, scheduler_specs
from adcs.experiments.page import write_page
from adcs.experiments.progress import progress as shown_progress
from adcs.experiments.records import checked_records
from adcs.experiments.report import (
    AXES,
    baseline_of,
    data_name,
    panel,
    seeds_of,
    setting,
    warnings,
    write_report,
)
from adcs.experiments.runner import (
    Progress,
    check_part,
    create_run,
    experiment_of,
    run_experiment,
    tasks,
    unfinished,
)
from adcs.experiments.statistics import COMPARED, Row, summarise
from adcs.experiments.styles import styles_of
from adcs.observers import Observer
from adcs.reports.sketch import default_sketch, sketch_sentence
from adcs.run_folder import RunFolder, next_folder
from adcs.simulation.datasets import Dataset
from adcs.simulation.models import MLP, Model, buffers_of
from adcs.trackers import Tracker

RUNS = Path("runs")
"""Where run folders are made if none is named."""

GUARD = (
    "in a script, call adcs.compare under `if __name__ == '__main__':`, because worker processes "
    "and the loading of a scheduler's file run the script again"
)

_reading_files: ContextVar[bool] = ContextVar("_reading_files", default=False)


class Difference(NamedTuple):
    """A difference to the baseline, taken seed by seed.

    Attributes
    ----------
    mean
        Its mean over the seeds.
    low, high
        The ends of its 95 % interval; None with fewer than three seeds.
    p
        The p-value of the paired t-test, corrected by Holm's method for the number of schedulers.
    seeds
        The number of seeds.

    Examples
    --------
    >>> Difference(0.1, 0.05, 0.15, 0.01, 5).p
    0.01
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    seeds: int


@dataclass(frozen=True)
class Differences(Mapping[str, Mapping[str, Difference]]):
    """Differences to a baseline, by scheduler and metric; printed as a table.

    Examples
    --------
    >>> found = Differences("Uniform", {"ADCS": {"worst": Difference(0.1, None, None, None, 2)}})
    >>> found["ADCS"]["worst"].mean
    0.1
    """

    baseline: str
    values_by_scheduler: Mapping[str, Mapping[str, Difference]]
    rows: Sequence[Row] = ()

    def __getitem__(self, label: str) -> Mapping[str, Difference]:
        return self.values_by_scheduler[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_scheduler)

    def __len__(self) -> int:
        return len(self.values_by_scheduler)

    def __str__(self) -> str:
        heads, cells = tables.difference_table(self.rows)
        title = tables.difference_title(self.baseline, self.rows)
        return f"{title}\n{tables.text_table(heads, cells)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        title = tables.difference_title(self.baseline, self.rows)
        return tables.html_table(title, *tables.difference_table(self.rows))


class Comparison:
    """The result of a comparison: a run folder with its records, tables and figures.

    Made by `adcs.compare`, or from the folder of a run by `Comparison.open`. A notebook shows it as
    a table and a figure.

    Attributes
    ----------
    experiment
        The settings.

    Examples
    --------
    >>> import tempfile
    >>> experiment = Experiment.of(
    ...     data="synthetic", clients=10, m=4, rounds=20, eval_every=10, schedulers=["Uniform"]
    ... )
    >>> found = Comparison.create(experiment, tempfile.mkdtemp() + "/run")
    >>> len(found.unfinished)
    1
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.experiment = experiment_of(folder)
        self._records: list[dict[str, Any]] | None = None

    @classmethod
    def open(cls, path: str | Path) -> Comparison:
        """Open the run folder of a comparison, finished or not, of Python or the command line."""
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is not a run folder: there is no such folder{did_you_mean_path(path)}"
            )
        return cls(RunFolder.open(path))

    @classmethod
    def create(
        cls,
        experiment: Experiment,
        out: str | Path | None = None,
        *,
        name: str = "compare",
        part: Sequence[int] | None = None,
        notes: Sequence[str] = (),
    ) -> Comparison:
        """Make the run folder of an experiment; nothing is run yet.

        Parameters
        ----------
        experiment
            The settings.
        out
            The folder; by default the first of runs/NAME-1, runs/NAME-2, ... that is free.
        name
            The NAME of the default folder.
        part
            (i, n) makes the folder of part i of n: see `adcs.experiments.merge_parts`.
        notes
            Sentences that the report shows, such as what the data is a stand-in for.
        """
        more: dict[str, Any] = {"notes": list(notes)}
        if part is not None:
            i, n = more["part"] = check_part(part)
            name = f"{name}-part{i}of{n}"
        dataset = experiment.dataset()
        model = _checked_model(experiment, dataset)
        more["notes"] += [*_sketch_notes(experiment, model), *_device_notes(experiment, model)]
        path = next_folder(RUNS, name) if out is None else Path(out)
        return cls(create_run(path, experiment, dataset, **more))

    def run(
        self,
        *,
        jobs: int | None = None,
        progress: bool | Progress = True,
        cluster: str | None = None,
        observers: Sequence[Observer] = (),
    ) -> list[Path]:
        """Run what the folder does not hold yet, and write the report; return the report's files.

        A part of a comparison has no report.

        Parameters
        ----------
        jobs
            Number of processes; None takes one for each core.
        progress
            Whether progress is shown, or a function that is called with the run-rounds done and
            their total.
        cluster
            A Ray cluster to run on, HOST:PORT or "auto"; None runs on this machine.
        observers
            Observers of records and of the end, such as `adcs.trackers.TensorBoard`. Resumed, a
            comparison announces its earlier records too.
        """
        try:
            self.run_tasks(jobs=jobs, progress=progress, cluster=cluster, observers=observers)
            return [] if self.part else self.report()
        except BaseException as error:
            if isinstance(error, BrokenProcessPool):
                error.add_note(f"A worker process ended early, perhaps out of memory; {GUARD}.")
            error.add_note(f"No records are lost: adcs.compare(resume={str(self.folder)!r}).")
            raise

    def run_tasks(
        self,
        *,
        jobs: int | None = None,
        progress: bool | Progress = True,
        cluster: str | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Run what the folder does not hold yet, without a report."""
        self._records = None
        for observer in observers:
            if isinstance(observer, Tracker) and observer.config is None:
                observer.config = self.experiment.as_dict()
        with shown(progress) as report:
            run_experiment(
                self._folder,
                self.experiment,
                jobs=jobs,
                progress=report,
                cluster=cluster,
                observers=observers,
            )

    def report(self) -> list[Path]:
        """Write summary.md, table.csv, the figures and the page; return the files."""
        self._checked()
        written = write_report(self._folder, self.experiment, self.notes)
        return [*written, write_page(self._folder)]

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def part(self) -> tuple[int, int] | None:
        """(i, n) if this is part i of n of a comparison."""
        part = self._folder.config.get("part")
        return None if part is None else (part[0], part[1])

    @property
    def labels(self) -> list[str]:
        """The user's label of each class; empty where they are 0, 1, ..."""
        return [str(label) for label in self._folder.config.get("classes", [])]

    @property
    def unfinished(self) -> list[str]:
        """The names of the tasks that are not done."""
        return unfinished(self._folder, self.experiment)

    @property
    def notes(self) -> list[str]:
        """What a reader of the results has to know: divergence, few updates, values left out."""
        notes = [*self._folder.config.get("notes", []), *warnings(self._folder, self.experiment)]
        if left := self.unfinished:
            every = len(tasks(self.experiment, self.part))
            notes.append(f"Unfinished: {len(left)} of {every} tasks are not done.")
        return notes

    def _checked(self) -> list[dict[str, Any]]:
        if self._records is None:
            self._records = checked_records(self._folder, self.experiment)
        return self._records

    def rows(self, baseline: str | None = None) -> list[Row]:
        """Return the rows of the table, with differences to a baseline."""
        if baseline is None:
            baseline = baseline_of(self.experiment)
        check_choice("baseline", baseline, self.experiment.schedulers)
        return summarise(self._checked(), list(self.experiment.schedulers), baseline)

    def to_pandas(self) -> Any:
        """Return the records as a pandas DataFrame: a row for each scheduler, seed and evaluation.

        Columns are the numbers of a record. Lists, such as the accuracy of each client, are in the
        folder's records.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "to_pandas needs pandas, which is missing; pip install pandas brings it"
            ) from error
        first = ("scheduler", "seed", "server_round")
        lines = [
            {key: record[key] for key in first}
            | {key: value for key, value in record.items() if isinstance(value, (int, float))}
            for record in self._checked()
        ]
        order = {label: i for i, label in enumerate(self.experiment.schedulers)}
        lines.sort(key=lambda line: (order[line["scheduler"]], line["seed"], line["server_round"]))
        return pandas.DataFrame(lines, columns=None if lines else list(first))

    def table(self) -> str:
        """Return the table as text: each metric of each scheduler, with its interval."""
        title = tables.table_title(seeds_of(self.experiment))
        text = f"{title}\n{tables.text_table(*tables.summary_table(self.rows()))}"
        return "\n".join([text, *self.notes])

    def differences(self, baseline: str | None = None) -> Differences:
        """Return the paired differences to a scheduler, with intervals and corrected p-values.

        Parameters
        ----------
        baseline
            The label of a scheduler; by default the setting `baseline`, Uniform, or the first.
        """
        baseline = baseline_of(self.experiment) if baseline is None else baseline
        rows = self.rows(baseline)
        values = {}
        for row in rows:
            if row.label != baseline:
                values[row.label] = {
                    name: Difference(
                        found.mean,
                        None if found.half is None else found.low,
                        None if found.half is None else found.high,
                        row.p.get(name),
                        found.n,
                    )
                    for name, found in row.differences.items()
                    if found.n
                }
        return Differences(baseline, values, rows)

    def plot(self, metric: str | None = None, against: str = "server_round") -> Any:
        """Return a matplotlib figure of accuracies, with bands over seeds.

        Parameters
        ----------
        metric
            One of the compared metrics, such as "worst"; by default each in a panel.
        against
            The horizontal axis: "server_round", "bytes" or "seconds".
        """
        check_choice("against", against, AXES)
        if metric is not None:
            check_choice("metric", metric, COMPARED)
        records, labels = self._checked(), list(self.experiment.schedulers)
        if not records:
            raise ValueError(f"{self.folder} has no records yet; there is nothing to draw")
        m, clients = self.experiment.training.m, self.experiment.partition.clients
        title = f"{data_name(self.experiment)}: {m} of {clients} clients per round"
        panels = [
            panel(records, field, against, labels)
            for field in (COMPARED if metric is None else [metric])
        ]
        return draw_lines(title, panels, styles_of(self.experiment.schedulers))

    def __repr__(self) -> str:
        count, seeds = len(self.experiment.schedulers), self.experiment.run.seeds
        return f"<Comparison of {count} schedulers over {seeds} seed(s) in {self.folder}>"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        rows = self.rows()
        title = tables.table_title(seeds_of(self.experiment))
        parts = [
            f"<p>{escape(setting(self.experiment))}</p>",
            *[f"<p><b>{escape(note)}</b></p>" for note in self.notes],
            tables.html_table(title, *tables.summary_table(rows)),
        ]
        if self.experiment.run.seeds > 1 and len(rows) > 1:
            parts.append(self.differences()._repr_html_())
        if self._checked():
            data = base64.b64encode(self.plot()._repr_png_()).decode()
            text = "accuracies of clients against rounds; the table has the last values"
            parts.append(f'<img src="data:image/png;base64,{data}" alt="{text}">')
        return "\n".join([*parts, f"<p>Run folder: {escape(str(self.folder))}</p>"])


def compare(
    schedulers: Schedulers | None = None,
    *,
    data: Any = None,
    model: Any = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    resume: bool | str | Path = False,
    part: Sequence[int] | None = None,
    jobs: int | None = None,
    progress: bool | Progress = True,
    cluster: str | None = None,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> Comparison:
    """Run schedulers side by side on the simulator and return the results.

    It is the command `adcs compare`: same settings, defaults, run folder and bytes.

    Parameters
    ----------
    schedulers
        Schedulers or specs, in a list or by label; by default the paper's six. Every run makes its
        schedulers anew from their settings: reports that an object has observed do not count. The
        seed of a run is its schedulers' seed, unless a scheduler has one of its own other than 0.
        One's own class is at the top level of a file.
    data
        The name of a data set, the path of a file, a `Dataset` or a `Federation`. A data set in
        memory is saved beside the run folder, for worker processes and a resume.
    model
        The model by its spec, or a class or function that makes it.
    seeds
        Number of seeds; three and more give intervals.
    out
        The run folder; by default the first of runs/compare-1, runs/compare-2, ... that is free.
    resume
        A run folder to resume, with no settings beside it. True resumes `out` if it holds a run of
        these settings, and starts it otherwise.
    part
        (i, n) runs part i of n, for a batch queue: see `adcs.experiments.merge_parts`.
    jobs
        Number of processes; None takes one for each core.
    progress
        Whether progress is shown, or a function that is called with the run-rounds done and their
        total.
    cluster
        A Ray cluster to run on, HOST:PORT of its head node or "auto"; it needs the extra `cluster`.
    observers
        Observers of records and of the end, such as `adcs.trackers.TensorBoard`. Resumed, a
        comparison announces its earlier records too.
    **settings
        Settings as on the command line, with underscores: rounds, m, lr, partition, ...

    Examples
    --------
    >>> import tempfile
    >>> from adcs import ADCS, Uniform
    >>> result = compare(
    ...     [Uniform(), ADCS(theta=0.5)], data="synthetic", clients=10, m=4, rounds=20,
    ...     eval_every=10, out=tempfile.mkdtemp() + "/run", jobs=1, progress=False,
    ... )
    >>> list(result.differences("Uniform"))
    ['ADCS(theta=0.5)']
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False) or _reading_files.get():
        raise ValueError(f"adcs.compare was called while a file was being loaded: {GUARD}")
    if isinstance(resume, (str, Path)):
        given = {"schedulers": schedulers, "data": data, "model": model, "seeds": seeds}
        given |= {"out": out, "part": part, **settings}
        conflicts = [name for name, value in given.items() if value is not None]
        if conflicts:
            raise ValueError(f"resume keeps the settings of {resume}; leave out {conflicts[0]}")
        comparison = Comparison.open(resume)
    else:
        options = {"data": data, "model": model, "seeds": seeds, "schedulers": schedulers}
        given = {name: value for name, value in options.items() if value is not None} | settings
        base = RUNS if out is None else Path(out).parent
        token = _reading_files.set(True)
        try:
            experiment = Experiment.of(**_plain(given, base))
        finally:
            _reading_files.reset(token)
        if resume and out is None:
            raise ValueError("resume=True resumes the run in out; give out")
        if resume and Path(out or "").exists():
            comparison = _resumed(Path(out or ""), experiment, part)
        else:
            comparison = Comparison.create(experiment, out, part=part)
    comparison.run(jobs=jobs, progress=progress, cluster=cluster, observers=observers)
    return comparison


def _plain(given: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return settings with every object as text; data in memory is saved to `base`."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "data":
            found |= data_settings(value, base)
        elif name == "schedulers":
            found[name] = scheduler_specs(value)
        elif name in SETTINGS and SETTINGS[name].is_spec:
            found[name] = object_spec(value, name)
        else:
            found[name] = value
    return found


def _resumed(path: Path, experiment: Experiment, part: Sequence[int] | None) -> Comparison:
    """Open a run that is to have these settings."""
    found = Comparison.open(path)
    difference = experiment.difference(found.experiment)
    if found.part != (None if part is None else tuple(part)):
        difference = difference or f"part {found.part}, not {part}"
    if difference:
        raise ValueError(
            f"{path} holds a run of other settings, {difference}; choose another folder"
        )
    return found


@contextmanager
def shown(progress: bool | Progress, what: str = "compare") -> Iterator[Progress | None]:
    """Yield the function that is called with progress, None for none."""
    if callable(progress):
        yield progress
        return
    with shown_progress(what) if progress else nullcontext() as report:
        yield report


def _checked_model(experiment: Experiment, dataset: Dataset) -> Model:
    """Return the model; one that memory cannot hold once would kill a worker, and is refused."""
    model = experiment.make_model(dataset)
    size = model.size
    if (needed := 8 * size) > memory():
        raise ValueError(
            f"model {experiment.model.name} has {size:,} parameters, "
            f"{gigabytes(needed)}, more than the {gigabytes(memory())} of memory"
        )
    return model


def _device_notes(experiment: Experiment, model: Model) -> list[str]:
    """Return a sentence that says so where the device does not apply to the model."""
    if experiment.model.device == "cpu" or not isinstance(model, MLP):
        return []
    return [
        f"The model {experiment.model.name} is computed with NumPy on the CPU: device "
        f"{experiment.model.device} is for networks of PyTorch."
    ]


def _sketch_notes(experiment: Experiment, model: Model) -> list[str]:
    """Return the sentence that says that updates are sketched, if they are."""
    size, above = model.size - buffers_of(model), experiment.run.sketch_above
    sketch = default_sketch(size, experiment.training.m, above=above or None)
    return [] if sketch is None else [sketch_sentence(size, sketch, above)]
