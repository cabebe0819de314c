"""The general bound on the selection bias ||g_S - g_N||, which holds for every cohort.

Write g_S - g_N = G v, where v = a - p: each update's weight in the cohort minus its weight in the
objective. For uniform p, ||G v||^2 = v^T L v <= lambda_max(L) ||v||^2 = lambda_max(L) (1/m - 1/N).

For weights p, a_i = p_i / P_S on the cohort, P_S its total weight. With D = diag(p) and
x = D^{-1/2} v, ||G v||^2 = x^T D^{1/2} L D^{1/2} x, and ||x||^2 = sum (a_i - p_i)^2 / p_i, which is
P_S (1/P_S - 1)^2 + (1 - P_S) = 1/P_S - 1. So

    ||g_S - g_N|| <= sqrt(lambda_max(D^{1/2} L D^{1/2}) (1/P_S - 1)),

the uniform bound when p_i = 1/N and P_S = m/N. Moreover v sums to zero, so x is orthogonal to
sqrt(p): the mean update may be subtracted from all of them first, and lambda_max becomes the
largest eigenvalue of the updates' weighted covariance. That is the centred bound, which is never
the larger one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import Float64Array
from adcs.dpp.kernel import check_m
from adcs.metrics import selection_bias
from adcs.theory.gram import as_weights, cohort_shares, gram_matrix


def general_bound(
    updates: ArrayLike | None = None,
    *,
    m: int,
    gram: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    centred: bool = False,
) -> float:
    """Return a bound on ||g_S - g_N|| that holds for every cohort of m clients.

    Parameters
    ----------
    updates
        N x d, one row for each client; or pass `gram`.
    m
        Cohort size.
    gram
        N x N inner products of updates, instead of them.
    weights
        The clients' weights p in the objective; None means uniform. With other weights the bound
        is that of the cohort with the least total weight.
    centred
        Subtract the mean update first, which gives the sharper bound.

    Examples
    --------
    Four clients with a large common part, in two opposite pairs.

    >>> updates = [[5.0, 1.0], [5.0, 1.0], [5.0, -1.0], [5.0, -1.0]]
    >>> round(general_bound(updates, m=2), 12), round(general_bound(updates, m=2, centred=True), 12)
    (5.0, 1.0)
    >>> bias(updates, chosen=[0, 1]), bias(updates, chosen=[0, 2])
    (1.0, 0.0)
    """
    matrix = gram_matrix(updates, gram)
    n = matrix.shape[0]
    p = as_weights(weights, n)
    least = np.sort(p)[: check_m(m, n)].sum()
    return float(np.sqrt(_spread(matrix, p, centred) * max(1.0 / least - 1.0, 0.0)))


def share_bound(
    gram: ArrayLike, shares: ArrayLike, weights: ArrayLike | None = None, *, centred: bool = False
) -> float:
    """Return the bound for one cohort, given the weight (share) of each client's update in it.

    The shares need not sum to one, except for the centred bound.

    >>> gram = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> round(share_bound(gram, [1.0, 0.0, 0.0]) ** 2, 12)
    1.333333333333
    """
    matrix = gram_matrix(gram=gram)
    p = as_weights(weights, matrix.shape[0])
    a = np.asarray(shares, dtype=np.float64)
    if a.shape != p.shape:
        raise ValueError(f"shares must hold {p.size} numbers, got shape {a.shape}")
    if centred and abs(a.sum() - 1.0) > 1e-9:
        raise ValueError(f"the centred bound needs shares that sum to one, got {a.sum():g}")
    return float(np.sqrt(_spread(matrix, p, centred) * ((a - p) ** 2 / p).sum()))


def bias(
    updates: ArrayLike | None = None,
    *,
    chosen: ArrayLike,
    gram: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> float:
    """Return ||g_S - g_N|| of a cohort.

    >>> bias([[1.0, 0.0], [0.0, 1.0]], chosen=[0]) == 0.5**0.5
    True
    """
    matrix = gram_matrix(updates, gram)
    n = matrix.shape[0]
    return selection_bias(matrix, cohort_shares(chosen, n, weights), as_weights(weights, n))


def _spread(gram: Float64Array, p: Float64Array, centred: bool) -> float:
    """Return lambda_max(D^{1/2} L D^{1/2}), of the centred updates if centred."""
    if centred:
        mean = gram @ p
        gram = gram - mean[:, None] - mean[None, :] + p @ mean
    root = np.sqrt(p)
    return max(float(np.linalg.eigvalsh(root[:, None] * gram * root[None, :])[-1]), 0.0)
