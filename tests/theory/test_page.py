"""The code on docs/explanation/theory.md runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "theory.md"


def test_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 7
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "page"})
