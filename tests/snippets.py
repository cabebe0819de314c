"""Runs what is on a page: its code, and for tutorials its commands, in order."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

OPTIONAL = {
    *("datasets", "duckdb", "flwr", "mlflow", "nvflare", "pandas", "polars", "ray", "torch"),
    *("tensorboard", "wandb"),
}
"""Libraries of extras: a page that imports one that is missing is skipped."""

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def code_blocks(page: str) -> list[str]:
    """Return the Python code on a page."""
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text()) if kind == "python"]


def skip_without_libraries(page: str) -> None:
    """Skip the test if a library of an extra that the page imports is missing."""
    for node in ast.walk(ast.parse("\n".join(code_blocks(page)))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in {name.partition(".")[0] for name in names} & OPTIONAL:
            pytest.importorskip(name, reason=f"{page} needs {name}")


def run_page(page: str, namespace: dict[str, Any], *, commands: bool = False) -> None:
    """Run the code on a page in the working directory; `commands` runs those of adcs as well."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, page, "exec", dont_inherit=True), namespace)
        elif commands:
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["adcs"] and words[1] != "watch":  # which does not end
                    subprocess.run([sys.executable, "-m", *words], check=True)
