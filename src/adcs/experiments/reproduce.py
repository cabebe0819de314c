"""The paper's figures and tables: which there are, the runs they need, and the summary.

FOLDER/
  reproduce.json       what was asked for
  methods/, theta/ ..  run folders, each made once however many outputs draw on it
  figures/             one PDF, PNG and CSV for each output
  summary.md           for each claim of the paper: holds, or does not, with the numbers
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Any

from adcs._validation import did_you_mean
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.hints import check_value
from adcs.experiments.outputs import Output, Section, make_section
from adcs.experiments.records import checked_records
from adcs.experiments.report import seeds_of, setting
from adcs.experiments.runner import (
    Progress,
    create_run,
    experiment_of,
    run_experiment,
    unfinished,
)
from adcs.experiments.statistics import LEVEL
from adcs.experiments.tables import table_note
from adcs.run_folder import RunFolder, read_json, refuse_foreign, write_atomically

HELD = {"outputs": list[str], "overrides": dict[str, Any]}
"""What reproduce.json holds, by type."""

OVERRIDES = {"seeds": int, "rounds": int, "data": str, "data_folder": str}
"""Settings that may differ from the paper's, by type."""

BEYOND = "beyond"
"""What goes beyond the paper, in a folder of its own: see `adcs.experiments.beyond`."""


def declared(name: str) -> dict[str, Any]:
    """Return what a TOML file of the paper's experiments holds.

    >>> declared("theta")["baseline"]
    'Uniform'
    """
    text = files("adcs.experiments.paper").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def outputs() -> dict[str, Output]:
    """Return everything that can be reproduced, by name.

    >>> outputs()["table-1"].run
    'methods'
    """
    return {name: Output(name=name, **entry) for name, entry in declared("outputs").items()}


def chosen_outputs(names: Sequence[str]) -> list[str]:
    """Return the outputs that names stand for, in the paper's order; "all" is all of them.

    >>> chosen_outputs(["figure-9"])
    Traceback (most recent call last):
    ...
    ValueError: there is no 'figure-9' to reproduce; did you mean figure-3?
    """
    known = [*outputs(), "all", BEYOND]
    if BEYOND in names:
        raise ValueError(alone(names))
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {name!r} to reproduce; {did_you_mean(name, known)}")
    return [name for name in outputs() if "all" in names or name in names]


def alone(names: Sequence[str]) -> str:
    """Return what is to be said where `beyond` is named together with outputs of the paper.

    >>> alone(["beyond", "figure-1"])
    'beyond goes into a folder of its own: reproduce figure-1 by another command'
    """
    others = ", ".join(name for name in names if name != BEYOND)
    return f"{BEYOND} goes into a folder of its own: reproduce {others} by another command"


def paper_experiment(run: str, overrides: Mapping[str, Any]) -> Experiment:
    """Return the experiment of one of the paper's runs, some settings changed for a quick look.

    A run that is declared with one seed shows one seed, whatever number is asked for.

    >>> paper_experiment("theta", {"seeds": 2}).seeds, paper_experiment("kernels", {}).seeds
    (2, 1)
    """
    values = {**declared(run), **overrides}
    if declared(run)["seeds"] == 1:
        values["seeds"] = 1
    return from_dict(quick_look(values, overrides))


