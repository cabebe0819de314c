"""Checks of plain values by type hints, with pydantic; errors are one sentence of our own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

WORDS = {
    bool: ("true or false", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    str: ("a text", "texts"),
}
"""Plain types in words, singular and plural."""


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise ValueError unless a value has the type of a hint; numbers must be finite.

    Only plain types, lists and tables of them are checked; other hints allow every value.

    >>> check_value("deadline", 30, float | None)
    >>> check_value("hidden", "8,8", tuple[int, ...])
    Traceback (most recent call last):
    ...
    ValueError: hidden must be a list of whole numbers, got '8,8'
    """
    try:
        if _is_plain(hint):
            _adapter(hint).validate_python(value)
    except ValidationError:
        raise ValueError(f"{name} must be {in_words(hint)}, got {value!r}") from None


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_as_lists(hint), config=ConfigDict(strict=True, allow_inf_nan=False))


def _is_plain(hint: Any) -> bool:
    if _is_list(hint) or get_origin(hint) in (Union, UnionType, dict, Mapping):
        return all(_is_plain(part) for part in get_args(hint) if part is not ...)
    return hint in (*WORDS, NoneType, Any, Hashable)


def _is_list(hint: Any) -> bool:
    origin = get_origin(hint)
    return origin in (list, Sequence) or (origin is tuple and get_args(hint)[1:] == (...,))


def _as_lists(hint: Any) -> Any:
    """Return a hint in which a list may stand for a tuple.

    >>> _as_lists(tuple[int, ...])
    collections.abc.Sequence[int]
    """
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_as_lists, get_args(hint)))]  # noqa: UP007
    return Sequence[_as_lists(get_args(hint)[0])] if _is_list(hint) else hint  # type: ignore[misc]


def in_words(hint: Any, many: bool = False) -> str:
    """Return the values that a type hint allows in words.

    >>> in_words(int | list[str]), in_words(dict[str, float])
    ('a whole number or a list of texts', 'a table of finite numbers')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(in_words(part, many) for part in inner if part is not NoneType)
    if _is_list(hint):
        return f"{'lists' if many else 'a list'} of {in_words(inner[0], many=True)}"
    if origin in (dict, Mapping):
        return f"{'tables' if many else 'a table'} of {in_words(inner[1], many=True)}"
    return WORDS.get(hint, ("a value", "values"))[many]
