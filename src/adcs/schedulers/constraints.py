"""The m places of a round, and the rules for filling them: required clients, caps per group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from adcs._types import ClientId
from adcs._validation import brief
from adcs.reports.report import plain_client

UNKNOWN = "unknown"
"""The group that clients share, by default, to which `groups` gives none."""


class CohortConstraints:
    """Who must be in a cohort, and how many of a group may be: see `Scheduler` for the settings.

    Examples
    --------
    >>> rules = CohortConstraints(groups={"a": "north", "b": "north", "c": "south"}, caps=1)
    >>> rules.places(["a", "b", "c"], m=3).left
    2

    Clients that nobody has heard of share one group, and so one cap.

    >>> rules.places(["a", "made up", "made up too"], m=3).left
    2
    """

    def __init__(
        self,
        groups: Mapping[ClientId, Hashable] | None = None,
        caps: int | Mapping[Hashable, int] | None = None,
        required: Iterable[ClientId] = (),
        unknown_group: Hashable | None = UNKNOWN,
    ) -> None:
        if groups is not None and not isinstance(groups, Mapping):
            raise ValueError(f"groups must map client ids to groups, got {brief(groups)}")
        self.groups = {_id(client, "groups"): group for client, group in (groups or {}).items()}
        self.caps = dict(caps) if isinstance(caps, Mapping) else caps
        self.required = tuple(_id(client, "required") for client in required)
        self.unknown_group = unknown_group
        for label in (unknown_group, *self.groups.values()):
            if not isinstance(label, Hashable):
                raise ValueError(f"a group must be hashable, as strings are, got {brief(label)}")
        self._strange = unknown_group is not None and unknown_group not in self.groups.values()
        if caps is not None and not self.groups:
            raise ValueError("caps need groups: a mapping from client id to group")
        for cap in self.caps.values() if isinstance(self.caps, dict) else [self.caps]:
            if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 0):
                raise ValueError(f"caps must be whole numbers >= 0, got {cap!r}")
        if len(set(self.required)) < len(self.required):
            raise ValueError(f"required must be distinct, got {list(self.required)!r}")
        for group, count in Counter(map(self.group, self.required)).items():
            cap = self.cap(group)
            if cap is not None and count > cap:
                raise ValueError(f"required has {count} clients of group {group!r}, cap {cap}")

    def __bool__(self) -> bool:
        return self.caps is not None or bool(self.required)

    def group(self, client: ClientId) -> Hashable:
        """Return the client's group: that of all unknown clients if `groups` gives it none."""
        if client in self.groups:
            return self.groups[client]
        return ("client", client) if self.unknown_group is None else self.unknown_group

    def cap(self, group: Hashable) -> int | None:
        """Return how many of a group may be in, None for any number."""
        if not isinstance(self.caps, dict):
            return self.caps
        if group not in self.caps and self._strange and group == self.unknown_group:
            # Else whoever makes up an id would get round the caps of others.
            return min(self.caps.values(), default=None)
        return self.caps.get(group)

    def places(self, clients: Sequence[ClientId], m: int) -> CohortBuilder:
        """Return the places to fill from these clients: m, or as many as there can be."""
        return CohortBuilder(self, clients, m)


def _id(client: object, name: str) -> ClientId:
    plain = plain_client(client)
    if plain is None:
        raise ValueError(f"{name} must name clients by ints or strings, got {brief(client)}")
    return plain


class CohortBuilder:
    """CohortBuilder being filled; it never lets a group go over its cap."""

    def __init__(self, rules: CohortConstraints, clients: Sequence[ClientId], m: int) -> None:
        self._rules = rules
        self._taken: Counter[Hashable] = Counter()
        self._chosen: set[ClientId] = set()
        self.left = min(m, self.room(clients))
        present = set(clients) if rules.required else set()
        self.required = [client for client in rules.required if client in present]
        if len(self.required) > m:
            raise ValueError(
                f"required names {len(self.required)} available clients, more than m = {m}"
            )

    def room(self, clients: Sequence[ClientId]) -> int:
        """Return how many of these clients the caps would still admit, were places no matter."""
        if self._rules.caps is None:
            return len(clients)
        groups = Counter(self._rules.group(client) for client in clients)
        return sum(min(n, self.room_in(group, n)) for group, n in groups.items())

    def room_in(self, group: Hashable, otherwise: int) -> int:
        """Return what is left of a group's cap, `otherwise` where it has none."""
        cap = self._rules.cap(group)
        return otherwise if cap is None else cap - self._taken[group]

    def admit(self, client: ClientId) -> bool:
        """Give a place to the client unless none is left or its group is full."""
        group = self._rules.group(client)
        if self.left == 0 or client in self._chosen or self.room_in(group, 1) <= 0:
            return False
        self._chosen.add(client)
        self._taken[group] += 1
        self.left -= 1
        return True

    def fill(self, order: Iterable[ClientId]) -> list[ClientId]:
        """Admit clients in this order until no place is left; return those admitted."""
        admitted: list[ClientId] = []
        for client in order:
            if self.left == 0:
                break
            if self.admit(client):
                admitted.append(client)
        return admitted
