"""Kernels of the determinantal point process: unit vectors, similarity, quality, L = Q C Q.

The paper's objective for a set S (its equation 5) is

    (1 - theta) log det C_S + theta sum_{n in S} q_n,

and it equals (1 - theta) log det L_S for L = Q C Q, Q = diag(exp(alpha q)),
alpha = theta / (2 (1 - theta)). L overflows where alpha q is above 700, so no function in this
package computes L itself: they take similarity C and quality q, and use L as its logarithm.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg.blas import dsymv, idamax

from adcs._types import Float64Array, FloatArray
from adcs._validation import as_numbers, brief, check_int, real

_PART = 1 << 20  # bytes of rows that are scaled at a time
_SAFE_NORM = 1e290  # norms up to this, and down to its inverse, have an exact inverse
_CONVERTED = 2**22  # float32 numbers that are converted to float64 at once, where there are many
_MANY = 2**25


def check_theta(theta: float) -> float:
    """Return theta as a float, or raise ValueError unless it is in [0, 1].

    >>> check_theta(1)
    1.0
    """
    value = real(theta)
    if value is None or not 0.0 <= value <= 1.0:
        raise ValueError(f"theta must lie in [0, 1], got {brief(theta)}")
    return value


def check_m(m: int, n: int) -> int:
    """Return m as an int, or raise ValueError unless it is an integer from 1 to n.

    >>> check_m(4, 3)
    Traceback (most recent call last):
    ...
    ValueError: m must lie between 1 and the number of candidates (3), got 4
    """
    value = check_int("m", m)
    if not 1 <= value <= n:
        raise ValueError(f"m must lie between 1 and the number of candidates ({n}), got {brief(m)}")
    return value


def as_table(updates: ArrayLike, name: str = "updates") -> FloatArray:
    """Return updates as an N x d array: float32 stays float32, all else becomes float64.

    >>> as_table([1.0, 2.0])
    Traceback (most recent call last):
    ...
    ValueError: updates must be a 2-d array, a row each, got 1 dimension(s)
    """
    try:
        array = as_numbers(updates, name)
    except ValueError:
        lengths = _row_lengths(updates)
        if len(lengths) > 1:
            raise ValueError(
                f"{name} must all have the same length, got lengths {lengths}"
            ) from None
        raise
    if array.shape[:1] == (0,):
        raise ValueError(f"{name} must have at least one row, got none")
    if array.ndim != 2:
        raise ValueError(f"{name} must be a 2-d array, a row each, got {array.ndim} dimension(s)")
    if array.shape[1] == 0:
        raise ValueError(f"{name} must have at least one column, got none")
    return array


def as_rows(updates: ArrayLike, name: str = "updates") -> FloatArray:
    """Return updates as a finite N x d array: float32 stays float32, all else becomes float64.

    >>> as_rows([[3, 4], [0, 2]]).dtype
    dtype('float64')
    >>> as_rows([[1.0, 2.0], [float("nan"), 1.0]])
    Traceback (most recent call last):
    ...
    ValueError: updates must be finite: row 1 holds nan
    """
    return _check_finite(as_table(updates, name), name)


def _check_finite(rows: FloatArray, name: str, start: int = 0) -> FloatArray:
    """Return rows, or raise if one is not finite; start is the number of the first."""
    # A sum is finite only if every entry is, and needs no N x d array of booleans. It may also
    # overflow on finite entries, so rows with an infinite sum are checked entry by entry.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = np.flatnonzero(~np.isfinite(rows.sum(axis=1)))
    for i in suspects:
        bad = rows[i][~np.isfinite(rows[i])]
        if bad.size:
            raise ValueError(f"{name} must be finite: row {start + i} holds {bad[0]}")
    return rows


def _row_lengths(updates: Any) -> list[int]:
    try:
        return sorted({int(np.size(row)) for row in updates})
    except Exception:  # rows that are no arrays
        return []


def as_quality(quality: ArrayLike | None, n: int) -> Float64Array:
    """Return quality as n finite float64 numbers; None means n zeros.

    >>> as_quality([1.0, 2.0], 3)
    Traceback (most recent call last):
    ...
    ValueError: quality must hold one number for each of the 3 rows, got shape (2,)
    """
    if quality is None:
        return np.zeros(n)
    q = as_numbers(quality, "quality").astype(np.float64, copy=False)
    if q.shape != (n,):
        raise ValueError(
            f"quality must hold one number for each of the {n} rows, got shape {q.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(q))
    if bad.size:
        raise ValueError(f"quality must be finite: entry {bad[0]} is {q[bad[0]]}")
    return q


def row_norms(rows: FloatArray) -> Float64Array:
    """Return the Euclidean norm of each row; infinite only if the norm is beyond float64.

    >>> row_norms(np.array([[3e200, 4e200], [3e-200, 4e-200]]))
    array([5.e+200, 5.e-200])
    """
    top = np.maximum(rows.max(axis=1), -rows.min(axis=1)).astype(np.float64)
    # Squares of these do not overflow; the other rows are rescaled one by one.
    safe = 1e15 if rows.dtype == np.float32 else 1e140
    with np.errstate(over="ignore", under="ignore"):
        norms: Float64Array = np.sqrt(
            np.einsum("ij,ij->i", rows, rows, dtype=np.float64, optimize=False)
        )
        for i in np.flatnonzero((top > safe) | ((top < 1 / safe) & (top > 0))):
            norms[i] = top[i] * np.linalg.norm(rows[i].astype(np.float64) / top[i])
    return norms


def unit_rows(updates: ArrayLike, name: str = "updates", *, overwrite: bool = False) -> FloatArray:
    """Return the rows scaled to norm one: phi_n = g_n / ||g_n||.

    With `overwrite`, an array of updates is changed in place and returned, where that is possible.

    >>> unit_rows([[3.0, 4.0], [0.0, 2.0]])
    array([[0.6, 0.8],
           [0. , 1. ]])
    >>> unit_rows([[1.0, 2.0], [0.0, 0.0]])
    Traceback (most recent call last):
    ...
    ValueError: updates must have a direction: row 1 is zero
    """
    rows = as_table(updates, name)
    unit = rows if overwrite else np.empty_like(rows)
    # In parts that stay in cache, so that each row is read from memory once.
    size = max(1, _PART // rows[:1].nbytes)
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        _scale_to_one(_check_finite(rows[part], name, start), unit[part], name, start)
    return unit


def _scale_to_one(rows: FloatArray, out: FloatArray, name: str, start: int) -> None:
    """Write rows scaled to norm one; start is the number of the first in an error."""
    norms = row_norms(rows)
    zero = np.flatnonzero(norms == 0.0)
    if zero.size:
        raise ValueError(f"{name} must have a direction: row {start + zero[0]} is zero")
    extreme = np.flatnonzero((norms > _SAFE_NORM) | (norms < 1.0 / _SAFE_NORM))
    if extreme.size:  # float64 only
        rows = rows.copy()
        # A power of two rounds only entries far below the row's largest one.
        with np.errstate(under="ignore"):
            rows[extreme] = np.ldexp(
                rows[extreme], -np.frexp(np.abs(rows[extreme]).max(axis=1))[1][:, None]
            )
        norms[extreme] = row_norms(rows[extreme])
    # Products in float64, rounded to the rows' type without an array in float64.
    np.multiply(rows, (1.0 / norms)[:, None], out=out)


def similarity(rows: FloatArray) -> Float64Array:
    """Return C = Phi^T Phi of the rows' directions in float64, symmetric, its diagonal exactly one.

    Norms come from the same product, so rows that are equal up to their norm have similarity one
    up to float64's rounding, whatever the rows were rounded to.

    >>> similarity(np.array([[1.0, 0.0], [3.0, 3.0]])).round(4)
    array([[1.    , 0.7071],
           [0.7071, 1.    ]])
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        gram = _gram(rows)
    squared_norms = gram.diagonal()
    if not (squared_norms.min() > 1e-200 and squared_norms.max() < 1e200):
        gram = _gram(unit_rows(rows.astype(np.float64, copy=False), "rows"))
    scale = 1.0 / np.sqrt(gram.diagonal())
    gram *= scale
    gram *= scale[:, None]
    np.fill_diagonal(gram, 1.0)
    return gram


