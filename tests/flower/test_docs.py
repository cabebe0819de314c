"""The snippets of the pages about Flower run in order; later pages continue the tutorial."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from adcs.flower import LocalGrid

DOCS = Path(__file__).parents[2] / "docs"


def snippets(page: str, language: str = "python") -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def run_page(page: str, namespace: dict[str, Any], *, only: slice = slice(None)) -> None:
    for snippet in snippets(page)[only]:
        exec(compile(snippet, page, "exec", dont_inherit=True), namespace)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where pages write files
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_the_tutorial_runs(capsys: Any) -> None:
    namespace: dict[str, Any] = {}
    assert len(snippets("tutorials/flower.md")) >= 6
    run_page("tutorials/flower.md", namespace)
    assert "eval_acc-worst20" in capsys.readouterr().out

    # The ServerApp of the page, on a grid.
    context = Context(1, 1, {}, RecordDict(), {})
    grid = LocalGrid(namespace["app"], nodes=6)
    namespace["server"](grid, context)
    assert sum(node.calls for node in grid.nodes) > 40


@pytest.mark.parametrize("page", ["howto/flower.md", "tutorials/production.md"])
def test_pages_that_continue_the_tutorial_run(page: str) -> None:
    namespace: dict[str, Any] = {}
    run_page("tutorials/flower.md", namespace, only=slice(3))
    assert len(snippets(page)) >= 7
    run_page(page, namespace)


@pytest.mark.parametrize("page", ["tutorials/flower.md", "tutorials/production.md"])
def test_toml_on_the_pages_can_be_read(page: str) -> None:
    assert [tomllib.loads(text) for text in snippets(page, "toml")]
