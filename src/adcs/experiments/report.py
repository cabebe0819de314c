"""What a comparison leaves behind: the table, the figures, summary.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adcs.experiments import wording
from adcs.experiments.config import Experiment
from adcs.experiments.figures import Line, Panel, line_figure, write_csv
from adcs.experiments.statistics import Row, curves, diverged, summarise, trained
from adcs.run_folder import RunFolder, write_atomically

AXES = {
    "server_round": [("round", 1.0)],
    "bytes": [("traffic up and down (MB)", 1e6), ("traffic up and down (GB)", 1e9)],
    "seconds": [("virtual time (seconds)", 1.0), ("virtual time (hours)", 3600.0)],
}
"""What curves can be drawn against: labels with their units, the smallest first."""

NAMES = {
    "worst": "worst test accuracy",
    "worst20": "mean test accuracy of the worst 20 %",
    "average": "average test accuracy",
    "bias": "selection bias ||g_S - g_N||",
}
BAND_SEEDS = 3
"""With fewer seeds no band is drawn: the interval of two is wider than anything it shows."""

FEW = 0.5
"""Where a smaller share than this of m updates a round was trained on, the reader is warned."""

SMOOTH = 40
"""Curves are drawn as running means over a fortieth of the evaluations."""


def panel(
    records: Sequence[Mapping[str, Any]], field: str, against: str, labels: Sequence[str]
) -> Panel:
    """Return one field over rounds, bytes or seconds, with bands over seeds, ready to draw."""
    found = curves(records, field, labels)
    window = max(1, found.rounds.size // SMOOTH)
    window += 1 - window % 2  # As many evaluations before a round as after it.
    found = found.smooth(window)
    x = {label: found.rounds.astype(np.float64) for label in labels}
    if against != "server_round":
        spent = curves(records, against, labels)
        place = np.isin(spent.rounds, found.rounds)
        x = {label: spent.values[label][:, place].mean(axis=0) for label in labels}
    far = max(float(np.nanmax(values)) for values in x.values())
    axis, unit = next(
        ((a, u) for a, u in reversed(AXES[against]) if far >= 2 * u), AXES[against][0]
    )
    lines = {}
    for label in labels:
        mean, low, high = found.band(label)
        if len(found.seeds) < BAND_SEEDS:
            low = high = mean
        elif field != "bias":  # No accuracy is outside [0, 1].
            low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
        lines[label] = Line(x[label] / unit, mean, low, high)
    name = NAMES[field] + (f"\n(mean of {window} evaluations)" if window > 1 else "")
    return Panel(axis, name, lines)


def caption(seeds: int) -> str:
    """Return what is drawn in figures of curves.

    >>> caption(5)
    'Curves are means over 5 seeds, shades their 95 % Student intervals.'
    >>> caption(1)
    'Curves are of one seed; shades, 95 % Student intervals, are drawn from 3 seeds on.'
    """
    if seeds >= BAND_SEEDS:
        return f"Curves are means over {seeds} seeds, shades their 95 % Student intervals."
    whose = "of one seed" if seeds == 1 else f"means over {seeds} seeds"
    return (
        f"Curves are {whose}; shades, 95 % Student intervals, are drawn from {BAND_SEEDS} seeds on."
    )


def baseline_of(experiment: Experiment) -> str:
    """Return the label that differences are taken against: the one set, Uniform, or the first.

    >>> baseline_of(Experiment()), baseline_of(Experiment(baseline="OCS"))
    ('Uniform', 'OCS')
    """
    labels = list(experiment.schedulers)
    return experiment.baseline or ("Uniform" if "Uniform" in labels else labels[0])


def results(folder: RunFolder, experiment: Experiment) -> list[Row]:
    """Return the table of a comparison's records."""
    return summarise(folder.records(), list(experiment.schedulers), baseline_of(experiment))


def warnings(folder: RunFolder, experiment: Experiment) -> list[str]:
    """Return what nobody who reads a comparison's table should miss."""
    records = list(folder.records())
    notes = []
    found = diverged(records)
    names = [label for label in experiment.schedulers if label in found]
    if experiment.seeds > 1:
        names = [f"{label} ({len(found[label])} of {experiment.seeds} seeds)" for label in names]
    if names:
        notes.append(
            "Training diverged: at the end the test loss is no number, or more than twice what it "
            f"was at the start, for {', '.join(names)}. Such accuracies say nothing about "
            "schedulers; try a smaller learning rate."
        )
    shares = trained(records, experiment.m)
    few = [label for label in experiment.schedulers if shares.get(label, 1.0) < FEW]
    if few:
        counts = ", ".join(f"{label} ({100 * shares[label]:.0f} %)" for label in few)
        why = "; look at the network's deadline, dropout and availability"
        notes.append(
            f"Hardly anybody trained: of m = {experiment.m} updates a round, fewer than half came "
            f"in for {counts}. Such accuracies say little about schedulers"
            f"{why if experiment.network else ''}."
        )
    return notes


