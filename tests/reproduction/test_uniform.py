"""LiveADCS and Uniform: the verdict, and the files of the cases."""

from __future__ import annotations

from typing import Any

import pytest

from adcs.experiments.config import from_dict
from reproduction.folder import CONFIGS, read_toml
from reproduction.uniform import CASES, METRICS, case_run, judge


def records(differences: list[float], metric: str = "average") -> list[dict[str, Any]]:
    """Return the last records of both schedulers, whose metric differs by so much at each seed."""
    found = []
    for seed, difference in enumerate(differences):
        for label in ("Uniform", "LiveADCS"):
            values = dict.fromkeys(METRICS, 0.5)
            values[metric] += difference * (label == "LiveADCS")
            found.append({"scheduler": label, "seed": seed, "server_round": 10, **values})
    return found


@pytest.mark.parametrize(
    ("differences", "below"),
    [
        ([0.01, -0.01, 0.0], False),
        ([-0.004, -0.02, 0.02], False),  # a mean of -0.0013, within the margin
        ([-0.03, -0.02, 0.02], True),  # a mean of -0.01
        ([-0.003, -0.003, -0.0031], True),  # small, and surely below zero
        ([-0.009], True),  # one seed has no interval
    ],
)
@pytest.mark.parametrize("metric", ["worst20", "average"])
def test_a_case_is_below_by_mean_or_by_interval(
    differences: list[float], below: bool, metric: str
) -> None:
    verdict = judge("a case", records(differences, metric))
    assert verdict.failures == ([metric] if below else [])
    assert any("**" in cell for cell in verdict.line()) == below


def test_the_worst_client_is_shown_and_not_judged() -> None:
    assert judge("a case", records([-0.3, -0.3, -0.3], "worst")).failures == []


@pytest.mark.parametrize("name", CASES)
def test_cases_are_experiments_on_fresh_seeds(name: str) -> None:
    experiment = from_dict(read_toml(CONFIGS / "uniform" / f"{name}.toml"))
    assert experiment.run.first_seed == 800
    assert experiment.run.seeds >= 3
    assert set(case_run(name, {}).schedulers) == {"Uniform", "LiveADCS"}
