"""`make ablation`: its cases, and the script from start to summary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import adcs
from adcs.experiments.config import from_dict
from reproduction import ablation, variants
from reproduction.ablation import OURS, case_run
from reproduction.folder import CONFIGS, read_toml


def test_every_case_has_its_settings_and_fresh_seeds() -> None:
    declared = ablation.protocol()
    files = {path.stem for path in (CONFIGS / "ablation").glob("*.toml")} - {"protocol"}
    assert files == set(declared["cases"])
    for name in declared["cases"]:
        experiment = from_dict(read_toml(CONFIGS / "ablation" / f"{name}.toml"))
        assert experiment.run.first_seed == 500
        assert experiment.run.seeds == 5
        assert set(case_run(name, {}).schedulers) == {
            OURS,
            *declared["variants"],
            *declared["others"],
        }


def test_overrides_reach_every_run() -> None:
    given = {"rounds": 100, "data_folder": "files"}
    assert case_run("mlp", given).settings == {**given, "eval_every": 2}
    assert case_run("letter", given).settings == {"rounds": 100, "eval_every": 2}


def test_from_start_to_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = ablation.protocol()
    (tmp_path / "ablation").mkdir()
    text = '# digits\ndata.name = "digits"\ntraining = { lr = 0.01, m = 10 }\nrun = { seeds = 2 }\n'
    (tmp_path / "ablation" / "a.toml").write_text(text)
    variant = {"no diversity": declared["variants"]["no diversity"]}
    small = {"cases": ["a"], "variants": variant, "others": {"Uniform": "Uniform"}}
    monkeypatch.setattr(ablation, "protocol", lambda: small)
    monkeypatch.setattr(ablation, "CONFIGS", tmp_path)
    out = tmp_path / "out"
    ablation.main(["--rounds", "10", "--jobs", "1", "--out", str(out)])
    lines = (out / "summary.md").read_text().splitlines()
    assert any(line.startswith("| digits, 10 rounds | worst | worst 20 % |") for line in lines)
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:] == [
        OURS,
        "no diversity",
        "Uniform",
    ]


def test_fitted_weights_give_a_client_the_share_of_those_that_it_resembles() -> None:
    """Four groups of one, two, three and six equal clients; a cohort has one of each."""
    groups = np.repeat(np.arange(4), [1, 2, 3, 6])
    scheduler = variants.FittedWeights(theta=0.0)
    reports = [adcs.ClientReport(c, 0, loss=1.0, update=np.eye(4)[g]) for c, g in enumerate(groups)]
    scheduler.observe(0, reports, "probe")
    cohort = scheduler.select(0, range(12), 4)
    weights = {groups[c]: w for c, w in zip(cohort.clients, cohort.weights, strict=True)}
    assert [weights[g] for g in range(4)] == pytest.approx(np.array([1, 2, 3, 6]) / 12, abs=0.03)
