"""Cohorts of clients with usable reports and of clients without.

Clients without a usable report get their proportional share of the slots by a seeded draw, so
that a new client is a fair candidate before the next probe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from adcs._types import ClientId
from adcs.dpp.constraints import Constraints
from adcs.schedulers.base import Cohort, Scheduler
from adcs.schedulers.constraints import CohortBuilder, CohortConstraints
from adcs.schedulers.sampling import stochastic_round

SelectKnown = Callable[[int, Constraints], Cohort]


def select_with_unknown(
    scheduler: Scheduler,
    server_round: int,
    clients: tuple[ClientId, ...],
    m: int,
    known: Sequence[ClientId],
    select_known: SelectKnown,
) -> Cohort:
    """Return a cohort of known clients, chosen by a policy, and of unknown ones, drawn at random.

    Parameters
    ----------
    scheduler, server_round
        Whose constraints hold, and whose random generator draws.
    clients, m
        The clients to choose from, and how many.
    known
        The clients, and the pending ones, that the policy knows by their reports, in order.
    select_known
        The policy: returns the cohort for a number of clients and constraints on positions in
        `known`, in which pending clients are given. It is not called where no slot is left for
        known clients.

    Examples
    --------
    >>> from adcs import Uniform
    >>> first = lambda count, constraints: Cohort.of(["a", "b", "c"][:count])
    >>> cohort = select_with_unknown(Uniform(), 0, tuple("abcdef"), 4, ["a", "b", "c"], first)
    >>> cohort.clients[:2], cohort.diagnostics["drawn"] == list(cohort.clients[2:])
    (('a', 'b'), True)
    """
    builder = scheduler.constraints.builder(clients, m, scheduler.pending)
    pending = set(scheduler.pending)
    candidates = [client for client in known if client not in pending] if pending else known
    drawn: list[ClientId] = []
    unknown: list[ClientId] = []
    if len(candidates) < len(clients):
        rng = scheduler.rng(server_round)
        reported = set(candidates)
        listed = [client for client in clients if client not in reported]
        unknown = [listed[i] for i in rng.permutation(len(listed))]
        share = stochastic_round(builder.slots_left * len(unknown) / len(clients), rng)
        drawn = _draw(scheduler.constraints, builder, unknown, share)
    picked = Cohort((), ())
    count = min(builder.slots_left, builder.free_slots(candidates))
    if count > 0:
        picked = select_known(count, _row_constraints(scheduler, builder, known))
    for client in picked.clients:
        builder.admit(client)
    drawn += builder.fill(unknown)
    weights = picked.weights
    # A client without a report has the mean weight of the others.
    mean = sum(weights) / len(weights) if weights else 1.0
    return Cohort(
        clients=(*picked.clients, *drawn),
        weights=(*weights, *[mean] * len(drawn)),
        diagnostics={**picked.diagnostics, "drawn": drawn},
        awaited=picked.awaited,
    )


def order_with_unknown(
    scheduler: Scheduler,
    server_round: int,
    clients: tuple[ClientId, ...],
    m: int,
    known: Sequence[ClientId],
    order: Callable[[int], Iterable[int]],
) -> Cohort:
    """Return a cohort of the first known clients of an order, and of unknown ones.

    Parameters
    ----------
    scheduler, server_round, clients, m
        As in `select_with_unknown`.
    known
        The clients that the policy knows by their reports, in order; none of them pending.
    order
        The policy: returns positions in `known` in order of preference, for a number of slots.

    Examples
    --------
    >>> from adcs import Uniform
    >>> last_first = lambda count: range(2, -1, -1)
    >>> order_with_unknown(Uniform(), 0, tuple("abc"), 2, ["a", "b", "c"], last_first).clients
    ('c', 'b')
    """

    def select_known(count: int, constraints: Constraints) -> Cohort:
        return Cohort.of([known[i] for i in take_rows(order(count), count, constraints)])

    return select_with_unknown(scheduler, server_round, clients, m, known, select_known)


def take_rows(order: Iterable[int], count: int, constraints: Constraints) -> list[int]:
    """Return the first rows of an order of preference, under caps and required rows.

    >>> take_rows([3, 2, 1, 0], 2, Constraints(required=[0], groups="aabb", caps={"b": 1}))
    [0, 3]
    """
    labels = constraints.groups
    room = dict(constraints.caps) if isinstance(constraints.caps, Mapping) else {}
    chosen: list[int] = []
    taken = set(constraints.given)
    if labels is not None:
        for row in constraints.given:
            if labels[row] in room:
                room[labels[row]] -= 1
    for row in (*constraints.required, *order):
        if len(chosen) == count:
            break
        label = None if labels is None else labels[row]
        if row in taken or room.get(label, 1) <= 0:
            continue
        taken.add(row)
        chosen.append(int(row))
        if label in room:
            room[label] -= 1
    return chosen


def _draw(
    constraints: CohortConstraints, builder: CohortBuilder, unknown: list[ClientId], share: int
) -> list[ClientId]:
    """Admit unknown clients in this order, as many as their share; required ones first."""
    listed = set(unknown)
    drawn = [c for c in builder.required if c in listed and builder.admit(c)]
    reserved = [c for c in builder.required if c not in listed]
    for client in unknown:
        if len(drawn) >= share or builder.slots_left <= len(reserved):
            break
        # The last slots of a group are kept for its required clients.
        group = constraints.group(client)
        held = sum(constraints.group(c) == group for c in reserved)
        if builder.free_slots_in(group, held + 1) > held and builder.admit(client):
            drawn.append(client)
    return drawn


def _row_constraints(
    scheduler: Scheduler, builder: CohortBuilder, known: Sequence[ClientId]
) -> Constraints:
    """Return the constraints on positions in `known`; pending clients are given."""
    rules, pending = scheduler.constraints, set(scheduler.pending)
    given = [i for i, client in enumerate(known) if client in pending] if pending else []
    if not rules:
        return Constraints(given=given)
    labels = [rules.group(client) for client in known]
    index = {client: i for i, client in enumerate(known)}
    held = Counter(labels[i] for i in given)
    return Constraints(
        required=[index[client] for client in builder.required if client in index],
        groups=labels,
        # Given rows count towards these caps, and the builder has counted them already.
        caps={
            label: builder.free_slots_in(label, len(known)) + held[label] for label in set(labels)
        },
        given=given,
    )
