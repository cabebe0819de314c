"""The report of a comparison: table, figures, summary.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import Float64Array
from adcs.experiments import tables
from adcs.experiments.config import Experiment
from adcs.experiments.figures import Cost, Line, Panel, cost_figure, line_figure, write_csv
from adcs.experiments.statistics import (
    COMPARED,
    FEWEST,
    METRICS,
    Estimate,
    Row,
    curves,
    diverged,
    metrics_of,
    summarise,
    trained,
)
from adcs.experiments.styles import styles_of
from adcs.metrics import CLIENT_METRICS
from adcs.run_folder import RunFolder, write_atomically
from adcs.simulation.datasets import is_named

AXES = {
    "server_round": [("round", 1.0)],
    "bytes": [("traffic up and down (MB)", 1e6), ("traffic up and down (GB)", 1e9)],
    "seconds": [("virtual time (seconds)", 1.0), ("virtual time (hours)", 3600.0)],
}
"""Horizontal axes of curves: labels with their units, the smallest unit first."""

NAMES = {
    **{name: METRICS[name].label for name in COMPARED},
    "bias": "selection bias ‖g_S - g_N‖",
}
"""Labels of vertical axes."""

COSTS = {
    "updates": [
        ("client updates, probes included", 1.0),
        ("client updates, probes included (thousands)", 1e3),
    ],
    "bytes": AXES["bytes"],
}
"""Horizontal axes of the figure of costs."""

FEW = 0.5
"""The report warns if a smaller fraction than this of m updates a round was aggregated."""

SMOOTH = 40
"""Curves are drawn as running means over a fortieth of the evaluations."""


def panel(
    records: Sequence[Mapping[str, Any]], field: str, against: str, labels: Sequence[str]
) -> Panel:
    """Return the panel of one field over rounds, bytes or seconds, with bands over seeds.

    Parameters
    ----------
    records
        Records of a run folder.
    field
        The metric on the vertical axis.
    against
        "server_round", "bytes" or "seconds".
    labels
        The schedulers.

    Examples
    --------
    >>> records = [
    ...     {"scheduler": "ADCS", "seed": 0, "server_round": done, "worst": 0.5} for done in (0, 10)
    ... ]
    >>> found = panel(records, "worst", "server_round", ["ADCS"])
    >>> found.x_label, found.lines["ADCS"].x
    ('round', array([ 0., 10.]))
    """
    found = curves(records, field, labels)
    window = max(1, found.rounds.size // SMOOTH)
    window += 1 - window % 2  # As many evaluations before a round as after it.
    found = found.smooth(window)
    axis, x = horizontal(records, found.rounds, against, labels)
    lines = {label: Line(x[label], *found.band(label)) for label in labels}
    name = name_of(field, found.metric) + (
        f"\n(mean of {window} evaluations)" if window > 1 else ""
    )
    return Panel(axis, name, lines)


def horizontal(
    records: Sequence[Mapping[str, Any]],
    rounds: NDArray[np.intp],
    against: str,
    labels: Sequence[str],
) -> tuple[str, dict[str, Float64Array]]:
    """Return a horizontal axis: its label, and where each scheduler is at some evaluated rounds.

    Parameters
    ----------
    records
        Records of a run folder.
    rounds
        The evaluated rounds.
    against
        "server_round", "bytes" or "seconds".
    labels
        The schedulers.

    Examples
    --------
    >>> horizontal([], np.array([0, 10]), "server_round", ["ADCS"])
    ('round', {'ADCS': array([ 0., 10.])})
    """
    x = {label: rounds.astype(np.float64) for label in labels}
    if against != "server_round":
        spent = curves(records, against, labels)
        position = np.isin(spent.rounds, rounds)
        x = {label: spent.values[label][:, position].mean(axis=0) for label in labels}
    far = max(float(np.nanmax(values)) for values in x.values())
    axis, unit = _unit(AXES[against], far)
    return axis, {label: values / unit for label, values in x.items()}


def name_of(field: str, metric: str = "accuracy") -> str:
    """Return the label of a vertical axis, where clients are judged by a metric.

    >>> name_of("worst"), name_of("worst", "rmse")
    ('worst test accuracy', 'worst test RMSE')
    """
    return metrics_of(metric)[field].label if field in COMPARED else NAMES[field]


def _unit(axes: Sequence[tuple[str, float]], far: float) -> tuple[str, float]:
    """Return the label and the largest unit that suits numbers up to `far`.

    >>> _unit(AXES["bytes"], 3e9)
    ('traffic up and down (GB)', 1000000000.0)
    """
    return next(((label, u) for label, u in reversed(axes) if far >= 2 * u), axes[0])


def caption(seeds: int) -> str:
    """Return what is drawn in figures of curves.

    >>> caption(1).partition(". ")[0]
    'Curves are of one seed'
    >>> caption(5).partition(", cut")[0]
    'Curves are means over 5 seeds, shades their 95 % Student intervals'
    """
    zoom = "A panel whose curves come close shows where they differ, not the whole of their rise."
    if seeds == 1:
        return f"Curves are of one seed. {zoom}"
    wide = "where shades would cover half of a panel, the widest are bars at some markers instead"
    if seeds < FEWEST:
        return (
            f"Curves are means over {seeds} seeds, shades reach from one seed to the other; "
            f"{wide}. {zoom}"
        )
    return (
        f"Curves are means over {seeds} seeds, shades their 95 % Student intervals, cut off at 0 "
        f"and, for accuracies, at 1; {wide}. {zoom}"
    )


def baseline_of(experiment: Experiment) -> str:
    """Return the label that differences are taken against: the one set, Uniform, or the first.

    >>> baseline_of(Experiment()), baseline_of(Experiment.of(baseline="OCS"))
    ('Uniform', 'OCS')
    """
    labels = list(experiment.schedulers)
    return experiment.run.baseline or ("Uniform" if "Uniform" in labels else labels[0])


def results(folder: RunFolder, experiment: Experiment) -> list[Row]:
    """Return the rows of a comparison's table."""
    return summarise(folder.records(), list(experiment.schedulers), baseline_of(experiment))


