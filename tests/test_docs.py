"""The pages and examples do what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from adcs.experiments import Comparison

ROOT = Path(__file__).parents[1]


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


PAGES = [
    "docs/tutorials/own_scheduler.md",
    "docs/howto/models.md",
    "docs/howto/simulator.md",
    "docs/howto/training.md",
    "docs/howto/python.md",
    "docs/howto/data.md",
    "README.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where pages write files
    blocks = code_blocks(page)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})


def test_a_scheduler_fits_in_forty_lines() -> None:
    first = code_blocks("docs/tutorials/own_scheduler.md")[0]
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


def test_own_research_in_forty_lines(tmp_path: Path) -> None:
    script = ROOT / "examples" / "own_research.py"
    assert len(script.read_text().splitlines()) <= 40
    done = subprocess.run(
        [sys.executable, script, tmp_path / "run"], capture_output=True, text=True, check=True
    )
    assert "Stale" in done.stdout
    assert (
        Comparison.open(tmp_path / "run")
        .experiment.schedulers["Stale"]
        .endswith("own_research.py:Stale()")
    )
