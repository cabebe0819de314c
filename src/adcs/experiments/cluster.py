"""Runs the tasks of an experiment on a Ray cluster, without a shared file system.

A task is a generator (`task_steps`) that runs on a worker. Its steps (record lines, progress,
checkpoints) stream to the driver, which alone writes the run folder. Ray retries nothing: when a
worker or a node is lost, the driver submits the task again from its last checkpoint, and the
records after it are cut off. What a worker needs travels with the task: this package, the data, and
the user's own files by content.
"""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from adcs._serialization import unpack
from adcs.experiments import runner
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.own_files import file_of, own_files
from adcs.experiments.ray_connection import ClusterError, connected
from adcs.experiments.runner import Step, StepWriter, Task, task_steps
from adcs.run_folder import RunFolder, versions
from adcs.simulation.datasets import Dataset

log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
"""Time between the steps of a task on a cluster."""

LOSSES = 3
"""A task that loses so many workers without a new checkpoint ends the run."""

NODES_SECONDS = 300.0
"""Time that the driver waits for a cluster without any CPU."""


def run_on_cluster(
    folder: RunFolder,
    experiment: Experiment,
    dataset: Dataset,
    todo: Sequence[Task],
    address: str,
    *,
    jobs: int | None,
    progress: Callable[[int, int], None],
    report: Callable[[], None],
) -> None:
    """Run the tasks that the folder does not hold yet.

    Parameters
    ----------
    folder, experiment, dataset
        The run folder, its experiment and the data.
    todo
        The tasks.
    address
        The cluster: HOST:PORT of its head node, or "auto".
    jobs
        Number of tasks that run at a time; None takes as many as the cluster has CPUs.
    progress
        Called with the index of a task and the number of its rounds done.
    report
        Called a few times a second.

    Raises
    ------
    ClusterError
        If the cluster cannot be reached, or loses a task again and again.
    """
    with connected(address) as ray, ExitStack() as stack:
        run = _ClusterRun(ray, folder, experiment, dataset, todo, progress)
        stack.callback(run.stop)
        run.run(jobs or len(todo), report)


@dataclass
class _Attempt:
    """A task that was submitted, with the writer of its steps and the rounds that it has done."""

    index: int
    writer: StepWriter
    rounds: int = 0


