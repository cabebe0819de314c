"""Claims judged, figures drawn, the plan of a reproduction: on records made up for it."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from adcs.cli.app import app
from adcs.experiments import claims
from adcs.experiments.config import Experiment
from adcs.experiments.figures import line_figure
from adcs.experiments.folders import create_run
from adcs.experiments.outputs import equal_time, make_section
from adcs.experiments.report import panel, setting, warnings, write_report
from adcs.experiments.reproduce import (
    Plan,
    chosen_outputs,
    declared,
    outputs,
    paper_experiment,
)
from adcs.experiments.statistics import Estimate
from adcs.experiments.styles import styles_of
from adcs.run_folder import RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"
WORST = {
    "Uniform": 0.42,
    "PowerOfChoice": 0.52,
    "OCS": 0.50,
    "DivFL": 0.55,
    "StaticDPP": 0.26,
    "ADCS": 0.60,
    "DPP-Norm": 0.5,
}


def records(
    values: dict[str, float], seeds: int = 3, rounds: int = 20000, **more: Any
) -> list[dict[str, Any]]:
    """A flat curve for each label, seeds 0.01 apart, and a ledger by the paper's formula."""
    found = []
    for label, worst in values.items():
        for seed in range(seeds):
            for done in range(0, rounds + 1, rounds // 20):
                found.append(
                    {
                        "scheduler": label,
                        "seed": seed,
                        "server_round": done,
                        "worst": worst + 0.01 * seed,
                        "worst20": worst,
                        "average": 0.79,
                        "std": 0.1,
                        "tv": 0.1,
                        "jain": 1.0,
                        "updates": 18 * done + 12 * -(-done // 20) * (label == "ADCS"),
                        "bytes_up": done,
                        "bytes_down": done,
                        "seconds": float(done),
                        **more,
                    }
                )
    return found


def verdicts(found: list[claims.Claim]) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in found}


def test_figure_1_holds_on_numbers_like_the_papers() -> None:
    labels = list(outputs()["figure-1"].schedulers)
    found = claims.judge_methods(records(WORST), paper_experiment("methods", {}), labels)
    assert set(verdicts(found).values()) == {"holds"}
    assert len(found) == 5 + 1 + 3 + 1 + 1
    assert "3.33 %" in found[-1].numbers
    assert "372,000" in found[-1].numbers


def test_figure_1_does_not_hold_when_another_is_better() -> None:
    labels = list(outputs()["figure-1"].schedulers)
    lines = records({**WORST, "OCS": 0.7, "StaticDPP": 0.5})
    found = verdicts(claims.judge_methods(lines, paper_experiment("methods", {}), labels))
    assert found["ADCS has a higher worst accuracy than OCS"] == "does not hold"
    assert found["ADCS has a higher worst accuracy than DivFL"] == "holds"
    assert found["StaticDPP has the lowest worst accuracy"] == "does not hold"


def test_one_seed_decides_no_difference() -> None:
    labels = list(outputs()["figure-1"].schedulers)
    lines = records(WORST, seeds=1)
    found = verdicts(claims.judge_methods(lines, paper_experiment("methods", {}), labels))
    assert found["ADCS has a higher worst accuracy than OCS"] == "undecided"


def test_an_interval_that_includes_zero_does_not_hold() -> None:
    claim = claims.above("A beats B", Estimate(0.02, 0.03, 5))
    assert claim.verdict == "does not hold"
    assert "includes zero" in claim.numbers
    assert "the other way round" in claims.above("A beats B", Estimate(-0.1, 0.03, 5)).numbers


def test_two_seeds_decide_no_difference() -> None:
    labels = list(outputs()["figure-1"].schedulers)
    found = claims.judge_methods(records(WORST, seeds=2), paper_experiment("methods", {}), labels)
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


def test_no_number_is_undecided() -> None:
    labels = list(outputs()["figure-1"].schedulers)
    lines = [{**line, "average": None, "worst": None} for line in records(WORST)]
    found = claims.judge_methods(lines, paper_experiment("methods", {}), labels)
    assert {claim.verdict for claim in found[:-1]} == {"undecided"}


def test_a_ledger_off_by_one_is_seen() -> None:
    lines = records(WORST)
    for line in lines:
        if line["scheduler"] == "ADCS" and line["server_round"] == 20000 and line["seed"] == 1:
            line["updates"] += 1
    assert claims.judge_work(lines, Experiment()).verdict == "does not hold"


def test_theta_and_refresh() -> None:
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


def test_bias() -> None:
    lines = records({"Uniform": 0.1, "θ = 0": 0.2, "θ = 0.2": 0.4, "θ = 0.5": 0.3})
    for line in lines:
        line["bias"] = line["worst20"] * (1.0 if line["server_round"] < 10000 else 0.5)
    bounded, pattern = claims.judge_bias(lines, ["Uniform", "θ = 0", "θ = 0.2", "θ = 0.5"])
    assert (bounded.verdict, pattern.verdict) == ("holds", "holds")
    lines[-1]["bias"] = 9.0
    grown, _ = claims.judge_bias(lines, ["Uniform", "θ = 0", "θ = 0.2", "θ = 0.5"])
    assert grown.verdict == "does not hold"


def test_figure_files_hold_what_the_records_say(tmp_path: Path) -> None:
    section = make_section(
        outputs()["figure-1"], paper_experiment("methods", {}), records(WORST), {}, tmp_path
    )
    assert [path.suffix for path in section.files] == [".pdf", ".png", ".csv"]
    assert all(path.stat().st_size > 0 for path in section.files)
    with section.files[-1].open() as file:
        rows = list(csv.DictReader(file))
    last = [r for r in rows if r["line"] == "ADCS" and r["panel"].startswith("worst test")][-1]
    assert (float(last["round"]), float(last["mean"])) == (20000.0, 0.61)
    # Seeds are 0.01 apart: half the interval is 4.302653 * 0.01 / sqrt(3).
    assert float(last["high"]) == pytest.approx(0.61 + 0.0248414, abs=1e-5)
    assert "**holds**" in section.markdown()
    assert "Curves are means over 5 seeds, shades their 95 %" in section.markdown()
    assert f"({tmp_path.name}/figure-1.png)" in section.markdown()


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
    against: str, scale: float, column: str, last: float, tmp_path: Path
) -> None:
    lines = records({"A": 0.5})
    for line in lines:
        line.update({key: scale * line[key] for key in ("bytes_up", "bytes_down", "seconds")})
    styles = styles_of({"A": "ADCS"})
    files = line_figure(tmp_path / "a", "title", [panel(lines, "worst", against, ["A"])], styles)
    with files[-1].open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1][column]) == pytest.approx(last)


