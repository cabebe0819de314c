"""Figures and tables of the paper, made from the records of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs import ADCS, metrics
from adcs.dpp import log_kernel
from adcs.experiments import (
    BOUNDS,
    FEWEST,
    Bars,
    Experiment,
    Map,
    bar_figure,
    caption,
    curves,
    estimate,
    final_ratios,
    format_estimate,
    format_number,
    heat_figure,
    left_out_note,
    line_figure,
    make_scheduler,
    markdown_table,
    panel,
    setting,
    styles_of,
    summarise,
    summary_table,
)
from adcs.theory import cosines, from_triangle
from reproduction import claims
from reproduction.claims import Claim, Records

Array = NDArray[np.float64]

TOLERANCE = 0.015
"""Largest allowed deviation of a ratio or a TV distance from the paper's."""

MOMENTS = 6
"""Number of heat maps of a run."""


@dataclass(frozen=True)
class Output:
    """A figure or table.

    Attributes
    ----------
    name, title
        What it is called.
    run
        The run it is made from.
    fields
        Fields of the records to draw, a panel each.
    against
        The horizontal axis.
    schedulers
        Labels of the run's schedulers to show; none are all.
    on_demand
        Made only if it is named.
    """

    name: str
    run: str
    title: str
    fields: Sequence[str] = ()
    against: str = "server_round"
    schedulers: Sequence[str] = ()
    on_demand: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the summary."""

    output: Output
    claims: list[Claim]
    text: str
    files: list[Path]
    caption: str = ""

    def markdown(self) -> str:
        """Return the section as Markdown, its figures linked."""
        # Links are relative to the folder that holds the folder of figures.
        links = [
            f"![{path.stem}]({path.parent.name}/{path.name})"
            for path in self.files
            if path.suffix == ".png"
        ]
        verdicts = "\n".join(claim.line() for claim in self.claims)
        parts = [f"## {self.output.title}", verdicts, self.text, *links, self.caption]
        return "\n\n".join(filter(None, parts))


def make_section(
    output: Output,
    experiment: Experiment,
    records: Records,
    paper: Mapping[str, Any],
    figures: Path,
) -> Section:
    """Draw an output and judge the claims on it.

    Parameters
    ----------
    output
        What to make.
    experiment, records
        The run.
    paper
        The paper's numbers of Table 1.
    figures
        The folder of figures.
    """
    labels = list(output.schedulers or experiment.schedulers)
    stem = figures / output.name
    if output.name == "table-1":
        return _table_1(output, experiment, records, labels, paper, stem)
    if output.name == "kernels":
        return _kernels(output, experiment, records, stem)
    panels = [panel(records, field, output.against, labels) for field in output.fields]
    files = line_figure(stem, output.title, panels, styles_of(experiment.schedulers))
    rows = summarise(records, labels)
    text = markdown_table(*summary_table(rows))
    lost = left_out_note(rows)
    text += f"\n\n**{lost}**" if lost else ""
    found: list[Claim] = []
    if output.name == "figure-1":
        found = claims.judge_methods(records, experiment, labels)
    elif output.name == "figure-2":
        found = claims.judge_theta(records, labels)
    elif output.name == "figure-3":
        found = claims.judge_refresh(records, labels)
    elif output.name == "bias":
        found = claims.judge_bias(records, labels)
        text = f"**{lost}**" if lost else ""
    elif output.name == "communication":
        text += "\n\n" + equal_time(records, labels)
    elif output.name == "cifar10":
        found = claims.judge_accuracies(records, claims.METHODS, ("worst", "worst20"))
        text = f"{setting(experiment)}\n\n{text}"
    return Section(output, found, text, files, caption(experiment.run.seeds))


def equal_time(records: Records, labels: Sequence[str]) -> str:
    """Return the accuracies at the time at which the fastest scheduler finishes, as Markdown."""
    seconds = curves(records, "seconds", labels)
    found = {field: curves(records, field, labels) for field in ("worst", "average")}
    lines = []
    ends = np.array([seconds.values[label][:, -1] for label in labels]).min(axis=0)
    count = max(1, seconds.rounds.size // 10)
    for label in labels:
        cells = [label]
        reached = [
            max(int(np.searchsorted(times, end, side="right")), 1)
            for times, end in zip(seconds.values[label], ends, strict=True)
        ]
        rounds = [float(seconds.rounds[evaluations - 1]) for evaluations in reached]
        cells.append(f"{np.mean(rounds):,.0f}")
        for table in found.values():
            numbers = [
                float(row[max(0, evaluations - count) : evaluations].mean())
                for row, evaluations in zip(table.values[label], reached, strict=True)
            ]
            cells.append(format_estimate(estimate(numbers, BOUNDS["worst"]), "worst"))
        lines.append(cells)
    moment = format_estimate(estimate(ends, BOUNDS["seconds"]), "seconds")
    return (
        f"At equal time, when the fastest of them is done (after {moment}):\n\n"
        + markdown_table(["scheduler", "rounds", "worst", "average"], lines)
    )


def _table_1(
    output: Output,
    experiment: Experiment,
    records: Records,
    labels: Sequence[str],
    paper: Mapping[str, Any],
    stem: Path,
) -> Section:
    found, bars, lines = [], [], []
    for label in labels:
        theirs = np.array(paper["ratios"][label])
        ratios = final_ratios(records, label)
        if ratios.ndim != 2 or ratios.shape[1] != theirs.size:
            text = f"{label}: the run has no ratios for the paper's {theirs.size} groups."
            return Section(output, [Claim("Table 1 is reproduced", "undecided", text)], "", [])
        parts = [estimate(column, BOUNDS["ratio"]) for column in ratios.T]
        ours = np.array([part.mean for part in parts])
        bars.append(Bars(label, parts, theirs))
        tv = estimate(metrics.total_variation(row) for row in ratios)
        paper_tv = paper["tv"].get(label, metrics.total_variation(theirs))
        found.append(judge_row(label, ours, theirs, tv.mean, paper_tv))
        for who, row, distance in (("here", ours, tv.mean), ("paper", theirs, paper_tv)):
            far = [abs(a - b) > TOLERANCE for a, b in zip(row, theirs, strict=True)]
            cells = [_flag(format_number(x, "ratio"), f) for x, f in zip(row, far, strict=True)]
            apart = _flag(f"{distance:.4f}", abs(distance - paper_tv) > TOLERANCE)
            off = f"{np.abs(ours - theirs).max():.4f}" if who == "here" else ""
            lines.append([label, who, *cells, apart, off])
    heads = ["method", "", *[f"group {k}" for k in range(theirs.size)], "TV", "max deviation"]
    text = markdown_table(heads, lines) + f"\n\n**Bold** differs by more than {TOLERANCE}."
    names = [str(k) for k in range(theirs.size)]
    styles = styles_of(experiment.schedulers)
    files = bar_figure(stem, output.title, bars, names, "ratio of selections", styles)
    seeds = len(ratios)
    bars_are = f"means over {seeds} seeds" if seeds > 1 else "of one seed"
    bars_are += " with 95 % Student intervals" if seeds >= FEWEST else ""
    return Section(output, found, text, files, f"Bars are {bars_are}.")


def _flag(text: str, far: bool) -> str:
    return f"**{text}**" if far else text


def judge_row(label: str, ours: Array, theirs: Array, tv: float, paper_tv: float) -> Claim:
    """Judge a row of Table 1: every ratio and the TV distance must be within 0.015 of the paper's.

    >>> judge_row("A", np.array([0.52, 0.48]), np.array([0.5, 0.5]), 0.02, 0.0).verdict
    'does not hold'
    """
    far = float(np.abs(ours - theirs).max())
    group = int(np.abs(ours - theirs).argmax())
    apart = abs(tv - paper_tv)
    return Claim(
        f"{label} selects the groups as in the paper, every ratio and the TV within {TOLERANCE}",
        "holds" if max(far, apart) <= TOLERANCE else "does not hold",
        f"Largest deviation of a ratio {far:.4f} (group {group}: {ours[group]:.4f}, paper "
        f"{theirs[group]:.4f}); TV {tv:.4f}, paper {paper_tv:.4f}, {apart:.4f} apart.",
    )


def kernel_at(record: Mapping[str, Any], theta: float, quality: object) -> Array:
    """Return L = Q C Q at a record's round, from the inner products of the updates.

    The quality is the norm of the updates if `quality` is "norm", and the loss otherwise.

    >>> record = {"gram": [4.0, 2.0, 4.0], "batch_losses": [0.0, 2.0]}
    >>> kernel_at(record, theta=0.5, quality="loss").round(3)
    array([[1.   , 1.359],
           [1.359, 7.389]])
    """
    gram = from_triangle(record["gram"])
    q = np.sqrt(gram.diagonal()) if quality == "norm" else record["batch_losses"]
    sign, log_size = log_kernel(cosines(gram), q, theta)
    return np.asarray(sign * np.exp(log_size))


def _kernels(output: Output, experiment: Experiment, records: Records, stem: Path) -> Section:
    rows = {}
    seed = experiment.run.first_seed
    lines, files = [], []
    clients = client_names(experiment)
    for label, spec in experiment.schedulers.items():
        scheduler = make_scheduler(spec, seed)
        assert isinstance(scheduler, ADCS)
        mine = [
            record
            for record in records
            if record["scheduler"] == label and record["seed"] == seed and "gram" in record
        ]
        moments = np.unique(np.linspace(0, len(mine) - 1, MOMENTS).round().astype(int))
        maps = [
            Map(
                f"round {mine[i]['server_round']:,}",
                kernel_at(mine[i], scheduler.theta, scheduler.quality),
            )
            for i in moments
        ]
        rows[label] = maps
        for item in maps:
            off = item.matrix[~np.eye(len(item.matrix), dtype=bool)]
            diagonal = np.diag(item.matrix)
            ends = (diagonal.min(), diagonal.max(), off.min(), off.max())
            lines.append([label, item.title, *[f"{value:.3g}" for value in ends]])
        # The entries of the runs have different units, so each run has its own figure.
        title = f"{output.title}: {label}"
        files += heat_figure(stem.with_name(f"{stem.name}-{label.lower()}"), title, maps, clients)
    heads = ["run", "moment", "least L_nn", "largest L_nn", "least L_nk", "largest L_nk"]
    changing = [
        float(np.abs(maps[-1].matrix - maps[0].matrix).max() / np.abs(maps[0].matrix).max())
        for maps in rows.values()
    ]
    claim = Claim(
        "The kernel is not fixed but changes over training",
        "holds" if min(changing) > 0.1 else "does not hold",
        "Largest change of an entry from the first to the last moment, over the largest entry: "
        + ", ".join(f"{name} {c:.2f}" for name, c in zip(rows, changing, strict=True))
        + ".",
    )
    return Section(output, [claim], markdown_table(heads, lines), files)


def client_names(experiment: Experiment) -> list[str]:
    """Return a name for each client: its number, and its class if each client has one class.

    >>> client_names(Experiment.of(data="digits", clients=10, m=5))[:3]
    ['0', '1', '2']
    """
    numbers = [str(client) for client in range(experiment.partition.clients)]
    if experiment.partition.kind != "by-class":
        return numbers
    dataset = experiment.dataset()
    if dataset.classes != experiment.partition.clients:
        return numbers
    names = dataset.label_names
    return [
        number if name == number else f"{number} {name}"
        for number, name in zip(numbers, names, strict=True)
    ]
