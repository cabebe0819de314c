"""Weights with which a few clients' updates stand for all."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from adcs._types import Float64Array, IndexArray

RIDGE = 0.03
"""Noise assumed in an update when weights are fitted, as a share of the mean squared length."""

LEAST_WEIGHT = 0.02
"""No chosen client counts less than this share of an equal weight."""


def fitted_weights(
    cosines: Float64Array, lengths: Float64Array, share: Float64Array, chosen: IndexArray
) -> Float64Array:
    """Return weights of the chosen with which their step resembles the one wanted.

    Least squares in the geometry of the updates: sum_S w_i u_i is to be sum_j share_j u_j over
    all, with w not negative. What comes out is scaled to a sum of one, and then no weight is left
    below a small one.

    Parameters
    ----------
    cosines
        Between the updates of the chosen (rows) and of all (columns).
    lengths, share
        Of all: how long their updates are, and what they count in the step wanted.
    chosen
        The places of the chosen among all.

    Examples
    --------
    The second of two alike clients is left out; the first counts for both.

    >>> cosines = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> fitted_weights(cosines, np.ones(3), np.full(3, 1 / 3), np.array([0, 2])).round(2)
    array([0.66, 0.34])
    """
    from scipy.optimize import nnls  # here, because `import adcs` is to stay quick

    mean_square = float((lengths**2).mean())
    lengths = lengths / np.sqrt(mean_square) if mean_square > 0.0 else np.ones(lengths.size)
    gram = cosines * lengths[chosen, None] * lengths
    inner = gram[:, chosen] + RIDGE * np.eye(chosen.size)
    total = float(share[chosen].sum())
    own = share[chosen] / total if total > 0.0 else np.full(chosen.size, 1.0 / chosen.size)
    lower = cholesky(inner, lower=True)
    wanted = solve_triangular(lower, gram @ share + RIDGE * own, lower=True)
    weights, _ = nnls(lower.T, wanted)
    if not weights.sum() > 0.0:
        weights = own
    weights = weights / weights.sum()
    return np.asarray(np.maximum(weights, LEAST_WEIGHT / chosen.size))
