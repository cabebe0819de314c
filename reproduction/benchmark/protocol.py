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

TUNED = " tuned"
"""What the label of a scheduler at its best setting ends with."""


@dataclass(frozen=True)
class Case:
    """A case: data, clients, model, training, and how rounds end.

    Attributes
    ----------
    name
        The name of its file, or of one of the `modes` of protocol.toml.
    overrides
        Settings that replace the file's.

    Examples
    --------
    >>> case = Case("letter")
    >>> case.title, case.is_network
    ('Letter, Dirichlet(0.3), MLP, E = 5', False)
    >>> case.spec("PowerOfChoice(candidates={half})")
    'PowerOfChoice(candidates=50)'
    >>> Case("digits-mlp-buffered").synchronous
    'digits-mlp'
    """

    name: str
    overrides: Mapping[str, Any] | None = None

    @property
    def synchronous(self) -> str:
        """The name of the same case with rounds that wait for everybody."""
        declared = protocol()["modes"]["cases"].get(self.name)
        return self.name if declared is None else str(declared["case"])

    @property
    def mode(self) -> str:
        """How its rounds end, in a word."""
        if self.name == self.synchronous:
            return "synchronous"
        return self.name.removeprefix(f"{self.synchronous}-")

    @property
    def file(self) -> Path:
        """The TOML file of the case."""
        return FOLDER / "cases" / f"{self.synchronous}.toml"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that replace the file's."""
        declared = protocol()["modes"]["cases"].get(self.name, {})
        own = {key: value for key, value in declared.items() if key != "case"}
        return {**own, **quick_look(self.overrides or {})}

    @cached_property
    def experiment(self) -> Experiment:
        """The settings of the case, without schedulers."""
        return Experiment(**read_toml(self.file)).replace(**self.settings)

    @property
    def title(self) -> str:
        """The case in words, from the first line of its file."""
        words = self.file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return words if self.name == self.synchronous else f"{words}; {self.mode}"

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
        """Return the schedulers that are compared, those at the best of a grid last."""
        declared = protocol()
        names = list(declared["schedulers"])
        if self.is_network:
            return [name for name in names if name in declared["cases"]["on_networks"]]
        if self.name != self.synchronous:
            return [name for name in names if name in declared["modes"]["schedulers"]]
        return [*names, *(f"{name}{TUNED}" for name in declared["tuned"])]

    def run(self, group: str, schedulers: Mapping[str, str], **settings: Any) -> Run:
        """Return the run of some schedulers."""
        specs = {label: self.spec(template) for label, template in schedulers.items()}
        return Run(f"{self.name}-{group}", self.file, {**self.settings, **settings}, specs)

    def runs(self, labels: Sequence[str] | None = None) -> list[Run]:
        """Return the runs of schedulers, by default of all; ours is a run of its own.

        >>> [run.name for run in Case("letter").runs()]
        ['letter-rivals', 'letter-live', 'letter-tuned']
        >>> [run.name for run in Case("letter").runs(["LiveADCS", "Oort"])]
        ['letter-Oort', 'letter-live']
        """
        declared = protocol()
        specs = dict(declared["schedulers"])
        specs.update({f"{name}{TUNED}": spec for name, spec in declared["tuned"].items()})
        wanted = self.labels() if labels is None else [n for n in self.labels() if n in labels]
        rivals = {n: specs[n] for n in wanted if n in declared["schedulers"] and n != OURS}
        groups = {
            "rivals" if labels is None else "-".join(rivals): rivals,
            "live": {OURS: specs[OURS]} if OURS in wanted else {},
            "tuned": {n: specs[n] for n in wanted if n.endswith(TUNED)},
        }
        return [self.run(group, held) for group, held in groups.items() if held]

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
    """Return the names of all cases: those on which choices were made, the others, the modes."""
    declared = protocol()
    cases = declared["cases"]
    return (*cases["development"], *cases["held_out"], *declared["modes"]["cases"])


def cases_of(names: Sequence[str], overrides: Mapping[str, Any]) -> list[Case]:
    """Return cases by their names."""
    found = []
    for name in names:
        settings = dict(overrides)
        if not name.startswith("fashion"):  # The folder is that of Fashion-MNIST.
            settings.pop("data_folder", None)
        found.append(Case(name, settings))
    return found
