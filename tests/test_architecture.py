"""The rooms of docs/architecture.md: who may import whom, and what a core import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "adcs"

# A room may import the rooms on its right, and itself.
MAY_IMPORT: dict[str, set[str]] = {
    "dpp": set(),
    "signals": {"dpp"},
    "schedulers": {"signals", "dpp"},
    "selecting": {"signals", "dpp"},
    "testing": {"schedulers", "signals", "dpp"},
    "metrics": {"dpp"},
    "runs": {"schedulers", "signals", "dpp"},
    "theory": {"runs", "metrics", "dpp"},
    "simulation": {"runs", "metrics", "schedulers", "signals", "dpp"},
    "flower": {"runs", "metrics", "schedulers", "signals", "dpp"},
    "experiments": {"simulation", "theory", "runs", "metrics", "schedulers", "signals", "dpp"},
    "cli": {"experiments", "simulation", "theory", "runs", "schedulers", "signals"},
}


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
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
        rooms |= {name.split(".")[1] for name in names if name.startswith("adcs.")}
    return rooms


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=str)
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert room in MAY_IMPORT, f"{room} is not a room of docs/architecture.md"
    assert imported_rooms(path) <= MAY_IMPORT[room] | {room}


def test_architecture_page_names_every_room() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    for room in MAY_IMPORT:
        assert room in page


def test_core_import_is_light() -> None:
    code = "import sys, adcs; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"matplotlib", "sklearn", "pandas", "typer", "rich", "pooch", "flwr", "ray", "torch"}
    assert not heavy & set(loaded)
    assert "adcs" in loaded
