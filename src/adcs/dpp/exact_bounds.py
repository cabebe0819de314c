"""Upper bounds on determinants of subsets, for branch and bound.

The rows are divided into blocks of similar ones, and entries between blocks are set to zero, which
can only raise a determinant (Fischer's inequality). The best subset of every size is found in each
block by enumeration, and the total size is divided among the blocks in the best way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from adcs._types import Float64Array, IndexArray

_BLOCK = 12  # rows in a block: its 2^12 subsets are enumerated in about a millisecond


def block_bounds(
    kernel: Float64Array,
    weight: Float64Array,
    size: int,
    theta: float,
    floor: float,
    codes: IndexArray,
    caps: IndexArray,
    *,
    kept: bool,
) -> tuple[Float64Array, Float64Array]:
    """Bound (1 - theta) log det + weight over subsets of a size with, and without, each row.

    The subsets are the rows chosen (kept) or the rows left out; caps count the chosen ones.

    >>> kernel, group = np.array([[1.0, 0.6], [0.6, 1.0]]), np.zeros(2, dtype=np.intp)
    >>> block_bounds(kernel, np.zeros(2), 2, 0.0, 1e-14, group, np.array([2]), kept=True)
    (array([-0.446..., -0.446...]), array([-inf, -inf]))
    """
    blocks = _blocks(kernel)
    width = blocks[0].size
    stack = np.zeros((len(blocks), width, width))
    value = np.zeros((len(blocks), width))
    for b, block in enumerate(blocks):
        stack[b, : block.size, : block.size] = kernel[np.ix_(block, block)]
        value[b, : block.size] = weight[block]
    table = _subsets(width)
    worth = (1.0 - theta) * _log_minors(stack, floor) + value @ table.member.T
    for b, block in enumerate(blocks):
        for code in np.flatnonzero(np.bincount(codes[block], minlength=caps.size) > caps):
            mine = table.member[:, : block.size][:, codes[block] == code]
            worth[b, (mine == kept).sum(axis=1) > caps[code]] = -np.inf
    best = np.maximum.reduceat(worth[:, table.by_size], table.starts, axis=1)
    containing = np.full((len(blocks), width, width + 1), -np.inf)
    omitting = containing.copy()
    starts = table.half_starts
    containing[:, :, 1:] = np.maximum.reduceat(worth[:, table.containing], starts, axis=2)
    omitting[:, :, :-1] = np.maximum.reduceat(worth[:, table.omitting], starts, axis=2)
    with_row, without_row = np.empty(weight.size), np.empty(weight.size)
    for b, block in enumerate(blocks):
        others = [best[a] for a in range(len(blocks)) if a != b]
        rest = np.full(size + 1, -np.inf)
        combined = reduce(_combine_sizes, others, np.zeros(1))[: size + 1]
        rest[: combined.size] = combined
        some = min(width, size) + 1
        complement = rest[::-1][:some]
        with_row[block] = (containing[b, : block.size, :some] + complement).max(axis=1)
        without_row[block] = (omitting[b, : block.size, :some] + complement).max(axis=1)
    return with_row, without_row


def _blocks(kernel: Float64Array) -> list[IndexArray]:
    """Divide the rows into blocks of nearly equal size, strongly correlated rows together."""
    n = kernel.shape[0]
    width = -(-n // -(-n // _BLOCK))
    root = np.sqrt(np.diagonal(kernel))
    affinity = (kernel / root[:, None] / root) ** 2
    np.fill_diagonal(affinity, 0.0)
    left = np.ones(n, dtype=bool)
    blocks = []
    while left.any():
        strongest = np.where(left, np.where(left, affinity, 0.0).max(axis=1), -1.0)
        block: list[int] = []
        strength = strongest
        while len(block) < width and left.any():
            pick = int(np.where(left, strength, -1.0).argmax())
            strength = affinity[pick] if not block else strength + affinity[pick]
            block.append(pick)
            left[pick] = False
        blocks.append(np.array(block, dtype=np.intp))
    return blocks


def _log_minors(stack: Float64Array, floor: float) -> Float64Array:
    """Return log det of every principal submatrix of each matrix; bit i of an index is row i."""
    logs = np.zeros((stack.shape[0], 1))
    rest = stack[:, None]
    for _ in range(stack.shape[1]):
        pivot = rest[:, :, 0, 0]
        safe = np.maximum(pivot, floor)
        step = np.where(pivot > floor, np.log(safe), -np.inf)
        column, without = rest[:, :, 1:, 0], rest[:, :, 1:, 1:]
        within = without - (column / safe[..., None])[..., :, None] * column[..., None, :]
        logs = np.concatenate([logs, logs + step], axis=1)
        rest = np.concatenate([without, within], axis=1)
    return logs


def _combine_sizes(a: Float64Array, b: Float64Array) -> Float64Array:
    """Return the best sum for each total size, by max-plus convolution."""
    out = np.full(a.size + b.size - 1, -np.inf)
    for i in range(b.size):
        np.maximum(out[i : i + a.size], a + b[i], out=out[i : i + a.size])
    return out


@dataclass(frozen=True)
class _Subsets:
    """The subsets of a few rows, sorted by size: all, and those with and without each row."""

    member: NDArray[np.bool_]
    by_size: IndexArray
    starts: IndexArray
    containing: IndexArray
    omitting: IndexArray
    half_starts: IndexArray


@lru_cache(maxsize=_BLOCK)
def _subsets(width: int) -> _Subsets:
    member = (np.arange(2**width)[:, None] >> np.arange(width)) & 1 == 1
    size = member.sum(axis=1)
    by_size = np.argsort(size, kind="stable")
    ordered = member[by_size].T
    containing = np.array([by_size[row] for row in ordered])
    omitting = np.array([by_size[~row] for row in ordered])
    return _Subsets(
        member=member,
        by_size=by_size,
        starts=np.searchsorted(size[by_size], np.arange(width + 1)),
        containing=containing,
        omitting=omitting,
        half_starts=np.searchsorted(size[omitting[0]], np.arange(width)),
    )
