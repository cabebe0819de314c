"""`make paper`: the declared runs and outputs, and the script from start to summary."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from adcs.experiments import Experiment, setting
from adcs.experiments.config import from_dict
from reproduction import paper
from reproduction.folder import ResultFolder, Run

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "reproduction.md"


def test_outputs_share_runs() -> None:
    folder = ResultFolder(Path("nowhere"), tuple(paper.outputs()), {})
    runs = paper.runs_of(folder)
    assert [run.name for run in runs] == [
        "methods",
        "theta",
        "refresh",
        "communication",
        "kernels",
        "cifar10",
    ]
    for run in runs:
        assert run.config.is_file()
        assert run.settings == {}
    some = ResultFolder(Path("nowhere"), ("figure-2", "bias"), {"rounds": 100})
    assert [run.name for run in paper.runs_of(some)] == ["theta"]


def test_the_page_has_the_papers_setting() -> None:
    assert setting(Experiment.of(seeds=5)) in PAGE.read_text()


def test_cifar10_has_the_setting_of_the_papers_comments() -> None:
    """Their files are named CIFAR10-LR-N30-m10-T20000-stepsize0.001-batch_size16-non-iid-copy."""
    experiment = from_dict(paper.declared("cifar10"))
    training, partition = experiment.training, experiment.partition
    assert experiment.data.name == "cifar10"
    assert experiment.model.name == "softmax"
    assert (partition.kind, partition.clients, partition.settings) == (
        "by-class",
        30,
        {"copies": True},
    )
    assert (training.m, training.rounds, training.lr, training.batch_size) == (10, 20000, 0.001, 16)
    assert (training.steps, experiment.run.seeds) == (1, 5)


def test_outputs_on_demand_are_made_only_if_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, ...]] = []
    monkeypatch.setattr(ResultFolder, "execute", lambda self, runs, jobs: made.append(self.outputs))
    monkeypatch.setattr(paper, "report", lambda folder: [])
    paper.main(["--out", str(tmp_path / "all")])
    paper.main(["cifar10", "--out", str(tmp_path / "one")])
    assert made == [tuple(name for name in paper.outputs() if name != "cifar10"), ("cifar10",)]


def test_from_start_to_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small run by `adcs compare`, drawn, and drawn again without another run."""
    out = tmp_path / "paper"
    words = ["kernels", "--rounds", "20", "--data", "digits", "--jobs", "1", "--out", str(out)]
    paper.main(words)
    printed = capsys.readouterr()
    assert "The kernel is not fixed but changes over training" in printed.out
    warning = "This is not the paper's setting (rounds = 20, data = digits)"
    assert warning in printed.err
    summary = (out / "summary.md").read_text()
    assert warning in summary
    assert "![kernels-dpp-loss](figures/kernels-dpp-loss.png)" in summary
    with (out / "figures" / "kernels-dpp-loss.csv").open() as file:
        assert len({row["moment"] for row in csv.DictReader(file)}) == 6
    records = out / "kernels" / "records" / "seed0-pass0.jsonl"
    before = records.stat().st_mtime_ns
    (out / "summary.md").unlink()
    paper.main(["--out", str(out)])
    assert records.stat().st_mtime_ns == before
    assert (out / "summary.md").read_text() == summary


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["figur-1"], "reproduction: there is no output 'figur-1'; there are figure-1, "),
        (["beyond"], "reproduction: there is no output 'beyond'; there are figure-1, "),
    ],
)
def test_unknown_outputs_are_refused(words: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        paper.main([*words, "--out", str(tmp_path / "x")])
    assert str(stop.value).startswith(sentence)
    assert not (tmp_path / "x").exists()


def test_a_setting_that_compare_refuses_leaves_no_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "paper"
    with pytest.raises(SystemExit) as stop:
        paper.main(["kernels", "--data", "digitz", "--out", str(out)])
    assert stop.value.code == 2
    assert "did you mean digits?" in capfd.readouterr().err
    assert not out.exists()


def test_one_seed_stays_one_seed() -> None:
    run: Run = paper.paper_run("kernels", {"seeds": 3, "rounds": 300})
    assert run.settings == {"seeds": 1, "rounds": 300, "eval_every": 6}
