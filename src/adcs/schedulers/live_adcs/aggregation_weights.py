"""Aggregation weights with which the updates of a cohort represent those of all clients."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from adcs._types import Float64Array, IndexArray
from adcs.schedulers.live_adcs.kernel import CosineSums

RIDGE = 0.03
"""Squared error that a weight of one adds to the fit, as a fraction of the mean squared norm."""

LEAST_WEIGHT = 0.02
"""No chosen client has less than this fraction of an equal weight."""

MAX_EXPONENT = 500.0
"""The largest exponent in target shares is from -500 to 500: exp overflows at 709."""

MAX_NORM_RATIO = 5.0
"""No update counts as longer than this many times the median."""


def fitted_weights(
    cosines: Float64Array | CosineSums,
    norms: Float64Array,
    log_shares: Float64Array,
    chosen: IndexArray,
    persistence: float = 1.0,
) -> Float64Array:
    """Return weights with which the step of the chosen clients represents the step of all.

    Least squares in the geometry of the updates: sum_S w_i u_i approximates sum_j p_j u_j over all
    clients, with w >= 0 and p_j proportional to exp(log_shares_j). Of a held update only the part
    that persists is the client's next one; the rest is noise. The weights add up to what the
    cohort represents of all clients. What they lack to one is shared equally: it stands for clients
    that no chosen one resembles, and equal weights average noise best. At the end no weight is left
    below `LEAST_WEIGHT` of an equal one.

    Parameters
    ----------
    cosines
        Between the updates of the chosen (rows) and of all (columns): a matrix, or `CosineSums`
        for many clients.
    norms
        Norms of all updates.
    log_shares
        Logarithms of what each client counts in the step to approximate, up to a constant.
    chosen
        Positions of the chosen clients among all.
    persistence
        The cosine between consecutive updates of a client.

    Examples
    --------
    The second of two equal clients is left out; the first counts for both.

    >>> cosines = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> fitted_weights(cosines, np.ones(3), np.zeros(3), np.array([0, 2])).round(2)
    array([0.66, 0.34])

    Two of ten clients that have nothing in common stand for the other eight to equal parts, however
    long their updates are.

    >>> fitted_weights(np.eye(10)[:2], np.arange(1, 11), np.zeros(10), np.arange(2)).round(2)
    array([0.48, 0.52])
    """
    from scipy.optimize import nnls  # here, because `import adcs` is to stay quick

    shares, norms = target_shares(log_shares), scaled_norms(norms)
    if isinstance(cosines, CosineSums):
        gram = cosines.columns(chosen) * norms[chosen, None] * norms[chosen]
        products = norms[chosen] * (cosines @ (norms * shares))
    else:
        gram = cosines * norms[chosen, None] * norms
        products, gram = gram @ shares, gram[:, chosen]
    noise = (1.0 - persistence) * norms[chosen] ** 2
    lower = cholesky(gram + RIDGE * np.eye(chosen.size), lower=True)
    target = solve_triangular(lower, products - noise * shares[chosen], lower=True)
    weights, _ = nnls(lower.T, target)
    weights += max(0.0, 1.0 - weights.sum()) / chosen.size
    return np.asarray(np.maximum(weights / weights.sum(), LEAST_WEIGHT / chosen.size))


def target_shares(log_shares: Float64Array) -> Float64Array:
    """Return what each client counts in the step to approximate, from logarithms up to a constant.

    >>> target_shares(np.log([1.0, 3.0])).round(2)
    array([0.25, 0.75])
    """
    largest = float(log_shares.max())
    shares = np.exp(log_shares - (largest - min(max(largest, -MAX_EXPONENT), MAX_EXPONENT)))
    return np.asarray(shares / shares.sum())


def scaled_norms(norms: Float64Array) -> Float64Array:
    """Return norms of updates, none above `MAX_NORM_RATIO` medians, with a mean square of one.

    >>> scaled_norms(np.array([2.0, 2.0, 100.0])).round(2)
    array([0.33, 0.33, 1.67])
    """
    norms = np.minimum(norms, MAX_NORM_RATIO * np.median(norms))
    mean_square = float((norms**2).mean())
    return norms / np.sqrt(mean_square) if mean_square > 0.0 else np.ones(norms.size)