def _gram(rows: FloatArray) -> Float64Array:
    """Return the inner products of rows in float64; many numbers are not converted all at once."""
    if rows.dtype == np.float64 or rows.size <= _MANY:
        wide = rows.astype(np.float64, copy=False)
        return np.asarray(wide @ wide.T)
    gram = np.zeros((len(rows), len(rows)))
    step = max(_CONVERTED // len(rows), 1)
    for start in range(0, rows.shape[1], step):
        wide = rows[:, start : start + step].astype(np.float64)
        gram += wide @ wide.T
    return gram


def as_similarity(matrix: ArrayLike) -> Float64Array:
    """Return a similarity matrix as float64, after checking shape, symmetry and diagonal.

    >>> as_similarity([[1.0, 0.5], [0.4, 1.0]])
    Traceback (most recent call last):
    ...
    ValueError: similarity must be symmetric: entries (0, 1) and (1, 0) are 0.5 and 0.4
    """
    c = as_table(matrix, "similarity").astype(np.float64, copy=False)
    if c.shape[0] != c.shape[1]:
        raise ValueError(f"similarity must be square, got shape {c.shape}")
    tolerance = 1e-5 if getattr(matrix, "dtype", None) == np.float32 else 1e-9
    # If the matrix is symmetric, both triangles give the same product with a vector. Comparing
    # all pairs costs far more, and is done only for a matrix that fails.
    probe = _probe(c.shape[0])
    gap = dsymv(1.0, c.T, probe, lower=1)
    gap = dsymv(-1.0, c.T, probe, 1.0, gap, lower=0, overwrite_y=1)
    close = max(gap.max(), -gap.min()) <= 0.5 * tolerance
    if not close:
        as_rows(c, "similarity")
        _check_symmetry(c, tolerance)
    diagonal = c.diagonal()
    worst = int(np.abs(diagonal - 1.0).argmax())
    if abs(diagonal[worst] - 1.0) > tolerance:
        raise ValueError(
            f"similarity must have ones on its diagonal: entry {worst} is {diagonal[worst]:g}; "
            "split_kernel() turns a general kernel into similarity and quality"
        )
    flat = c.ravel(order="K")
    largest = int(idamax(flat))
    if abs(flat[largest]) > 1.0 + tolerance:
        i, j = divmod(largest, c.shape[0])
        raise ValueError(f"similarity must lie in [-1, 1]: entry ({i}, {j}) is {c[i, j]:g}")
    if (diagonal == 1.0).all():
        return c
    c = c.copy()
    np.fill_diagonal(c, 1.0)
    return c


@lru_cache(maxsize=4)
def _probe(n: int) -> Float64Array:
    # Unequal entries, none near zero, so that errors neither vanish nor cancel.
    return np.asarray(0.5 + 0.5 * (np.arange(1, n + 1) * 0.6180339887498949 % 1.0))


def _check_symmetry(c: Float64Array, tolerance: float) -> None:
    with np.errstate(over="ignore"):
        off = np.abs(c - c.T)
    if off.max() > tolerance:
        i, j = np.unravel_index(int(off.argmax()), off.shape)
        raise ValueError(
            f"similarity must be symmetric: entries ({i}, {j}) and ({j}, {i}) "
            f"are {c[i, j]:g} and {c[j, i]:g}"
        )


def alpha(theta: float) -> float:
    """Return alpha = theta / (2 (1 - theta)), infinite at theta = 1.

    >>> round(alpha(0.8), 12)
    2.0
    """
    theta = check_theta(theta)
    return float("inf") if theta == 1.0 else theta / (2.0 * (1.0 - theta))


def log_kernel(
    similarity: ArrayLike, quality: ArrayLike | None, theta: float
) -> tuple[Float64Array, Float64Array]:
    """Return L = Q C Q as (sign, log|L|); L itself may overflow, its logarithm does not.

    >>> sign, log_l = log_kernel([[1.0, 0.5], [0.5, 1.0]], [1000.0, 0.0], theta=0.8)
    >>> log_l.round(3)
    array([[4000.   , 1999.307],
           [1999.307,    0.   ]])
    """
    c = as_similarity(similarity)
    weights = log_weights(quality, c.shape[0], theta)
    with np.errstate(divide="ignore"):
        log_c = np.log(np.abs(c))
    return np.sign(c), log_c + weights[:, None] + weights[None, :]


def log_weights(quality: ArrayLike | None, n: int, theta: float) -> Float64Array:
    """Return alpha q, the logarithm of Q's diagonal.

    >>> log_weights([1.0, 2.0], 2, theta=0.5)
    array([0.5, 1. ])
    >>> log_weights([1e308, 2.0], 2, theta=0.99)
    Traceback (most recent call last):
    ...
    ValueError: quality is too large for weights exp(alpha q) at theta = 0.99: the largest is 1e+308
    """
    if check_theta(theta) == 1.0:
        raise ValueError("theta = 1 has no kernel L: alpha is infinite; theta must be below 1")
    q = as_quality(quality, n)
    with np.errstate(over="ignore"):
        weights: Float64Array = alpha(theta) * q
        if np.isfinite(2.0 * np.abs(weights).sum()):
            return weights
    raise ValueError(
        f"quality is too large for weights exp(alpha q) at theta = {theta:g}: "
        f"the largest is {np.abs(q).max():g}"
    )


def split_kernel(kernel: ArrayLike) -> tuple[Float64Array, Float64Array]:
    """Return (C, q) of a general kernel L, such that theta = 1/2 on them is MAP on L.

    With C_ij = L_ij / sqrt(L_ii L_jj) and q_i = log L_ii, the objective at theta = 1/2 is
    (log det L_S) / 2.

    >>> c, q = split_kernel([[4.0, 1.0], [1.0, 1.0]])
    >>> c
    array([[1. , 0.5],
           [0.5, 1. ]])
    >>> q.round(4)
    array([1.3863, 0.    ])
    """
    matrix = as_rows(kernel, "kernel").astype(np.float64, copy=False)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"kernel must be square, got shape {matrix.shape}")
    diagonal = np.diagonal(matrix)
    bad = np.flatnonzero(diagonal <= 0.0)
    if bad.size:
        raise ValueError(
            f"kernel must have a positive diagonal: entry {bad[0]} is {diagonal[bad[0]]:g}"
        )
    root = np.sqrt(diagonal)
    with np.errstate(over="ignore"):  # an entry far above its diagonal, refused below
        scaled = matrix / root[:, None] / root[None, :]
    return as_similarity(scaled), np.log(diagonal)


