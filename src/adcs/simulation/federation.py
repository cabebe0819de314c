"""The clients of a simulation: their data, their mini-batches, and the evaluation on their data.

A mini-batch is a function of (seed, round, client). Compared runs therefore train on the same
batches (common random numbers), independently of the other runs, and any round can be recomputed.
Examples are sampled with replacement.

A client's test data give its metric (`adcs.metrics.CLIENT_METRICS`) and its mean loss, which is
cross-entropy, or the squared error of a regression.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from adcs import metrics
from adcs._hashing import GOLDEN, hashes, mix
from adcs._types import Float64Array, FloatArray, IndexArray
from adcs._validation import check_choice, check_number
from adcs.simulation.datasets.clients import from_clients
from adcs.simulation.datasets.dataset import Dataset
from adcs.simulation.models import Labels, Model, widened
from adcs.simulation.partition import Partition, natural

log = logging.getLogger(__name__)

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
    metric
        What clients are judged by: "accuracy", "auc" (two classes) or "rmse" (regression). By
        default the first that fits the task.
    histogram_epsilon
        Clients that are asked for their label histogram add noise of this epsilon to it
        (`adcs.reports.count_labels`), the same noise each time; None adds none.

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
        metric: str | None = None,
        histogram_epsilon: float | None = None,
    ) -> None:
        self.metric = check_metric(metric or metrics.default_metric(dataset.task), dataset)
        self.dataset = dataset
        self.partition = partition
        self.batch_size = batch_size
        self.seed = seed
        if histogram_epsilon is not None:
            histogram_epsilon = check_number("histogram_epsilon", histogram_epsilon, above=0)
        self.histogram_epsilon = histogram_epsilon
        self.dtype = np.dtype(dtype)
        self.sizes: IndexArray = np.array([part.size for part in partition.train], dtype=np.intp)
        self.clients = tuple(range(self.sizes.size))
        self._order = np.concatenate(partition.train)
        self._start = np.cumsum(self.sizes) - self.sizes
        # The state of the hash after seed and client.
        self._keys = hashes(seed, np.arange(self.sizes.size))
        self._ahead: dict[int, tuple[int, IndexArray]] = {}
        self._y_train, self._y_test = dataset.y_train, dataset.y_test
        if dataset.task == "regression":
            self._y_train = self._y_train.astype(self.dtype)
            self._y_test = self._y_test.astype(self.dtype)

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[Any, Any],
        *,
        batch_size: int = 16,
        seed: int = 0,
        dtype: Any = np.float32,
        metric: str | None = None,
        histogram_epsilon: float | None = None,
        **settings: Any,
    ) -> Federation:
        """Return the federation of one's own clients.

        Parameters
        ----------
        clients
            The data of each client, by its id: ``{id: ((x_train, y_train), (x_test, y_test))}``, or
            tables; see `adcs.simulation.from_clients`.
        batch_size, seed, dtype, metric, histogram_epsilon
            Those of a federation.
        **settings
            Further ones of `adcs.simulation.from_clients`, such as ``task="regression"``.

        Examples
        --------
        >>> x, y = np.eye(4), [0, 1, 0, 1]
        >>> federation = Federation.from_clients({"ann": ((x, y), (x, y)), "bob": ((x, y), (x, y))})
        >>> federation.partition.names, federation.sizes
        (('ann', 'bob'), array([4, 4]))
        """
        dataset = from_clients(clients, **settings)
        partition = natural(dataset, len(dataset.client_names), seed=seed)
        return cls(
            dataset,
            partition,
            batch_size=batch_size,
            seed=seed,
            dtype=dtype,
            metric=metric,
            histogram_epsilon=histogram_epsilon,
        )

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
        return x.reshape(*index.shape, -1), self._y_train.take(index)

    def all_of(self, client: int) -> tuple[FloatArray, Labels]:
        """Return all training examples of a client."""
        index = self.partition.train[client]
        return self.features(self.dataset.x_train, index), self._y_train[index]

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
        return x, self._y_test[used], used, holds

    @cached_property
    def judged(self) -> NDArray[np.bool_]:
        """Which clients have a value of the metric: an AUC takes both classes in the test data."""
        if self.metric != "auc":
            return np.ones(len(self.clients), dtype=bool)
        found = np.array([np.unique(self._y_test[t]).size > 1 for t in self.partition.test])
        if not found.any():
            raise ValueError(f"{self.dataset.name}: no client has both classes to test an AUC on")
        if not found.all():
            none = int((~found).sum())
            log.info("%d of %d clients have one class of test examples: no AUC", none, found.size)
        return found

    def summary(self, values: Float64Array) -> dict[str, float]:
        """Return worst, worst20, average and std over the clients that have the metric."""
        lower = metrics.CLIENT_METRICS[self.metric].lower_is_better
        return metrics.summary(values[self.judged], lower_is_better=lower)

    def test(self, model: Model, ws: FloatArray) -> list[tuple[Float64Array, Float64Array]]:
        """Return, for each run's parameters, each client's metric and mean test loss."""
        x, y, used, holds = self._tested
        scores = np.empty((used.size, ws.shape[0]))
        losses = np.empty((used.size, ws.shape[0]))
        of_batch = {"accuracy": _accuracy, "auc": _margin, "rmse": _squared_error}[self.metric]
        for start in range(0, used.size, TEST_CHUNK):
            part = slice(start, start + TEST_CHUNK)
            rows = x[part] if x is not None else self.features(self.dataset.x_test, used[part])
            for run, outputs in enumerate(widened(model).wide_predict(ws, rows)):
                scores[part, run], losses[part, run] = of_batch(outputs, y[part])
        counts = np.array([part.size for part in self.partition.test])[:, None]
        loss = (holds @ losses) / counts
        if self.metric == "auc":
            values = self._auc(scores, y == 1, holds)
        else:
            values = (holds @ scores) / counts
            if self.metric == "rmse":
                values = np.sqrt(values)
        return [(values[:, run], loss[:, run]) for run in range(ws.shape[0])]

    def _auc(self, scores: Float64Array, positive: NDArray[np.bool_], holds: Any) -> Float64Array:
        """Return the AUC of each client and run, NaN for clients without."""
        values = np.full((len(self.clients), scores.shape[1]), np.nan)
        for client in np.flatnonzero(self.judged):
            own = holds.indices[holds.indptr[client] : holds.indptr[client + 1]]
            for run in range(scores.shape[1]):
                values[client, run] = metrics.auc(scores[own, run], positive[own])
        return values


def check_metric(metric: str, dataset: Dataset) -> str:
    """Return a metric, or raise ValueError unless it fits the data.

    >>> from adcs.simulation import load
    >>> check_metric("auc", load("digits"))
    Traceback (most recent call last):
    ...
    ValueError: metric auc takes two classes, digits has 10
    """
    check_choice("metric", metric, metrics.CLIENT_METRICS)
    task = metrics.CLIENT_METRICS[metric].task
    if task != dataset.task:
        raise ValueError(f"metric {metric} is for {task}, {dataset.name} is for {dataset.task}")
    if metric == "auc" and dataset.classes != 2:
        raise ValueError(f"metric auc takes two classes, {dataset.name} has {dataset.classes}")
    return metric


def _accuracy(logits: FloatArray, y: Labels) -> tuple[NDArray[np.bool_], FloatArray]:
    """Return whether the largest logit is the label's, and the cross-entropy, of each example."""
    each = np.arange(len(y))
    best = logits.argmax(axis=1)
    top, own = logits[each, best], logits[each, y]
    total = np.exp(logits - top[:, None]) @ np.ones(logits.shape[1], logits.dtype)
    losses: FloatArray = np.log(total) + (top - own)
    return best == y, losses


def _margin(logits: FloatArray, y: Labels) -> tuple[FloatArray, FloatArray]:
    """Return by how much the second logit is the larger, and the cross-entropy."""
    return logits[:, 1] - logits[:, 0], _accuracy(logits, y)[1]


def _squared_error(outputs: FloatArray, y: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """Return the squared error of each example, twice: it is the score and the loss."""
    error: FloatArray = (outputs[:, 0] - y) ** 2
    return error, error
