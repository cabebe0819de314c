"""`make schedulers`: every scheduler with clients of different speed, and kernels of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs.experiments import (
    BOUNDS,
    Estimate,
    Record,
    curves,
    estimate,
    format_estimate,
    markdown_table,
    styles_of,
)
from reproduction.benchmark.results import cost_to_reach, format_reached
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

FOLDER = CONFIGS / "schedulers"
OUTPUTS = ("speeds", "labels")
FIELDS = {
    "worst": "worst",
    "worst20": "worst 20 %",
    "average": "average",
    "updates": "updates",
    "bytes": "traffic",
    "seconds": "virtual time",
}


def protocol() -> dict[str, Any]:
    """Return the protocol of the kernels of labels.

    >>> protocol()["epsilons"]
    [0.001, 0.1, 0.3, 1.0, 3.0]
    """
    declared: dict[str, Any] = read_toml(FOLDER / "protocol.toml")["labels"]
    return declared


def label_run(case: str, epsilon: float | None, overrides: Mapping[str, Any]) -> Run:
    """Return the run of a case with noise of an epsilon; the one without noise has references.

    >>> run = label_run("labels-by-class", 0.3, {})
    >>> run.name, run.settings, list(run.schedulers)
    ('labels-by-class-0.3', {'histogram_epsilon': 0.3}, ['ADCS, labels', 'LiveADCS, labels'])
    """
    declared, settings = protocol(), quick_look(overrides)
    if epsilon is None:
        schedulers = {**declared["schedulers"], **declared["references"]}
        return Run(f"{case}-none", FOLDER / f"{case}.toml", settings, schedulers)
    settings = {**settings, "histogram_epsilon": epsilon}
    return Run(f"{case}-{epsilon}", FOLDER / f"{case}.toml", settings, declared["schedulers"])


def speed_run(overrides: Mapping[str, Any]) -> Run:
    """Return the run of every scheduler with clients of different speed.

    >>> speed_run({}).name
    'speeds'
    """
    return Run("speeds", FOLDER / "speeds.toml", quick_look(overrides))


def runs_of(folder: ResultFolder) -> list[Run]:
    """Return the runs of a folder's outputs."""
    runs = [speed_run(folder.overrides)] if "speeds" in folder.outputs else []
    if "labels" in folder.outputs:
        declared = protocol()
        runs += [
            label_run(case, epsilon, folder.overrides)
            for case in declared["case"]
            for epsilon in (*declared["epsilons"], None)
        ]
    return runs


def speed_table(records: Sequence[Record], labels: Sequence[str]) -> str:
    """Return the table of schedulers with clients of different speed.

    Those that reach the accuracy at more seeds come first, then the faster ones.
    """
    times = cost_to_reach(records, "seconds")
    last = {field: curves(records, field, labels).last() for field in FIELDS}

    def rank(label: str) -> tuple[int, float]:
        reached = times[label][np.isfinite(times[label])]
        return -reached.size, float(reached.mean()) if reached.size else math.inf

    lines = [
        [
            label,
            *[format_estimate(_estimate(last[field][label], field), field) for field in FIELDS],
            format_reached(times[label], "seconds"),
        ]
        for label in sorted(labels, key=rank)
    ]
    heads = ["scheduler", *FIELDS.values(), "time to Uniform's final average"]
    return markdown_table(heads, lines)


def _estimate(values: NDArray[np.float64], field: str) -> Estimate:
    return estimate(values, BOUNDS[field]) if field in BOUNDS else estimate(values)


def label_results(folder: ResultFolder, case: str) -> dict[tuple[str, float | None], Any]:
    """Return worst and average accuracy by scheduler and epsilon; None is no noise."""
    found = {}
    for epsilon in (*protocol()["epsilons"], None):
        experiment, records = folder.read(label_run(case, epsilon, folder.overrides))
        for label in experiment.schedulers:
            found[label, epsilon] = tuple(
                _estimate(curves(records, field).last()[label], field)
                for field in ("worst", "average")
            )
    return found


