"""How often each client has been selected, and when last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array


class SelectionHistory:
    """Counts of selections and the last round of each client.

    Attributes
    ----------
    counts
        How often each client has been selected.
    last
        The round in which each was last selected, counted from 0.

    Examples
    --------
    >>> history = SelectionHistory()
    >>> history.add(["a", "b"], server_round=0)
    >>> history.add(["a"], server_round=4)
    >>> history.picks(["a", "b", "c"]), history.last["a"]
    (array([2., 1., 0.]), 4)
    """

    def __init__(self) -> None:
        self.counts: dict[ClientId, int] = {}
        self.last: dict[ClientId, int] = {}

    def add(self, clients: Iterable[ClientId], server_round: int) -> None:
        """Count a cohort."""
        for client in clients:
            self.counts[client] = self.counts.get(client, 0) + 1
            self.last[client] = server_round

    def picks(self, clients: Sequence[ClientId]) -> Float64Array:
        """Return how often each of the clients has been selected."""
        return np.array([self.counts.get(client, 0) for client in clients], dtype=np.float64)

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "clients": list(self.counts),
            "counts": list(self.counts.values()),
            "last": [self.last[client] for client in self.counts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.counts = dict(zip(state["clients"], state["counts"], strict=True))
        self.last = dict(zip(state["clients"], state["last"], strict=True))
