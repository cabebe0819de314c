"""Base class of schedulers that go by label histograms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adcs._types import ClientId
from adcs.schedulers.base import Request, Scheduler, Source
from adcs.schedulers.selection_history import SelectionHistory

ASK_AGAIN = 20
"""Rounds after which a client that sent no histogram is asked again."""


class LabelScheduler(Scheduler):
    """Base class of schedulers that ask each client once for its label histogram.

    Parameters
    ----------
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Examples
    --------
    >>> from adcs import Cohort
    >>> class First(LabelScheduler):
    ...     def _select(self, server_round, clients, m):
    ...         self._note(server_round, clients)
    ...         return Cohort.of(self.take(clients, m))
    >>> scheduler = First()
    >>> scheduler.request(0, ["a", "b"], 1).clients
    ('a', 'b')
    >>> cohort = scheduler.select(0, ["a", "b"], 1)
    >>> scheduler.request(1, ["a", "b"], 1).clients, scheduler.request(20, ["a", "b"], 1).clients
    ((), ('a', 'b'))
    """

    family = "diversity"
    observed_sources = frozenset[Source]({"enrolment", "probe"})
    training_signals = frozenset[str]()
    needed_signals = frozenset({"label_counts"})

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._history = SelectionHistory()
        self._requested: dict[ClientId, int] = {}  # when clients without a histogram were asked

    def _lacking(self, clients: tuple[ClientId, ...]) -> list[ClientId]:
        return [
            client
            for client in clients
            if (report := self.reports.get(client)) is None or report.label_counts is None
        ]

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask clients that have not sent a histogram."""
        due = tuple(
            client
            for client in self._lacking(clients)
            if client not in self._requested or server_round >= self._requested[client] + ASK_AGAIN
        )
        return Request(due, frozenset({"label_counts"})) if due else Request()

    def _note(self, server_round: int, clients: tuple[ClientId, ...]) -> None:
        """Note who was asked in this round and sent no histogram."""
        for client in self._request(server_round, clients, 1).clients:
            self._requested[client] = server_round

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        return {
            **super().state(),
            "history": self._history.state(),
            "requested": [list(pair) for pair in self._requested.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._history.restore(state["history"])
        self._requested = {client: int(server_round) for client, server_round in state["requested"]}
