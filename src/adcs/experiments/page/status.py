"""What a run does now, and its numbers in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adcs.experiments.config import Experiment
from adcs.experiments.page.alerts import (
    failures_in_a_row,
    federation_alerts,
    simulation_alerts,
)
from adcs.experiments.page.federation import all_clients, client_groups, with_metric
from adcs.experiments.page.simulation import group_names
from adcs.experiments.page.source import RunSource
from adcs.experiments.runner import ENGINE, experiment_of, layout, tasks
from adcs.experiments.selections import CohortLayout, read_cohorts, selection_paths

QUIET_SECONDS = 120.0
"""A comparison whose files are unchanged for so long may have stopped."""


class RunStatus:
    """Follows a run between its evaluations, at little cost.

    Parameters
    ----------
    source
        The run folder.
    """

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._experiment: Experiment | None = None
        if source.config.get("engine") == ENGINE:
            self._experiment = experiment_of(source.folder)
        # For each scheduler of the first seed, the round in which each client was last selected.
        self._last: dict[str, np.ndarray[Any, Any]] = {}
        self._read: dict[str, int] = {}
        self._begun: Mapping[str, Any] = {}
        self._held: dict[str, Any] | None = None

    def now(self, *, changed: bool = True) -> dict[str, Any]:
        """Return the status as JSON values; equal if nothing has happened.

        Parameters
        ----------
        changed
            Whether records have been added since the last call.
        """
        if self._experiment is not None:
            return self._simulation(self._experiment)
        begun = self._source.status
        if changed or self._held is None or begun != self._begun:
            self._begun, self._held = begun, self._federation(begun)
        return self._held

    def _simulation(self, experiment: Experiment) -> dict[str, Any]:
        source, total = self._source, experiment.training.rounds
        done_in_all, changed_at, runs, progress = 0, 0.0, {}, []
        for task in tasks(experiment, source.config.get("part")):
            form = layout(experiment, task, source.config.get("cohort_slots"))
            path, _ = selection_paths(source.folder, task.name)
            done = 0
            if path.is_file():
                found = path.stat()
                done = found.st_size // form.stride
                changed_at = max(changed_at, found.st_mtime)
            done_in_all += done * len(task.labels)
            if task.seed != experiment.run.first_seed:
                continue
            self._follow(experiment, task.name, task.labels, form, done)
            last = read_cohorts(source.folder, task.name, form, max(0, done - 1))
            for label, cohorts in zip(task.labels, last, strict=True):
                runs[label] = {"done": done, "cohort": cohorts[0].tolist() if cohorts else []}
                progress.append([label, done, total])
        every = total * sum(
            len(task.labels) for task in tasks(experiment, source.config.get("part"))
        )
        seeds = f", {experiment.run.seeds} seeds" if experiment.run.seeds > 1 else ""
        state, hint = "In progress", ""
        if done_in_all >= every:
            state = "Finished"
        elif changed_at and time.time() - changed_at > QUIET_SECONDS:
            at = time.strftime("%H:%M:%S", time.localtime(changed_at))
            hint = f" The last was at {at}; the run may have stopped."
        idle = {
            label: (runs[label]["done"] - 1 - last).tolist() for label, last in self._last.items()
        }
        names = group_names(source.config)
        return {
            "sentence": f"{state}: {done_in_all:,} of {every:,} rounds of all schedulers{seeds}."
            f"{hint}",
            "runs": {label: runs[label] for label in experiment.schedulers if label in runs},
            "progress": sorted(progress, key=lambda row: list(experiment.schedulers).index(row[0])),
            "states": None,
            "alerts": simulation_alerts(source.records, idle, source.config.get("groups"), names),
        }

    def _follow(
        self,
        experiment: Experiment,
        task: str,
        labels: Sequence[str],
        form: CohortLayout,
        done: int,
    ) -> None:
        """Note when each client was last selected, reading new rounds only."""
        clients = experiment.partition.clients
        first = self._read.get(task, 0)
        if done < first:  # The run was resumed from its checkpoint.
            first = 0
            for label in labels:
                self._last.pop(label, None)
        new = read_cohorts(self._source.folder, task, form, first)
        for label, cohorts in zip(labels, new, strict=True):
            last = self._last.setdefault(label, np.full(clients, -1))
            for number, cohort in enumerate(cohorts, start=first):
                last[cohort] = number
        self._read[task] = done

    def _federation(self, begun: Mapping[str, Any]) -> dict[str, Any]:
        source = self._source
        _, records = with_metric(source.records)
        clients = all_clients([*records, {"clients": begun.get("connected")}])
        groups, names = client_groups(records, clients)
        done = records[-1]["server_round"] if records else 0
        running = int(begun.get("server_round", 0)) > done
        states = client_states(records, begun, clients, running=running)
        started = begun.get("time")
        since = (
            f", begun at {time.strftime('%H:%M:%S', time.localtime(started))}" if started else ""
        )
        sentence = (
            f"Round {begun.get('server_round')} is under way{since}; {done} rounds are done."
            if running
            else f"{done} rounds are done."
        )
        position = {client: i for i, client in enumerate(clients)}
        cohort = [position[c] for c in (begun.get("at_work") or ()) if c in position]
        label = str((source.config.get("scheduler") or {}).get("name", "scheduler"))
        return {
            "sentence": sentence,
            "runs": {label: {"done": done, "cohort": cohort if running else []}},
            "progress": None,
            "states": [[word, [str(c) for c in who]] for word, who in states.items()],
            "alerts": federation_alerts(records, clients, groups, names),
        }


def client_states(
    records: Sequence[Mapping[str, Any]],
    begun: Mapping[str, Any],
    clients: Sequence[Any],
    *,
    running: bool,
) -> dict[str, list[Any]]:
    """Return the clients that are at work, waiting, failing and not connected.

    >>> begun = {"connected": [1, 2, 3], "at_work": [1], "backing_off": [3]}
    >>> client_states([], begun, [1, 2, 3, 4], running=True)
    {'at work': [1], 'waiting': [2], 'failing': [3], 'not connected': [4]}
    """
    connected = set(begun.get("connected") or clients)
    failing = set(failures_in_a_row(records)) | set(begun.get("backing_off") or ())
    at_work = {*(begun.get("pending") or ()), *(begun.get("at_work") or ())} if running else set()
    found: dict[str, list[Any]] = {"at work": [], "waiting": [], "failing": [], "not connected": []}
    for client in clients:
        if client in at_work:
            found["at work"].append(client)
        elif client not in connected:
            found["not connected"].append(client)
        else:
            found["failing" if client in failing else "waiting"].append(client)
    return found


def metrics_text(source: RunSource, status: Mapping[str, Any]) -> str:
    """Return the last numbers of every run in Prometheus' text format.

    Parameters
    ----------
    source
        The run folder, read.
    status
        What `RunStatus.now` returned.
    """
    return "\n".join([*_families(source, status), ""])


def _families(source: RunSource, status: Mapping[str, Any]) -> Iterator[str]:
    records = source.records
    if source.config.get("engine") != ENGINE:
        _, records = with_metric(records)
    last: dict[tuple[str, int], Mapping[str, Any]] = {}
    for record in records:
        last[record["scheduler"], record["seed"]] = record
    runs = [({"scheduler": label, "seed": str(seed)}, r) for (label, seed), r in last.items()]
    yield from _family(
        "adcs_evaluated_round",
        "gauge",
        "Rounds done at the last record.",
        [(labels, record["server_round"]) for labels, record in runs],
    )
    yield from _family(
        "adcs_round",
        "gauge",
        "Rounds done.",
        [({"scheduler": label}, run["done"]) for label, run in status["runs"].items()],
    )
    yield from _family(
        "adcs_client_metric",
        "gauge",
        "Metric of clients: of the worst, the worst 20 percent, and on average.",
        [
            ({**labels, "statistic": name}, record[name])
            for labels, record in runs
            for name in ("worst", "worst20", "average")
            if isinstance(record.get(name), (int, float))
        ],
    )
    for field, unit, words in (
        ("updates", "updates", "Client updates computed."),
        ("bytes_up", "bytes_up", "Bytes from clients."),
        ("bytes_down", "bytes_down", "Bytes to clients."),
        ("seconds", "seconds", "Seconds for probes and training."),
    ):
        samples = [(labels, r[field]) for labels, r in runs if r.get(field) is not None]
        yield from _family(f"adcs_{unit}_total", "counter", words, samples)
    if status.get("states"):
        yield from _family(
            "adcs_clients",
            "gauge",
            "Clients by what they do now.",
            [({"state": word}, len(who)) for word, who in status["states"]],
        )
        yield from _family(
            "adcs_client_failures_in_a_row",
            "gauge",
            "Failures of a client since it last trained.",
            [({"client": str(c)}, n) for c, n in failures_in_a_row(records).items()],
        )
    yield from _family("adcs_alerts", "gauge", "Alerts shown.", [({}, len(status["alerts"]))])


def _family(
    name: str, kind: str, words: str, samples: Sequence[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    """Yield the lines of one metric; none if it has no sample."""
    if not samples:
        return
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{inside}}} {float(value)}" if inside else f"{name} {float(value)}"


def escaped(text: str) -> str:
    """Return a label's value with backslashes, quotes and line ends escaped.

    >>> escaped('a"b')
    'a\\\\"b'
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
