"""Checks of settings. An error says in one sentence what was given and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np


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
    raise ValueError(f"{name} must be a whole number{limits}, got {value!r}")


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
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if (
            math.isfinite(number)
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
    raise ValueError(f"{name} must be {expected}, got {value!r}")


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
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


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
