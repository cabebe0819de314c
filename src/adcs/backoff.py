"""Back-off of failing clients, the same in every engine and for every scheduler.

A client fails in a round in which it was probed or selected and gave no usable reply in time. After
k failures in a row it is left alone for 2^(k-1) rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from adcs._types import ClientId

__all__ = ["EXPIRES_AFTER", "MAX_WAIT", "Backoff", "without_unanswered"]

MAX_WAIT = 64
"""The largest number of rounds for which a failing client is left alone."""

EXPIRES_AFTER = 2
"""After so many failures in a row the learning signals of a client are out of date."""

Stage = Literal["probe", "training"]


class _Failures(NamedTuple):
    """A client's failures in a row: how many, the round of the last, and whether in training."""

    in_a_row: int
    last: int
    in_training: bool

    @property
    def until(self) -> int:
        """The first round in which the client is asked again."""
        # The number of failures has no bound, so the exponent has one.
        return self.last + 1 + min(1 << min(self.in_a_row - 1, 30), MAX_WAIT)


class Backoff:
    """Which clients have failed, and until when each is left alone.

    After its first failure a client is left alone for one round, then for 2, 4, ... rounds, at
    most `MAX_WAIT`. The count starts anew with a usable training reply. A usable answer to a probe
    ends failures in probes only, so that a client that answers probes and cannot train is left
    alone as well. A client that is not available does not fail.

    Attributes
    ----------
    total
        How often clients have failed so far.

    Examples
    --------
    >>> backoff = Backoff()
    >>> backoff.record(0, "training", asked=["a", "b"], usable=["b"])
    []
    >>> backoff.offered(1, ("a", "b", "c"), m=2)
    ('b', 'c')
    >>> backoff.offered(1, ("a", "b", "c"), m=3), backoff.offered(2, ("a", "b", "c"), m=2)
    (('a', 'b', 'c'), ('a', 'b', 'c'))

    After the second failure in a row, what the client had reported is out of date.

    >>> backoff.record(2, "training", asked=["a"], usable=[])
    ['a']
    >>> backoff.waiting(4), backoff.waiting(5)
    (['a'], [])
    """

    def __init__(self) -> None:
        self.total = 0
        self._failing: dict[ClientId, _Failures] = {}
        # The last result; schedulers keep what they derive from a tuple that is passed again.
        self._last: tuple[tuple[ClientId, ...], frozenset[ClientId], tuple[ClientId, ...]]
        self._last = ((), frozenset(), ())

    def __len__(self) -> int:
        """Return how many clients have failed since their last usable reply."""
        return len(self._failing)

    def offered(
        self, server_round: int, available: tuple[ClientId, ...], m: int
    ) -> tuple[ClientId, ...]:
        """Return the available clients that may be asked.

        If fewer than m are left, those whose wait ends soonest are added, up to m.

        Parameters
        ----------
        server_round
            The round.
        available
            The clients that are available; returned as it is if none of them has to wait.
        m
            How many clients will be selected.
        """
        if not self._failing:
            return available
        until = {c: f.until for c, f in self._failing.items() if f.until > server_round}
        left_out = until.keys() & set(available) if until else set[ClientId]()
        missing = m - (len(available) - len(left_out))
        if missing > 0:
            order = sorted(left_out, key=lambda c: (until[c], isinstance(c, str), c))
            left_out = set(order[missing:])
        if not left_out:
            return available
        given, before, result = self._last
        if given is not available or before != left_out:
            result = tuple(client for client in available if client not in left_out)
            self._last = (available, frozenset(left_out), result)
        return result

    def record(
        self,
        server_round: int,
        stage: Stage,
        asked: Iterable[ClientId],
        usable: Collection[ClientId],
    ) -> list[ClientId]:
        """Record who was asked in a round, and who gave a usable reply in time.

        A client fails at most once in a round. Returns the clients that failed now and whose
        evidence is out of date: schedulers expire it.

        Parameters
        ----------
        server_round, stage
            The round, and what clients were asked for.
        asked
            The clients that were probed, or selected.
        usable
            Those whose replies can be used.
        """
        replied = set(usable)
        training = stage == "training"
        expired = []
        for client in asked:
            before = self._failing.get(client)
            if client in replied:
                if before is not None and (training or not before.in_training):
                    del self._failing[client]
                continue
            if before is None:
                before = _Failures(0, -1, False)
            again = before.in_a_row > 0 and before.last == server_round
            self.total += not again
            failures = _Failures(
                before.in_a_row + (not again), server_round, training or before.in_training
            )
            self._failing[client] = failures
            if failures.in_a_row >= EXPIRES_AFTER:
                expired.append(client)
        return expired

    def waiting(self, server_round: int) -> list[ClientId]:
        """Return the clients that are left alone in a round if enough others are available."""
        return [client for client, each in self._failing.items() if each.until > server_round]

    def left_out(self, server_round: int, offered: Collection[ClientId]) -> tuple[ClientId, ...]:
        """Return the clients that have to wait in a round, without those offered all the same."""
        if not self._failing:
            return ()
        asked = set(offered)
        return tuple(client for client in self.waiting(server_round) if client not in asked)

    def rename(self, before: ClientId, since: ClientId) -> None:
        """Pass a client's failures on to its new id."""
        if before in self._failing:
            self._failing[since] = self._failing.pop(before)

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "total": self.total,
            "failing": [[client, *each] for client, each in self._failing.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.total = int(state["total"])
        self._failing = {
            client: _Failures(int(count), int(last), bool(in_training))
            for client, count, last, in_training in state["failing"]
        }


def without_unanswered(
    offered: tuple[ClientId, ...], probed: Iterable[ClientId], answered: Iterable[ClientId]
) -> tuple[ClientId, ...]:
    """Return the clients to select from: those offered that did not fail in the round's probe.

    If all of them did, all are returned.

    >>> without_unanswered(("a", "b", "c"), probed=["a", "b"], answered=["b"])
    ('b', 'c')
    """
    failed = set(probed).difference(answered)
    return tuple(client for client in offered if client not in failed) or offered
