"""Runs an experiment: its run folder, its tasks on processes, records and checkpoints.

A task is one seed and one pass, that is, the schedulers that share a pass over the data. The tasks
follow from the config, not from the number of processes, and the result of a task follows from the
config alone: the same command writes the same bytes in one process or in several, resumed or not.
"""

from __future__ import annotations

import logging
import multiprocessing
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from adcs._validation import check_int, did_you_mean
from adcs.experiments.config import SETTINGS, Experiment, from_dict
from adcs.experiments.own_files import code_versions
from adcs.experiments.selections import (
    CohortLayout,
    SelectionLines,
    SelectionWriter,
    choice_of,
    named_if_broken,
    selection_lines,
    selection_paths,
)
from adcs.experiments.specs import make_scheduler
from adcs.experiments.tracking import following
from adcs.experiments.validation import check_value
from adcs.observers import EvaluationEvent, Observer
from adcs.run_folder import RunFolder, Writer, fingerprint, pack_checkpoint, record_line
from adcs.schedulers import REFL, ClusteredSampling, FedCS, TiFL
from adcs.schedulers.choice import Choice
from adcs.simulation.datasets import Dataset
from adcs.simulation.engine import Simulation
from adcs.simulation.network import Network

CHECKPOINT_SECONDS = 5.0
"""Time between checkpoints of a task."""

PROGRESS_SECONDS = 0.2
"""Time between reports of a task's progress."""

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables for the number of BLAS threads of a process."""

Progress = Callable[[int, int], None]
"""Called a few times a second with the run-rounds done and their total."""

ENGINE = "simulation"

log = logging.getLogger(__name__)

CONFIG = {
    "groups": list[int] | None,
    "classes": list[int] | list[str],
    "notes": list[str],
    "data_fingerprint": str | None,
    "client_names": list[str],
    "trace_fingerprint": str | None,
    "part": list[int] | None,
    "cohort_slots": int,
    "own_files": dict[str, list[str]],
}
"""What a run's config holds beside the experiment, by type."""

AT_MOST_M = (ClusteredSampling, FedCS, REFL, TiFL)
"""Schedulers whose cohorts have m clients or fewer."""


@dataclass(frozen=True)
class Task:
    """One seed and the schedulers that share a pass.

    >>> Task(seed=3, index=0, labels=("Uniform", "ADCS")).name
    'seed3-pass0'
    """

    seed: int
    index: int
    labels: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the task's files."""
        return f"seed{self.seed}-pass{self.index}"


def tasks(experiment: Experiment, part: Sequence[int] | None = None) -> list[Task]:
    """Return the tasks of an experiment, or of part i of n: every n-th, from the i-th on.

    >>> [task.labels for task in tasks(Experiment.of(schedulers={"A": "Uniform"}, seeds=2))]
    [('A',), ('A',)]
    >>> experiment = Experiment.of(schedulers=["Uniform"], seeds=5)
    >>> [task.seed for task in tasks(experiment, part=(2, 3))]
    [1, 4]
    """
    every = [
        Task(seed, index, labels)
        for seed in experiment.seed_list
        for index, labels in enumerate(experiment.passes())
    ]
    return every if part is None else every[part[0] - 1 :: part[1]]


def cohort_slots(experiment: Experiment) -> int:
    """Return the number of clients that the largest cohort of an experiment may have.

    >>> cohort_slots(Experiment.of(schedulers=["Uniform"], clients=100, m=4))
    4
    >>> cohort_slots(Experiment.of(schedulers=["Uniform(independent=True)"], clients=100, m=4))
    100
    """
    clients, m = experiment.partition.clients, experiment.training.m
    for spec in experiment.schedulers.values():
        scheduler = make_scheduler(spec, seed=0)
        if not scheduler.fixed_size and type(scheduler) not in AT_MOST_M:
            return clients
    if experiment.round is None:
        return m
    buffered = experiment.round.buffered(m)
    asked = experiment.round.asked(m) if buffered is None else buffered.concurrency
    return min(max(m, asked), clients)


