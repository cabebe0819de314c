"""The pages and examples do what they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        "docs/own_scheduler.md",
        "docs/models.md",
        "docs/simulator.md",
        "docs/training.md",
        "README.md",
    ],
)
def test_page_runs(page: str) -> None:
    blocks = code_blocks(page)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})


def test_a_scheduler_fits_in_forty_lines() -> None:
    first = code_blocks("docs/own_scheduler.md")[0]
    assert len(first.splitlines()) < 40


def test_own_loop() -> None:
    import adcs

    spec = importlib.util.spec_from_file_location("own_loop", ROOT / "examples" / "own_loop.py")
    assert spec
    assert spec.loader
    own_loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own_loop)
    worst, mean = own_loop.train(adcs.ADCS(theta=0.8))
    assert worst > 0.6
    assert mean > 0.85