def label_table(results: Mapping[tuple[str, float | None], Any]) -> str:
    """Return the table of a case: worst accuracy and, after it, average accuracy."""
    lines = []
    for (label, epsilon), (worst, average) in results.items():
        noise = "none" if epsilon is None else f"{epsilon:g}"
        if label in protocol()["references"]:
            noise = "no histogram"
        lines.append(
            [label, noise, format_estimate(worst, "worst"), format_estimate(average, "average")]
        )
    lines.sort(key=lambda line: list(_specs()).index(line[0]))
    return markdown_table(["scheduler", "epsilon", "worst", "average"], lines)


def _specs() -> dict[str, str]:
    declared = protocol()
    return {**declared["schedulers"], **declared["references"]}


def label_figure(
    stem: Path, cases: Mapping[str, Mapping[tuple[str, float | None], Any]]
) -> list[Path]:
    """Draw worst accuracy at each epsilon, a panel for each case; return the files.

    Schedulers without histograms are lines, with their interval as a band.

    Parameters
    ----------
    stem
        The files' path without its suffix.
    cases
        What `label_results` returns, by title.
    """
    from matplotlib.figure import Figure

    declared, styles = protocol(), styles_of(_specs())
    epsilons = [*declared["epsilons"], None]
    x = np.arange(len(epsilons))
    figure = Figure(figsize=(4.6 * len(cases), 3.8), layout="constrained")
    axes = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    for ax, (title, results) in zip(axes, cases.items(), strict=True):
        for label in declared["references"]:
            worst, style = results[label, None][0], styles[label]
            ax.axhline(worst.mean, color=style.colour, linestyle="--", label=label)
            ax.axhspan(worst.low, worst.high, color=style.colour, alpha=0.12, linewidth=0)
        for place, label in enumerate(declared["schedulers"]):
            found, style = [results[label, e][0] for e in epsilons], styles[label]
            means = np.array([each.mean for each in found])
            reach = [[e.mean - e.low for e in found], [e.high - e.mean for e in found]]
            look = {"color": style.colour, "marker": style.marker, "linestyle": "none"}
            ax.errorbar(x + 0.1 * place, means, reach, capsize=3, label=label, **look)
        ax.set_xticks(x, ["none" if e is None else f"{e:g}" for e in epsilons])
        ax.set_xlabel("epsilon of the histograms (none: no noise)")
        ax.set_title(title, fontsize=10)
        ax.grid(axis="y", alpha=0.3, linewidth=0.5)
    axes[0].set_ylabel("worst accuracy")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(".pdf"), stem.with_suffix(".png")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files


def report(folder: ResultFolder) -> None:
    """Write summary.md and the figure of a folder."""
    parts = ["# Schedulers"]
    if "speeds" in folder.outputs:
        experiment, records = folder.read(speed_run(folder.overrides))
        table = speed_table(records, list(experiment.schedulers))
        parts += ["## Clients of different speed", experiment.in_words(), table]
    if "labels" in folder.outputs:
        parts.append("## Kernels of labels")
        cases = {}
        for case, title in protocol()["case"].items():
            cases[title] = label_results(folder, case)
            parts += [f"### {title}", label_table(cases[title])]
        label_figure(folder.path / "figures" / "labels", cases)
        parts.append("![labels](figures/labels.png)")
    write_text(folder.path / "summary.md", "\n\n".join(parts))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs and the report."""
    parser = options("Every scheduler with clients of different speed, and kernels of labels.")
    parser.add_argument("outputs", nargs="*", metavar="OUTPUT", help=", ".join(OUTPUTS))
    given = parser.parse_args(arguments)
    folder, _ = make_results("schedulers", OUTPUTS, given, runs_of, report)
    print_end(folder, None)


if __name__ == "__main__":
    main()