class _ClusterRun:
    """The driver: submits tasks, writes their steps, submits lost tasks again."""

    def __init__(
        self,
        ray: Any,
        folder: RunFolder,
        experiment: Experiment,
        dataset: Dataset,
        todo: Sequence[Task],
        progress: Callable[[int, int], None],
    ) -> None:
        self._ray = ray
        self._folder = folder
        self._experiment = experiment
        self._todo = todo
        self._progress = progress
        self._losses = [0] * len(todo)
        self._saved = [0] * len(todo)
        self._attempts: dict[Any, _Attempt] = {}
        self._cpus_seen = time.monotonic()
        config = experiment.as_dict()
        self._shared = ray.put(
            {
                "folder": str(folder.path),
                "config": config,
                "files": own_files(config),
                "dataset": {each.name: getattr(dataset, each.name) for each in fields(dataset)},
                "versions": all_versions(),
                "slots": folder.config.get("cohort_slots"),
                "checkpoint_seconds": runner.CHECKPOINT_SECONDS,
                "step_seconds": STEP_SECONDS,
            }
        )
        options = {"num_cpus": 1, "max_retries": 0, "num_returns": "streaming"}
        self._function = ray.remote(**options)(_remote_function())
        self._queue: deque[int] = deque()
        for index, task in enumerate(todo):
            if runner.is_done(folder, task.name):
                progress(index, experiment.training.rounds)
            else:
                self._queue.append(index)

    def run(self, limit: int, report: Callable[[], None]) -> None:
        """Run to the end, with at most so many tasks at a time."""
        wait = self._ray.wait
        while self._queue or self._attempts:
            while self._queue and len(self._attempts) < limit:
                self._submit(self._queue.popleft())
            attempts = list(self._attempts)
            ready, _ = wait(attempts, timeout=runner.PROGRESS_SECONDS, fetch_local=False)
            if ready:  # one of them: take all that are ready by now
                ready, _ = wait(attempts, num_returns=len(attempts), timeout=0, fetch_local=False)
            for attempt in ready:
                self._take_step(attempt)
            self._check_nodes()
            report()

    def stop(self) -> None:
        """Cancel what still runs and close its files."""
        for generator, attempt in self._attempts.items():
            attempt.writer.close()
            with suppress(Exception):
                self._ray.cancel(generator, force=True)

    def _submit(self, index: int) -> None:
        task = self._todo[index]
        generator = self._function.remote(
            self._shared,
            (task.seed, task.index, task.labels),
            self._folder.read_checkpoint(task.name),
        )
        progress = partial(self._progress, index)
        writer = StepWriter(self._folder, self._experiment, task, progress)
        self._attempts[generator] = _Attempt(index, writer)

    def _take_step(self, generator: Any) -> None:
        """Write the next step of a task; submit the task again if its worker is lost."""
        errors = self._ray.exceptions
        attempt = self._attempts[generator]
        task = self._todo[attempt.index]
        try:
            step = self._ray.get(next(generator))
        except StopIteration:
            self._end(generator)
            if not runner.is_done(self._folder, task.name):
                self._lost(attempt, "its steps ended early")
        except errors.RayTaskError as error:
            raise _cause(error) from None
        except (errors.RuntimeEnvSetupError, errors.TaskUnschedulableError) as error:
            raise ClusterError(f"the cluster cannot run {task.name}: {_line(error)}") from error
        except errors.RayError as error:
            self._end(generator)
            self._lost(attempt, _line(error))
        else:
            attempt.writer.write(step)
            attempt.rounds = step.rounds
            if step.checkpoint is not None:
                self._losses[attempt.index] = 0
                self._saved[attempt.index] = step.rounds

    def _end(self, generator: Any) -> None:
        self._attempts.pop(generator).writer.close()

    def _lost(self, attempt: _Attempt, reason: str) -> None:
        """Queue a task again; raise ClusterError if it is lost again and again."""
        index = attempt.index
        self._losses[index] += 1
        name = self._todo[index].name
        if self._losses[index] >= LOSSES:
            raise ClusterError(
                f"{name} lost its worker {LOSSES} times without reaching a checkpoint, perhaps out "
                f"of memory: {reason}"
            )
        done, saved = attempt.rounds, self._saved[index]
        log.warning("%s lost its worker in round %d and resumes in round %d", name, done, saved)
        self._queue.appendleft(index)

    def _check_nodes(self) -> None:
        """Raise ClusterError if the cluster has had no CPU for minutes."""
        if self._ray.cluster_resources().get("CPU", 0) >= 1:
            self._cpus_seen = time.monotonic()
        elif time.monotonic() - self._cpus_seen > NODES_SECONDS:
            raise ClusterError(f"the cluster has had no CPU for {NODES_SECONDS:.0f} s")


def _cause(error: Any) -> Exception:
    """Return what a task has raised."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else ClusterError(_line(error))


def _line(error: Exception) -> str:
    """Return the first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def _remote_function() -> Callable[..., Iterator[Step]]:
    """Return what runs on a worker.

    Ray ships an inner function by value, so that a failing import of this package is an error of
    the task, and not one of Ray.
    """

    def run_task(
        shared: Mapping[str, Any], task: tuple[int, int, tuple[str, ...]], checkpoint: bytes | None
    ) -> Iterator[Step]:
        try:
            from adcs.experiments.cluster import steps_on_worker
        except ImportError as error:
            import platform

            raise ConnectionError(
                f"the worker on {platform.node()} lacks a package: {error}; "
                "pip install 'adcs[cli,cluster]' on each node brings all"
            ) from None
        yield from steps_on_worker(shared, task, checkpoint)

    return run_task


