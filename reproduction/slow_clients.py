"""`make slow`: rounds that do not wait for the slowest client, on a network of unequal speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs.experiments import (
    BOUNDS,
    Experiment,
    Record,
    curves,
    estimate,
    format_estimate,
    format_number,
    markdown_table,
    seeds_of,
)
from adcs.simulation import Network
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

MODES = {
    "synchronous": "synchronous",
    "deadlines": "learned deadlines",
    "over-selected": "over-selected",
    "buffered": "buffered",
}
"""Ways in which rounds end, by the names of their files, in words."""

BASELINE = "Uniform"

COLOURS = {
    "synchronous": "#222222",
    "deadlines": "#b8860b",
    "over-selected": "#0072b2",
    "buffered": "#d55e00",
}
MARKERS = {"synchronous": "o", "deadlines": "s", "over-selected": "^", "buffered": "D"}

VERSIONS = 2
"""Model steps in buffered rounds for each synchronous round: a buffer holds half of m replies."""

TENTHS = 10
"""Clients are put into this many groups by speed."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Reached:
    """Where a run first has the baseline's final average accuracy, seed by seed.

    Attributes
    ----------
    seconds, updates
        Virtual time and client updates until then; infinite for seeds that never have it.
    worst, average
        Accuracies there; NaN for seeds that never have it.
    """

    seconds: Numbers
    updates: Numbers
    worst: Numbers
    average: Numbers


def mode_run(mode: str, overrides: Mapping[str, Any]) -> Run:
    """Return the run of a mode.

    >>> mode_run("synchronous", {"rounds": 100}).settings
    {'rounds': 100, 'eval_every': 2}
    >>> mode_run("buffered", {"rounds": 100}).settings
    {'rounds': 200, 'eval_every': 4}
    """
    settings = quick_look(overrides)
    if mode == "buffered":
        counted = {"rounds", "eval_every"} & settings.keys()
        settings |= {key: VERSIONS * settings[key] for key in counted}
    return Run(mode, CONFIGS / "slow" / f"{mode}.toml", settings)


def runs_of(folder: ResultFolder) -> list[Run]:
    """Return the runs of the folder's modes."""
    return [mode_run(mode, folder.overrides) for mode in folder.outputs]


def reached(records: Sequence[Record], label: str, target: Numbers) -> Reached:
    """Return where a scheduler's average accuracy is first at least a target, seed by seed.

    Examples
    --------
    >>> place = {"scheduler": "Oort", "seed": 0, "worst": 0.1, "updates": 7.0}
    >>> steps = [{"server_round": r, "average": r / 4, "seconds": 3.0 * r} for r in (0, 1, 2)]
    >>> steps = [place | step for step in steps]
    >>> [reached(steps, "Oort", np.array([target])).seconds for target in (0.2, 0.6)]
    [array([3.]), array([inf])]
    """
    names = ("average", "worst", "seconds", "updates")
    found = {name: curves(records, name, [label]).values[label] for name in names}
    hit = found["average"] >= target[:, None]
    at = np.arange(len(target)), hit.argmax(axis=1)
    ever = hit.any(axis=1)
    return Reached(
        np.where(ever, found["seconds"][at], np.inf),
        np.where(ever, found["updates"][at], np.inf),
        np.where(ever, found["worst"][at], np.nan),
        np.where(ever, found["average"][at], np.nan),
    )


def last_entries(records: Sequence[Record], label: str, name: str) -> list[Numbers]:
    """Return an entry of the last records that has a number for each client, seed by seed."""
    last: dict[int, Record] = {}
    for record in records:
        if record["scheduler"] == label:
            seed = int(record["seed"])
            if seed not in last or record["server_round"] >= last[seed]["server_round"]:
                last[seed] = record
    return [np.asarray(last[seed][name], dtype=float) for seed in sorted(last)]


def client_seconds(experiment: Experiment, seed: int) -> Numbers:
    """Return how long each client takes for a round."""
    assert experiment.network is not None
    clients = experiment.partition.clients
    network = Network(experiment.network, clients, seed)
    size = 4.0 * experiment.make_model(experiment.dataset()).size
    return network.seconds(np.arange(clients), down=size, work=1.0, up=size)


def shares_by_speed(counts: Sequence[Numbers], seconds: Sequence[Numbers]) -> Numbers:
    """Return the share of all participations that each tenth of the clients has, fastest first.

    >>> shares = shares_by_speed([np.array([3.0, 1.0] * 10)], [np.array([1.0, 2.0] * 10)])
    >>> shares.round(3).tolist()[0], shares.round(3).tolist()[-1]
    (0.15, 0.05)
    """
    rows = []
    for count, second in zip(counts, seconds, strict=True):
        groups = np.array_split(np.argsort(second, kind="stable"), TENTHS)
        rows.append([count[group].sum() / max(count.sum(), 1.0) for group in groups])
    return np.asarray(np.mean(rows, axis=0))


def format_reached(values: Numbers, name: str) -> str:
    """Return the mean over the seeds that got there, and how many did if not all.

    >>> format_reached(np.array([90.0, 110.0]), "updates")
    '100'
    >>> format_reached(np.array([90.0, np.inf]), "updates")
    '90 (1 of 2 seeds)'
    >>> format_reached(np.array([np.nan]), "worst")
    'never'
    """
    ever = np.isfinite(values)
    if not ever.any():
        return "never"
    mean = format_number(float(values[ever].mean()), name)
    return mean if ever.all() else f"{mean} ({int(ever.sum())} of {values.size} seeds)"


