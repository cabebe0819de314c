"""How many probes may be sent: counted when asked for, whether or not they are answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adcs._types import ClientId


class ProbeBudget:
    """At most a share of the training updates so far, or one for each client if that is more.

    Attributes
    ----------
    trained
        Clients chosen for training so far.
    tried
        Clients that were asked in earlier rounds.

    Examples
    --------
    >>> budget = ProbeBudget(share=0.005)
    >>> budget.grant(0, ["a", "b", "c"], seen=2), budget.grant(0, ["a", "b", "c"], seen=2)
    (['a', 'b'], ['a', 'b'])
    >>> budget.grant(1, ["c"], seen=2)
    []
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.trained = 0
        self.tried: set[ClientId] = set()
        self._spent = 0
        self._round = -1
        self._asked: set[ClientId] = set()

    def open(self, server_round: int) -> None:
        """Begin a round; what was asked in the one before is spent."""
        if self._round != server_round:
            self._spent += len(self._asked)
            self.tried |= self._asked
            self._round, self._asked = server_round, set()

    def grant(self, server_round: int, wanted: Sequence[ClientId], seen: int) -> list[ClientId]:
        """Return those of the wanted that may be asked; asking twice in a round is asking once."""
        self.open(server_round)
        left = max(seen, int(self.share * self.trained)) - self._spent - len(self._asked)
        fresh = [client for client in wanted if client not in self._asked][: max(left, 0)]
        granted = [client for client in wanted if client in self._asked] + fresh
        self._asked.update(fresh)
        return granted

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "trained": self.trained,
            "spent": self._spent,
            "server_round": self._round,
            "tried": _in_order(self.tried),
            "asked": _in_order(self._asked),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.trained, self._spent = state["trained"], state["spent"]
        self._round = state["server_round"]
        self.tried, self._asked = set(state["tried"]), set(state["asked"])


def _in_order(clients: set[ClientId]) -> list[ClientId]:
    return sorted(clients, key=lambda client: (isinstance(client, str), client))
