"""Why a cohort of a past round was chosen: the run is replayed up to it, and looked at.

Runs are functions of their config, so nothing needs to be kept for this but the config. The replay
has the same schedulers in its pass and the same measured rounds, and runs in a process of its own
with one BLAS thread, as the run did; whether it meets the run's own records is checked.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adcs._types import ClientId
from adcs.dpp.explain import Explanation, explain
from adcs.dpp.kernel import similarity, unit_rows
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.runner import Progress, one_thread_each, same_data
from adcs.experiments.scheduler_errors import blaming
from adcs.schedulers.base import Cohort, Scheduler
from adcs.schedulers.client_dpp import Determinantal
from adcs.schedulers.live_adcs import LiveADCS
from adcs.schedulers.snapshot import SnapshotScheduler


@dataclass(frozen=True)
class Choice:
    """What was known when a cohort was chosen.

    Attributes
    ----------
    cohort
        The cohort, with its diagnostics.
    available
        The clients to choose from.
    theta
        Weight of quality, for a determinantal scheduler; None for others.
    known
        The clients that it could choose by what they had reported, in the order of the rows of
        `explanation`.
    explanation
        Picks and rows left out; None where the scheduler is not determinantal.
    scores
        What clients were ranked by, where they were ranked.
    ranked_by
        The name of that: "loss" or "norm".
    nearest
        For other schedulers that know updates: each client's most similar chosen one.
    required
        The clients that are in every cohort while they are available.
    """

    cohort: Cohort
    available: tuple[ClientId, ...]
    theta: float | None = None
    known: tuple[ClientId, ...] = ()
    explanation: Explanation | None = None
    scores: Mapping[ClientId, float] = field(default_factory=dict)
    ranked_by: str | None = None
    nearest: Mapping[ClientId, tuple[ClientId, float]] = field(default_factory=dict)
    required: tuple[ClientId, ...] = ()

    @property
    def waited(self) -> tuple[ClientId, ...]:
        """Those who are in for having waited too long, whatever their score."""
        return tuple(self.cohort.diagnostics.get("waited", ()))

    @property
    def drawn(self) -> bool:
        """Whether all places went, by a seeded draw, to clients without a usable report."""
        drawn = self.cohort.diagnostics.get("drawn", ())
        return bool(self.cohort.clients) and set(self.cohort.clients) <= set(drawn)


def look(scheduler: Scheduler, available: Sequence[ClientId], cohort: Cohort) -> Choice:
    """Return what a scheduler knew, right after it has chosen.

    >>> from adcs.schedulers import PowerOfChoice
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = PowerOfChoice()
    >>> scheduler.observe(0, [ClientReport(c, 0, loss=c / 2) for c in range(3)], "probe")
    >>> choice = look(scheduler, range(3), scheduler.select(0, range(3), 1))
    >>> choice.ranked_by, choice.scores
    ('loss', {0: 0.0, 1: 0.5, 2: 1.0})
    """
    here = tuple(sorted(available, key=lambda client: (isinstance(client, str), client)))
    diagnostics, required = cohort.diagnostics, scheduler.constraints.required
    blind = Choice(cohort, here, required=required)
    if blind.drawn:
        if isinstance(scheduler, (SnapshotScheduler, LiveADCS)):
            return replace(blind, known=tuple(scheduler.known_clients(here)))
        return blind
    dpp = scheduler.dpp if isinstance(scheduler, Determinantal) else None
    if dpp is not None and "gains" in diagnostics:
        row = {client: i for i, client in enumerate(dpp.clients)}
        rows = [row[client] for client, _ in diagnostics["gains"]]
        c = similarity(dpp.directions) if dpp.similarity is None else dpp.similarity
        sure = (*required, *diagnostics.get("waited", ()))
        given = [row[client] for client in sure if client in row]
        found = explain(c, rows, dpp.quality, dpp.scoring.theta, dpp.scoring, given=given)
        known = tuple(dpp.clients)
        return Choice(cohort, here, dpp.scoring.theta, known, found, required=required)
    if "scores" in diagnostics:
        name, scores = _ranking(scheduler, here, dict(diagnostics["scores"]))
        return Choice(cohort, here, scores=scores, ranked_by=name, required=required)
    return Choice(cohort, here, nearest=_nearest(scheduler, here, cohort), required=required)


def _ranking(
    scheduler: Scheduler, here: tuple[ClientId, ...], chosen: Mapping[ClientId, float]
) -> tuple[str, dict[ClientId, float]]:
    """Return the reported number that the scores of the chosen are, for everyone who told it."""
    newest = max(scheduler.reports[client].server_round for client in chosen) if chosen else 0
    for name in ("loss", "update_norm"):
        told = {
            client: float(value)
            for client in here
            if (report := scheduler.reports.get(client)) is not None
            and report.server_round == newest
            and (value := getattr(report, name)) is not None
        }
        if all(told.get(client) == score for client, score in chosen.items()):
            return ("norm" if name == "length" else name), told
    return "score", dict(chosen)


def _nearest(
    scheduler: Scheduler, here: tuple[ClientId, ...], cohort: Cohort
) -> dict[ClientId, tuple[ClientId, float]]:
    vectors = {
        client: report.vector
        for client in here
        if (report := scheduler.reports.get(client)) is not None and report.vector is not None
    }
    known = list(vectors)
    columns = [i for i, client in enumerate(known) if client in cohort.clients]
    if not columns:
        return {}
    c = similarity(unit_rows(np.stack([v for v in vectors.values() if v is not None])))
    np.fill_diagonal(c, -2.0)
    best = [columns[i] for i in c[:, columns].argmax(axis=1)]
    return {
        client: (known[j], float(c[i, j]))
        for i, (client, j) in enumerate(zip(known, best, strict=True))
        if i != j
    }


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
        measured = simulation.server_round % experiment.eval_every == 0
        if measured:
            evaluated, counts = simulation.server_round, run.counts.tolist()
            _done.value = simulation.server_round
        simulation.step(measured=measured)
    return choices[0], evaluated, counts
