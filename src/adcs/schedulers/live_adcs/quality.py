"""Quality of clients from estimated losses, free of the loss's unit."""

from __future__ import annotations

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.schedulers.live_adcs.loss_tracker import clip_outliers

MAX_QUALITY = 3.0
"""No client's quality is further from the mean than this many standard deviations."""


def standardised_loss(
    losses: Float64Array,
    variances: Float64Array,
    unanswered: IndexArray,
    normals: Float64Array,
) -> Float64Array:
    """Return a draw from the estimate of each loss, standardised over clients.

    A client whose loss is uncertain is sometimes taken for a bad one and then trained, which
    settles the matter (Thompson sampling). Where losses differ no more than they are uncertain, the
    variances in the denominator take the weight off quality.

    Parameters
    ----------
    losses, variances
        Estimated losses, and the variances of the estimates.
    unanswered
        How often each client was chosen since its last report; each time lowers q by one.
    normals
        A standard normal number for each client.

    Examples
    --------
    >>> losses, zeros = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    >>> standardised_loss(losses, zeros, np.array([0, 0, 1]), zeros).round(3)
    array([-1.225,  0.   ,  0.225])
    """
    losses = clip_outliers(losses)
    spread = float(losses.var())
    variances = np.minimum(variances, spread)
    drawn = losses + np.sqrt(variances) * normals
    scale = np.sqrt(spread + variances.mean())
    if scale == 0.0:
        return np.zeros(losses.size)
    q = (drawn - drawn.mean()) / scale - unanswered
    return np.asarray(np.clip(q, -MAX_QUALITY, MAX_QUALITY))


def discounted(losses: Float64Array, response: Float64Array) -> Float64Array:
    """Return losses of which the part above the median counts as far as it responds to training.

    A loss that does not fall although its client is trained, a lie or labels that are noise, is no
    reason to train the client more often than others, and no measure of how losses differ.

    >>> discounted(np.array([1.0, 2.0, 3.0, 8.0]), np.array([0.1, 1.0, 1.0, 0.5]))
    array([1.  , 2.  , 3.  , 5.25])
    """
    above = losses - np.median(losses)
    return np.where(above > 0.0, losses - (1.0 - response) * above, losses)
