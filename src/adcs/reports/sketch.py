"""Sketches: short representations of clients' updates that keep inner products.

A sketch is a linear map of an update g (d numbers) to k numbers, s = P g, with E[P^T P] = I, so
that s_1 . s_2 is an unbiased estimate of g_1 . g_2 with an error of about
||g_1|| ||g_2|| / sqrt(k). P is never sent and never stored: each of its entries is a hash of the
seed and of the coordinate's position in the update, so a client computes it block by block, and
all clients with the same settings use the same P.

Kinds:

- ``count``: CountSketch. Each coordinate is added, with a random sign, to one of k buckets.
- ``sparse``: very sparse random projections (Li, Hastie and Church, 2006), with s = sqrt(d).
  Each row of P has one entry +-sqrt(s / k), at a random position, in every run of s coordinates;
  the independent entries of Li et al. are as many on average. It makes only k sqrt(d) additions,
  and is less exact when a few coordinates carry the update.
- ``gaussian``: independent normal entries of variance 1 / k. The reference, and slow.

On the wire, little-endian, a sketch is a header of 16 bytes and k values:

====== ======= ====================================================================
offset type    what
====== ======= ====================================================================
0      uint8   version of this layout, 1
1      uint8   kind (0 count, 1 sparse, 2 gaussian) + 16 * dtype (0 float32, 1 int8)
2      uint16  check of the seed
4      uint32  d, how many numbers the update has
8      float32 norm of the update itself, not of its sketch
12     float32 scale: value = scale * stored value; 1 for float32
16     dtype   k stored values; the largest int8 is 127 or -127
====== ======= ====================================================================
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array
from adcs._validation import check_choice, check_int
from adcs.dpp.kernel import as_rows
from adcs.reports.projection import KINDS, Projection, as_layers

DTYPES = ("float32", "int8")

SKETCH_ABOVE = 1_000_000
"""Updates of more numbers than this are sketched unless a scheduler or the user says otherwise."""

_VERSION = 1
_HEADER = struct.Struct("<BBHIff")
# Inside these bounds norms, values and their squares' sums are safe in the formats used here.
_NORM_RANGE = (1e-30, 1e30)
_MAX_UPDATE_SIZE = 2**32 - 1
_MAX_SIZE = 2**31 - 1
_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, eq=False)
class Sketch:
    """A sketch as a server sees it, made by `Sketcher.sketch` or `Sketcher.decode`.

    Attributes
    ----------
    values
        k float32 numbers, read-only. Inner products of two sketches' values approximate those
        of the updates; the values are not scaled to norm one.
    norm
        The update's own norm, exact to float32.
    update_size
        d, how many numbers the update has; None where it is not known. Sketches of updates of
        different sizes must not be compared.
    wire
        The bytes that `encode` returns; None for a sketch that no Sketcher made.

    Examples
    --------
    >>> sketch = Sketcher(size=4).sketch([3.0, 0.0, 4.0])
    >>> sketch.norm, sketch.update_size, len(sketch.encode())
    (5.0, 3, 20)
    """

    values: NDArray[np.float32]
    norm: float
    update_size: int | None = None
    wire: bytes | None = field(default=None, repr=False)

    def encode(self) -> bytes:
        """Return the sketch in its wire format: `Sketcher.nbytes` bytes."""
        if self.wire is None:
            raise ValueError("a sketch can be encoded only if a Sketcher made it")
        return self.wire


@dataclass(frozen=True, eq=False)
class Sketches(Sequence[Sketch]):
    """Sketches of updates of one size, as arrays: a sequence of `Sketch`, made when one is read.

    Attributes
    ----------
    values
        N x k numbers, a row for each sketch.
    norms
        The norms of the N updates.
    update_size
        d, how many numbers each update has; None where it is not known.

    Examples
    --------
    >>> sketches = Sketches(*Sketcher(size=8).sketch_rows([[3.0, 4.0], [0.0, 2.0]]), 2)
    >>> len(sketches), sketches[1].norm
    (2, 2.0)
    """

    values: NDArray[Any]
    norms: Float64Array
    update_size: int | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.norms.shape != self.values.shape[:1]:
            raise ValueError(
                "values must be N x k and norms N numbers, got arrays of shape "
                f"{self.values.shape} and {self.norms.shape}"
            )

    def __len__(self) -> int:
        return len(self.norms)

    @overload
    def __getitem__(self, index: int) -> Sketch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sketch]: ...
    def __getitem__(self, index: int | slice) -> Sketch | list[Sketch]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Sketch(self.values[index], float(self.norms[index]), self.update_size)

    @property
    def are_usable(self) -> bool:
        """Whether all are numbers in the usual range, and none is zero.

        >>> Sketches(np.zeros((1, 4)), np.ones(1)).are_usable
        False
        """
        if self.values.dtype not in (np.float32, np.float64) or self.norms.dtype != np.float64:
            return False
        size = self.update_size
        if size is not None and not (type(size) is int and 1 <= size <= _MAX_UPDATE_SIZE):
            return False
        if self.values.size == 0:
            return False
        high = _NORM_RANGE[1]
        # All are false for NaN.
        peaks = np.maximum(self.values.max(axis=1), -self.values.min(axis=1))
        usual = peaks.min() > 0.0 and peaks.max() <= high
        return bool(usual and self.norms.min() >= 0.0 and self.norms.max() <= high)


@dataclass(frozen=True)
class Sketcher:
    """Turns updates into sketches; clients and server must use the same settings.

    The same settings give the same sketch in every process. An update may come as one array or
    as a list of layers of any shapes: only the order of its numbers matters. The values of
    ``count`` and ``sparse`` are the same to the last bit on every platform, those of
    ``gaussian`` up to rounding.

    Parameters
    ----------
    size
        k, the numbers in a sketch. For cohorts of m clients, max(256, 8 m) is enough.
    kind
        "count", "sparse" or "gaussian".
    dtype
        Type of the values on the wire: "int8" or "float32". int8 is as accurate in practice: its
        rounding is far below the error of the sketch.
    seed
        Determines the random map: 0 to 2**64 - 1.

    Examples
    --------
    >>> import numpy as np
    >>> g = np.random.default_rng(0).normal(size=(2, 1000))
    >>> sketcher = Sketcher(size=256)
    >>> a, b = sketcher.sketch(g[0]), sketcher.sketch(g[0] + g[1])
    >>> bool(abs(a.values @ b.values / (a.norm * b.norm) - 0.7) < 0.1)
    True
    >>> sketcher.nbytes
    272
    >>> Sketcher(size=0)
    Traceback (most recent call last):
    ...
    ValueError: size must be a whole number from 1 to 2147483647, got 0
    """

    size: int = 256
    kind: str = "count"
    dtype: str = "int8"
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("size", self.size, minimum=1, maximum=_MAX_SIZE)
        check_choice("kind", self.kind, KINDS)
        check_choice("dtype", self.dtype, DTYPES)
        check_int("seed", self.seed, minimum=0, maximum=_MAX_SEED)

    @property
    def nbytes(self) -> int:
        """The bytes of every sketch on the wire: 16 + k for int8, 16 + 4 k for float32."""
        return _HEADER.size + self.size * np.dtype(self.dtype).itemsize

    def sketch(self, update: ArrayLike | Sequence[ArrayLike]) -> Sketch:
        """Return the sketch of an update: an array, or a list of layers of any shapes.

        Memory beyond the update is a few blocks, whatever its size.

        >>> layers = Sketcher().sketch([[[1.0, 2.0], [3.0, 4.0]], [5.0]])
        >>> layers.encode() == Sketcher().sketch([1.0, 2.0, 3.0, 4.0, 5.0]).encode()
        True
        >>> Sketcher().sketch([0.0, float("nan")])
        Traceback (most recent call last):
        ...
        ValueError: update must be finite: coordinate 1 is nan
        """
        layers = as_layers(update)
        update_size = _check_update_size(sum(layer.size for layer in layers))
        images, squares = self._projection.layers(layers)
        stored, scales, norms = self._finish(images, squares, update_size, "update")
        start = (_VERSION, self._code, self._seed_check, update_size)
        header = _HEADER.pack(*start, norms[0], scales[0])
        return self.decode(header + stored.astype(self._wire_dtype).tobytes())

    def sketch_rows(self, updates: ArrayLike) -> tuple[NDArray[np.float32], Float64Array]:
        """Return values (N x k) and norms (N) of N updates given as rows.

        Row for row they are the same, to the last bit, as those of `sketch`, and the random map
        is computed once instead of N times.

        >>> values, norms = Sketcher(size=8).sketch_rows([[3.0, 4.0], [0.0, 2.0]])
        >>> values.shape, norms
        ((2, 8), array([5., 2.]))
        """
        rows = as_rows(updates)
        update_size = _check_update_size(rows.shape[1])
        images, squares = self._projection.rows(rows)
        stored, scales, norms = self._finish(images, squares, update_size, "row {}")
        return stored.astype(np.float32) * scales[:, None], norms

    def decode(self, data: bytes) -> Sketch:
        """Return the Sketch in bytes of a client with these settings, or raise ValueError.

        >>> Sketcher().decode(Sketcher(seed=1).sketch([1.0]).encode())
        Traceback (most recent call last):
        ...
        ValueError: sketch was made with another seed than this sketcher's 0
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ValueError(f"sketch must be bytes, got {type(data).__name__}")
        wire = bytes(data)
        if len(wire) != self.nbytes:
            raise ValueError(
                f"sketch of size {self.size} in {self.dtype} must be {self.nbytes} bytes long, "
                f"got {len(wire)}"
            )
        version, code, seed_check, update_size, norm, scale = _HEADER.unpack_from(wire)
        if version != _VERSION:
            raise ValueError(f"sketch must have layout version {_VERSION}, got {version}")
        if code != self._code:
            raise ValueError(
                f"sketch must be of kind {self.kind} in {self.dtype}, got code {code:#04x}"
            )
        if seed_check != self._seed_check:
            raise ValueError(f"sketch was made with another seed than this sketcher's {self.seed}")
        _check_update_size(update_size)
        _check_norm(norm, "sketch")
        stored = np.frombuffer(wire, self._wire_dtype, offset=_HEADER.size)
        if self.dtype == "float32" and scale != 1.0:
            raise ValueError(f"sketch in float32 must have scale 1, got {scale:g}")
        # Through int16, because the magnitude of the int8 -128 is not an int8.
        top = np.abs(stored.astype(np.int16) if self.dtype == "int8" else stored).max()
        if self.dtype == "int8" and top != 127:
            raise ValueError(f"sketch in int8 must have largest magnitude 127, got {top}")
        _check_top(float(top) * scale, norm, update_size, "sketch")
        values = stored.astype(np.float32) * np.float32(scale)
        values.flags.writeable = False
        return Sketch(values=values, norm=norm, update_size=update_size, wire=wire)

    @property
    def _wire_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def _projection(self) -> Projection:
        return Projection(self.kind, self.size, self.seed)

    @property
    def _code(self) -> int:
        return KINDS.index(self.kind) + 16 * DTYPES.index(self.dtype)

    @property
    def _seed_check(self) -> int:
        return self._projection.key >> 48

    def _finish(
        self, images: Float64Array, squares: Float64Array, update_size: int, name: str
    ) -> tuple[NDArray[Any], NDArray[np.float32], Float64Array]:
        """Return stored values, scales and norms, after the checks that `decode` makes."""
        largest = 127.0 if self.dtype == "int8" else 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(squares).astype(np.float32).astype(np.float64)
            tops = np.abs(images).max(axis=1) / largest
            sent = tops.astype(np.float32).astype(np.float64) * largest
        low, high = _NORM_RANGE
        usual = (low <= norms) & (norms <= high) & (1e-6 * norms <= sent)
        usual &= sent <= 10.0 * math.sqrt(update_size) * norms
        for i in np.flatnonzero(~usual).tolist():
            _check_norm(float(norms[i]), name.format(i))
            _check_top(float(sent[i]), float(norms[i]), update_size, name.format(i))
        if self.dtype == "float32":
            return images.astype(np.float32), np.ones(len(images), dtype=np.float32), norms
        # As int8 at once: the -0.0 of a float would not survive the wire.
        return np.rint(images / tops[:, None]).astype(np.int8), tops.astype(np.float32), norms


