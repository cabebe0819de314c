"""The record of a round, evaluation summaries, and the run folder that they are written to."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs import metrics
from adcs._serialization import pack, unpack
from adcs._types import ClientId
from adcs.backoff import Backoff
from adcs.rounds import Deadlines
from adcs.run_folder import REMEDY, InUse, Ledger, RunFolder, plain, write_atomically
from adcs.schedulers.base import Cohort, Scheduler
from adcs.schedulers.choice import RECORDED_LIMIT, as_record, explain_choice, kernel_record

PER_CLIENT_LIMIT = 1000
"""With more clients than this, records leave out lists with an entry for each client."""


@dataclass
class RoundRecord:
    """What happened in one round.

    Attributes
    ----------
    probed, answered
        The clients that were probed, and those whose answers were used.
    cohort
        The selected clients, with the scheduler's diagnostics.
    choice
        Why they were selected and others were not, for `adcs explain`; empty if not recorded.
    trained
        The clients whose replies were aggregated.
    unused
        Clients whose usable replies the strategy was given, and made no model of.
    refused
        Replies withheld from scheduler and strategy: client, stage, reason.
    failed
        Error replies: client, stage, reason.
    timed_out
        Clients that did not answer in time, by stage.
    outrun
        Clients that were not waited for, because there were enough replies.
    staleness
        In asynchronous rounds, how many versions old the model was that each client was sent.
    late
        Answers that came too late to be used in their round: client, stage, round.
    pending
        Clients that were not asked, because an answer of theirs is pending.
    backing_off
        Clients that were not asked, because they failed in earlier rounds.
    without_mod
        Clients whose app cannot answer probes.
    id_conflicts
        Clients whose node claims another's partition id, with an explanation.
    metrics_left_out
        Metrics that not all replies had, and that the strategy therefore did not receive.
    evaluation
        Metrics by client.
    schedule_seconds
        Time spent in the scheduler, and in reading the answers to the probe.
    costs
        What clients and network have spent in this round.
    renamed
        Clients that are identified only now: the ids before and since.

    Examples
    --------
    >>> RoundRecord(trained=[3, 7]).summary()["trained"]
    2
    """

    probed: tuple[ClientId, ...] = ()
    answered: list[ClientId] = field(default_factory=list)
    cohort: Cohort = field(default_factory=lambda: Cohort((), ()))
    choice: dict[str, Any] = field(default_factory=dict)
    trained: list[ClientId] = field(default_factory=list)
    unused: list[ClientId] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    timed_out: dict[str, list[ClientId]] = field(default_factory=dict)
    outrun: list[ClientId] = field(default_factory=list)
    staleness: dict[ClientId, int] | None = None
    late: list[dict[str, Any]] = field(default_factory=list)
    pending: list[ClientId] = field(default_factory=list)
    backing_off: list[ClientId] = field(default_factory=list)
    without_mod: list[ClientId] = field(default_factory=list)
    id_conflicts: dict[ClientId, str] = field(default_factory=dict)
    metrics_left_out: list[str] = field(default_factory=list)
    evaluation: dict[str, dict[ClientId, float]] = field(default_factory=dict)
    schedule_seconds: float = 0.0
    costs: Ledger = field(default_factory=Ledger)
    renamed: dict[ClientId, ClientId] = field(default_factory=dict)
    _logged: Counter[str] = field(default_factory=Counter)

    def log_problems(self, log: logging.Logger, server_round: int) -> None:
        """Log replies that were refused, failed or did not arrive, unless they are logged already.

        Parameters
        ----------
        log
            The logger.
        server_round
            The round as the framework counts it.
        """
        for name, entries in (("refused", self.refused), ("failed", self.failed)):
            new = entries[self._logged[name] :]
            self._logged[name] = len(entries)
            if new:
                clients: dict[str, list[ClientId]] = {}  # a reason is logged once
                for entry in new:
                    clients.setdefault(entry["reason"], []).append(entry["client"])
                reasons = "; ".join(
                    f"{_several(each)}: {reason}" for reason, each in list(clients.items())[:5]
                )
                log.warning("round %d: %d replies %s: %s", server_round, len(new), name, reasons)
        for stage, silent in self.timed_out.items():
            if not self._logged[stage]:
                self._logged[stage] = len(silent)
                log.warning(
                    "round %d: %d clients did not answer in time (%s): %s",
                    server_round,
                    len(silent),
                    stage,
                    _several(silent),
                )

    def summary(self) -> dict[str, float | int]:
        """Return the round in a few numbers."""
        return {
            "probed": len(self.probed),
            "answered": len(self.answered),
            "chosen": len(self.cohort.clients),
            "trained": len(self.trained),
            "refused": len(self.refused),
            "failed": len(self.failed),
            "backing_off": len(self.backing_off),
            "bytes_up": self.costs.bytes_up,
            "bytes_down": self.costs.bytes_down,
            "seconds": self.costs.seconds,
            "schedule_seconds": self.schedule_seconds,
        }


def _several(clients: Sequence[ClientId]) -> str:
    """Return the first clients as text, and how many others there are."""
    names = ", ".join(str(client) for client in clients[:5])
    return names if len(clients) <= 5 else f"{names} and {len(clients) - 5} others"


def why_idle(records: Iterable[RoundRecord]) -> str:
    """Return why no client has trained in some rounds, the most frequent reasons first.

    >>> refused = {"client": 3, "stage": "training", "reason": "array 'w' must be finite"}
    >>> why_idle([RoundRecord(refused=[refused, refused]), RoundRecord()])
    "array 'w' must be finite (2 times); no client could be asked (1 time)"
    """
    reasons: Counter[str] = Counter()
    for record in records:
        entries = [*record.refused, *record.failed]
        reasons.update(str(entry["reason"]) for entry in entries if entry["stage"] != "evaluation")
        silent = sum(len(clients) for clients in record.timed_out.values())
        if silent:
            reasons["no answer in time"] += silent
        if record.unused:
            reasons[f"the strategy aggregated nothing from {len(record.unused)} replies"] += 1
        if not (entries or silent or record.cohort.clients):
            reasons["no client could be asked"] += 1
    return "; ".join(
        f"{reason} ({count} time{'s' if count > 1 else ''})"
        for reason, count in reasons.most_common(5)
    )


def metrics_by_client(
    reported: Mapping[ClientId, Mapping[str, Any]], weight_key: str | None
) -> dict[str, dict[ClientId, float]]:
    """Return each single-valued metric by client, without the number of examples.

    >>> metrics_by_client({7: {"eval_acc": 0.5, "num-examples": 10}}, "num-examples")
    {'eval_acc': {7: 0.5}}
    """
    values: dict[str, dict[ClientId, float]] = {}
    for client, client_metrics in reported.items():
        for key, value in client_metrics.items():
            if key != weight_key and not isinstance(value, list):
                values.setdefault(key, {})[client] = float(value)
    return values


def summarise(key: str, values: Iterable[float]) -> dict[str, float]:
    """Return worst, worst20 (mean over the worst 20 %), average and std over clients.

    For a metric with "loss" in its name, larger is worse.

    >>> summarise("eval_loss", [0.5, 1.5])
    {'worst': 1.5, 'worst20': 1.5, 'average': 1.0, 'std': 0.5}
    """
    array = np.array(list(values), dtype=np.float64)
    sign = -1.0 if "loss" in key.lower() else 1.0
    return {
        "worst": sign * float((sign * array).min()),
        "worst20": sign * metrics.worst_share(sign * array),
        "average": float(array.mean()),
        "std": float(array.std()),
    }


def evaluation_summaries(evaluation: Mapping[str, Mapping[ClientId, float]]) -> dict[str, float]:
    """Return worst, worst20 and average of each metric, under names for a framework's metrics.

    >>> evaluation_summaries({"eval_acc": {0: 0.5, 1: 1.0}})
    {'eval_acc-worst': 0.5, 'eval_acc-worst20': 0.5, 'eval_acc-average': 0.75}
    """
    return {
        sys.intern(f"{key}-{name}"): value  # Frameworks keep them for all rounds.
        for key, by_client in evaluation.items()
        for name, value in summarise(key, by_client.values()).items()
        if name != "std"
    }


class Recorder:
    """Accumulates rounds and writes them to a run folder, with a checkpoint after each.

    Parameters
    ----------
    folder
        The run folder; one with a checkpoint is resumed. None writes nothing.
    scheduler
        The scheduler of the run; a checkpoint in the folder is restored into it.
    engine
        The name of the framework, for the folder's config and for the file of the records.
    config
        What the folder's config contains beside engine and scheduler.

    Attributes
    ----------
    rounds_done
        The number of rounds done, before a restart as well.
    costs
        What clients and network have spent so far.
    counts
        How often each client has trained.
    examples
        The number of examples that each client has reported.
    update_keys
        The arrays that make up the update; None before the first round.
    backoff
        The clients that have failed, and how long each is left alone.
    deadlines
        The times of clients, where deadlines are learned from them.
    model
        The model after the last round, for the checkpoint; None if it is not saved.
    strategy_state
        What the server's strategy keeps between rounds, for the checkpoint.
    train_config
        The configuration of training, as it was given at the start and as the strategy has changed
        it since, for the checkpoint.

    Examples
    --------
    >>> from adcs import Uniform
    >>> recorder = Recorder(None, Uniform(), "example", {})
    >>> recorder.close(RoundRecord(trained=[3]), [3, 7])["server_round"]
    1
    """

    def __init__(
        self,
        folder: str | Path | None,
        scheduler: Scheduler,
        engine: str,
        config: Mapping[str, Any],
    ) -> None:
        self.rounds_done = 0
        self.costs = Ledger()
        self.counts: Counter[ClientId] = Counter()
        self.examples: dict[ClientId, float] = {}
        self.update_keys: tuple[str, ...] | None = None
        self.backoff = Backoff()
        self.deadlines = Deadlines()
        self.model: dict[str, NDArray[Any]] | None = None
        self.strategy_state: Any = None
        self.train_config: Sequence[dict[str, Any]] | None = None
        self._parts: dict[str, str] = {}  # the files of the last checkpoint
        self._scheduler = scheduler
        self._task = engine
        self._folder: RunFolder | None = None
        self._offset = 0
        if folder is None:
            return
        ours = plain({"engine": engine, "scheduler": scheduler_settings(scheduler), **config})
        if (Path(folder) / "config.json").exists():
            self._folder = RunFolder.open(folder)
            if self._folder.config.get("engine") != engine:
                raise ValueError(f"{folder} holds a run of another engine: choose another folder")
            theirs = self._folder.config.get("scheduler")
            if theirs != ours["scheduler"]:
                raise ValueError(
                    f"{folder} holds a run of {theirs}, not of {ours['scheduler']}: "
                    "choose another folder"
                )
        else:
            self._folder = RunFolder.create(folder, ours)
        with self._folder.locked():
            state = self._folder.load_checkpoint(self._task)
            if state is not None:
                self._parts = {str(k): str(v) for k, v in state.get("parts", {}).items()}
                parts = {name: self._load_part(file) for name, file in self._parts.items()}
                with self._folder.restoring(self._task):
                    self._resume({**state, **parts})

    @property
    def saves(self) -> bool:
        """Whether rounds are written to a folder."""
        return self._folder is not None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for a run; raise InUse if another process runs in it, or has run."""
        if self._folder is None:
            yield
            return
        with self._folder.locked():
            state = self._folder.load_checkpoint(self._task)
            done = 0 if state is None else int(state["rounds_done"])
            if done != self.rounds_done:
                raise InUse(
                    f"{self._folder.path} has {done} rounds and had {self.rounds_done} when it was "
                    "opened: another process has run in it; start this one again"
                )
            yield

    def _resume(self, state: Mapping[str, Any]) -> None:
        self._scheduler.restore(state["scheduler"])
        self.model = state.get("model")
        self.strategy_state = state.get("strategy")
        self.train_config = state.get("train_config")
        self.rounds_done = int(state["rounds_done"])
        self.costs = Ledger(**state["costs"])
        self.counts = Counter(dict(state["counts"]))
        self.examples = dict(state["examples"])
        keys = state["update_keys"]
        self.update_keys = None if keys is None else tuple(keys)
        self.backoff.restore(state["backoff"])
        if "deadlines" in state:
            self.deadlines.restore(state["deadlines"])
        self._offset = int(state["offset"])

    def explain(
        self, record: RoundRecord, available: Sequence[ClientId], log: logging.Logger
    ) -> None:
        """Record why the cohort was selected; call it directly after the selection.

        Parameters
        ----------
        record
            The round.
        available
            The clients that could be selected; with more than 200 nothing is recorded.
        log
            Where a scheduler that cannot be explained is logged.
        """
        if self._folder is None or len(available) > RECORDED_LIMIT:
            return
        try:
            record.choice = as_record(explain_choice(self._scheduler, available, record.cohort))
            record.choice |= kernel_record(self._scheduler)
        except Exception as error:  # A custom scheduler; the round continues without it.
            log.warning("round %d: the choice has no explanation: %s", self.rounds_done + 1, error)

    def announce(self, record: RoundRecord, connected: Sequence[ClientId]) -> None:
        """Write who is at work in the round that begins, for `adcs watch`, into status.json.

        Parameters
        ----------
        record
            The round, with its cohort.
        connected
            The clients that are connected.
        """
        if self._folder is None:
            return
        status = {
            "server_round": self.rounds_done + 1,
            "connected": connected,
            "at_work": record.cohort.clients,
            "pending": record.pending,
            "backing_off": record.backing_off,
            "time": time.time(),
        }
        write_atomically(self._folder.path / "status.json", json.dumps(plain(status)).encode())

    def close(self, record: RoundRecord, clients: Iterable[ClientId]) -> dict[str, Any]:
        """Add a round that is done, write it, and return it as written.

        Parameters
        ----------
        record
            The round.
        clients
            All clients that could have been selected.
        """
        self.rounds_done += 1
        for before, since in record.renamed.items():
            self.counts[since] += self.counts.pop(before, 0)
            if before in self.examples:
                self.examples[since] = self.examples.pop(before)
            self.backoff.rename(before, since)
            self.deadlines.rename(before, since)
        for client in clients:
            self.counts.setdefault(client, 0)
        self.counts.update(record.trained)
        for name, value in record.costs.as_dict().items():
            setattr(self.costs, name, getattr(self.costs, name) + value)
        line = self._line(record)
        if self._folder is not None:
            self._write(self._folder, line)
        return line

    def _write(self, folder: RunFolder, line: Mapping[str, Any]) -> None:
        # Lines beyond the last checkpoint belong to a round that was not finished.
        with folder.writer(self._task, self._offset) as lines:
            lines.append(line)
            self._offset = lines.offset
        before = set(self._parts.values())
        self._parts = {
            name: self._save_part(folder, name, value)
            for name, value in (
                ("scheduler", self._scheduler.state()),
                ("model", self.model),
                ("strategy", self.strategy_state),
            )
            if value is not None
        }
        folder.save_checkpoint(
            self._task,
            {
                "parts": self._parts,
                "rounds_done": self.rounds_done,
                "costs": self.costs.as_dict(),
                "counts": [[client, count] for client, count in self.counts.items()],
                "examples": [[client, number] for client, number in self.examples.items()],
                "update_keys": None if self.update_keys is None else list(self.update_keys),
                "backoff": self.backoff.state(),
                **({"deadlines": self.deadlines.state()} if self.deadlines else {}),
                **({"train_config": self.train_config} if self.train_config else {}),
                "offset": self._offset,
            },
        )
        # The checkpoint no longer refers to these.
        for file in before.difference(self._parts.values()):
            (folder.path / "checkpoints" / file).unlink(missing_ok=True)

    def _save_part(self, folder: RunFolder, name: str, value: Any) -> str:
        """Write a part of the checkpoint under a name made from its content, if it is new."""
        data = pack({"value": value})
        file = f"{self._task}.{name}-{hashlib.sha256(data).hexdigest()[:16]}"
        if self._parts.get(name) != file:
            write_atomically(folder.path / "checkpoints" / file, data)
        return file

    def _load_part(self, file: str) -> Any:
        assert self._folder is not None
        path = self._folder.path / "checkpoints" / Path(file).name
        try:
            return unpack(path.read_bytes())["value"]
        except (OSError, ValueError, LookupError) as error:
            main = path.with_name(self._task)
            raise ValueError(f"{path}, a part of {main}, cannot be read; {REMEDY}") from error

    def _line(self, record: RoundRecord) -> dict[str, Any]:
        stale = record.staleness
        line: dict[str, Any] = {
            "scheduler": type(self._scheduler).__name__,
            "seed": self._scheduler.seed,
            "server_round": self.rounds_done,
            "jain": metrics.jain(list(self.counts.values())),
            **self.costs.as_dict(),
            "schedule_seconds": record.schedule_seconds,
            "probed": record.probed,
            "answered": record.answered,
            "chosen": record.cohort.clients,
            "weights": record.cohort.weights,
            "normalise": record.cohort.normalise,
            "diagnostics": record.cohort.diagnostics,
            **({"choice": record.choice} if record.choice else {}),
            "trained": record.trained,
            **({"unused": record.unused} if record.unused else {}),
            "refused": record.refused,
            "failed": record.failed,
            "timed_out": record.timed_out,
            **({"outrun": record.outrun} if record.outrun else {}),
            **({} if stale is None else {"staleness": [stale[c] for c in record.trained]}),
            "late": record.late,
            **({"metrics_left_out": left_out} if (left_out := record.metrics_left_out) else {}),
            "pending": record.pending,
            "backing_off": record.backing_off,
            "without_mod": record.without_mod,
            "id_conflicts": record.id_conflicts,
        }
        order = sorted(self.counts, key=lambda client: (isinstance(client, str), client))
        few = len(order) <= PER_CLIENT_LIMIT
        if few:
            line["clients"] = order
            line["counts"] = [self.counts[client] for client in order]
            if groups := self._scheduler.constraints.groups:
                line["groups"] = [groups.get(client) for client in order]
        line["evaluation"] = {
            key: summarise(key, values.values()) for key, values in record.evaluation.items()
        }
        # Plots of any engine's runs go by these names.
        for key, values in record.evaluation.items():
            if "acc" in key.lower() and "worst" not in line:
                line |= line["evaluation"][key]
                if few:
                    line["accuracy"] = [values.get(client) for client in order]
            elif "loss" in key.lower() and "test_loss" not in line:
                line["test_loss"] = line["evaluation"][key]["average"]
                if few:
                    line["losses"] = [values.get(client) for client in order]
        return line


def scheduler_settings(scheduler: Scheduler) -> dict[str, Any]:
    """Return a scheduler's class, and its spec: the settings that are not the defaults.

    >>> from adcs import Uniform
    >>> scheduler_settings(Uniform(seed=3))
    {'name': 'Uniform', 'spec': 'Uniform(seed=3)'}
    """
    spec = repr(scheduler)
    name = type(scheduler).__name__
    # A class may have a repr of its own, with an address that changes with each restart.
    return {"name": name, "spec": spec if spec.startswith(f"{name}(") else name}
