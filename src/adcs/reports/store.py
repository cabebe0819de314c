"""The latest usable report of each client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray
from adcs._validation import brief, iterate
from adcs.reports.form import Form, FormVote, check_compatible
from adcs.reports.report import (
    FACTS,
    LEARNING_SIGNALS,
    NUMBERS,
    PER_CLASS,
    ClientReport,
    as_client_id,
    flatten,
    has_learning_signal,
    validate_report,
    with_plain_types,
)
from adcs.reports.sketch import Sketch, Sketcher
from adcs.reports.table import ReportTable, tabulate

RefusedReport = tuple[ClientId, str]
"""A client whose report was refused, and the reason."""


class ReportStore(Mapping[ClientId, ClientReport]):
    """The latest usable report of each client: a mapping from clients to reports.

    A client's learning signals are replaced as a whole by newer ones, because they belong to one
    model; each fact about it is kept until a newer one arrives. All updates, or sketches, have one
    form: that of most clients' last ones.

    Parameters
    ----------
    sketcher
        If given, whole updates are replaced by their sketches when they arrive.

    Attributes
    ----------
    version
        Counts changes: equal versions, equal contents.
    generation
        Counts how often all learning signals were dropped because the form of most updates
        changed.

    Examples
    --------
    >>> store = ReportStore()
    >>> refused = store.record([ClientReport("a", 0, examples=10), ClientReport("a", 0, loss=2.0)])
    >>> store["a"].examples, store["a"].loss
    (10, 2.0)
    """

    def __init__(self, sketcher: Sketcher | None = None) -> None:
        self.version = 0
        self.generation = 0
        self._sketcher = sketcher
        # In place of a report, the table that has it: it is made when it is read.
        self._reports: dict[ClientId, ClientReport | ReportTable] = {}
        self._table: ReportTable | None = None
        self._is_current = False  # whether the table has the last reports of its clients
        self._latest = -1  # the latest round of learning signals
        self._facts: set[str] = set()  # names of the facts that any client has reported
        self._vote = FormVote()

    def __getitem__(self, client: ClientId) -> ClientReport:
        entry = self._reports[client]
        if isinstance(entry, ReportTable):
            entry = self._reports[client] = with_plain_types(entry.of(client))
        return entry

    def __contains__(self, client: object) -> bool:
        return client in self._reports

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._reports)

    @property
    def width(self) -> int | None:
        """How many numbers updates, or sketches, have; None before the first one."""
        return None if self._vote.form is None else self._vote.form.size

    def fresh_values(
        self, name: str, server_round: int, clients: tuple[ClientId, ...]
    ) -> tuple[tuple[ClientId, ...], Float64Array]:
        """Return those of the clients that reported a number in this round, and the numbers.

        The name is that of a number of `ClientReport`: "loss", "update_norm" and so on.

        >>> store = ReportStore()
        >>> refused = store.record([ClientReport(1, 5, loss=2.0), ClientReport(2, 4, loss=1.0)])
        >>> store.fresh_values("loss", 5, (1, 2))
        ((1,), array([2.]))
        """
        table = self.current_table(clients)
        if table is not None and table.server_round == server_round:
            column = table.column("norm" if name == "update_norm" else name)
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

    def last_values(self, name: str, clients: Sequence[ClientId]) -> Float64Array:
        """Return the last reported number of each client, of whatever round; NaN for none.

        >>> store = ReportStore()
        >>> refused = store.record([ClientReport(1, 5, loss=2.0)])
        >>> store.last_values("loss", (1, 2))
        array([ 2., nan])
        """
        found = (getattr(self.get(client), name, None) for client in clients)
        return np.array([np.nan if value is None else value for value in found], dtype=np.float64)

    def current_table(self, clients: Sequence[ClientId]) -> ReportTable | None:
        """Return the newest table if it has the last reports of exactly these clients, else None.

        >>> store = ReportStore()
        >>> refused = store.record(ReportTable((1, 2), 0, loss=np.array([0.5, 1.5])))
        >>> store.current_table((1, 2)).column("loss"), store.current_table((1,))
        (array([0.5, 1.5]), None)
        """
        table = self._table
        if table is None or not self._is_current or len(clients) != len(table):
            return None
        same = clients is table.clients or tuple(clients) == table.clients
        return table if same else None

    def oldest_round(self, clients: Sequence[ClientId]) -> int:
        """Return the earliest round of the clients' last reports.

        >>> store = ReportStore()
        >>> refused = store.record([ClientReport(1, 5, loss=2.0), ClientReport(2, 4, loss=1.0)])
        >>> store.oldest_round((1, 2))
        4
        """
        table = self.current_table(clients)
        if table is not None:
            return int(table.server_round)
        return min(int(self[client].server_round) for client in clients)

    def has(self, name: str) -> bool:
        """Return whether any client's report has this signal.

        >>> store = ReportStore()
        >>> refused = store.record([ClientReport(1, 5, loss=2.0)])
        >>> store.has("loss"), store.has("norm")
        (True, False)
        """
        return any(
            (entry.column(name) if isinstance(entry, ReportTable) else getattr(entry, name))
            is not None
            for entry in self._reports.values()
        )

    def vectors(self, clients: Sequence[ClientId]) -> FloatArray:
        """Return the updates, or sketches, of clients that have one, a row each.

        >>> store = ReportStore()
        >>> refused = store.record([ClientReport(c, 0, update=[c, 1.0]) for c in (1, 2)])
        >>> store.vectors([2, 1])
        array([[2., 1.],
               [1., 1.]])
        """
        table = self.current_table(clients)
        if table is not None and table.sketches is not None:
            return table.sketches.values
        found = [self[client].vector for client in clients]
        return np.stack([vector for vector in found if vector is not None])

    def record(self, reports: Iterable[ClientReport]) -> list[RefusedReport]:
        """Keep the usable reports; return client and reason of each that was refused."""
        usable, refused = self.check(reports)
        self.add(usable)
        return refused

    def check(
        self, reports: Iterable[ClientReport]
    ) -> tuple[Sequence[ClientReport], list[RefusedReport]]:
        """Return the usable reports and, for each of the others, client and reason.

        Usable updates count towards the form that all updates must have.

        >>> ReportStore().check([ClientReport(1, 0, loss=float("nan"))])
        ([], [(1, 'loss must be finite, got nan')])
        """
        table = reports if isinstance(reports, ReportTable) else tabulate(reports)
        if table is not None and table.is_valid and self._fits(table):
            return table, []
        valid, refused = screen(reports)
        forms = {
            report.client: form
            for report in valid
            if (form := Form.of(report, self._sketcher)) is not None
        }
        form = self._update_form(forms)
        usable: list[ClientReport] = []
        for report in valid:
            reason = check_compatible(report, form, self._sketcher)
            if reason is None:
                try:
                    usable.append(self._sketched(report))
                except ValueError as error:
                    reason = str(error)
            if reason is not None:
                refused.append((report.client, reason))
        return usable, refused

    def _fits(self, table: ReportTable) -> bool:
        """Let a table's sketches vote on the form of updates; return whether it is theirs."""
        sketches = table.sketches
        if sketches is None:
            return True
        own = Form(True, sketches.values.shape[1], sketches.update_size or 0)
        form = self._update_form(table.clients, own)
        return form is None or own.agrees(form)

    def _update_form(
        self, voters: Mapping[ClientId, Form] | tuple[ClientId, ...], same: Form | None = None
    ) -> Form | None:
        """Let clients vote on the form of updates, each or all alike; drop signals of another."""
        before = form = self._vote.form
        if isinstance(voters, tuple):
            assert same is not None
            form = self._vote.update_all(voters, same)
        elif voters:
            form = self._vote.update(voters)
        if before is not None and form is not None and not before.agrees(form):
            self._drop_learning_signals()
        return form

    def _sketched(self, report: ClientReport) -> ClientReport:
        if self._sketcher is None or report.update is None:
            return report
        sketch = self._sketcher.sketch(flatten(report.update))
        size = sketch.update_size
        return replace(report, update=None, sketch=Sketch(sketch.values, sketch.norm, size))

    def _drop_learning_signals(self) -> None:
        self.expire(tuple(self))
        self.generation += 1

    def expire(self, clients: Iterable[ClientId]) -> None:
        """Drop the learning signals of clients; facts about them are kept.

        >>> store = ReportStore()
        >>> refused = store.record([ClientReport(1, 0, loss=2.0, examples=10)])
        >>> store.expire([1])
        >>> store[1].loss, store[1].examples
        (None, 10)
        """
        nothing = dict.fromkeys(LEARNING_SIGNALS)
        for client in clients:
            if client in self:
                self._reports[client] = replace(self[client], **nothing)  # type: ignore[arg-type]
                self._is_current = False
        self.version += 1

    def add(self, usable: Sequence[ClientReport], server_round: int | None = None) -> None:
        """Keep reports that `check` has found usable.

        Parameters
        ----------
        usable
            The reports.
        server_round
            The present round. Where it is given, learning signals of an older model than those
            kept do not replace them: they came late. Signals of a round yet to come do not count
            as newer, for rounds may have begun anew.
        """
        if self._replaces_all(usable, server_round):
            self._table, self._is_current = usable.copy(), True
            self._reports.update(dict.fromkeys(usable.clients, self._table))
            self._latest = max(self._latest, usable.server_round)
            self._facts |= usable.signals.intersection(FACTS)
        else:
            in_table = isinstance(usable, ReportTable)
            for report in usable:
                self._add(with_plain_types(report) if in_table else report, server_round)
        self.version += bool(usable)

    def _replaces_all(
        self, reports: Sequence[ClientReport], server_round: int | None
    ) -> TypeGuard[ReportTable]:
        """Return whether the reports are a table that replaces all that its clients reported."""
        if not isinstance(reports, ReportTable) or not reports.is_columnar:
            return False
        if reports.signals.isdisjoint(LEARNING_SIGNALS) or not self._facts <= reports.signals:
            return False
        return server_round is None or not reports.server_round < self._latest <= server_round

    def _add(self, report: ClientReport, server_round: int | None) -> None:
        if report.update is not None and not _is_constant(report.update):
            # The array may be a buffer that its owner reuses.
            report = replace(report, update=np.array(report.vector))
        for name in FACTS:
            if getattr(report, name) is not None:
                self._facts.add(name)
        self._is_current = False
        old = self.get(report.client)
        if has_learning_signal(report):
            self._latest = max(self._latest, report.server_round)
            if old is not None and _is_late(report, old, server_round):
                report, old = old, report
        if old is not None and not _replaces(report, old):
            newest = report if has_learning_signal(report) else old
            facts = {
                name: getattr(old, name)
                for name in FACTS
                if getattr(report, name) is None and getattr(old, name) is not None
            }
            report = replace(
                report,
                server_round=(newest if has_learning_signal(newest) else report).server_round,
                **{name: getattr(newest, name) for name in LEARNING_SIGNALS},
                **facts,
            )
        self._reports[report.client] = report

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values and arrays."""
        reports = [
            with_plain_types(entry.of(client)) if isinstance(entry, ReportTable) else entry
            for client, entry in self._reports.items()
        ]
        vectors = [r.vector for r in reports]
        held = [v for v in vectors if v is not None]
        return {
            "version": self.version,
            "generation": self.generation,
            "form_vote": self._vote.state(),
            "clients": [r.client for r in reports],
            "server_rounds": [int(r.server_round) for r in reports],
            "numbers": {name: [getattr(r, name) for r in reports] for name in NUMBERS},
            "per_class": {
                name: [_as_list(getattr(r, name)) for r in reports] for name in PER_CLASS
            },
            "sketch_norms": [None if r.sketch is None else float(r.sketch.norm) for r in reports],
            "has_vector": [v is not None for v in vectors],
            # In one array of the widest type, which rounds nothing, and the types as they were.
            "vectors": np.stack(held) if held else np.empty((0, 0)),
            "dtypes": [v.dtype.name for v in held],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.version, self.generation = int(state["version"]), int(state["generation"])
        self._vote.restore(state["form_vote"])
        self._latest = max(state["server_rounds"], default=-1)
        self._reports, self._table, self._is_current, self._facts = {}, None, False, set()
        table, dtypes = np.asarray(state["vectors"]), state["dtypes"]
        rows = (row.astype(dtype) for row, dtype in zip(table, dtypes, strict=True))
        # States of earlier versions lack the signals that came later.
        rows_of = state.get("per_class", {})
        columns = {
            **state["numbers"],
            **{
                name: [None if row is None else tuple(row) for row in rows_of[name]]
                for name in rows_of
            },
        }
        for name in FACTS:
            if any(value is not None for value in columns.get(name, ())):
                self._facts.add(name)
        for i, client in enumerate(state["clients"]):
            row = next(rows) if state["has_vector"][i] else None
            norm = state["sketch_norms"][i]
            self._reports[client] = ClientReport(
                client=client,
                server_round=state["server_rounds"][i],
                update=row if norm is None else None,
                sketch=None if norm is None or row is None else Sketch(values=row, norm=norm),
                **{name: column[i] for name, column in columns.items()},
            )


def _is_constant(update: Any) -> bool:
    """Return whether an update is one vector that nobody can change: it need not be copied."""
    return (
        type(update) is np.ndarray
        and update.ndim == 1
        and update.base is None
        and not update.flags.writeable
        and update.dtype in (np.float32, np.float64)
    )


def screen(reports: Iterable[ClientReport]) -> tuple[list[ClientReport], list[RefusedReport]]:
    """Return the valid reports, in plain types, and client and reason of the others.

    >>> screen([ClientReport(np.int64(3), 0, loss=1.0), ClientReport((4, 5), 0, loss=1.0)])[1]
    [('(4, 5)', 'client must be an int or a string, got (4, 5)')]
    """
    valid: list[ClientReport] = []
    refused: list[RefusedReport] = []
    seen: set[ClientId] = set()
    for report in iterate(reports, "reports", "ClientReport"):
        given = getattr(report, "client", None)
        client = as_client_id(given)
        if client is None or not isinstance(report, ClientReport):
            name = brief(given) if client is None else client
            if isinstance(report, ClientReport):
                refused.append((name, f"client must be an int or a string, got {name}"))
            else:
                refused.append((name, f"not a ClientReport but {type(report).__name__}"))
        elif client in seen and has_learning_signal(report):
            refused.append((client, "a second report of one client in one batch"))
        elif (reason := validate_report(report)) is not None:
            refused.append((client, reason))
        else:
            if has_learning_signal(report):
                seen.add(client)
            valid.append(with_plain_types(report))
    return valid, refused


def _as_list(row: Sequence[float] | None) -> list[float] | None:
    return None if row is None else list(row)


def _is_late(new: ClientReport, old: ClientReport, server_round: int | None) -> bool:
    """Return whether a report is on an older model than the one kept."""
    if server_round is None or not has_learning_signal(old):
        return False
    return new.server_round < old.server_round <= server_round


def _replaces(new: ClientReport, old: ClientReport) -> bool:
    """Return whether nothing of the old report is kept beside the new one."""
    if not has_learning_signal(new):
        return False
    for name in FACTS:
        if getattr(new, name) is None and getattr(old, name) is not None:
            return False
    return True
