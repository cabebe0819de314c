"""The constants of Theorem 2: bounds for softmax regression, and estimates from runs.

A run visits some models only, so its estimate of L or G is a lower bound: the theorem's constant
has to hold everywhere, and may be larger.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from adcs.dpp.kernel import as_rows, check_m
from adcs.theory.gram import gram_matrix


def softmax_smoothness(features: ArrayLike, *, intercept: bool = True) -> float:
    """Return an L for the mean cross-entropy of softmax regression on one client's examples.

    At an example x with probabilities pi the Hessian is (diag(pi) - pi pi^T) (x) x x^T, and the
    first factor's eigenvalues are at most 1/2. So L = lambda_max(X^T X / n) / 2, with a column of
    ones in X if there is an intercept. For a federation take the largest over clients.

    >>> softmax_smoothness([[1.0, 0.0], [0.0, 1.0]], intercept=False)
    0.25
    """
    x = as_rows(features, "features").astype(np.float64, copy=False)
    if intercept:
        x = np.hstack([x, np.ones((x.shape[0], 1))])
    product = x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T
    return float(np.linalg.eigvalsh(product)[-1]) / (2 * len(x))


def softmax_moments(
    features: ArrayLike, batch_size: int, *, intercept: bool = True
) -> tuple[float, float]:
    """Return (G, sigma) that hold at every model, for batches drawn with replacement.

    One example's gradient is (pi - y) (x) x with ||pi - y||^2 <= 2, so ||g||^2 <= 2 max ||x||^2 =
    G^2, and the variance of a mean of b of them is at most G^2 / b = sigma^2.

    >>> second_moment, sigma = softmax_moments([[1.0, 1.0]], batch_size=4, intercept=False)
    >>> round(second_moment, 12), round(sigma, 12)
    (2.0, 1.0)
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    x = as_rows(features, "features").astype(np.float64, copy=False)
    square = float(np.einsum("ij,ij->i", x, x).max()) + float(intercept)
    return math.sqrt(2.0 * square), math.sqrt(2.0 * square / batch_size)


def secant_smoothness(points: ArrayLike, gradients: ArrayLike) -> float:
    """Return the largest ||grad(a) - grad(b)|| / ||a - b|| over consecutive models of a run.

    The gradients must be of one function on the same data (full ones, not of mini-batches, whose
    noise would count as curvature). The result is a lower bound on L.

    >>> secant_smoothness([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]], [[0, 0], [3, 0], [3, 1]])
    3.0
    """
    moved = np.linalg.norm(np.diff(as_rows(points, "points"), axis=0), axis=1)
    turned = np.linalg.norm(np.diff(as_rows(gradients, "gradients"), axis=0), axis=1)
    if moved.shape != turned.shape or not (moved > 0.0).any():
        raise ValueError("points and gradients must be equally many rows, not all the same point")
    return float((turned[moved > 0.0] / moved[moved > 0.0]).max())


def uniform_selection_variance(
    updates: ArrayLike | None = None, *, m: int, gram: ArrayLike | None = None
) -> float:
    """Return nu_sel of Uniform, E||g_S - g_N||^2 over cohorts of m drawn without replacement.

    It is (N - m) / (m (N - 1)) times the mean squared distance of updates to their mean.

    >>> uniform_selection_variance([[1.0], [-1.0]], m=1)
    1.0
    """
    matrix = gram_matrix(updates, gram)
    n = len(matrix)
    m = check_m(m, n)
    if n == 1:
        return 0.0
    scatter = float(matrix.trace()) / n - float(matrix.mean())
    return max(scatter, 0.0) * (n - m) / (m * (n - 1))


def largest_norm(updates: ArrayLike | None = None, *, gram: ArrayLike | None = None) -> float:
    """Return the largest norm of an update: with one local step, a lower bound on G.

    >>> largest_norm([[3.0, 4.0], [0.0, 1.0]])
    5.0
    """
    return math.sqrt(float(gram_matrix(updates, gram).diagonal().max()))


def batch_noise(gram: ArrayLike, labels: ArrayLike) -> float:
    """Return sigma estimated from clients of one group, whose data come from one distribution.

    Their updates differ by batch noise alone (and by how their data differ, if they hold parts
    rather than copies): sigma^2 is the sample variance inside a group, the largest over groups.
    Groups of one client do not count; nan if there are no others.

    >>> gram = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 9.0]])
    >>> round(batch_noise(gram, [0, 0, 1]) ** 2, 12)
    2.0
    """
    matrix = gram_matrix(gram=gram)
    names = np.asarray(labels)
    largest = math.nan
    for name in np.unique(names):
        part = np.flatnonzero(names == name)
        if part.size < 2:
            continue
        block = matrix[np.ix_(part, part)]
        variance = float(block.trace() - block.sum() / part.size) / (part.size - 1)
        largest = np.fmax(largest, math.sqrt(max(variance, 0.0)))
    return float(largest)
