"""Arrays and thinned series as JSON values: what the page's script reads."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MISSING = 65535
"""The entry of a quantised array where there is no number."""


def encode(array: ArrayLike, kind: str) -> str:
    """Return an array as base64 text, little endian.

    >>> encode([1, 2, 258], "u2")
    'AQACAAIB'
    """
    return base64.b64encode(np.ascontiguousarray(array, dtype=f"<{kind}").tobytes()).decode()


def quantise(values: ArrayLike) -> dict[str, Any]:
    """Return numbers as 16-bit steps between their smallest and their largest.

    Numbers that are not finite become `MISSING`.

    >>> quantise([0.0, 1.0, float("nan")])
    {'low': 0.0, 'high': 1.0, 'steps': 'AAD+////'}
    """
    x = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(x)
    low, high = (float(x[finite].min()), float(x[finite].max())) if finite.any() else (0.0, 0.0)
    width = high - low
    scaled = np.zeros(x.shape)
    if width > 0:
        np.divide(x - low, width, out=scaled, where=finite)
    steps = np.where(finite, np.round(scaled * (MISSING - 1)), MISSING)
    return {"low": low, "high": high, "steps": encode(steps, "u2")}


def numbers(values: Sequence[Any], digits: int = 4) -> list[float | None]:
    """Return numbers of so many significant digits, None for one that is not finite.

    >>> numbers([0.123456, float("nan"), None], digits=3)
    [0.123, None, None]
    """
    return [
        float(f"{value:.{digits}g}") if value is not None and np.isfinite(value) else None
        for value in values
    ]


def thinned(count: int, most: int) -> NDArray[np.intp]:
    """Return positions of so many of `count` entries, evenly spread, the ends among them.

    >>> thinned(5, 10), thinned(10, 4), thinned(3, 1)
    (array([0, 1, 2, 3, 4]), array([0, 3, 6, 9]), array([2]))
    """
    if count <= most:
        return np.arange(count)
    if most == 1:
        return np.array([count - 1])
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.intp))


def nested(count: int, most: int) -> NDArray[np.intp]:
    """Return positions of so many of `count` entries: each second, fourth, ... and the last.

    As entries are added, positions are left out, and none but the last comes in their place: what
    a live page has made of the others can be used again.

    >>> nested(5, 10), nested(10, 4), nested(11, 4), nested(3, 1)
    (array([0, 1, 2, 3, 4]), array([0, 4, 8, 9]), array([ 0,  4,  8, 10]), array([2]))
    """
    every, step = np.arange(count), 1
    while (found := np.union1d(every[::step], every[-1:])).size > max(most, 2):
        step *= 2
    return found[-most:]
