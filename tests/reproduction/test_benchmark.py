"""The benchmark: its protocol, its numbers, its verdicts, and a scheduler of one's own in it."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest

import adcs
from adcs.experiments import make_scheduler
from reproduction.benchmark import __main__ as benchmark
from reproduction.benchmark.__main__ import main
from reproduction.benchmark.page import advice
from reproduction.benchmark.protocol import BASELINE, OURS, Case, case_names, protocol
from reproduction.benchmark.report import draw, judge, overview, summary
from reproduction.benchmark.results import (
    Results,
    Row,
    cost_to_reach,
    read_rows,
    rows_of,
    write_rows,
)


def row(scheduler: str, seed: int, *, traffic: float = 1.0, case: str = "digits", **values: float):
    metrics = {"worst": 0.5, "worst20": 0.5, "average": 0.5, **values}
    costs = {"updates": 10.0, "bytes": traffic, "seconds": 3.0}
    return Row(case, scheduler, seed, **metrics, **costs, bytes_to_reach=1.0, seconds_to_reach=2.0)


def results(**by_scheduler: dict[str, float]) -> Results:
    """Return results with three seeds that differ a little, the same for all schedulers."""
    rows = []
    for name, values in {BASELINE: {}, **by_scheduler}.items():
        for seed in range(3):
            shifted = {
                key: value + (0.01 * seed if key != "traffic" else 0.0)
                for key, value in {"worst": 0.5, "worst20": 0.5, "average": 0.5, **values}.items()
            }
            rows.append(row(name, seed, **shifted))
    return Results(rows)


def test_the_protocol_names_every_scheduler_and_at_least_ten_cases() -> None:
    everyone = {
        name
        for name in adcs.__all__
        if isinstance(kind := getattr(adcs, name), type)
        and issubclass(kind, adcs.Scheduler)
        and kind is not adcs.Scheduler
    }
    declared = protocol()
    assert set(declared["schedulers"]) == everyone
    assert len(case_names()) >= 10
    assert len(set(case_names())) == len(case_names())
    assert set(declared["quick"]["cases"]) <= set(case_names())
    assert len(declared["cases"]["on_networks"]) >= 7


@pytest.mark.parametrize("name", case_names())
def test_cases_are_experiments_whose_specs_make_schedulers(name: str) -> None:
    case = Case(name)
    experiment = case.experiment
    assert experiment.run.seeds == (3 if case.is_network else 5)
    tuning = {protocol()["grids"]["seed"], protocol()["learning_rates"]["seed"]}
    assert tuning.isdisjoint(experiment.seed_list)
    specs = [item for run in case.runs() for item in run.schedulers.items()]
    for _, spec in specs:
        assert make_scheduler(spec, 0)
    assert sorted(label for label, _ in specs) == sorted(case.labels())
    assert OURS in case.labels()


def test_a_scheduler_run_alone_is_measured_by_the_baseline_of_other_runs() -> None:
    records = [
        {"scheduler": "Oort", "seed": 7, "server_round": r, "average": r / 10, "seconds": 2.0 * r}
        for r in range(6)
    ]
    found = cost_to_reach(records, "seconds", {7: 0.25})
    assert found["Oort"].tolist() == [6.0]


def test_rows_are_the_last_tenth_and_the_cost_to_reach_the_baseline() -> None:
    records: list[dict[str, Any]] = []
    for scheduler, gain in ((BASELINE, 0.1), ("A", 0.3)):
        for r in range(3):
            accuracy = {"worst": gain * r, "worst20": gain * r, "average": gain * r}
            costs = {"updates": r, "bytes_up": r, "bytes_down": 2 * r, "seconds": 5.0 * r}
            place = {"scheduler": scheduler, "seed": 7, "server_round": r}
            records.append({**place, **accuracy, **costs})
    base, ours = rows_of("digits", records)
    assert (base.scheduler, base.seed, base.average, base.bytes) == (BASELINE, 7, 0.2, 6.0)
    assert (ours.average, ours.seconds_to_reach, ours.bytes_to_reach) == (0.6, 5.0, 3.0)


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = [row("A", 0, worst=0.123456), Row("b", "B", 3, *[0.25] * 7, math.inf)]
    write_rows(tmp_path / "results.csv", rows)
    assert read_rows(tmp_path / "results.csv") == rows


@pytest.mark.parametrize(
    ("values", "fails"),
    [
        ({}, None),
        ({"worst20": 0.49}, "worst 20 % not below"),
        ({"average": 0.49}, "average not below"),
        ({"worst": 0.59}, "worst at least"),
    ],
)
def test_verdicts(values: dict[str, float], fails: str | None) -> None:
    found = results(Cheap={"worst": 0.6}, LiveADCS={"worst": 0.6, **values})
    broken = [v.requirement for v in judge(found, "digits") if not v.holds]
    assert len(broken) == (0 if fails is None else 1)
    assert fails is None or broken[0].startswith(fails)


@pytest.mark.parametrize(("worst", "holds"), [(0.595, True), (0.58, False)])
def test_those_that_ask_more_may_be_a_little_better(worst: float, holds: bool) -> None:
    found = results(Dear={"worst": 0.6, "traffic": 5.0}, LiveADCS={"worst": worst})
    verdict = judge(found, "digits")[-1]
    assert verdict.requirement.startswith("worst within")
    assert verdict.holds == holds


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((0.9, 0.1, 0.1, 0.9), (0.1, 0.9, 0.9, 0.1), "by the luck of the best"),
        ((0.7, 0.5, 0.7, 0.5), (0.1, 0.1, 0.1, 0.1), "within the noise"),
        ((0.6, 0.6, 0.61, 0.6), (0.1, 0.1, 0.1, 0.1), "not by luck"),
    ],
)
def test_whether_the_best_rival_is_the_luckiest(
    first: tuple[float, ...], second: tuple[float, ...], said: str
) -> None:
    """Two rivals that win two seeds each by chance, or one that is better by little or by far."""
    ours = (0.5, 0.41, 0.5, 0.5) if said.startswith("by") else (0.5,) * 4
    rows = [
        row(name, seed, worst=values[seed])
        for name, values in ((BASELINE, ours), ("LiveADCS", ours), ("A", first), ("B", second))
        for seed in range(4)
    ]
    verdict = judge(Results(rows), "digits")[-1]
    assert not verdict.holds
    assert verdict.tested.startswith(said)


def test_the_report_names_all_and_draws_them(tmp_path: Path) -> None:
    found = results(Oort={"worst20": 0.7}, LiveADCS={"worst20": 0.8})
    table = overview(found, found.cases)
    assert table.index("LiveADCS") < table.index("Oort")
    text = summary(found, found.cases)
    assert "## Digits by class, softmax" in text
    assert "choices were made on it" in text
    files = draw(found, found.cases, tmp_path / "benchmark")
    assert all(file.stat().st_size > 5000 for file in files)


@pytest.mark.parametrize(
    ("asking", "said"),
    [
        ({"worst20": 0.7}, "**If clients may be asked before each round: `Dear`.**"),
        ({"worst20": 0.55}, "**To ask clients before each round gains less.** The best that does"),
        ({"worst20": 0.55, "worst": 0.7}, "client is better by 0.01 or more on digits."),
    ],
)
def test_advice_to_ask_before_each_round_needs_a_gain(asking: dict[str, float], said: str) -> None:
    found = results(Cheap={"worst20": 0.6}, Dear={"traffic": 5.0, **asking})
    assert said in advice(found)


def test_the_advice_says_where_something_is_better_than_ours() -> None:
    good = results(LiveADCS={"worst20": 0.9, "worst": 0.9, "average": 0.9}, Oort={})
    assert "on none, and some other scheduler has a better worst client on 0." in advice(good)
    beaten = results(LiveADCS={"worst20": 0.9, "average": 0.1}, Oort={"worst": 0.9})
    assert "on digits, and some other scheduler has a better worst client on 1." in advice(beaten)


OWN = """
from adcs import Cohort, Scheduler