def default_sketch(
    update_size: int, m: int = 1, *, above: float | None = SKETCH_ABOVE
) -> Sketcher | None:
    """Return the sketcher for updates of so many numbers if the scheduler has none; None for none.

    Parameters
    ----------
    update_size
        d, how many numbers an update has.
    m
        Clients in a cohort: a sketch has max(256, 8 m) numbers.
    above
        Updates of more numbers than this are sketched; None never.

    Examples
    --------
    >>> default_sketch(1_663_370, m=50).size
    400
    >>> default_sketch(7850), default_sketch(1_663_370, above=None)
    (None, None)
    """
    if above is None or update_size <= above:
        return None
    return Sketcher(size=max(256, 8 * m))


def sketch_sentence(update_size: int, sketch: Sketcher, above: float | None) -> str:
    """Return the sentence that says why updates are sketched, for logs and reports.

    >>> sketch_sentence(1_663_370, Sketcher(size=400), 1_000_000)
    'Updates have 1,663,370 numbers, more than sketch_above = 1,000,000: schedulers that read
    updates and have no sketch of their own get sketches of 400 numbers.'
    """
    return (
        f"Updates have {update_size:,} numbers, more than sketch_above = {above:,}: schedulers "
        f"that read updates and have no sketch of their own get sketches of {sketch.size} numbers."
    )


def _check_update_size(update_size: int) -> int:
    if not 1 <= update_size <= _MAX_UPDATE_SIZE:
        raise ValueError(f"update must have 1 to {_MAX_UPDATE_SIZE} coordinates, got {update_size}")
    return update_size


def _check_norm(norm: float, name: str) -> None:
    low, high = _NORM_RANGE
    if not low <= norm <= high:
        raise ValueError(
            f"{name} must have a norm from {low:g} to {high:g} (a zero update has no direction), "
            f"got {norm:g}"
        )


def _check_top(top: float, norm: float, update_size: int, name: str) -> None:
    # No true value is larger. A smaller one is rounding, where an update cancels itself in every
    # bucket; that happens for tiny sketches only.
    if not 1e-6 * norm <= top <= 10.0 * math.sqrt(update_size) * norm:
        raise ValueError(
            f"{name} must have a sketch with its largest value from 1e-6 to 10 sqrt(d) times the "
            f"norm {norm:g}, got {top:g}; if the update cancels itself, use a larger size"
        )
