"""`make ablation`: its cases, and the script from start to summary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adcs.experiments.config import from_dict
from adcs.schedulers.live_adcs import fitted_weights
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
    variant = {"equal weights": declared["variants"]["equal weights"]}
    small = {"cases": ["a"], "variants": variant, "others": {"Uniform": "Uniform"}}
    monkeypatch.setattr(ablation, "protocol", lambda: small)
    monkeypatch.setattr(ablation, "CONFIGS", tmp_path)
    out = tmp_path / "out"
    ablation.main(["--rounds", "10", "--jobs", "1", "--out", str(out)])
    lines = (out / "summary.md").read_text().splitlines()
    assert any(line.startswith("| digits, 10 rounds | worst | worst 20 % |") for line in lines)
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:] == [
        OURS,
        "equal weights",
        "Uniform",
    ]


def test_weights_that_sum_to_one_in_the_fit_differ_only_by_what_is_not_represented() -> None:
    """The same where a cohort represents all; by inverse squared norms where it does not."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 6))
    rows = np.repeat(rows / np.linalg.norm(rows, axis=1, keepdims=True), 3, axis=0)
    chosen = np.arange(0, 12, 3)
    shares = rng.normal(size=12) / 5
    cosines = rows[chosen] @ rows.T
    both = [
        weights(cosines, np.ones(12), shares, chosen, 1.0)
        for weights in (fitted_weights, variants._summing_weights)
    ]
    np.testing.assert_allclose(*both, atol=0.02)
    norms = np.array([1.0, 2.0, *np.ones(38)])
    strangers = variants._summing_weights(np.eye(40)[:2], norms, np.zeros(40), np.arange(2), 1.0)
    assert strangers[0] / strangers[1] == pytest.approx(4.0, rel=0.2)
    kept = fitted_weights(np.eye(40)[:2], norms, np.zeros(40), np.arange(2))
    np.testing.assert_allclose(kept, 0.5, atol=0.02)
