"""Specs of objects: "ADCS(theta=0.5)", "my_file.py:MyScheduler(patience=3)".

A spec is a class or a function with keyword settings in Python syntax. It is one of this package,
or the user's own: `file.py:Class` or `module:Class`. Schedulers, models, local training and
aggregation are made from specs, each a `SpecKind`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

from adcs import schedulers
from adcs._validation import did_you_mean, did_you_mean_path
from adcs.experiments.validation import check_value
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Scheduler
from adcs.simulation.aggregation import Aggregation
from adcs.simulation.local_training import LocalTraining
from adcs.simulation.scheduler_errors import OWN_ERRORS, describe_error

NAMES = tuple(
    name
    for name, kind in inspect.getmembers(schedulers, inspect.isclass)
    if name in schedulers.__all__ and issubclass(kind, Scheduler) and not inspect.isabstract(kind)
)
"""The schedulers that `adcs.schedulers` exports."""


@dataclass(frozen=True)
class SpecKind:
    """A kind of object that is made from a spec.

    Attributes
    ----------
    word
        What such an object is called in errors.
    example
        What a spec looks like.
    named
        The classes or functions of this package, by name.
    base
        What a user's class is a subclass of; None takes any class or function.
    base_name
        The public name of `base`.

    Examples
    --------
    >>> SpecKind("number", "Fraction or file.py:Class", {}).make("fractions:Fraction", numerator=3)
    Fraction(3, 1)
    """

    word: str
    example: str
    named: Mapping[str, Callable[..., Any]]
    base: type | None = None
    base_name: str = ""

    def make(self, spec: str, **given: Any) -> Any:
        """Return the object of a spec.

        Parameters
        ----------
        spec
            The class or function, and its settings.
        **given
            Settings that hold unless the spec gives them.
        """
        kind, settings = self.read(spec)
        return self.call(spec, kind, settings, **given)

    def read(self, spec: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the class or function of a spec, and the settings that the spec gives."""
        where, call = split(spec)
        if not where and call.endswith(".py") and Path(call).is_file():
            raise ValueError(f"{self.word} {spec!r}: {self._name_its_class(call, spec)}")
        name, settings = self.parse(call, spec)
        if where:
            return self._user_class(where, name, spec), settings
        if name in self.named:
            return self.named[name], settings
        raise ValueError(f"unknown {self.word} {name!r}; {did_you_mean(name, self.named)}")

    def call(
        self, spec: str, kind: Callable[..., Any], settings: Mapping[str, Any], **given: Any
    ) -> Any:
        """Return what a class or function makes of settings; errors name the spec."""
        known = self.settings(kind)
        try:
            for key, value in settings.items():
                if key in known:
                    check_value(key, value, known[key].annotation)
            return kind(**{**given, **settings})
        except TypeError as error:
            # The class is called first: it may take settings that its signature does not name.
            unknown = [key for key in settings if key not in known]
            why = str(error)
            if unknown:
                hint = did_you_mean(unknown[0], known) if known else "it has none"
                name = getattr(kind, "__name__", self.word)
                why = f"{name} has no setting {unknown[0]!r}; {hint}"
            elif self.base is Scheduler and "unexpected keyword argument" in why:
                why += "; take **common and pass it to super().__init__"
            raise ValueError(f"{self.word} {spec!r}: {why}") from error
        except OWN_ERRORS as error:
            raise ValueError(f"{self.word} {spec!r}: {describe_error(error)}") from error

    def parse(self, call: str, spec: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the settings of a spec without its file or module."""
        wrong = f"{self.word} {spec!r} must look like {self.example}"
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
            raise ValueError(f"{self.word} {spec!r}: {error}") from error
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError(wrong) from error

    def settings(self, kind: Callable[..., Any]) -> dict[str, inspect.Parameter]:
        """Return the settings of a class or function, its own first, with resolved annotations."""
        found: dict[str, inspect.Parameter] = {}
        complete = False
        for base in inspect.getmro(kind) if isinstance(kind, type) else (kind,):
            # A class of this package declares all its settings but those of the base class.
            init: Any = vars(base).get("__init__") if isinstance(base, type) else base
            if init is None or base is object or (complete and base is not self.base):
                continue
            complete = complete or base in self.named.values()
            parameters = list(inspect.signature(init).parameters.values())
            parameters = parameters[1:] if isinstance(base, type) else parameters
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

    def _fits(self, value: Any) -> bool:
        if self.base is None:
            return callable(value)
        return isinstance(value, type) and issubclass(value, self.base)

    def _name_its_class(self, where: str, spec: str) -> str:
        """Return what to say about a file that is given without its class."""
        module = self._module(where, spec)
        found = [
            f"{where}:{name}"
            for name in self._user_classes(module)
            if getattr(module, name).__module__ == module.__name__
        ]
        if not found:
            return f"{where} has no {self._wanted[2:]}"
        return f"name its {'class' if self.base else 'class or function'}: {' or '.join(found)}"

    @property
    def _wanted(self) -> str:
        return f"a subclass of {self.base_name}" if self.base else "a class or function"

    def _user_classes(self, module: ModuleType) -> list[str]:
        """Return the names of what a user's module has for a spec."""
        return [
            key
            for key, value in vars(module).items()
            if self._fits(value) and value is not self.base and not key.startswith("_")
        ]

    def _user_class(self, where: str, name: str, spec: str) -> Callable[..., Any]:
        """Return a class or function from a user's file or module."""
        module = self._module(where, spec)
        kind: Any = getattr(module, name, None)
        if self._fits(kind):
            found: Callable[..., Any] = kind
            return found
        kinds = self._user_classes(module)
        known = did_you_mean(name, kinds) if kinds else f"{where} has no {self._wanted[2:]}"
        what = f"{where} has no class {name!r}" if self.base else f"{where} has no {name!r}"
        if kind is not None:
            what = f"{name} is not {self._wanted}"
        raise ValueError(f"{self.word} {spec!r}: {what}; {known}")

    def _module(self, where: str, spec: str) -> ModuleType:
        if not where.endswith(".py"):
            if "/" in where or Path(where).is_file():
                raise ValueError(f"{self.word} {spec!r}: {where} is not a Python file (.py)")
            try:
                return importlib.import_module(where)
            except OWN_ERRORS as error:
                raise ValueError(
                    f"{self.word} {spec!r} cannot be loaded: {describe_error(error)}"
                ) from error
        path = Path(where)
        if not path.is_file():
            raise ValueError(
                f"{self.word} {spec!r}: there is no file {path}{did_you_mean_path(path)}"
            )
        try:
            path = path.resolve()
            module_name = _module_name(path)
            found = importlib.util.spec_from_file_location(module_name, path)
            if found is None or found.loader is None:
                raise ImportError(f"cannot read {where}")
            module = importlib.util.module_from_spec(found)
            sys.modules[module_name] = module
            found.loader.exec_module(module)
            return module
        except OWN_ERRORS as error:
            raise ValueError(
                f"{self.word} {spec!r} cannot be loaded: {describe_error(error)}"
            ) from error


def _module_name(path: Path) -> str:
    """Return the name under which a user's file is imported: its own, unless a module has it.

    A file called json.py would otherwise take the place of that module for all other code.

    >>> _module_name(Path("/my/patient.py")), _module_name(Path("/my/json.py"))[:5]
    ('patient', 'json_')
    """
    name = path.stem.replace(".", "_")
    try:
        holder = importlib.util.find_spec(name)
        taken = holder is not None and holder.origin != str(path)
    except ValueError:  # a module without a spec, as __main__ is
        taken = True
    return f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}" if taken else name


