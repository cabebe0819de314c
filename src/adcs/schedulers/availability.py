"""How likely available clients are to stay, by the rounds in which they were seen.

The server keeps this history: it is told in every round who is available, whatever the engine, and
clients report nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array


class AvailabilityHistory:
    """Counts how often a client that was available in one round was so in the next one.

    Examples
    --------
    >>> history = AvailabilityHistory()
    >>> for server_round, seen in enumerate([["a", "b"], ["a"], ["a", "b"], ["a"]]):
    ...     history.update(server_round, seen)
    >>> history.stays(["a", "b", "new"])
    array([0.8 , 0.25, 0.5 ])
    """

    def __init__(self) -> None:
        self._round = -1
        self._present: frozenset[ClientId] = frozenset()
        self._counts: dict[ClientId, tuple[int, int]] = {}  # rounds followed, and stayed in

    def update(self, server_round: int, seen: Iterable[ClientId]) -> None:
        """Note who is available, or at work, in a round; a round counts once."""
        if server_round == self._round:
            return
        present = frozenset(seen)
        if server_round == self._round + 1:
            for client in self._present:
                followed, stayed = self._counts.get(client, (0, 0))
                self._counts[client] = (followed + 1, stayed + (client in present))
        self._round, self._present = server_round, present

    def stays(self, clients: Sequence[ClientId]) -> Float64Array:
        """Return the chance that each client is available in the next round too.

        It is (stayed + 1) / (followed + 2), Laplace's rule: 1/2 for a client without a history.
        """
        pairs = [self._counts.get(client, (0, 0)) for client in clients]
        return np.array([(stayed + 1) / (followed + 2) for followed, stayed in pairs])

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "server_round": self._round,
            "present": sorted(self._present, key=lambda c: (isinstance(c, str), c)),
            "counts": [[client, *pair] for client, pair in self._counts.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self._round = int(state["server_round"])
        self._present = frozenset(state["present"])
        self._counts = {client: (followed, stayed) for client, followed, stayed in state["counts"]}
