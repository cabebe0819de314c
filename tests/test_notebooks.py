"""The notebooks of examples/ run, in this process and in a kernel."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def need(path: Path) -> None:
    if "flwr" in path.read_text():
        pytest.importorskip("flwr", reason="needs adcs[flower]")


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare_schedulers", "flower_local_grid"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_not_committed(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    need(path)
    caplog.set_level(logging.INFO, logger="flwr")  # A notebook sets it: the fixture sets it back.
    monkeypatch.chdir(tmp_path)  # where run folders go
    namespace: dict[str, Any] = {"__name__": path.stem}
    shown: list[Any] = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse(source(cell))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, str(path), "exec", dont_inherit=True), namespace)
            if last is not None:
                shown.append(eval(ast.unparse(last), namespace))
    assert shown
    if path.stem == "compare_schedulers":
        result, differences, figure, table, folder = shown
        assert "<img" in result._repr_html_()
        assert set(differences) == {"ADCS", "LiveADCS"}
        assert figure._repr_png_()
        assert list(table.index) == ["ADCS", "LiveADCS", "Uniform"]
        assert (folder / "config.json").exists()
    else:
        curves, counts = shown
        averages = curves.xs("average", axis="columns", level=1)
        assert (averages.iloc[-1] > 0.7).all()
        assert (counts.sum(axis=1) == 300).all()  # five clients in each of 60 rounds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_kernel_runs_it(path: Path, tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient", reason="needs adcs[test-all]")
    pytest.importorskip("ipykernel", reason="needs adcs[test-all]")
    need(path)
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    pages = [
        output["data"].get("text/html", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    assert "<table" in "".join(pages)
    if path.stem == "compare_schedulers":
        assert "<img" in pages[0]
