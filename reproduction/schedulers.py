"""`make schedulers`: every scheduler with clients of different speed, and kernels of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs.experiments import (
    BOUNDS,
    Estimate,
    Line,
    Panel,
    Record,
    curves,
    estimate,
    format_estimate,
    format_number,
    line_figure,
    markdown_table,
    styles_of,
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
NO_NOISE = 1.0
"""Where the figure has the runs without noise, on the axis of log10 of epsilon."""


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


def seconds_to_reach(
    records: Sequence[Record], field: str = "average", baseline: str = "Uniform"
) -> dict[str, NDArray[np.float64]]:
    """Return each scheduler's virtual time until the baseline's final accuracy, seed by seed.

    The time is that of the first evaluation at which the accuracy is at least the baseline's final
    one of the same seed; infinity if there is none. The final accuracy is the mean over the last
    tenth of evaluations, as in tables.

    Examples
    --------
    >>> def record(scheduler, server_round, average, seconds):
    ...     place = {"scheduler": scheduler, "seed": 0, "server_round": server_round}
    ...     return {**place, "average": average, "seconds": seconds}
    >>> slow = [record("Uniform", r, r / 10, 3.0 * r) for r in range(5)]
    >>> fast = [record("Oort", r, r / 5, 1.0 * r) for r in range(5)]
    >>> seconds_to_reach([*slow, *fast])
    {'Uniform': array([12.]), 'Oort': array([2.])}
    """
    found, seconds = curves(records, field), curves(records, "seconds")
    target = found.last()[baseline]
    times = {}
    for label, values in found.values.items():
        reached = values >= target[:, None]
        first = reached.argmax(axis=1)
        at = seconds.values[label][np.arange(first.size), first]
        times[label] = np.where(reached.any(axis=1), at, np.inf)
    return times


def format_times(times: NDArray[np.float64]) -> str:
    """Return the mean time over the seeds that reached the accuracy, and how many did if not all.

    >>> format_times(np.array([100.0, 120.0])), format_times(np.array([100.0, np.inf]))
    ('110 s', '100 s (1 of 2 seeds)')
    >>> format_times(np.array([np.inf, np.inf]))
    'never'
    """
    reached = np.isfinite(times)
    if not reached.any():
        return "never"
    mean = format_number(float(times[reached].mean()), "seconds")
    return mean if reached.all() else f"{mean} ({int(reached.sum())} of {times.size} seeds)"


def speed_table(records: Sequence[Record], labels: Sequence[str]) -> str:
    """Return the table of schedulers with clients of different speed.

    Those that reach the accuracy at more seeds come first, then the faster ones.
    """
    times = seconds_to_reach(records)
    last = {field: curves(records, field, labels).last() for field in FIELDS}

    def rank(label: str) -> tuple[int, float]:
        reached = times[label][np.isfinite(times[label])]
        return -reached.size, float(reached.mean()) if reached.size else math.inf

    lines = [
        [
            label,
            *[format_estimate(_estimate(last[field][label], field), field) for field in FIELDS],
            format_times(times[label]),
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


def label_panel(title: str, results: Mapping[tuple[str, float | None], Any]) -> Panel:
    """Return worst accuracy against epsilon; schedulers without histograms are flat lines."""
    epsilons = [*protocol()["epsilons"], None]
    x = np.array([NO_NOISE if e is None else math.log10(e) for e in epsilons])
    lines = {}
    for label in _specs():
        found = [results.get((label, e), results[label, None])[0] for e in epsilons]
        lines[label] = Line(
            x,
            np.array([each.mean for each in found]),
            np.array([each.low for each in found]),
            np.array([each.high for each in found]),
        )
    return Panel("log10 of epsilon (at 1: no noise)", f"worst accuracy\n{title}", lines)


def report(folder: ResultFolder) -> None:
    """Write summary.md and the figure of a folder."""
    parts = ["# Schedulers"]
    if "speeds" in folder.outputs:
        experiment, records = folder.read(speed_run(folder.overrides))
        table = speed_table(records, list(experiment.schedulers))
        parts += ["## Clients of different speed", experiment.in_words(), table]
    if "labels" in folder.outputs:
        parts.append("## Kernels of labels")
        panels = []
        for case, title in protocol()["case"].items():
            results = label_results(folder, case)
            panels.append(label_panel(title, results))
            parts += [f"### {title}", label_table(results)]
        stem = folder.path / "figures" / "labels"
        line_figure(stem, "Kernels of label histograms with noise", panels, styles_of(_specs()))
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
