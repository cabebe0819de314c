"""Figures as PDF and PNG, each with a CSV of what is drawn.

Each function takes panels of statistics and writes a figure. `adcs.experiments.styles` has the
colours and markers of schedulers.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adcs._types import Float64Array
from adcs.experiments.statistics import Estimate
from adcs.experiments.styles import Style
from adcs.run_folder import write_atomically

MARKS = 7
"""Markers along a line, placed between those of the other lines, so that equal lines differ."""

SHADED = 0.5
"""The fraction of a panel that shaded bands may cover together; wider bands become bars."""

BARS = 12
"""Bars in a panel: at the last markers of each line, at least at the last one."""

CUTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25)
"""Fractions of the horizontal axis that the limits of the vertical axis may disregard."""

ENOUGH = 0.25
"""The distance of lines, as a fraction of the panel's height, at which nothing is cut."""

LEGEND_CHARACTERS = 60
"""Characters in a line of a legend's entry."""

TITLE_CHARACTERS = 9
"""Characters of a title per inch."""

LEGEND_INCHES = 0.55
"""The height of a legend of two lines, for which every figure has room."""


@dataclass(frozen=True)
class Line:
    """A curve and its band; without a band, low and high are the curve itself.

    >>> x, mean = np.array([0.0, 10.0]), np.array([0.5, 0.6])
    >>> Line(x, mean, low=mean - 0.1, high=mean + 0.1).high
    array([0.6, 0.7])
    """

    x: Float64Array
    mean: Float64Array
    low: Float64Array
    high: Float64Array


@dataclass(frozen=True)
class Panel:
    """Axes with curves: a label for each axis, and lines by name.

    >>> x, mean = np.array([0.0, 10.0]), np.array([0.5, 0.6])
    >>> list(Panel("round", "worst accuracy", {"ADCS": Line(x, mean, mean, mean)}).lines)
    ['ADCS']
    """

    x_label: str
    y_label: str
    lines: Mapping[str, Line] = field(default_factory=dict)


def line_figure(
    stem: Path, title: str, panels: Sequence[Panel], styles: Mapping[str, Style]
) -> list[Path]:
    """Draw panels side by side under one legend; return the files written.

    Parameters
    ----------
    stem
        The files' path without its suffix.
    title, panels, styles
        As in `draw_lines`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from adcs.experiments import styles_of
    >>> x, mean = np.array([0.0, 10.0]), np.array([0.5, 0.6])
    >>> panel = Panel("round", "worst accuracy", {"ADCS": Line(x, mean, mean - 0.1, mean + 0.1)})
    >>> with TemporaryDirectory() as folder:
    ...     files = line_figure(Path(folder) / "a", "Title", [panel], styles_of({"ADCS": "ADCS"}))
    >>> [file.name for file in files]
    ['a.pdf', 'a.png', 'a.csv']
    """
    figure = draw_lines(title, panels, styles)
    x = re.sub(r"\W+", "_", panels[0].x_label).strip("_")  # It says the unit.
    header = ("panel", "line", x, "mean", "low", "high")
    rows = [
        (panel.y_label.replace("\n", " "), name, *point)
        for panel in panels
        for name, line in panel.lines.items()
        for point in zip(line.x, line.mean, line.low, line.high, strict=True)
    ]
    return [*save_figure(figure, stem), write_csv(stem.with_suffix(".csv"), header, rows)]


def draw_lines(title: str, panels: Sequence[Panel], styles: Mapping[str, Style]) -> Any:
    """Return a figure with panels side by side under one legend.

    Parameters
    ----------
    title
        Above the figure.
    panels
        What to draw, all against the same x. The lines of the first panel make the legend.
    styles
        How each line looks, by name.
    """
    width = 6.6 if len(panels) == 1 else 4.6
    figure, axes = subplots(1, len(panels), width=width, height=3.6)
    for ax, panel in zip(axes[0], panels, strict=True):
        _draw_panel(ax, panel, styles)
    names = list(panels[0].lines)
    add_title(figure, title)
    columns = {1: 3, 2: 4}.get(len(panels), 7)
    add_legend(figure, _handles(names, styles), names, columns, handlelength=3.2)
    return figure


