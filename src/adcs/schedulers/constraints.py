"""Constraints on a cohort: required clients and caps per group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from adcs._types import ClientId
from adcs._validation import brief, check_int, check_label, iterate
from adcs.reports.report import as_client_id

UNKNOWN_GROUP = "unknown"
"""The default group of clients that `groups` does not name."""


class CohortConstraints:
    """Which clients must be in a cohort, and how many of a group may be.

    Parameters
    ----------
    groups, caps, required, unknown_group
        As in `Scheduler`.

    Examples
    --------
    >>> constraints = CohortConstraints(groups={"a": "north", "b": "north", "c": "south"}, caps=1)
    >>> constraints.builder(["a", "b", "c"], m=3).slots_left
    2

    Clients in no group share one, and so one cap.

    >>> constraints.builder(["a", "made up", "made up too"], m=3).slots_left
    2
    """

    def __init__(
        self,
        groups: Mapping[ClientId, Hashable] | None = None,
        caps: int | Mapping[Hashable, int] | None = None,
        required: Iterable[ClientId] = (),
        unknown_group: Hashable | None = UNKNOWN_GROUP,
    ) -> None:
        if groups is not None and not isinstance(groups, Mapping):
            raise ValueError(f"groups must map client ids to groups, got {brief(groups)}")
        self.groups = {_check_id(c, "groups"): group for c, group in (groups or {}).items()}
        self.required = tuple(
            _check_id(client, "required") for client in iterate(required, "required", "client ids")
        )
        self.unknown_group = unknown_group
        for label in (unknown_group, *self.groups.values()):
            check_label(label)
        if caps is not None and not self.groups:
            raise ValueError("caps need groups: a mapping from client id to group")
        self.caps = self._check_caps(caps)
        if len(set(self.required)) < len(self.required):
            raise ValueError(f"required must be distinct, got {brief(list(self.required))}")
        for group, count in Counter(map(self.group, self.required)).items():
            cap = self.cap(group)
            if cap is not None and count > cap:
                raise ValueError(f"required has {count} clients of group {brief(group)}, cap {cap}")

    def _check_caps(
        self, caps: int | Mapping[Hashable, int] | None
    ) -> int | dict[Hashable, int | None] | None:
        """Return the caps as ints; raise ValueError if one is of a group that no client is in."""
        if not isinstance(caps, Mapping):
            return None if caps is None else check_int("caps", caps, minimum=0)
        groups = set(self.groups.values())
        if self.unknown_group is not None:
            groups.add(self.unknown_group)
        for label in caps:
            if label not in groups:
                raise ValueError(
                    f"caps must name groups of clients or unknown_group, got {brief(label)}"
                )
        return {
            label: None if cap is None else check_int("caps", cap, minimum=0)
            for label, cap in caps.items()
        }

    def __bool__(self) -> bool:
        return self.caps is not None or bool(self.required)

    def group(self, client: ClientId) -> Hashable:
        """Return the client's group; clients that `groups` does not name share one."""
        if client in self.groups:
            return self.groups[client]
        return ("client", client) if self.unknown_group is None else self.unknown_group

    def cap(self, group: Hashable) -> int | None:
        """Return how many of a group may be in a cohort, None for any number."""
        if not isinstance(self.caps, dict):
            return self.caps
        unknown = self.unknown_group is not None and group == self.unknown_group
        if unknown and group not in self.caps:
            # Otherwise made-up ids would evade all caps, whoever else is in their group.
            return min((cap for cap in self.caps.values() if cap is not None), default=None)
        return self.caps.get(group)

    def builder(
        self, clients: Sequence[ClientId], m: int, pending: Sequence[ClientId] = ()
    ) -> CohortBuilder:
        """Return an empty cohort to fill from these clients; pending ones count towards caps."""
        return CohortBuilder(self, clients, m, pending)


def _check_id(client: object, name: str) -> ClientId:
    known = as_client_id(client)
    if known is None:
        raise ValueError(f"{name} must name clients by ints or strings, got {brief(client)}")
    return known


class CohortBuilder:
    """A cohort being filled; no group goes above its cap.

    Attributes
    ----------
    slots_left
        How many clients can still be admitted.
    required
        The required clients that are to be admitted: not those that are pending, nor those whose
        group pending clients fill.

    Examples
    --------
    >>> constraints = CohortConstraints({"a": "north", "b": "north"}, caps=1, required=["c"])
    >>> builder = constraints.builder(["a", "b", "c", "d"], m=3)
    >>> builder.fill([*builder.required, "a", "b", "d"])
    ['c', 'a']
    """

    def __init__(
        self,
        constraints: CohortConstraints,
        clients: Sequence[ClientId],
        m: int,
        pending: Sequence[ClientId] = (),
    ) -> None:
        self._constraints = constraints
        self._taken: Counter[Hashable] = Counter()
        if constraints.caps is not None:
            self._taken.update(constraints.group(client) for client in pending)
        self._chosen: set[ClientId] = set()
        self.slots_left = min(m, self.free_slots(clients))
        self.required = self._required(set(clients)) if constraints.required else []
        if len(self.required) > m:
            if not pending:
                raise ValueError(
                    f"required names {len(self.required)} available clients, more than m = {m}"
                )
            # The others get their slots when pending clients are done.
            self.required = self.required[:m]

    def _required(self, present: set[ClientId]) -> list[ClientId]:
        required = []
        taken: Counter[Hashable] = Counter()
        for client in self._constraints.required:
            group = self._constraints.group(client)
            if client in present and self.free_slots_in(group, len(present)) > taken[group]:
                taken[group] += 1
                required.append(client)
        return required

    def free_slots(self, clients: Sequence[ClientId]) -> int:
        """Return how many of these clients the caps admit, whatever the number of slots."""
        if self._constraints.caps is None:
            return len(clients)
        groups = Counter(self._constraints.group(client) for client in clients)
        return sum(min(n, self.free_slots_in(group, n)) for group, n in groups.items())

    def free_slots_in(self, group: Hashable, otherwise: int) -> int:
        """Return how many more of a group the caps admit, `otherwise` where it has no cap."""
        cap = self._constraints.cap(group)
        return otherwise if cap is None else max(cap - self._taken[group], 0)

    def admit(self, client: ClientId) -> bool:
        """Admit the client unless no slot is left or its group is full; say whether it was."""
        group = self._constraints.group(client)
        if self.slots_left == 0 or client in self._chosen or self.free_slots_in(group, 1) <= 0:
            return False
        self._chosen.add(client)
        self._taken[group] += 1
        self.slots_left -= 1
        return True

    def fill(self, order: Iterable[ClientId]) -> list[ClientId]:
        """Admit clients in this order until no slot is left; return those admitted."""
        admitted: list[ClientId] = []
        for client in order:
            if self.slots_left == 0:
                break
            if self.admit(client):
                admitted.append(client)
        return admitted
