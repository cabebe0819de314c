"""What the benchmark runs: cases, schedulers and grids, as protocol.toml declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from adcs.experiments import Experiment
from reproduction.folder import Run, quick_look, read_toml

FOLDER = Path(__file__).parent

BASELINE, OURS = "Uniform", "LiveADCS"

TUNED = " (tuned)"
"""What the label of a scheduler at its best setting ends with."""


@dataclass(frozen=True)
class Case:
    """A case: data, clients, model and training.

    Attributes
    ----------
    name
        The name of its file.
    overrides
        Settings that replace the file's.

    Examples
    --------
    >>> case = Case("letter")
    >>> case.title, case.is_network
    ('Letter, Dirichlet(0.3), MLP, E = 5', False)
    >>> case.spec("PowerOfChoice(candidates={half})")
    'PowerOfChoice(candidates=50)'
    """

    name: str
    overrides: Mapping[str, Any] | None = None

    @property
    def file(self) -> Path:
        """The TOML file of the case."""
        return FOLDER / "cases" / f"{self.name}.toml"

    @cached_property
    def experiment(self) -> Experiment:
        """The settings of the case, without schedulers."""
        declared = Experiment(**read_toml(self.file))
        return declared.replace(**quick_look(self.overrides or {}))

    @property
    def title(self) -> str:
        """The case in words, from the first line of its file."""
        return self.file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")

    @property
    def is_network(self) -> bool:
        """Whether its model is a network of PyTorch."""
        return self.name in protocol()["cases"]["networks"]

    def spec(self, template: str) -> str:
        """Return the spec of a scheduler for this case."""
        n, m = self.experiment.partition.clients, self.experiment.training.m
        return template.format(
            rounds=self.experiment.training.rounds, half=max(n // 2, m), third=max(n // 3, m)
        )

    def labels(self) -> list[str]:
        """Return the schedulers that are compared at their papers' defaults."""
        declared = protocol()
        names = list(declared["schedulers"])
        return (
            [n for n in names if n in declared["cases"]["on_networks"]]
            if self.is_network
            else names
        )

    def run(self, group: str, schedulers: Mapping[str, str], **settings: Any) -> Run:
        """Return the run of some schedulers."""
        specs = {label: self.spec(template) for label, template in schedulers.items()}
        options = {**quick_look(self.overrides or {}), **settings}
        return Run(f"{self.name}-{group}", self.file, options, specs)

    def default_runs(self) -> list[Run]:
        """Return the runs of all schedulers at their defaults; ours is a run of its own."""
        declared = protocol()["schedulers"]
        rivals = {label: declared[label] for label in self.labels() if label != OURS}
        return [self.run("rivals", rivals), self.run("live", {OURS: declared[OURS]})]

    def grid_run(self) -> Run | None:
        """Return the run over the grids on a seed of its own; None for networks."""
        if self.is_network:
            return None
        grids = protocol()["grids"]
        specs = {spec: spec for found in grids["specs"].values() for spec in found}
        declared = protocol()["schedulers"]
        specs = {**{name: declared[name] for name in grids["specs"]}, **specs}
        return self.run("grids", specs, seeds=1, first_seed=grids["seed"])

    def tuned_run(self, best: Mapping[str, str]) -> Run | None:
        """Return the run of the best settings, for schedulers that are better than by default."""
        chosen = {f"{name}{TUNED}": spec for name, spec in best.items() if spec != name}
        return self.run("tuned", chosen) if chosen else None

    def own_run(self, spec: str) -> Run:
        """Return the run of a user's scheduler."""
        return self.run(f"own-{label_of(spec)}", {label_of(spec): spec})


def label_of(spec: str) -> str:
    """Return the label of a user's scheduler, the name of its class.

    >>> label_of("mine.py:Mine(patience=0.5)")
    'Mine'
    """
    return spec.rpartition(":")[2].partition("(")[0]


def protocol() -> dict[str, Any]:
    """Return what protocol.toml declares.

    >>> len(protocol()["cases"]["development"] + protocol()["cases"]["held_out"])
    12
    """
    return read_toml(FOLDER / "protocol.toml")


def case_names() -> tuple[str, ...]:
    """Return the names of all cases, those on which choices were made first."""
    declared = protocol()["cases"]
    return (*declared["development"], *declared["held_out"])


def cases_of(names: Sequence[str], overrides: Mapping[str, Any]) -> list[Case]:
    """Return cases by their names."""
    found = []
    for name in names:
        settings = dict(overrides)
        if not name.startswith("fashion"):  # The folder is that of Fashion-MNIST.
            settings.pop("data_folder", None)
        found.append(Case(name, settings))
    return found