def layout(experiment: Experiment, task: Task, slots: int | None) -> CohortLayout:
    """Return how the cohorts of a task are recorded.

    Parameters
    ----------
    experiment, task
        The experiment and one of its tasks.
    slots
        The `cohort_slots` of the run's config; None, where it has none, is m.

    Examples
    --------
    >>> layout(Experiment(), Task(0, 0, ("Uniform", "ADCS")), None).stride
    8
    """
    m = experiment.training.m if slots is None else slots
    return CohortLayout(len(task.labels), experiment.partition.clients, m)


def check_part(part: Sequence[int], name: str = "part") -> tuple[int, int]:
    """Return a part i of n as a pair; raise ValueError unless 1 <= i <= n.

    >>> check_part((3, 2))
    Traceback (most recent call last):
    ...
    ValueError: part must be i of n with 1 <= i <= n, got 3 of 2
    """
    i, n = part
    if not 1 <= i <= n:
        raise ValueError(f"{name} must be i of n with 1 <= i <= n, got {i} of {n}")
    return i, n


def data_fingerprint(dataset: Dataset) -> str:
    """Return the fingerprint of the examples and labels that models see.

    >>> from adcs.simulation.datasets.synthetic import synthetic
    >>> data_fingerprint(synthetic(seed=1)) == data_fingerprint(synthetic(seed=2))
    False
    """
    clients = dataset.clients or ()
    return fingerprint(dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test, *clients)


def same_data(experiment: Experiment, held: str | None) -> Dataset:
    """Load the data of a run; raise ValueError if the run began with other data.

    Parameters
    ----------
    experiment
        The experiment of the run.
    held
        The fingerprint in the run's config; None does not compare.

    Examples
    --------
    >>> same_data(Experiment.of(data="synthetic"), None).x_train.shape
    (2000, 32)
    """
    try:
        dataset = experiment.dataset()
    except ValueError as error:
        raise ValueError(
            f"the data {experiment.data.name}, which the run's config.json names, cannot be "
            f"loaded: {error}"
        ) from error
    if held is not None and data_fingerprint(dataset) != held:
        raise _changed(f"the data {experiment.data.name}")
    return dataset


def trace_fingerprint(experiment: Experiment) -> str | None:
    """Return the fingerprint of the network's trace; None without one.

    >>> trace_fingerprint(Experiment()) is None
    True
    """
    network = experiment.network
    if network is None or network.trace is None:
        return None
    # The network also refuses a trace that does not go with the other settings.
    return Network(network, experiment.partition.clients, seed=0).trace.fingerprint()


def check_trace(experiment: Experiment, held: str | None) -> None:
    """Raise ValueError if a run began with another trace, by the fingerprint in its config.

    >>> check_trace(Experiment(), None)
    """
    if held is not None and trace_fingerprint(experiment) != held:
        raise _changed(f"the trace {experiment.network and experiment.network.trace}")


def _changed(what: str) -> ValueError:
    return ValueError(
        f"{what} is no longer what this run began with, by the fingerprint in its config.json; "
        "bring that back, or start a new run"
    )


def create_run(
    path: Path, experiment: Experiment, dataset: Dataset | None = None, **more: Any
) -> RunFolder:
    """Create the run folder of an experiment.

    The data is divided before anything is written. The config holds the experiment, the groups of
    the clients, the fingerprints of the data and of a trace, `classes` (the user's labels, where
    they are not 0, 1, ...), `client_names` (of natural clients), `cohort_slots` (where a cohort may
    have more than m clients), `own_files` (the SHA-256 of the user's Python files), and `more`,
    such as `part`: (i, n) if the folder gets part i of n of the tasks.

    >>> import tempfile
    >>> folder = create_run(Path(tempfile.mkdtemp()) / "run", Experiment.of(data="synthetic"))
    >>> folder.config["data"]["name"], len(folder.config["groups"])
    ('synthetic', 30)
    """
    dataset = dataset or experiment.dataset()
    partition = experiment.divide(dataset, experiment.run.first_seed)
    trace = trace_fingerprint(experiment)
    slots, own = cohort_slots(experiment), code_versions(experiment.as_dict())
    config = {
        "engine": ENGINE,
        **experiment.as_dict(),
        "groups": partition.groups,
        "data_fingerprint": data_fingerprint(dataset),
        **({"trace_fingerprint": trace} if trace else {}),
        **({"classes": dataset.labels} if dataset.labels else {}),
        **({"client_names": partition.names} if _fixed_names(experiment) else {}),
        **({"cohort_slots": slots} if slots > experiment.training.m else {}),
        **({"own_files": own} if own else {}),
        **more,
    }
    return RunFolder.create(path, config)