def quick_look(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which runs that were cut short get about fifty evaluations.

    >>> quick_look({"m": 3}, {"rounds": 200})
    {'eval_every': 4, 'm': 3}
    """
    if "rounds" not in overrides:
        return dict(values)
    usual = Experiment().eval_every
    return {"eval_every": max(1, min(usual, overrides["rounds"] // 50)), **values}


@dataclass(frozen=True)
class Plan:
    """What a folder of reproductions is to hold.

    Attributes
    ----------
    base
        The folder.
    names
        The outputs.
    overrides
        Settings that differ from the paper's.
    """

    base: Path
    names: tuple[str, ...]
    overrides: Mapping[str, Any]

    @classmethod
    def start(cls, base: Path, names: Sequence[str], overrides: Mapping[str, Any]) -> Plan:
        """Start a new folder; one that holds reproductions is never started again."""
        if (base / "reproduce.json").exists():
            raise FileExistsError(
                f"{base} already holds reproductions; resume it, or choose another folder"
            )
        plan = cls(base, tuple(cls.wanted(names)), dict(overrides))
        refuse_foreign(base, {*plan.runs(), "figures", "summary.md"})
        for run in plan.runs():
            plan.experiment(run)
        plan._save()
        return plan

    @classmethod
    def resume(cls, base: Path, names: Sequence[str], overrides: Mapping[str, Any]) -> Plan:
        """Go on in a folder, perhaps with further outputs; its settings stay as they are."""
        path = base / "reproduce.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{base} is not a folder of reproductions: it has no reproduce.json"
            )
        remedy = f"delete it and give the command anew with --out {base}"
        held = read_json(path, remedy)
        try:
            for key, kind in HELD.items():
                check_value(key, held.get(key), kind)
            for key, value in held["overrides"].items():
                check_value(f"{key} of overrides", value, OVERRIDES.get(key, NoneType))
            for name in held["outputs"]:
                if name not in (known := [*outputs(), BEYOND]):
                    raise ValueError(
                        f"there is no {name!r} to reproduce; {did_you_mean(name, known)}"
                    )
        except ValueError as error:
            raise ValueError(
                f"{path} does not say what is reproduced ({error}); {remedy}"
            ) from error
        for key, value in overrides.items():
            if held["overrides"].get(key) != value:
                kept = held["overrides"].get(key, "the paper's")
                raise ValueError(f"{base} was started with {key} {kept}, not {value}")
        wanted = cls.wanted([*held["outputs"], *names])
        plan = cls(base, tuple(wanted), held["overrides"])
        try:
            for run in plan.runs():
                plan.experiment(run)
        except ValueError as error:
            raise ValueError(f"{path} cannot be gone on with ({error}); {remedy}") from error
        plan._save()
        return plan

    @staticmethod
    def wanted(names: Sequence[str]) -> list[str]:
        """Return the outputs that names stand for, in the paper's order."""
        return chosen_outputs(names)

    def _save(self) -> None:
        content = {"outputs": list(self.names), "overrides": dict(self.overrides)}
        write_atomically(
            self.base / "reproduce.json", (json.dumps(content, indent=2) + "\n").encode()
        )

    def runs(self) -> list[str]:
        """Return the runs that the outputs need, each once."""
        every = outputs()
        return list(dict.fromkeys(every[name].run for name in self.names))

    def experiment(self, run: str) -> Experiment:
        """Return the experiment of a run."""
        return paper_experiment(run, self.overrides)

    def open(self, run: str) -> tuple[RunFolder, Experiment]:
        """Return a run's folder, made if it is new, and its experiment."""
        path, experiment = self.base / run, self.experiment(run)
        if (path / "config.json").is_file():
            folder = RunFolder.open(path)
            held = experiment_of(folder).as_dict()
            for key, value in experiment.as_dict().items():
                if held[key] != value:
                    raise ValueError(f"{path} is a run with {key} {held[key]}, not {value}")
            return folder, experiment
        return create_run(path, experiment), experiment

    def execute(
        self,
        jobs: int | None,
        show: Callable[[str], AbstractContextManager[Progress]],
    ) -> None:
        """Run whatever is missing; `show` opens the progress of a run."""
        runs = self.runs()
        for number, run in enumerate(runs, start=1):
            folder, experiment = self.open(run)
            if unfinished(folder, experiment):
                with show(f"{run} ({number} of {len(runs)})") as progress:
                    run_experiment(folder, experiment, jobs=jobs, progress=progress)

    def report(self) -> list[Section]:
        """Draw every output, write summary.md, and return its sections."""
        paper = declared("table-1")
        every = outputs()
        sections = []
        records: dict[str, list[dict[str, Any]]] = {}
        for name in self.names:
            output = every[name]
            folder, experiment = self.open(output.run)
            if output.run not in records:
                records[output.run] = checked_records(folder, experiment)
            found = records[output.run]
            sections.append(make_section(output, experiment, found, paper, self.base / "figures"))
        text = "\n\n".join(
            [
                "# The paper, reproduced",
                self._note(),
                *[section.markdown() for section in sections],
            ]
        )
        write_atomically(self.base / "summary.md", (text + "\n").encode())
        return sections

    @property
    def caveat(self) -> str | None:
        """What the verdicts are to be taken with, where settings are not the paper's."""
        changed = {k: v for k, v in self.overrides.items() if k in ("rounds", "data")}
        if not changed:
            return None
        shown = ", ".join(f"{key} = {value}" for key, value in changed.items())
        return f"This is not the paper's setting ({shown}): the verdicts are about this one."

    def _note(self) -> str:
        experiment = self.experiment(self.runs()[0])
        lines = [setting(experiment)]
        if self.caveat is not None:
            lines.append(f"**{self.caveat}**")
        lines.append(
            "A claim of a difference holds if the difference has the sign that it says and "
            f"p < {LEVEL}: p is that of the paired, two-sided t-test over seeds, corrected by "
            "Holm's method for all differences that are claimed of a figure. Brackets after a "
            "difference are its paired 95 % Student interval, for it alone. Accuracies are means "
            f"over the last tenth of evaluations. {table_note(seeds_of(experiment))}"
        )
        return "\n\n".join(lines)
