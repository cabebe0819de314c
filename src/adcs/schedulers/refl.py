"""REFL: the clients that are least likely to be available later (Abdelmoniem et al., 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs._validation import check_int
from adcs.schedulers.availability import AvailabilityHistory
from adcs.schedulers.base import Cohort, Scheduler, Source
from adcs.schedulers.selection_history import SelectionHistory


class REFL(Scheduler):
    """The clients with the smallest chance of being available in the next round.

    Parameters
    ----------
    rest
        A client is not selected again for so many rounds, >= 0, while others are there.
    adaptive
        Select fewer clients while others are still at work: m minus the number of pending ones,
        and at least half of m.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    Clients selected fewer than `rest` rounds ago are barred. The others are taken by rising chance
    of availability in the next round, ties in random order.

    Reading
    -------
    The paper's clients forecast their availability during the next round, [mu, 2 mu] with mu the
    usual duration of a round. A client's own forecast counts if it reports one (`availability`).
    Else the forecast is made from the rounds in which the client was seen: of those after a round
    in which it was available, the share in which it was so again, with 1/2 for a client without a
    history. If too few clients are left, barred ones follow, the one that has rested longest first.
    The authors' code returns one client too few there, and another loop of it may never end.
    This class is REFL's selection; its weights for stale updates belong to asynchronous rounds.

    References
    ----------
    Abdelmoniem, Sahu, Canini, Fahmy: REFL: Resource-efficient federated learning. EuroSys 2023.

    Examples
    --------
    >>> scheduler = REFL(rest=0)
    >>> for server_round, available in enumerate(["abc", "ab", "abc", "ab"]):
    ...     cohort = scheduler.select(server_round, list(available), 1)
    >>> scheduler.select(4, ["a", "b", "c"], 1).clients
    ('c',)
    """

    family = "time"
    observed_sources = frozenset[Source]({"enrolment", "probe", "training"})
    training_signals = frozenset[str]()

    def __init__(self, *, rest: int = 5, adaptive: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.rest = check_int("rest", rest, minimum=0)
        self.adaptive = adaptive
        self.fixed_size = not adaptive
        self._availability = AvailabilityHistory()
        self._history = SelectionHistory()

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Take clients by rising chance of availability, barred ones last."""
        self._availability.update(server_round, self._with_pending(clients))
        chances = self._chances(clients)
        last = np.array([self._history.last.get(client, -self.rest - 1) for client in clients])
        barred = server_round - last < self.rest
        order = np.lexsort(
            (
                self.rng(server_round).permutation(len(clients)),
                chances,
                np.where(barred, last, -1),
                barred,
            )
        )
        if self.adaptive:
            m = max((m + 1) // 2, m - len(self.pending))
        chosen = self.take([clients[i] for i in order], m)
        self._history.add(chosen, server_round)
        chance = dict(zip(clients, chances.tolist(), strict=True))
        return Cohort.of(chosen, availability=[[client, chance[client]] for client in chosen])

    def _chances(self, clients: tuple[ClientId, ...]) -> Float64Array:
        """Return the chance of each client, its own forecast where there is one."""
        own = self.reports.last_values("availability", clients)
        return np.where(np.isnan(own), self._availability.stays(clients), own)

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        return {
            **super().state(),
            "availability": self._availability.state(),
            "history": self._history.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._availability.restore(state["availability"])
        self._history.restore(state["history"])
