"""The record of a round, and the run folder that it goes to."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adcs import metrics
from adcs._types import ClientId
from adcs.flower.evaluation import summarise
from adcs.flower.logs import log
from adcs.run_folder import Ledger, RunFolder, plain
from adcs.schedulers.base import Cohort, Scheduler
from adcs.schedulers.choice import RECORDED_LIMIT, as_record, look

TASK = "flower"
PER_CLIENT_LIMIT = 1000
"""With more clients than this, records leave out lists with an entry for each client."""


@dataclass
class RoundRecord:
    """What happened in one round.

    Attributes
    ----------
    asked, answered
        The clients that were probed, and those whose answers were used.
    cohort
        Who was chosen, with the scheduler's diagnostics.
    choice
        What `adcs explain` needs of how that came about; empty if nobody keeps it.
    trained
        The clients whose replies were aggregated.
    refused
        Replies that were withheld from scheduler and strategy: client, stage, reason.
    failed
        Error replies: client, stage, reason.
    silent
        Clients that did not answer in time, by stage.
    late
        Answers to earlier rounds that came in: client, stage, round.
    owing
        Clients that were left alone because they owe an answer.
    without_mod
        Clients whose ClientApp has no `probe_mod`.
    disputed
        Clients that claimed another's partition id.
    evaluation
        Metrics by client.
    renamed
        Nodes that have said who they are only now: their client ids before and since.
    """

    asked: tuple[ClientId, ...] = ()
    answered: list[ClientId] = field(default_factory=list)
    cohort: Cohort = field(default_factory=lambda: Cohort((), ()))
    choice: dict[str, Any] = field(default_factory=dict)
    trained: list[ClientId] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    silent: dict[str, list[ClientId]] = field(default_factory=dict)
    late: list[dict[str, Any]] = field(default_factory=list)
    owing: list[ClientId] = field(default_factory=list)
    without_mod: list[ClientId] = field(default_factory=list)
    disputed: dict[ClientId, str] = field(default_factory=dict)
    evaluation: dict[str, dict[ClientId, float]] = field(default_factory=dict)
    schedule_seconds: float = 0.0
    spent: Ledger = field(default_factory=Ledger)
    renamed: dict[ClientId, ClientId] = field(default_factory=dict)
    _warned: Counter[str] = field(default_factory=Counter)

    def warn(self, server_round: int) -> None:
        """Log which replies were refused, failed or did not come, each once."""
        for what, entries in (("refused", self.refused), ("failed", self.failed)):
            new = entries[self._warned[what] :]
            self._warned[what] = len(entries)
            if new:
                reasons = "; ".join(f"{one['client']}: {one['reason']}" for one in new[:5])
                log.warning("round %d: %d replies %s: %s", server_round, len(new), what, reasons)
        for stage, clients in self.silent.items():
            if not self._warned[stage]:
                self._warned[stage] = len(clients)
                names = ", ".join(str(client) for client in clients[:5])
                log.warning(
                    "round %d: %d clients did not answer in time (%s): %s",
                    server_round,
                    len(clients),
                    stage,
                    names,
                )

    def numbers(self) -> dict[str, float | int]:
        """Return the round in a few numbers, for Flower's own metrics."""
        return {
            "adcs-asked": len(self.asked),
            "adcs-answered": len(self.answered),
            "adcs-chosen": len(self.cohort.clients),
            "adcs-trained": len(self.trained),
            "adcs-refused": len(self.refused),
            "adcs-failed": len(self.failed),
            "adcs-bytes-up": self.spent.bytes_up,
            "adcs-bytes-down": self.spent.bytes_down,
            "adcs-seconds": self.spent.seconds,
            "adcs-schedule-seconds": self.schedule_seconds,
        }


