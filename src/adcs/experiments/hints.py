"""Settings checked by the type hints of what takes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

WORDS = {
    bool: ("true or false", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    str: ("a text", "texts"),
}
"""How plain types are called, one and many."""


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that a type hint of plain types, lists and tables of them rules out.

    Numbers are finite, lists may stand for tuples, and hints of other kinds allow everything.

    >>> check_value("deadline", 30, float | None)
    >>> check_value("hidden", "8,8", tuple[int, ...])
    Traceback (most recent call last):
    ...
    ValueError: hidden must be a list of whole numbers, got '8,8'
    """
    if not _fits(value, hint):
        raise ValueError(f"{name} must be {_words(hint)}, got {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in inner)
    if _is_list(hint):
        return isinstance(value, (list, tuple)) and all(_fits(item, inner[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
        )
    if hint not in (bool, int, float, str, NoneType):
        return True
    # In Python a truth value is a whole number; in a setting it is a slip.
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is float:
        # Not for inf and nan, nor for whole numbers that no float can hold.
        return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return isinstance(value, hint)


def _is_list(hint: Any) -> bool:
    origin = get_origin(hint)
    return origin in (list, Sequence) or (origin is tuple and get_args(hint)[1:] == (...,))


def _words(hint: Any, many: bool = False) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_words(part, many) for part in inner if part is not NoneType)
    if _is_list(hint):
        return f"{'lists' if many else 'a list'} of {_words(inner[0], many=True)}"
    if origin in (dict, Mapping):
        return f"{'tables' if many else 'a table'} of {_words(inner[1], many=True)}"
    return WORDS.get(hint, ("a value", "values"))[many]