def _fixed_names(experiment: Experiment) -> bool:
    """Return whether clients have names, the same at every seed."""
    partition = experiment.partition
    return partition.kind == "natural" and partition.settings.get("choice") != "random"


def experiment_of(folder: RunFolder) -> Experiment:
    """Return the experiment that a run folder holds.

    >>> import tempfile
    >>> experiment = Experiment.of(data="synthetic", clients=10, m=5)
    >>> folder = create_run(Path(tempfile.mkdtemp()) / "run", experiment)
    >>> experiment_of(folder) == experiment
    True
    >>> unfinished(folder, experiment)
    ['seed0-pass0', 'seed0-pass1']
    """
    config = folder.config
    if config.get("engine") != ENGINE:
        raise ValueError(
            f"{folder.path} is a run of the engine {config.get('engine')!r}, not of the simulation"
        )
    sections = Experiment.model_fields
    try:
        for key, field in sections.items():
            # A section that is off by default may be newer than the run.
            if key not in config and field.default is not None:
                raise ValueError(f"{key} is missing")
        known = [*sections, *CONFIG, "engine", "schema_version", "versions"]
        for key in config:
            if key not in known:
                raise ValueError(f"unknown setting {key!r}; {did_you_mean(key, known)}")
        experiment = from_dict({key: config[key] for key in sections if key in config})
        for each in SETTINGS.values():
            # A setting that is off by default may be newer than the run.
            section = config.get(each.section)
            if section is not None and each.key not in section and each.default is not None:
                raise ValueError(f"{each.name} is missing")
        for key, kind in CONFIG.items():
            if key in config:
                check_value(key, config[key], kind)
        groups = config.get("groups")
        if groups is not None and (len(groups) != experiment.partition.clients or min(groups) < 0):
            raise ValueError(f"groups must have a number >= 0 for each client, got {groups!r}")
        if (part := config.get("part")) is not None:
            check_part(part)
        if (slots := config.get("cohort_slots")) is not None:
            check_int("cohort_slots", slots, minimum=1, maximum=experiment.partition.clients)
        return experiment
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder.path / 'config.json'} holds settings that cannot be used: {error}; bring "
            "back the file as it was, or start a new run"
        ) from error


def unfinished(folder: RunFolder, experiment: Experiment) -> list[str]:
    """Return the names of the tasks that are not done, of those that the folder is to have."""
    todo = tasks(experiment, folder.config.get("part"))
    return [task.name for task in todo if not is_done(folder, task.name)]


def is_done(folder: RunFolder, name: str) -> bool:
    """Return whether a task is done, by its name."""
    checkpoint = folder.load_checkpoint(name)
    return checkpoint is not None and bool(checkpoint.get("done"))


def recorded_choice(
    folder: RunFolder, experiment: Experiment, seed: int, label: str, server_round: int
) -> Choice | None:
    """Return why a cohort was selected by the run's own lines; None if they do not have it.

    Parameters
    ----------
    folder, experiment
        The run.
    seed, label, server_round
        The seed, scheduler and round. Lines have evaluated rounds only.
    """
    task = next(each for each in tasks(experiment) if each.seed == seed and label in each.labels)
    for line in selection_lines(folder, task.name):
        if (line["scheduler"], line["server_round"]) == (label, server_round):
            with named_if_broken(selection_paths(folder, task.name)[1], line):
                return choice_of(line, experiment.partition.clients)
    return None