class Recorder:
    """Adds up rounds and writes them, if there is a folder, with a checkpoint after each.

    Parameters
    ----------
    folder
        The run folder; one that holds a run is gone on with.
    scheduler
        Whose run it is; a checkpoint in the folder is restored into it.
    config
        What the folder's config is to say beside the scheduler.
    """

    def __init__(
        self, folder: str | Path | None, scheduler: Scheduler, config: Mapping[str, Any]
    ) -> None:
        self.rounds_done = 0
        self.totals = Ledger()
        self.counts: Counter[ClientId] = Counter()
        self.sizes: dict[ClientId, float] = {}
        self.keys: tuple[str, ...] | None = None
        self._scheduler = scheduler
        self._folder: RunFolder | None = None
        self._offset = 0
        if folder is None:
            return
        ours = plain({"engine": "flower", "scheduler": settings(scheduler), **config})
        if (Path(folder) / "config.json").exists():
            self._folder = RunFolder.open(folder)
            if self._folder.config.get("engine") != "flower":
                raise ValueError(f"{folder} holds a run of another engine: choose another folder")
            theirs = self._folder.config.get("scheduler")
            if theirs != ours["scheduler"]:
                raise ValueError(
                    f"{folder} holds a run of {theirs}, not of {ours['scheduler']}: "
                    "choose another folder"
                )
        else:
            self._folder = RunFolder.create(folder, ours)
        state = self._folder.load_checkpoint(TASK)
        if state is not None:
            with self._folder.restoring(TASK):
                self._resume(state)

    def _resume(self, state: Mapping[str, Any]) -> None:
        self._scheduler.restore(state["scheduler"])
        self.rounds_done = int(state["rounds_done"])
        self.totals = Ledger(**state["totals"])
        self.counts = Counter(dict(state["counts"]))
        self.sizes = dict(state["sizes"])
        self.keys = None if state["keys"] is None else tuple(state["keys"])
        self._offset = int(state["offset"])

    def explain(self, note: RoundRecord, available: Sequence[ClientId]) -> None:
        """Record why the cohort was chosen, right after selection."""
        if self._folder is None or len(available) > RECORDED_LIMIT:
            return
        try:
            note.choice = as_record(look(self._scheduler, available, note.cohort))
        except Exception as error:  # a scheduler of somebody's own; the round goes on without it
            log.warning("round %d: the choice has no explanation: %s", self.rounds_done + 1, error)

    def close(self, note: RoundRecord, clients: list[ClientId]) -> None:
        """Add a round that is done, and write it down."""
        self.rounds_done += 1
        for before, since in note.renamed.items():
            self.counts[since] += self.counts.pop(before, 0)
            if before in self.sizes:
                self.sizes[since] = self.sizes.pop(before)
        for client in clients:
            self.counts.setdefault(client, 0)
        self.counts.update(note.trained)
        for name, value in note.spent.as_dict().items():
            setattr(self.totals, name, getattr(self.totals, name) + value)
        if self._folder is None:
            return
        # What lies beyond the last checkpoint is of a round that was not finished.
        with self._folder.writer(TASK, self._offset) as lines:
            lines.append(self._line(note))
            self._offset = lines.offset
        self._folder.save_checkpoint(
            TASK,
            {
                "scheduler": self._scheduler.state(),
                "rounds_done": self.rounds_done,
                "totals": self.totals.as_dict(),
                "counts": [[client, count] for client, count in self.counts.items()],
                "sizes": [[client, size] for client, size in self.sizes.items()],
                "keys": None if self.keys is None else list(self.keys),
                "offset": self._offset,
            },
        )

    def _line(self, note: RoundRecord) -> dict[str, Any]:
        line: dict[str, Any] = {
            "scheduler": type(self._scheduler).__name__,
            "seed": self._scheduler.seed,
            "server_round": self.rounds_done,
            "jain": metrics.jain(list(self.counts.values())),
            **self.totals.as_dict(),
            "schedule_seconds": note.schedule_seconds,
            "asked": note.asked,
            "answered": note.answered,
            "chosen": note.cohort.clients,
            "weights": note.cohort.weights,
            "normalise": note.cohort.normalise,
            "diagnostics": note.cohort.diagnostics,
            **({"choice": note.choice} if note.choice else {}),
            "trained": note.trained,
        }
        for name in ("refused", "failed", "silent", "late", "owing", "without_mod", "disputed"):
            line[name] = getattr(note, name)
        order = sorted(self.counts, key=lambda client: (isinstance(client, str), client))
        few = len(order) <= PER_CLIENT_LIMIT
        if few:
            line["clients"] = order
            line["counts"] = [self.counts[client] for client in order]
        line["evaluation"] = {
            key: summarise(key, values.values()) for key, values in note.evaluation.items()
        }
        # The names that plots of any engine's runs look for.
        for key, values in note.evaluation.items():
            if "acc" in key.lower() and "worst" not in line:
                line |= line["evaluation"][key]
                if few:
                    line["accuracy"] = [values.get(client) for client in order]
            elif "loss" in key.lower() and "test_loss" not in line:
                line["test_loss"] = line["evaluation"][key]["average"]
        return line


def settings(scheduler: Scheduler) -> dict[str, Any]:
    """Return a scheduler's class and what it was made with, as JSON values.

    >>> from adcs import Uniform
    >>> settings(Uniform(seed=3))
    {'name': 'Uniform', 'by_size': False, 'independent': False, 'seed': 3}
    """
    names = {
        name
        for kind in type(scheduler).__mro__
        if "__init__" in vars(kind)
        for name in inspect.signature(kind.__init__).parameters  # type: ignore[misc]
        if hasattr(scheduler, name)
    }
    values = {name: getattr(scheduler, name) for name in sorted(names)}
    rules = scheduler.constraints
    if rules:
        groups = [[client, str(group)] for client, group in rules.groups.items()]
        values |= {"required": rules.required, "groups": groups, "caps": rules.caps}
        if rules.caps is not None:
            values["unknown_group"] = (
                None if rules.unknown_group is None else str(rules.unknown_group)
            )
    return {"name": type(scheduler).__name__} | {
        # A function's own text holds an address, which is another one after a restart.
        name: plain("a function" if callable(value) else value)
        for name, value in values.items()
    }
