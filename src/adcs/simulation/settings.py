"""Settings declared as dataclass fields: default, help text and bounds in one place.

The metadata of a field have the names of pydantic's `Field` arguments. The config of an experiment
reads them to check TOML files and to generate command-line options. This module itself needs only
the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from adcs._validation import check_choice, check_int, check_number

MILLION = 10**6

BOUNDS = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}
"""Bounds by their names in the metadata, with the names that `check_number` has for them."""

FORBID_UNKNOWN = {"extra": "forbid"}
"""As `__pydantic_config__` of a dataclass: tables with unknown keys are refused."""


def setting(default: Any, help: str, **more: Any) -> Any:
    """Return the dataclass field of a setting; `more` is that of `declare`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Clock:
    ...     tick: float = setting(1.0, "Seconds between ticks.", gt=0)
    ...     def __post_init__(self) -> None:
    ...         check_settings(self, "clock")
    >>> Clock(tick=0)
    Traceback (most recent call last):
    ...
    ValueError: clock.tick must be a number > 0, got 0
    """
    return field(default=default, metadata=declare(help, **more))


def declare(
    help: str,
    *,
    option: str | None = None,
    metavar: str | None = None,
    summary: str | Callable[[Any], str] | None = None,
    is_spec: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Return a setting's declaration, by the names of pydantic's `Field` arguments.

    Parameters
    ----------
    help
        Help text of the command-line option.
    option
        Name of the command-line option; None takes the setting's.
    metavar
        What the help shows for a value.
    summary
        Words of the setting in a summary: a format, or a function of the value. None is
        "option = value" where the value is not the default.
    is_spec
        Whether the value may be the spec of a user's own object, `file.py:Class`.
    **more
        Bounds: ge, gt, le, lt. Numbers are always finite.

    Examples
    --------
    >>> declare("Number of seeds.", ge=1)["ge"]
    1
    """
    extra = {"option": option, "metavar": metavar, "summary": summary, "is_spec": is_spec}
    # Strict: neither 1.0 nor "1" nor true stands for 1.
    return {"description": help, "json_schema_extra": extra, "strict": True, **more}


def check_settings(settings: Any, section: str) -> None:
    """Raise ValueError unless each number and each choice of a dataclass is as declared.

    >>> from adcs.simulation.training import Training
    >>> Training(m=0)
    Traceback (most recent call last):
    ...
    ValueError: training.m must be a whole number from 1 to 1000000, got 0
    """
    hints = get_type_hints(type(settings))
    for each in fields(settings):
        value = getattr(settings, each.name)
        check_setting(f"{section}.{each.name}", value, hints[each.name], each.metadata)


def check_setting(name: str, value: Any, hint: Any, declaration: Mapping[str, Any]) -> None:
    """Raise ValueError unless a number is within its bounds, or a choice one of those there are.

    >>> check_setting("dropout", 1, float, {"ge": 0, "lt": 1})
    Traceback (most recent call last):
    ...
    ValueError: dropout must be a number >= 0 and < 1, got 1
    """
    kinds = get_args(hint) or (hint,)
    bounds: dict[str, Any] = {BOUNDS[key]: declaration[key] for key in BOUNDS if key in declaration}
    if get_origin(hint) is Literal:
        check_choice(name, value, kinds)
    elif int in kinds and not (value is None and type(None) in kinds):
        check_int(name, value, **bounds)
    elif float in kinds and not (value is None and type(None) in kinds):
        check_number(name, value, **bounds)
