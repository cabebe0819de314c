"""Base class of schedulers that choose from a snapshot of all clients' updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from adcs._types import ClientId
from adcs._validation import brief, check_int
from adcs.dpp.constraints import Constraints
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketcher
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.schedulers.unknown_clients import select_with_unknown


class SnapshotScheduler(Scheduler):
    """Base class of schedulers that probe all clients every R rounds and choose from the answers.

    Parameters
    ----------
    refresh_every
        R: all clients are probed in the rounds that are multiples of it; None probes once.
    sketch
        A `Sketcher` if clients are to send sketches in place of whole updates.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Examples
    --------
    A policy implements `_select_known`, the choice among clients with usable reports.

    >>> class FirstKnown(SnapshotScheduler):
    ...     def _select_known(self, server_round, known, m, constraints):
    ...         return Cohort.of(known[:m])
    >>> scheduler = FirstKnown(refresh_every=5)
    >>> [r for r in range(12) if scheduler.request(r, ("a", "b"), 1).clients]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    >>> scheduler.observe(0, [ClientReport(c, 0, update=[1.0]) for c in ("a", "b")], "probe")
    >>> [r for r in range(12) if scheduler.request(r, ("a", "b"), 1).clients]
    [0, 5, 10]
    """

    observed_sources = frozenset[Source]({"enrolment", "probe"})
    signals: frozenset[str] = frozenset({"update"})

    repeats: bool = True
    """Whether the same snapshot, clients and m give the same cohort in every round."""

    def __init__(
        self, *, refresh_every: int | None, sketch: Sketcher | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        self.refresh_every = check_refresh_every(refresh_every)
        self.sketch = check_sketch(sketch)
        self._last: tuple[Any, Cohort] | None = None

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask everyone when the snapshot is due, or when there is none."""
        due = self.refresh_every is not None and server_round % self.refresh_every == 0
        if due or self.reports.width is None:
            return Request(clients, self.signals, self.sketch)
        return Request()

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Choose among the known clients, and draw among the unknown."""
        # More often than not nothing has changed since the last round.
        key = (self.reports.version, clients, m, self.pending)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        everyone = self._with_pending(clients)
        known = self.known_clients(everyone)

        def select_known(count: int, constraints: Constraints) -> Cohort:
            return self._select_known(server_round, known, count, constraints)

        cohort = select_with_unknown(self, server_round, clients, m, known, select_known)
        # Draws among unknown clients differ from round to round.
        repeats = self.repeats and len(known) == len(everyone)
        self._last = (key, cohort) if repeats else None
        return cohort

    @abstractmethod
    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Cohort:
        """Choose m of the known clients; constraints are on positions in that list."""

    def known_clients(self, clients: tuple[ClientId, ...]) -> list[ClientId]:
        """Return those of the clients whose reports suffice to be chosen by."""
        table = self.reports.current_table(clients)
        if table is not None and self._all_selectable(table):
            return list(clients)
        return [client for client in clients if self._is_selectable(self.reports.get(client))]

    def _is_selectable(self, report: ClientReport | None) -> bool:
        """Return whether a client's report suffices to be chosen by.

        Where it is overridden, so is `_all_selectable`.
        """
        return report is not None and (report.update is not None or report.sketch is not None)

    def _all_selectable(self, table: ReportTable) -> bool:
        """Return whether the columns of a table show that all its reports are selectable."""
        return table.sketches is not None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._last = None


def check_refresh_every(refresh_every: int | None) -> int | None:
    """Return refresh_every, or raise unless it is a whole number >= 1 or None.

    >>> check_refresh_every(20)
    20
    """
    return None if refresh_every is None else check_int("refresh_every", refresh_every, minimum=1)


def check_sketch(sketch: Sketcher | None) -> Sketcher | None:
    """Return sketch, or raise unless it is a Sketcher or None.

    >>> check_sketch(Sketcher(size=64)).size
    64
    """
    if sketch is not None and not isinstance(sketch, Sketcher):
        raise ValueError(f"sketch must be a Sketcher or None, got {brief(sketch)}")
    return sketch