class First(Scheduler):
    \"\"\"The first m clients, always.\"\"\"

    def _select(self, server_round, clients, m):
        return Cohort.of(clients[:m])
"""


def test_a_scheduler_of_ones_own_is_in_the_table(tmp_path: Path, capsys: Any) -> None:
    own = tmp_path / "first.py"
    own.write_text(OWN)
    words = ["digits", "--rounds", "4", "--seeds", "2", "--jobs", "1"]
    out = tmp_path / "out"
    main([*words, "--out", str(out), "--scheduler", f"{own}:First"])
    shown, log = capsys.readouterr()
    assert "(case 1 of 1, run 1 of 4)" in log
    assert "| First | 1 |" in shown
    found = Results(read_rows(out / "results.csv"))
    assert {*Case("digits").labels(), "First"} == set(found.schedulers("digits"))
    assert "First" in (out / "summary.md").read_text()
    assert (out / "figures" / "benchmark.png").is_file()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nofile.py:Mine", "there is no file"),
        ("first.py:Frist", "has no class 'Frist'"),
        ("first.py", "name its class: first.py:First$"),
        ("first.py:First(patience=3)", "has no setting 'patience'"),
    ],
)
def test_a_scheduler_that_cannot_be_made_is_refused_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, said: str
) -> None:
    (tmp_path / "first.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "run_case", lambda *_: pytest.fail("a run was begun"))
    with pytest.raises(SystemExit, match=said):
        main(["digits", "--out", str(tmp_path / "out"), "--scheduler", spec])
    assert not (tmp_path / "out").exists()


def test_a_baseline_run_again_in_one_way_of_ending_rounds_keeps_its_synchronous_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = tmp_path / "results.csv"
    cases = ("digits-mlp", "digits-mlp-buffered")
    write_rows(published, [row("Uniform", 200, case=case) for case in cases])
    monkeypatch.setattr(benchmark, "PUBLISHED", published)
    held = benchmark._held(["digits-mlp-buffered"], ["Uniform"])
    assert [each.case for each in held] == ["digits-mlp"]


def test_a_scheduler_at_its_best_setting_is_run_again_alone() -> None:
    given = argparse.Namespace(again=["OCS tuned"], published=False)
    only = benchmark._only(given)
    assert only is not None
    assert [list(run.schedulers) for run in Case("digits").runs(only)] == [["OCS tuned"]]
    given.again = ["OCS at its best"]
    with pytest.raises(
        ValueError, match=r"there is no scheduler 'OCS at its best'; there are .*OCS tuned"
    ):
        benchmark._only(given)
