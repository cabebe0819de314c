"""Cosines between the clients' last updates, kept current row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.schedulers.client_dpp import GRAM_LIMIT

MEMORY = 0.995
"""Forgetting factor of comparisons of updates, at each batch of reports."""

MIN_COMPARISONS = 5.0
"""Persistence is estimated from at least this many comparisons."""


class LiveKernel:
    """Directions and norms of clients' last updates; clients are rows, numbered from 0.

    A new update replaces its client's row and column. For m updates among N clients that is an
    m x N product, where computing all cosines takes N x N.

    Parameters
    ----------
    gram_limit
        Up to this many clients the cosines are kept as a matrix; beyond, they are computed as
        needed.

    Examples
    --------
    >>> kernel = LiveKernel()
    >>> kernel.update(np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, 1.0]))
    >>> kernel.update(np.array([1]), np.array([[0.6, 0.8]]), np.array([5.0]))
    >>> kernel.inner_products(np.array([0]))
    array([[4., 6.]])
    """

    def __init__(self, gram_limit: int = GRAM_LIMIT) -> None:
        self.gram_limit = gram_limit
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self.unit: FloatArray = np.empty((0, 0))
        self.norms: Float64Array = np.empty(0)
        self._cosines: Float64Array | None = np.empty((0, 0))
        self._comparisons: Float64Array = np.zeros(2)  # number, and sum of cosines

    def update(self, rows: IndexArray, directions: FloatArray, norms: Float64Array) -> None:
        """Replace directions (unit vectors) and norms of rows; new rows continue the numbering."""
        count = max(self.norms.size, int(rows.max()) + 1)
        if count > self.norms.size:
            self._grow(count, directions)
        self.unit[rows] = directions
        self.norms[rows] = norms
        if self._cosines is not None:
            fresh = self._multiply(rows)
            # A block multiplied with itself may be off symmetry in its last bits.
            block = fresh[:, rows]
            fresh[:, rows] = (block + block.T) / 2.0
            fresh[np.arange(rows.size), rows] = 1.0
            self._cosines[rows] = fresh
            self._cosines[:, rows] = fresh.T

    def compare(self, rows: IndexArray, directions: FloatArray) -> None:
        """Compare new directions of rows with those held, for `persistence`; new rows are none."""
        held = rows < self.norms.size
        if held.any():
            cosines = np.einsum("ij,ij->i", self.unit[rows[held]], directions[held])
            self._comparisons = MEMORY * self._comparisons + [cosines.size, cosines.sum()]

    @property
    def persistence(self) -> float:
        """The mean cosine between consecutive updates of a client, from 0 to 1.

        Near 1, a held update says what the client would send now. Near 0, it is noise of
        mini-batches and local steps. 1 until a few updates have been compared.
        """
        count, total = self._comparisons
        return min(max(float(total / count), 0.0), 1.0) if count >= MIN_COMPARISONS else 1.0

    def directions(self, rows: IndexArray) -> FloatArray:
        """Return the unit vectors of rows."""
        return self.unit if self._is_everyone(rows) else self.unit[rows]

    def similarity(self, rows: IndexArray) -> Float64Array | None:
        """Return the cosines among rows, or None above `gram_limit` clients."""
        if self._cosines is None or self._is_everyone(rows):
            return self._cosines
        return np.asarray(self._cosines[np.ix_(rows, rows)])

    def cosines(self, rows: IndexArray) -> Float64Array:
        """Return the cosines of some rows with all rows, len(rows) x N."""
        return self._multiply(rows) if self._cosines is None else self._cosines[rows]

    def inner_products(self, rows: IndexArray) -> Float64Array:
        """Return the inner products of some rows' updates with all rows', len(rows) x N."""
        return np.asarray(self.cosines(rows) * self.norms[rows, None] * self.norms)

    def _is_everyone(self, rows: IndexArray) -> bool:
        return rows.size == self.norms.size and bool((np.diff(rows) == 1).all())

    def _multiply(self, rows: IndexArray) -> Float64Array:
        return np.asarray(self.unit[rows] @ self.unit.T, dtype=np.float64)

    def _grow(self, count: int, directions: FloatArray) -> None:
        size, width = self.norms.size, directions.shape[1]
        table = np.zeros((count, width), dtype=directions.dtype)
        table[:size] = self.unit.reshape(size, width)
        self.unit = table
        self.norms = np.append(self.norms, np.zeros(count - size))
        if count > self.gram_limit:
            self._cosines = None
        elif self._cosines is not None:
            cosines = np.eye(count)
            cosines[:size, :size] = self._cosines
            self._cosines = cosines

    def state(self) -> dict[str, Any]:
        """Return everything as arrays."""
        cosines = self._cosines
        return {
            "directions": self.unit.copy(),
            "norms": self.norms.copy(),
            "cosines": None if cosines is None else cosines.copy(),
            "comparisons": self._comparisons.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.unit = np.array(state["directions"])
        self.norms = np.array(state["norms"])
        self._cosines = None if state["cosines"] is None else np.array(state["cosines"])
        self._comparisons = np.array(state["comparisons"])
