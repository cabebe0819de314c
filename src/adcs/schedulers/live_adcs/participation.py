"""Which clients have reported, when each was last chosen, and how often it has not answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

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
        self._expired: set[ClientId] = set()  # have a row, and count as if they had not reported
        self.last_selected: IndexArray = np.empty(0, dtype=np.intp)
        self.took_part: IndexArray = np.empty(0, dtype=np.intp)
        self.unanswered: IndexArray = np.empty(0, dtype=np.intp)
        self._cache: tuple[tuple[ClientId, ...], list[ClientId], IndexArray, int] | None = None

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, client: object) -> bool:
        return client in self._row

    def get(self, client: ClientId) -> int | None:
        """Return the client's row, or None if it has not reported."""
        return self._row.get(client)

    def report(self, clients: Iterable[ClientId], server_round: int) -> IndexArray:
        """Record that clients have reported; return their rows, new ones included."""
        clients = list(clients)
        rows = np.array([self._row.setdefault(client, len(self._row)) for client in clients])
        if self._expired.intersection(clients):
            self._expired.difference_update(clients)
            self._cache = None
        new = np.zeros(len(self._row) - self.last_selected.size, dtype=np.intp)
        self.last_selected = np.append(self.last_selected, new + server_round)
        self.took_part = np.append(self.took_part, new + server_round)
        self.unanswered = np.append(self.unanswered, new)
        self.unanswered[rows] = 0
        return rows

    def expire(self, clients: Iterable[ClientId]) -> None:
        """Record that the reports of clients are out of date, until they report again."""
        self._expired.update(client for client in clients if client in self._row)
        self._cache = None

    def mark_selected(self, clients: Iterable[ClientId], server_round: int) -> None:
        """Record that clients were selected; those that have not reported are ignored."""
        rows = [self._row[client] for client in clients if client in self._row]
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
            known = [c for c in clients if c in self._row and c not in self._expired]
            rows = np.array([self._row[client] for client in known], dtype=np.intp)
            cache = self._cache = (clients, known, rows, len(self._row))
        return cache[1]

    def rows(self, known: Sequence[ClientId]) -> IndexArray:
        """Return the rows of clients that have reported."""
        if self._cache is not None and known is self._cache[1]:
            return self._cache[2]
        return np.array([self._row[client] for client in known], dtype=np.intp)

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values and arrays."""
        return {
            "clients": list(self._row),
            "last_selected": self.last_selected.copy(),
            "took_part": self.took_part.copy(),
            "unanswered": self.unanswered.copy(),
            "expired": [client for client in self._row if client in self._expired],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.clear()
        self._row = {client: row for row, client in enumerate(state["clients"])}
        self.last_selected = np.array(state["last_selected"])
        # States of earlier versions lack it.
        self.took_part = np.array(state.get("took_part", state["last_selected"]))
        self.unanswered = np.array(state["unanswered"])
        self._expired = set(state["expired"])
