"""Running a comparison: tasks on processes, records into the run folder, resumable at any moment.

A task is one seed and one pass, that is, the schedulers that share it. Which tasks there are
follows from the config, never from the number of processes, and a task's result from the config
alone: one process or several, resumed or not, the same command writes the same bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.scheduler_errors import blaming
from adcs.run_folder import RunFolder, fingerprint
from adcs.simulation.datasets.registry import Dataset

CHECKPOINT_SECONDS = 5.0
"""Time between checkpoints of a task."""

PROGRESS_SECONDS = 0.2
"""Time between words on how far a task is."""

Progress = Callable[[int, int], None]
"""Called now and then with the run-rounds done and their total."""


@dataclass(frozen=True)
class Task:
    """One seed and the schedulers that share a pass."""

    seed: int
    index: int
    labels: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the task's files."""
        return f"seed{self.seed}-pass{self.index}"


def tasks(experiment: Experiment) -> list[Task]:
    """Return the tasks of an experiment."""
    return [
        Task(seed, index, labels)
        for seed in experiment.seed_list
        for index, labels in enumerate(experiment.passes())
    ]


def data_fingerprint(dataset: Dataset) -> str:
    """Return the fingerprint of the examples and labels that models see.

    >>> from adcs.simulation.datasets.registry import synthetic
    >>> data_fingerprint(synthetic(seed=1)) == data_fingerprint(synthetic(seed=2))
    False
    """
    return fingerprint(dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test)


def same_data(experiment: Experiment, held: str | None) -> Dataset:
    """Load the data of a run; refuse it if it is not what the run began with.

    Parameters
    ----------
    experiment
        The run's.
    held
        The fingerprint that the run's config holds; None, as in runs of older versions, takes the
        data as it is.
    """
    try:
        dataset = experiment.dataset()
    except ValueError as error:
        raise ValueError(
            f"the data {experiment.data.name}, which the run's config.json names, cannot be "
            f"loaded: {error}"
        ) from error
    if held is not None and data_fingerprint(dataset) != held:
        raise ValueError(
            f"the data {experiment.data.name} is no longer what this run began with, by the "
            "fingerprint in its config.json; bring that back, or start a new run"
        )
    return dataset


def run_task(
    folder: RunFolder, experiment: Experiment, task: Task, progress: Callable[[int], None]
) -> None:
    """Run a task to its end, from its checkpoint if it has one."""
    checkpoint = folder.load_checkpoint(task.name)
    if checkpoint is not None and checkpoint.get("done"):
        progress(experiment.training.rounds)
        return
    # Tasks may start hours after the run did: each looks for itself.
    dataset = same_data(experiment, folder.config.get("data_fingerprint"))
    simulation = experiment.simulation(task.seed, task.labels, dataset)
    offset = 0
    if checkpoint is not None:
        # A scheduler of the user's own that fails is blamed before the checkpoint is.
        with folder.restoring(task.name), blaming():
            simulation.restore(checkpoint["simulation"])
            offset = checkpoint["offset"]
    told = saved = time.monotonic()
    with folder.writer(task.name, offset) as lines:

        def save(done: bool) -> None:
            state = {"done": done, "offset": lines.offset, "simulation": simulation.state()}
            folder.save_checkpoint(task.name, state)

        while simulation.server_round < experiment.training.rounds:
            if simulation.server_round % experiment.run.eval_every:
                simulation.step()
            else:
                records = simulation.evaluate()
                measures = simulation.step(measured=True) or [{} for _ in records]
                for record, measure in zip(records, measures, strict=True):
                    lines.append({**record, **measure})
            now = time.monotonic()
            if now - told > PROGRESS_SECONDS:
                progress(simulation.server_round)
                told = now
            if now - saved > CHECKPOINT_SECONDS:
                save(done=False)
                saved = time.monotonic()
        for record in simulation.evaluate(final=True):
            lines.append(record)
        save(done=True)
    progress(experiment.training.rounds)


def run_experiment(
    folder: RunFolder,
    experiment: Experiment,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Run whatever an experiment's folder does not hold yet.

    Parameters
    ----------
    folder
        Where results go.
    experiment
        What to run.
    jobs
        Number of processes; None takes one for each core.
    progress
        Told of progress a few times a second.

    Raises
    ------
    InUse
        If another process is running what the folder holds.
    """
    with folder.locked():
        _run_tasks(folder, experiment, jobs, progress)


def _run_tasks(
    folder: RunFolder, experiment: Experiment, jobs: int | None, progress: Progress | None
) -> None:
    # Fail here, in one place, if the data cannot be had or is other data.
    same_data(experiment, folder.config.get("data_fingerprint"))
    todo = tasks(experiment)
    weights = [len(task.labels) for task in todo]
    total = sum(weights) * experiment.training.rounds
    count = min(jobs or os.cpu_count() or 1, len(todo))
    context = multiprocessing.get_context("spawn")
    done = context.Array("q", len(todo), lock=False)
    with (
        one_thread_each(),
        ProcessPoolExecutor(
            count, mp_context=context, initializer=_set_up, initargs=(done,)
        ) as pool,
    ):
        config = experiment.as_dict()
        futures = {
            pool.submit(_work, str(folder.path), config, task, slot)
            for slot, task in enumerate(todo)
        }
        try:
            while futures:
                finished, futures = wait(
                    futures, timeout=PROGRESS_SECONDS, return_when=FIRST_EXCEPTION
                )
                for future in finished:
                    future.result()
                if progress is not None:
                    rounds = sum(w * d for w, d in zip(weights, done, strict=True))
                    progress(rounds, total)
        except BaseException:
            # Leaving the pool would wait for what is still running.
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise


_slots: Any = None


def _set_up(slots: Any) -> None:
    global _slots
    _slots = slots


def _work(path: str, config: dict[str, Any], task: Task, slot: int) -> None:
    parent = os.getppid()

    def progress(rounds: int) -> None:
        _slots[slot] = rounds
        if os.getppid() != parent:
            os._exit(1)  # Killed with no chance to stop us: whoever resumes must find us gone.

    with blaming():
        run_task(RunFolder.open(path), from_dict(config), task, progress)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Give each new process one BLAS thread: processes do the parallel work, and bits agree."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