def test_table_1_flags_what_is_far_off(tmp_path: Path) -> None:
    paper = declared("table-1")
    lines = []
    for label, ratios in paper["ratios"].items():
        moved = np.array(ratios)
        if label == "OCS":
            moved[:2] += [0.02, -0.02]
        lines += records({label: 0.5}, group_ratios=moved.tolist())
    experiment = paper_experiment("methods", {})
    section = make_section(outputs()["table-1"], experiment, lines, paper, tmp_path)
    found = {claim.text.split()[0]: claim.verdict for claim in section.claims}
    assert found.pop("OCS") == "does not hold"
    assert found == dict.fromkeys(["Uniform", "DPP-Norm", "PowerOfChoice", "ADCS"], "holds")
    assert "**0.1457**" in section.text
    assert section.text.count("**") // 2 == 3 + 1  # two ratios, the TV, and the word "Bold"


def test_the_papers_rows_are_distributions_with_the_papers_tv() -> None:
    paper = declared("table-1")
    for label, ratios in paper["ratios"].items():
        assert sum(ratios) == pytest.approx(1.0, abs=0.002)
        if label in paper["tv"]:
            tv = 0.5 * np.abs(np.array(ratios) - 0.1).sum()
            assert tv == pytest.approx(paper["tv"][label], abs=2e-4)


