"""Checks of settings. An error says in one sentence what was given and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SHOWN = 60  # characters of a value in an error


def check_int(
    name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return value as an int, or raise ValueError unless it is a whole number in the range.

    >>> check_int("m", np.int64(3), minimum=1)
    3
    >>> check_int("m", 0, minimum=1)
    Traceback (most recent call last):
    ...
    ValueError: m must be a whole number >= 1, got 0
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)
        if (minimum is None or number >= minimum) and (maximum is None or number <= maximum):
            return number
    limits = "" if minimum is None else f" >= {minimum}"
    if maximum is not None:
        limits = f" <= {maximum}" if minimum is None else f" from {minimum} to {maximum}"
    raise ValueError(f"{name} must be a whole number{limits}, got {brief(value)}")


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
) -> float:
    """Return value as a float, or raise ValueError unless it is a finite number in the range.

    >>> check_number("theta", 0.8, minimum=0, below=1)
    0.8
    >>> check_number("lr", 0, above=0)
    Traceback (most recent call last):
    ...
    ValueError: lr must be a number > 0, got 0
    """
    number = real(value)
    if (
        number is not None
        and math.isfinite(number)
        and (minimum is None or number >= minimum)
        and (above is None or number > above)
        and (maximum is None or number <= maximum)
        and (below is None or number < below)
    ):
        return number
    limits = [
        f"{sign} {limit:g}"
        for sign, limit in ((">=", minimum), (">", above), ("<=", maximum), ("<", below))
        if limit is not None
    ]
    expected = " ".join(["a number", " and ".join(limits)]) if limits else "a finite number"
    raise ValueError(f"{name} must be {expected}, got {brief(value)}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return value, or raise ValueError unless it is one of the choices.

    >>> check_choice("scale", "rnak", ["raw", "standard", "rank"])
    Traceback (most recent call last):
    ...
    ValueError: scale must be one of raw, standard, rank, got 'rnak'; did you mean rank?
    """
    if isinstance(value, str) and value in choices:
        return value
    hint = ""
    if isinstance(value, str) and difflib.get_close_matches(value.lower(), choices, n=1):
        hint = f"; {did_you_mean(value, choices)}"
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {brief(value)}{hint}")


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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint for a word that is not known: the nearest known one, or all of them.

    >>> did_you_mean("unifrom", ["Uniform", "OCS"]), did_you_mean("x", ["Uniform", "OCS"])
    ('did you mean Uniform?', 'there are Uniform, OCS')
    """
    folded = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), folded, n=1)
    return f"did you mean {folded[near[0]]}?" if near else f"there are {', '.join(folded.values())}"


def near_by(path: Path) -> str:
    """Return which path beside one that does not exist may have been meant, as a question.

    Files with another ending are not meant, nor is anything that is only a little alike.

    >>> near_by(Path("no/such/file.npz"))
    ''
    """
    try:
        beside = [one.name for one in path.parent.iterdir() if one.suffix == path.suffix]
    except OSError:
        beside = []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""
