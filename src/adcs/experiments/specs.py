"""Scheduler specs: "ADCS(theta=0.5)", "my_file.py:MyScheduler(patience=3)"."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

from adcs import schedulers
from adcs._validation import did_you_mean, did_you_mean_path
from adcs.experiments.validation import check_value
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Scheduler
from adcs.simulation.scheduler_errors import describe_error

NAMES = tuple(
    name
    for name, kind in inspect.getmembers(schedulers, inspect.isclass)
    if name in schedulers.__all__ and issubclass(kind, Scheduler) and not inspect.isabstract(kind)
)
"""The schedulers that `adcs.schedulers` exports."""


def make_scheduler(spec: str, seed: int) -> Scheduler:
    """Return the scheduler of a spec, with this seed.

    A spec is a class with keyword settings in Python syntax, like the repr of a scheduler. The
    class is one of this package, or your own: `file.py:Class` or `module:Class`. A whole number
    for `sketch` is a `Sketcher` of that size.

    >>> make_scheduler("ADCS(theta=0.5, sketch=256)", seed=1).sketch.size
    256
    >>> make_scheduler(repr(make_scheduler("DivFL(refresh_every=5)", seed=1)), seed=2)
    DivFL(seed=1, refresh_every=5)
    >>> make_scheduler("Unifrom", seed=1)
    Traceback (most recent call last):
    ...
    ValueError: unknown scheduler 'Unifrom'; did you mean Uniform?
    >>> make_scheduler("ADCS(thet=0.1)", seed=1)
    Traceback (most recent call last):
    ...
    ValueError: scheduler 'ADCS(thet=0.1)': ADCS has no setting 'thet'; did you mean theta?
    """
    kind, settings = _read(spec)
    if isinstance(settings.get("sketch"), int):
        try:
            settings["sketch"] = Sketcher(size=settings["sketch"])
        except ValueError as error:
            raise ValueError(f"scheduler {spec!r}: sketch {error}") from error
    known = _settings(kind)
    try:
        for key, value in settings.items():
            if key in known:
                check_value(key, value, known[key].annotation)
        return kind(**{"seed": seed, **settings})
    except TypeError as error:
        # The class is called first: it may take settings that its signature does not name.
        unknown = [key for key in settings if key not in known]
        why = str(error)
        if unknown:
            hint = did_you_mean(unknown[0], known)
            why = f"{kind.__name__} has no setting {unknown[0]!r}; {hint}"
        raise ValueError(f"scheduler {spec!r}: {why}") from error
    except Exception as error:
        raise ValueError(f"scheduler {spec!r}: {describe_error(error)}") from error


class Description(NamedTuple):
    """A scheduler's own settings, those of all schedulers, and its docstring."""

    own: str
    common: str
    text: str


def describe(spec: str) -> Description:
    """Return the settings of a scheduler, with their defaults, and its docstring.

    >>> found = describe("PowerOfChoice")
    >>> found.own, found.common
    ('candidates=None', "seed=0, groups=None, caps=None, required=(), unknown_group='unknown'")
    >>> found.text.splitlines()[0]
    "The m largest losses among this round's candidates."
    """
    kind, _ = _read(spec)
    shared = _settings(Scheduler)  # type: ignore[type-abstract]
    words = {key: str(p.replace(annotation=p.empty)) for key, p in _settings(kind).items()}
    own = ", ".join(text for key, text in words.items() if key not in shared)
    common = ", ".join(text for key, text in words.items() if key in shared)
    return Description(own, common, inspect.getdoc(kind) or "")


def _read(spec: str) -> tuple[type[Scheduler], dict[str, Any]]:
    """Return the class and the settings of a spec."""
    where, call = split(spec)
    if not where and call.endswith(".py") and Path(call).is_file():
        where, call = call, "Class"  # The error lists the classes of the file.
    name, settings = _parse(call, spec)
    return _user_class(where, name, spec) if where else _package_class(name), settings


def split(spec: str) -> tuple[str, str]:
    """Return the file or module of a spec, "" for none, and the class with its settings.

    >>> split("my/file.py:Mine(caps={'a': 2})"), split("ADCS")
    (('my/file.py', "Mine(caps={'a': 2})"), ('', 'ADCS'))
    """
    name, bracket, settings = spec.strip().partition("(")
    where, _, kind = name.rpartition(":")
    return where, kind + bracket + settings


