"""Reports of many clients as columns, for engines that have them so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, overload

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray, IndexArray
from adcs.reports.report import ABSURD, NUMBERS, ClientReport
from adcs.reports.sketch import Sketch

_COLUMNS = tuple(field.name for field in fields(ClientReport)[2:])  # all but client and round


@dataclass(frozen=True, eq=False)
class ReportTable(Sequence[ClientReport]):
    """What clients report on the model of one round, a column for each of `ClientReport`'s fields.

    It is a sequence of `ClientReport`, and they are made when somebody reads one. A table of
    numbers alone, without updates or sketches, can go without: it is checked as a whole and its
    columns are read as they are.

    Examples
    --------
    >>> table = ReportTable((3, 7), 0, loss=np.array([0.5, 1.5]))
    >>> table[1].client, table[1].loss
    (7, 1.5)
    """

    clients: tuple[ClientId, ...]
    server_round: int
    loss: FloatArray | None = None
    norm: FloatArray | None = None
    update: FloatArray | None = None
    sketch: Sequence[Sketch | None] | None = None
    examples: IndexArray | None = None
    compute_seconds: Float64Array | None = None
    communication_seconds: Float64Array | None = None

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is not None and len(column) != len(self.clients):
                raise ValueError(
                    f"{name} must hold one entry for each of {len(self.clients)} clients, "
                    f"got {len(column)}"
                )

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, index: int) -> ClientReport: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClientReport]: ...
    def __getitem__(self, index: int | slice) -> ClientReport | list[ClientReport]:
        return self._reports[index]

    def __iter__(self) -> Iterator[ClientReport]:
        return iter(self._reports)

    @property
    def update_norm(self) -> FloatArray | None:
        """The norms of the updates, as stated."""
        return self.norm

    @property
    def complete(self) -> bool:
        """Whether it is numbers alone, and nothing that a client said before outlives it."""
        facts = (self.examples, self.compute_seconds, self.communication_seconds)
        return (
            (self.loss is not None or self.norm is not None)
            and self.update is None
            and self.sketch is None
            and all(column is not None for column in facts)
        )

    def copy(self) -> ReportTable:
        """Return a table of its own columns: arrays may be buffers that are written into again."""
        columns = {name: getattr(self, name) for name in _COLUMNS if name != "sketch"}
        kept = {name: np.array(column) for name, column in columns.items() if column is not None}
        return ReportTable(self.clients, self.server_round, sketch=self.sketch, **kept)

    def plain(self) -> bool:
        """Whether it is numbers alone, all of them as they should be.

        If not, each report has to be looked at.
        """
        columns = [c for name in NUMBERS if (c := getattr(self, name)) is not None]
        if self.update is not None or self.sketch is not None or not columns or not self.clients:
            return False
        if not isinstance(self.server_round, (int, np.integer)) or self.server_round < 0:
            return False
        if not {type(client) for client in self.clients} <= {int, str}:
            return False
        if len(set(self.clients)) < len(self.clients):
            return False
        if not all(isinstance(c, np.ndarray) and c.dtype.kind in "fiu" for c in columns):
            return False
        if any(c.ndim != 1 for c in columns):
            return False
        numbers = np.concatenate(columns)
        # NaN is neither.
        return bool(numbers.min() >= 0.0 and numbers.max() <= ABSURD)

    @cached_property
    def _reports(self) -> list[ClientReport]:
        columns = [self._listed(getattr(self, name)) for name in _COLUMNS]
        rows = zip(self.clients, *columns, strict=True)
        return [ClientReport(client, self.server_round, *rest) for client, *rest in rows]

    def _listed(self, column: Any) -> list[Any]:
        if column is None:
            return [None] * len(self.clients)
        numbers = isinstance(column, np.ndarray) and column.ndim == 1
        return column.tolist() if numbers else list(column)
