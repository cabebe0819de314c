"""`make beyond`: its cases, its verdicts, and the script from start to summary."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from adcs.experiments import Experiment
from reproduction import beyond
from reproduction.beyond import OURS, case_run, judge
from reproduction.folder import CONFIGS, ResultFolder


def settings(name: str) -> dict[str, Any]:
    return tomllib.loads((CONFIGS / "beyond" / f"{name}.toml").read_text())


def test_every_case_is_declared_and_has_its_settings() -> None:
    declared = beyond.protocol()
    assert len(declared["case"]) == 11
    files = {path.stem for path in (CONFIGS / "beyond").glob("*.toml")} - {"protocol"}
    assert files == set(declared["case"])
    base = settings("base")
    for name in declared["case"]:
        run, case = case_run(name, {}), settings(name)
        assert case["run"] == {"seeds": 5, "pass_width": 6}
        assert name == "base" or case != base
        assert run.settings == {}
        assert run.schedulers[OURS] == OURS
        assert set(run.schedulers) <= {*declared["rivals"], OURS, *declared["control"]}
    # 2 m candidates would be all clients: PowerOfChoice at its default.
    assert "PowerOfChoice, 2m" not in case_run("m18", {}).schedulers


def test_overrides_reach_every_run() -> None:
    quick = {"rounds": 100, "eval_every": 2}
    given = {"rounds": 100, "data_folder": "files"}
    assert case_run("base", given).settings == {**quick, "data_folder": "files"}
    assert case_run("digits", given).settings == quick
    assert case_run("ablation-base", {"rounds": 100}).settings == quick
    assert case_run("ablation-base", {"seeds": 2}).settings == {"rounds": 2500, "seeds": 2}


def records(worst: dict[str, float], average: dict[str, float], extra: int) -> list[dict[str, Any]]:
    return [
        {
            "scheduler": label,
            "seed": seed,
            "server_round": 100,
            "worst": worst[label] + 0.001 * seed * (label == OURS),
            "average": average[label],
            "extra_updates": extra if label == OURS else 0,
            "loss_evaluations": 3000 if label == "PowerOfChoice" else 0,
        }
        for label in worst
        for seed in range(3)
    ]


def verdict(ours: float = 0.6, rival: float = 0.5, average: float = 0.8, extra: int = 30) -> Any:
    labels = ("Uniform", "PowerOfChoice", OURS, "PowerOfChoice, other batch")
    experiment = Experiment.of(
        m=10,
        rounds=100,
        schedulers=dict.fromkeys(labels, "Uniform"),
    )
    worst = dict(zip(labels, (0.3, rival, ours, 0.99), strict=True))
    means = dict(zip(labels, (0.8, 0.8, average, 0.8), strict=True))
    return judge("a case", False, experiment, records(worst, means, extra))


def test_a_case_that_meets_all_criteria() -> None:
    found = verdict()
    assert found.failures == []
    assert found.line()[-1] == "all shown"
    # The control is no rival, however good.
    assert found.rival_name == "PowerOfChoice"
    assert found.work == (3.0, 0.03)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ours": 0.4}, "worst below the best rival's"),
        ({"ours": 0.2, "rival": 0.1}, "worst not above Uniform's"),
        ({"average": 0.79}, "average below Uniform's"),
        ({"extra": 31}, "too many probes"),
    ],
)
def test_criteria_that_are_not_met_are_bold(changed: dict[str, Any], said: str) -> None:
    found = verdict(**changed)
    assert said in found.failures
    assert "**" in found.line()[-1]
    assert sum("**" in cell for cell in found.line()) == 2


def test_a_small_difference_is_within_the_interval() -> None:
    assert verdict(ours=0.499).failures == []


def test_from_start_to_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small case and its ablation by `adcs compare`, judged and reported."""
    declared = beyond.protocol()
    cases = tmp_path / "beyond"
    cases.mkdir()
    text = (
        'data.name = "digits"\ntraining = { lr = 0.01, rounds = 12, m = 10 }\nrun = { seeds = 2 }\n'
    )
    (cases / "a.toml").write_text(text)
    declared["case"] = {"a": {"title": "digits", "seen": False}}
    declared["rivals"] = {"Uniform": "Uniform", "PowerOfChoice": "PowerOfChoice"}
    variants = {"equal weights": declared["ablation"]["variants"]["equal weights"]}
    declared["ablation"] = {"cases": ["a"], "rounds": 8, "variants": variants}
    monkeypatch.setattr(beyond, "protocol", lambda: declared)
    monkeypatch.setattr(beyond, "CONFIGS", tmp_path)
    out = tmp_path / "out"
    beyond.main(["--rounds", "10", "--jobs", "1", "--out", str(out)])
    summary = (out / "summary.md").read_text()
    assert summary.index("## Held out") < summary.index("| digits |")
    for part in ("## Held out", "## Every setting", "## Ablation", "equal weights", "T = 10"):
        assert part in summary
    assert (out / "figures" / "beyond.png").stat().st_size > 1000
    assert "PowerOfChoice" not in (out / "figures" / "beyond.csv").read_text()


def test_a_folder_of_the_paper_is_refused(tmp_path: Path) -> None:
    ResultFolder(tmp_path, ("figure-1",), {}).save()
    with pytest.raises(SystemExit) as stop:
        beyond.main(["--out", str(tmp_path)])
    assert "names no output 'figure-1'" in str(stop.value)
