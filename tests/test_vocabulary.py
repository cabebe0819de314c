"""Names are the field's words: modules, classes, functions, arguments and keys of states."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "adcs"

MODULES = {
    *("selecting", "state", "places", "draws", "race", "beliefs", "budget", "weighing"),
    *("sketching", "signals", "book", "refusal", "scoring", "rows", "room", "work", "bill"),
    *("names", "data", "asking", "attendance", "reading", "logs", "blame", "lettering"),
    *("wording", "hints", "why", "replay", "compare", "tables", "outputs", "claims"),
}
"""Names that no module has: the field says constraints, sampling, reports and so on."""

DEFINITIONS = {
    *("Rules", "Places", "place", "race", "hear", "fall", "Beliefs", "ReportBook", "book"),
    *("refusal", "Refusal", "misfit", "tells", "familiar", "knows", "Scoring", "blur", "tilt"),
    *("doubtful", "Room", "room", "room_in", "Rows", "RoundBill", "bill", "hint", "near_by"),
    *("Errand", "errand", "owing", "Note", "Once", "blame", "length", "ask", "learn", "choose"),
    "pick",
}
"""Names that no class, function or method has, with or without a leading underscore."""

KEYS = {
    *("places", "beliefs", "budget", "book", "familiar", "bill", "owing", "length", "lengths"),
    *("asked", "heard", "last_chosen", "round"),
}
"""Keys that no state has."""

ARGUMENTS = {"round", "length", "places", "room", "errand", "bill", "scoring"}
"""Names that no argument has; `round` would shadow the builtin."""

EXCEPTIONS = {
    "cli/compare.py": "the command `adcs compare`; the runs are in experiments/runner.py",
    "cli/data.py": "the command `adcs data`; the data sets are in simulation/datasets",
    "experiments/tables.py": "text tables; the statistics in them are in experiments/statistics.py",
    "simulation/datasets/registry.py:_hint": "returns how to get a data set, not a spelling",
}
"""Names that are kept, each with the reason."""


def definitions(tree: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node


def state_keys(function: ast.FunctionDef) -> set[str]:
    """Return the keys of the dictionaries that a function makes."""
    return {
        key.value
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def old_names(text: str) -> set[str]:
    """Return the names of a module's text that are not the field's words."""
    found: set[str] = set()
    for node in definitions(ast.parse(text)):
        if node.name.removeprefix("_") in DEFINITIONS:
            found.add(node.name)
        if isinstance(node, ast.FunctionDef):
            nodes = ast.walk(node.args)
            arguments = {argument.arg for argument in nodes if isinstance(argument, ast.arg)}
            found |= {f"{node.name}({name})" for name in arguments & ARGUMENTS}
            if re.fullmatch(r"_?state", node.name):
                found |= {f"{node.name}[{key}]" for key in state_keys(node) & KEYS}
    return found


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_names_are_the_fields_words(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    assert path.stem.strip("_") not in MODULES or name in EXCEPTIONS
    kept = {key.partition(":")[2] for key in EXCEPTIONS if key.startswith(f"{name}:")}
    assert old_names(path.read_text()) <= kept


def test_exceptions_exist() -> None:
    for key in EXCEPTIONS:
        assert (SOURCE / key.partition(":")[0]).is_file()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class Room: pass", {"Room"}),
        ("def _hear(x): pass", {"_hear"}),
        ("def f(*, round=1): pass", {"f(round)"}),
        ("def state(self): return {'last_chosen': 1}", {"state[last_chosen]"}),
        ("def select(server_round): return {'asked': 1}", set()),
    ],
)
def test_old_names_are_found(text: str, found: set[str]) -> None:
    assert old_names(text) == found
