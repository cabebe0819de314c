"""The figure of a sweep: a line for one axis, heat maps for two and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from adcs.experiments.figures import add_title, mathtext, save_figure, subplots, write_csv
from adcs.experiments.statistics import Estimate
from adcs.experiments.tables import format_estimate

LARGEST = 9
"""The largest number of heat maps in a figure."""

Values = Mapping[tuple[Any, ...], Estimate]
"""Estimates by the settings of a point."""


def sweep_figure(
    stem: Path,
    title: str,
    metric: str,
    axes: Mapping[str, Sequence[Any]],
    values: Values,
    best: tuple[Any, ...],
) -> list[Path]:
    """Draw a metric over the grid of a sweep; return the files written.

    One axis is a line with intervals. Two axes are a heat map, and further axes a heat map for each
    of their combinations; more than nine are not drawn.

    Parameters
    ----------
    stem
        The files' path without its suffix.
    title, metric
        Above the figure, and the label of the metric.
    axes
        The values of each axis by name.
    values
        The metric at each point.
    best
        The point that is marked.
    """
    # An axis of one value says nothing; the others keep their order.
    wide = [i for i, each in enumerate(axes.values()) if len(each) > 1] or [0]
    names = list(axes)
    if len(wide) == 1:
        figure = _line(title, metric, names[wide[0]], wide[0], axes, values, best)
    else:
        figure = _maps(title, metric, wide, axes, values, best)
    if figure is None:
        return []
    rows = [(*point, found.mean, found.low, found.high, found.n) for point, found in values.items()]
    header = [*names, "mean", "low", "high", "seeds"]
    return [*save_figure(figure, stem), write_csv(stem.with_suffix(".csv"), header, rows)]


def _line(
    title: str,
    metric: str,
    name: str,
    axis: int,
    axes: Mapping[str, Sequence[Any]],
    values: Values,
    best: tuple[Any, ...],
) -> Any:
    figure, grid = subplots(1, 1, width=6.0, height=3.6)
    ax = grid[0][0]
    settings = list(axes[name])
    numeric = all(
        isinstance(each, (int, float)) and not isinstance(each, bool) for each in settings
    )
    positions = [float(each) for each in settings] if numeric else list(range(len(settings)))
    order = np.argsort(positions)
    found = {point[axis]: e for point, e in values.items()}
    x = np.array(positions)[order]
    estimates = [found[settings[i]] for i in order]
    mean = np.array([e.mean for e in estimates])
    reach = np.array([[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]])
    look = {"marker": "o", "capsize": 3, "color": "C0", "linewidth": 1.5}
    ax.errorbar(x, mean, yerr=reach, linestyle="-" if numeric else "none", **look)
    top = settings.index(best[axis])
    mark = {"marker": "o", "markersize": 13, "markerfacecolor": "none", "color": "black"}
    ax.plot([positions[top]], [found[best[axis]].mean], linestyle="none", **mark)
    if numeric and min(positions) > 0 and max(positions) > 20 * min(positions):
        ax.set_xscale("log")
    ax.set_xticks(x, [str(settings[i]) for i in order])
    ax.minorticks_off()
    ax.set_xlabel(name)
    ax.set_ylabel(mathtext(metric))
    ax.grid(alpha=0.3, linewidth=0.5)
    note = "bars: 95 % interval, " if any(e.half for e in estimates) else ""
    add_title(figure, f"{title}\n{note}circle: the best mean")
    return figure


def _maps(
    title: str,
    metric: str,
    wide: Sequence[int],
    axes: Mapping[str, Sequence[Any]],
    values: Values,
    best: tuple[Any, ...],
) -> Any:
    names = list(axes)
    down, across, *others = wide
    combinations = list(product(*(axes[names[i]] for i in others)))
    if len(combinations) > LARGEST:
        return None
    rows, columns = list(axes[names[down]]), list(axes[names[across]])
    lines = -(-len(combinations) // 3)
    width = max(3.0, 1.15 * len(columns) + 1.2)
    figure, grid = subplots(
        lines, min(3, len(combinations)), width=width, height=max(2.0, 0.55 * len(rows) + 1.0)
    )
    flat = [ax for line in grid for ax in line]
    means = [e.mean for e in values.values() if np.isfinite(e.mean)] or [0.0]
    low, high = min(means), max(means)
    for ax, fixed in zip(flat, combinations, strict=False):
        matrix = np.full((len(rows), len(columns)), np.nan)
        for point, e in values.items():
            if tuple(point[i] for i in others) != fixed:
                continue
            i, j = rows.index(point[down]), columns.index(point[across])
            matrix[i, j] = e.mean
            share = (e.mean - low) / ((high - low) or 1.0)
            text = format_estimate(e, "share").replace(" ", "\n", 1) if e.half else f"{e.mean:.3f}"
            ax.text(
                j, i, text, ha="center", va="center", fontsize=8,
                color="black" if share > 0.6 else "white",
            )  # fmt: skip
            if point == best:
                box = {"fill": False, "edgecolor": "red", "linewidth": 2.5}
                ax.add_patch(_rectangle((j - 0.48, i - 0.48), 0.96, 0.96, **box))
        image = ax.imshow(matrix, cmap="viridis", vmin=low, vmax=high, aspect="auto")
        ax.set_xticks(range(len(columns)), [str(each) for each in columns])
        ax.set_yticks(range(len(rows)), [str(each) for each in rows])
        ax.set_xlabel(names[across])
        ax.set_ylabel(names[down])
        words = [f"{names[i]} = {value}" for i, value in zip(others, fixed, strict=True)]
        ax.set_title(mathtext(", ".join(words)), fontsize=9)
    for ax in flat[len(combinations) :]:
        ax.set_visible(False)
    figure.colorbar(image, ax=flat[: len(combinations)], label=mathtext(metric))
    note = "with 95 % intervals, " if any(e.half for e in values.values()) else ""
    add_title(figure, f"{title}\n{note}red: the best mean")
    return figure


def _rectangle(corner: tuple[float, float], width: float, height: float, **look: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, width, height, **look)
