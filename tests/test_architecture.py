"""docs/explanation/architecture.md: who may import whom, and what a core import costs."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "adcs"


def may_import() -> dict[str, set[str]]:
    """Return the table of the page: the packages, and those that each may import besides itself."""
    page = (SOURCE.parents[1] / "docs" / "explanation" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", page, flags=re.MULTILINE)
    return {package: set(re.findall(r"`(\w+)`", allowed)) for package, allowed in rows}


MAY_IMPORT = may_import()


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imported_packages(path: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            names = [
                f"{module}.{alias.name}" if module == "adcs" else module for alias in node.names
            ]
        packages |= {name.split(".")[1] for name in names if name.startswith("adcs.")}
    return packages


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=str)
def test_imports_point_one_way(path: Path) -> None:
    package = package_of(path)
    if package in ("__init__", "__main__"):
        return
    assert package in MAY_IMPORT, f"{package} is not a package of docs/explanation/architecture.md"
    assert imported_packages(path) <= MAY_IMPORT[package] | {package}


def test_the_page_has_every_package_and_no_other() -> None:
    packages = {package_of(path) for path in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert set(MAY_IMPORT) == packages


def test_packages_form_no_circle() -> None:
    left = dict(MAY_IMPORT)
    while left:
        free = [package for package, needs in left.items() if not needs & set(left)]
        assert free, f"{sorted(left)} import each other"
        for package in free:
            del left[package]


def test_core_import_is_light() -> None:
    code = "import sys, adcs; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {
        "matplotlib",
        "sklearn",
        "pandas",
        "typer",
        "rich",
        "pydantic",
        "pooch",
        "flwr",
        "nvflare",
        "ray",
        "torch",
    }
    assert not heavy & set(loaded)
    assert "adcs" in loaded


@pytest.mark.parametrize("name", ["dpp", "reports", "schedulers"])
def test_dataclasses_are_frozen(name: str) -> None:
    package = importlib.import_module(f"adcs.{name}")
    for found in pkgutil.walk_packages(package.__path__, f"adcs.{name}."):
        for kind in vars(importlib.import_module(found.name)).values():
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                assert kind.__dataclass_params__.frozen, kind  # type: ignore[attr-defined]
