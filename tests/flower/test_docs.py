"""The snippets of the pages about Flower run in order: those of the tutorial, then of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs adcs[flower]")

from flwr.app import Context, RecordDict

from adcs.flower import LocalGrid
from tests.snippets import ROOT, run_page

TUTORIAL = "docs/tutorials/flower.md"
CONTINUED = ["docs/howto/flower.md", "docs/tutorials/production.md"]


def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "flower"}
    run_page(TUTORIAL, namespace, commands=True)
    assert "eval_acc-worst20" in capsys.readouterr().out
    assert (tmp_path / "run" / "report.html").is_file()

    # The ServerApp of the page, on a grid.
    context = Context(1, 1, {}, RecordDict(), {})
    grid = LocalGrid(namespace["app"], nodes=6)
    namespace["server"](grid, context)
    assert sum(node.calls for node in grid.nodes) > 40


@pytest.mark.parametrize("page", CONTINUED)
def test_pages_that_continue_the_tutorial(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (ROOT / page).is_file()
    (tmp_path / "tutorial").mkdir()
    monkeypatch.chdir(tmp_path / "tutorial")
    namespace: dict[str, Any] = {"__name__": "flower"}
    run_page(TUTORIAL, namespace)
    monkeypatch.chdir(tmp_path)
    run_page(page, namespace)