def log_det(similarity: FloatArray, subset: ArrayLike) -> float:
    """Return log det C_S, -inf if C_S is singular.

    >>> log_det(np.eye(3), [0, 2])
    0.0
    """
    index = np.asarray(subset, dtype=np.intp)
    with np.errstate(divide="ignore", invalid="ignore"):
        sign, value = np.linalg.slogdet(similarity[np.ix_(index, index)])
    return float(value) if sign > 0 else float("-inf")


def total(values: Float64Array) -> float:
    """Return the sum of values; a sum beyond float64 becomes the largest float64.

    >>> total(np.array([1.5e308, 1.5e308, -1.5e308])), total(np.array([1.5e308, 1.5e308]))
    (1.5e+308, 1.7976931348623157e+308)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        plain = float(values.sum())
        if math.isfinite(plain):
            return plain
        halved = np.ldexp(values, -64).sum()
        most = np.finfo(np.float64).max
        return float(np.clip(np.ldexp(halved, 64), -most, most))


def combine(log_det: float, quality_sum: float, theta: float) -> float:
    """Return (1 - theta) log det C_S + theta sum q, where 0 * inf is 0.

    >>> combine(float("-inf"), 3.0, theta=1.0)
    3.0
    """
    diversity = 0.0 if theta == 1.0 else (1.0 - theta) * log_det
    goodness = 0.0 if theta == 0.0 else theta * quality_sum
    return diversity + goodness


def objective(
    similarity: ArrayLike, subset: ArrayLike, quality: ArrayLike | None = None, theta: float = 0.0
) -> float:
    """Return the paper's objective (1 - theta) log det C_S + theta sum_{n in S} q_n.

    >>> objective([[1.0, 0.6], [0.6, 1.0]], [0, 1], quality=[1.0, 2.0], theta=0.5)
    1.27685...
    """
    theta = check_theta(theta)
    c = as_similarity(similarity)
    index = as_numbers(subset, "subset").astype(np.intp)
    q = as_quality(quality, c.shape[0])
    return combine(log_det(c, index), total(q[index]), theta)
