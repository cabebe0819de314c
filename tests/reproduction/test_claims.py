"""Verdicts on the paper's claims, on made-up records."""

from __future__ import annotations

from typing import Any

import pytest

from adcs.experiments import Estimate, Experiment
from reproduction import claims
from reproduction.paper import declared, outputs

WORST = {
    "Uniform": 0.42,
    "PowerOfChoice": 0.52,
    "OCS": 0.50,
    "DivFL": 0.55,
    "StaticDPP": 0.26,
    "ADCS": 0.60,
    "DPP-Norm": 0.5,
}
SETTING = Experiment.of(seeds=5, schedulers=declared("methods")["schedulers"])


def verdicts(found: list[claims.Claim]) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in found}


def test_figure_1_holds_on_numbers_like_the_papers(records: Any) -> None:
    labels = list(outputs()["figure-1"].schedulers)
    found = claims.judge_methods(records(WORST), SETTING, labels)
    assert set(verdicts(found).values()) == {"holds"}
    assert len(found) == 5 + 1 + 3 + 1 + 1
    assert "3.33 %" in found[-1].numbers
    assert "372,000" in found[-1].numbers


def test_figure_1_does_not_hold_when_another_is_better(records: Any) -> None:
    labels = list(outputs()["figure-1"].schedulers)
    lines = records({**WORST, "OCS": 0.7, "StaticDPP": 0.5})
    found = verdicts(claims.judge_methods(lines, SETTING, labels))
    assert found["ADCS has a higher worst accuracy than OCS"] == "does not hold"
    assert found["ADCS has a higher worst accuracy than DivFL"] == "holds"
    assert found["StaticDPP has the lowest worst accuracy"] == "does not hold"


def test_cifar10_is_judged_by_the_worst_20_percent_too(records: Any) -> None:
    lines = records({**WORST, "LiveADCS": 0.9})
    for line in lines:
        if line["scheduler"] == "DivFL":
            line["worst20"] = 0.7
    found = verdicts(claims.judge_accuracies(lines, claims.METHODS, ("worst", "worst20")))
    assert len(found) == 5 + 5 + 1 + 3 + 1
    assert found["ADCS has a higher worst accuracy than DivFL"] == "holds"
    assert found["ADCS has a higher mean accuracy of the worst 20 % than DivFL"] == "does not hold"
    assert found["ADCS has a higher mean accuracy of the worst 20 % than OCS"] == "holds"
    assert not any("LiveADCS" in text for text in found)


def test_one_seed_decides_no_difference(records: Any) -> None:
    labels = list(outputs()["figure-1"].schedulers)
    lines = records(WORST, seeds=1)
    found = verdicts(claims.judge_methods(lines, SETTING, labels))
    assert found["ADCS has a higher worst accuracy than OCS"] == "undecided"


def test_an_interval_that_includes_zero_does_not_hold() -> None:
    claim = claims.above("A beats B", Estimate(0.02, 0.03, 5))
    assert claim.verdict == "does not hold"
    assert "includes zero" in claim.numbers
    assert "the other way round" in claims.above("A beats B", Estimate(-0.1, 0.03, 5)).numbers


def test_two_seeds_decide_no_difference(records: Any) -> None:
    labels = list(outputs()["figure-1"].schedulers)
    found = claims.judge_methods(records(WORST, seeds=2), SETTING, labels)
    claim = next(c for c in found if c.text == "ADCS has a higher worst accuracy than OCS")
    assert claim.verdict == "undecided"
    assert claim.numbers.endswith(", from 2 seeds, which give no interval.")


def test_claims_of_one_figure_are_corrected_together() -> None:
    weak = Estimate(0.1, 0.09, 5)  # p = 0.037
    assert claims.above("A beats B", weak).verdict == "holds"
    both = claims.all_above({"A beats B": weak, "A beats C": weak})
    assert [claim.verdict for claim in both] == ["does not hold", "does not hold"]
    assert both[0].numbers == "By 0.100 [0.010, 0.190], p = 0.074: not shown, p being corrected."
    clear = claims.all_above({"A beats B": weak, "A beats C": Estimate(0.1, 0.001, 5)})
    assert [claim.verdict for claim in clear] == ["holds", "holds"]


def test_no_number_is_undecided(records: Any) -> None:
    labels = list(outputs()["figure-1"].schedulers)
    lines = [{**line, "average": None, "worst": None} for line in records(WORST)]
    found = claims.judge_methods(lines, SETTING, labels)
    assert {claim.verdict for claim in found[:-1]} == {"undecided"}


