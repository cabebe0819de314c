"""The theorems on a run: how its schedulers select, and the figure of bias and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adcs._types import Float64Array
from adcs.experiments.config import Experiment
from adcs.experiments.figures import add_legend, fold, mathtext, write_figure
from adcs.experiments.specs import make_scheduler
from adcs.reports.quality import rescale
from adcs.schedulers import ADCS, Determinantal, Uniform
from adcs.schedulers.base import Scheduler
from adcs.theory.report import Analysis, Policy

# Okabe and Ito's colours; line styles differ as well.
CURVES = {
    "bias": ("bias ‖g_S - g_N‖", "#000000", "-"),
    "general": ("general bound", "#D55E00", "--"),
    "centred": ("general bound, centred", "#E69F00", "-."),
    "theorem1": ("Theorem 1, right-hand side", "#0072B2", ":"),
    "masses": ("cluster bound by masses", "#009E73", (0, (5, 1, 1, 1, 1, 1))),
    "gradient_norm": ("gradient norm ‖g_N‖", "#999999", (0, (1, 1))),
}

CLUSTERED = ("theorem1", "masses")
"""The curves that there are for clusters only."""

TITLE = 32
"""Characters in a line of a panel's title."""


def policies(experiment: Experiment) -> dict[str, Policy]:
    """Return how each scheduler of an experiment chooses, by label.

    >>> found = policies(Experiment())
    >>> found["Uniform"].unbiased, found["ADCS"].theta, found["ADCS"].unbiased
    (True, 0.8, False)
    """
    settings = experiment.network
    everyone = experiment.round is None and (
        settings is None
        or (settings.availability == 1.0 and settings.dropout == 0.0 and settings.deadline is None)
    )
    return {
        label: policy(make_scheduler(spec, seed=0), everyone)
        for label, spec in experiment.schedulers.items()
    }


def policy(scheduler: Scheduler, everyone: bool) -> Policy:
    """Return how one scheduler chooses, where everyone is always there or not."""
    if type(scheduler) is Uniform:
        plain = not (scheduler.by_size or scheduler.independent or scheduler.constraints)
        return Policy(unbiased=plain and everyone)
    if not isinstance(scheduler, Determinantal) or scheduler.theta == 0.0:
        return Policy()
    # The quality of StaticDPP is old, that of LiveADCS an estimate.
    if not isinstance(scheduler, ADCS) or type(scheduler) is not ADCS:
        return Policy(theta=None)
    if scheduler.quality not in ("loss", "norm") or scheduler.gamma > 0.0:
        return Policy(theta=None)

    def quality(losses: Float64Array, norms: Float64Array) -> Float64Array:
        return rescale(losses if scheduler.quality == "loss" else norms, scheduler.scale)

    return Policy(theta=scheduler.theta, quality=quality)


def draw(analysis: Analysis, path: str | Path) -> Path:
    """Draw the mean over seeds of each curve and write it to a file; return its path.

    Needs matplotlib. The vertical axis is logarithmic and shared: its unit is that of a gradient,
    loss per unit of parameter. The suffix of the path decides the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [row["scheduler"] for row in analysis.schedulers]
    # Clusters in a few rounds are no curve.
    unclustered = {
        row["scheduler"]
        for row in analysis.schedulers
        if row.get("structured") is not None and row["theorem1"] is None
    }
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    titles = [mathtext(fold(name, TITLE)) for name in names]
    figure = Figure(figsize=(max(4.2 * columns, 6.6), 3.0 * lines + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for position, axes in enumerate(grid.flat):
        if position >= len(names):
            axes.set_visible(False)
            continue
        rows = [row for row in analysis.rounds if row["scheduler"] == names[position]]
        ticks = sorted({row["server_round"] for row in rows})
        for key, (label, colour, style) in CURVES.items():
            if key in CLUSTERED and names[position] in unclustered:
                continue
            means = []
            for tick in ticks:
                values = [r[key] for r in rows if r["server_round"] == tick and r[key] is not None]
                means.append(float(np.mean(values)) if values else np.nan)
            # A bias of zero has no logarithm.
            means = [value if value > 0.0 else np.nan for value in means]
            marker = "o" if len(ticks) == 1 else None
            axes.plot(
                ticks,
                means,
                label=label,
                color=colour,
                linestyle=style,
                linewidth=1.4,
                marker=marker,
            )
        axes.set_yscale("log")
        axes.set_title(titles[position])
        axes.grid(alpha=0.3)
        if position >= len(names) - columns:
            axes.set_xlabel("round")
            axes.tick_params(labelbottom=True)
        if position % columns == 0:
            axes.set_ylabel("norm (loss per unit of parameter)")
    shown: dict[str, Any] = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    texts = [label for label, *_ in CURVES.values() if label in shown]
    add_legend(figure, [shown[text] for text in texts], texts, 3)
    return write_figure(figure, Path(path))