class Step(NamedTuple):
    """What a task has done since its last step.

    Attributes
    ----------
    rounds
        The number of rounds done in all.
    offset
        The size of the task's records before this step, in bytes.
    lines
        The lines of new records.
    checkpoint
        The content of a new checkpoint, which counts these lines as written; None if none is due.
    start
        The number of rounds done before this step.
    cohorts, selections
        The cohorts of its rounds, and its lines about selections, as `SelectionLines` has them.

    Examples
    --------
    >>> Step(rounds=10, offset=0, lines=b"").checkpoint is None
    True
    """

    rounds: int
    offset: int
    lines: bytes
    checkpoint: bytes | None = None
    start: int = 0
    cohorts: bytes = b""
    selections: bytes = b""


class RecordLines(Observer):
    """Collects the lines of records.

    >>> lines = RecordLines()
    >>> lines.on_evaluation(EvaluationEvent("Uniform", 0, 0, {"scheduler": "Uniform"}))
    >>> lines.take(), lines.take()
    (b'{"scheduler":"Uniform"}\\n', b'')
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Collect the record."""
        self._lines.append(record_line(event.record))

    def take(self) -> bytes:
        """Return the lines since the last call."""
        lines, self._lines = b"".join(self._lines), []
        return lines


def task_steps(
    folder: RunFolder,
    experiment: Experiment,
    task: Task,
    dataset: Dataset,
    checkpoint: Mapping[str, Any] | None,
    *,
    slots: int | None = None,
    step_seconds: float | None = None,
    checkpoint_seconds: float | None = None,
) -> Iterator[Step]:
    """Run a task to its end, from a checkpoint if there is one; yield a step now and then.

    There is a step every few rounds, at each checkpoint, at the end and before an error.
    Nothing is written: whoever takes the steps writes them into the run folder.

    Parameters
    ----------
    folder
        The run folder, to name it in errors; it need not be on this machine.
    experiment, task
        The experiment and one of its tasks.
    dataset
        The data of the experiment.
    checkpoint
        The state to resume from.
    slots
        The `cohort_slots` of the run's config.
    step_seconds, checkpoint_seconds
        Time between steps and between checkpoints; by default `PROGRESS_SECONDS` and
        `CHECKPOINT_SECONDS`.
    """
    step_seconds = PROGRESS_SECONDS if step_seconds is None else step_seconds
    if checkpoint_seconds is None:
        checkpoint_seconds = CHECKPOINT_SECONDS
    simulation = experiment.simulation(task.seed, task.labels, dataset)
    offset = 0
    if checkpoint is not None:
        with folder.restoring(task.name):
            simulation.restore(checkpoint["simulation"])
            offset = operator.index(checkpoint["offset"])
    records = RecordLines()
    rounds, eval_every = experiment.training.rounds, experiment.run.eval_every
    form = layout(experiment, task, slots)
    selections = SelectionLines(form, task.labels, rounds, eval_every)
    simulation.observers += [records, selections]
    done_before = simulation.server_round

    def step(*, save: bool, done: bool = False) -> Step:
        nonlocal offset, done_before
        start, lines = offset, records.take()
        offset += len(lines)
        first, done_before = done_before, simulation.server_round
        packed = None
        if save:
            state = {"done": done, "offset": offset, "simulation": simulation.state()}
            packed = _packed(state, simulation)
        taken = selections.take(done_before - first)
        return Step(done_before, start, lines, packed, first, *taken)

    reported = saved = time.monotonic()
    try:
        for _ in simulation.iter_rounds(rounds, eval_every=eval_every):
            now = time.monotonic()
            due = now - saved > checkpoint_seconds
            if due or now - reported > step_seconds:
                yield step(save=due)
                reported, saved = now, time.monotonic() if due else saved
    except Exception:
        yield step(save=False)
        raise
    yield step(save=True, done=True)


