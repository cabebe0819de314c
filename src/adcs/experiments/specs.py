"""Schedulers named in words: "ADCS(theta=0.5)", "my_file.py:MyScheduler(patience=3)"."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adcs import schedulers
from adcs.schedulers.base import Scheduler
from adcs.signals.sketch import Sketcher

NAMES = ("Uniform", "PowerOfChoice", "OCS", "DivFL", "StaticDPP", "ADCS", "LiveADCS")


def make_scheduler(spec: str, seed: int) -> Scheduler:
    """Return the scheduler that a spec names, with this seed.

    A spec is a class with keyword settings in Python's syntax. The class is one of this package,
    or one's own: `file.py:Class` or `module:Class`. A whole number for `sketch` stands for a
    `Sketcher` of that size.

    >>> make_scheduler("ADCS(theta=0.5, sketch=256)", seed=1).sketch.size
    256
    >>> make_scheduler("Unifrom", seed=1)
    Traceback (most recent call last):
    ...
    ValueError: unknown scheduler 'Unifrom'; did you mean Uniform?
    """
    where, colon, call = spec.strip().rpartition(":")
    name, settings = _parse(call, spec)
    kind = _own(where, name, spec) if colon else _known(name)
    if isinstance(settings.get("sketch"), int):
        settings["sketch"] = Sketcher(size=settings["sketch"])
    try:
        return kind(**{"seed": seed, **settings})
    except TypeError as error:
        raise ValueError(f"scheduler {spec!r}: {error}") from error
    except ValueError as error:
        raise ValueError(f"scheduler {spec!r}: {error}") from error


def _parse(call: str, spec: str) -> tuple[str, dict[str, Any]]:
    wrong = f"scheduler {spec!r} must look like ADCS or ADCS(theta=0.5)"
    try:
        tree = ast.parse(call.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise ValueError(wrong)
        return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(wrong) from error


def _known(name: str) -> Callable[..., Scheduler]:
    if name in NAMES:
        kind: Callable[..., Scheduler] = getattr(schedulers, name)
        return kind
    folded = {known.lower(): known for known in NAMES}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.4)
    hint = f"did you mean {folded[near[0]]}?" if near else f"known are {', '.join(NAMES)}"
    raise ValueError(f"unknown scheduler {name!r}; {hint}")


def _own(where: str, name: str, spec: str) -> Callable[..., Scheduler]:
    try:
        if where.endswith(".py"):
            path = Path(where).resolve()
            found = importlib.util.spec_from_file_location(path.stem, path)
            if found is None or found.loader is None:
                raise ImportError(f"cannot read {where}")
            module = importlib.util.module_from_spec(found)
            sys.modules[path.stem] = module
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        kind = getattr(module, name)
    except Exception as error:
        raise ValueError(f"scheduler {spec!r} cannot be loaded: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Scheduler)):
        raise ValueError(f"scheduler {spec!r} is not a subclass of adcs.Scheduler")
    return kind
