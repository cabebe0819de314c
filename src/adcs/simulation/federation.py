"""The clients of a simulation: their data, their mini-batches, and the evaluation on their data.

A mini-batch is a function of (seed, round, client). Compared runs therefore train on the same
batches (common random numbers), independently of the other runs, and any round can be recomputed.
Examples are sampled with replacement.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from adcs._hashing import GOLDEN, hashes, mix
from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.simulation.datasets.dataset import Dataset
from adcs.simulation.models import Labels, Model, widened
from adcs.simulation.partition import Partition

TEST_CHUNK = 2000
"""Test examples evaluated at a time."""

KEPT_TEST_NUMBERS = 25_000_000
"""Up to this many test features are kept converted to floats: 100 MB as float32."""

FEW_EXAMPLES, AHEAD = 2000, 32
"""Rounds with at most this many examples are sampled this many at a time, which costs little more
than sampling one round."""


class Federation:
    """A data set divided among clients 0, ..., N - 1.

    Parameters
    ----------
    dataset, partition
        The data, and the examples of each client.
    batch_size
        Examples in a mini-batch.
    seed
        Seed of the mini-batches.
    dtype
        The floating-point type of models.

    Examples
    --------
    >>> from adcs.simulation import load, make_partition
    >>> data = load("synthetic:clusters=2,dimension=3")
    >>> federation = Federation(data, make_partition(data, "iid", 6, seed=0), batch_size=4)
    >>> federation.examples(0, np.array([1, 5])).shape
    (2, 4)
    """

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        *,
        batch_size: int = 16,
        seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        self.dataset = dataset
        self.partition = partition
        self.batch_size = batch_size
        self.dtype = np.dtype(dtype)
        self.sizes: IndexArray = np.array([part.size for part in partition.train], dtype=np.intp)
        self.clients = tuple(range(self.sizes.size))
        self._order = np.concatenate(partition.train)
        self._start = np.cumsum(self.sizes) - self.sizes
        # The state of the hash after seed and client.
        self._keys = hashes(seed, np.arange(self.sizes.size))
        self._ahead: dict[int, tuple[int, IndexArray]] = {}

    @property
    def groups(self) -> IndexArray | None:
        """The group of each client; None if the partition has no groups."""
        return None if self.partition.groups is None else np.asarray(self.partition.groups)

    def examples(self, server_round: int, clients: IndexArray, steps: int = 1) -> IndexArray:
        """Return the training examples of the clients' mini-batches: k x (steps * batch)."""
        found: IndexArray
        if self.sizes.size * self.batch_size * steps <= FEW_EXAMPLES:
            start = server_round - server_round % AHEAD
            if self._ahead.get(steps, (-1,))[0] != start:
                everyone = np.arange(self.sizes.size)
                sampled = self._sample(np.arange(start, start + AHEAD), everyone, steps)
                self._ahead[steps] = (start, sampled)
            found = self._ahead[steps][1][server_round - start].take(clients, axis=0)
        else:
            found = self._sample(np.array([server_round]), clients, steps)[0]
        return found

    def _sample(self, rounds: IndexArray, clients: IndexArray, steps: int) -> IndexArray:
        """Return the examples of some rounds: rounds x k x (steps * batch)."""
        with np.errstate(over="ignore"):
            turn = mix(self._keys[clients] + GOLDEN * (rounds + 1).astype(np.uint64)[:, None])
            position = np.arange(1, steps * self.batch_size + 1, dtype=np.uint64)
            bits = mix(turn[..., None] + GOLDEN * position)
        within = ((bits >> np.uint64(32)) * self.sizes[clients].astype(np.uint64)[:, None]) >> (
            np.uint64(32)
        )
        found: IndexArray = self._order[self._start[clients][:, None] + within.astype(np.intp)]
        return found

    def batches(
        self, server_round: int, clients: IndexArray, steps: int = 1
    ) -> tuple[FloatArray, Labels]:
        """Return the clients' mini-batches: x is k x (steps * batch) x features."""
        index = self.examples(server_round, clients, steps)
        x = self.features(self.dataset.x_train, index.ravel())
        return x.reshape(*index.shape, -1), self.dataset.y_train.take(index)

    def all_of(self, client: int) -> tuple[FloatArray, Labels]:
        """Return all training examples of a client."""
        index = self.partition.train[client]
        return self.features(self.dataset.x_train, index), self.dataset.y_train[index]

    def features(self, x: NDArray[Any], index: IndexArray | slice) -> FloatArray:
        """Return rows of stored features as floats, pixels in [0, 1]."""
        rows = x.take(index, axis=0) if isinstance(index, np.ndarray) else x[index]
        numbers: FloatArray = rows.astype(self.dtype)
        if self.dataset.scale != 1.0:
            numbers *= self.dtype.type(self.dataset.scale)
        return numbers

    @cached_property
    def _tested(self) -> tuple[FloatArray | None, Labels, IndexArray, Any]:
        """The test examples of all clients, and the matrix of which client has which example."""
        parts = self.partition.test
        used, inverse = np.unique(np.concatenate(parts), return_inverse=True)
        rows = np.repeat(np.arange(len(parts)), [part.size for part in parts])
        shape = (len(parts), used.size)
        holds = sparse.csr_matrix((np.ones(rows.size), (rows, inverse)), shape=shape)
        few = used.size * self.dataset.x_test.shape[1] <= KEPT_TEST_NUMBERS
        x = self.features(self.dataset.x_test, used) if few else None
        return x, self.dataset.y_test[used], used, holds

    def test(self, model: Model, ws: FloatArray) -> list[tuple[Float64Array, Float64Array]]:
        """Return, for each run's parameters, each client's test accuracy and mean test loss."""
        x, y, used, holds = self._tested
        correct = np.empty((used.size, ws.shape[0]))
        losses = np.empty((used.size, ws.shape[0]))
        for start in range(0, used.size, TEST_CHUNK):
            part = slice(start, start + TEST_CHUNK)
            rows = x[part] if x is not None else self.features(self.dataset.x_test, used[part])
            each = np.arange(len(rows))
            for run, logits in enumerate(widened(model).wide_predict(ws, rows)):
                best = logits.argmax(axis=1)
                top, own = logits[each, best], logits[each, y[part]]
                correct[part, run] = best == y[part]
                total = np.exp(logits - top[:, None]) @ np.ones(logits.shape[1], logits.dtype)
                losses[part, run] = np.log(total) + (top - own)
        counts = np.array([part.size for part in self.partition.test])[:, None]
        accuracy, loss = (holds @ correct) / counts, (holds @ losses) / counts
        return [(accuracy[:, run], loss[:, run]) for run in range(ws.shape[0])]
