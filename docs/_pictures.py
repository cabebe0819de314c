"""Draws the figures of explanation/dpp_in_pictures.md: python docs/_pictures.py.

Every cohort in them is one of `adcs.select`, on clients made up for the picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from numpy.typing import NDArray

import adcs

FIGURES = Path(__file__).parent / "figures"
SIZES = (14, 7, 3)
"""The numbers of clients of three kinds: common, less common, rare."""

KINDS = ("common data", "less common", "rare")
COLOURS = ("#0072b2", "#e69f00", "#009e73")  # apart for colour-blind readers, and in grey
MARKERS = ("o", "s", "^")
M = 6


def clients() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return updates, losses, and kinds: clients of a kind have similar updates."""
    rng = np.random.default_rng(1)
    kinds = np.repeat(np.arange(3), SIZES)
    updates = 0.35 * rng.normal(size=(kinds.size, 8)) + 2 * np.eye(3, 8)[kinds]
    losses = np.array([1.5, 1.3, 1.2])[kinds] + rng.uniform(-0.2, 0.2, kinds.size)
    return updates, losses, kinds


def in_the_plane(updates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where updates lie in the plane that shows most of their directions (PCA)."""
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    left, sizes, _ = np.linalg.svd(directions - directions.mean(axis=0), full_matrices=False)
    return np.asarray(left[:, :2] * sizes[:2])


def draw_clients(ax: Any, title: str, cohort: Any) -> None:
    """Draw all clients as marks of the size of their losses, and a cohort as filled ones."""
    updates, losses, kinds = clients()
    points = in_the_plane(updates)
    chosen = np.isin(np.arange(kinds.size), cohort)
    for kind, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        for filled in (False, True):
            rows = (kinds == kind) & (chosen == filled)
            ax.scatter(
                *points[rows].T,
                s=110 * (losses[rows] - 0.6),
                marker=marker,
                facecolor=colour if filled else "none",
                edgecolor=colour,
            )
    counts = [int(np.sum(chosen & (kinds == kind))) for kind in range(3)]
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(" + ".join(map(str, counts)) + " of 14 + 7 + 3 clients", fontsize=9)
    ax.set(xticks=[], yticks=[])
    ax.margins(0.12)


def cohorts() -> Figure:
    """Draw the cohorts of three rules, for the same clients."""
    updates, losses, kinds = clients()
    rng = np.random.default_rng(2)
    figure = Figure(figsize=(9.6, 3.1), layout="constrained")
    axes = figure.subplots(1, 3)
    draw_clients(axes[0], "At random", rng.choice(kinds.size, M, replace=False))
    draw_clients(axes[1], "Largest losses", np.argsort(-losses)[:M])
    draw_clients(axes[2], "Good and different (DPP)", adcs.select(updates, M, quality=losses))
    figure.legend(*legend(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def legend() -> tuple[list[Any], list[str]]:
    """Return the handles and names of the kinds of clients."""
    from matplotlib.lines import Line2D

    pairs = zip(COLOURS, MARKERS, strict=True)
    handles = [Line2D([], [], color=c, marker=m, linestyle="none") for c, m in pairs]
    return handles, list(KINDS)


def area() -> Figure:
    """Draw the area that two updates span: small if they are similar, large if not."""
    figure = Figure(figsize=(6.6, 2.6), layout="constrained")
    for ax, (first, second), title in zip(
        figure.subplots(1, 2),
        ((0.35, 0.6), (0.35, 1.75)),
        ("Similar: a small area", "Different: a large area"),
        strict=True,
    ):
        a, b = (np.array([np.cos(t), np.sin(t)]) for t in (first, second))
        ax.add_patch(Polygon([(0, 0), a, a + b, b], color="#56b4e9", alpha=0.35))
        for vector in (a, b):
            ax.annotate("", vector, (0, 0), arrowprops={"arrowstyle": "->", "lw": 1.8})
        cosine = float(a @ b)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel(f"cosine {cosine:.2f}, determinant {1 - cosine**2:.2f}", fontsize=9)
        ax.set(xlim=(-0.5, 2.0), ylim=(-0.15, 1.5), xticks=[], yticks=[], aspect="equal")
    return figure


def theta() -> Figure:
    """Draw the cohorts of three values of theta, for the same clients."""
    updates, losses, _ = clients()
    figure = Figure(figsize=(9.6, 2.8), layout="constrained")
    for ax, value in zip(figure.subplots(1, 3), (0.0, 0.8, 1.0), strict=True):
        words = {0.0: "diversity alone", 0.8: "both", 1.0: "loss alone"}[value]
        cohort = adcs.select(updates, M, quality=losses, theta=value)
        draw_clients(ax, f"theta = {value:g}: {words}", cohort)
    return figure


if __name__ == "__main__":
    for name, figure in (("cohorts", cohorts()), ("area", area()), ("theta", theta())):
        figure.savefig(FIGURES / f"dpp-{name}.png", dpi=130, metadata={"Software": None})
