"""Aggregation weights with which the updates of a cohort represent those of all clients."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from adcs._types import Float64Array, IndexArray

RIDGE = 0.03
"""Noise assumed in an update, as a fraction of the mean squared norm."""

LEAST_WEIGHT = 0.02
"""No chosen client has less than this fraction of an equal weight."""

MAX_EXPONENT = 500.0
"""The largest exponent of exp in target shares: exp overflows at 709."""

MAX_NORM_RATIO = 5.0
"""No update counts as longer than this many times the median."""


def fitted_weights(
    cosines: Float64Array, norms: Float64Array, log_shares: Float64Array, chosen: IndexArray
) -> Float64Array:
    """Return weights with which the step of the chosen clients is nearest to the step of all.

    Least squares in the geometry of the updates: sum_S w_i u_i approximates sum_j p_j u_j over all
    clients, with w >= 0 and p_j proportional to exp(log_shares_j). The result is scaled to a sum
    of one, and then no weight is left below `LEAST_WEIGHT` of an equal one.

    Parameters
    ----------
    cosines
        Between the updates of the chosen (rows) and of all (columns).
    norms
        Norms of all updates.
    log_shares
        Logarithms of what each client counts in the step to approximate, up to a constant.
    chosen
        Positions of the chosen clients among all.

    Examples
    --------
    The second of two equal clients is left out; the first counts for both.

    >>> cosines = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> fitted_weights(cosines, np.ones(3), np.zeros(3), np.array([0, 2])).round(2)
    array([0.66, 0.34])
    """
    from scipy.optimize import nnls  # here, because `import adcs` is to stay quick

    shares = np.exp(log_shares - max(0.0, float(log_shares.max()) - MAX_EXPONENT))
    shares /= shares.sum()
    norms = np.minimum(norms, MAX_NORM_RATIO * np.median(norms))
    mean_square = float((norms**2).mean())
    norms = norms / np.sqrt(mean_square) if mean_square > 0.0 else np.ones(norms.size)
    gram = cosines * norms[chosen, None] * norms
    inner = gram[:, chosen] + RIDGE * np.eye(chosen.size)
    total = float(shares[chosen].sum())
    own = shares[chosen] / total if total > 0.0 else np.full(chosen.size, 1.0 / chosen.size)
    lower = cholesky(inner, lower=True)
    target = solve_triangular(lower, gram @ shares + RIDGE * own, lower=True)
    weights, _ = nnls(lower.T, target)
    if not weights.sum() > 0.0:
        weights = own
    weights = weights / weights.sum()
    return np.asarray(np.maximum(weights, LEAST_WEIGHT / chosen.size))
