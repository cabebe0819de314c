"""`adcs reproduce beyond`: every case, every rival at every setting, and the verdicts.

FOLDER/
  reproduce.json       what was asked for
  base/, m6/ ..        a run folder for each case
  ablation-base/ ..    and for each case of the ablation
  figures/             the figure at a glance, PDF, PNG and CSV
  summary.md           the tables
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from adcs.experiments import tables
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.figures import Dots, dot_figure
from adcs.experiments.records import checked_records
from adcs.experiments.reproduce import Plan, alone, quick_look
from adcs.experiments.statistics import (
    SHARE,
    Estimate,
    Record,
    curves,
    estimate,
    paired,
    summarise,
)
from adcs.experiments.styles import rival, styles_of
from adcs.run_folder import write_atomically

OURS = "LiveADCS"
ABLATION = "ablation-"

AVERAGE_MARGIN = 0.005
"""How far the average accuracy may lie below Uniform's."""

EXTRA_SHARE = 0.005
"""Extra client updates allowed for each training update, or one for each client if more."""


def protocol() -> dict[str, Any]:
    """Return the protocol as declared.

    >>> protocol()["case"]["m18"]["m"]
    18
    """
    text = files("adcs.experiments.beyond").joinpath("cases.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def case_experiment(run: str, overrides: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a case, or of a case's ablation.

    >>> experiment = case_experiment("dirichlet-01", {"seeds": 1})
    >>> experiment.clients, experiment.schedulers["PowerOfChoice, 2m"]
    (100, 'PowerOfChoice(candidates=20)')
    >>> len(case_experiment("ablation-base", {}).schedulers)
    10
    """
    declared = protocol()
    case = declared["case"][run.removeprefix(ABLATION)]
    values = {**declared["common"], **case}
    del values["title"], values["seen"]
    if run.startswith(ABLATION):
        values["rounds"] = declared["ablation"]["rounds"]
    values |= overrides
    if run.startswith(ABLATION):
        values["schedulers"] = {OURS: OURS, **declared["ablation"]["variants"]}
        return from_dict(quick_look(values, overrides))
    clients = values.get("clients", Experiment().clients)
    values["schedulers"] = {
        label: spec.format(double=2 * values["m"])
        for label, spec in declared["rivals"].items()
        if "{double}" not in spec or 2 * values["m"] < clients
    }
    values["schedulers"] |= {OURS: OURS, **declared["control"]}
    return from_dict(quick_look(values, overrides))


@dataclass(frozen=True)
class Verdict:
    """How LiveADCS did on a case.

    Attributes
    ----------
    title, seen
        The case, and whether choices were made on it.
    uniform, rival, control, ours
        Worst accuracies: of Uniform, of the best rival, of the control, of LiveADCS.
    rival_name
        The best rival, with its setting.
    gap
        LiveADCS minus the best rival, paired.
    average
        LiveADCS's average accuracy minus Uniform's, paired.
    extra, allowed
        Client updates that were not trained on: the most in any run, and the most allowed.
    work
        What was asked of clients besides training, updates and losses, for each training
        update: by the best rival and by LiveADCS.
    """

    title: str
    seen: bool
    uniform: Estimate
    rival: Estimate
    control: Estimate
    ours: Estimate
    rival_name: str
    gap: Estimate
    average: Estimate
    extra: int
    allowed: float
    work: tuple[float, float]

    @property
    def failures(self) -> list[str]:
        """What was to be shown and was not."""
        found = []
        if self.gap.high < 0.0:
            found.append("worst below the best rival's")
        if self.ours.mean <= self.uniform.mean:
            found.append("worst not above Uniform's")
        if self.average.mean < -AVERAGE_MARGIN:
            found.append("average below Uniform's")
        if self.extra > self.allowed:
            found.append("too many probes")
        return found

    def line(self) -> list[str]:
        """Return the case's line of the table."""
        bad = self.failures
        return [
            self.title,
            tables.format_number(self.uniform.mean, "worst"),
            f"{self.rival_name} {tables.format_number(self.rival.mean, 'worst')}",
            tables.format_number(self.control.mean, "worst"),
            tables.format_number(self.ours.mean, "worst"),
            _bold(tables.format_difference(self.gap), any(f.startswith("worst") for f in bad)),
            _bold(
                tables.format_difference(self.average), any(f.startswith("average") for f in bad)
            ),
            _bold(f"{self.extra:,} of {self.allowed:,.0f}", "too many probes" in bad),
            _bold(", ".join(bad), True) if bad else "all shown",
        ]


HEADS = [
    "case",
    "Uniform",
    "best rival",
    "control",
    OURS,
    f"{OURS} - best rival",
    "average - Uniform's",
    "extra updates",
    "verdict",
]


def judge(title: str, seen: bool, experiment: Experiment, records: Sequence[Record]) -> Verdict:
    """Compare LiveADCS with the best of its rivals on one case."""
    labels = list(experiment.schedulers)
    worst = curves(records, "worst", labels).last()
    average = curves(records, "average", labels).last()
    rivals = [label for label in labels if label in protocol()["rivals"]]
    means = {label: estimate(worst[label]).mean for label in rivals}
    best = max(rivals, key=lambda label: (not math.isnan(means[label]), means[label]))
    training = experiment.m * experiment.rounds
    final = [record for record in records if record["server_round"] == experiment.rounds]

    def work(label: str) -> float:
        mine = [record for record in final if record["scheduler"] == label]
        asked = [record["extra_updates"] + record["loss_evaluations"] for record in mine]
        return float(sum(asked)) / max(len(asked), 1) / training

    return Verdict(
        title=title,
        seen=seen,
        uniform=estimate(worst["Uniform"], SHARE),
        rival=estimate(worst[best], SHARE),
        control=estimate(worst[next(iter(protocol()["control"]))], SHARE),
        ours=estimate(worst[OURS], SHARE),
        rival_name=best,
        gap=paired(worst[OURS], worst[best]),
        average=paired(average[OURS], average["Uniform"]),
        extra=int(max(r["extra_updates"] for r in final if r["scheduler"] == OURS)),
        allowed=max(EXTRA_SHARE * training, experiment.clients),
        work=(work(best), work(OURS)),
    )


class BeyondPlan(Plan):
    """The cases and ablations, in one folder."""

    @staticmethod
    def wanted(names: Sequence[str]) -> list[str]:
        """Return "beyond", which is all that there is here."""
        if set(names) != {"beyond"}:
            raise ValueError(alone(names))
        return ["beyond"]

    @property
    def caveat(self) -> str | None:
        """What the verdicts are to be taken with, where the rounds are not the protocol's."""
        if "rounds" not in self.overrides:
            return None
        rounds = self.overrides["rounds"]
        return f"{rounds} rounds a case are not the protocol's: this is a quick look."

    def runs(self) -> list[str]:
        """Return the cases, then the ablations."""
        declared = protocol()
        return [*declared["case"], *[ABLATION + case for case in declared["ablation"]["cases"]]]

    def experiment(self, run: str) -> Experiment:
        """Return the experiment of a case."""
        return case_experiment(run, self.overrides)

    def report(self) -> list[Verdict]:  # type: ignore[override]
        """Judge every case, draw the figure, write summary.md, and return the verdicts."""
        verdicts = []
        settings = []
        for name, case in protocol()["case"].items():
            folder, experiment = self.open(name)
            records = checked_records(folder, experiment)
            verdicts.append(judge(case["title"], case["seen"], experiment, records))
            settings.append((case["title"], experiment, records))
        figure = dot_figure(
            self.base / "figures" / "beyond",
            "LiveADCS at its defaults, and the best rival at its best setting",
            [_dots(verdict) for verdict in verdicts],
            {**styles_of({"Uniform": "Uniform", OURS: OURS}), "best rival": rival()},
        )
        parts = ["# Beyond the paper", f"![beyond](figures/{figure[1].name})"]
        if self.caveat is not None:
            parts.append(f"**{self.caveat}**")
        for seen, heading in ((True, "Cases that choices were made on"), (False, "Held out")):
            lines = [verdict.line() for verdict in verdicts if verdict.seen == seen]
            parts += [f"## {heading}", tables.markdown_table(HEADS, lines)]
        parts.append(
            "The control is PowerOfChoice by the losses of the round before: it asks all clients "
            "in every round, but does not know the mini-batches that it chooses."
        )
        parts.append(
            "Intervals are paired 95 % Student intervals, each for its case alone. They are not "
            "corrected for the number of cases: a correction would make fewer cases bold."
        )
        parts += ["## Every setting", *[_settings(*entry) for entry in settings]]
        parts += ["## Ablation", self._ablation()]
        write_atomically(self.base / "summary.md", ("\n\n".join(parts) + "\n").encode())
        return verdicts

    def _ablation(self) -> str:
        declared = protocol()
        columns: dict[str, dict[str, str]] = {}
        for case in declared["ablation"]["cases"]:
            folder, experiment = self.open(ABLATION + case)
            records = checked_records(folder, experiment)
            labels = list(experiment.schedulers)
            worst = curves(records, "worst", labels).last()
            average = curves(records, "average", labels).last()
            cells = {OURS: f"{worst[OURS].mean():.3f} ({average[OURS].mean():.3f})"}
            for label in labels[1:]:
                change = tables.format_difference(paired(worst[label], worst[OURS]))
                cells[label] = f"{change} ({paired(average[label], average[OURS]).mean:+.3f})"
            columns[f"{declared['case'][case]['title']}, T = {experiment.rounds:,}"] = cells
        lines = [
            [label, *[cells[label] for cells in columns.values()]]
            for label in (OURS, *declared["ablation"]["variants"])
        ]
        return (
            "Worst accuracy (average in brackets); below it, what changes without each idea, with "
            "paired 95 % Student intervals that are not corrected for their number.\n\n"
            + tables.markdown_table(["", *columns], lines)
        )


def _settings(title: str, experiment: Experiment, records: Sequence[Record]) -> str:
    labels = list(experiment.schedulers)
    worst = curves(records, "worst", labels).last()
    average = curves(records, "average", labels).last()
    lines = [
        [
            label,
            tables.format_estimate(estimate(worst[label], SHARE), "worst"),
            tables.format_estimate(estimate(average[label], SHARE), "average"),
        ]
        for label in labels
    ]
    heads = [f"{title}, T = {experiment.rounds:,}", "worst", "average"]
    lost = tables.left_out_note(summarise(records, labels))
    return tables.markdown_table(heads, lines) + (f"\n\n**{lost}**" if lost else "")


def _dots(verdict: Verdict) -> Dots:
    title = verdict.title if verdict.seen else f"{verdict.title} (held out)"
    return Dots(
        title,
        {"Uniform": verdict.uniform, "best rival": verdict.rival, OURS: verdict.ours},
        {"best rival": verdict.work[0], OURS: verdict.work[1]},
    )


def _bold(text: str, bad: bool) -> str:
    return f"**{text}**" if bad else text
