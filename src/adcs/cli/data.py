"""adcs data: list, fetch and show data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from adcs.cli.console import show_status, show_table
from adcs.cli.errors import guarded
from adcs.cli.options import absolute, check_folder, pairs
from adcs.experiments.config import Experiment
from adcs.experiments.partition_figure import label_counts, partition_figure
from adcs.experiments.report import data_name
from adcs.simulation.datasets import Dataset, available, fetch
from adcs.simulation.partition import Partition

LINES = 40
"""Clients in the table; of more, the largest and the smallest are shown."""

SHARES = 3
"""Classes of a client that the table names."""


@guarded
def list_data(
    folder: Annotated[Path | None, typer.Option(help="Folder to look in first.")] = None,
) -> None:
    """List the data sets that are known by name: contents, clients, terms, how they are got."""
    found = available(folder)
    rows = [[e.name, "yes" if e.here else "no", e.clients, e.size, e.what] for e in found]
    heads = ["name", "here", "own clients", "size", "contents"]
    show_table("Data sets", heads, rows, text=True)
    rows = [[e.name, e.source, e.terms, e.where] for e in found]
    show_table("Sources", ["name", "got from", "terms of use", "where it is"], rows, text=True)
    typer.echo(
        "Your own: --data FILE.npz with x_train, y_train, x_test and y_test, and with\n"
        "client_train and client_test if the data has clients of its own; or --data\n"
        "FOLDER with a file for each client (.npz, .csv, .parquet) or LEAF's JSON."
    )


@guarded
def fetch_data(
    name: Annotated[str, typer.Argument(help="Name of the data set: see adcs data list.")],
    folder: Annotated[Path | None, typer.Option(help="Folder with its files.")] = None,
) -> None:
    """Fetch a data set and verify it."""
    if name in [entry.name for entry in available()]:  # fetch refuses other names.
        check_folder(name, folder, "--folder")
    found = fetch(name, folder)
    typer.echo(f"{described(found)}; from {found.source}")


def described(found: Dataset) -> str:
    """Return the size of a data set in words.

    >>> from adcs.simulation import load
    >>> described(load("synthetic:clusters=2"))
    'synthetic:clusters=2: 400 training and 100 test examples, 32 features, 2 classes'
    """
    classes = "one value" if found.task == "regression" else f"{found.classes} classes"
    own = f", {len(found.client_names)} clients of its own" if found.clients else ""
    return (
        f"{found.name}: {len(found.x_train):,} training and {len(found.x_test):,} test examples, "
        f"{found.x_train.shape[1]} features, {classes}{own}"
    )


@guarded
def show_data(
    name: Annotated[str, typer.Argument(help="Data set, file or folder, as of adcs compare.")] = (
        "fashion-mnist"
    ),
    partition: Annotated[str | None, typer.Option(help="Kind of partition.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients.")] = None,
    partition_settings: Annotated[
        str | None,
        typer.Option(metavar="NAME=VALUE,..", help="Its settings, such as alpha=0.1."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the partition.")] = 0,
    task: Annotated[str | None, typer.Option(help="Task of one's own data.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the labels in files.")] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Part for testing, where files do not say.")
    ] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder with its files.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the partition into this file.")
    ] = None,
) -> None:
    """Show how a data set is divided among clients: labels and sizes, as a table and a figure."""
    given: dict[str, Any] = {
        "data": absolute(name),
        "partition": partition,
        "clients": clients,
        "task": task,
        "label": label,
        "test_fraction": test_fraction,
        "data_folder": None if data_folder is None else str(data_folder),
    }
    options = {key: value for key, value in given.items() if value is not None}
    if partition_settings is not None:
        options["partition_settings"] = pairs(partition_settings, "--partition-settings")
    check_folder(name, data_folder)
    if out is not None and out.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--out must end in .png, .pdf or .svg, got {str(out)!r}")
    experiment = Experiment.of(m=1, **options)
    dataset = experiment.dataset()
    made = experiment.divide(dataset, seed)
    typer.echo(described(dataset))
    _show_partition(dataset, made, experiment)
    if out is not None:
        kind = experiment.partition.kind
        title = f"{data_name(experiment)}: {kind} partition among {len(made)} clients"
        partition_figure(out, title, dataset, made)
        show_status(f"drawn into {out}")


def _show_partition(dataset: Dataset, partition: Partition, experiment: Experiment) -> None:
    """Print a table with a line for each client, or for some of many."""
    sizes = np.array([part.size for part in partition.train])
    names = partition.names or [str(i) for i in range(len(partition))]
    counts = label_counts(dataset, partition)
    shown = np.arange(sizes.size)
    title = f"Partition {experiment.partition.kind}: {sizes.size} clients"
    if sizes.size > LINES:
        order = np.argsort(-sizes, kind="stable")
        shown = np.concatenate([order[: LINES // 2], order[-LINES // 2 :]])
        title += f"; the {LINES // 2} largest and the {LINES // 2} smallest"
    rows = []
    for i in shown:
        test = partition.test[i].size
        line = [str(names[i]), f"{sizes[i]:,}", f"{test:,}"]
        if dataset.task == "regression":
            y = dataset.y_train[partition.train[i]]
            line += [f"{y.mean():.4g}", f"{y.std():.4g}"]
        else:
            line.append(_largest_shares(counts[i], dataset.label_names))
        rows.append(line)
    regression = dataset.task == "regression"
    labels = ["mean of labels", "std of labels"] if regression else ["labels"]
    show_table(title, ["client", "training", "test", *labels], rows, text=True)
    low, middle, high = np.percentile(sizes, [0, 50, 100]).astype(int)
    typer.echo(
        f"Training examples of a client: {low:,} at least, {middle:,} in the middle, {high:,} at "
        f"most; {sizes.sum():,} in all"
    )


def _largest_shares(counts: Any, names: Sequence[str]) -> str:
    """Return the most frequent classes of a client with their shares.

    >>> _largest_shares(np.array([1, 3]), ["cat", "dog"])
    'dog 75 %, cat 25 %'
    """
    order = np.argsort(-counts, kind="stable")[:SHARES]
    kept = [i for i in order if counts[i]]
    text = ", ".join(f"{names[i]} {100 * counts[i] / counts.sum():.0f} %" for i in kept)
    more = int((counts > 0).sum()) - len(kept)
    return f"{text}, and {more} more" if more else text
