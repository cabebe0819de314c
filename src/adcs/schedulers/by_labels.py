"""Base class of schedulers that go by label histograms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adcs._types import ClientId
from adcs.reports.store import ReportStore
from adcs.schedulers.base import Request, Scheduler, Source
from adcs.schedulers.selection_history import SelectionHistory

ASK_AGAIN = 20
"""Rounds after which a client that sent no histogram is asked again."""


class HistogramRequests:
    """Which clients to ask for their histogram: each once, and again if it sent none.

    Examples
    --------
    >>> requests, reports = HistogramRequests(), ReportStore()
    >>> requests.due(0, ("a", "b"), reports)
    ('a', 'b')
    >>> requests.note(0, reports)
    >>> requests.due(1, ("a", "b"), reports), requests.due(20, ("a", "b"), reports)
    ((), ('a', 'b'))
    """

    def __init__(self) -> None:
        self._requested: dict[ClientId, int] = {}  # when clients without a histogram were asked
        self._asked: tuple[ClientId, ...] = ()  # in this round

    def due(
        self, server_round: int, clients: tuple[ClientId, ...], reports: ReportStore
    ) -> tuple[ClientId, ...]:
        """Return the clients to ask in a round."""
        self._asked = tuple(
            client
            for client in clients
            if _lacks_histogram(client, reports)
            and (
                client not in self._requested or server_round >= self._requested[client] + ASK_AGAIN
            )
        )
        return self._asked

    def note(self, server_round: int, reports: ReportStore) -> None:
        """Note who was asked in this round and sent no histogram."""
        for client in self._asked:
            if _lacks_histogram(client, reports):
                self._requested[client] = server_round
        self._asked = ()

    def state(self) -> list[list[Any]]:
        """Return everything as JSON values."""
        return [list(pair) for pair in self._requested.items()]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        """Go back to a state returned by `state`."""
        self._requested = {client: int(server_round) for client, server_round in state}
        self._asked = ()


def _lacks_histogram(client: ClientId, reports: ReportStore) -> bool:
    return (report := reports.get(client)) is None or report.label_counts is None


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
    ...         self._note(server_round)
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
        self._histograms = HistogramRequests()

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask clients that have not sent a histogram."""
        due = self._histograms.due(server_round, clients, self.reports)
        return Request(due, frozenset({"label_counts"})) if due else Request()

    def _note(self, server_round: int) -> None:
        """Note who was asked in this round and sent no histogram."""
        self._histograms.note(server_round, self.reports)

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        return {
            **super().state(),
            "history": self._history.state(),
            "requested": self._histograms.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._history.restore(state["history"])
        self._histograms.restore(state["requested"])
