"""Figures and tables of the paper, on made-up records."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adcs.experiments import Experiment
from adcs.experiments.config import from_dict
from reproduction.outputs import equal_time, make_section
from reproduction.paper import declared, outputs

METHODS = declared("methods")["schedulers"]
SETTING = Experiment.of(seeds=5, schedulers=METHODS)


def test_figure_files_hold_what_the_records_say(records: Any, tmp_path: Path) -> None:
    section = make_section(
        outputs()["figure-1"],
        SETTING,
        records({**dict.fromkeys(METHODS, 0.5), "ADCS": 0.6}),
        {},
        tmp_path,
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


def test_cifar10_states_its_own_setting(records: Any, tmp_path: Path) -> None:
    experiment = from_dict(declared("cifar10"))
    lines = records({**dict.fromkeys(experiment.schedulers, 0.5), "ADCS": 0.6}, seeds=5)
    section = make_section(outputs()["cifar10"], experiment, lines, {}, tmp_path)
    assert "Data cifar10; partition by-class, N = 30 clients, copies = True" in section.text
    assert "| LiveADCS | 0.520" in section.text
    assert len(section.claims) == 15
    assert (tmp_path / "cifar10.png").stat().st_size > 0


def test_table_1_flags_what_is_far_off(records: Any, tmp_path: Path) -> None:
    paper = declared("table-1")
    lines = []
    for label, ratios in paper["ratios"].items():
        moved = np.array(ratios)
        if label == "OCS":
            moved[:2] += [0.02, -0.02]
        lines += records({label: 0.5}, group_ratios=moved.tolist())
    section = make_section(outputs()["table-1"], SETTING, lines, paper, tmp_path)
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
    kernels = declared("kernels")
    experiment = Experiment.of(data="digits", clients=10, m=5, schedulers=kernels["schedulers"])
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


def test_equal_time(records: Any) -> None:
    lines = records({"slow": 0.5, "fast": 0.4}, seeds=1)
    for line in lines:
        if line["scheduler"] == "slow":
            line["seconds"] *= 2
            line["worst"] = line["server_round"] / 20000
    text = equal_time(lines, ["slow", "fast"])
    assert "| slow | 10,000 | 0.475 | 0.790 |" in text  # evaluations 9,000 and 10,000
    assert "| fast | 20,000 | 0.400 | 0.790 |" in text
