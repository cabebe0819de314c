"""Metrics of a federation: what clients reach, the worst of them, participation, bias."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import Float64Array

__all__ = ["group_ratios", "jain", "selection_bias", "summary", "total_variation", "worst_share"]


class ClientMetric(NamedTuple):
    """What a model reaches on the test data of a client.

    Attributes
    ----------
    label
        Its name in tables and figures.
    task
        The task that it fits.
    lower_is_better
        Whether the worst client is the one with the largest value.
    bounds
        The values between which it lies.

    Examples
    --------
    >>> CLIENT_METRICS["rmse"].lower_is_better
    True
    """

    label: str
    task: str
    lower_is_better: bool = False
    bounds: tuple[float, float] = (0.0, 1.0)


CLIENT_METRICS = {
    "accuracy": ClientMetric("accuracy", "classification"),
    "auc": ClientMetric("AUC", "classification"),
    "rmse": ClientMetric("RMSE", "regression", True, (0.0, math.inf)),
}
"""The metrics of clients by name, the default of each task first."""


def default_metric(task: str) -> str:
    """Return the metric of a task, where none is named.

    >>> default_metric("classification"), default_metric("regression")
    ('accuracy', 'rmse')
    """
    return next(name for name, metric in CLIENT_METRICS.items() if metric.task == task)


def auc(scores: ArrayLike, positive: ArrayLike) -> float:
    """Return the area under the ROC curve, NaN where there are no two classes.

    It is the probability that a positive example has a larger score than a negative one; equal
    scores count half.

    Parameters
    ----------
    scores
        A number for each example.
    positive
        Whether each example is of the positive class.

    Examples
    --------
    >>> auc([0.1, 0.4, 0.35, 0.8], [False, False, True, True])
    0.75
    """
    s, p = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    first = int(p.sum())
    second = p.size - first
    if first == 0 or second == 0 or not np.isfinite(s).all():
        return math.nan
    _, place, counts = np.unique(s, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    return float((ranks[place][p].sum() - first * (first + 1) / 2.0) / (first * second))


def worst_share(values: ArrayLike, share: float = 0.2, *, lower_is_better: bool = False) -> float:
    """Return the mean over the worst fraction of clients, at least one of them.

    >>> worst_share([0.9, 0.1, 0.5, 0.3, 0.7], share=0.4), worst_share(range(6))
    (0.2, 0.5)
    >>> worst_share(range(6), lower_is_better=True)
    4.5
    """
    ascending = np.sort(np.asarray(values, dtype=np.float64))
    count = max(1, math.ceil(share * ascending.size - 1e-9))
    return float((ascending[-count:] if lower_is_better else ascending[:count]).mean())


def summary(values: ArrayLike, *, lower_is_better: bool = False) -> dict[str, float]:
    """Return worst, worst20 (mean of the worst 20 %), average and std over clients.

    >>> summary([0.5, 1.0])
    {'worst': 0.5, 'worst20': 0.5, 'average': 0.75, 'std': 0.25}
    >>> summary([0.5, 1.0], lower_is_better=True)["worst"]
    1.0
    """
    a = np.asarray(values, dtype=np.float64)
    return {
        "worst": float(a.max() if lower_is_better else a.min()),
        "worst20": worst_share(a, lower_is_better=lower_is_better),
        "average": float(a.mean()),
        "std": float(a.std()),
    }


def group_ratios(counts: ArrayLike, groups: ArrayLike) -> Float64Array:
    """Return each group's fraction of all selections.

    >>> group_ratios([3, 1, 0, 4], groups=[0, 0, 1, 1])
    array([0.5, 0.5])
    """
    c = np.asarray(counts, dtype=np.float64)
    labels = np.asarray(groups)
    total = np.bincount(labels, weights=c)
    return np.asarray(total / max(float(c.sum()), 1.0), dtype=np.float64)


def total_variation(ratios: ArrayLike, target: ArrayLike | None = None) -> float:
    """Return half the sum of absolute differences from a target, uniform by default.

    >>> total_variation([0.7, 0.3])
    0.2
    """
    r = np.asarray(ratios, dtype=np.float64)
    t = np.full(r.size, 1.0 / r.size) if target is None else np.asarray(target, dtype=np.float64)
    return round(float(0.5 * np.abs(r - t).sum()), 12)


def jain(counts: ArrayLike) -> float:
    """Return Jain's index of participation: 1 if all clients take part equally, 1/N if one does.

    >>> jain([2, 2, 2]), jain([4, 0, 0, 0])
    (1.0, 0.25)
    """
    c = np.asarray(counts, dtype=np.float64)
    square = float((c**2).sum())
    return 1.0 if square == 0.0 else float(c.sum() ** 2 / (c.size * square))


def selection_bias(gram: ArrayLike, weights: ArrayLike, target: ArrayLike | None = None) -> float:
    """Return ||g_S - g_N|| from the Gram matrix of all clients' updates.

    Parameters
    ----------
    gram
        Inner products of updates, N x N.
    weights
        The weight of each client's update in the cohort, zero for clients outside it.
    target
        The weights in the objective; uniform by default.

    Examples
    --------
    >>> selection_bias(np.eye(2), [1.0, 0.0]) == 0.5**0.5
    True
    """
    w = np.asarray(weights, dtype=np.float64)
    t = np.full(w.size, 1.0 / w.size) if target is None else np.asarray(target, dtype=np.float64)
    v = w - t
    return math.sqrt(max(float(v @ np.asarray(gram, dtype=np.float64) @ v), 0.0))
