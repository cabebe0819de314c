"""For whom a round waits, and for how long.

By default a round waits for all of its clients, up to the timeout. An over-selected round ends with
the first m usable replies. A deadline ends the wait for clients that do not answer: a number of
seconds, or learned from each client's own times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from adcs._types import ClientId
from adcs._validation import check_number
from adcs.rounds import Deadlines

DeadlineSetting = float | Literal["adaptive"] | None
"""The setting `deadline=`: seconds, "adaptive", or None for the timeout alone."""


class Deadline:
    """How long to wait for clients that do not answer.

    Parameters
    ----------
    setting
        Seconds; "adaptive" learns each client's deadline from its own times; None waits as long
        as the timeout allows.
    learned
        The times of clients, for "adaptive".

    Examples
    --------
    >>> Deadline(30.0).of("a", longest=60.0), Deadline(None).of("a", longest=60.0)
    (30.0, 60.0)
    >>> Deadline("soon")
    Traceback (most recent call last):
    ...
    ValueError: deadline must be seconds, "adaptive" or None, got 'soon'
    """

    def __init__(self, setting: DeadlineSetting, learned: Deadlines | None = None) -> None:
        self.setting = setting
        self._learned: Deadlines | None = None
        self._seconds: float | None = None
        if isinstance(setting, str):
            if setting != "adaptive":
                raise ValueError(f'deadline must be seconds, "adaptive" or None, got {setting!r}')
            self._learned = Deadlines() if learned is None else learned
        elif setting is not None:
            self._seconds = check_number("deadline", setting, above=0)

    def of(self, client: ClientId, longest: float) -> float:
        """Return how many seconds a client has, at most `longest`."""
        if self._learned is not None:
            return self._learned.of(client, longest)
        return longest if self._seconds is None else min(self._seconds, longest)

    def limits(self, clients: Iterable[ClientId], longest: float) -> dict[ClientId, float]:
        """Return how many seconds a round waits for each of the clients that it asks."""
        if self._learned is not None:
            return self._learned.limits(clients, longest)
        return {client: self.of(client, longest) for client in clients}

    def record(self, client: ClientId, seconds: float) -> None:
        """Record how long a client took for a usable reply, in time or late."""
        if self._learned is not None:
            self._learned.record(client, max(seconds, 0.0))

    def miss(self, clients: Iterable[ClientId]) -> None:
        """Record clients that gave no usable reply by the end of the wait."""
        if self._learned is not None:
            self._learned.miss(clients)


class Wait:
    """For whom a round still waits.

    The deadlines are those at the start of the wait.

    Parameters
    ----------
    asked
        The clients that were asked.
    needed
        How many usable replies end the round.
    awaited
        Clients that are waited for even if there are enough replies.
    deadline, longest
        The deadline, and the timeout.

    Examples
    --------
    >>> wait = Wait(["a", "b", "c"], 2, ["c"], Deadline(None), longest=60.0)
    >>> wait.answer("a")
    >>> wait.seconds(usable=1)
    60.0
    >>> wait.answer("b")
    >>> wait.seconds(usable=2), wait.outrun(usable=2), wait.timed_out(usable=2)
    (60.0, [], ['c'])
    >>> wait.answer("c")
    >>> wait.seconds(usable=3), wait.first(["a", "b", "c"])
    (0.0, ['c', 'a'])
    """

    def __init__(
        self,
        asked: Collection[ClientId],
        needed: int,
        awaited: Collection[ClientId],
        deadline: Deadline,
        longest: float,
    ) -> None:
        self._needed = needed
        self._awaited = frozenset(awaited)
        self._unanswered = deadline.limits(asked, longest)

    def answer(self, client: ClientId) -> None:
        """Record that a client has answered, usably or not."""
        self._unanswered.pop(client, None)

    def seconds(self, usable: int) -> float:
        """Return how many seconds after sending the wait ends if nobody else answers.

        Parameters
        ----------
        usable
            How many replies can be used so far.
        """
        enough = usable >= self._needed
        waited = [
            seconds
            for client, seconds in self._unanswered.items()
            if not enough or client in self._awaited
        ]
        return max(waited, default=0.0)

    def first(self, usable: Iterable[ClientId]) -> list[ClientId]:
        """Return the clients whose replies are aggregated: awaited ones, then the first others.

        Parameters
        ----------
        usable
            The clients whose replies can be used, in order of arrival.
        """
        order = sorted(usable, key=lambda client: client not in self._awaited)
        return order[: self._needed]

    def outrun(self, usable: int) -> list[ClientId]:
        """Return the clients that the round did not wait for, because it had enough replies."""
        if usable < self._needed:
            return []
        return [client for client in self._unanswered if client not in self._awaited]

    def timed_out(self, usable: int) -> list[ClientId]:
        """Return the clients that were waited for and did not answer."""
        outrun = set(self.outrun(usable))
        return [client for client in self._unanswered if client not in outrun]
