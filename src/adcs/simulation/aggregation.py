"""Aggregation: how the server makes one update of the updates that have arrived.

A user's own is a subclass of `Aggregation` with one method, `aggregate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from adcs._types import Float64Array, FloatArray
from adcs._validation import check_number

COLUMNS = 2**15
"""Coordinates that are sorted at a time."""


class Aggregation(ABC):
    """The base class of aggregations.

    An instance serves all compared runs and keeps nothing from round to round.

    Attributes
    ----------
    needs_normalised_weights
        Whether the weights must sum to 1. Cohorts of schedulers that set `normalise=False` are
        refused in that case.

    Examples
    --------
    >>> class Midrange(Aggregation):
    ...     def aggregate(self, updates, weights):
    ...         return (updates.min(axis=0) + updates.max(axis=0)) / 2
    >>> Midrange().aggregate(np.array([[0.0, 2.0], [4.0, 4.0], [1.0, 8.0]]), np.ones(3) / 3)
    array([2., 5.])
    """

    needs_normalised_weights: bool = True

    @abstractmethod
    def aggregate(self, updates: FloatArray, weights: Float64Array) -> FloatArray:
        """Return one update.

        Parameters
        ----------
        updates
            The updates that arrived, a row each; at least one. The array may be overwritten.
        weights
            The clients' weights.
        """


class Mean(Aggregation):
    """The weighted mean, as FedAvg.

    The engine computes it without holding all updates at a time.

    >>> Mean().aggregate(np.array([[0.0, 2.0], [4.0, 4.0]]), np.array([0.75, 0.25]))
    array([1. , 2.5])
    """

    needs_normalised_weights = False

    def aggregate(self, updates: FloatArray, weights: Float64Array) -> FloatArray:
        """Return the weighted sum."""
        mean: FloatArray = weights.astype(updates.dtype) @ updates
        return mean


class Median(Aggregation):
    """The median of each coordinate, as Flower's FedMedian. Weights have no effect.

    >>> Median().aggregate(np.array([[0.0, 2.0], [4.0, 4.0], [1.0, 9.0]]), np.ones(3) / 3)
    array([1., 4.])
    """

    def aggregate(self, updates: FloatArray, weights: Float64Array) -> FloatArray:
        """Return the medians."""
        out = np.empty(updates.shape[1], dtype=updates.dtype)
        for part in _columns(updates):
            out[part] = np.median(updates[:, part], axis=0)
        return out


class TrimmedMean(Aggregation):
    """The mean of each coordinate without its extremes, as Flower's FedTrimmedAvg.

    Weights have no effect.

    Parameters
    ----------
    trim
        Fraction of the values that is left out at each end, rounded down to whole values.

    Examples
    --------
    >>> updates = np.array([[0.0], [1.0], [2.0], [90.0]])
    >>> TrimmedMean(trim=0.25).aggregate(updates, np.ones(4) / 4)
    array([1.5])
    >>> TrimmedMean(trim=0.5)
    Traceback (most recent call last):
    ...
    ValueError: trim must be a number >= 0 and < 0.5, got 0.5
    """

    def __init__(self, trim: float = 0.2) -> None:
        self.trim = check_number("trim", trim, minimum=0, below=0.5)

    def aggregate(self, updates: FloatArray, weights: Float64Array) -> FloatArray:
        """Return the trimmed means."""
        cut = int(self.trim * len(updates))
        kept = slice(cut, len(updates) - cut)
        out = np.empty(updates.shape[1], dtype=updates.dtype)
        for part in _columns(updates):
            out[part] = np.sort(updates[:, part], axis=0)[kept].mean(axis=0)
        return out


class ClippedMean(Aggregation):
    """The weighted mean of updates that are scaled down to a largest norm.

    Parameters
    ----------
    norm
        The largest norm of an update.

    Examples
    --------
    >>> updates = np.array([[3.0, 4.0], [30.0, 40.0]])
    >>> ClippedMean(norm=5).aggregate(updates, np.array([0.5, 0.5]))
    array([3., 4.])
    """

    def __init__(self, norm: float) -> None:
        self.norm = check_number("norm", norm, above=0)

    def aggregate(self, updates: FloatArray, weights: Float64Array) -> FloatArray:
        """Return the weighted sum of the clipped updates."""
        norms = np.sqrt(np.einsum("ij,ij->i", updates, updates, dtype=np.float64))
        factors = np.minimum(1.0, self.norm / np.maximum(norms, np.finfo(np.float64).tiny))
        mean: FloatArray = (weights * factors).astype(updates.dtype) @ updates
        return mean


def _columns(updates: FloatArray) -> Iterator[slice]:
    for start in range(0, updates.shape[1], COLUMNS):
        yield slice(start, start + COLUMNS)


def check_aggregate(update: Any, size: int) -> FloatArray:
    """Return what a user's aggregation returned, or raise ValueError if it is unusable.

    >>> check_aggregate(np.zeros(3), size=4)
    Traceback (most recent call last):
    ...
    ValueError: the aggregate must have shape (4,), got (3,)
    """
    found: FloatArray = np.asarray(update)
    if found.shape != (size,):
        raise ValueError(f"the aggregate must have shape ({size},), got {found.shape}")
    if found.dtype.kind != "f" or not np.isfinite(found).all():
        raise ValueError("the aggregate must be finite numbers")
    return found


AGGREGATIONS: Mapping[str, Callable[..., Aggregation]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "clipped-mean": ClippedMean,
}
"""The aggregations by name."""
