"""Speeds and availability of clients from a CSV file, in place of drawn ones."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs._validation import brief, did_you_mean, did_you_mean_path
from adcs.run_folder import fingerprint

SPEEDS = ("compute_seconds", "up_bytes_per_second", "down_bytes_per_second")
"""Columns of numbers > 0, with the names of the network's settings that they replace."""

CLIENT, ONLINE = "client", "online"
COLUMNS = (CLIENT, *SPEEDS, ONLINE)

LONGEST = 10**9
"""The largest number of rounds of a trace."""

_INTERVAL = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?", re.ASCII)

BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Trace:
    """A trace of devices, one a row. Client c has row c modulo the number of rows.

    Attributes
    ----------
    rows
        The number of rows.
    speeds
        The columns of speeds that the file has, by name.
    intervals
        Of shape (intervals, 3): row, first and last round online. None if the file does not have
        the column `online`.
    rounds
        The number of rounds of the trace; then it starts again.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "trace.csv"
    >>> _ = path.write_text("compute_seconds,online\\n0.5,0-1 3\\n2.0,\\n")
    >>> trace = read_trace(path)
    >>> trace.speed("compute_seconds", clients=3)
    array([0.5, 2. , 0.5])
    >>> [trace.online(server_round, clients=3).tolist() for server_round in (2, 4)]
    [[False, True, False], [True, True, True]]
    """

    rows: int
    speeds: dict[str, Float64Array]
    intervals: IndexArray | None = None
    rounds: int = 1

    def speed(self, name: str, clients: int) -> Float64Array | None:
        """Return a speed of each client, or None if the file does not have the column."""
        column = self.speeds.get(name)
        return None if column is None else np.resize(column, clients)

    def online(self, server_round: int, clients: int) -> BoolArray:
        """Return whether each client is online in a round."""
        online = np.ones(self.rows, dtype=bool)
        if self.intervals is not None:
            row, first, last = self.intervals.T
            now = server_round % self.rounds
            online[:] = False
            online[row[(first <= now) & (now <= last)]] = True
        return np.resize(online, clients)

    def fingerprint(self) -> str:
        """Return a SHA-256 over what the trace holds."""
        intervals = np.empty(0, dtype=np.intp) if self.intervals is None else self.intervals
        columns = [self.speeds.get(name, np.empty(0)) for name in SPEEDS]
        return fingerprint(np.array([self.rows, self.rounds]), intervals, *columns)


def read_trace(path: str | Path) -> Trace:
    """Read a trace; raise ValueError, with the line, unless it is one.

    Parameters
    ----------
    path
        A CSV file whose first line names the columns: at least one of `compute_seconds`,
        `up_bytes_per_second`, `down_bytes_per_second` (numbers > 0) and `online` (rounds such as
        "0-49 100-149", counted from 0; empty is always). With the column `client`, rows may be in
        any order; it numbers them 0, 1, 2, ....

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "trace.csv"
    ...     _ = path.write_text("client,compute_seconds\\n1,2.0\\n0,0.5\\n")
    ...     read_trace(path).speeds["compute_seconds"]
    array([0.5, 2. ])
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _parse(str(path), file)
    except UnicodeDecodeError:
        raise ValueError(f"the trace {path} is not UTF-8 text") from None
    except OSError as error:
        near = did_you_mean_path(Path(path)) if isinstance(error, FileNotFoundError) else ""
        raise ValueError(f"the trace {path} cannot be read: {error.strerror}{near}") from error


def _parse(path: str, lines: Iterator[str]) -> Trace:
    reader = csv.reader(lines)
    speeds: dict[str, list[float]] = {}
    clients: dict[int, None] = {}  # in the order of the rows
    intervals: list[tuple[int, int, int]] = []
    header: list[str] = []
    count = 0
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = _header([cell.strip() for cell in cells])
                speeds = {name: [] for name in SPEEDS if name in header}
                continue
            if len(cells) != len(header):
                raise ValueError(f"a row must have {len(header)} cells, got {len(cells)}")
            row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
            if CLIENT in row:
                clients[_client(row[CLIENT], clients)] = None
            for name, column in speeds.items():
                column.append(_speed(name, row[name]))
            if ONLINE in row:
                rounds = _rounds(row[ONLINE])
                intervals += [(count, first, last) for first, last in rounds]
            count += 1
        if not count:
            raise ValueError("a trace must have a line of column names and at least one row")
        order = _row_of_client(list(clients))
    except (ValueError, csv.Error) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise ValueError(f"the trace {path}, line {max(reader.line_num, 1)}: {error}") from None
    return _trace(order, count, speeds, intervals if ONLINE in header else None)


def _trace(
    order: IndexArray | None,
    count: int,
    speeds: dict[str, list[float]],
    intervals: list[tuple[int, int, int]] | None,
) -> Trace:
    """Return the trace with its rows in the order of clients."""
    columns = {name: np.array(column, dtype=np.float64) for name, column in speeds.items()}
    if order is not None:
        columns = {name: column[order] for name, column in columns.items()}
    if intervals is None:
        return Trace(count, columns)
    found = np.array(intervals, dtype=np.intp).reshape(-1, 3)
    named = found[:, 2] < LONGEST
    rounds = int(found[named, 2].max()) + 1 if named.any() else 1
    if order is not None:
        found[:, 0] = np.argsort(order)[found[:, 0]]
    return Trace(count, columns, found, rounds)


def _header(names: list[str]) -> list[str]:
    """Return the names of the columns, if they are those of a trace."""
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"unknown column {brief(name)}; {did_you_mean(name, COLUMNS)}")
        if names.count(name) > 1:
            raise ValueError(f"the column {name} must be there once, got it {names.count(name)}x")
    if not set(names) - {CLIENT}:
        raise ValueError(f"a trace must have a column {', '.join(SPEEDS)} or {ONLINE}")
    return names


def _speed(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a number > 0, got {brief(text)}")
    return value


def _client(text: str, seen: Container[int]) -> int:
    if not re.fullmatch(r"\d{1,10}", text, re.ASCII):
        raise ValueError(f"client must be a whole number >= 0, got {brief(text)}")
    if int(text) in seen:
        raise ValueError(f"client must number the rows 0, 1, 2, ..., got {text} twice")
    return int(text)


def _rounds(text: str) -> list[tuple[int, int]]:
    """Return first and last round of each interval; an empty text is always.

    >>> _rounds("0-49 60"), _rounds("") == [(0, LONGEST)]
    ([(0, 49), (60, 60)], True)
    """
    found = []
    for part in text.split():
        match = _INTERVAL.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else -1
        if not first <= last < LONGEST:
            raise ValueError(
                f"online must be rounds such as 0-49 100-149, below {LONGEST}, got {brief(part)}"
            )
        found.append((first, last))
    return found or [(0, LONGEST)]


def _row_of_client(clients: Sequence[int]) -> IndexArray | None:
    """Return the row of each client; None where the file does not number them."""
    if not clients:
        return None
    if max(clients) != len(clients) - 1:
        missing = min(set(range(len(clients))).difference(clients))
        raise ValueError(f"client must number the rows 0, 1, 2, ..., {missing} is missing")
    return np.argsort(np.array(clients, dtype=np.intp))
