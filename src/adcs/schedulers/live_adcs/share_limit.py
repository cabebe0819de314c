"""A limit on how often a client is chosen, whatever it reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from adcs._types import ClientId
from adcs._validation import check_number


class ShareLimit:
    """At most `max_share` times a fair share of the slots for each client.

    A fair share of a round is m / n, with n the number of available clients. In any rounds that
    follow each other, a client is chosen within its limit at most 1 + max_share * (their sum of
    m / n) times.

    The allowance A is the sum of max_share * m / n over all rounds so far. A client may be chosen
    when A has reached its threshold, which is 0 at first. Being chosen raises the threshold to
    max(threshold, A before this round) + 1. So a client that is chosen k times in rounds s to t has
    at the last of them a threshold of at least (A before round s) + k - 1, and A has reached it:
    k is at most 1 plus the growth of A in these rounds.

    Parameters
    ----------
    max_share
        At least 1; None sets no limit.

    Examples
    --------
    With 2 of 8 clients in a round, a client gets a slot in half of the rounds and one more.

    >>> limit = ShareLimit(max_share=2.0)
    >>> for server_round in range(6):
    ...     limit.open(server_round, m=2, available=8)
    ...     free = not limit.beyond(["a"])
    ...     limit.charge(["a"] if free else [])
    ...     print(free, end=" ")
    True True False True False True
    """

    def __init__(self, max_share: float | None) -> None:
        if max_share is not None:
            max_share = check_number("max_share", max_share, minimum=1)
        self.max_share = max_share
        self._round = -1
        self._allowance = 0.0  # A, this round included
        self._before = 0.0  # A without this round
        # A threshold that A has passed counts as no threshold, and is dropped sooner or later.
        self._thresholds: dict[ClientId, float] = {}
        self._kept = 0  # thresholds left when passed ones were last dropped
        self._barred: set[ClientId] | None = set()

    def open(self, server_round: int, m: int, available: int) -> None:
        """Begin a round; opening it again changes nothing."""
        if self.max_share is None or server_round == self._round:
            return
        self._round, self._before = server_round, self._allowance
        self._allowance += self.max_share * min(m / available, 1.0)
        if len(self._thresholds) > 2 * self._kept:
            self._thresholds = self._current()
            self._kept = len(self._thresholds)
        self._barred = None

    @property
    def barred(self) -> Set[ClientId]:
        """All clients that are beyond their limit."""
        if self._barred is None:
            now = self._allowance
            self._barred = {client for client, at in self._thresholds.items() if at > now}
        return self._barred

    def beyond(self, clients: Iterable[ClientId]) -> list[ClientId]:
        """Return the clients that are beyond their limit, the one nearest to it first."""
        return sorted(filter(self.barred.__contains__, clients), key=self._thresholds.__getitem__)

    def charge(self, clients: Iterable[ClientId]) -> None:
        """Record that clients were chosen within their limit."""
        if self.max_share is not None:
            for client in clients:
                at = self._thresholds.get(client, 0.0)
                if at <= self._before:
                    at = self._before
                    self._thresholds.pop(client, None)
                self._thresholds[client] = at + 1.0
            self._barred = None

    def _current(self) -> dict[ClientId, float]:
        """Return the thresholds that A had not passed before this round."""
        return {client: at for client, at in self._thresholds.items() if at > self._before}

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "server_round": self._round,
            "allowance": self._allowance,
            "before": self._before,
            "thresholds": [[client, at] for client, at in self._current().items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self._round = int(state["server_round"])
        self._allowance, self._before = float(state["allowance"]), float(state["before"])
        self._thresholds = {client: float(at) for client, at in state["thresholds"]}
        self._kept, self._barred = len(self._thresholds), None
