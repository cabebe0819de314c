"""Parts of a run: their tasks, and the merged folder that has the bytes of a run in one piece."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adcs.experiments.comparison import Comparison
from adcs.experiments.config import Experiment
from adcs.experiments.merge import merge_parts
from adcs.experiments.runner import run_task, tasks
from adcs.experiments.sweep import Grid, Sweep
from adcs.run_folder import RunFolder

SMALL = Experiment.of(
    data="synthetic:clusters=2,dimension=3",
    clients=6,
    m=2,
    rounds=6,
    eval_every=3,
    seeds=3,
    pass_width=1,
    schedulers=["Uniform", "ADCS"],
)


def run_here(folder: Path) -> Path:
    """Run the tasks of a folder in this process."""
    found = Comparison.open(folder)
    for task in tasks(found.experiment, found.part):
        run_task(RunFolder.open(folder), found.experiment, task, lambda _: None)
    return folder


def whole(path: Path, experiment: Experiment = SMALL) -> Path:
    return run_here(Comparison.create(experiment, path).folder)


def parts_of(path: Path, n: int, experiment: Experiment = SMALL) -> list[Path]:
    return [
        run_here(Comparison.create(experiment, path / f"part-{i}", part=(i, n)).folder)
        for i in range(1, n + 1)
    ]


def files(folder: Path) -> dict[str, bytes]:
    every = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in every}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return parts_of(tmp_path_factory.mktemp("three"), 3)


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 9), order=st.randoms())
def test_merged_parts_are_the_whole(
    run: Path, tmp_path_factory: pytest.TempPathFactory, n: int, order: object
) -> None:
    """Six tasks, in up to nine parts, given in any order."""
    base = tmp_path_factory.mktemp("parts")
    parts = parts_of(base, n)
    order.shuffle(parts)  # type: ignore[attr-defined]
    assert files(merge_parts(base / "merged", parts)) == files(run)


@settings(max_examples=50)
@given(seeds=st.integers(1, 12), width=st.integers(1, 6), n=st.integers(1, 20))
def test_every_task_is_in_one_part(seeds: int, width: int, n: int) -> None:
    experiment = Experiment.of(seeds=seeds, pass_width=width)
    dealt = [tasks(experiment, (i, n)) for i in range(1, n + 1)]
    together = [task for part in dealt for task in part]
    assert sorted(task.name for task in together) == sorted(t.name for t in tasks(experiment))
    counts = [len(part) for part in dealt]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_merged_sweep_is_the_whole(tmp_path: Path, n: int) -> None:
    base = SMALL.replace(seeds=1, schedulers=["ADCS"])
    grid = Grid("ADCS", "ADCS", {"lr": [0.1, 0.01, 0.001], "theta": [0.2, 0.8]}, base)
    one = Sweep.create(grid, tmp_path / "one")
    made = [Sweep.create(grid, tmp_path / f"p{i}", part=(i, n)) for i in range(1, n + 1)]
    for sweep in [one, *made]:
        for each in sweep.runs:
            run_here(each.folder)
    counts = [sweep.tasks for sweep in made]
    assert sum(counts) == one.tasks == 6
    assert max(counts) - min(counts) <= 1
    merged = merge_parts(tmp_path / "merged", [sweep.folder for sweep in made])
    assert files(merged) == files(one.folder)


def test_a_resumed_part_has_the_same_bytes(tmp_path: Path, three: Sequence[Path]) -> None:
    part = Comparison.create(SMALL, tmp_path / "part", part=(2, 3))
    first, second = tasks(SMALL, (2, 3))
    run_task(RunFolder.open(part.folder), SMALL, first, lambda _: None)
    assert part.unfinished == [second.name]
    with pytest.raises(ValueError, match=r"is not finished: .* is not done; resume it"):
        merge_parts(tmp_path / "merged", [three[0], part.folder, three[2]])
    assert not (tmp_path / "merged").exists()
    assert files(run_here(part.folder)) == files(three[1])


def test_parts_that_do_not_belong_together(tmp_path: Path, three: list[Path], run: Path) -> None:
    def refuse(parts: list[Path], match: str) -> None:
        with pytest.raises((ValueError, OSError), match=match):
            merge_parts(tmp_path / "merged", parts)
        assert not (tmp_path / "merged").exists()

    refuse(three[:2], "part 3 of 3 is missing; merge needs all parts")
    refuse(three[2:], "part 1 of 3 is missing and 1 more")
    refuse([*three, three[1]], "are both part 2 of 3; give each part once")
    refuse([*three[:2], run], "is a whole run, not a part")
    refuse([*three, tmp_path / "none"], "there is no such folder")
    (other,) = parts_of(tmp_path / "one", 1)
    refuse([*three[:2], other], "is part 1 of 1, and .* is one of 3")
    slow = Comparison.create(SMALL.replace(lr=0.5), tmp_path / "slow", part=(3, 3)).folder
    refuse([*three[:2], slow], "are not parts of one run: training.lr differs")
    grid = Grid("ADCS", "ADCS", {"theta": [0.2]}, SMALL.replace(schedulers=["ADCS"]))
    sweep = Sweep.create(grid, tmp_path / "sweep", part=(3, 3)).folder
    refuse([*three[:2], sweep], "is not a part of a sweep, as the other parts are")


def test_other_versions_are_refused(tmp_path: Path, three: list[Path]) -> None:
    """Results may differ in their last bits between versions of NumPy."""
    copy = tmp_path / "copy"
    shutil.copytree(three[2], copy)
    config = json.loads((copy / "config.json").read_text())
    config["versions"]["numpy"] = "0.0"
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"versions\.numpy differs"):
        merge_parts(tmp_path / "merged", [*three[:2], copy])


def test_a_folder_with_files_is_not_merged_into(tmp_path: Path, three: list[Path]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"is not empty; parts are merged into a new folder"):
        merge_parts(tmp_path / "out", three)
    assert files(tmp_path / "out") == {"mine.txt": b"mine"}