def steps_on_worker(
    shared: Mapping[str, Any], task: tuple[int, int, tuple[str, ...]], checkpoint: bytes | None
) -> Iterator[Step]:
    """Run a task on a worker: `task_steps` of what the driver has sent.

    Parameters
    ----------
    shared
        What all tasks need: settings, files, data, versions of the driver, seconds between steps.
    task
        Seed, index and labels of the task.
    checkpoint
        The content of its checkpoint.
    """
    check_versions(shared["versions"])
    with _unpacked(shared["files"]) as moved, runner.without_overflow_warnings():
        steps = task_steps(
            RunFolder(Path(shared["folder"])),
            from_dict(with_files(shared["config"], moved)),
            Task(*task),
            Dataset(**shared["dataset"]),
            None if checkpoint is None else unpack(checkpoint),
            slots=shared["slots"],
            step_seconds=shared["step_seconds"],
            checkpoint_seconds=shared["checkpoint_seconds"],
        )
        for step in steps:
            check_versions(shared["versions"])  # the model may have imported torch
            yield step


def all_versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of those that results depend on.

    >>> set(all_versions()) >= {"python", "adcs", "numpy", "scipy"}
    True
    """
    found = versions()
    with suppress(importlib.metadata.PackageNotFoundError):
        found["torch"] = importlib.metadata.version("torch")
    return found


def check_versions(needed: Mapping[str, str]) -> None:
    """Raise ClusterError if this process runs other versions; torch counts once it is imported.

    >>> check_versions(all_versions())
    >>> check_versions({**all_versions(), "numpy": "1.0"})
    Traceback (most recent call last):
    ...
    adcs.experiments.ray_connection.ClusterError: the worker on ... has numpy ..., the driver 1.0;
    results could differ, so install the same version on both
    """
    held = all_versions()
    for name, version in needed.items():
        if held.get(name) != version and (name != "torch" or name in sys.modules):
            raise ClusterError(
                f"the worker on {platform.node()} has {name} {held.get(name, 'not')}, the driver "
                f"{version}; results could differ, so install the same version on both"
            )


def with_files(value: Any, moved: Mapping[str, str]) -> Any:
    """Return settings that name files at other paths.

    >>> with_files({"a": ["b.py:Mine(k=1)", "ADCS"]}, {"b.py": "/tmp/b.py"})
    {'a': ['/tmp/b.py:Mine(k=1)', 'ADCS']}
    """
    if isinstance(value, Mapping):
        return {key: with_files(item, moved) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_files(item, moved) for item in value]
    if isinstance(value, str) and (file := file_of(value)) in moved:
        return moved[file] + value.strip().removeprefix(file)
    return value


@contextmanager
def _unpacked(files: Mapping[str, bytes]) -> Iterator[dict[str, str]]:
    """Write files to a temporary folder; yield their paths there, by the driver's paths.

    Errors name the driver's paths.
    """
    with tempfile.TemporaryDirectory(prefix="adcs-") as base:
        moved: dict[str, str] = {}
        for number, (name, content) in enumerate(files.items()):
            path = Path(base).resolve() / str(number) / Path(name).name
            path.parent.mkdir()
            path.write_bytes(content)
            moved[name] = str(path)
        try:
            yield moved
        except Exception as error:
            raise _portable(error, moved) from None


def _portable(error: Exception, moved: Mapping[str, str]) -> Exception:
    """Return an error that the driver can read: of a known type, with the driver's paths.

    >>> _portable(ValueError("no class in /tmp/b.py"), {"b.py": "/tmp/b.py"})
    ValueError('no class in b.py')
    """
    text = str(error)
    for name, path in moved.items():
        text = text.replace(path, name)
    known = type(error).__module__.partition(".")[0] in ("builtins", "adcs")
    if known and text == str(error):
        return error
    if known and len(error.args) == 1:
        return type(error)(text)
    return RuntimeError(f"{type(error).__name__}: {text}")