def _draw_panel(ax: Any, panel: Panel, styles: Mapping[str, Style]) -> None:
    lines = panel.lines
    bottom, top = limits(list(lines.values()))
    shaded = _shaded(lines, bottom, top)
    wide = [name for name, line in lines.items() if np.any(line.high > line.low)]
    bars = max(1, BARS // max(len(wide) - len(shaded), 1))
    every = np.concatenate([line.x for line in lines.values()])
    start, end = (every.min(), every.max()) if every.size else (0.0, 1.0)
    for position, (name, line) in enumerate(lines.items()):
        style = styles[name]
        # Solid lines lie beneath the others, and are seen through their gaps.
        ax.plot(line.x, line.mean, linewidth=1.5, zorder=2 if style.solid else 2.2, **style.line)
        if line.x.size == 0:
            continue
        shares = (np.arange(MARKS) + (position + 0.5) / len(lines)) / MARKS
        x = start + shares * (end - start)
        x = x[(x >= line.x.min()) & (x <= line.x.max())] if line.x.size > 1 else line.x
        mean, low, high = (np.interp(x, line.x, y) for y in (line.mean, line.low, line.high))
        if name in shaded:
            colour = style.colour
            ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        elif name in wide:
            reach = np.maximum([mean - low, high - mean], 0.0)[:, -bars:]
            look = {"ecolor": style.colour, "elinewidth": 1.0, "capsize": 2}
            ax.errorbar(x[-bars:], mean[-bars:], yerr=reach, fmt="none", zorder=2.5, **look)
        ax.plot(x, mean, linestyle="none", zorder=3, **style.mark)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(mathtext(panel.y_label))
    ax.grid(alpha=0.3, linewidth=0.5)
    ax.margins(x=0.01)
    # The curves set the frame; a wide band must not flatten them.
    ax.set_ylim(bottom, top)


def limits(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the ends of a panel's vertical axis: all of the lines, or where they differ.

    Lines that rise together and then stay close would be one line on an axis that shows the whole
    rise. As little of the beginning is disregarded, a quarter at most, as lets the lines be a
    quarter of the panel's height apart in the second half. From there on everything is shown.

    >>> x = np.linspace(0.0, 1.0, 101)
    >>> low, high = (np.minimum(10 * x, 0.8 + step) for step in (0.0, 0.05))
    >>> bottom, top = limits([Line(x, y, y, y) for y in (low, high)])
    >>> 0.4 < bottom < 0.8 < 0.85 < top < 0.9
    True
    """
    finite = [line for line in lines if np.isfinite(line.mean).any()]
    if not finite:
        return 0.0, 1.0
    start = min(float(line.x.min()) for line in finite)
    end = min(float(line.x.max()) for line in finite)
    late = np.linspace((start + end) / 2, end, 50)
    heights = np.array([np.interp(late, line.x, line.mean) for line in finite])
    apart = float(np.median(heights.max(axis=0) - heights.min(axis=0)))
    for cut in CUTS:
        kept = np.concatenate([line.mean[line.x >= start + cut * (end - start)] for line in finite])
        bottom, top = float(np.nanmin(kept)), float(np.nanmax(kept))
        # Where a line has gaps, or all are the same, nothing is cut.
        if not 0.0 < apart < ENOUGH * (top - bottom):
            break
    margin = 0.08 * (top - bottom) or 0.05
    return bottom - margin, top + margin


def _shaded(lines: Mapping[str, Line], bottom: float, top: float) -> set[str]:
    """Return the lines whose bands are shaded: the narrowest ones that fit."""
    covered = {
        name: float(np.nanmean(np.clip(line.high, bottom, top) - np.clip(line.low, bottom, top)))
        / (top - bottom)
        for name, line in lines.items()
        if np.any(line.high > line.low)
    }
    found, total = set(), 0.0
    for name in sorted(covered, key=lambda name: covered[name]):
        total += covered[name]
        if total > SHADED:
            break
        found.add(name)
    return found


def _handles(names: Sequence[str], styles: Mapping[str, Style], line: bool = True) -> list[Any]:
    """Return the legend's handle of each line."""
    from matplotlib.lines import Line2D

    shown = [
        {**styles[name].line, **styles[name].mark, **({} if line else {"linestyle": "none"})}
        for name in names
    ]
    return [Line2D([], [], linewidth=1.6, **settings) for settings in shown]


@dataclass(frozen=True)
class Cost:
    """Axes with a point for each scheduler: what it reached, over what it spent."""

    x_label: str
    y_label: str
    points: Mapping[str, tuple[Estimate, Estimate]]


def cost_figure(
    stem: Path, title: str, grid: Sequence[Sequence[Cost]], styles: Mapping[str, Style]
) -> list[Path]:
    """Draw a grid of panels with a point for each scheduler; return the files written.

    A point is the mean over seeds with its intervals; where there are none, small points are the
    seeds.
    """
    figure, axes = subplots(len(grid), len(grid[0]), width=4.6, height=3.2)
    names = list(grid[0][0].points)
    for line, costs in zip(axes, grid, strict=True):
        for ax, cost in zip(line, costs, strict=True):
            _draw_cost(ax, cost, styles)
    add_title(figure, title)
    columns = {1: 3, 2: 4}.get(len(grid[0]), 7)
    add_legend(figure, _handles(names, styles, line=False), names, columns)
    header = ("panel", "against", "scheduler", "spent", "reached", "low", "high")
    rows = [
        (cost.y_label, cost.x_label, name, spent.mean, reached.mean, reached.low, reached.high)
        for costs in grid
        for cost in costs
        for name, (spent, reached) in cost.points.items()
        if spent.n and reached.n
    ]
    return [*save_figure(figure, stem), write_csv(stem.with_suffix(".csv"), header, rows)]


def _draw_cost(ax: Any, cost: Cost, styles: Mapping[str, Style]) -> None:
    shown = {name: point for name, point in cost.points.items() if all(e.n for e in point)}
    costs = [spent.mean for spent, _ in shown.values()]
    if costs and min(costs) > 0.0 and max(costs) > 10 * min(costs):
        ax.set_xscale("log")
    for position, (name, (spent, reached)) in enumerate(shown.items()):
        style = styles[name]
        # A mark in the place of an earlier one is smaller, so that both are seen.
        look = {"zorder": 3 + position / len(shown)}
        size = (2.2 - 1.4 * position / len(shown)) * style.mark["markersize"]
        if spent.half is None and spent.n == reached.n > 1:
            ax.plot(spent.values, reached.values, ".", color=style.colour, markersize=4, **look)
        bars = {"ecolor": style.colour, "elinewidth": 1.2, "capsize": 2.5}
        for e, axis in ((spent, "xerr"), (reached, "yerr")):
            if e.half:
                bars[axis] = [[e.mean - e.low], [e.high - e.mean]]
        ax.errorbar([spent.mean], [reached.mean], fmt="none", **bars, **look)
        mark = {**style.mark, "markersize": size, "linestyle": "none"}
        ax.plot([spent.mean], [reached.mean], **mark, **look)
    ax.margins(0.15, 0.1)
    ax.set_xlabel(cost.x_label)
    ax.set_ylabel(mathtext(cost.y_label))
    ax.grid(alpha=0.3, linewidth=0.5)


@dataclass(frozen=True)
class Bars:
    """A row of bars with intervals, and reference marks beside them.

    >>> Bars("ADCS", [Estimate(0.1, 0.02, 5)], reference=np.array([0.12])).values[0].mean
    0.1
    """

    name: str
    values: Sequence[Estimate]
    reference: Float64Array


def bar_figure(
    stem: Path,
    title: str,
    panels: Sequence[Bars],
    names: Sequence[str],
    y_label: str,
    styles: Mapping[str, Style],
) -> list[Path]:
    """Draw measured bars and reference marks, a panel for each `Bars`; return the files.

    >>> from tempfile import TemporaryDirectory
    >>> from adcs.experiments import styles_of
    >>> bars = Bars("ADCS", [Estimate(0.1, 0.02, 5)], reference=np.array([0.12]))
    >>> styles = styles_of({"ADCS": "ADCS"})
    >>> with TemporaryDirectory() as folder:
    ...     files = bar_figure(Path(folder) / "a", "Title", [bars], ["group 1"], "ratio", styles)
    >>> [file.name for file in files]
    ['a.pdf', 'a.png', 'a.csv']
    """
    from matplotlib.patches import Patch

    figure, axes = subplots(1, len(panels), width=2.9, height=3.4, sharey=True)
    positions = np.arange(len(names))
    for ax, bars in zip(axes[0], panels, strict=True):
        means = np.array([e.mean for e in bars.values])
        reach = [[e.mean - e.low for e in bars.values], [e.high - e.mean for e in bars.values]]
        ax.bar(positions, means, yerr=reach, color=styles[bars.name].colour, alpha=0.7, capsize=2)
        marks = {"markerfacecolor": "black", "markeredgecolor": "white", "markersize": 6}
        (paper,) = ax.plot(positions, bars.reference, "D", **marks)
        ax.set_title(mathtext(bars.name), fontsize=10)
        ax.set_xticks(positions, names)
        ax.set_xlabel("group")
        ax.grid(axis="y", alpha=0.3, linewidth=0.5)
    # Once all panels are drawn: the axis is theirs together, and a limit set is a limit kept.
    axes[0][0].set_ylim(bottom=0.0)
    axes[0][0].set_ylabel(y_label)
    measured = Patch(facecolor="none", edgecolor="black")
    add_title(figure, title)
    add_legend(figure, [measured, paper], ["measured", "paper"], 2)
    rows = [
        (bars.name, name, e.mean, e.low, e.high, paper)
        for bars in panels
        for name, e, paper in zip(names, bars.values, bars.reference, strict=True)
    ]
    header = ("scheduler", "group", "measured", "low", "high", "paper")
    return [*save_figure(figure, stem), write_csv(stem.with_suffix(".csv"), header, rows)]


@dataclass(frozen=True)
class Map:
    """A matrix at some moment.

    >>> Map("round 0", np.eye(2)).matrix.shape
    (2, 2)
    """

    title: str
    matrix: Float64Array


def heat_figure(stem: Path, title: str, maps: Sequence[Map], labels: Sequence[str]) -> list[Path]:
    """Draw matrices in a row, all on one colour scale; return the files.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     maps = [Map("round 0", np.eye(2)), Map("round 20", np.ones((2, 2)))]
    ...     files = heat_figure(Path(folder) / "a", "Title", maps, ["client 1", "client 2"])
    >>> [file.name for file in files]
    ['a.pdf', 'a.png', 'a.csv']
    """
    from matplotlib.colors import SymLogNorm

    # Squares: "compressed" leaves no gaps between them.
    figure, axes = subplots(1, len(maps), width=2.6, height=3.2, layout="compressed")
    ticks = np.arange(len(labels))
    size = 7 if len(labels) <= 12 else 5
    tops = [float(np.abs(item.matrix).max()) or 1.0 for item in maps]
    # Entries span orders of magnitude: linear near zero, logarithmic beyond.
    top, near = max(tops), min(tops) / 100
    norm = SymLogNorm(linthresh=near, vmin=-top, vmax=top)
    for ax, item in zip(axes[0], maps, strict=True):
        image = ax.imshow(item.matrix, cmap="RdBu_r", norm=norm)
        ax.set_title(item.title, fontsize=9)
        ax.set_xticks(ticks, labels, rotation=90, fontsize=size)
        ax.set_yticks(ticks, labels if ax is axes[0][0] else [], fontsize=size)
    marks = _decades(near, top)
    bar = figure.colorbar(
        image, ax=list(axes[0]), shrink=0.75, ticks=marks, label=mathtext("entry of L")
    )
    bar.ax.set_yticklabels([f"{value:.3g}" for value in marks])
    bar.ax.tick_params(labelsize=7)
    bar.ax.minorticks_off()
    linear = f"{float(f'{near:.1g}'):,g}"
    add_title(figure, f"{title}\ncolours: linear up to about {linear}, logarithmic beyond")
    cells = [
        (item.title, labels[i], labels[j], item.matrix[i, j])
        for item in maps
        for i in range(len(labels))
        for j in range(len(labels))
    ]
    header = ("moment", "client", "other_client", "entry")
    return [*save_figure(figure, stem), write_csv(stem.with_suffix(".csv"), header, cells)]


def _decades(near: float, top: float) -> list[float]:
    """Return where a colour scale has ticks: at powers of ten, five at most on each side.

    >>> _decades(0.05, 30.0)
    [-10.0, -1.0, -0.1, 0.0, 0.1, 1.0, 10.0]
    """
    first, last = int(np.ceil(np.log10(near))), int(np.floor(np.log10(top)))
    powers = [float(f"1e{i}") for i in range(last, first - 1, -1 - (last - first) // 5)][::-1]
    return [*[-power for power in powers[::-1]], 0.0, *powers]


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a CSV file; numbers get six digits.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> write_csv(path, ["x", "y"], [["a", 1 / 3]]).read_text().split()
    ['x,y', 'a,0.333333']
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows([[_plain(value) for value in row] for row in rows])
    write_atomically(path, text.getvalue().encode())
    return path


def _plain(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else value


def subplots(
    rows: int,
    columns: int,
    *,
    width: float,
    height: float,
    layout: Literal["constrained", "compressed"] = "constrained",
    **more: Any,
) -> Any:
    """Return a figure with a grid of axes, of a width and a height in inches each.

    The figure is not one of pyplot's, so that a notebook's backend and open figures stay as they
    are; a notebook shows it as a PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data, format="png")
            return data.getvalue()

    figure = Shown(figsize=(width * columns, height * rows + 0.6), layout=layout)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def save_figure(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as PDF and PNG; return the files."""
    written = []
    for suffix in (".pdf", ".png"):
        written.append(write_figure(figure, stem.with_suffix(suffix)))
        figure.set_layout_engine("none")  # The layout is found: once is enough.
    return written


def write_figure(figure: Any, path: Path) -> Path:
    """Write a figure of matplotlib's to a file, of the format that its suffix names."""
    data = io.BytesIO()
    # The PDF's creation date would make equal figures differ.
    metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
    figure.savefig(data, format=path.suffix[1:] or "png", dpi=150, metadata=metadata)
    write_atomically(path, data.getvalue())
    return path


def fold(text: str, width: int) -> str:
    """Return a text in lines of at most so many characters, broken after spaces and commas.

    >>> fold("ADCS(theta=0.2,refresh_every=10)", 20)
    'ADCS(theta=0.2,\\nrefresh_every=10)'
    >>> fold("abcdef", 4)
    'abc\\ndef'
    """
    lines = [""]
    for part in re.findall(rf"[^\s,]{{1,{width - 1}}}[\s,]*|[\s,]+", text):
        if len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines if line.strip())


GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "θ": "theta", "κ": "kappa", "μ": "mu"}

_SYMBOL = re.compile(
    r"‖g_[SN](?: - g_[SN])?‖"  # Norms of gradients,
    rf"|[{''.join(GREEK)}]"  # Greek letters,
    r"|\b[A-Za-z](?= = )"  # a letter that has a value,
    r"|(?<=\s)(?![AI]\b)[A-Z](?=\s|$|,)"  # and a capital that stands alone, not at the beginning.
)


def mathtext(text: str) -> str:
    r"""Return a text with its symbols in mathtext.

    A dollar sign stays one.

    >>> mathtext("θ = 0.5"), mathtext("N = 10, varying R"), mathtext("A, $5")
    ('$\\theta$ = 0.5', '$N$ = 10, varying $R$', 'A, \\$5')
    >>> mathtext("bias ‖g_S - g_N‖")
    'bias $\\|g_S - g_N\\|$'
    """

    def symbol(found: re.Match[str]) -> str:
        name = GREEK.get(found[0])
        return "$" + (f"\\{name}" if name else found[0].replace("‖", r"\|")) + "$"

    return _SYMBOL.sub(symbol, text.replace("$", r"\$"))


def add_title(figure: Any, title: str) -> None:
    """Add a title above a figure, folded to its width."""
    lines = [
        fold(line, int(TITLE_CHARACTERS * figure.get_figwidth())) for line in title.splitlines()
    ]
    figure.suptitle(mathtext("\n".join(lines)))


def add_legend(
    figure: Any, handles: Sequence[Any], names: Sequence[str], columns: int, **more: Any
) -> None:
    """Add a legend below a figure, in at most so many columns.

    Wide entries reduce the columns, and a legend of more than two lines makes the figure higher.
    Further settings are matplotlib's.
    """
    renderer = figure.canvas.get_renderer()
    words = [mathtext(fold(name, LEGEND_CHARACTERS)) for name in names]
    settings = {"loc": "outside lower center", "frameon": False, **more}
    for count in range(max(1, min(columns, len(names))), 0, -1):
        legend = figure.legend(handles, words, ncols=count, **settings)
        box = legend.get_window_extent(renderer)
        if box.width <= figure.bbox.width or count == 1:
            break
        legend.remove()
    inches = box.height / figure.dpi
    figure.set_figheight(figure.get_figheight() + max(0.0, inches - LEGEND_INCHES))
