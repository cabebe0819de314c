"""`make beyond`: LiveADCS and its rivals, each at every setting, on every case; the verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adcs.experiments import (
    BOUNDS,
    Dots,
    Estimate,
    Experiment,
    Record,
    curves,
    dot_figure,
    estimate,
    format_difference,
    format_estimate,
    format_number,
    left_out_note,
    markdown_table,
    paired,
    rival,
    styles_of,
    summarise,
)
from reproduction.folder import (
    CONFIGS,
    ResultFolder,
    Run,
    make_results,
    options,
    print_end,
    quick_look,
    read_toml,
    write_text,
)

OURS = "LiveADCS"
ABLATION = "ablation-"

AVERAGE_MARGIN = 0.005
"""Largest allowed deficit of the average accuracy to Uniform's."""

EXTRA_SHARE = 0.005
"""Allowed extra client updates for each training update; or one for each client, if more."""


def protocol() -> dict[str, Any]:
    """Return the protocol as declared.

    >>> protocol()["ablation"]["cases"]
    ['base', 'dirichlet-01']
    """
    return read_toml(CONFIGS / "beyond" / "protocol.toml")


def case_run(name: str, overrides: Mapping[str, Any]) -> Run:
    """Return the run of a case, or of the ablation on a case.

    >>> case_run("dirichlet-01", {}).schedulers["PowerOfChoice, 2m"]
    'PowerOfChoice(candidates=20)'
    >>> len(case_run("ablation-base", {}).schedulers)
    10
    """
    declared = protocol()
    config = CONFIGS / "beyond" / f"{name.removeprefix(ABLATION)}.toml"
    case = read_toml(config)
    settings = quick_look(overrides)
    if "data" in case:  # The folder is that of Fashion-MNIST.
        settings.pop("data_folder", None)
    if name.startswith(ABLATION):
        settings = {"rounds": declared["ablation"]["rounds"], **settings}
        return Run(name, config, settings, {OURS: OURS, **declared["ablation"]["variants"]})
    m = case["training"]["m"]
    clients = case.get("partition", {}).get("clients", Experiment().partition.clients)
    rivals = {
        label: spec.format(double=2 * m)
        for label, spec in declared["rivals"].items()
        if "{double}" not in spec or 2 * m < clients
    }
    return Run(name, config, settings, {**rivals, OURS: OURS, **declared["control"]})


def runs_of(folder: ResultFolder) -> list[Run]:
    """Return the runs of the cases, then those of the ablation."""
    declared = protocol()
    names = [*declared["case"], *[ABLATION + case for case in declared["ablation"]["cases"]]]
    return [case_run(name, folder.overrides) for name in names]


