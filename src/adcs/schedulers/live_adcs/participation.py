"""Which clients have reported, when each was last chosen, and how often it has not answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import compress, count, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId, IndexArray


class Participation:
    """Rows of the clients that have reported, numbered from 0 in the order of first reports.

    Attributes
    ----------
    last_selected : int array
        The round in which each client was last selected, or first reported. A late reply sets it
        back to the last round in which the client took part.
    took_part : int array
        The last round in which each client was selected and its reply aggregated, or in which it
        first reported.
    unanswered : int array
        How often each client was selected since its last report.

    Examples
    --------
    >>> clients = Participation()
    >>> clients.report(["a", "b"], server_round=0)
    array([0, 1])
    >>> clients.mark_selected(["b", "unknown"], server_round=3)
    >>> clients.last_selected, clients.unanswered, clients.known(("a", "unknown"))
    (array([0, 3]), array([0, 1]), ['a'])
    >>> clients.mark_late(["b"])
    >>> clients.last_selected
    array([0, 0])
    >>> clients.expire(["b"])
    >>> clients.known(("a", "b"))
    ['a']
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all clients."""
        self._row: dict[ClientId, int] = {}
        self.last_selected: IndexArray = np.empty(0, dtype=np.intp)
        self.took_part: IndexArray = np.empty(0, dtype=np.intp)
        self.unanswered: IndexArray = np.empty(0, dtype=np.intp)
        # Rows whose clients count as if they had not reported.
        self._expired: NDArray[np.bool_] = np.empty(0, dtype=bool)
        self._cache: tuple[tuple[ClientId, ...], list[ClientId], IndexArray, int] | None = None

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, client: object) -> bool:
        return client in self._row

    @property
    def clients(self) -> Set[ClientId]:
        """The clients that have reported, in the order of their rows."""
        return self._row.keys()

    def find(self, clients: Collection[ClientId]) -> IndexArray:
        """Return the row of each client, -1 for one that has not reported."""
        return np.fromiter(map(self._row.get, clients, repeat(-1)), np.intp, len(clients))

    def report(self, clients: Sequence[ClientId], server_round: int) -> IndexArray:
        """Record that clients have reported; return their rows, new ones included."""
        row = self._row
        if not row:
            row.update(zip(dict.fromkeys(clients), count()))
        else:
            for client in clients:
                row.setdefault(client, len(row))
        rows = self.find(clients)
        new = np.zeros(len(row) - self.last_selected.size, dtype=np.intp)
        if new.size:
            self.last_selected = np.append(self.last_selected, new + server_round)
            self.took_part = np.append(self.took_part, new + server_round)
            self.unanswered = np.append(self.unanswered, new)
            self._expired = np.append(self._expired, new.astype(bool))
        self.unanswered[rows] = 0
        if self._expired[rows].any():
            self._expired[rows] = False
            self._cache = None
        return rows

    def expire(self, clients: Collection[ClientId]) -> None:
        """Record that the reports of clients are out of date, until they report again."""
        rows = self.find(clients)
        self._expired[rows[rows >= 0]] = True
        self._cache = None

    def mark_selected(self, clients: Collection[ClientId], server_round: int) -> None:
        """Record that clients were selected; those that have not reported are ignored."""
        rows = self.find(clients)
        rows = rows[rows >= 0]
        self.last_selected[rows] = server_round
        self.unanswered[rows] += 1

    def mark_aggregated(self, rounds: Mapping[ClientId, int]) -> None:
        """Record that replies of clients, selected in these rounds, were aggregated."""
        rows = [self._row[client] for client in rounds if client in self._row]
        took_part = [at for client, at in rounds.items() if client in self._row]
        self.took_part[rows] = np.maximum(self.took_part[rows], took_part)
        self.last_selected[rows] = np.maximum(self.last_selected[rows], took_part)

    def mark_late(self, clients: Iterable[ClientId]) -> None:
        """Record that replies of clients came too late: they go on waiting."""
        rows = [self._row[client] for client in clients if client in self._row]
        self.last_selected[rows] = self.took_part[rows]

    def known(self, clients: tuple[ClientId, ...]) -> list[ClientId]:
        """Return those of the clients with a report that is not out of date, in their order."""
        cache = self._cache
        if cache is None or cache[0] is not clients or cache[3] != len(self._row):
            rows = self.find(clients)
            has_report = rows >= 0
            has_report[has_report] = ~self._expired[rows[has_report]]
            known = list(clients if has_report.all() else compress(clients, has_report.tolist()))
            cache = self._cache = (clients, known, rows[has_report], len(self._row))
        return cache[1]

    def rows(self, known: Sequence[ClientId]) -> IndexArray:
        """Return the rows of clients that have reported."""
        if self._cache is not None and known is self._cache[1]:
            return self._cache[2]
        return self.find(known)

    def without(
        self, known: list[ClientId], left_out: Set[ClientId]
    ) -> tuple[list[ClientId], IndexArray]:
        """Return the known clients that are not left out, and their positions in `known`."""
        rows = self.find(left_out)
        kept = np.ones(len(self._row), dtype=bool)
        kept[rows[rows >= 0]] = False
        mask = kept[self.rows(known)]
        return list(compress(known, mask.tolist())), mask.nonzero()[0]

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values and arrays."""
        return {
            "clients": list(self._row),
            "last_selected": self.last_selected.copy(),
            "took_part": self.took_part.copy(),
            "unanswered": self.unanswered.copy(),
            "expired": list(compress(self._row, self._expired)),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.clear()
        self._row = {client: row for row, client in enumerate(state["clients"])}
        self.last_selected = np.array(state["last_selected"])
        # States of earlier versions lack it.
        self.took_part = np.array(state.get("took_part", state["last_selected"]))
        self.unanswered = np.array(state["unanswered"])
        self._expired = np.zeros(len(self._row), dtype=bool)
        self._expired[self.find(state["expired"])] = True
