"""Reports of many clients as columns, for engines that have them in this form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from operator import lt
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId
from adcs._validation import brief, is_int
from adcs.reports.report import MAX_VALUE, NUMBERS, SIGNALS, ClientReport, are_plain_ids
from adcs.reports.sketch import Sketch, Sketches

_NUMBERS = frozenset(NUMBERS)
_TYPES = {name: int if SIGNALS[name].kind == "count" else float for name in NUMBERS}
_MANY = 64  # from this many reports on, columns pay


class ReportTable(Sequence[ClientReport]):
    """Reports on the model of one round, one column for each signal.

    It is a sequence of `ClientReport`, and these are made when one is read. A table of numbers and
    `Sketches` can do without them: it is checked as a whole and its columns are read as they are.

    Parameters
    ----------
    clients
        The clients, in the order of the rows.
    server_round
        The round of the model.
    **columns
        Signals of `SIGNALS` by name: arrays, or sequences, of one entry for each client; sketches
        best as `Sketches`. None leaves a signal out.

    Examples
    --------
    >>> table = ReportTable((3, 7), 0, loss=np.array([0.5, 1.5]))
    >>> table[1].client, table[1].loss
    (7, 1.5)
    """

    def __init__(self, clients: tuple[ClientId, ...], server_round: int, **columns: Any) -> None:
        self.clients = clients
        self.server_round = server_round
        self._columns = {name: column for name, column in columns.items() if column is not None}
        for name, column in self._columns.items():
            if name not in SIGNALS:
                raise ValueError(
                    f"columns must be signals ({', '.join(SIGNALS)}), got {brief(name)}"
                )
            if len(column) != len(clients):
                raise ValueError(
                    f"{name} must hold one entry for each of {len(clients)} clients, "
                    f"got {len(column)}"
                )

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, index: int) -> ClientReport: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClientReport]: ...
    def __getitem__(self, index: int | slice) -> ClientReport | list[ClientReport]:
        if isinstance(index, slice) or "_reports" in vars(self):
            return self._reports[index]
        values = (_entry(self._columns.get(name), index) for name in SIGNALS)
        return ClientReport(self.clients[index], self.server_round, *values)

    def __iter__(self) -> Iterator[ClientReport]:
        return iter(self._reports)

    def of(self, client: ClientId) -> ClientReport:
        """Return the report of a client.

        >>> ReportTable((3, 7), 0, loss=np.array([0.5, 1.5])).of(7).loss
        1.5
        """
        row = bisect_left(self.clients, client) if self._is_sorted else self._rows[client]
        return self[row]

    def column(self, name: str) -> NDArray[Any] | None:
        """Return the column of a signal, or None if the table has none.

        >>> ReportTable((3, 7), 0, loss=np.array([0.5, 1.5])).column("loss")
        array([0.5, 1.5])
        """
        return self._columns.get(name)

    @property
    def signals(self) -> frozenset[str]:
        """The names of the columns."""
        return frozenset(self._columns)

    @property
    def sketches(self) -> Sketches | None:
        """The column of sketches if it is one of arrays, else None."""
        column = self._columns.get("sketch")
        return column if isinstance(column, Sketches) else None

    @property
    def is_columnar(self) -> bool:
        """Whether it has columns, and all of them are of numbers or `Sketches`."""
        others = self._columns.keys() - _NUMBERS
        return bool(self._columns) and (
            not others or (others == {"sketch"} and self.sketches is not None)
        )

    @property
    def is_valid(self) -> bool:
        """Whether it has numbers and `Sketches` only and every report is usable.

        If not, each report has to be checked.
        """
        if not self.is_columnar or not self.clients:
            return False
        if not is_int(self.server_round) or self.server_round < 0:
            return False
        if not are_plain_ids(self.clients):
            return False
        if len(set(self.clients)) < len(self.clients):
            return False
        sketches = self.sketches
        if sketches is not None and not sketches.are_usable:
            return False
        names = [name for name in self._columns if name != "sketch"]
        columns = [self._columns[name] for name in names]
        if not columns:
            return True
        if not all(isinstance(c, np.ndarray) and c.dtype.kind in "fiu" for c in columns):
            return False
        if any(c.ndim != 1 or (type(c) is not np.ndarray and np.ma.is_masked(c)) for c in columns):
            return False
        numbers = np.concatenate(columns)
        # All are false for NaN.
        bounded = [n for n in names if SIGNALS[n].maximum < MAX_VALUE]
        if not all(self._columns[name].max() <= SIGNALS[name].maximum for name in bounded):
            return False
        return bool(numbers.min() >= 0.0 and numbers.max() <= MAX_VALUE)

    def without(self, *names: str) -> ReportTable:
        """Return a table of the other columns, which are not copied.

        >>> sorted(ReportTable((3, 7), 0, loss=np.ones(2), norm=np.ones(2)).without("norm").signals)
        ['loss']
        """
        others = {name: column for name, column in self._columns.items() if name not in names}
        return ReportTable(self.clients, self.server_round, **others)

    def copy(self) -> ReportTable:
        """Return a table with copies of the arrays, which may be buffers that are reused.

        Sketches are not copied: nobody writes to them.
        """
        new = ReportTable(self.clients, self.server_round)
        new._columns = {
            name: np.array(column) if isinstance(column, np.ndarray) else column
            for name, column in self._columns.items()
        }
        return new

    @cached_property
    def _is_sorted(self) -> bool:
        """Whether the ids are of one type and in order, so that one can be found by bisection."""
        ids = self.clients
        return len(set(map(type, ids))) == 1 and all(map(lt, ids, islice(ids, 1, None)))

    @cached_property
    def _rows(self) -> dict[ClientId, int]:
        return {client: row for row, client in enumerate(self.clients)}

    @cached_property
    def _reports(self) -> list[ClientReport]:
        columns = [self._as_list(self._columns.get(name)) for name in SIGNALS]
        rows = zip(self.clients, *columns, strict=True)
        return [ClientReport(client, self.server_round, *values) for client, *values in rows]

    def _as_list(self, column: Any) -> list[Any]:
        if column is None:
            return [None] * len(self.clients)
        is_vector = isinstance(column, np.ndarray) and column.ndim == 1
        return column.tolist() if is_vector else list(column)


def tabulate(reports: object) -> ReportTable | None:
    """Return a list of many reports as a table if numbers and sketches are all that they have.

    None if there are few of them, or if they differ in round, signals, types or size of sketches.

    >>> tabulate([ClientReport(c, 0, loss=c / 2) for c in range(100)]).column("loss")[:3]
    array([0. , 0.5, 1. ])
    """
    if not isinstance(reports, (list, tuple)) or len(reports) < _MANY:
        return None
    if set(map(type, reports)) != {ClientReport}:
        return None
    rounds = [report.server_round for report in reports]
    if set(map(type, rounds)) != {int} or len(set(rounds)) > 1:
        return None
    columns: dict[str, Any] = {}
    for name in SIGNALS:
        column = [getattr(report, name) for report in reports]
        kinds = set(map(type, column))
        if kinds == {type(None)}:
            continue
        if name == "sketch" and kinds == {Sketch}:
            columns[name] = _stack(column)
        elif name in _NUMBERS and kinds == {_TYPES[name]}:
            columns[name] = np.array(column)
        if columns.get(name) is None:
            return None
    return ReportTable(tuple(report.client for report in reports), rounds[0], **columns)


def _stack(sketches: list[Sketch]) -> Sketches | None:
    """Return sketches of one size and type as arrays, None if they differ."""
    values = [sketch.values for sketch in sketches]
    if not all(type(row) is np.ndarray and row.ndim == 1 for row in values):
        return None
    sizes, norms = [s.update_size for s in sketches], [s.norm for s in sketches]
    plain = set(map(type, norms)) == {float} and set(map(type, sizes)) in ({int}, {type(None)})
    if not plain or len({(row.size, row.dtype) for row in values} | set(sizes)) > 2:
        return None
    return Sketches(np.stack(values), np.array(norms), sizes[0])


def _entry(column: Any, row: int) -> Any:
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return column[row].item()
    return None if column is None else column[row]
