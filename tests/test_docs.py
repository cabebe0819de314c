"""The pages and examples do what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from adcs.experiments import Comparison
from tests.snippets import ROOT, code_blocks, run_page, skip_without_libraries

ELSEWHERE = {
    "docs/explanation/theory.md": "tests/theory/test_page.py",
    "docs/howto/cluster.md": "tests/experiments/test_cluster.py",
    "docs/howto/flower.md": "tests/flower/test_docs.py",
    "docs/tutorials/flower.md": "tests/flower/test_docs.py",
    "docs/tutorials/nvflare.md": "tests/nvflare/test_controller.py",
    "docs/tutorials/production.md": "tests/flower/test_docs.py",
}
"""The tests of pages that need more than their own code."""

PAGES = [
    page
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if code_blocks(page := path.relative_to(ROOT).as_posix()) and page not in ELSEWHERE
]


@pytest.mark.parametrize("page", PAGES)
def test_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_libraries(page)
    monkeypatch.chdir(tmp_path)  # where pages write files
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    commands = page == "docs/start.md" or page.startswith("docs/tutorials/")
    run_page(page, {"__name__": page}, commands=commands)


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_other_pages_have_tests(page: str, test: str) -> None:
    assert Path(page).name in (ROOT / test).read_text()


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


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
