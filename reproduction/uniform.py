"""`make uniform`: whether LiveADCS at its defaults is ever below Uniform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adcs.experiments import (
    Estimate,
    Experiment,
    Record,
    curves,
    estimate,
    format_difference,
    format_number,
    markdown_table,
    paired,
)
from reproduction.folder import (
    CONFIGS,
    ResultFolder,
    Run,
    make_results,
    options,
    print_end,
    quick_look,
    write_text,
)

OURS, BASELINE = "LiveADCS", "Uniform"

CASES = (
    "letter",
    "cifar10-cnn",
    "fashion-m10",
    "fashion-m18",
    "fashion-dirichlet",
    "fashion-cnn",
    "digits",
    "shakespeare",
    "smartwatch",
    "cifar10-by-class",
)

MARGIN = 0.005
"""Largest deficit to Uniform that a mean may have."""

METRICS = ("worst", "worst20", "average")


@dataclass(frozen=True)
class Verdict:
    """LiveADCS and Uniform on one case.

    Attributes
    ----------
    title
        The case.
    ours, theirs
        Mean of each metric: of LiveADCS, of Uniform.
    differences
        LiveADCS minus Uniform, paired, by metric.
    """

    title: str
    ours: Mapping[str, float]
    theirs: Mapping[str, float]
    differences: Mapping[str, Estimate]

    def is_below(self, metric: str) -> bool:
        """Return whether LiveADCS is below Uniform in a metric."""
        found = self.differences[metric]
        return found.mean < -MARGIN or (found.half is not None and found.high < 0.0)

    @property
    def failures(self) -> list[str]:
        """The metrics in which LiveADCS must not be below Uniform and is."""
        return [metric for metric in ("worst20", "average") if self.is_below(metric)]

    def line(self) -> list[str]:
        """Return the case's row of the table."""
        cells = [self.title]
        for metric in METRICS:
            pair = f"{format_number(self.theirs[metric], metric)} / "
            pair += format_number(self.ours[metric], metric)
            difference = format_difference(self.differences[metric])
            bold = metric in self.failures
            cells += [pair, f"**{difference}**" if bold else difference]
        return cells


HEADS = [
    "case",
    "worst: Uniform / LiveADCS",
    "difference",
    "worst 20 %",
    "difference",
    "average",
    "difference",
]


def case_run(name: str, overrides: Mapping[str, Any]) -> Run:
    """Return the run of a case.

    >>> case_run("letter", {"rounds": 100}).settings["rounds"]
    100
    """
    settings = quick_look(overrides)
    if not name.startswith("fashion"):  # The folder is that of Fashion-MNIST.
        settings.pop("data_folder", None)
    config = CONFIGS / "uniform" / f"{name}.toml"
    return Run(name, config, settings, {BASELINE: BASELINE, OURS: OURS})


def runs_of(folder: ResultFolder) -> list[Run]:
    """Return the runs of the folder's cases."""
    return [case_run(name, folder.overrides) for name in folder.outputs]


def judge(title: str, records: Sequence[Record]) -> Verdict:
    """Compare LiveADCS with Uniform on one case."""
    labels = [BASELINE, OURS]
    last = {metric: curves(records, metric, labels).last() for metric in METRICS}
    return Verdict(
        title,
        {metric: estimate(found[OURS]).mean for metric, found in last.items()},
        {metric: estimate(found[BASELINE]).mean for metric, found in last.items()},
        {metric: paired(found[OURS], found[BASELINE]) for metric, found in last.items()},
    )


def title_of(name: str, experiment: Experiment) -> str:
    """Return a case in words, from the first line of its file."""
    first = (CONFIGS / "uniform" / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
    return f"{first.removeprefix('# ')} ({experiment.run.seeds} seeds)"


def report(folder: ResultFolder) -> list[Verdict]:
    """Judge every case, write summary.md, and return the verdicts."""
    verdicts = []
    for name in folder.outputs:
        experiment, records = folder.read(case_run(name, folder.overrides))
        verdicts.append(judge(title_of(name, experiment), records))
    parts = [
        "# LiveADCS and Uniform",
        markdown_table(HEADS, [verdict.line() for verdict in verdicts]),
        f"Means over the last tenth of evaluations. Differences are LiveADCS minus Uniform with "
        f"paired 95 % Student intervals. Bold: worst 20 % or average below Uniform's by more than "
        f"{MARGIN}, or with an interval wholly below zero.",
    ]
    write_text(folder.path / "summary.md", "\n\n".join(parts))
    return verdicts


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases."""
    parser = options("LiveADCS at its defaults, and Uniform.")
    parser.add_argument("outputs", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    given = parser.parse_args(arguments)
    folder, verdicts = make_results("uniform", CASES, given, runs_of, report)
    for verdict in verdicts:
        below = ", ".join(verdict.failures)
        print(f"{verdict.title}: {f'below Uniform in {below}' if below else 'not below Uniform'}")
    print_end(folder, None)


if __name__ == "__main__":
    main()
