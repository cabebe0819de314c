"""Figures as PDF and PNG, each with a CSV of what is drawn.

Colours are Okabe and Ito's, which people with colour-blindness tell apart; line styles differ as
well, and from the ninth line on there are marks. Nothing here computes: what is drawn comes in as
panels, and goes out as lines and numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adcs._types import Float64Array
from adcs.experiments.lettering import add_legend, add_title
from adcs.experiments.statistics import Estimate

COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1)),
    "-",
    (0, (6, 1.5, 1, 1.5, 1, 1.5)),
    (0, (8, 2)),
)
MARKS = ("", "o", "^", "s", "x")


@dataclass(frozen=True)
class Line:
    """A curve and its band; without a band, low and high are the curve itself."""

    x: Float64Array
    mean: Float64Array
    low: Float64Array
    high: Float64Array


@dataclass(frozen=True)
class Panel:
    """Axes with curves: a label for each axis, and lines by name."""

    x_label: str
    y_label: str
    lines: Mapping[str, Line] = field(default_factory=dict)


def line_figure(stem: Path, title: str, panels: Sequence[Panel]) -> list[Path]:
    """Draw panels side by side under one legend; return the files written.

    Parameters
    ----------
    stem
        The files' path without its suffix.
    title
        Above the figure.
    panels
        What to draw, all against the same x. The lines of the first panel make the legend.
    """
    width = 6.6 if len(panels) == 1 else 4.6
    figure, axes = _subplots(1, len(panels), width=width, height=3.6)
    style = {name: line_style(i) for i, name in enumerate(panels[0].lines)}
    for ax, panel in zip(axes[0], panels, strict=True):
        for name, line in panel.lines.items():
            ax.plot(line.x, line.mean, label=name, linewidth=1.4, **style[name])
            if np.any(line.high > line.low):
                colour = style[name]["color"]
                ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        ax.set_xlabel(panel.x_label)
        ax.set_ylabel(panel.y_label)
        ax.grid(alpha=0.3, linewidth=0.5)
        ax.margins(x=0.01)
        # The curves set the frame; a wide band must not flatten them.
        ends = [end(line.mean) for line in panel.lines.values() for end in (np.nanmin, np.nanmax)]
        margin = 0.08 * (max(ends) - min(ends)) or 0.05
        ax.set_ylim(min(ends) - margin, max(ends) + margin)
    handles, names = axes[0][0].get_legend_handles_labels()
    add_title(figure, title)
    add_legend(figure, handles, names, {1: 3, 2: 4}.get(len(panels), 7), handlelength=3.2)
    x = re.sub(r"\W+", "_", panels[0].x_label).strip("_")  # It says the unit.
    header = ("panel", "line", x, "mean", "low", "high")
    rows = [
        (panel.y_label.replace("\n", " "), name, *point)
        for panel in panels
        for name, line in panel.lines.items()
        for point in zip(line.x, line.mean, line.low, line.high, strict=True)
    ]
    return [*_save(figure, stem), write_csv(stem.with_suffix(".csv"), header, rows)]


def line_style(place: int) -> dict[str, Any]:
    """Return how the line at some place is drawn: forty of them differ.

    >>> line_style(8)["color"] == line_style(0)["color"], line_style(8)["marker"]
    (True, 'o')
    """
    turn, i = divmod(place, len(COLOURS))
    style = {"color": COLOURS[i], "linestyle": DASHES[i], "marker": MARKS[turn % len(MARKS)]}
    # Marks at equal distances along the line, and not at the same places as its neighbours'.
    return {**style, "markersize": 4.5, "markevery": (0.0125 * i, 0.1)} if turn else style


@dataclass(frozen=True)
class Bars:
    """A row of bars with intervals, and reference marks beside them."""

    name: str
    values: Float64Array
    half: Float64Array
    reference: Float64Array


def bar_figure(
    stem: Path, title: str, panels: Sequence[Bars], names: Sequence[str], y_label: str
) -> list[Path]:
    """Draw measured bars and reference marks, a panel for each `Bars`; return the files."""
    figure, axes = _subplots(1, len(panels), width=2.9, height=3.4, sharey=True)
    places = np.arange(len(names))
    for ax, bars in zip(axes[0], panels, strict=True):
        ax.bar(places, bars.values, yerr=bars.half, color=COLOURS[2], label="measured", capsize=2)
        ax.plot(places, bars.reference, "D", color=COLOURS[5], markersize=5, label="paper")
        ax.set_title(bars.name, fontsize=10)
        ax.set_xticks(places, names)
        ax.set_xlabel("group")
        ax.grid(axis="y", alpha=0.3, linewidth=0.5)
    # Once all panels are drawn: the axis is theirs together, and a limit set is a limit kept.
    axes[0][0].set_ylim(bottom=0.0)
    axes[0][0].set_ylabel(y_label)
    handles, labels = axes[0][0].get_legend_handles_labels()
    add_title(figure, title)
    add_legend(figure, handles, labels, 2)
    rows = [
        (bars.name, name, *numbers)
        for bars in panels
        for name, *numbers in zip(names, bars.values, bars.half, bars.reference, strict=True)
    ]
    header = ("scheduler", "group", "measured", "half_interval", "paper")
    return [*_save(figure, stem), write_csv(stem.with_suffix(".csv"), header, rows)]


@dataclass(frozen=True)
class Dots:
    """A line of a dot plot: estimates by name, and the work that some of them cost."""

    title: str
    values: Mapping[str, Estimate]
    work: Mapping[str, float]


def dot_figure(stem: Path, title: str, lines: Sequence[Dots]) -> list[Path]:
    """Draw accuracies beside the work they cost, a line for each case; return the files."""
    figure, axes = _subplots(1, 2, width=5.6, height=0.34 * len(lines) + 1.2, sharey=True)
    marks = {
        name: {"marker": marker, "color": COLOURS[colour], "markersize": 7, "linestyle": "none"}
        for name, marker, colour in zip(lines[0].values, "sDo", (7, 1, 4), strict=True)
    }
    places = np.arange(len(lines))[::-1]
    left, right = axes[0]
    for name, mark in marks.items():
        found = [line.values[name] for line in lines]
        half = [e.half or 0.0 for e in found]
        left.errorbar([e.mean for e in found], places, xerr=half, label=name, capsize=2, **mark)
    floor = min(w for line in lines for w in line.work.values() if w > 0.0) / 3.0
    for name in lines[0].work:
        cost = [max(line.work[name], floor) for line in lines]
        right.plot(cost, places, **marks[name])
        for line, x, y in zip(lines, cost, places, strict=True):
            if line.work[name] == 0.0:
                right.annotate("0", (x, y), xytext=(6, -3), textcoords="offset points", fontsize=8)
    right.set_xscale("log")
    left.set_xlabel("accuracy of the worst-off client, 95 % interval")
    right.set_xlabel("updates and losses asked of clients besides training,\nfor each update")
    left.set_yticks(places, [line.title for line in lines])
    for ax in (left, right):
        ax.grid(alpha=0.3, linewidth=0.5)
    handles, names = left.get_legend_handles_labels()
    add_title(figure, title)
    add_legend(figure, handles, names, 3)
    rows = [
        (line.title, name, e.mean, e.low, e.high, line.work.get(name, 0.0))
        for line in lines
        for name, e in line.values.items()
    ]
    header = ("case", "scheduler", "worst", "low", "high", "asked_for_each_update")
    return [*_save(figure, stem), write_csv(stem.with_suffix(".csv"), header, rows)]


@dataclass(frozen=True)
class Map:
    """A matrix at some moment."""

    title: str
    matrix: Float64Array


def heat_figure(
    stem: Path, title: str, rows: Mapping[str, Sequence[Map]], labels: Sequence[str]
) -> list[Path]:
    """Draw rows of matrices, each with a colour scale of its own; return the files."""
    from matplotlib.colors import SymLogNorm

    count = max(len(maps) for maps in rows.values())
    figure, axes = _subplots(len(rows), count, width=2.9, height=3.1)
    ticks = np.arange(len(labels))
    size = 7 if len(labels) <= 12 else 5
    for number, (line, (name, maps)) in enumerate(zip(axes, rows.items(), strict=True), start=1):
        for ax, item in zip(line, maps, strict=False):
            top = float(np.abs(item.matrix).max()) or 1.0
            # Entries span orders of magnitude: linear near zero, logarithmic beyond.
            norm = SymLogNorm(linthresh=top / 100, vmin=-top, vmax=top)
            image = ax.imshow(item.matrix, cmap="RdBu_r", norm=norm)
            ax.set_title(item.title, fontsize=9)
            ax.set_xticks(ticks, labels if number == len(rows) else [], rotation=90, fontsize=size)
            ax.set_yticks(ticks, labels if ax is line[0] else [], fontsize=size)
            bar = figure.colorbar(image, ax=ax, shrink=0.75, ticks=_ticks(top))
            bar.ax.set_yticklabels([f"{value:.2g}" for value in _ticks(top)])
            bar.ax.tick_params(labelsize=6)
            bar.ax.minorticks_off()
        line[0].set_ylabel(name, fontsize=9)
    add_title(figure, f"{title}\ncolours: logarithmic beyond 1 % of a map's largest entry")
    cells = [
        (name, item.title, labels[i], labels[j], item.matrix[i, j])
        for name, maps in rows.items()
        for item in maps
        for i in range(len(labels))
        for j in range(len(labels))
    ]
    header = ("row", "moment", "client", "other_client", "entry")
    return [*_save(figure, stem), write_csv(stem.with_suffix(".csv"), header, cells)]


def _ticks(top: float) -> list[float]:
    return [-top, -top / 10, 0.0, top / 10, top]


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a CSV file; numbers get six digits.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> write_csv(path, ["x", "y"], [["a", 1 / 3]]).read_text().split()
    ['x,y', 'a,0.333333']
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([[_plain(value) for value in row] for row in rows])
    return path


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else value


def _subplots(rows: int, columns: int, *, width: float, height: float, **more: Any) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows + 0.6),
        squeeze=False,
        layout="constrained",
        **more,
    )


def _save(figure: Any, stem: Path) -> list[Path]:
    from matplotlib import pyplot

    written = []
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".pdf", ".png"):
        path = stem.with_suffix(suffix)
        # The PDF's creation date would make equal figures differ.
        extra: dict[str, Any] = {"metadata": {"CreationDate": None}} if suffix == ".pdf" else {}
        figure.savefig(path, dpi=150, **extra)
        figure.set_layout_engine("none")  # The layout is found: once is enough.
        written.append(path)
    pyplot.close(figure)
    return written
