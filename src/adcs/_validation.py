"""Checks of settings and numbers. An error says in one sentence what was given and expected."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SHOWN, _REASON = 60, 100  # characters of a value, and of another error, in an error


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
    if type(value) is int or is_int(value):
        number = int(value)
        if (minimum is None or number >= minimum) and (maximum is None or number <= maximum):
            return number
    limits = "" if minimum is None else f" >= {minimum}"
    if maximum is not None:
        limits = f" <= {maximum}" if minimum is None else f" from {minimum} to {maximum}"
    raise ValueError(f"{name} must be a whole number{limits}, got {brief(value)}")


def is_int(value: object) -> bool:
    """Return whether a value is a whole number: a Python or NumPy int.

    >>> is_int(np.int64(3)), is_int(True), is_int(3.0), is_int(np.timedelta64(3))
    (True, False, False, False)
    """
    # NumPy counts its time differences as integers.
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def check_label(label: Any) -> None:
    """Raise ValueError unless a label can name a group: hashable, and equal to itself.

    >>> check_label(float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: a group must be equal to itself, got nan
    """
    try:
        hash(label)
    except TypeError:
        raise ValueError(f"a group must be hashable, as strings are, got {brief(label)}") from None
    try:
        same = bool(label == label)
    except Exception:  # as of pandas.NA
        same = False
    if not same:  # each NaN would be a group of its own, and evade its cap
        raise ValueError(f"a group must be equal to itself, got {brief(label)}")


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

    Strings, booleans, complex numbers and arrays of one dimension or more are not numbers. A
    number beyond float64 becomes infinite.

    >>> from fractions import Fraction
    >>> real(Fraction(1, 2)), real(np.array(3)), real(10**400)
    (0.5, 3.0, inf)
    >>> real("1"), real(True), real(1j), real([1.0]), real(np.array([1.0]))
    (None, None, None, None, None)
    """
    if type(value) is float:
        return value
    if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        # A NumPy scalar, or an array or tensor without dimensions; datetimes are not numbers.
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


def brief(value: Any, shown: int = _SHOWN) -> str:
    """Return the repr of a value for an error message, at most 60 characters of it.

    >>> brief("x" * 100) == "'" + "x" * 59 + "..."
    True
    """
    try:
        text = re.sub(r"\s*\n\s*", " ", repr(value))
    except Exception:  # an int with more digits than Python prints, or a failing __repr__
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= shown else text[:shown] + "..."


def as_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return values as an array, or raise ValueError if they cannot be one.

    >>> as_array([[1.0], [2.0, 3.0]], "updates")
    Traceback (most recent call last):
    ...
    ValueError: updates must be numbers in rows of one length
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{name} must be numbers, got an array with masked entries")
    try:
        return np.asarray(values)
    except Exception as error:
        of_lists = isinstance(error, (TypeError, ValueError, OverflowError))
        if of_lists and not hasattr(values, "__array__"):
            raise ValueError(f"{name} must be numbers in rows of one length") from None
        # Of an __array__, as of a tensor that requires a gradient, or has a dtype of its own.
        reason = brief(str(error), shown=_REASON)
        raise ValueError(
            f"{name} must be numbers, got a {type(values).__name__} that is no array: {reason}"
        ) from None


def iterate(values: Any, name: str, what: str) -> Iterator[Any]:
    """Return an iterator over values, or raise ValueError if they are no list.

    >>> iterate(5, "required", "client ids")
    Traceback (most recent call last):
    ...
    ValueError: required must be a list of client ids, got 5
    """
    try:
        if not isinstance(values, (str, bytes)):  # a name is no list of letters
            return iter(values)
    except Exception:  # not iterable
        pass
    raise ValueError(f"{name} must be a list of {what}, got {brief(values)}")


def as_numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return an array of real numbers: float32 and float64 unchanged, all else as float64.

    >>> as_numbers([Decimal("0.25"), 10**30], "quality")
    array([2.5e-01, 1.0e+30])
    >>> as_numbers(["1.0"], "quality")
    Traceback (most recent call last):
    ...
    ValueError: quality must be numbers, got '1.0' of type <U3
    """
    array = as_array(values, name)
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind == "O":
        found = [real(value) for value in array.flat]
        if None in found:
            strange = array.flat[found.index(None)]
            raise ValueError(f"{name} must be numbers, got {brief(strange)}{_remedy(strange)}")
        return np.array(found, dtype=np.float64).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        first = array.ravel()[:1].tolist()
        what = f"{brief(first[0]) if first else None} of type {array.dtype}"
        raise ValueError(f"{name} must be numbers, got {what}")
    with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite
        return array.astype(np.float64)


def _remedy(value: Any) -> str:
    """Return how numbers are got from a value that holds some; "" for any other.

    >>> _remedy({"weight": [1.0]}), _remedy(iter([1.0])), _remedy("x")
    ('; take list(state_dict.values())', '; make a list of it, as list(model.parameters())', '')
    """
    if hasattr(value, "toarray"):
        return "; take its .toarray()"
    if isinstance(value, Mapping):
        return "; take list(state_dict.values())"
    if isinstance(value, Iterator):
        return "; make a list of it, as list(model.parameters())"
    if isinstance(value, (np.ndarray, list, tuple)):
        return "; a column of rows is given as list(column)"
    return ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint for a word that is not known: the nearest known one, or all of them.

    >>> did_you_mean("unifrom", ["Uniform", "OCS"]), did_you_mean("x", ["Uniform", "OCS"])
    ('did you mean Uniform?', 'there are Uniform, OCS')
    """
    folded = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), folded, n=1)
    return f"did you mean {folded[near[0]]}?" if near else f"there are {', '.join(folded.values())}"


def did_you_mean_path(path: Path) -> str:
    """Return a hint for a path that does not exist: the file beside it with the nearest name.

    Only files with the same suffix and a similar name count; the hint is empty if there is none.

    >>> did_you_mean_path(Path("no/such/file.npz"))
    ''
    """
    try:
        beside = [one.name for one in path.parent.iterdir() if one.suffix == path.suffix]
    except OSError:
        beside = []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""
