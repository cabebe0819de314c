"""The snippets of docs/tutorials/flower.md run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from adcs.flower import LocalGrid

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "flower.md"


def test_every_snippet_runs(capsys: Any) -> None:
    text = PAGE.read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(snippets) == text.count("```") // 2 >= 9
    namespace: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec", dont_inherit=True), namespace)
    assert "eval_acc-worst20" in capsys.readouterr().out

    # The ServerApp of the page, on a grid.
    context = Context(1, 1, {}, RecordDict(), {})
    grid = LocalGrid(namespace["app"], nodes=6)
    namespace["server"](grid, context)
    assert sum(node.calls for node in grid.nodes) > 40
