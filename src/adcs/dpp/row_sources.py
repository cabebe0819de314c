"""Where a greedy search reads inner products from: a kernel, or the rows themselves."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.dpp.kernel import as_table, similarity, unit_rows
from adcs.dpp.tolerances import Scoring

_CHUNK = 1 << 21  # bytes of rows worked on at a time: small enough to stay in cache
_POOL = 1 << 20  # the most entries of the rows in the pool
_KERNEL_POOL = 256  # the fewest rows in the pool of a kernel
_SMALL, _LARGE = 1e-24, 1e24  # squared lengths with which float32 neither over- nor underflows


Projected = tuple[Float64Array, Float64Array | None]  # squares, and their error if not exact
Extended = tuple[float, Float64Array, Float64Array | None]


class RowSource(Protocol):
    """N unit rows, a growing orthonormal basis of the chosen ones, and a pool of rows at hand."""

    n: int
    pool_size: int
    chunk: int  # how many rows to ask projections of at a time

    def restart(self, m: int) -> None:
        """Forget the basis; at most m vectors will follow."""

    def load(self, slots: IndexArray, rows: IndexArray) -> None:
        """Put rows into slots of the pool."""

    def extend(self, slot: int, row: int, square: float) -> Extended:
        """Add a row of the pool to the basis.

        Returns its r^2, by how much that of each row of the pool shrinks, and the error of that.
        """

    def significant(self, slot: int, row: int, square: float, scoring: Scoring) -> bool:
        """Say whether a small r^2 of a row of the pool is more than rounding."""

    def squares(self, rows: IndexArray, bound: Float64Array) -> Float64Array:
        """Return r^2 of rows of the pool exactly; bound is what the pool makes of it."""

    def projections(self, rows: IndexArray, start: int) -> Projected:
        """Return the squared lengths of rows along the basis from start on, and their error."""

    def sharpen(self) -> bool:
        """Make everything as exact as it can be; False if it is already."""


class KernelRowSource:
    """Rows known by their kernel C: a Cholesky factorisation, a column for each row."""

    def __init__(self, kernel: Float64Array) -> None:
        self.n = self.chunk = kernel.shape[0]
        self.pool_size = min(self.n, _KERNEL_POOL + self.n // 32)
        self._c = kernel
        self._held = np.zeros(self.pool_size, dtype=np.intp)

    def restart(self, m: int) -> None:
        """Forget the basis."""
        self._k = self._known = 0
        self._chosen = np.zeros(m, dtype=np.intp)
        self._factor = np.zeros((m, m))
        self._pool = np.empty((m, self._held.size))
        self._all = np.empty((m, self.n))

    def load(self, slots: IndexArray, rows: IndexArray) -> None:
        """Put rows into slots of the pool."""
        self._held[slots] = rows
        if self._k:
            self._pool[: self._k, slots] = self._all[: self._k].take(rows, axis=1)

    def extend(self, slot: int, row: int, square: float) -> Extended:
        """Add a row of the pool to the basis."""
        k, root = self._k, square**0.5
        own, new = self._pool[:k, slot], self._pool[k]
        self._chosen[k] = row
        self._factor[k, :k] = own
        self._factor[k, k] = root
        np.dot(own, self._pool[:k], out=new)
        np.subtract(self._c[row].take(self._held), new, out=new)
        new /= root
        self._k += 1
        return square, new * new, None

    def significant(self, slot: int, row: int, square: float, scoring: Scoring) -> bool:
        """Say whether a small r^2 of a row of the pool is more than rounding."""
        k = self._k
        coefficients = solve_triangular(
            self._factor[:k, :k], self._pool[:k, slot], trans=1, lower=True, check_finite=False
        )
        return scoring.significant(square, coefficients)

    def squares(self, rows: IndexArray, bound: Float64Array) -> Float64Array:
        """Return the bound, which is exact."""
        return bound

    def projections(self, rows: IndexArray, start: int) -> Projected:
        """Return the squared lengths of rows along the basis from start on."""
        old, k = self._known, self._k
        if old < k:
            block = self._c[self._chosen[old:k]]
            block -= self._factor[old:k, :old] @ self._all[:old]
            self._all[old:k] = solve_triangular(
                self._factor[old:k, old:k], block, lower=True, check_finite=False
            )
            self._known = k
        part = self._all[start:k]
        return np.einsum("ij,ij->j", part, part)[rows], None

    def sharpen(self) -> bool:
        """Return False: everything is in float64 from the start."""
        return False


class FeatureRowSource:
    """Rows given as vectors. No N x N or N x m array is formed, nor a copy of the rows.

    The basis is in float64. Rows are looked at in float32, with an error that is bounded and
    reported, until that is not exact enough.
    """

    def __init__(self, features: ArrayLike, *, unit: bool = False, name: str = "features") -> None:
        rows = as_table(features, name)
        squares = squared_lengths(rows)
        clip_outliers = bool((squares > _SMALL).all() and (squares < _LARGE).all())
        if not clip_outliers:  # or not finite, or zero, which unit_rows refuses
            rows = unit_rows(rows, name)
        if unit and not np.allclose(squares, 1.0, rtol=0.0, atol=1e-2):
            worst = int(np.abs(squares - 1.0).argmax())
            raise ValueError(
                f"{name} must have length one where unit=True: "
                f"row {worst} has length {float(np.sqrt(squares[worst])):g}"
            )
        self.n, self._d = rows.shape
        most = max(4, _POOL // self._d)
        self.pool_size = min(self.n, max(most // 4, min(most, self.n // 32)))
        self.chunk = max(1, _CHUNK // (4 * self._d))
        self._x = rows
        self._lengths2 = squares if clip_outliers else squared_lengths(rows)
        # Rounding of a dot product of unit vectors in float32, of the basis and of the lengths.
        self._unit = (min(self._d, 2.0 * self._d**0.5) + 4.0) * 2.0**-24

    def restart(self, m: int) -> None:
        """Forget the basis."""
        self._k = 0
        self._sharp = False
        self._basis = np.empty((m, self._d))
        self._rough = np.empty((m, self._d), dtype=np.float32)
        self._pool: FloatArray = np.zeros((self.pool_size, self._d), np.float32)

    def gram(self) -> Float64Array:
        """Return C of all rows, for when there are few.

        >>> FeatureRowSource([[3.0, 4.0], [0.0, 2.0]]).gram()
        array([[1. , 0.8],
               [0.8, 1. ]])
        """
        return similarity(self._x)

    def load(self, slots: IndexArray, rows: IndexArray) -> None:
        """Put rows into slots of the pool."""
        if self._sharp:
            self._pool[slots] = self._exact(rows)
            return
        block = self._x.take(rows, axis=0).astype(np.float32, copy=False)
        block *= (1.0 / np.sqrt(self._lengths2[rows])).astype(np.float32, copy=False)[:, None]
        self._pool[slots] = block

    def extend(self, slot: int, row: int, square: float) -> Extended:
        """Add a row of the pool to the basis."""
        k = self._k
        vector = self._remainder(row)
        square = float(vector @ vector)
        vector /= square**0.5
        self._basis[k] = self._rough[k] = vector
        self._k += 1
        if self._sharp:
            return square, (self._pool @ vector) ** 2, None
        shrink = (self._pool @ self._rough[k]).astype(np.float64) ** 2
        return square, shrink, self._error(1, shrink)

    def significant(self, slot: int, row: int, square: float, scoring: Scoring) -> bool:
        """Say whether a small r^2 of a row of the pool is more than rounding."""
        vector = self._remainder(row)
        return float(vector @ vector) > scoring.floor

    def _remainder(self, row: int) -> Float64Array:
        """Return what is left of a row outside the basis."""
        basis = self._basis[: self._k]
        vector: Float64Array = self._x[row].astype(np.float64)
        vector /= (vector @ vector) ** 0.5
        vector -= (basis @ vector) @ basis
        if vector @ vector < 0.1:
            # What is left is small beside what was taken away, so a second pass is needed.
            vector -= (basis @ vector) @ basis
        return vector

    def squares(self, rows: IndexArray, bound: Float64Array) -> Float64Array:
        """Return r^2 of rows of the pool in float64."""
        if self._sharp or not self._k:
            return bound
        exact, basis = self._exact(rows), self._basis[: self._k]
        # The product for a handful of rows would spend its time on copying the basis.
        thin = rows.size <= 4
        coordinates = np.array([basis @ row for row in exact]) if thin else exact @ basis.T
        return np.asarray(1.0 - np.einsum("ij,ij->i", coordinates, coordinates))

    def projections(self, rows: IndexArray, start: int) -> Projected:
        """Return the squared lengths of rows along the basis from start on, and their error."""
        first, last = int(rows[0]), int(rows[-1])
        if self._sharp:
            coordinates: FloatArray = self._exact(rows) @ self._basis[start : self._k].T
            return np.einsum("ij,ij->i", coordinates, coordinates), None
        # Nearly all of a stretch: computing it whole is cheaper than copying rows out.
        whole = last - first < 1.3 * rows.size
        block = self._x[first : last + 1] if whole else self._x.take(rows, axis=0)
        coordinates = block.astype(np.float32, copy=False) @ self._rough[start : self._k].T
        squares = np.einsum("ij,ij->i", coordinates, coordinates)
        squares = squares[rows - first] if whole else squares
        out = squares / self._lengths2[rows].astype(np.float64, copy=False)
        return out, self._error(self._k - start, out)

    def sharpen(self) -> bool:
        """Go over to float64 for all rows."""
        if self._sharp:
            return False
        self._sharp = True
        self._pool = np.zeros_like(self._pool, dtype=np.float64)  # and is to be loaded anew
        return True

    def _error(self, count: int, total: Float64Array) -> Float64Array:
        """Return the error of a sum of count squared coordinates in float32."""
        error = np.sqrt(total)
        error *= 2.0 * count**0.5 * self._unit
        error += self._unit * total
        error += count * self._unit**2
        return error

    def _exact(self, rows: IndexArray) -> Float64Array:
        block = self._x.take(rows, axis=0).astype(np.float64, copy=False)
        block /= np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
        return block


def squared_lengths(rows: FloatArray) -> NDArray[np.floating[Any]]:
    """Return the squared length of each row in its own precision.

    >>> squared_lengths(np.array([[3.0, 4.0]]))
    array([25.])
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return np.asarray(np.einsum("ij,ij->i", rows, rows))