def warnings(folder: RunFolder, experiment: Experiment) -> list[str]:
    """Return warnings about a comparison: divergence, few updates, values that do not count."""
    return record_warnings(list(folder.records()), experiment)


def record_warnings(records: Sequence[Mapping[str, Any]], experiment: Experiment) -> list[str]:
    """Return the warnings of `warnings`, from records that are read already."""
    notes = []
    found = diverged(records)
    names = [label for label in experiment.schedulers if label in found]
    if experiment.run.seeds > 1:
        names = [f"{label} ({tables.seed_names(found[label])})" for label in names]
    if names:
        notes.append(
            "Training diverged: at the end the test loss is no number, or more than twice what it "
            f"was at the start, for {', '.join(names)}. Such accuracies say nothing about "
            "schedulers; try a smaller learning rate, or standardise features that are large."
        )
    m = experiment.training.m
    shares = trained(records, m)
    few = [label for label in experiment.schedulers if shares.get(label, 1.0) < FEW]
    if few:
        counts = ", ".join(f"{label} ({100 * shares[label]:.0f} %)" for label in few)
        why = "; look at the network's deadline, dropout and availability"
        notes.append(
            f"Hardly anybody trained: of m = {m} updates a round, fewer than half came "
            f"in for {counts}. Such accuracies say little about schedulers"
            f"{why if experiment.network else ''}."
        )
    if note := _unjudged_note(records, experiment.metric):
        notes.append(note)
    lost = tables.left_out_note(summarise(records, list(experiment.schedulers)))
    return [*notes, lost] if lost else notes