def _packed(state: dict[str, Any], simulation: Simulation) -> bytes:
    """Return a checkpoint as bytes; a user's scheduler whose state cannot be saved is named."""
    try:
        return pack_checkpoint(state)
    except (TypeError, ValueError):
        for run in simulation.runs:
            run.call(simulation.server_round, run.scheduler.to_bytes)
        raise


class StepWriter:
    """Writes the steps of a task into its run folder.

    Parameters
    ----------
    folder, experiment, task
        The run folder, its experiment and one of its tasks.
    progress
        Called with the number of rounds done.
    """

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        task: Task,
        progress: Callable[[int], None],
    ) -> None:
        self._folder = folder
        self._layout = layout(experiment, task, folder.config.get("cohort_slots"))
        self._task = task
        self._progress = progress
        self._lines: Writer | None = None
        self._selections: SelectionWriter | None = None

    def __enter__(self) -> StepWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for writer in (self._lines, self._selections):
            if writer is not None:
                writer.close()

    def write(self, step: Step) -> None:
        """Write a step; the first one cuts off the records that it does not follow."""
        if self._lines is None:
            self._lines = self._folder.writer(self._task.name, step.offset)
        if self._selections is None:
            self._selections = SelectionWriter(
                self._folder, self._task.name, self._layout, step.start
            )
        self._selections.write(step.cohorts, step.selections)
        self._lines.write(step.lines)  # before the checkpoint, which counts them
        self._progress(step.rounds)
        if step.checkpoint is not None:
            self._folder.write_checkpoint(self._task.name, step.checkpoint)


@contextmanager
def without_overflow_warnings() -> Iterator[None]:
    """Do not show NumPy's warnings of this package's arithmetic while training diverges.

    The report of the run says who diverged. Warnings of a user's own file are shown.
    """
    with warnings.catch_warnings():
        message = "(overflow|invalid value|divide by zero) encountered"
        for package in ("adcs", "numpy"):
            module = rf"{package}(\.|$)"
            warnings.filterwarnings("ignore", message, RuntimeWarning, module)
        yield


def run_task(
    folder: RunFolder, experiment: Experiment, task: Task, progress: Callable[[int], None]
) -> None:
    """Run a task to its end, from its checkpoint if it has one, and write its results.

    Parameters
    ----------
    folder, experiment, task
        The run folder, its experiment and one of its tasks.
    progress
        Called with the number of rounds done.
    """
    checkpoint = folder.load_checkpoint(task.name)
    if checkpoint is not None and checkpoint.get("done"):
        progress(experiment.training.rounds)
        return
    # A task may start hours after the run, so each checks the data.
    dataset = same_data(experiment, folder.config.get("data_fingerprint"))
    check_trace(experiment, folder.config.get("trace_fingerprint"))
    with StepWriter(folder, experiment, task, progress) as writer, without_overflow_warnings():
        slots = folder.config.get("cohort_slots")
        for step in task_steps(folder, experiment, task, dataset, checkpoint, slots=slots):
            writer.write(step)


def run_experiment(
    folder: RunFolder,
    experiment: Experiment,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    cluster: str | None = None,
    observers: Sequence[Observer] = (),
) -> None:
    """Run what the folder of an experiment does not hold yet.

    Parameters
    ----------
    folder
        Where results go.
    experiment
        What to run.
    jobs
        Number of tasks that run at a time; None takes one for each core.
    progress
        Called with progress a few times a second.
    cluster
        A Ray cluster to run on: HOST:PORT of its head node, or "auto" for that of this machine;
        None runs on processes of this machine.
    observers
        Observers of records and of the end; they stay in this process. A run that is resumed
        announces its earlier records too.

    Raises
    ------
    InUse
        If another process is running what the folder holds.
    """
    with folder.locked():
        todo = tasks(experiment, folder.config.get("part"))
        _note_changed_files(folder, experiment, todo)
        with following(folder, observers) as announce:
            _run_tasks(folder, experiment, todo, jobs, progress, cluster, announce)