def parts(spec: str) -> tuple[str, str, dict[str, Any]]:
    """Return the file or module of a spec, "" for this package, the class name and the settings.

    Nothing is imported, and the class need not exist.

    >>> parts("my/file.py:Mine(patience=3)")
    ('my/file.py', 'Mine', {'patience': 3})
    >>> parts("adcs.schedulers:ADCS")
    ('', 'ADCS', {})
    """
    where, call = split(spec)
    name, settings = _parse(call, spec)
    package = schedulers.__name__.partition(".")[0]
    ours = where in (package, schedulers.__name__) or where.startswith(f"{schedulers.__name__}.")
    return "" if ours and name in NAMES else where, name, settings


def defaults(name: str) -> dict[str, Any]:
    """Return the settings of a scheduler of this package with their defaults.

    >>> defaults("ADCS")["theta"]
    0.8
    """
    return {key: p.default for key, p in _settings(_package_class(name)).items()}


def _settings(kind: type[Scheduler]) -> dict[str, inspect.Parameter]:
    """Return the settings of a class, its own first, with resolved annotations."""
    found: dict[str, inspect.Parameter] = {}
    ours = [getattr(schedulers, name) for name in NAMES]
    complete = False
    for base in inspect.getmro(kind):
        # A scheduler of this package declares all its settings but those of Scheduler.
        init = vars(base).get("__init__")
        if init is None or (complete and base is not Scheduler):
            continue
        complete = complete or base in ours
        parameters = list(inspect.signature(init).parameters.values())[1:]
        try:
            hints = get_type_hints(init)
        except Exception:  # Names that a user's file imports for type checkers only.
            hints = {}
        for p in parameters:
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                found.setdefault(p.name, p.replace(annotation=hints.get(p.name, Any)))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _parse(call: str, spec: str) -> tuple[str, dict[str, Any]]:
    wrong = f"scheduler {spec!r} must look like ADCS, ADCS(theta=0.5) or file.py:Class"
    try:
        tree = ast.parse(call.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise ValueError(wrong)
        settings = {k.arg: _value(k.value) for k in tree.keywords if k.arg is not None}
        if len(settings) < len(tree.keywords):
            raise ValueError("a setting is given twice, or not by name")
        return tree.func.id, settings
    except InvalidSketch as error:
        raise ValueError(f"scheduler {spec!r}: {error}") from error
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(wrong) from error


class InvalidSketch(Exception):
    """A sketch with invalid arguments."""


def _value(node: ast.expr) -> Any:
    """Return the value of a setting: a literal, or a Sketcher of literals."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return ast.literal_eval(node)
    if node.func.id != "Sketcher":
        raise ValueError(f"{node.func.id} is no value of a setting")
    args = [ast.literal_eval(arg) for arg in node.args]
    named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    try:
        return Sketcher(*args, **named)
    except (TypeError, ValueError) as error:
        raise InvalidSketch(f"sketch {error}") from error


def _package_class(name: str) -> type[Scheduler]:
    if name in NAMES:
        kind: type[Scheduler] = getattr(schedulers, name)
        return kind
    raise ValueError(f"unknown scheduler {name!r}; {did_you_mean(name, NAMES)}")


def _user_class(where: str, name: str, spec: str) -> type[Scheduler]:
    """Return a class from a user's file or module."""
    module = _module(where, spec)
    kind = getattr(module, name, None)
    if isinstance(kind, type) and issubclass(kind, Scheduler):
        return kind
    kinds = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Scheduler) and value is not Scheduler
    ]
    known = did_you_mean(name, kinds) if kinds else f"{where} has no subclass of adcs.Scheduler"
    what = f"{where} has no class {name!r}"
    if kind is not None:
        what = f"{name} is not a subclass of adcs.Scheduler"
    raise ValueError(f"scheduler {spec!r}: {what}; {known}")


def _module(where: str, spec: str) -> ModuleType:
    if not where.endswith(".py"):
        if "/" in where or Path(where).is_file():
            raise ValueError(f"scheduler {spec!r}: {where} is not a Python file (.py)")
        try:
            return importlib.import_module(where)
        except Exception as error:
            raise ValueError(
                f"scheduler {spec!r} cannot be loaded: {describe_error(error)}"
            ) from error
    path = Path(where)
    if not path.is_file():
        raise ValueError(f"scheduler {spec!r}: there is no file {path}{did_you_mean_path(path)}")
    try:
        path = path.resolve()
        found = importlib.util.spec_from_file_location(path.stem, path)
        if found is None or found.loader is None:
            raise ImportError(f"cannot read {where}")
        module = importlib.util.module_from_spec(found)
        sys.modules[path.stem] = module
        found.loader.exec_module(module)
        return module
    except Exception as error:
        raise ValueError(f"scheduler {spec!r} cannot be loaded: {describe_error(error)}") from error
