"""Why a cohort of a past round was chosen: the run is replayed up to it, and looked at.

Runs are functions of their config, so nothing needs to be kept for this but the config. The replay
has the same schedulers in its pass and the same measured rounds, and runs in a process of its own
with one BLAS thread, as the run did; whether it meets the run's own records is checked.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Any

from adcs._types import ClientId
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.runner import Progress, one_thread_each, same_data
from adcs.experiments.scheduler_errors import blaming
from adcs.schedulers.base import Cohort
from adcs.schedulers.choice import Choice, look


def replay(
    experiment: Experiment,
    seed: int,
    label: str,
    server_round: int,
    progress: Progress | None = None,
    *,
    fingerprint: str | None = None,
) -> tuple[Choice, int, list[int]]:
    """Replay a run up to a round; return what was known at its choice.

    Parameters
    ----------
    experiment, seed, label, server_round
        The run, and the round whose choice is looked at.
    progress
        Told of progress a few times a second.
    fingerprint
        What the run's config holds as `data_fingerprint`: other data is refused. None takes the
        data as it is.

    Returns
    -------
    choice
        What was known when that round's cohort was chosen.
    evaluated
        The last evaluated round up to it.
    counts
        How often each client had been chosen before that one, to check against the record.
    """
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", 0, lock=False)
    with (
        one_thread_each(),
        ProcessPoolExecutor(1, mp_context=context, initializer=_set_up, initargs=(done,)) as pool,
    ):
        future = pool.submit(_work, experiment.as_dict(), seed, label, server_round, fingerprint)
        try:
            while not wait([future], timeout=0.2).done:
                if progress is not None:
                    progress(done.value, server_round + 1)
        except BaseException:
            # Leaving the pool would wait for the end of the replay.
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        found = future.result()
    if progress is not None:
        progress(server_round + 1, server_round + 1)
    return found


_done: Any = None


def _set_up(done: Any) -> None:
    global _done
    _done = done


def _work(
    config: dict[str, Any], seed: int, label: str, server_round: int, fingerprint: str | None
) -> tuple[Choice, int, list[int]]:
    with blaming():
        return _replay(from_dict(config), seed, label, server_round, fingerprint)


def _replay(
    experiment: Experiment, seed: int, label: str, server_round: int, fingerprint: str | None
) -> tuple[Choice, int, list[int]]:
    labels = next(labels for labels in experiment.passes() if label in labels)
    dataset = same_data(experiment, fingerprint)
    simulation = experiment.simulation(seed, labels, dataset)
    run = next(run for run in simulation.runs if run.name == label)
    counts: list[int] = []
    evaluated = 0
    choices: list[Choice] = []
    choose = run.scheduler.select

    def watched(now: int, available: Sequence[ClientId], m: int) -> Cohort:
        cohort = choose(now, available, m)
        if now == server_round:
            choices.append(look(run.scheduler, available, cohort))
        return cohort

    run.scheduler.select = watched  # type: ignore[method-assign,assignment]
    while simulation.server_round <= server_round:
        measured = simulation.server_round % experiment.run.eval_every == 0
        if measured:
            evaluated, counts = simulation.server_round, run.counts.tolist()
            _done.value = simulation.server_round
        simulation.step(measured=measured)
    return choices[0], evaluated, counts