def _unjudged_note(records: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return how many clients have no value of the metric, as one sentence; "" for none.

    >>> _unjudged_note([{"auc": [0.5, None, None]}], "auc").partition(":")[0]
    '2 of 3 clients have no AUC'
    """
    lists = [record["auc"] for record in records if metric == "auc" and "auc" in record]
    most: list[float | None] = max(lists, key=lambda values: values.count(None), default=[])
    if not (none := most.count(None)):
        return ""
    return (
        f"{none} of {len(most)} clients have no AUC: their test examples are of one class. Worst, "
        "average and std leave them out."
    )


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

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from adcs.experiments import create_run, run_experiment
    >>> experiment = Experiment.of(
    ...     data="synthetic", clients=10, m=5, rounds=2, eval_every=1, schedulers=["Uniform"]
    ... )
    >>> with TemporaryDirectory() as path:
    ...     folder = create_run(Path(path) / "run", experiment)
    ...     run_experiment(folder, experiment, jobs=1)
    ...     files = write_report(folder, experiment)
    >>> [file.name for file in files if file.suffix != ".pdf"][-2:]
    ['table.csv', 'summary.md']
    """
    records = list(folder.records())
    labels = list(experiment.schedulers)
    styles = styles_of(experiment.schedulers)
    m, clients = experiment.training.m, experiment.partition.clients
    title = f"{data_name(experiment)}: {m} of {clients} clients per round"
    written = []
    for against in AXES:
        panels = [panel(records, field, against, labels) for field in COMPARED]
        stem = folder.figures / f"{experiment.metric}-by-{against.removeprefix('server_')}"
        written += line_figure(stem, title, panels, styles)
    rows = summarise(records, labels, baseline_of(experiment))
    stem = folder.figures / f"{experiment.metric}-by-cost"
    written += cost_figure(stem, title, cost_panels(rows, experiment.metric), styles)
    text = "\n\n".join(
        [
            f"# Comparison of {len(labels)} schedulers" if len(labels) > 1 else "# One scheduler",
            setting(experiment),
            *[f"**{note}**" for note in notes],
            table_section(rows, experiment),
            "## Figures",
            f"{caption(experiment.run.seeds)} {cost_caption(experiment.run.seeds)}",
            "\n".join(f"![{path.stem}](figures/{path.name})" for path in written if is_png(path)),
        ]
    )
    numbers = write_csv(folder.path / "table.csv", *tables.number_table(rows))
    summary = folder.path / "summary.md"
    write_atomically(summary, (text + "\n").encode())
    return [*written, numbers, summary]


def cost_panels(rows: Sequence[Row], metric: str = "accuracy") -> list[list[Cost]]:
    """Return the panels of what clients reached over costs, a row for each cost."""
    grid = []
    for cost, axes in COSTS.items():
        spent = {row.label: row.cells[cost] for row in rows if row.cells[cost].n}
        axis, unit = _unit(axes, max((e.mean for e in spent.values()), default=0.0))
        scaled = {label: _scaled(e, unit) for label, e in spent.items()}
        grid.append(
            [
                Cost(
                    axis,
                    f"final {name_of(field, metric)}",
                    {row.label: (scaled[row.label], row.cells[field]) for row in rows},
                )
                for field in ("worst", "average")
            ]
        )
    return grid


def _scaled(found: Estimate, unit: float) -> Estimate:
    half = None if found.half is None else found.half / unit
    values = tuple(value / unit for value in found.values)
    return replace(found, mean=found.mean / unit, half=half, values=values)


def cost_caption(seeds: int) -> str:
    """Return what is drawn in the figure of costs.

    >>> cost_caption(1)
    'In the figure of costs a mark is a scheduler at the end of its run; marks get smaller in the
    order of the legend, so that those in one place are seen.'
    """
    text = (
        "In the figure of costs a mark is a scheduler at the end of its run; marks get smaller in "
        "the order of the legend, so that those in one place are seen"
    )
    if seeds == 1:
        return f"{text}."
    return f"{text}; " + (
        "small points are the seeds." if seeds < FEWEST else "bars are 95 % Student intervals."
    )


def data_name(experiment: Experiment) -> str:
    """Return the name of the data in titles: its name, or that of its file.

    >>> data_name(Experiment.of(data="digits")), data_name(Experiment.of(data="/home/me/mine.npz"))
    ('digits', 'mine')
    """
    name = experiment.data.name
    return name if is_named(name) else Path(name).stem


def is_png(path: Path) -> bool:
    """Return whether a file is a PNG, which Markdown shows.

    >>> is_png(Path("a.png")), is_png(Path("a.pdf"))
    (True, False)
    """
    return path.suffix == ".png"


def setting(experiment: Experiment) -> str:
    """Return the settings in a sentence.

    >>> print(setting(Experiment.of(data="digits", rounds=500)))
    Data digits; partition by-class, N = 30 clients; softmax regression; m = 18 per round, lr 0.001,
    1 step(s) of SGD, T = 500 rounds, batch 16; 1 seed.
    """
    words = experiment.in_words()
    return f"{words[0].upper()}{words[1:]}."


def table_section(rows: Sequence[Row], experiment: Experiment) -> str:
    """Return the table, and the differences where there are any, as Markdown."""
    parts = ["## Table", tables.markdown_table(*tables.summary_table(rows)), reading(experiment)]
    heads, lines = tables.difference_table(rows)
    if experiment.run.seeds > 1 and lines:
        parts += [
            f"## Differences to {baseline_of(experiment)}",
            tables.markdown_table(heads, lines),
            tables.difference_note(rows),
        ]
    return "\n\n".join(parts)


def seeds_of(experiment: Experiment) -> range:
    """Return the seeds of an experiment.

    >>> seeds_of(Experiment.of(seeds=3, first_seed=2))
    range(2, 5)
    """
    return range(experiment.run.first_seed, experiment.run.first_seed + experiment.run.seeds)


def reading(experiment: Experiment, *, costs: bool = True) -> str:
    """Return how the table is to be read.

    Parameters
    ----------
    experiment
        The settings.
    costs
        Whether the table has the costs too.

    Examples
    --------
    >>> reading(Experiment.of(seeds=5)).endswith("then both ends are given.")
    True
    """
    judged = CLIENT_METRICS[experiment.metric]
    what = "Accuracies are"
    if experiment.metric != "accuracy":
        better = "lower" if judged.lower_is_better else "higher"
        what = f"Clients are judged by {judged.label}, of which {better} is better; its values are"
    return (
        f"{what} means over the last tenth of evaluations; TV is the distance of the "
        "groups' selection ratios to uniform, Jain the index of participation"
        + ("; updates, traffic and virtual time include what schedulers asked for" * costs)
        + ". "
        + tables.table_note(seeds_of(experiment), experiment.metric)
    )
