"""The batches of clients' local training: steps, epochs, or all data at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from adcs._hashing import hashes
from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.simulation.federation import Federation
from adcs.simulation.local_training import Batch
from adcs.simulation.models import Labels
from adcs.simulation.training import Training

ORDER = 16
"""Purpose of the hashes of (seed, purpose, round, client) that order examples."""


class Batches:
    """The batches of clients' local training: a number of steps, epochs, or all data at once.

    Parameters
    ----------
    federation
        The clients.
    training
        The settings: `local`, `steps` and `epochs`.
    seed
        Seed of the order of examples in epochs.

    Attributes
    ----------
    full, single
        Whether a client has one batch: of all its data, or a mini-batch.
    epochs
        Passes over a client's data; None for steps on sampled mini-batches.

    Examples
    --------
    >>> from adcs.simulation import load, make_partition
    >>> data = load("synthetic:clusters=2,dimension=3")
    >>> federation = Federation(data, make_partition(data, "iid", 6, seed=0), batch_size=32)
    >>> batches = Batches(federation, Training(m=2, epochs=1), seed=0)
    >>> [len(y) for x, y in batches.of(0, client=1)], int(batches.steps[1])
    ([32, 32, 3], 3)
    """

    def __init__(self, federation: Federation, training: Training, seed: int) -> None:
        self._federation = federation
        self._seed = seed
        self.full = training.local == "full"
        self.epochs = training.epochs
        self.single = training.steps == 1 and not (self.full or training.epochs)
        self._steps = training.steps
        self._batch = federation.batch_size

    @property
    def steps(self) -> IndexArray:
        """The number of steps of each client."""
        sizes = self._federation.sizes
        if self.epochs is None:
            return np.full(sizes.size, self._steps, dtype=np.intp)
        return self.epochs * -(-sizes // self._batch)

    @property
    def relative_work(self) -> Float64Array | None:
        """Each client's steps, relative to the median; None if all have the same number."""
        steps = self.steps
        return None if (steps == steps[0]).all() else steps / np.median(steps)

    def of(self, server_round: int, client: int) -> list[Batch]:
        """Return the batches of one client."""
        if self.full:
            return [self._federation.all_of(client)]
        if self.epochs is not None:
            return self._epochs(server_round, client)
        x, y = self._federation.batches(server_round, np.array([client]), self._steps)
        return [(x[0, part], y[0, part]) for part in self._parts()]

    def stacked(
        self, server_round: int, clients: IndexArray
    ) -> Iterator[tuple[Any, FloatArray, Labels]]:
        """Yield steps of several clients: which of them, and a batch of each of these."""
        if self.epochs is None:
            x, y = self._federation.batches(server_round, clients, self._steps)
            for part in self._parts():
                yield slice(None), x[:, part], y[:, part]
            return
        batches = [self._epochs(server_round, client) for client in clients.tolist()]
        for step in range(max(map(len, batches), default=0)):
            # Last batches may be shorter than the others.
            by_length: dict[int, list[int]] = {}
            for row, own in enumerate(batches):
                if step < len(own):
                    by_length.setdefault(len(own[step][1]), []).append(row)
            for rows in by_length.values():
                x = np.stack([batches[row][step][0] for row in rows])
                yield np.array(rows), x, np.stack([batches[row][step][1] for row in rows])

    def _parts(self) -> list[slice]:
        return [slice(i * self._batch, (i + 1) * self._batch) for i in range(self._steps)]

    def _epochs(self, server_round: int, client: int) -> list[Batch]:
        x, y = self._federation.all_of(client)
        found = []
        for epoch in range(self.epochs or 0):
            bits = hashes(self._seed, ORDER, server_round, client, epoch, np.arange(len(y)))
            order = np.argsort(bits, kind="stable")
            for start in range(0, len(y), self._batch):
                part = order[start : start + self._batch]
                found.append((x[part], y[part]))
        return found
