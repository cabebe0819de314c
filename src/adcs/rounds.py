"""How rounds end, the same in every engine: over-selected, buffered, by learned deadlines.

A synchronous round waits for all clients of its cohort. An over-selected round asks more clients
than it needs and ends with the first m usable replies. A buffered (asynchronous) server changes the
model whenever enough replies are in, and each reply counts by its staleness.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from adcs._types import ClientId
from adcs._validation import check_choice, check_int, check_number

__all__ = ["Buffered", "Deadlines", "over_selected"]

Staleness = Literal["sqrt", "inverse", "constant"]

EXPONENTS: Mapping[str, float] = {"sqrt": 0.5, "inverse": 1.0, "constant": 0.0}
"""A reply that is s versions old counts (1 + s)^-exponent."""

DEVIATIONS = 3.0
"""A client's deadline is this many standard deviations above its usual time, in logarithms."""

LEAST_DEVIATION = 0.25
"""The standard deviation of the logarithm of a client's times counts as at least this."""

LARGEST = 700.0
"""Logarithms of seconds from here on count as endless; exp would overflow soon after."""

MEMORY = 0.8
"""Weight of the times before, at each new time of a client."""


def over_selected(m: int, factor: float) -> int:
    """Return how many clients to ask so that m replies suffice: m times the factor, rounded up.

    >>> over_selected(10, 1.3), over_selected(10, 1.1), over_selected(10, 1.0)
    (13, 11, 10)
    """
    # 10 * 1.1 is 11.000000000000002.
    return math.ceil(round(m * factor, 9))


@dataclass(frozen=True)
class Buffered:
    """Asynchronous rounds with a buffer of replies (FedBuff).

    The server keeps `concurrency` clients at work and changes the model whenever `size` replies are
    in. A reply is based on the version of the model that its client was sent. Its staleness is the
    number of versions since then.

    Parameters
    ----------
    size
        Replies in a buffer, K.
    concurrency
        Clients at work or in the buffer at a time, C; at least `size`.
    staleness
        What a reply of staleness s counts: "sqrt" is 1 / sqrt(1 + s), "inverse" 1 / (1 + s), and
        "constant" 1.

    Examples
    --------
    >>> mode = Buffered(size=5, concurrency=20)
    >>> mode.discount(0), mode.discount(3)
    (1.0, 0.5)

    References
    ----------
    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.
    """

    size: int
    concurrency: int
    staleness: Staleness = "sqrt"

    def __post_init__(self) -> None:
        check_int("size", self.size, minimum=1)
        check_int("concurrency", self.concurrency, minimum=1)
        check_choice("staleness", self.staleness, tuple(EXPONENTS))
        if self.concurrency < self.size:
            raise ValueError(
                f"concurrency must be at least size ({self.size}): a buffer of that many replies "
                f"needs as many clients, got {self.concurrency}"
            )

    def discount(self, staleness: int) -> float:
        """Return what a reply counts that is so many versions old."""
        return float((1.0 + staleness) ** -EXPONENTS[self.staleness])


class Deadlines:
    """How long to wait for each client, learned from its own times.

    A client's deadline lies three standard deviations above its usual time, both of logarithms. A
    client without times gets the deadline of all clients' times together. After a missed deadline a
    client no longer prolongs a round beyond the deadlines of the others, so that a dead client
    stalls one round and not the next. A late reply counts as a time of its client, so that clients
    that have become slower get more time.

    Examples
    --------
    >>> deadlines = Deadlines()
    >>> deadlines.of("a", longest=60.0)  # nothing is known yet
    60.0
    >>> for client, seconds in [("a", 1.0), ("a", 1.2), ("b", 4.0), ("b", 4.1)]:
    ...     deadlines.record(client, seconds)
    >>> [round(deadlines.of(client, longest=60.0), 1) for client in ("a", "b", "c")]
    [2.2, 8.5, 15.7]

    >>> deadlines.wait(["a", "b"], longest=60.0) == deadlines.of("b", longest=60.0)
    True
    >>> deadlines.miss(["b"])
    >>> deadlines.wait(["a", "b"], longest=60.0) == deadlines.of("a", longest=60.0)
    True
    >>> {c: round(at, 1) for c, at in deadlines.limits(["a", "b"], longest=60.0).items()}
    {'a': 2.2, 'b': 2.2}
    """

    def __init__(self) -> None:
        # Of each client, mean and variance of the logarithms of its seconds.
        self._times: dict[ClientId, tuple[float, float]] = {}
        self._missed: dict[ClientId, None] = {}  # ordered, unlike a set

    def __bool__(self) -> bool:
        """Return whether anything is known."""
        return bool(self._times or self._missed)

    def record(self, client: ClientId, seconds: float) -> None:
        """Record how long a client took for a usable reply, in time or late."""
        value = math.log(max(check_number("seconds", seconds, minimum=0), 1e-9))
        self._missed.pop(client, None)
        if client not in self._times:
            self._times[client] = (value, 0.0)
            return
        mean, variance = self._times[client]
        step = (1.0 - MEMORY) * (value - mean)
        self._times[client] = (mean + step, MEMORY * (variance + step * (value - mean)))

    def miss(self, clients: Iterable[ClientId]) -> None:
        """Record clients that gave no usable reply by the end of the wait."""
        self._missed.update(dict.fromkeys(clients))

    def of(self, client: ClientId, longest: float) -> float:
        """Return a client's deadline in seconds, at most `longest`."""
        mean, variance = self._times.get(client) or self._pooled()
        end = mean + DEVIATIONS * max(math.sqrt(variance), LEAST_DEVIATION)
        return min(math.exp(end), longest) if end < LARGEST else longest

    def limits(self, clients: Iterable[ClientId], longest: float) -> dict[ClientId, float]:
        """Return how long a round waits for each of the clients that it asks.

        The limit of a client that has missed its last deadline is at most the largest of the
        others'.
        """
        found = {client: self.of(client, longest) for client in clients}
        reliable = [at for client, at in found.items() if client not in self._missed]
        if not reliable:
            return found
        most = max(reliable)
        return {c: min(at, most) if c in self._missed else at for c, at in found.items()}

    def wait(self, clients: Iterable[ClientId], longest: float) -> float:
        """Return how long to wait if none of these clients answers."""
        return max(self.limits(clients, longest).values(), default=0.0)

    def _pooled(self) -> tuple[float, float]:
        """Return mean and variance over all clients; without any, of an endless time."""
        if not self._times:
            return math.inf, 0.0
        means = [mean for mean, _ in self._times.values()]
        mean = sum(means) / len(means)
        within = sum(variance for _, variance in self._times.values()) / len(means)
        return mean, within + sum((each - mean) ** 2 for each in means) / len(means)

    def rename(self, before: ClientId, since: ClientId) -> None:
        """Pass what is known of a client on to its new id."""
        if before in self._times:
            self._times[since] = self._times.pop(before)
        if before in self._missed:
            del self._missed[before]
            self._missed[since] = None

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "times": [[client, *times] for client, times in self._times.items()],
            "missed": list(self._missed),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self._times = {client: (float(a), float(b)) for client, a, b in state["times"]}
        self._missed = dict.fromkeys(state["missed"])
