"""Exported tables hold what the records hold, as pandas reads them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import adcs
from adcs.cli.app import app
from adcs.experiments import Comparison
from adcs.experiments.export import export_run, latex_text
from adcs.run_folder import RunFolder

KEY = ["scheduler", "seed", "server_round"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return adcs.compare(
        {"Uniform": "Uniform", "50%_a&b": "ADCS(theta=0.5)"},
        data="synthetic",
        clients=10,
        m=4,
        rounds=30,
        eval_every=10,
        seeds=3,
        out=tmp_path_factory.mktemp("export") / "run",
        jobs=1,
        progress=False,
    )


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_hold_the_records(run: Comparison, form: str, tmp_path: Path) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="needs adcs[data]")
    paths = export_run(RunFolder.open(run.folder), form, tmp_path)
    names = ["records", "clients", "cohorts", "summary"]
    assert [path.name for path in paths] == [f"{name}.{form}" for name in names]
    records, clients, cohorts, summary = map(read, paths)

    expected = run.to_pandas()
    shared = [column for column in expected if column in records]
    pd.testing.assert_frame_equal(
        records[shared], expected[shared], check_dtype=False, check_column_type=False
    )
    assert set(expected) == set(records)
    assert records["updates"].dtype.kind == "i"

    raw = list(RunFolder.open(run.folder).records())
    assert len(clients) == 10 * len(raw)
    by_key = {tuple(record[key] for key in KEY): record for record in raw}
    for key, rows in clients.groupby(KEY):
        record = by_key[key]
        assert rows["client"].tolist() == list(range(10))
        assert rows["accuracy"].tolist() == pytest.approx(record["accuracy"])
        assert rows["loss"].tolist() == pytest.approx(record["losses"])
        assert rows["selections"].tolist() == record["counts"]
        assert rows["group"].tolist() == RunFolder.open(run.folder).config["groups"]
    assert len(cohorts) == 4 * 30 * 6  # every round of two schedulers and three seeds
    counts = cohorts[cohorts["server_round"] < 30].groupby(["scheduler", "seed", "client"]).size()
    for (label, seed), found in counts.groupby(level=[0, 1]):
        assert found.sum() == 120
        selections = by_key[label, seed, 30]["counts"]
        assert found.droplevel([0, 1]).reindex(range(10), fill_value=0).tolist() == selections
    for key, rows in cohorts.dropna(subset="weight").groupby(KEY):
        weights = np.zeros(10)
        weights[rows["client"]] = rows["weight"]
        assert weights == pytest.approx(by_key[key]["cohort_weights"])
    assert cohorts["weight"].notna().sum() == 4 * sum("cohort_weights" in each for each in raw) > 0

    row = summary.query("scheduler == 'Uniform' and measure == 'average'").iloc[0]
    assert row["mean"] == pytest.approx(run.rows()[0].cells["average"].mean)


def test_latex_has_every_cell(run: Comparison, tmp_path: Path) -> None:
    (path,) = export_run(RunFolder.open(run.folder), "latex", tmp_path)
    text = path.read_text()
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    assert r"50\%\_a\&b" in text
    for table in re.findall(r"\\begin{tabular}{(l r*|lr*)}(.*?)\\end{tabular}", text, re.DOTALL):
        columns, body = table
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(lines) >= 2
        assert all(len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1 for line in lines)
    mean = run.rows()[0].cells["average"].mean
    assert f"{mean:.3f}" in text


def test_latex_leaves_no_special_character() -> None:
    text = latex_text(r"\input{x} a_b $1 #2 ~ ^ 50 % & <p> ± –")
    assert not re.search(r"(?<!\\)[_#%&]", text)
    assert "±" not in text
    assert r"\input" not in text


def test_a_federation(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {"engine": "flower"})
    with folder.writer("federation") as lines:
        for done in (1, 2):
            lines.append(
                {
                    "scheduler": "LiveADCS",
                    "seed": 0,
                    "server_round": done,
                    "worst": math.nan if done == 1 else 0.5,
                    "updates": done,
                    "chosen": ["site b", 7],
                    "weights": [0.25, 0.75],
                    "trained": [7],
                    "clients": [7, "site b"],
                    "counts": [done, 0],
                    "evaluation": {"eval_acc": {"worst": 0.5}},
                }
            )
    form = "csv"
    paths = {path.stem: read(path) for path in export_run(folder, form)}
    assert paths["records"]["evaluation/eval_acc/worst"].tolist() == [0.5, 0.5]
    assert paths["records"]["trained"].tolist() == [1, 1]
    assert paths["cohorts"]["server_round"].tolist() == [0, 0, 1, 1]
    assert paths["cohorts"]["client"].tolist() == ["site b", "7", "site b", "7"]
    assert paths["clients"]["selections"].tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_sites_of_a_federation(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="needs adcs[data]")
    folder = RunFolder.create(tmp_path / "run", {"engine": "flower"})
    line: dict[str, Any] = {"scheduler": "A", "seed": 0, "chosen": [7], "weights": [1.0]}
    with folder.writer("federation") as lines:
        lines.append({**line, "server_round": 1, "clients": [7, 8], "counts": [1, 0]})
        groups = ["Bern", None, 3]
        later = {"clients": [7, 8, 9], "counts": [2, 0, 0], "groups": groups}
        lines.append({**line, "server_round": 2, **later})
    paths = {path.stem: read(path) for path in export_run(folder, form)}
    found = paths["clients"]["group"]
    assert found.isna().tolist() == [True, True, False, True, False]
    assert found.dropna().tolist() == ["Bern", "3"]


def test_ids_of_several_types_in_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs adcs[data]")
    folder = RunFolder.create(tmp_path / "run", {"engine": "flower"})
    with folder.writer("federation") as lines:
        record: dict[str, Any] = {"scheduler": "A", "seed": 0, "server_round": 1}
        lines.append({**record, "chosen": ["site b", 7], "weights": [1, 0.5]})
    (_, cohorts, *_) = export_run(folder, "parquet")
    assert read(cohorts)["client"].tolist() == ["site b", "7"]


def test_the_command(run: Comparison, tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["export", str(run.folder), "--to", "csv", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert (tmp_path / "records.csv").exists()
    wrong = runner.invoke(app, ["export", str(run.folder), "--to", "cvs"])
    assert (wrong.exit_code, "did you mean csv?" in wrong.output) == (2, True)
    empty = RunFolder.create(tmp_path / "empty", {"engine": "flower"})
    nothing = runner.invoke(app, ["export", str(empty.path), "--to", "csv"])
    assert (nothing.exit_code, "has no records yet" in nothing.output) == (2, True)
