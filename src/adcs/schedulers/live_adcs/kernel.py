"""Inner products between clients' last updates, kept current row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.schedulers.determinantal import GRAM_LIMIT


class LiveKernel:
    """Directions and lengths of the last updates of clients, numbered from 0.

    An update that arrives replaces its client's row and column; the rest stays. For m arrivals
    among N clients that is an m x N product where rebuilding takes N x N.

    Examples
    --------
    >>> kernel = LiveKernel()
    >>> kernel.put(np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, 1.0]))
    >>> kernel.put(np.array([1]), np.array([[0.6, 0.8]]), np.array([5.0]))
    >>> kernel.products(np.array([0]))
    array([[4., 6.]])
    """

    def __init__(self) -> None:
        self.unit: FloatArray = np.empty((0, 0))
        self.lengths: Float64Array = np.empty(0)
        self._cosines: Float64Array | None = np.empty((0, 0))

    def put(self, clients: IndexArray, unit: FloatArray, lengths: Float64Array) -> None:
        """Take new directions (unit rows) and lengths; clients new to it come in order."""
        count = max(self.lengths.size, int(clients.max()) + 1)
        if count > self.lengths.size:
            self._grow(count, unit)
        self.unit[clients] = unit
        self.lengths[clients] = lengths
        if self._cosines is not None:
            rows = self._multiply(clients)
            # A block multiplied with itself may be off symmetry in its last bits.
            block = rows[:, clients]
            rows[:, clients] = (block + block.T) / 2.0
            rows[np.arange(clients.size), clients] = 1.0
            self._cosines[clients] = rows
            self._cosines[:, clients] = rows.T

    def directions(self, clients: IndexArray) -> FloatArray:
        """Return the unit rows of these clients."""
        return self.unit if self._everyone(clients) else self.unit[clients]

    def cosines(self, clients: IndexArray) -> Float64Array | None:
        """Return the similarity C of these clients, or None where it is not kept."""
        if self._cosines is None or self._everyone(clients):
            return self._cosines
        return np.asarray(self._cosines[np.ix_(clients, clients)])

    def _everyone(self, clients: IndexArray) -> bool:
        return clients.size == self.lengths.size and bool((np.diff(clients) == 1).all())

    def rows(self, clients: IndexArray) -> Float64Array:
        """Return the cosines of these clients' updates with everybody's, a row each."""
        return self._multiply(clients) if self._cosines is None else self._cosines[clients]

    def products(self, clients: IndexArray) -> Float64Array:
        """Return the inner products of these clients' updates with everybody's, a row each."""
        return np.asarray(self.rows(clients) * self.lengths[clients, None] * self.lengths)

    def _multiply(self, clients: IndexArray) -> Float64Array:
        return np.asarray(self.unit[clients] @ self.unit.T, dtype=np.float64)

    def _grow(self, count: int, unit: FloatArray) -> None:
        size = self.lengths.size
        table = np.zeros((count, unit.shape[1]), dtype=unit.dtype)
        table[:size] = self.unit.reshape(size, unit.shape[1])
        self.unit = table
        self.lengths = np.append(self.lengths, np.zeros(count - size))
        if count > GRAM_LIMIT:
            self._cosines = None
        elif self._cosines is not None:
            cosines = np.eye(count)
            cosines[:size, :size] = self._cosines
            self._cosines = cosines

    def state(self) -> dict[str, Any]:
        """Return everything as arrays."""
        cosines = self._cosines
        return {
            "unit": self.unit.copy(),
            "lengths": self.lengths.copy(),
            "cosines": None if cosines is None else cosines.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.unit = np.array(state["unit"])
        self.lengths = np.array(state["lengths"])
        self._cosines = None if state["cosines"] is None else np.array(state["cosines"])
