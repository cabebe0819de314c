"""What is remembered of what clients said: the latest usable evidence of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray
from adcs._validation import brief
from adcs.reports.majority import Majority
from adcs.reports.report import (
    NUMBERS,
    ClientReport,
    Form,
    as_plain,
    check_compatible,
    plain_client,
    validate_report,
)
from adcs.reports.sketch import Sketch
from adcs.reports.table import ReportTable


class ReportStore(Mapping[ClientId, ClientReport]):
    """The latest usable evidence of each client: a mapping from clients to reports.

    The learning signals of a report (loss, norm, update or sketch) replace a client's older ones
    as a whole, because they belong to one model; its size and timings are kept until newer ones
    arrive. All updates, or sketches, in a book have one form: that of most clients' last ones.

    Examples
    --------
    >>> book = ReportStore()
    >>> refused = book.record([ClientReport("a", 0, examples=10), ClientReport("a", 0, loss=2.0)])
    >>> book["a"].examples, book["a"].loss
    (10, 2.0)
    """

    def __init__(self) -> None:
        self.version = 0
        self._entries: dict[ClientId, ClientReport] = {}
        self._table: ReportTable | None = None  # newer, and not entered yet
        self._latest = -1  # the latest round whose learning signals were remembered
        self._forms: Majority[tuple[int, ...]] = Majority()

    def __getitem__(self, client: ClientId) -> ClientReport:
        return self._entered()[client]

    def __contains__(self, client: object) -> bool:
        return client in self._entered()

    def __len__(self) -> int:
        return len(self._entered())

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._entered())

    @property
    def width(self) -> int | None:
        """The length of the updates, or sketches, in the book; None while it holds none."""
        return None if (form := self._form) is None else form.size

    @property
    def _form(self) -> Form | None:
        value = self._forms.value
        return None if value is None else Form(*value)  # type: ignore[arg-type]

    def fresh_values(
        self, name: str, server_round: int, clients: tuple[ClientId, ...]
    ) -> tuple[tuple[ClientId, ...], Float64Array]:
        """Return those of the clients that told a number in this round, and their numbers.

        The number is one of `ClientReport`'s: "loss", "length" and so on.

        >>> book = ReportStore()
        >>> refused = book.record([ClientReport(1, 5, loss=2.0), ClientReport(2, 4, loss=1.0)])
        >>> book.fresh_values("loss", 5, (1, 2))
        ((1,), array([2.]))
        """
        table = self._table
        if table is not None and table.server_round == server_round and table.clients == clients:
            column = getattr(table, name)
            if column is not None:
                return clients, column.astype(np.float64)
        pairs = [
            (client, value)
            for client in clients
            if (report := self.get(client)) is not None
            and report.server_round == server_round
            and (value := getattr(report, name)) is not None
        ]
        numbers = np.array([value for _, value in pairs], dtype=np.float64)
        return tuple(client for client, _ in pairs), numbers

    def vectors(self, clients: Sequence[ClientId]) -> FloatArray:
        """Return the updates, or sketches, of clients that have one, a row each."""
        found = [self._entered()[client].vector for client in clients]
        return np.stack([vector for vector in found if vector is not None])

    def check(
        self, reports: Iterable[ClientReport]
    ) -> tuple[Sequence[ClientReport], list[tuple[ClientId, str]]]:
        """Return the usable reports and, for each of the others, client and reason.

        Usable updates count towards the form that all updates must have.
        """
        if isinstance(reports, ReportTable) and reports.plain():
            return reports, []
        usable, refused = screen(reports)
        form = self._settle(usable)
        reasons = [check_compatible(report, form) for report in usable]
        refused += [(r.client, why) for r, why in zip(usable, reasons, strict=True) if why]
        return [r for r, why in zip(usable, reasons, strict=True) if not why], refused

    def _settle(self, reports: Sequence[ClientReport]) -> Form | None:
        """Return the form that updates have, by these reports too; forget those of another."""
        before = self._form
        said = {report.client: form for report in reports if (form := Form.of(report)) is not None}
        if said:
            self._forms.settle(said)
            if before is not None and self._form is not None and not before.agrees(self._form):
                self.forget()
        return self._form

    def forget(self) -> None:
        """Forget all learning signals; sizes and timings stay."""
        self._entries = {
            client: replace(report, loss=None, norm=None, update=None, sketch=None)
            for client, report in self._entered().items()
        }
        self.version += 1

    def record(self, reports: Iterable[ClientReport]) -> list[tuple[ClientId, str]]:
        """Remember the usable reports; return client and reason of each that was refused."""
        usable, refused = self.check(reports)
        self.remember(usable)
        return refused

    def remember(self, usable: Sequence[ClientReport], now: int | None = None) -> None:
        """Remember reports that `check` has found usable.

        Parameters
        ----------
        usable
            The reports.
        now
            The present round. Where it is given, learning signals of an older model than those
            held do not replace them: they came late. Signals held of a round yet to come do not
            count, for rounds may have begun anew.
        """
        if self._takes(usable, now):
            if self._table is not None and self._table.clients != usable.clients:
                self._entered()
            self._table = usable.copy()
            self._latest = max(self._latest, usable.server_round)
        else:
            for report in usable:
                self._remember(report, now)
        self.version += bool(usable)

    def _takes(self, reports: Sequence[ClientReport], now: int | None) -> TypeGuard[ReportTable]:
        """Return whether the reports are a table that outdates all that its clients said."""
        if not isinstance(reports, ReportTable) or not reports.complete:
            return False
        return now is None or not reports.server_round < self._latest <= now

    def _entered(self) -> dict[ClientId, ClientReport]:
        """Return the evidence of each client, that of the table among it."""
        if self._table is not None:
            self._entries.update(zip(self._table.clients, map(as_plain, self._table), strict=True))
            self._table = None
        return self._entries

    def _remember(self, report: ClientReport, now: int | None) -> None:
        if report.update is not None:
            # The array may be a buffer that its owner writes into again.
            report = replace(report, update=np.array(report.vector))
        entries = self._entered()
        old = entries.get(report.client)
        if _brings(report):
            self._latest = max(self._latest, report.server_round)
            held = old.server_round if old is not None and _brings(old) else -1
            if old is not None and now is not None and report.server_round < held <= now:
                report, old = old, report  # It came late.
        if old is not None and not _covers(report, old):
            learned = report if _brings(report) else old
            report = ClientReport(
                client=report.client,
                server_round=learned.server_round if _brings(learned) else report.server_round,
                loss=learned.loss,
                norm=learned.norm,
                update=learned.update,
                sketch=learned.sketch,
                examples=_newer(report.examples, old.examples),
                compute_seconds=_newer(report.compute_seconds, old.compute_seconds),
                communication_seconds=_newer(
                    report.communication_seconds, old.communication_seconds
                ),
            )
        entries[report.client] = report

    def state(self) -> dict[str, Any]:
        """Return everything remembered as JSON values and arrays."""
        reports = list(self._entered().values())
        vectors = [r.vector for r in reports]
        held = [v for v in vectors if v is not None]
        return {
            "version": self.version,
            "forms": self._forms.state(),
            "clients": [r.client for r in reports],
            "rounds": [int(r.server_round) for r in reports],
            "numbers": {name: [getattr(r, name) for r in reports] for name in NUMBERS},
            "sketch_norms": [None if r.sketch is None else float(r.sketch.norm) for r in reports],
            "has_vector": [v is not None for v in vectors],
            # In one array of the widest type, which rounds nothing, and the types as they were.
            "vectors": np.stack(held) if held else np.empty((0, 0)),
            "types": [v.dtype.name for v in held],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.version = int(state["version"])
        self._forms.restore(state["forms"])
        self._latest = max(state["rounds"], default=-1)
        self._entries, self._table = {}, None
        table = np.asarray(state["vectors"])
        types = state.get("types", [table.dtype.name] * len(table))
        rows = (row.astype(name) for row, name in zip(table, types, strict=True))
        numbers = state["numbers"]
        for i, client in enumerate(state["clients"]):
            row = next(rows) if state["has_vector"][i] else None
            norm = state["sketch_norms"][i]
            self._entries[client] = ClientReport(
                client=client,
                server_round=state["rounds"][i],
                update=row if norm is None else None,
                sketch=None if norm is None or row is None else Sketch(values=row, norm=norm),
                **{name: numbers[name][i] for name in numbers},
            )


def screen(
    reports: Iterable[ClientReport],
) -> tuple[list[ClientReport], list[tuple[ClientId, str]]]:
    """Return the reports that can be used, in plain types, and client and reason of the others.

    >>> screen([ClientReport(np.int64(3), 0, loss=1.0), ClientReport((4, 5), 0, loss=1.0)])[1]
    [('(4, 5)', 'client must be an int or a string, got (4, 5)')]
    """
    usable: list[ClientReport] = []
    refused: list[tuple[ClientId, str]] = []
    seen: set[ClientId] = set()
    for report in reports:
        given = getattr(report, "client", None)
        client = plain_client(given)
        if client is None or not isinstance(report, ClientReport):
            name = brief(given) if client is None else client
            what = f"not a ClientReport but {type(report).__name__}"
            if isinstance(report, ClientReport):
                what = f"client must be an int or a string, got {name}"
            refused.append((name, what))
        elif client in seen and _brings(report):
            refused.append((client, "a second report of one client in one batch"))
        elif (reason := validate_report(report)) is not None:
            refused.append((client, reason))
        else:
            if _brings(report):
                seen.add(client)
            usable.append(as_plain(report))
    return usable, refused


def _brings(report: ClientReport) -> bool:
    """Return whether a report brings any learning signal."""
    return not (
        report.loss is None
        and report.norm is None
        and report.update is None
        and report.sketch is None
    )


def _covers(new: ClientReport, old: ClientReport) -> bool:
    """Return whether nothing of the old report outlives the new one."""
    return _brings(new) and not (
        (new.examples is None and old.examples is not None)
        or (new.compute_seconds is None and old.compute_seconds is not None)
        or (new.communication_seconds is None and old.communication_seconds is not None)
    )


def _newer(new: Any, old: Any) -> Any:
    return old if new is None else new
