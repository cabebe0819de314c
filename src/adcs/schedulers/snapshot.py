"""What schedulers have in common that choose from a snapshot of all clients' updates.

A probe of everybody every R rounds fills the snapshot. Clients that are not in it get their
proportional share of the places by a seeded draw, so that a newcomer is a fair candidate before
the next probe.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adcs._types import ClientId
from adcs.dpp.constraints import Constraints
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Cohort, Request, Scheduler, Signal, Source
from adcs.schedulers.constraints import CohortBuilder
from adcs.schedulers.sampling import stochastic_round


@dataclass(frozen=True)
class Picked:
    """What a snapshot scheduler picked among the clients it knows."""

    clients: list[ClientId]
    weights: list[float] | None = None
    diagnostics: dict[str, Any] = field(default_factory=dict)


class SnapshotScheduler(Scheduler):
    """Base of schedulers that choose from a snapshot of updates.

    Parameters
    ----------
    refresh_every
        R: all clients are probed in the rounds that are multiples of it; None probes once.
    sketch
        A `Sketcher` if clients are to send sketches in place of whole updates.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.
    """

    observed_sources = frozenset[Source]({"enrolment", "probe"})
    signals: frozenset[Signal] = frozenset({"update"})

    def __init__(
        self, *, refresh_every: int | None, sketch: Sketcher | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        if refresh_every is not None and (
            isinstance(refresh_every, bool)
            or not isinstance(refresh_every, int)
            or refresh_every < 1
        ):
            raise ValueError(f"refresh_every must be a whole number >= 1, got {refresh_every!r}")
        if sketch is not None and not isinstance(sketch, Sketcher):
            raise ValueError(f"sketch must be a Sketcher or None, got {sketch!r}")
        self.refresh_every = refresh_every
        self.sketch = sketch
        self._last: tuple[Any, Cohort] | None = None

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask everyone when the snapshot is due, or when there is none."""
        due = self.refresh_every is not None and server_round % self.refresh_every == 0
        if due or self.reports.width is None:
            return Request(clients, self.signals, self.sketch)
        return Request()

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Pick among the known, draw among the unknown."""
        # More often than not nothing has changed since the last round.
        key = (self.reports.version, clients, m)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        known = self.known_clients(clients)
        places = self.constraints.places(clients, m)
        drawn: list[ClientId] = []
        queue: list[ClientId] = []
        if len(known) < len(clients):
            rng = self.rng(server_round)
            familiar = set(known)
            unknown = [client for client in clients if client not in familiar]
            queue = [unknown[i] for i in rng.permutation(len(unknown))]
            share = stochastic_round(places.left * len(unknown) / len(clients), rng)
            drawn = self._draw(places, queue, share)
        picked = self._pick(server_round, known, places)
        for client in picked.clients:
            places.admit(client)
        drawn += places.fill(queue)
        weights = picked.weights or [1.0] * len(picked.clients)
        # A client that nothing is known of counts as much as the others do on average.
        usual = sum(weights) / len(weights) if weights else 1.0
        cohort = Cohort(
            clients=(*picked.clients, *drawn),
            weights=(*weights, *[usual] * len(drawn)),
            diagnostics={**picked.diagnostics, "drawn": drawn},
        )
        self._last = (key, cohort) if self.repeats and not queue else None
        return cohort

    def _draw(self, places: CohortBuilder, queue: list[ClientId], share: int) -> list[ClientId]:
        # Required clients take their places first, whether known or not.
        strangers = set(queue)
        drawn = [c for c in places.required if c in strangers and places.admit(c)]
        reserved = [c for c in places.required if c not in strangers]
        for client in queue:
            if len(drawn) >= share or places.left <= len(reserved):
                break
            # A group's last places belong to its required clients.
            group = self.constraints.group(client)
            held = sum(self.constraints.group(c) == group for c in reserved)
            if places.room_in(group, held + 1) > held and places.admit(client):
                drawn.append(client)
        return drawn

    def _pick(self, server_round: int, known: list[ClientId], places: CohortBuilder) -> Picked:
        count = min(places.left, places.room(known))
        if count == 0:
            return Picked([])
        constraints = Constraints()
        if self.constraints:
            labels = [self.constraints.group(client) for client in known]
            index = {client: i for i, client in enumerate(known)}
            constraints = Constraints(
                required=[index[client] for client in places.required if client in index],
                groups=labels,
                caps={label: places.room_in(label, len(known)) for label in labels},
            )
        return self._select_known(server_round, known, count, constraints)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._last = None

    repeats: bool = True
    """Whether the same snapshot, clients and m give the same picks in every round."""

    @abstractmethod
    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Picked:
        """Pick m of the known clients; constraints are on positions in that list."""

    def known_clients(self, clients: tuple[ClientId, ...]) -> list[ClientId]:
        """Return those of the clients whose evidence is enough to be picked by."""
        return [client for client in clients if self.knows(self.reports.get(client))]

    def knows(self, report: ClientReport | None) -> bool:
        """Return whether a client's evidence is enough to be picked by."""
        return report is not None and (report.update is not None or report.sketch is not None)
