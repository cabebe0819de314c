"""Limit on the number of probes, which count when they are sent, answered or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adcs._types import ClientId
from adcs._validation import check_number


class ProbeBudget:
    """At most a share of the training updates so far, or one probe for each client if more.

    Parameters
    ----------
    share
        Probes per training update; finite and at least 0.

    Attributes
    ----------
    updates
        Training updates requested so far.
    probed
        Clients that were probed in earlier rounds.

    Examples
    --------
    >>> budget = ProbeBudget(share=0.005)
    >>> budget.grant(0, ["a", "b", "c"], clients=2), budget.grant(0, ["a", "b", "c"], clients=2)
    (['a', 'b'], ['a', 'b'])
    >>> budget.grant(1, ["c"], clients=2)
    []
    """

    def __init__(self, share: float) -> None:
        self.share = check_number("probe_share", share, minimum=0)
        self.updates = 0
        self.probed: set[ClientId] = set()
        self._spent = 0
        self._round = -1
        self._granted: set[ClientId] = set()

    def open(self, server_round: int) -> None:
        """Begin a round; the probes granted in the one before are spent."""
        if self._round != server_round:
            self._spent += len(self._granted)
            self.probed |= self._granted
            self._round, self._granted = server_round, set()

    def grant(self, server_round: int, wanted: Sequence[ClientId], clients: int) -> list[ClientId]:
        """Return those of the wanted clients that may be probed in this round.

        Asking again in the same round grants the same clients and spends nothing more.

        Parameters
        ----------
        server_round, wanted
            The round, and the clients to probe, most important first.
        clients
            How many clients have been seen so far: the least that the budget allows.
        """
        self.open(server_round)
        new = [client for client in wanted if client not in self._granted][: self._left(clients)]
        granted = [client for client in wanted if client in self._granted] + new
        self._granted.update(new)
        return granted

    def is_spent(self, clients: int) -> bool:
        """Return whether this round has no probe, granted or to be granted.

        >>> ProbeBudget(share=0.005).is_spent(clients=0)
        True
        """
        return not self._granted and not self._left(clients)

    def _left(self, clients: int) -> int:
        allowed = max(clients, int(self.share * self.updates))
        return max(allowed - self._spent - len(self._granted), 0)

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "updates": self.updates,
            "spent": self._spent,
            "server_round": self._round,
            "probed": _in_order(self.probed),
            "granted": _in_order(self._granted),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.updates, self._spent = state["updates"], state["spent"]
        self._round = state["server_round"]
        self.probed, self._granted = set(state["probed"]), set(state["granted"])


def _in_order(clients: set[ClientId]) -> list[ClientId]:
    return sorted(clients, key=lambda client: (isinstance(client, str), client))
