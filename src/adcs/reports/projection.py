"""Random linear maps from d numbers to k that keep inner products, for vectors of any size.

The map P is never stored. Each of its entries is a hash of the seed and of the coordinate's
position, so a block of it can be computed wherever it is needed. Only the order of the numbers
matters: not how they are split into layers, nor the process, nor NumPy's own random generators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from adcs._hashing import GOLDEN, mix
from adcs._types import Float64Array, FloatArray
from adcs._validation import as_array, brief

KINDS = ("count", "sparse", "gaussian")

# Coordinates, or entries of P, computed at a time: small enough for a core's cache.
_BLOCK = 2**14
_GAUSSIAN_BLOCK = 2**18
_MASK = 2**64 - 1

UInt64Array = NDArray[np.uint64]


@dataclass(frozen=True)
class Projection:
    """A random map P with E[P^T P] = I; `adcs.reports.sketch` describes the kinds.

    Parameters
    ----------
    kind
        "count", "sparse" or "gaussian".
    size
        k, the number of values in the image.
    seed
        Determines P: 0 to 2**64 - 1.

    Examples
    --------
    >>> image, squares = Projection("count", size=4, seed=0).layers([np.array([3.0, 4.0])])
    >>> image.shape, squares
    ((1, 4), array([25.]))
    """

    kind: str
    size: int
    seed: int

    @property
    def key(self) -> int:
        """The start of this map's own stream of hashes."""
        return _mix((_mix(int(self.seed)) + KINDS.index(self.kind)) & _MASK)

    def layers(self, layers: Sequence[NDArray[Any]]) -> tuple[Float64Array, Float64Array]:
        """Return P g (1 x k) and ||g||^2 (1) of one vector g given as arrays one after another."""
        update_size = sum(layer.size for layer in layers)
        return self._project(_blocks(layers, self._step(update_size)), 1, update_size)

    def rows(self, rows: FloatArray) -> tuple[Float64Array, Float64Array]:
        """Return P g (N x k) and ||g||^2 (N) of each row, bit for bit as `layers` would."""
        n, update_size = rows.shape
        step = self._step(update_size)
        return self._project(
            (rows[:, i : i + step] for i in range(0, update_size, step)), n, update_size
        )

    def _step(self, update_size: int) -> int:
        """Return how many coordinates to take at a time."""
        if self.kind == "gaussian":
            return max(1, _GAUSSIAN_BLOCK // self.size)
        if self.kind == "count":
            return _BLOCK
        run = math.isqrt(update_size)
        return run * max(1, min(_BLOCK // run, _BLOCK // self.size))

    def _project(
        self, blocks: Iterable[FloatArray], n: int, update_size: int
    ) -> tuple[Float64Array, Float64Array]:
        sums = np.zeros((n, self.size))
        squares = np.zeros(n)
        start = 0
        # Sums may overflow on their way to being refused by the caller.
        with np.errstate(over="ignore", invalid="ignore"):
            for block in blocks:
                add = self._adder(start, block.shape[1], update_size)
                together = max(1, _BLOCK // max(1, block.shape[1]))
                for first in range(0, n, together):
                    part = slice(first, first + together)
                    x = block[part].astype(np.float64, order="C")
                    squares[part] += np.square(x).sum(axis=1)
                    if not np.isfinite(squares[part]).all():
                        for row in x:
                            _check_finite(row, start)
                    add(x, sums[part])
                start += block.shape[1]
            scale = math.sqrt(math.isqrt(update_size) / self.size) if self.kind == "sparse" else 1.0
            return sums * scale, squares

    def _adder(
        self, start: int, width: int, update_size: int
    ) -> Callable[[Float64Array, Float64Array], None]:
        """Return the function that adds the images of rows of coordinates start to start + width.

        np.add.at adds one number after the other, so the blocks leave no trace in the last bits.
        """
        if self.kind == "gaussian":
            h = _hash(self.key, start * self.size, width * self.size)
            # The middle of 2**53 equal parts of (0, 1): never 0 or 1, where ndtri is infinite.
            uniform = ((h >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
            matrix = ndtri(uniform).reshape(width, self.size) / math.sqrt(self.size)

            def add_gaussian(x: Float64Array, out: Float64Array) -> None:
                for row, image in zip(x, out, strict=True):  # one product rounds differently
                    image += row @ matrix

            return add_gaussian
        if self.kind == "count":
            h = _hash(self.key, start, width)
            buckets, flips = _below(h, self.size), h << np.uint64(63)

            def add_count(x: Float64Array, out: Float64Array) -> None:
                places = np.arange(0, out.size, self.size)[:, None] + buckets
                np.add.at(out.reshape(-1), places.reshape(-1), _flip(x, flips).reshape(-1))

            return add_count
        run = math.isqrt(update_size)
        runs = -(-width // run)
        h = _hash(self.key, start // run * self.size, runs * self.size)
        positions = _below(h, run) + np.repeat(np.arange(runs) * run, self.size)
        rows = np.tile(np.arange(self.size), runs)
        # The last run may be cut short: an entry beyond the end of the vector meets nothing.
        inside = positions < width
        positions, rows, flips = positions[inside], rows[inside], (h << np.uint64(63))[inside]

        def add_sparse(x: Float64Array, out: Float64Array) -> None:
            for row, image in zip(x, out, strict=True):
                np.add.at(image, rows, _flip(row[positions], flips))

        return add_sparse


def as_layers(update: ArrayLike | Sequence[ArrayLike], name: str = "update") -> list[NDArray[Any]]:
    """Return an update, one array or a list of layers, as a list of numeric arrays, uncopied.

    >>> [layer.shape for layer in as_layers([np.ones((2, 3)), np.zeros(3)])]
    [(2, 3), (3,)]
    """
    if hasattr(update, "__array__"):
        update = [update]
    elif not isinstance(update, (list, tuple)):
        raise ValueError(f"{name} must be an array or a list of layers, got {brief(update)}")
    layers = []
    for i, layer in enumerate(update):
        try:
            array = as_array(layer, name)
        except ValueError as error:
            raise ValueError(f"{name} must be numbers: layer {i} cannot be an array") from error
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be numbers: layer {i} is an array of {array.dtype}")
        layers.append(array)
    return layers


def _blocks(layers: Sequence[NDArray[Any]], step: int) -> Iterator[Float64Array]:
    """Yield the numbers of all layers as 1 x step arrays, the last one shorter."""
    block = np.empty((1, step))
    filled = 0
    for layer in layers:
        # reshape would copy a whole layer that is not contiguous; its .flat copies a slice.
        flat = layer.reshape(-1) if layer.flags.c_contiguous else layer.flat
        start = 0
        while start < layer.size:
            stop = min(layer.size, start + step - filled)
            block[0, filled : filled + stop - start] = flat[start:stop]
            filled += stop - start
            start = stop
            if filled == step:
                yield block
                filled = 0
    if filled:
        yield block[:, :filled]


def _check_finite(x: Float64Array, start: int) -> None:
    bad = np.flatnonzero(~np.isfinite(x))
    if bad.size:
        raise ValueError(f"update must be finite: coordinate {start + bad[0]} is {x[bad[0]]}")


@lru_cache(maxsize=64)
def _mix(x: int) -> int:
    """Return the first output of splitmix64 seeded with x: a fixed permutation of 64 bits."""
    return int(_hash(x, 0, 1)[0])


def _hash(key: int, start: int, count: int) -> UInt64Array:
    """Return outputs start to start + count of splitmix64 seeded with key."""
    h = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    h *= GOLDEN
    h += np.uint64(key)
    return mix(h)


def _below(h: UInt64Array, bound: int) -> NDArray[np.int64]:
    """Return numbers from 0 to bound - 1 from the upper 32 bits; bit 0 is left for the sign."""
    return (((h >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).view(np.int64)


def _flip(x: Float64Array, flips: UInt64Array) -> Float64Array:
    """Return x with its sign bit turned over where flips holds 2**63."""
    return (x.view(np.uint64) ^ flips).view(np.float64)
