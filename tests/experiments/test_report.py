"""What a comparison leaves behind: tables, figures, warnings."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adcs.cli.app import app
from adcs.experiments.config import Experiment
from adcs.experiments.figures import line_figure
from adcs.experiments.report import panel, setting, warnings, write_report
from adcs.experiments.runner import create_run
from adcs.experiments.styles import styles_of
from adcs.run_folder import RunFolder


@pytest.mark.parametrize(
    ("against", "scale", "column", "last"),
    [
        ("bytes", 1.0, "traffic_up_and_down_MB", 0.04),
        ("bytes", 1e6, "traffic_up_and_down_GB", 40.0),
        ("seconds", 0.1, "virtual_time_seconds", 2000.0),
        ("seconds", 3.6, "virtual_time_hours", 20.0),
    ],
)
def test_figure_files_name_the_unit(
    records: Any, against: str, scale: float, column: str, last: float, tmp_path: Path
) -> None:
    lines = records({"A": 0.5})
    for line in lines:
        line.update({key: scale * line[key] for key in ("bytes_up", "bytes_down", "seconds")})
    styles = styles_of({"A": "ADCS"})
    files = line_figure(tmp_path / "a", "title", [panel(lines, "worst", against, ["A"])], styles)
    with files[-1].open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1][column]) == pytest.approx(last)


def test_the_setting_names_what_is_not_the_default() -> None:
    said = setting(
        Experiment.of(
            partition="dirichlet",
            partition_settings={"alpha": 0.1, "sizes": "skewed"},
            network={"availability": 0.8, "deadline": 30},
            weights="size",
            server_lr=0.5,
            dtype="float64",
            paper_literal_weights=True,
        )
    )
    assert "partition dirichlet, N = 30 clients, alpha = 0.1, sizes = skewed; " in said
    assert "lr 0.001, server_lr = 0.5, " in said
    assert "weights = size, paper_literal_weights = True, " in said
    assert said.endswith("network: availability = 0.8, deadline = 30; 1 seed, dtype = float64.")


@pytest.mark.parametrize(("updates", "named"), [(60, False), (59, True), (10, True)])
def test_a_run_in_which_hardly_anybody_trained(updates: int, named: bool, tmp_path: Path) -> None:
    experiment = Experiment.of(m=12, rounds=10, schedulers={"U": "Uniform", "A": "ADCS"})
    folder = RunFolder.create(tmp_path / "run", experiment.as_dict())
    with folder.writer("task") as lines:
        for label, count in (("A", updates), ("U", 120)):
            for done in (0, 10):
                # Ten probes besides, which nobody trained on.
                ledger = {"updates": (count + 10) * done // 10, "extra_updates": done}
                lines.append({"scheduler": label, "seed": 0, "server_round": done, **ledger})
    found = warnings(folder, experiment)
    assert len(found) == named
    if named:
        assert f"fewer than half came in for A ({100 * updates / 120:.0f} %)." in found[0]


def test_bands_of_accuracies_stay_among_accuracies() -> None:
    records = [
        {"scheduler": "A", "seed": seed, "server_round": 0, "worst": value, "bias": value}
        for seed, value in enumerate([0.0, 0.0, 0.9])
    ]
    band = panel(records, "worst", "server_round", ["A"]).lines["A"]
    assert (band.low, band.high) == (0.0, 1.0)
    assert panel(records, "bias", "server_round", ["A"]).lines["A"].high > 1.0


def test_a_comparison_shows_the_worst_fifth_and_the_costs(records: Any, tmp_path: Path) -> None:
    experiment = Experiment.of(data="synthetic", clients=10, m=5, rounds=20, seeds=3)
    folder = create_run(tmp_path / "run", experiment)
    with folder.writer("all") as file:
        for line in records(dict.fromkeys(experiment.schedulers, 0.5)):
            file.append(line)
    names = {path.name for path in write_report(folder, experiment)}
    assert {f"accuracy-by-{x}.png" for x in ("round", "bytes", "seconds", "cost")} <= names
    with (folder.figures / "accuracy-by-round.csv").open() as stream:
        panels = {row["panel"] for row in csv.DictReader(stream)}
    assert any("worst 20 %" in name for name in panels)
    with (folder.figures / "accuracy-by-cost.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["panel"].split()[1], row["against"].split()[0]) for row in rows} == {
        (accuracy, cost) for accuracy in ("worst", "average") for cost in ("client", "traffic")
    }
    text = (folder.path / "summary.md").read_text()
    assert "corrected by Holm's method for the 5 schedulers" in text
    assert "cut off there" in text


def test_seeds_of_a_comparison_that_do_not_count_are_named(records: Any, tmp_path: Path) -> None:
    experiment = Experiment.of(
        data="synthetic", clients=10, m=5, seeds=4, schedulers=["Uniform", "OCS"]
    )
    folder = create_run(tmp_path / "run", experiment)
    with folder.writer("all") as file:
        for line in records({"Uniform": 0.5, "OCS": 0.6}, seeds=4):
            gone = line["scheduler"] == "OCS" and line["seed"] == 2
            loss = {"test_loss": None if gone and line["server_round"] else 2.3}
            file.append({**line, **loss, "worst": None if gone else line["worst"]})
    diverged, lost = warnings(folder, experiment)
    assert "for OCS (seed 2)." in diverged
    assert lost == "Left out, for their values are no finite numbers: OCS at seed 2 (worst)."
    write_report(folder, experiment, [diverged, lost])
    assert f"**{lost}**" in (folder.path / "summary.md").read_text()


QUICK = ["--data", "synthetic", "--clients", "10", "--m", "5", "--rounds", "20", "--jobs", "1"]


@pytest.mark.parametrize("schedulers", [["Uniform"], ["Uniform", "OCS"]])
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_what_compare_prints(schedulers: list[str], seeds: int, tmp_path: Path) -> None:
    words = [word for name in schedulers for word in ("--scheduler", name)]
    result = CliRunner().invoke(
        app, ["compare", *QUICK, *words, "--seeds", str(seeds), "--out", str(tmp_path / "run")]
    )
    assert result.exit_code == 0, result.output
    pairs = seeds > 1 and len(schedulers) > 1
    text = (tmp_path / "run" / "summary.md").read_text()
    # No table is empty: every one that is announced has lines.
    assert ("Paired" in result.stdout) == pairs
    assert ("## Differences to Uniform" in text) == pairs
    assert len(re.findall(r"^│ Uniform +│", result.stdout, flags=re.MULTILINE)) == 1
    # Two seeds are shown, not an interval of them.
    assert ("±" in result.stdout) == (seeds == 3)
    assert ("of seed 0 / seed 1" in result.stdout) == (seeds == 2)
    assert ("Holm" in result.stdout) == (seeds == 3 and pairs)
