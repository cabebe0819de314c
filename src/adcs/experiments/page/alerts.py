"""Alerts in words: clients that fail again and again, sites that nobody trains at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from adcs._types import ClientId

FAILURES = 3
"""A client is named from this many failures in a row on."""

IDLE_ROUNDS = 30
"""A site is named if none of its clients has trained for this many rounds."""

MOST = 8
"""At most this many alerts of a kind are shown."""


def failures_in_a_row(records: Sequence[Mapping[str, Any]]) -> dict[ClientId, int]:
    """Return how often each client has failed since it last trained.

    A failure is an error, a refused reply or no answer in time, once a round.

    >>> failures_in_a_row([
    ...     {"trained": [7], "failed": [{"client": 3, "stage": "training"}]},
    ...     {"trained": [3], "timed_out": {"training": [7]}},
    ...     {"trained": [], "refused": [{"client": 7, "stage": "training"}]},
    ... ])
    {7: 2}
    """
    found: Counter[ClientId] = Counter()
    for record in records:
        for client in record.get("trained") or ():
            found.pop(client, None)
        found.update(failed_clients(record))
    return dict(found)


def failed_clients(record: Mapping[str, Any]) -> set[ClientId]:
    """Return the clients that failed in a round, evaluations aside."""
    entries = [*(record.get("failed") or ()), *(record.get("refused") or ())]
    found = {entry["client"] for entry in entries if entry.get("stage") != "evaluation"}
    for stage, clients in (record.get("timed_out") or {}).items():
        if stage != "evaluation":
            found |= set(clients)
    return found - set(record.get("trained") or ())


def federation_alerts(
    records: Sequence[Mapping[str, Any]],
    clients: Sequence[ClientId],
    groups: Sequence[int | None] | None,
    group_names: Sequence[str],
) -> list[str]:
    """Return the alerts of a federation, the most urgent first.

    Parameters
    ----------
    records
        Its records.
    clients
        The clients.
    groups, group_names
        The group of each client as a position in the names; None without groups.

    Examples
    --------
    >>> record = {"server_round": 40, "trained": [1], "timed_out": {"training": [7]}}
    >>> federation_alerts([record] * 40, [1, 7], [0, 1], ["A", "B"])
    ['Client 7 has failed 40 times in a row.', 'Nobody of site B has trained for 40 rounds.']
    """
    found = []
    if records and not records[-1].get("trained"):
        idle = 0
        for record in reversed(records):
            if record.get("trained"):
                break
            idle += 1
        rounds = "the last round" if idle == 1 else f"the last {idle} rounds"
        found.append(f"No client has trained in {rounds}.")
    failing = sorted(failures_in_a_row(records).items(), key=lambda pair: -pair[1])
    often = [(client, count) for client, count in failing if count >= FAILURES]
    found += [
        f"Client {client} has failed {count} times in a row." for client, count in often[:MOST]
    ]
    if len(often) > MOST:
        found.append(f"{len(often) - MOST} more clients have failed {FAILURES} times or more.")
    if groups is not None:
        trained: dict[ClientId, int] = {}
        for number, record in enumerate(records, start=1):
            trained |= dict.fromkeys(record.get("trained") or (), number)
        for group, name in enumerate(group_names):
            members = [client for client, of in zip(clients, groups, strict=True) if of == group]
            idle = len(records) - max((trained.get(client, 0) for client in members), default=0)
            if idle >= IDLE_ROUNDS:
                found.append(f"Nobody of site {name} has trained for {idle} rounds.")
    return found


def simulation_alerts(
    records: Sequence[Mapping[str, Any]],
    idle: Mapping[str, Sequence[int]],
    groups: Sequence[int] | None,
    names: Sequence[str],
) -> list[str]:
    """Return the alerts of a comparison.

    Parameters
    ----------
    records
        Its records.
    idle
        For each scheduler, the rounds since each client was last selected.
    groups
        The group of each client; None without groups.
    names
        The names of groups.
    """
    found = []
    last: dict[tuple[str, int], Mapping[str, Any]] = {}
    for record in records:
        last[record["scheduler"], record["seed"]] = record
    for (label, seed), record in last.items():
        if record.get("test_loss", 0.0) is None:
            found.append(f"The training of {label} has diverged at seed {seed}.")
    for label, rounds in idle.items():
        if groups is None or not len(rounds):
            continue
        for group, name in enumerate(names):
            members = [r for r, of in zip(rounds, groups, strict=True) if of == group]
            if members and min(members) >= IDLE_ROUNDS:
                found.append(
                    f"{label} has selected nobody of group {name} for {min(members):,} rounds."
                )
    return found[:MOST]