SCHEDULER = SpecKind(
    "scheduler",
    "ADCS, ADCS(theta=0.5) or file.py:Class",
    {name: getattr(schedulers, name) for name in NAMES},
    Scheduler,
    "adcs.Scheduler",
)

LOCAL_TRAINING = SpecKind(
    "local training",
    "sgd, full or file.py:Class",
    {},
    LocalTraining,
    "adcs.simulation.LocalTraining",
)

AGGREGATION = SpecKind(
    "aggregation",
    "mean, median or file.py:Class",
    {},
    Aggregation,
    "adcs.simulation.Aggregation",
)


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
    kind, settings = SCHEDULER.read(spec)
    if isinstance(settings.get("sketch"), int):
        try:
            settings["sketch"] = Sketcher(size=settings["sketch"])
        except ValueError as error:
            raise ValueError(f"scheduler {spec!r}: sketch {error}") from error
    scheduler: Scheduler = SCHEDULER.call(spec, kind, settings, seed=seed)
    return scheduler


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
    kind, _ = SCHEDULER.read(spec)
    shared = SCHEDULER.settings(Scheduler)
    words = {key: str(p.replace(annotation=p.empty)) for key, p in SCHEDULER.settings(kind).items()}
    own = ", ".join(text for key, text in words.items() if key not in shared)
    common = ", ".join(text for key, text in words.items() if key in shared)
    return Description(own, common, inspect.getdoc(kind) or "")


def split(spec: str) -> tuple[str, str]:
    """Return the file or module of a spec, "" for none, and the class with its settings.

    >>> split("my/file.py:Mine(caps={'a': 2})"), split("ADCS")
    (('my/file.py', "Mine(caps={'a': 2})"), ('', 'ADCS'))
    """
    name, bracket, settings = spec.strip().partition("(")
    where, _, kind = name.rpartition(":")
    return where, kind + bracket + settings


def absolute(spec: str) -> str:
    """Return a spec with the absolute path of its file, for a resume from another directory.

    >>> absolute("ADCS(theta=0.5)"), Path(split(absolute("mine.py:Mine"))[0]).is_absolute()
    ('ADCS(theta=0.5)', True)
    """
    file, call = split(spec)
    return f"{Path(file).resolve()}:{call}" if file.endswith(".py") else spec


def parts(spec: str) -> tuple[str, str, dict[str, Any]]:
    """Return the file or module of a spec, "" for this package, the class name and the settings.

    Nothing is imported, and the class need not exist.

    >>> parts("my/file.py:Mine(patience=3)")
    ('my/file.py', 'Mine', {'patience': 3})
    >>> parts("adcs.schedulers:ADCS")
    ('', 'ADCS', {})
    """
    where, call = split(spec)
    name, settings = SCHEDULER.parse(call, spec)
    package = schedulers.__name__.partition(".")[0]
    ours = where in (package, schedulers.__name__) or where.startswith(f"{schedulers.__name__}.")
    return "" if ours and name in NAMES else where, name, settings


def defaults(name: str) -> dict[str, Any]:
    """Return the settings of a scheduler of this package with their defaults.

    >>> defaults("ADCS")["theta"]
    0.8
    """
    return {key: p.default for key, p in SCHEDULER.settings(SCHEDULER.read(name)[0]).items()}


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