def write_report(
    folder: RunFolder, experiment: Experiment, notes: Sequence[str] = ()
) -> list[Path]:
    """Draw the figures and write table.csv and summary.md; return the files written.

    Parameters
    ----------
    folder, experiment
        The run.
    notes
        Sentences to put in bold before the table, such as what the data is a stand-in for.
    """
    records = list(folder.records())
    labels = list(experiment.schedulers)
    written = []
    for against in AXES:
        panels = [panel(records, field, against, labels) for field in ("worst", "average")]
        title = f"{data_name(experiment)}: {experiment.m} of {experiment.clients} clients per round"
        stem = folder.figures / f"accuracy-by-{against}"
        written += line_figure(stem, title, panels)
    rows = summarise(records, labels, baseline_of(experiment))
    text = "\n\n".join(
        [
            f"# Comparison of {len(labels)} schedulers",
            setting(experiment),
            *[f"**{note}**" for note in notes],
            table_section(rows, experiment),
            "## Figures",
            caption(experiment.seeds),
            "\n".join(f"![{path.stem}](figures/{path.name})" for path in written if is_png(path)),
        ]
    )
    numbers = write_csv(folder.path / "table.csv", *wording.numbers(rows))
    summary = folder.path / "summary.md"
    write_atomically(summary, (text + "\n").encode())
    return [*written, numbers, summary]


def data_name(experiment: Experiment) -> str:
    """Return what titles call the data: its name, or that of its file.

    >>> data_name(Experiment(data="digits")), data_name(Experiment(data="/home/me/mine.npz"))
    ('digits', 'mine')
    """
    path = Path(experiment.data)
    return path.stem if path.suffix == ".npz" else experiment.data


def is_png(path: Path) -> bool:
    """Return whether a file is a PNG, which Markdown shows.

    >>> is_png(Path("a.png")), is_png(Path("a.pdf"))
    (True, False)
    """
    return path.suffix == ".png"


def setting(experiment: Experiment) -> str:
    """Return the setting in words; what is seldom set is named only where it is.

    >>> print(setting(Experiment(data="digits", rounds=500)))
    Data digits, partition by-class, N = 30 clients, m = 18 per round, T = 500 rounds; softmax
    regression; 1 step(s) of SGD, batch 16, lr 0.001; seed 0.
    >>> print(setting(Experiment(network={"dropout": 0.1}, dtype="float64")).partition("lr ")[2])
    0.001; in float64; network with dropout = 0.1; seed 0.
    """
    e = experiment
    model = "softmax regression" if not e.hidden else f"an MLP with hidden layers {list(e.hidden)}"
    local = f"{e.steps} step(s) of SGD, batch {e.batch_size}"
    if e.local == "full":
        local = "full-batch gradient descent"
    parts = [
        f"Data {e.data}, partition {e.partition}{_pairs(e.partition_settings, ' ({})')}, "
        f"N = {e.clients} clients, m = {e.m} per round, T = {e.rounds:,} rounds",
        model,
        f"{local}, lr {e.lr:g}" + (f", server lr {e.server_lr:g}" if e.server_lr else ""),
        "clients weighed by their number of examples" if e.weights == "size" else "",
        "weights divided twice, as in the paper's text" if e.paper_literal_weights else "",
        f"in {e.dtype}" if e.dtype != Experiment.dtype else "",
        _pairs(e.network, "network with {}"),
        f"{e.seeds} seeds" if e.seeds > 1 else f"seed {e.first_seed}",
    ]
    return "; ".join(filter(None, parts)) + "."


def _pairs(settings: Mapping[str, Any], words: str) -> str:
    """Return settings in words, nothing for none.

    >>> _pairs({"alpha": 0.1}, " ({})"), _pairs({}, " ({})")
    (' (alpha = 0.1)', '')
    """
    shown = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return words.format(shown) if shown else ""


def table_section(rows: Sequence[Row], experiment: Experiment) -> str:
    """Return the table, and the differences where there are any, as Markdown."""
    parts = ["## Table", wording.markdown(*wording.table(rows)), reading(experiment)]
    if experiment.seeds > 1 and len(rows) > 1:
        parts += [
            f"## Differences to {baseline_of(experiment)}",
            wording.markdown(*wording.difference_table(rows)),
        ]
    return "\n\n".join(parts)


def reading(experiment: Experiment) -> str:
    """Return how the table is to be read.

    >>> reading(Experiment(seeds=5)).endswith("interval over 5 seeds.")
    True
    """
    text = (
        "Accuracies are means over the last tenth of evaluations; TV is the distance of the "
        "groups' selection ratios to uniform, Jain the index of participation; updates, traffic "
        "and virtual time include what schedulers asked for."
    )
    if experiment.seeds > 1:
        return f"{text} ± is the 95 % Student interval over {experiment.seeds} seeds."
    return f"{text} One seed: there are no intervals (--seeds 5 gives them)."
