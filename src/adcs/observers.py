"""Observers of a run: what an engine announces in each round.

The simulator and federations announce the same events. An observer subclasses `Observer` and
implements the methods that it needs. An error of an observer ends the run, with a note that names
the observer. Rounds are counted from 0, as in schedulers. A simulation has
several runs: events name the run that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adcs._types import ClientId, Float64Array
from adcs.run_folder import Ledger
from adcs.schedulers.base import Cohort, Request, Scheduler

__all__ = ["EvaluationEvent", "Observer", "RoundEvent", "SelectionEvent", "listeners"]


@dataclass(frozen=True)
class SelectionEvent:
    """A cohort was selected.

    Attributes
    ----------
    run
        The name of the run, as in its records.
    seed
        The seed of the run.
    server_round
        The round, counted from 0.
    scheduler
        The scheduler, in the state in which it has selected.
    available, pending
        The clients that could be selected, and those at work or waiting in a buffer.
    request
        What clients were asked for before the selection.
    cohort
        The selected clients.
    backing_off
        The clients that were not offered to the scheduler, because they failed in earlier rounds.

    Examples
    --------
    >>> from adcs import Uniform
    >>> event = SelectionEvent(
    ...     run="Uniform",
    ...     seed=0,
    ...     server_round=0,
    ...     scheduler=Uniform(),
    ...     available=(3, 7),
    ...     pending=(),
    ...     request=Request(),
    ...     cohort=Cohort.of([7]),
    ... )
    >>> event.cohort.clients
    (7,)
    """

    run: str
    seed: int
    server_round: int
    scheduler: Scheduler
    available: tuple[ClientId, ...]
    pending: tuple[ClientId, ...]
    request: Request
    cohort: Cohort
    backing_off: tuple[ClientId, ...] = ()


@dataclass(frozen=True)
class RoundEvent:
    """The replies of a round are aggregated.

    Attributes
    ----------
    run, seed, server_round, scheduler
        As in `SelectionEvent`.
    trained
        The clients whose replies were aggregated.
    costs
        What clients and network have spent in this round.

    Examples
    --------
    >>> from adcs import Uniform
    >>> RoundEvent("Uniform", 0, 0, Uniform(), trained=(7,), costs=Ledger(updates=1)).costs.updates
    1
    """

    run: str
    seed: int
    server_round: int
    scheduler: Scheduler
    trained: tuple[ClientId, ...]
    costs: Ledger


@dataclass(frozen=True)
class EvaluationEvent:
    """A record is written.

    Attributes
    ----------
    run, seed, server_round
        As in `SelectionEvent`.
    record
        The record as written; its "server_round" is the number of rounds done.
    gram
        Inner products of all clients' updates at the model of this round; None if the engine has
        not measured them.

    Examples
    --------
    >>> EvaluationEvent("Uniform", 0, 9, {"server_round": 10, "worst": 0.6}).record["worst"]
    0.6
    """

    run: str
    seed: int
    server_round: int
    record: Mapping[str, Any]
    gram: Float64Array | None = None


class Observer:
    """Base class of observers; its methods do nothing.

    Examples
    --------
    >>> class Cohorts(Observer):
    ...     def __init__(self):
    ...         self.cohorts = []
    ...
    ...     def on_selection(self, event):
    ...         self.cohorts.append(event.cohort.clients)
    """

    def on_selection(self, event: SelectionEvent) -> None:
        """Called after each selection."""

    def on_round(self, event: RoundEvent) -> None:
        """Called after the replies of a round are aggregated."""

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Called after a record is written."""

    def on_end(self) -> None:
        """Called at the end of the run."""


def announce(observers: Iterable[Observer], method: str, *event: object) -> None:
    """Call a method of observers; raise the first error when all have been called.

    The error says which observer has raised it.

    >>> class Down(Observer):
    ...     def on_end(self):
    ...         raise ConnectionError("no route to host")
    >>> try:
    ...     announce([Down()], "on_end")
    ... except ConnectionError as error:
    ...     print(*error.__notes__)
    raised by on_end of the observer Down
    """
    raised: list[Exception] = []
    for observer in observers:
        try:
            getattr(observer, method)(*event)
        except Exception as error:
            error.add_note(f"raised by {method} of the observer {type(observer).__name__}")
            raised.append(error)
    for other in raised[1:]:
        raised[0].add_note(f"{type(other).__name__}: {other}, {other.__notes__[-1]}")
    if raised:
        raise raised[0]


def listeners(observers: Iterable[Observer], method: str) -> list[Observer]:
    """Return the observers that implement a method, so that other events need not be made.

    >>> class Progress(Observer):
    ...     def on_round(self, event):
    ...         print(event.server_round)
    >>> progress = Progress()
    >>> listeners([progress], "on_round") == [progress], listeners([progress], "on_selection")
    (True, [])
    """
    default = getattr(Observer, method)
    return [observer for observer in observers if getattr(type(observer), method) is not default]
