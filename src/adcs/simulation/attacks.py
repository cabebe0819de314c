"""Clients that do not tell the truth: what they report and send in place of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from adcs._types import FloatArray, IndexArray
from adcs.simulation.local_rounds import LocalRound, WeightedCohorts, chunks


@dataclass(frozen=True)
class Truth:
    """What clients would report and send in a round.

    Attributes
    ----------
    server_round
        The round, counted from 0.
    clients
        All clients.

    Examples
    --------
    Clients that report the largest loss of all:

    >>> def largest(liars: IndexArray, truth: Truth) -> FloatArray:
    ...     return np.full(liars.size, truth.losses(truth.clients).max())
    """

    server_round: int
    clients: IndexArray
    _local: LocalRound
    _run: int

    def losses(self, clients: IndexArray) -> FloatArray:
        """Return the losses of clients, before they train."""
        self._local.prepare(clients)
        return self._local.losses(self._run, clients)

    def updates(self, clients: IndexArray) -> FloatArray:
        """Return the updates of clients, a row each."""
        self._local.prepare(clients)
        return self._local.updates(self._run, clients)


Lie = Callable[[IndexArray, Truth], FloatArray]
"""What some clients tell, from the clients and the truth."""


class Attack:
    """Some clients that do not tell the truth; `Simulation` takes it as `attack`.

    A subclass overrides `losses`, `updates` or both. Schedulers observe what they return, and the
    server aggregates it. Both are to depend on the round and the truth alone.

    Parameters
    ----------
    clients
        The clients, by number.

    Examples
    --------
    >>> from adcs.schedulers import PowerOfChoice
    >>> from adcs.simulation import MLP, Federation, Simulation, Training, load, make_partition
    >>> class TwiceTheWorst(Attack):
    ...     def losses(self, liars, truth):
    ...         return np.full(liars.size, 2.0 * truth.losses(truth.clients).max())
    >>> data = load("synthetic:clusters=2,dimension=3")
    >>> federation = Federation(data, make_partition(data, "iid", 6, seed=0))
    >>> simulation = Simulation(
    ...     federation,
    ...     MLP(3, 2),
    ...     {"PowerOfChoice": PowerOfChoice()},
    ...     Training(m=2, lr=0.1),
    ...     attack=TwiceTheWorst([1, 4]),
    ... )
    >>> simulation.run(20)
    >>> simulation.evaluate()[0]["counts"]
    array([ 0, 20,  0,  0, 20,  0])
    """

    def __init__(self, clients: Iterable[int]) -> None:
        self.clients = tuple(int(client) for client in clients)

    def losses(self, liars: IndexArray, truth: Truth) -> FloatArray:
        """Return the losses that some of the clients report."""
        return truth.losses(liars)

    def updates(self, liars: IndexArray, truth: Truth) -> FloatArray:
        """Return the updates that some of the clients send, a row each."""
        return truth.updates(liars)


def check_attack(attack: Attack, clients: int) -> Attack:
    """Return an attack; raise ValueError unless its clients are numbers below `clients`.

    >>> check_attack(Attack([2, 7]), clients=5)
    Traceback (most recent call last):
    ...
    ValueError: the clients of an attack must be numbers from 0 to 4, got 7
    """
    for client in attack.clients:
        if not 0 <= client < clients:
            raise ValueError(
                f"the clients of an attack must be numbers from 0 to {clients - 1}, got {client}"
            )
    return attack


class AttackedRound:
    """A `LocalRound` in which some clients do not tell the truth."""

    def __init__(
        self, local: LocalRound, attack: Attack, server_round: int, clients: int, size: int
    ) -> None:
        self._local, self._attack, self._size = local, attack, size
        self._round, self._everyone = server_round, np.arange(clients)
        self._lies = np.isin(self._everyone, attack.clients)

    def prepare(self, clients: IndexArray) -> None:
        """Announce clients."""
        self._local.prepare(clients)

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses that clients report."""
        return self._told(self._local.losses(run, clients), run, clients, self._attack.losses)

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the updates that clients send."""
        return self._told(self._local.updates(run, clients), run, clients, self._attack.updates)

    def aggregate(
        self, cohorts: WeightedCohorts, alone: Collection[int] = frozenset()
    ) -> FloatArray:
        """Return the weighted sum of the updates that clients send."""
        if not any(self._lies[clients].any() for clients, _ in cohorts):
            return self._local.aggregate(cohorts, alone)
        sums = []
        for run, (clients, weights) in enumerate(cohorts):
            total = np.zeros(self._size)
            start = 0
            for part in chunks(clients, self._size):
                total += weights[start : start + part.size] @ self.updates(run, part)
                start += part.size
            sums.append(total)
        dtype = next(self._local.losses(i, c).dtype for i, (c, _) in enumerate(cohorts) if c.size)
        return np.stack(sums).astype(dtype)

    def buffers(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the models' statistics after the training of clients."""
        return self._local.buffers(run, clients)

    def sent_numbers(self, run: int, clients: IndexArray) -> IndexArray:
        """Return how many numbers each client sends beside its update."""
        return self._local.sent_numbers(run, clients)

    def commit(self, run: int, clients: IndexArray) -> None:
        """Keep what clients keep."""
        self._local.commit(run, clients)

    def _told(self, true: FloatArray, run: int, clients: IndexArray, lie: Lie) -> FloatArray:
        """Return true rows, those of the attack's clients replaced."""
        lies = self._lies[clients]
        if not lies.any():
            return true
        told = true.copy()
        told[lies] = lie(clients[lies], Truth(self._round, self._everyone, self._local, run))
        return told
