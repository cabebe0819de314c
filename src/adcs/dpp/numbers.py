"""What passes for a number, and how a value that does not is named in an error."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SHOWN = 60  # characters of a value in an error


def real(value: Any) -> float | None:
    """Return a real number as a float, or None for anything else.

    Text, truth values, complex numbers and arrays of one dimension or more are no numbers. What
    is beyond float64 is infinite.

    >>> from fractions import Fraction
    >>> real(Fraction(1, 2)), real(np.array(3)), real(10**400)
    (0.5, 3.0, inf)
    >>> real("1"), real(True), real(1j), real([1.0]), real(np.array([1.0]))
    (None, None, None, None, None)
    """
    if type(value) is float:
        return value
    if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        # A NumPy scalar, or an array or tensor without dimensions. Times would be read as ints.
        value = value.item() if getattr(value.dtype, "kind", "f") in "fiu" else None
    if isinstance(value, bool) or not isinstance(value, (Real, Decimal)):
        return None
    number: Any = value
    try:
        with np.errstate(over="ignore"):
            return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def brief(value: Any) -> str:
    """Return a value as an error names it: its text, cut short.

    >>> brief("x" * 100) == "'" + "x" * 59 + "..."
    True
    """
    try:
        text = repr(value)
    except Exception:  # an int of more digits than Python prints, or anybody's own repr
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def as_numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return an array of real numbers: float32 and float64 kept, everything else as float64.

    >>> as_numbers([Decimal("0.25"), 10**30], "quality")
    array([2.5e-01, 1.0e+30])
    >>> as_numbers(["1.0"], "quality")
    Traceback (most recent call last):
    ...
    ValueError: quality must be numbers, got '1.0' of type <U3
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be numbers in rows of one length") from None
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind == "O":
        found = [real(value) for value in array.flat]
        if None in found:
            raise ValueError(f"{name} must be numbers, got {brief(array.flat[found.index(None)])}")
        return np.array(found, dtype=np.float64).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        what = f"{brief(array.flat[0].item()) if array.size else None} of type {array.dtype}"
        raise ValueError(f"{name} must be numbers, got {what}")
    with np.errstate(over="ignore"):  # of a longdouble, which is refused as infinite
        return array.astype(np.float64)


def total(values: NDArray[np.float64]) -> float:
    """Return a sum, the largest float64 in place of one that is beyond it.

    >>> total(np.array([1.5e308, 1.5e308, -1.5e308])), total(np.array([1.5e308, 1.5e308]))
    (1.5e+308, 1.7976931348623157e+308)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        plain = float(values.sum())
        if math.isfinite(plain):
            return plain
        halved = np.ldexp(values, -64).sum()
        most = np.finfo(np.float64).max
        return float(np.clip(np.ldexp(halved, 64), -most, most))
