"""Public names: every package lists them, and each has a docstring and an example."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import adcs

NOT_PUBLIC = {"adcs.cli", "adcs.__main__"}
"""The command line, whose surface is its options."""

WITHOUT_EXAMPLE = {
    "adcs.experiments.run_experiment": "write_report has an example of it, which starts processes",
}
"""Names without an example of their own, each with the reason."""


def modules() -> list[str]:
    """Return the packages, and the modules at the top level that are not private."""
    found = ["adcs"]
    for info in pkgutil.walk_packages(adcs.__path__, "adcs."):
        below = info.name.split(".")[1:]
        if not any(part.startswith("_") for part in below) and (info.ispkg or len(below) == 1):
            found.append(info.name)
    return [name for name in found if name not in NOT_PUBLIC]


def load(module: str) -> ModuleType:
    if module.startswith("adcs.flower"):
        pytest.importorskip("flwr", reason="needs adcs[flower]")
    if module.startswith("adcs.nvflare"):
        pytest.importorskip("nvflare", reason="needs adcs[nvflare]")
    return importlib.import_module(module)


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Return the public methods and properties that a class or its bases of ours define."""
    for base in kind.__mro__:
        if not base.__module__.startswith("adcs"):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            function = getattr(function, "func", function)  # cached_property
            if not name.startswith("_") and inspect.isfunction(function):
                yield f"{base.__name__}.{name}", getattr(kind, name)


@cache
def documented_constants(package: str) -> frozenset[str]:
    """Return the names that a module of the package assigns, with a docstring after it."""
    file = Path(str(importlib.import_module(package).__file__))
    files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
    found = set()
    for path in files:
        body = ast.parse(path.read_text()).body
        for statement, after in pairwise(body):
            is_docstring = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and is_docstring:
                targets = getattr(statement, "targets", [getattr(statement, "target", None)])
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


@pytest.mark.parametrize("module", modules())
def test_the_surface_is_listed_and_documented(module: str) -> None:
    package = load(module)
    assert package.__doc__, f"{module} has no docstring"
    assert hasattr(package, "__all__"), f"{module} has no __all__"
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        value = getattr(package, name)
        if name == "__version__":
            continue
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            assert name in documented_constants(module), f"{module}.{name} has no docstring"
            continue
        full = f"{module}.{name}"
        assert value.__doc__, f"{full} has no docstring"
        assert ">>>" in value.__doc__ or full in WITHOUT_EXAMPLE, f"{full} has no example"
        if inspect.isclass(value):
            missing = [method for method, found in methods(value) if not inspect.getdoc(found)]
            assert not missing, f"{full}: no docstring of {missing}"


def test_the_list_of_names_without_example_names_public_ones() -> None:
    for full in WITHOUT_EXAMPLE:
        module, _, name = full.rpartition(".")
        assert name in importlib.import_module(module).__all__, full


def test_what_lacks_a_docstring_is_found() -> None:
    class Base:
        def told(self) -> None:
            """Documented."""

        @property
        def untold(self) -> int:
            return 0

    Base.__module__ = "adcs.example"
    assert [name for name, found in methods(Base) if not inspect.getdoc(found)] == ["Base.untold"]
    assert "SCHEMA_VERSION" in documented_constants("adcs.run_folder")
    assert "UNKNOWN" not in documented_constants("adcs.run_folder")
