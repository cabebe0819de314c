"""The scripts use the library from outside: only public names of `adcs`."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "reproduction").rglob("*.py"))


def imported(path: Path) -> list[tuple[str, str]]:
    """Return the modules of adcs that a script imports from, each with a name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "adcs"]


def is_public(module: str, name: str) -> bool:
    """Whether a name is one that the surface of its package shows."""
    if any(part.startswith("_") for part in [*module.split("."), name]) or not name:
        return False
    surface = importlib.import_module(module)
    parts = module.split(".")
    if not hasattr(surface, "__path__") and len(parts) > 2:
        return False  # A module inside a package: its package exports what is public.
    if hasattr(surface, "__all__") and name in surface.__all__:
        return True
    if not hasattr(surface, "__path__"):
        return not hasattr(surface, "__all__") and hasattr(surface, name)
    # A top-level module such as adcs.metrics is a surface of its own.
    below = Path(surface.__path__[0]) / f"{name}.py"
    return module == "adcs" and below.is_file()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_imports_are_public(path: Path) -> None:
    private = [entry for entry in imported(path) if not is_public(*entry)]
    assert private == []


@pytest.mark.parametrize(
    ("module", "name", "public"),
    [
        ("adcs", "ADCS", True),
        ("adcs", "metrics", True),
        ("adcs", "_types", False),
        ("adcs", "schedulers", False),
        ("adcs._types", "ClientId", False),
        ("adcs.experiments", "curves", True),
        ("adcs.experiments", "runner", False),
        ("adcs.experiments.statistics", "curves", False),
        ("adcs.run_folder", "RunFolder", True),
        ("adcs.run_folder", "_lock", False),
        ("adcs.dpp.kernel", "log_kernel", False),
    ],
)
def test_what_counts_as_public(module: str, name: str, public: bool) -> None:
    assert is_public(module, name) == public


def test_scripts_read_no_private_attribute_of_other_modules() -> None:
    """Only `self._x` and `super()._x`: the script's own, and hooks of the scheduler contract."""
    for path in SCRIPTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                owner = ast.unparse(node.value)
                assert owner in ("self", "super()"), f"{path.name}: {owner}.{node.attr}"


def test_the_package_does_not_contain_the_scripts() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    assert targets["wheel"] == {"packages": ["src/adcs"]}
    assert not [path for path in targets["sdist"]["include"] if "reproduction" in path]
    assert not list((ROOT / "src").rglob("*.toml"))
