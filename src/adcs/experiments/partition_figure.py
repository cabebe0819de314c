"""The figure of a partition: labels and sizes of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adcs._types import IndexArray
from adcs.experiments.figures import add_legend, add_title, write_figure
from adcs.simulation.datasets import Dataset
from adcs.simulation.partition import Partition

COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#F0E442",
    "#7A3B22",
    "#8C8C8C",
    "#2B2F8F",
    "#8FB84E",
)
"""Colours of classes, distinct for readers who see fewer colours; each also has its place."""

MOST_CLASSES = len(COLOURS)
"""Of more classes, the most frequent have colours and the others are one grey."""

NAMED_CLIENTS = 60
"""Up to this many clients have their names on the axis."""

LONG = 22
"""Characters of a client's name."""


def label_counts(dataset: Dataset, partition: Partition) -> IndexArray:
    """Return how many training examples of each class each client has: clients x classes.

    >>> from adcs.simulation import load, make_partition
    >>> data = load("synthetic:clusters=2")
    >>> label_counts(data, make_partition(data, "by-class", 2, seed=0))
    array([[200,   0],
           [  0, 200]])
    """
    if dataset.task == "regression":
        return np.array([[part.size] for part in partition.train])
    return np.array(
        [np.bincount(dataset.y_train[t], minlength=dataset.classes) for t in partition.train]
    )


def partition_figure(path: Path, title: str, dataset: Dataset, partition: Partition) -> Path:
    """Draw the labels and the sizes of clients into a file.

    Above are the shares of classes among each client's training examples (of a regression the
    spread of its labels), below the number of training examples. Up to 60 clients stand in their
    order; more are sorted by their most frequent class and then by its share, so that clients of
    a kind are seen together.

    Parameters
    ----------
    path
        The file; its suffix says the format.
    title
        Above the figure.
    dataset, partition
        What is drawn.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    clients = len(partition)
    counts = label_counts(dataset, partition)
    sizes = counts.sum(axis=1)
    few = clients <= NAMED_CLIENTS
    order = np.arange(clients) if few else _by_class(counts)
    width = float(np.clip(0.22 * clients + 2.0, 6.0, 12.0))
    names = [_short(name) for name in partition.names or map(str, range(clients))]
    turned = few and sum(map(len, names)) + clients > 11 * width
    height = 5.0 + 0.06 * max(map(len, names)) * turned
    figure, (upper, lower) = pyplot.subplots(
        2, 1, sharex=True, figsize=(width, height), layout="constrained", height_ratios=(3, 1.4)
    )
    places = np.arange(clients)
    if dataset.task == "regression":
        _draw_values(upper, dataset, partition, order)
    else:
        handles, classes = _draw_shares(upper, dataset, counts[order] / sizes[order, None])
        add_legend(figure, handles, classes, 6)
    _draw_bars(lower, sizes[order], 0.0, "#555555")
    if sizes.max() > 20 * sizes.min():
        lower.set_yscale("log")
    lower.set_ylabel("training\nexamples")
    lower.grid(axis="y", alpha=0.3, linewidth=0.5)
    lower.set_axisbelow(True)
    lower.set_xlim(-0.6, clients - 0.4)
    if few:
        lower.set_xticks(places, names, rotation=90 if turned else 0, fontsize=7 if turned else 9)
        lower.set_xlabel("client")
    else:
        regression = dataset.task == "regression"
        rule = "by size" if regression else "by their most frequent class and its share"
        lower.set_xlabel(f"{clients} clients, sorted {rule}")
        lower.set_xticks([])
    add_title(figure, title)
    written = write_figure(figure, path)
    pyplot.close(figure)
    return written


def _by_class(counts: IndexArray) -> IndexArray:
    """Return clients sorted by their most frequent class, then by its share, then by size.

    >>> _by_class(np.array([[1, 2], [2, 0], [1, 1]]))
    array([1, 2, 0])
    """
    sizes = counts.sum(axis=1)
    frequent = counts.sum(axis=0).argsort(kind="stable")[::-1].argsort()  # common classes first
    top = counts.argmax(axis=1)
    share = counts.max(axis=1) / sizes
    order: IndexArray = np.lexsort((-sizes, -share, frequent[top]))
    return order


def _draw_bars(ax: Any, heights: Any, bottom: Any, colour: str) -> None:
    """Draw a bar for each client, without gaps where there are many."""
    if len(heights) <= NAMED_CLIENTS:
        ax.bar(np.arange(len(heights)), heights, 0.85, bottom, color=colour, linewidth=0)
    else:
        edges = np.arange(len(heights) + 1) - 0.5
        ax.stairs(heights + bottom, edges, baseline=bottom, fill=True, color=colour, linewidth=0)


def _draw_shares(ax: Any, dataset: Dataset, shares: Any) -> Any:
    """Draw the shares of classes as bars on top of each other; return the legend's entries."""
    from matplotlib.patches import Patch

    total = np.bincount(dataset.y_train, minlength=dataset.classes)
    shown = list(range(dataset.classes))
    if dataset.classes > MOST_CLASSES:
        shown = total.argsort(kind="stable")[::-1][: MOST_CLASSES - 1].tolist()
    columns = [(dataset.label_names[i], shares[:, i]) for i in shown]
    if len(shown) < dataset.classes:
        rest = dataset.classes - len(shown)
        columns.append((f"{rest} others", 1.0 - sum(share for _, share in columns)))
    bottom = np.zeros(len(shares))
    handles = []
    for position, (_, share) in enumerate(columns):
        other = position == len(shown)
        colour = "#D9D9D9" if other else COLOURS[position]
        _draw_bars(ax, share, bottom, colour)
        handles.append(Patch(color=colour))
        bottom = bottom + share
    ax.set_ylim(0.0, 1.0)
    ax.set_ylabel("shares of classes")
    return handles, [name for name, _ in columns]


def _draw_values(ax: Any, dataset: Dataset, partition: Partition, order: IndexArray) -> None:
    """Draw the median of each client's labels, and the range of the middle 80 %."""
    found = [np.percentile(dataset.y_train[partition.train[i]], [10, 50, 90]) for i in order]
    low, middle, high = np.array(found).T
    places = np.arange(len(found))
    ax.vlines(places, low, high, color="#0072B2", linewidth=2 if len(found) <= 100 else 0.8)
    size = 20 if len(found) <= 100 else 3
    ax.scatter(places, middle, color="#D55E00", s=size, zorder=3)
    ax.set_ylabel("labels: median and\nmiddle 80 %")
    ax.grid(axis="y", alpha=0.3, linewidth=0.5)


def _short(name: str) -> str:
    """Return a client's name, shortened in the middle.

    >>> _short("alls_well_that_ends_well: COUNTESS")
    'alls_well_…l: COUNTESS'
    """
    if len(name) <= LONG:
        return name
    return f"{name[: LONG // 2 - 1]}…{name[-(LONG // 2) :]}"