def test_costs_that_differ_by_one_update_do_not_hold(records: Any) -> None:
    lines = records(WORST)
    for line in lines:
        if line["scheduler"] == "ADCS" and line["server_round"] == 20000 and line["seed"] == 1:
            line["updates"] += 1
    assert claims.judge_work(lines, Experiment()).verdict == "does not hold"


def test_theta_and_refresh(records: Any) -> None:
    theta = {"Uniform": 0.42, "θ = 0": 0.3, "θ = 0.2": 0.36, "θ = 0.5": 0.5, "θ = 0.8": 0.6}
    first, second, third = claims.judge_theta(records(theta), list(theta))
    assert (first.verdict, second.verdict) == ("holds", "holds")
    assert "θ = 0.8" in second.text
    assert third.verdict == "does not hold"  # The averages are equal.
    r = {"R = 1": 0.59, "R = 5": 0.60, "R = 20": 0.58, "R = 500": 0.35, "R = 2000": 0.3}
    found = [claim.verdict for claim in claims.judge_refresh(records(r), list(r))]
    assert found == ["holds", "holds", "does not hold", "holds", "does not hold"]
    far = claims.judge_refresh(records({**r, "R = 5": 0.65}), list(r))[0]
    assert far.verdict == "does not hold"
    assert "0.070" in far.numbers


def test_bias(records: Any) -> None:
    lines = records({"Uniform": 0.1, "θ = 0": 0.2, "θ = 0.2": 0.4, "θ = 0.5": 0.3})
    for line in lines:
        line["bias"] = line["worst20"] * (1.0 if line["server_round"] < 10000 else 0.5)
    bounded, pattern = claims.judge_bias(lines, ["Uniform", "θ = 0", "θ = 0.2", "θ = 0.5"])
    assert (bounded.verdict, pattern.verdict) == ("holds", "holds")
    lines[-1]["bias"] = 9.0
    grown, _ = claims.judge_bias(lines, ["Uniform", "θ = 0", "θ = 0.2", "θ = 0.5"])
    assert grown.verdict == "does not hold"


def test_the_sign_of_a_margin_follows_the_claim(records: Any) -> None:
    theta = {"Uniform": 0.42, "θ = 0": 0.3, "θ = 0.2": 0.36, "θ = 0.8": 0.6}
    lines = records(theta)
    below, over, _ = claims.judge_theta(lines, list(theta))
    assert below.line() == (
        "- **holds**: With θ = 0.2 the worst accuracy is below Uniform's. "
        "By 0.060 [0.060, 0.060], p < 0.001."
    )
    assert over.numbers == "By 0.180 [0.180, 0.180], p < 0.001."
    r = {"R = 1": 0.59, "R = 5": 0.6, "R = 20": 0.3, "R = 500": 0.35, "R = 2000": 0.3}
    lines = records(r)
    lower = next(c for c in claims.judge_refresh(lines, list(r)) if "R = 500 has" in c.text)
    said = "By -0.050 [-0.050, -0.050], p < 0.001: it is the other way round."
    assert lower.numbers == said


@pytest.mark.parametrize(
    ("worst", "verdict", "said"),
    [
        ({}, "does not hold", "All are equal; "),
        ({"ADCS": 0.6}, "does not hold", "Lowest, and equal, are Uniform, PowerOfChoice, OCS, "),
        ({"StaticDPP": 0.1}, "holds", "Lowest is StaticDPP; "),
        ({"OCS": 0.1}, "does not hold", "Lowest is OCS; "),
    ],
)
def test_ties_are_named(worst: dict[str, float], verdict: str, said: str) -> None:
    # The tie is one of means: their sums differ in the last bits.
    values = {label: [0.1 + 0.2, 0.3] for label in claims.METHODS}
    values["OCS"] = [0.3, 0.3]
    claim = claims._judge_lowest({**values, **{k: [v, v] for k, v in worst.items()}})
    assert claim.verdict == verdict
    assert claim.numbers.startswith(said)


def test_differences_that_are_zero_in_every_seed(records: Any) -> None:
    claim = claims.above("A beats B", Estimate(0.0, 0.0, 5))
    assert (claim.verdict, claim.numbers) == ("does not hold", "They are equal in every seed.")
    lines = records(dict.fromkeys(["Uniform", "θ = 0", "θ = 0.2", "θ = 0.8"], 0.0))
    _, best, _ = claims.judge_theta(lines, ["Uniform", "θ = 0", "θ = 0.2", "θ = 0.8"])
    assert "(θ = 0, and equally θ = 0.2, θ = 0.8)" in best.text


def test_a_claim_without_numbers_is_undecided() -> None:
    nothing = {label: [float("nan")] for label in claims.METHODS}
    assert claims._judge_lowest(nothing).verdict == "undecided"
