"""Tables of the user's: .csv and .parquet files, and Hugging Face's `datasets`, as columns."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LABEL = "label"
"""The column that has the labels."""

SUFFIXES = (".npz", ".csv", ".parquet")

Columns = dict[str, NDArray[Any]]


def columns_of(table: Any) -> Columns | None:
    """Return the columns of a table as arrays; None for what is no table.

    A table is a mapping of columns, or an object of Hugging Face's `datasets`, whose images and
    lists of one length become arrays.

    >>> columns_of({"x": [1.0], "label": [0]})
    {'x': array([1.]), 'label': array([0])}
    >>> columns_of([1.0]) is None
    True
    """
    if isinstance(table, Mapping):
        return {str(name): np.asarray(column) for name, column in table.items()}
    if hasattr(table, "with_format") and hasattr(table, "column_names"):
        held = table.with_format("numpy")[:]
        return {name: np.asarray(held[name]) for name in table.column_names}
    return None


def read_table(path: Path, label: str = LABEL) -> Columns:
    """Return the columns of a .csv or .parquet file; the label may be text, all else is numbers.

    Raises
    ------
    ValueError
        If the file cannot be read, or holds something else.
    """
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path.name} is not a CSV file of UTF-8 text ({error})") from error
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read, {error.strerror or error}") from error
    if len(set(head)) < len(head) or not head:
        raise ValueError(f"{path.name} has no distinct names of columns in its first line")
    if label not in head:
        raise ValueError(f"{path.name} has no column {label!r}; there are {', '.join(head)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(head):
            raise ValueError(f"{path.name}, row {number} has {len(row)} cells, not {len(head)}")
    cells = zip(*rows, strict=True) if rows else [()] * len(head)
    return {
        name: _column(path, name, column, text=name == label)
        for name, column in zip(head, cells, strict=True)
    }


def _column(path: Path, name: str, cells: tuple[str, ...], *, text: bool) -> NDArray[Any]:
    """Return a column as numbers, or as text where it may be."""
    numbers = []
    for number, cell in enumerate(cells, start=2):
        try:
            numbers.append(float(cell))
        except ValueError:
            if text:
                return np.array(cells)
            held = f"holds {cell!r}" if cell.strip() else "is empty"
            raise ValueError(
                f"{path.name}: column {name!r} {held} in row {number}; features are numbers"
            ) from None
    return np.array(numbers)


def _read_parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(
            f"{path.name} needs pyarrow, which is missing; pip install 'adcs[data]' brings it"
        ) from error
    try:
        table = parquet.read_table(path)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
    except Exception as error:  # pyarrow's errors are of many kinds.
        raise ValueError(f"{path.name} cannot be read as Parquet ({error})") from error
    return {
        name: np.array(column.tolist()) if column.dtype.kind == "O" else column
        for name, column in columns.items()
    }
