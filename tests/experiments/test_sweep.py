"""Sweeps: the points of a grid, the best one, the figure, resume."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs.experiments import comparison as module
from adcs.experiments.comparison import Comparison
from adcs.experiments.config import Experiment
from adcs.experiments.runner import run_task, tasks
from adcs.experiments.statistics import SHARE, estimate
from adcs.experiments.sweep import Grid, Sweep
from adcs.experiments.sweep_figure import sweep_figure
from adcs.run_folder import RunFolder

SMALL = Experiment.of(
    data="synthetic:clusters=3,dimension=3",
    clients=6,
    m=2,
    rounds=12,
    eval_every=2,
    seeds=3,
    schedulers=["ADCS"],
)


def run_here(folder: RunFolder, experiment: Experiment, **_: Any) -> None:
    """Run tasks without worker processes, which take seconds to start."""
    for task in tasks(experiment, folder.config.get("part")):
        run_task(folder, experiment, task, lambda _: None)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_experiment", run_here)


def grid(**axes: list[Any]) -> Grid:
    return Grid("ADCS", "ADCS", axes, SMALL)


AXES = st.fixed_dictionaries(
    {},
    optional={
        "theta": st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=1, unique=True),
        "refresh_every": st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
        "lr": st.lists(st.sampled_from([0.1, 0.01]), min_size=1, unique=True),
        "m": st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
    },
).filter(bool)


@given(AXES)
def test_points_are_the_product_of_the_axes(axes: dict[str, list[Any]]) -> None:
    found = grid(**axes)
    points = found.points
    assert [tuple(point.settings.values()) for point in points] == list(product(*axes.values()))
    assert len({point.name for point in points}) == len(points)
    experiments = list(found.experiments)
    assert sum(len(each.schedulers) for each in experiments) == len(points)
    for point in points:
        experiment = experiments[point.run - 1]
        made = experiment.simulation(0, (point.label,)).runs[0].scheduler
        for name, value in point.settings.items():
            own = name in ("theta", "refresh_every")
            assert getattr(made if own else experiment.training, name) == value


def test_settings_of_the_partition_and_the_network() -> None:
    base = SMALL.replace(partition="dirichlet", partition_settings={"alpha": 1.0})
    found = Grid("ADCS", "ADCS", {"alpha": [0.1, 10.0], "dropout": [0.0, 0.2]}, base)
    made = [(each.partition.settings["alpha"], each.network) for each in found.experiments]
    assert [(alpha, network.dropout) for alpha, network in made if network] == [
        (0.1, 0.0), (0.1, 0.2), (10.0, 0.0), (10.0, 0.2),
    ]  # fmt: skip


def test_settings_in_the_spec_are_kept() -> None:
    found = Grid("ADCS(theta=0.3, sketch=8)", "ours", {"refresh_every": [2]}, SMALL)
    (experiment,) = found.experiments
    assert experiment.schedulers == {
        "refresh_every=2": "ADCS(theta=0.3, sketch=8, refresh_every=2)"
    }


@pytest.mark.parametrize(
    ("axes", "match"),
    [
        ({}, "grid must have at least one setting"),
        (
            {"thet": [0.1]},
            "neither ADCS nor an experiment has a setting 'thet'; did you mean theta",
        ),
        ({"roundss": [5]}, "has a setting 'roundss'; did you mean rounds"),
        ({"seeds": [1, 2]}, "seeds is the same at every point; give it as --seeds"),
        ({"theta": []}, "theta must have at least one value"),
        ({"theta": [0.1, 0.1]}, r"the values of theta must be distinct, got \[0.1, 0.1\]"),
        ({"theta": [0.1, 7.0]}, "theta"),
        ({"m": [2, 99]}, "training.m must be at most 6"),
        ({"lr": ["fast"]}, "training.lr must be a number > 0, got 'fast'"),
    ],
)
def test_bad_grids_are_one_sentence(axes: dict[str, list[Any]], match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        grid(**axes)
    assert "\n" not in str(error.value)


def test_a_setting_is_not_set_twice() -> None:
    with pytest.raises(ValueError, match=r"theta is set in the scheduler .* already"):
        Grid("ADCS(theta=0.5)", "a", {"theta": [0.1]}, SMALL)


def test_points_that_reach_the_same_tie(tmp_path: Path) -> None:
    same = Grid("Uniform", "a", {"unknown_group": ["x", "y", "z"]}, SMALL)
    sweep = Sweep.create(same, tmp_path / "s", metric="average")
    sweep.run(progress=False)
    points = [point.name for point in sweep.grid.points]
    assert f": {points[0]} (tied with {points[1]} and 1 more), " in sweep.conclusion()


def test_the_best_point_is_that_of_the_records(tmp_path: Path) -> None:
    sweep = Sweep.create(grid(theta=[0.1, 0.9], lr=[0.1, 1e-9]), tmp_path / "s", metric="average")
    sweep.run(progress=False)
    means = {}
    for point in sweep.grid.points:
        records = Comparison.open(tmp_path / "s" / f"run-{point.run}")._checked()
        ends = [  # The last tenth of seven evaluations is the last one.
            record["average"]
            for record in records
            if record["scheduler"] == point.label and record["server_round"] == 12
        ]
        assert len(ends) == 3
        means[point.name] = np.mean(ends)
        np.testing.assert_allclose(sweep.estimates[point.name]["average"].mean, means[point.name])
    assert means[sweep.best.name] == max(means.values())
    assert sweep.best.settings["lr"] == 0.1
    sentence = sweep.conclusion()
    tied = "(tied with theta=0.1, lr=1e-09 and 2 more)"
    assert sentence.startswith(f"Best of 4 points by average: {sweep.best.name} {tied}, ")
    assert "over 3 seeds. This number is flattered, because it is the best of 4" in sentence
    with (tmp_path / "s" / "table.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["measure"] == "average"]
    assert [float(row["mean"]) for row in rows] == pytest.approx(list(means.values()), rel=1e-5)
    text = (tmp_path / "s" / "summary.md").read_text()
    assert sentence in text
    assert "![sweep](figures/sweep.png)" in text


def test_models_may_be_swept(tmp_path: Path) -> None:
    sweep = Sweep.create(grid(model=["softmax", "mlp:4,4"]), tmp_path / "s")
    sweep.run(progress=False)
    assert [point.name for point in Sweep.open(tmp_path / "s").grid.points] == [
        "model=softmax",
        "model=mlp:4,4",
    ]
    assert (tmp_path / "s" / "figures" / "sweep.png").is_file()


def test_confirmation_is_on_other_seeds(tmp_path: Path) -> None:
    sweep = Sweep.create(grid(theta=[0.1, 0.9]), tmp_path / "s")
    sweep.run(progress=False, confirm=2)
    confirm = Comparison.open(tmp_path / "s" / "confirm")
    assert list(confirm.experiment.seed_list) == [3, 4]
    assert list(confirm.experiment.schedulers) == [sweep.best.label]
    assert "on 2 other seeds, which took no part in the choice" in sweep.conclusion()
    with pytest.raises(ValueError, match=r"holds another confirmation, run.seeds 2, not 3"):
        sweep.run(progress=False, confirm=3)
    part = Sweep.create(grid(theta=[0.1, 0.9]), tmp_path / "p", part=(1, 2))
    with pytest.raises(ValueError, match=r"a part does not know it: merge the parts"):
        part.run(progress=False, confirm=2)


def test_resume(tmp_path: Path) -> None:
    axes = {"theta": [0.1, 0.9], "lr": [0.1, 0.01]}
    whole = Sweep.create(grid(**axes), tmp_path / "whole")
    whole.run(progress=False)
    begun = Sweep.create(grid(**axes), tmp_path / "begun")
    begun.runs[1].run_tasks(progress=False)
    with pytest.raises(ValueError, match=r"run-1 is not finished; resume the sweep"):
        begun.report()
    opened = Sweep.open(tmp_path / "begun")
    assert opened.grid == whole.grid
    opened.run(progress=False)
    assert files(begun.folder) == files(whole.folder)


def files(folder: Path) -> dict[str, bytes]:
    every = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in every}


def test_folders_that_are_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no such folder"):
        Sweep.open(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"it has no sweep.json"):
        Sweep.open(tmp_path)
    with pytest.raises(ValueError, match=r"metric .*wurst.*worst"):
        Sweep.create(grid(theta=[0.1]), tmp_path / "s", metric="wurst")
    sweep = Sweep.create(grid(theta=[0.1]), tmp_path / "s")
    with pytest.raises(FileExistsError):
        Sweep.create(grid(theta=[0.1]), tmp_path / "s")
    file = sweep.folder / "sweep.json"
    file.write_text(file.read_text().replace("theta", "thet"))
    with pytest.raises(ValueError, match=r"sweep.json holds settings that cannot be used: grid:"):
        Sweep.open(tmp_path / "s")


def test_figures(tmp_path: Path) -> None:
    def draw(axes: dict[str, list[Any]]) -> list[str]:
        values = {
            point: estimate([0.1 * i, 0.1 * i + 0.05, 0.2], SHARE)
            for i, point in enumerate(product(*axes.values()))
        }
        best = max(values, key=lambda point: values[point].mean)
        stem = tmp_path / str(len(list(tmp_path.iterdir())))
        written = sweep_figure(stem, "title", "worst", axes, values, best)
        return [path.suffix for path in written if path.stat().st_size]

    three = [".pdf", ".png", ".csv"]
    assert draw({"lr": [0.1, 0.001]}) == three
    assert draw({"partition": ["iid", "by-class"]}) == three
    assert draw({"theta": [0.1, 0.5], "m": [3]}) == three
    assert draw({"theta": [0.1, 0.5], "m": [3, 4], "lr": [0.1, 0.2, 0.3, 0.4]}) == three
    assert draw({"theta": [0.1, 0.5], "m": [3, 4], "lr": [i / 10 for i in range(10)]}) == []
