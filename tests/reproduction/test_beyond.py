"""The protocol of `adcs reproduce beyond`: its cases, its verdicts, its folder."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adcs.experiments.beyond import ablations, protocol
from adcs.experiments.beyond.protocol import OURS, BeyondPlan, case_experiment, judge
from adcs.experiments.config import SETTINGS, Experiment
from adcs.testing import CHECKS

ABLATIONS = [
    ablations.NoReuse,
    ablations.RawQuality,
    ablations.NoUncertainty,
    ablations.NoPrediction,
    ablations.NoSmoothing,
    ablations.EqualWeights,
    ablations.NoDiversity,
    ablations.OtherBatch,
]


@pytest.mark.parametrize("kind", ABLATIONS)
def test_ablations_keep_the_contract(kind: Any) -> None:
    for check in CHECKS:
        check(kind)


def test_every_case_is_as_declared() -> None:
    declared = protocol.protocol()
    assert len(declared["case"]) == 11
    for name, case in declared["case"].items():
        experiment = case_experiment(name, {})
        assert experiment.run.seeds == 5
        assert experiment.schedulers[OURS] == OURS
        assert set(experiment.schedulers) <= {*declared["rivals"], OURS, *declared["control"]}
        for key in ("m", "lr", "clients", "steps", "rounds"):
            if key in case:
                section = getattr(experiment, SETTINGS[key].section)
                assert getattr(section, SETTINGS[key].key) == case[key]
    # Twice m would be all clients: PowerOfChoice at its default.
    assert "PowerOfChoice, 2m" not in case_experiment("m18", {}).schedulers


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


def test_what_is_shown_is_said() -> None:
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
def test_what_is_not_shown_is_bold(changed: dict[str, Any], said: str) -> None:
    found = verdict(**changed)
    assert said in found.failures
    assert "**" in found.line()[-1]
    assert sum("**" in cell for cell in found.line()) == 2


def test_a_small_difference_is_within_the_interval() -> None:
    assert verdict(ours=0.499).failures == []


def test_a_folder_from_start_to_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small cases in process, cut off after the first, resumed, and reported."""
    from adcs.experiments import reproduce
    from adcs.experiments.runner import run_task, tasks

    declared = protocol.protocol()
    small = {"data": "digits", "lr": 0.01, "title": "digits"}
    declared["case"] = {"a": {**small, "seen": True}, "b": {**small, "m": 6, "seen": False}}
    declared["common"] |= {"seeds": 2, "rounds": 12}
    declared["rivals"] = {"Uniform": "Uniform", "PowerOfChoice": "PowerOfChoice"}
    declared["ablation"] = {
        "cases": ["a"],
        "rounds": 8,
        "variants": {"equal weights": "adcs.experiments.beyond.ablations:EqualWeights"},
    }
    monkeypatch.setattr(protocol, "protocol", lambda: declared)

    def in_process(folder: Any, experiment: Any, **_: Any) -> None:
        for task in tasks(experiment):
            run_task(folder, experiment, task, lambda rounds: None)

    monkeypatch.setattr(reproduce, "run_experiment", in_process)
    shown: list[str] = []

    @contextmanager
    def show(name: str) -> Any:
        shown.append(name)
        yield lambda done, total: None

    base = tmp_path / "beyond"
    plan = BeyondPlan.start(base, ["beyond"], {"rounds": 10})
    plan.execute(1, show)
    assert shown == ["a (1 of 3)", "b (2 of 3)", "ablation-a (3 of 3)"]
    BeyondPlan.resume(base, ["beyond"], {}).execute(1, show)
    assert len(shown) == 3
    verdicts = plan.report()
    assert [v.seen for v in verdicts] == [True, False]
    summary = (base / "summary.md").read_text()
    for part in ("## Held out", "## Every setting", "## Ablation", "equal weights", "T = 10"):
        assert part in summary
    assert (base / "figures" / "beyond.png").stat().st_size > 1000
    assert "PowerOfChoice" not in (base / "figures" / "beyond.csv").read_text()


def test_beyond_is_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder of its own"):
        BeyondPlan.start(tmp_path / "x", ["beyond", "table-1"], {})