HEADS = [
    "rounds",
    "scheduler",
    "time",
    "updates",
    "worst there",
    "average there",
    "final worst",
    "final average",
    "never took part",
    "slowest tenth's share",
    "longest wait",
]


def lines_of(
    mode: str, records: Sequence[Record], target: Numbers, seconds: Sequence[Numbers]
) -> list[list[str]]:
    """Return the rows of the table of one mode."""
    labels = list(dict.fromkeys(record["scheduler"] for record in records))
    rows = []
    for label in labels:
        there = reached(records, label, target)
        counts = last_entries(records, label, "participations")
        waits = [float(each.max()) for each in last_entries(records, label, "longest_waits")]
        final = {
            name: estimate(curves(records, name, [label]).last()[label], BOUNDS[name])
            for name in ("worst", "average")
        }
        never = float(np.mean([(count == 0).sum() for count in counts]))
        rows.append(
            [
                MODES[mode],
                label,
                format_reached(there.seconds, "seconds"),
                format_reached(there.updates, "updates"),
                format_reached(there.worst, "worst"),
                format_reached(there.average, "average"),
                format_estimate(final["worst"], "worst"),
                format_estimate(final["average"], "average"),
                f"{never:.1f}",
                f"{100 * shares_by_speed(counts, seconds)[-1]:.1f} %",
                f"{max(waits):,.0f}",
            ]
        )
    return rows


def figure(
    stem: Path, records: Mapping[str, Sequence[Record]], seconds: Sequence[Numbers]
) -> list[Path]:
    """Draw accuracy against virtual time, and who takes part by speed; return the files.

    Parameters
    ----------
    stem
        The files' path without its suffix.
    records
        The records of each mode.
    seconds
        How long each client takes, for each seed.
    """
    from matplotlib.figure import Figure

    first = next(iter(records.values()))
    labels = list(dict.fromkeys(record["scheduler"] for record in first))
    drawn = Figure(figsize=(3.3 * len(labels), 6.0), layout="constrained")
    axes = drawn.subplots(2, len(labels), sharey="row", squeeze=False)
    for column, label in enumerate(labels):
        top, bottom = axes[:, column]
        for mode, found in records.items():
            look = {"color": COLOURS[mode], "label": MODES[mode], "linewidth": 1.4}
            times = curves(found, "seconds", [label]).values[label].mean(axis=0)
            values = curves(found, "average", [label]).values[label].mean(axis=0)
            top.plot(times[1:], values[1:], **look)
            shares = shares_by_speed(last_entries(found, label, "participations"), seconds)
            places = np.arange(1, TENTHS + 1)
            bottom.plot(places, 100 * shares, marker=MARKERS[mode], markersize=4, **look)
        top.set_xscale("log")
        top.set_title(label)
        top.set_xlabel("virtual seconds")
        bottom.axhline(100 / TENTHS, color="#888888", linestyle=":", linewidth=1)
        bottom.set_xticks(range(1, TENTHS + 1))
        bottom.set_xlabel("clients by speed: tenths, slowest last")
        for ax in (top, bottom):
            ax.grid(alpha=0.3, linewidth=0.5)
    axes[0, 0].set_ylabel("average accuracy")
    axes[1, 0].set_ylabel("share of participations, %")
    axes[1, 0].set_ylim(bottom=0)
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside lower center", ncols=len(names))
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(".pdf"), stem.with_suffix(".png")]
    for file in files:
        drawn.savefig(file, dpi=150)
    return files


def report(folder: ResultFolder) -> None:
    """Write summary.md and the figure of a folder; the synchronous runs are the yardstick."""
    found = {mode: folder.read(mode_run(mode, folder.overrides)) for mode in folder.outputs}
    experiment, baseline = found["synchronous"]
    target = curves(baseline, "average", [BASELINE]).last()[BASELINE]
    seconds = [client_seconds(experiment, seed) for seed in seeds_of(experiment)]
    records = {mode: each for mode, (_, each) in found.items()}
    lines = [
        line for mode, each in records.items() for line in lines_of(mode, each, target, seconds)
    ]
    figure(folder.path / "figures" / "slow-clients", records, seconds)
    parts = [
        "# Slow clients",
        *(f"{MODES[mode]}: {each.in_words()}." for mode, (each, _) in found.items()),
        markdown_table(HEADS, lines),
        f"Time, updates and the accuracies after them are those at the first evaluation at which "
        f"the average accuracy is at least the final one of {BASELINE} in synchronous rounds, of "
        f"the same seed (mean {target.mean():.3f}). Clients that never took part, of "
        f"{experiment.partition.clients}, and the share of all participations that the slowest "
        f"tenth of the clients has, 10 % where speed makes no difference, are of the whole run. "
        f"The longest wait is the most rounds in a row without one of the clients, of all seeds.",
        "![slow clients](figures/slow-clients.png)",
    ]
    write_text(folder.path / "summary.md", "\n\n".join(parts))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs and the report."""
    parser = options(
        "Synchronous, over-selected and buffered rounds with clients of unequal speed."
    )
    given = parser.parse_args(arguments)
    folder, _ = make_results("slow", tuple(MODES), given, runs_of, report)
    print_end(folder, None)


if __name__ == "__main__":
    main()