@dataclass(frozen=True)
class Verdict:
    """The result of LiveADCS on a case.

    Attributes
    ----------
    title, seen
        The case, and whether design choices were made on it.
    uniform, rival, control, ours
        Worst accuracies: of Uniform, of the best rival, of the control, of LiveADCS.
    rival_name
        The best rival, with its setting.
    gap
        LiveADCS minus the best rival, paired.
    average
        LiveADCS's average accuracy minus Uniform's, paired.
    extra, allowed
        Client updates beyond training: the largest number of any run, and the largest allowed.
    work
        Updates and losses requested beyond training, for each training update, by the best rival
        and by LiveADCS.
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
        """The criteria that are not met."""
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
        """Return the case's row of the table."""
        bad = self.failures
        return [
            self.title,
            format_number(self.uniform.mean, "worst"),
            f"{self.rival_name} {format_number(self.rival.mean, 'worst')}",
            format_number(self.control.mean, "worst"),
            format_number(self.ours.mean, "worst"),
            _bold(format_difference(self.gap), any(f.startswith("worst") for f in bad)),
            _bold(format_difference(self.average), any(f.startswith("average") for f in bad)),
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
    rounds = experiment.training.rounds
    training = experiment.training.m * rounds
    final = [record for record in records if record["server_round"] == rounds]

    def work(label: str) -> float:
        mine = [record for record in final if record["scheduler"] == label]
        asked = [record["extra_updates"] + record["loss_evaluations"] for record in mine]
        return float(sum(asked)) / max(len(asked), 1) / training

    return Verdict(
        title=title,
        seen=seen,
        uniform=estimate(worst["Uniform"], BOUNDS["worst"]),
        rival=estimate(worst[best], BOUNDS["worst"]),
        control=estimate(worst[next(iter(protocol()["control"]))], BOUNDS["worst"]),
        ours=estimate(worst[OURS], BOUNDS["worst"]),
        rival_name=best,
        gap=paired(worst[OURS], worst[best]),
        average=paired(average[OURS], average["Uniform"]),
        extra=int(max(r["extra_updates"] for r in final if r["scheduler"] == OURS)),
        allowed=max(EXTRA_SHARE * training, experiment.partition.clients),
        work=(work(best), work(OURS)),
    )


def caveat(overrides: Mapping[str, Any]) -> str | None:
    """Return a warning if the number of rounds is not the protocol's.

    >>> caveat({"rounds": 30})
    "30 rounds a case are not the protocol's: this is a quick look."
    """
    if "rounds" not in overrides:
        return None
    return f"{overrides['rounds']} rounds a case are not the protocol's: this is a quick look."


def report(folder: ResultFolder) -> list[Verdict]:
    """Judge every case, draw the figure, write summary.md, and return the verdicts."""
    verdicts = []
    settings = []
    for name, case in protocol()["case"].items():
        experiment, records = folder.read(case_run(name, folder.overrides))
        verdicts.append(judge(case["title"], case["seen"], experiment, records))
        settings.append((case["title"], experiment, records))
    figure = dot_figure(
        folder.path / "figures" / "beyond",
        "LiveADCS at its defaults, and the best rival at its best setting",
        [_dots(verdict) for verdict in verdicts],
        {**styles_of({"Uniform": "Uniform", OURS: OURS}), "best rival": rival()},
    )
    parts = ["# Beyond the paper", f"![beyond](figures/{figure[1].name})"]
    if (warning := caveat(folder.overrides)) is not None:
        parts.append(f"**{warning}**")
    for seen, heading in ((True, "Cases that choices were made on"), (False, "Held out")):
        lines = [verdict.line() for verdict in verdicts if verdict.seen == seen]
        parts += [f"## {heading}", markdown_table(HEADS, lines)]
    parts.append(
        "The control is PowerOfChoice by the losses of the round before: it asks all clients "
        "in every round, but does not know the mini-batches that it chooses."
    )
    parts.append(
        "Intervals are paired 95 % Student intervals, each for its case alone. They are not "
        "corrected for the number of cases: a correction would make fewer cases bold."
    )
    parts += ["## Every setting", *[_settings(*entry) for entry in settings]]
    parts += ["## Ablation", _ablation(folder)]
    write_text(folder.path / "summary.md", "\n\n".join(parts))
    return verdicts


def _ablation(folder: ResultFolder) -> str:
    """Return the table of the ablation."""
    declared = protocol()
    columns: dict[str, dict[str, str]] = {}
    for case in declared["ablation"]["cases"]:
        experiment, records = folder.read(case_run(ABLATION + case, folder.overrides))
        labels = list(experiment.schedulers)
        worst = curves(records, "worst", labels).last()
        average = curves(records, "average", labels).last()
        cells = {OURS: f"{worst[OURS].mean():.3f} ({average[OURS].mean():.3f})"}
        for label in labels[1:]:
            change = format_difference(paired(worst[label], worst[OURS]))
            cells[label] = f"{change} ({paired(average[label], average[OURS]).mean:+.3f})"
        columns[f"{declared['case'][case]['title']}, T = {experiment.training.rounds:,}"] = cells
    lines = [
        [label, *[cells[label] for cells in columns.values()]]
        for label in (OURS, *declared["ablation"]["variants"])
    ]
    return (
        "Worst accuracy (average in brackets); below it, what changes without each idea, with "
        "paired 95 % Student intervals that are not corrected for their number.\n\n"
        + markdown_table(["", *columns], lines)
    )


def _settings(title: str, experiment: Experiment, records: Sequence[Record]) -> str:
    labels = list(experiment.schedulers)
    worst = curves(records, "worst", labels).last()
    average = curves(records, "average", labels).last()
    lines = [
        [
            label,
            format_estimate(estimate(worst[label], BOUNDS["worst"]), "worst"),
            format_estimate(estimate(average[label], BOUNDS["worst"]), "average"),
        ]
        for label in labels
    ]
    heads = [f"{title}, T = {experiment.training.rounds:,}", "worst", "average"]
    lost = left_out_note(summarise(records, labels))
    return markdown_table(heads, lines) + (f"\n\n**{lost}**" if lost else "")


def _dots(verdict: Verdict) -> Dots:
    title = verdict.title if verdict.seen else f"{verdict.title} (held out)"
    return Dots(
        title,
        {"Uniform": verdict.uniform, "best rival": verdict.rival, OURS: verdict.ours},
        {"best rival": verdict.work[0], OURS: verdict.work[1]},
    )


def _bold(text: str, bad: bool) -> str:
    return f"**{text}**" if bad else text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the protocol."""
    given = options("LiveADCS and its rivals at their best settings.").parse_args(arguments)
    folder, verdicts = make_results("beyond", ["beyond"], given, runs_of, report)
    for verdict in verdicts:
        print(
            f"{verdict.title}: {', '.join(verdict.failures) or 'all shown'}. Worst "
            f"{verdict.ours.mean:.3f}, {verdict.rival_name} {verdict.rival.mean:.3f}, "
            f"Uniform {verdict.uniform.mean:.3f}"
        )
    print_end(folder, caveat(folder.overrides))


if __name__ == "__main__":
    main()