def _note_changed_files(folder: RunFolder, experiment: Experiment, todo: Sequence[Task]) -> None:
    """Warn of files of the user that have changed since the run began, and note it in its config.

    Nothing is said where no round is done yet, or none is left to do.
    """
    config = folder.config
    versions: dict[str, list[str]] = dict(config.get("own_files", {}))
    now = code_versions(experiment.as_dict())
    changed = [path for path, held in versions.items() if now.get(path, held)[-1:] != held[-1:]]
    if not changed or all(is_done(folder, task.name) for task in todo):
        return
    notes = list(config.get("notes", []))
    begun = any(folder.load_checkpoint(task.name) is not None for task in todo)
    for path in changed:
        versions[path] = [*versions[path], *now[path]] if begun else now[path]
        if begun:
            name, count = Path(path).name, len(set(versions[path]))
            which = "both" if count == 2 else f"{count}"
            note = f"{name} has changed since the run began; its results are of {which} versions."
            log.warning(note)
            notes = [each for each in notes if not each.startswith(f"{name} has changed since")]
            notes.append(note)
    folder.write_config({**config, "notes": notes, "own_files": versions})


def _run_tasks(
    folder: RunFolder,
    experiment: Experiment,
    todo: Sequence[Task],
    jobs: int | None,
    progress: Progress | None,
    cluster: str | None,
    announce: Callable[[], None],
) -> None:
    # Without the data, or with other data, the run fails here and not in every task.
    dataset = same_data(experiment, folder.config.get("data_fingerprint"))
    check_trace(experiment, folder.config.get("trace_fingerprint"))
    if not todo:  # a part of more parts than tasks
        return
    weights = [len(task.labels) for task in todo]
    total = sum(weights) * experiment.training.rounds

    def report(rounds_done: Sequence[int]) -> None:
        if progress is not None:
            progress(sum(w * d for w, d in zip(weights, rounds_done, strict=True)), total)
        announce()

    if cluster is not None:
        from adcs.experiments.cluster import run_on_cluster  # which imports this module

        rounds_done = [0] * len(todo)
        run_on_cluster(
            folder,
            experiment,
            dataset,
            todo,
            cluster,
            jobs=jobs,
            progress=rounds_done.__setitem__,
            report=lambda: report(rounds_done),
        )
        return
    count = min(jobs or os.cpu_count() or 1, len(todo))
    config = experiment.as_dict()
    with worker_pool(count, len(todo)) as (pool, rounds):
        futures = {
            pool.submit(_work, str(folder.path), config, task, index)
            for index, task in enumerate(todo)
        }
        while futures:
            finished, futures = wait(futures, timeout=PROGRESS_SECONDS, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
            report(rounds)


def _work(path: str, config: dict[str, Any], task: Task, index: int) -> None:
    parent = os.getppid()

    def progress(rounds: int) -> None:
        report_rounds(index, rounds)
        if os.getppid() != parent:
            os._exit(1)  # The parent was killed: whoever resumes must find no writer.

    run_task(RunFolder.open(path), from_dict(config), task, progress)


_rounds_done: Any = None


def _set_up(rounds_done: Any) -> None:
    global _rounds_done
    _rounds_done = rounds_done


def report_rounds(index: int, rounds: int) -> None:
    """Report, in a process of a `worker_pool`, how many rounds one of its tasks has done."""
    _rounds_done[index] = rounds


@contextmanager
def worker_pool(processes: int, tasks: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Start processes with one BLAS thread each; an error inside terminates them.

    Parameters
    ----------
    processes
        How many.
    tasks
        The number of tasks that report their rounds (`report_rounds`).

    Yields
    ------
    pool, rounds_done
        The executor, and the rounds that each task has reported.
    """
    context = multiprocessing.get_context("spawn")
    rounds_done = context.Array("q", tasks, lock=False)
    with (
        one_thread_each(),
        ProcessPoolExecutor(
            processes, mp_context=context, initializer=_set_up, initargs=(rounds_done,)
        ) as pool,
    ):
        try:
            yield pool, rounds_done
        except BaseException:
            # Without this, leaving the pool would wait for the tasks that still run.
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Give each new process one BLAS thread, so that results do not depend on the number."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