def test_kernels_are_drawn(tmp_path: Path) -> None:
    experiment = paper_experiment("kernels", {"data": "digits"})
    lines = []
    for scale, done in ((1.0, 0), (0.1, 10000)):
        lines += [
            {
                "scheduler": label,
                "seed": 0,
                "server_round": done,
                "gram": np.eye(10)[np.triu_indices(10)].tolist(),
                "batch_losses": [2.3 * scale] * 10,
            }
            for label in experiment.schedulers
        ]
    section = make_section(outputs()["kernels"], experiment, lines, {}, tmp_path)
    assert [path.name for path in section.files if path.suffix == ".csv"] == [
        "kernels-dpp-loss.csv",
        "kernels-dpp-norm.csv",
    ]
    with section.files[2].open() as file:
        first = next(csv.DictReader(file))
    assert float(first["entry"]) == pytest.approx(np.exp(2 * 0.75 * 2.3), rel=1e-5)
    # Norms stay at one here, so that kernel does not change, and the claim is about both.
    assert section.claims[0].verdict == "does not hold"


def test_equal_time() -> None:
    lines = records({"slow": 0.5, "fast": 0.4}, seeds=1)
    for line in lines:
        if line["scheduler"] == "slow":
            line["seconds"] *= 2
            line["worst"] = line["server_round"] / 20000
    text = equal_time(lines, ["slow", "fast"])
    assert "| slow | 10,000 | 0.475 | 0.790 |" in text  # evaluations 9,000 and 10,000
    assert "| fast | 20,000 | 0.400 | 0.790 |" in text


def test_outputs_share_runs() -> None:
    assert chosen_outputs(["table-1", "figure-1"]) == ["figure-1", "table-1"]
    plan = Plan(Path("nowhere"), tuple(chosen_outputs(["all"])), {})
    assert plan.runs() == ["methods", "theta", "refresh", "communication", "kernels"]
    for run in plan.runs():
        assert paper_experiment(run, {}).training.rounds == 20000


def test_a_folder_of_reproductions_keeps_its_settings(tmp_path: Path) -> None:
    Plan.start(tmp_path / "a", ["figure-1"], {"rounds": 100})
    with pytest.raises(FileExistsError, match="already holds"):
        Plan.start(tmp_path / "a", ["figure-1"], {})
    with pytest.raises(ValueError, match="was started with rounds 100, not 200"):
        Plan.resume(tmp_path / "a", ["figure-1"], {"rounds": 200})
    more = Plan.resume(tmp_path / "a", ["kernels"], {})
    assert (more.names, more.overrides) == (("figure-1", "kernels"), {"rounds": 100})
    with pytest.raises(FileNotFoundError, match="not a folder of reproductions"):
        Plan.resume(tmp_path, ["figure-1"], {})


def test_runs_of_other_settings_are_not_taken_for_ours(tmp_path: Path) -> None:
    digits = {"data": "digits", "rounds": 20}
    Plan.start(tmp_path / "a", ["kernels"], digits).open("kernels")
    (tmp_path / "a" / "reproduce.json").write_text("{}")
    with pytest.raises(ValueError, match=r"does not say what is reproduced \(.*\); delete it"):
        Plan.resume(tmp_path / "a", ["kernels"], {})
    (tmp_path / "a" / "reproduce.json").unlink()
    again = Plan.start(tmp_path / "a", ["kernels"], {**digits, "rounds": 40})
    with pytest.raises(ValueError, match=r"is a run with training\.rounds 20, not 40"):
        again.open("kernels")


def test_the_setting_names_what_is_not_the_default() -> None:
    assert setting(paper_experiment("methods", {})) in PAGE.read_text()
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


def test_a_comparison_shows_the_worst_fifth_and_the_costs(tmp_path: Path) -> None:
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


def test_seeds_of_a_comparison_that_do_not_count_are_named(tmp_path: Path) -> None:
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
