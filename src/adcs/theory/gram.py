"""Inner products of updates, from which the bounds on the bias are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import Float64Array
from adcs.dpp.kernel import as_rows


def gram_matrix(updates: ArrayLike | None = None, gram: ArrayLike | None = None) -> Float64Array:
    """Return L = G^T G (L_ij = <g_i, g_j>) from updates, one row each, or check a given L.

    >>> gram_matrix([[3.0, 4.0], [0.0, 1.0]])
    array([[25.,  4.],
           [ 4.,  1.]])
    >>> gram_matrix(gram=[[1.0, 0.5], [0.2, 1.0]])
    Traceback (most recent call last):
    ...
    ValueError: gram must be symmetric: entries (0, 1) and (1, 0) are 0.5 and 0.2
    """
    if (updates is None) == (gram is None):
        raise ValueError("give either updates or gram, not both and not neither")
    if gram is None:
        assert updates is not None
        rows = as_rows(updates).astype(np.float64, copy=False)
        product: Float64Array = rows @ rows.T
        return product
    matrix = as_rows(gram, "gram").astype(np.float64, copy=False)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"gram must be square, got shape {matrix.shape}")
    off = np.abs(matrix - matrix.T)
    if off.max() > 1e-6 * np.abs(matrix).max():
        i, j = np.unravel_index(int(off.argmax()), off.shape)
        raise ValueError(
            f"gram must be symmetric: entries ({i}, {j}) and ({j}, {i}) "
            f"are {matrix[i, j]:g} and {matrix[j, i]:g}"
        )
    if matrix.diagonal().min() < 0.0:
        least = int(matrix.diagonal().argmin())
        raise ValueError(
            f"gram must have squared norms on its diagonal: entry {least} is "
            f"{matrix[least, least]:g}"
        )
    return 0.5 * (matrix + matrix.T)


def from_triangle(upper: Sequence[float]) -> Float64Array:
    """Return L from its upper triangle, row by row, as in a run's records.

    >>> from_triangle([4.0, 1.0, 9.0])
    array([[4., 1.],
           [1., 9.]])
    """
    n = (math.isqrt(8 * len(upper) + 1) - 1) // 2
    gram = np.zeros((n, n))
    gram[np.triu_indices(n)] = upper
    return gram + np.triu(gram, 1).T


def cosines(gram: Float64Array) -> Float64Array:
    """Return C_ij = L_ij / sqrt(L_ii L_jj), its diagonal exactly one.

    >>> cosines(np.array([[4.0, 1.0], [1.0, 1.0]]))
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    norms = np.sqrt(gram.diagonal())
    zero = np.flatnonzero(norms == 0.0)
    if zero.size:
        raise ValueError(f"updates must have a direction: row {zero[0]} is zero")
    c: Float64Array = np.clip(gram / norms[:, None] / norms[None, :], -1.0, 1.0)
    np.fill_diagonal(c, 1.0)
    return c


def quadratic(gram: Float64Array, v: Float64Array) -> float:
    """Return ||G v||; a square below zero by rounding counts as zero.

    >>> quadratic(np.eye(2), np.array([3.0, 4.0]))
    5.0
    """
    return float(np.sqrt(max(float(v @ gram @ v), 0.0)))


def as_weights(weights: ArrayLike | None, n: int) -> Float64Array:
    """Return the clients' weights p, scaled to sum to one; None means uniform.

    >>> as_weights([1, 3], 2)
    array([0.25, 0.75])
    """
    if weights is None:
        return np.full(n, 1.0 / n)
    p = np.asarray(weights, dtype=np.float64)
    if p.shape != (n,):
        raise ValueError(f"weights must hold one number for each client ({n}), got {p.shape}")
    bad = np.flatnonzero(~(np.isfinite(p) & (p > 0.0)))
    if bad.size:
        raise ValueError(f"weights must be positive and finite: entry {bad[0]} is {p[bad[0]]:g}")
    scaled: Float64Array = p / p.sum()
    return scaled


def cohort_shares(chosen: ArrayLike, n: int, weights: ArrayLike | None = None) -> Float64Array:
    """Return each client's weight in the cohort's mean: p_i / sum over S of p, or 0.

    >>> cohort_shares([0, 2], 3)
    array([0.5, 0. , 0.5])
    """
    index = np.asarray(chosen, dtype=np.intp)
    if index.ndim != 1 or index.size == 0 or np.unique(index).size != index.size:
        raise ValueError(f"chosen must be distinct indices, at least one, got {chosen!r}")
    if index.min() < 0 or index.max() >= n:
        raise ValueError(f"chosen must lie between 0 and {n - 1}, got {chosen!r}")
    p = as_weights(weights, n)
    shares = np.zeros(n)
    shares[index] = p[index] / p[index].sum()
    return shares
