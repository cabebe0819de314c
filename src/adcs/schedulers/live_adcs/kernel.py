"""Cosines between the clients' last updates, kept current row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.dpp.greedy_lazy import squared_norms
from adcs.schedulers.client_dpp import GRAM_LIMIT

MEMORY = 0.95
"""Forgetting factor of the comparisons of a client's updates."""

MIN_COMPARED = 5
"""Persistence is estimated from at least this many clients, or from all if there are fewer."""


_PART = 1 << 16  # bytes of rows that are compared at a time
_CHUNK = 4096  # rows that are summed in their own precision


class LiveKernel:
    """Directions and norms of clients' last updates; clients are rows, numbered from 0.

    A new update replaces its client's row and column. For m updates among N clients that is an
    m x N product, where computing all cosines takes N x N. Where the cosines are not kept as a
    matrix, nothing of size m x N is computed: sums over rows come from sums of directions.

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
        self.squares: FloatArray = np.empty(
            0
        )  # squared norms of the rows of unit, one up to rounding
        self.norms: Float64Array = np.empty(0)
        self._cosines: Float64Array | None = np.empty((0, 0))
        self._compared: Float64Array = np.empty(0)  # mean cosines of consecutive updates, NaN: none
        self._persistence: float | None = None  # to be computed

    def update(self, rows: IndexArray, directions: FloatArray, norms: Float64Array) -> None:
        """Replace directions (unit vectors) and norms of rows; new rows continue the numbering.

        The array of directions is taken over, not copied, where it has all rows in order.
        """
        count = max(self.norms.size, int(rows.max()) + 1)
        if self.norms.size == 0 and rows.size == count and _is_range(rows):
            self._grow(count, directions[:0])
            self.unit = directions
        else:
            if count > self.norms.size:
                self._grow(count, directions)
            self.unit[rows] = directions
        self.squares[rows] = squared_norms(directions)
        self.norms[rows] = norms
        if self._cosines is not None:
            # Rows held have the type of the first ones. A product of an array with itself would be
            # computed otherwise, and be rounded otherwise.
            same = directions.dtype == self.unit.dtype and directions is not self.unit
            fresh = self._multiply(directions if same else self.unit[rows])
            # A block multiplied with itself may be off symmetry in its last bits, and beyond one.
            np.clip(fresh, -1.0, 1.0, out=fresh)
            block = fresh[:, rows]
            fresh[:, rows] = (block + block.T) / 2.0
            fresh[np.arange(rows.size), rows] = 1.0
            self._cosines[rows] = fresh
            self._cosines[:, rows] = fresh.T

    def compare(
        self, rows: IndexArray, directions: FloatArray, mask: NDArray[np.bool_] | None = None
    ) -> None:
        """Compare new directions of rows with those held, for `persistence`; new rows are none.

        A mask leaves the other rows out.
        """
        held = rows < self.norms.size
        if mask is not None:
            held &= mask
        if held.any():
            found, at = held.nonzero()[0], rows[held]
            size = max(1, _PART // self.unit[:1].nbytes)  # few rows at a time stay in cache
            cosines = np.concatenate(
                [
                    np.einsum(
                        "ij,ij->i", self.unit[at[i : i + size]], directions[found[i : i + size]]
                    )
                    for i in range(0, at.size, size)
                ]
            )
            before = self._compared[at]
            mean = MEMORY * before + (1.0 - MEMORY) * cosines
            self._compared[at] = np.where(np.isnan(before), cosines, mean)
            self._persistence = None

    @property
    def persistence(self) -> float:
        """The cosine between consecutive updates of a client, from 0 to 1: the median client's.

        Near 1, a held update says what the client would send now. Near 0, it is noise of
        mini-batches and local steps. 1 until the updates of a few clients have been compared. A few
        clients whose updates are noise, or lies, do not change the median by much.
        """
        if self._persistence is None:
            found = self._compared[~np.isnan(self._compared)]
            enough = found.size >= max(1, min(MIN_COMPARED, self.norms.size))
            self._persistence = min(max(float(np.median(found)), 0.0), 1.0) if enough else 1.0
        return self._persistence

    def similarity(self, rows: IndexArray) -> Float64Array | None:
        """Return the cosines among rows, or None above `gram_limit` clients."""
        if self._cosines is None or self._is_everyone(rows):
            return self._cosines
        return np.asarray(self._cosines[np.ix_(rows, rows)])

    def cosines(self, rows: IndexArray) -> Float64Array:
        """Return the cosines of some rows with all rows, len(rows) x N."""
        return self._multiply(self.unit[rows]) if self._cosines is None else self._cosines[rows]

    def cosine_rows(self, rows: IndexArray) -> Callable[[int], Float64Array]:
        """Return a function that gives the cosines of the i-th of some rows with all of them."""
        if (kept := self._cosines) is not None:
            return lambda i: kept[rows[i], rows]
        unit = self.unit[rows]
        return lambda i: np.asarray(unit @ unit[i], dtype=np.float64)

    def cosine_sums(self, rows: IndexArray, weights: Float64Array) -> Float64Array:
        """Return, for each of some rows, its cosines with all of them, weighted and summed."""
        if not self._is_everyone(rows):
            scattered = np.zeros(self.norms.size)
            scattered[rows] = weights
            weights = scattered
        if self._cosines is not None:
            return np.asarray((self._cosines @ weights)[rows])
        total = _weighted_sum(self.unit, weights).astype(self.unit.dtype)
        return (self.unit @ total)[rows].astype(np.float64)

    def sum_products(self, rows: IndexArray, shares: Float64Array) -> Float64Array:
        """Return the inner products of a weighted sum of some rows' updates with all updates."""
        if self._cosines is not None:
            return np.asarray(shares @ self.inner_products(rows))
        step = (shares * self.norms[rows]) @ self.unit[rows].astype(np.float64)
        norm = float(np.linalg.norm(step))
        direction = (step / norm if norm > 0.0 else step).astype(self.unit.dtype)
        products: Float64Array = (self.unit @ direction).astype(np.float64)
        products *= norm
        products *= self.norms
        return products

    def inner_products(self, rows: IndexArray) -> Float64Array:
        """Return the inner products of some rows' updates with all rows', len(rows) x N."""
        return np.asarray(self.cosines(rows) * self.norms[rows, None] * self.norms)

    def _is_everyone(self, rows: IndexArray) -> bool:
        return rows.size == self.norms.size and _is_range(rows)

    def _multiply(self, directions: FloatArray) -> Float64Array:
        return np.asarray(directions @ self.unit.T, dtype=np.float64)

    def _grow(self, count: int, directions: FloatArray) -> None:
        size, width = self.norms.size, directions.shape[1]
        table = np.zeros((count, width), dtype=directions.dtype)
        table[:size] = self.unit.reshape(size, width)
        self.unit = table
        self.squares = np.append(self.squares, np.zeros(count - size)).astype(table.dtype)
        self.norms = np.append(self.norms, np.zeros(count - size))
        self._compared = np.append(self._compared, np.full(count - size, np.nan))
        self._persistence = None  # How many comparisons are enough depends on the clients.
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
            "compared": self._compared.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.unit = np.array(state["directions"])
        self.squares = squared_norms(self.unit)
        self.norms = np.array(state["norms"])
        self._cosines = None if state["cosines"] is None else np.array(state["cosines"])
        # States of earlier versions lack it.
        self._compared = np.array(state.get("compared", np.full(self.norms.size, np.nan)))
        self._persistence = None


def _weighted_sum(rows: FloatArray, weights: Float64Array) -> Float64Array:
    """Return a weighted sum of rows: of few in their own precision, of these sums in float64."""
    narrow = weights.astype(rows.dtype)
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        total += narrow[part] @ rows[part]
    return total


def _is_range(rows: IndexArray) -> bool:
    """Return whether rows are 0, 1, 2 and so on, up to an offset."""
    return bool((rows[1:] - rows[:-1] == 1).all())
