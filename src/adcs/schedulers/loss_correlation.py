"""The covariance of clients' loss changes, fitted by maximum likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs.schedulers.base import in_order

LossChanges = Mapping[int, Mapping[ClientId, float]]
"""Loss changes by round and client."""


class LossCorrelation:
    """Sigma = X'X + noise^2 I, with one column of X for each client.

    Parameters
    ----------
    dimension
        The number of rows of X.
    noise
        The standard deviation of the noise.
    learning_rate
        Of Adam.

    Attributes
    ----------
    clients
        The clients with a column.

    Examples
    --------
    >>> model = LossCorrelation(dimension=2)
    >>> changes = {r: {"a": -float(r), "b": -float(r), "c": (-1.0) ** r} for r in range(6)}
    >>> model.fit(changes, steps=500, discount=1.0, rng=np.random.default_rng(0))
    >>> a, b, c = model.factors(["a", "b", "c"]).T
    >>> bool(a @ b > 0.9 * (a @ a) > 5 * abs(a @ c))
    True
    """

    def __init__(
        self, dimension: int = 15, noise: float = 0.01, learning_rate: float = 0.01
    ) -> None:
        self.dimension = dimension
        self.noise = noise
        self.learning_rate = learning_rate
        self.clients: list[ClientId] = []
        self._row: dict[ClientId, int] = {}
        self._columns: Float64Array = np.empty((dimension, 0))

    def __contains__(self, client: object) -> bool:
        return client in self._row

    def factors(self, clients: Sequence[ClientId]) -> Float64Array:
        """Return the columns of X of clients that have one."""
        return np.asarray(self._columns[:, [self._row[client] for client in clients]])

    def fit(
        self, changes: LossChanges, steps: int, discount: float, rng: np.random.Generator
    ) -> None:
        """Maximise the weighted likelihood of the loss changes, from the present X.

        Parameters
        ----------
        changes
            The loss changes.
        steps
            Steps of Adam.
        discount
            The weight of a round falls by this factor with each round of age.
        rng
            Draws the columns of new clients.
        """
        self._add_clients(changes, rng)
        batches = _batches(changes, self._row, discount)
        x = self._columns.copy()
        first, second = np.zeros_like(x), np.zeros_like(x)
        for step in range(1, steps + 1):
            gradient = sum(_gradient(x, self.noise, *batch) for batch in batches)
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * np.square(gradient)
            rate = self.learning_rate / (1.0 - 0.9**step)
            x = x + rate * first / (np.sqrt(second / (1.0 - 0.999**step)) + 1e-8)
        self._columns = x

    def _add_clients(self, changes: LossChanges, rng: np.random.Generator) -> None:
        """Draw a column for each client that has none; the mean of its squared norm is 1."""
        new = in_order({c for change in changes.values() for c in change} - set(self.clients))
        drawn = rng.standard_normal((self.dimension, len(new))) / np.sqrt(self.dimension)
        self._columns = np.concatenate([self._columns, drawn], axis=1)
        self.clients += new
        self._row = {client: i for i, client in enumerate(self.clients)}

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values and arrays."""
        return {"clients": list(self.clients), "columns": self._columns.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.clients = list(state["clients"])
        self._row = {client: i for i, client in enumerate(self.clients)}
        self._columns = np.array(state["columns"], dtype=np.float64).reshape(self.dimension, -1)


Batch = tuple[list[int], Float64Array, Float64Array]
"""Rounds that the same clients reported in: columns of X, changes minus mean, round weights."""


def _batches(changes: LossChanges, row: Mapping[ClientId, int], discount: float) -> list[Batch]:
    """Group rounds by the clients that reported, and subtract each client's weighted mean."""
    newest = max(changes)
    total, weight = np.zeros(len(row)), np.zeros(len(row))
    groups: dict[tuple[int, ...], list[int]] = {}
    for server_round, change in changes.items():
        factor = discount ** (newest - server_round)
        for client, value in change.items():
            total[row[client]] += factor * value
            weight[row[client]] += factor
        columns = tuple(sorted(row[client] for client in change))
        groups.setdefault(columns, []).append(server_round)
    mean = total / np.where(weight > 0.0, weight, 1.0)
    clients = list(row)
    batches = []
    for columns, rounds in groups.items():
        values = np.array([[changes[r][clients[i]] for i in columns] for r in rounds])
        ages = np.array([newest - r for r in rounds], dtype=np.float64)
        batches.append((list(columns), values - mean[list(columns)], discount**ages))
    return batches


def log_likelihood(
    x: Float64Array, noise: float, values: Float64Array, weights: Float64Array
) -> float:
    """Return the weighted log-likelihood of rows of values under N(0, x'x + noise^2 I).

    >>> value = log_likelihood(np.zeros((1, 2)), 1.0, np.zeros((1, 2)), np.ones(1))
    >>> round(value, 4), round(float(-np.log(2 * np.pi)), 4)
    (-1.8379, -1.8379)
    """
    n = x.shape[1]
    small = noise**2 * np.eye(len(x)) + x @ x.T
    log_det = float(np.linalg.slogdet(small)[1]) + 2 * (n - len(x)) * np.log(noise)
    solved = _solve(x, noise, values, small)
    squares = np.einsum("ij,ij->i", values, solved)
    return float(-0.5 * weights @ (squares + log_det + n * np.log(2 * np.pi)))


def _solve(
    x: Float64Array, noise: float, values: Float64Array, small: Float64Array
) -> Float64Array:
    """Return Sigma^-1 applied to each row, by the Woodbury identity."""
    inner = np.linalg.solve(small, x @ values.T)
    return np.asarray((values - inner.T @ x) / noise**2)


def _gradient(
    x: Float64Array,
    noise: float,
    columns: list[int],
    values: Float64Array,
    weights: Float64Array,
) -> Float64Array:
    """Return the gradient of `log_likelihood` of some columns of x; 0 for the others."""
    part = x[:, columns]
    small = noise**2 * np.eye(len(x)) + part @ part.T
    solved = _solve(part, noise, values, small)
    inner = (part @ solved.T) * weights @ solved - weights.sum() * np.linalg.solve(small, part)
    gradient = np.zeros_like(x)
    gradient[:, columns] = inner
    return gradient
