"""The command line: what it prints, what it writes, how it fails."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from adcs.cli import compare as compare_module
from adcs.cli import console as console_module
from adcs.cli.app import app
from adcs.cli.options import merged
from adcs.experiments import comparison
from adcs.experiments.config import SETTINGS, Experiment, from_dict
from adcs.experiments.explain import replay
from adcs.experiments.progress import plain_log
from adcs.experiments.runner import create_run
from adcs.experiments.specs import NAMES
from adcs.run_folder import RunFolder
from adcs.simulation.datasets import DataUnavailable, available
from adcs.simulation.network import NetworkSettings

# A shell's background jobs ignore Ctrl-C, and hand that on: the handler is set explicitly.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
MAIN = [sys.executable, "-c", f"{INTERRUPTIBLE}; from adcs.cli import main; main()"]
SMALL = ["--data", "synthetic", "--clients", "10", "--m", "5", "--rounds", "40"]
SMALL += ["--eval-every", "10", "--jobs", "1"]
TWO = ["--scheduler", "Uniform", "--scheduler", "ours=ADCS(theta=0.6)"]


def adcs(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    """Return the one sentence of a command that failed for a reason of the user's."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("adcs: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of two schedulers, made by the command."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    result = adcs("compare", *SMALL, *TWO, "--seeds", 2, "--out", folder)
    assert result.exit_code == 0, result.output
    assert "Paired differences to Uniform" in result.stdout
    assert "ours" in result.stdout
    assert "100 %" in result.stderr
    return folder


def test_compare_writes_a_run_folder(run: Path) -> None:
    config = RunFolder.open(run).config
    assert (config["engine"], config["training"]["m"], config["groups"]) == (
        "simulation",
        5,
        list(range(10)),
    )
    for name in ("round", "bytes", "seconds", "cost"):
        for suffix in ("pdf", "png", "csv"):
            assert (run / "figures" / f"accuracy-by-{name}.{suffix}").stat().st_size > 0
    text = (run / "summary.md").read_text()
    assert "| ours |" in text
    assert "## Differences to Uniform" in text
    assert "diverged" not in text
    with (run / "table.csv").open(newline="") as file:
        lines = {(line["scheduler"], line["measure"]): line for line in csv.DictReader(file)}
    worst = lines["ours", "worst"]
    assert (worst["low"], worst["high"], worst["p_holm"]) == ("", "", "")  # Two seeds.
    gap = float(worst["mean"]) - float(lines["Uniform", "worst"]["mean"])
    assert float(worst["difference"]) == pytest.approx(gap, abs=1e-5)
    assert float(lines["Uniform", "updates"]["mean"]) == 5 * 40
    assert lines["Uniform", "worst"]["difference"] == ""
    rounds = [record["server_round"] for record in RunFolder.open(run).records()]
    assert sorted(set(rounds)) == [0, 10, 20, 30, 40]


def test_the_paper_s_comparison_is_told_of_liveadcs(run: Path, tmp_path: Path) -> None:
    said = "adcs compare -s Uniform -s LiveADCS compares it"
    assert said in adcs("compare", *SMALL, "--out", tmp_path / "a").stderr
    assert said not in adcs("compare", "--resume", run).stderr
    assert said not in adcs("compare", *SMALL, "-s", "Uniform", "--out", tmp_path / "b").stderr


def test_a_device_that_does_not_apply_is_said(tmp_path: Path) -> None:
    result = adcs("compare", *SMALL, "-s", "ADCS", "--device", "cuda", "--out", tmp_path / "run")
    assert result.exit_code == 0
    said = "softmax is computed with NumPy on the CPU: device cuda is for networks of PyTorch."
    assert said in result.stderr
    assert said in (tmp_path / "run" / "summary.md").read_text()


def test_explain_takes_the_short_option_of_compare(run: Path) -> None:
    assert "Uniform, seed 0" in adcs("explain", run, "--round", 10, "-s", "Uniform").stdout


def test_resume_of_a_finished_run_changes_no_record(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in (run / "records").iterdir()}
    result = adcs("compare", "--resume", run)
    assert result.exit_code == 0
    assert {path.name: path.read_bytes() for path in (run / "records").iterdir()} == before
    assert "cannot be given with it" in refused(adcs("compare", "--resume", run, "--rounds", 50))


def test_explain_shows_the_cohort_of_the_records(run: Path) -> None:
    result = adcs("explain", run, "--round", 25, "--seed", 1)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("ours, seed 1, round 25: clients ")
    assert "Left out" in result.stdout
    assert "the replay differs" not in result.output
    chosen = result.stdout.splitlines()[0].partition("clients ")[2].split(", ")
    assert len(set(chosen)) == 5


def test_explain_of_one_client_gives_its_reason(run: Path) -> None:
    experiment = Experiment.of(
        data="synthetic",
        clients=10,
        m=5,
        rounds=40,
        schedulers={"loss": "PowerOfChoice", "random": "Uniform", "cover": "DivFL"},
    )
    choice, evaluated, _ = replay(experiment, 0, "loss", 3)
    assert (choice.ranked_by, evaluated) == ("loss", 0)
    assert len(choice.scores) == 10
    inside = {choice.scores[client] for client in choice.cohort.clients}
    outside = {s for client, s in choice.scores.items() if client not in choice.cohort.clients}
    assert min(inside) >= max(outside)
    result = adcs("explain", run, "--round", 0, "--client", 3)
    assert "Client 3 was" in result.stdout
    assert "client must be a number from 0 to 9" in refused(
        adcs("explain", run, "--round", 0, "--client", 10)
    )
    assert "round must be below 40" in refused(adcs("explain", run, "--round", 40))
    assert "seed must be one of the run's, 0, 1" in refused(
        adcs("explain", run, "--round", 1, "--seed", 7)
    )
    assert "scheduler must be one of Uniform, ours" in refused(
        adcs("explain", run, "--round", 1, "--scheduler", "other")
    )


def test_explain_warns_if_the_replay_differs_from_the_records(run: Path, tmp_path: Path) -> None:
    copy = RunFolder.create(tmp_path / "copy", RunFolder.open(run).config)
    with copy.writer("all") as lines:
        for record in RunFolder.open(run).records():
            lines.append({**record, "counts": [0] * 10})
    result = adcs("explain", copy.path, "--round", 11, "--client", 0)
    assert result.exit_code == 0
    assert "the replay differs from the run's record at round 10" in result.stderr


def test_explain_reads_a_flower_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "flower", {"engine": "flower"})
    diagnostics = {"gains": [["a", 0.5], ["b", None]], "quality": [["a", 1.0], ["b", 2.0]]}
    with folder.writer("server") as lines:
        record = {"scheduler": "ADCS", "seed": 0, "server_round": 3, "chosen": ["a", "b"]}
        lines.append({**record, "diagnostics": diagnostics})
    result = adcs("explain", folder.path, "--round", 3)
    assert result.exit_code == 0, result.output
    assert "2.000" in result.stdout
    assert "Why clients were left out is not in this record" in result.stdout
    one = adcs("explain", folder.path, "--round", 3, "--client", "c")
    assert "Client c was not selected" in one.stdout
    assert (
        "Client a was selected"
        in adcs("explain", folder.path, "--round", 3, "--client", "a").stdout
    )
    sentence = refused(adcs("explain", folder.path, "--round", 4))
    assert "has no record of round 4; it has rounds 3 to 3" in sentence
    sentence = refused(adcs("explain", folder.path, "--round", 3, "--seed", 1))
    assert "--seed and --scheduler do not go with it" in sentence


def test_theory_prints_a_report_and_draws_it(run: Path) -> None:
    result = adcs("theory", run)
    assert result.exit_code == 0, result.output
    assert "Theorem 1" in result.stdout
    assert (run / "figures" / "theory.pdf").is_file()


def test_theory_of_several_local_steps_names_the_scale(tmp_path: Path) -> None:
    words = ["--steps", 5, "--partition", "dirichlet", "--partition-settings", "alpha=0.5"]
    assert adcs("compare", *SMALL, *TWO, *words, "--out", tmp_path / "run").exit_code == 0
    said = adcs("theory", tmp_path / "run").stdout
    assert "of sums of E = 5 gradients" in said
    assert "a bound on the mean of ‖g_N/5‖²" in said
    assert "sigma is estimated from clients of one group, and the run names no groups" in said


def test_theory_says_that_there_are_no_clusters(tmp_path: Path) -> None:
    alike = ["--partition", "iid", "--batch-size", 64, "--out", tmp_path / "run"]
    assert adcs("compare", *SMALL, *TWO, *alike).exit_code == 0
    said = adcs("theory", tmp_path / "run").stdout
    assert "Uniform: no cluster structure found, so Theorem 1 does not apply" in said
    assert "clusters were sought in each round's updates: found in 0 of 8 rounds" in said
    table = next(line for line in said.splitlines() if line.startswith("│ Uniform"))
    cells = [cell.strip() for cell in table.split("│")[1:-1]]
    assert cells[5:9] == ["–"] * 4  # cluster bound, clusters taken, Theorem 1, rounds above it


def test_theory_leaves_out_rounds_that_are_not_finite(tmp_path: Path) -> None:
    wild = ["--lr", "1e30", "--model", "mlp:4", "--out", tmp_path / "wild"]
    assert adcs("compare", *SMALL, "--scheduler", "Uniform", *wild).exit_code == 0
    result = adcs("theory", tmp_path / "wild")
    assert result.exit_code == 0, result.output
    assert "not finite are left out: Uniform, seed 0, from round" in result.stdout


def test_data_sets_are_listed_and_fetched() -> None:
    assert "fashion-mnist" in adcs("data", "list").stdout
    assert "1,442 training and 355 test examples" in adcs("data", "fetch", "digits").stdout
    assert "did you mean digits" in refused(adcs("data", "fetch", "digitz"))
    assert "--folder is where" in refused(adcs("data", "fetch", "digits", "--folder", "x"))


def test_user_labels_are_saved_in_the_config(tmp_path: Path) -> None:
    own = npz(tmp_path / "own.npz", y_train=[10, 20, 10, 20], y_test=[10, 20, 10, 20])
    words = ["--clients", 2, "--m", 1, "--rounds", 2, "--scheduler", "Uniform", "--jobs", 1]
    for file, classes in ((own, [10, 20]), (npz(tmp_path / "plain.npz"), None)):
        run = tmp_path / file.stem
        assert adcs("compare", "--data", file, *words, "--out", run).exit_code == 0
        assert RunFolder.open(run).config.get("classes") == classes
    bad = npz(tmp_path / "bad.npz", y_train=[10, 20, 10, 20], y_test=[10, 10, 10, 10])
    assert "class 20 has no test examples" in refused(adcs("compare", "--data", bad, *words))


def test_literal_weights_are_set_by_option_or_file(tmp_path: Path) -> None:
    config = tmp_path / "a.toml"
    config.write_text("[training]\npaper-literal-weights = true")
    ways = {"none": [], "option": ["--paper-literal-weights"], "file": ["--config", config]}
    for name, words in ways.items():
        result = adcs("compare", *SMALL, *TWO, *words, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        training = RunFolder.open(tmp_path / name).config["training"]
        assert training["paper_literal_weights"] == (name != "none")


def npz(path: Path, **arrays: object) -> Path:
    x = np.eye(4)
    y = [0, 1, 0, 1]
    np.savez(path, **{"x_train": x, "y_train": y, "x_test": x, "y_test": y, **arrays})  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--scheduler", "ADSC"], "did you mean ADCS"),
        (["--scheduler", "ADCS(theta=2)"], "theta must lie in [0, 1]"),
        (["--scheduler", "A=Uniform", "--scheduler", "A=ADCS"], "distinct labels, got 'A' twice"),
        (["--m", "11"], "m must be at most 10"),
        (["--lr", "-1"], "training.lr must be a number > 0, got -1.0"),
        (["--data", "fashion"], "is no data set, no .npz file and no folder"),
        (["--data", "none.npz"], "there is no such file"),
        (["--network", "deadline"], "must look like name=value"),
        (
            ["--network", "dedline=3"],
            "unknown setting 'dedline' in [network]; did you mean deadline?",
        ),
        (["--partition", "dirichlet", "--partition-settings", "beta=1"], "no setting of dirichlet"),
        (["--model", "mlp:a"], "must look like softmax, mlp:64,32, cnn or file.py:Net"),
        (["--baseline", "X"], "baseline must be one of"),
        (["--baseline", "Unifrom"], "did you mean Uniform?"),
        (["--model", "mlp:1000000,1000000"], "more than the"),
        (["--model", "x" * 10000], "xxx..."),
        (["--scheduler", "./my.txt:Patient"], "./my.txt is not a Python file"),
        (["--config", "none.toml"], "cannot be read"),
        (["--clients", "7", "--m", "2"], "multiple of the 10 groups"),
        (["--clients", "17"], "take --clients 10 or --clients 20, or another --partition"),
        (
            ["--partition", "dirichlet", "--partition-settings", "alpha=x"],
            "dirichlet alpha must be a finite number, got 'x'",
        ),
        (
            ["--partition", "shards", "--partition-settings", "per_client=x"],
            "shards per_client must be a whole number, got 'x'",
        ),
        (["--partition", "dirichlet"], "needs alpha, for example --partition-settings alpha=0.5"),
        (["--partition-settings", "copies=x"], "copies must be true or false, got 'x'"),
        (["--network", "trace=none.csv"], "none.csv cannot be read: No such file or directory"),
        (["--network", "dropout=x"], "network.dropout must be a number >= 0 and < 1, got 'x'"),
        (["--lr", "inf"], "training.lr must be a number > 0, got inf"),
        (["--scheduler", "patient.py"], "file.py:Class"),
        (["--out", "/dev/null/run"], "/dev/null/run"),
        (["--data", "digits", "--data-folder", "x"], "digits is not looked for there"),
        (["--scheduler", "ADCS(sketch=-1)"], "scheduler 'ADCS(sketch=-1)': sketch size must be"),
    ],
)
def test_unknown_options_and_values_are_refused(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(adcs("compare", *SMALL, *words))
    assert list(tmp_path.iterdir()) == []  # Nothing is left behind.


HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    "name",
    [
        "rounds",
        "clients",
        "m",
        "seeds",
        "first_seed",
        "eval_every",
        "batch_size",
        "steps",
        "pass_width",
        "sketch_above",
    ],
)
def test_integer_settings_out_of_range_are_refused(name: str, tmp_path: Path) -> None:
    words = [f"--{name.replace('_', '-')}", HUGE, "--out", tmp_path / "run"]
    sentence = refused(adcs("compare", *SMALL, *words))
    assert re.search(rf"{name} must be a whole number from [01] to [\d,]+, got {HUGE}", sentence)
    config = tmp_path / "a.toml"
    section = SETTINGS[name].section
    config.write_text(f"[{section}]\n{name} = {HUGE}")
    assert name in refused(adcs("compare", "--config", config, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_integer_options_out_of_range_are_refused(run: Path) -> None:
    for words in (
        ["--network", f"spell={HUGE}"],
        ["--data", f"synthetic:dimension={HUGE}"],
        ["--data", f"synthetic:per_cluster={HUGE}"],
        ["--partition", "shards", "--partition-settings", f"per_client={HUGE}"],
    ):
        assert HUGE in refused(adcs("compare", *SMALL, *words))
    for words in (["--round", HUGE], ["--round", 1, "--seed", HUGE]):
        assert HUGE in refused(adcs("explain", run, *words))
    for client in (HUGE, "9" * 5000):
        assert "client must be a number" in refused(
            adcs("explain", run, "--round", 1, "--client", client)
        )


def test_a_typo_gets_one_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patient.py").write_text(OWN)
    npz(tmp_path / "mine.npz")
    (tmp_path / "case.toml").write_text("[training]\nrounds = 10")
    RunFolder.create(tmp_path / "runs" / "compare-1", {})
    for words, meant in (
        (["compar"], "compare"),
        (["data", "fetc"], "fetch"),
        (["data", "fetch", "digitz"], "digits"),
        (["schedulers", "ADSC"], "ADCS"),
        (["schedulers", "patient.py:Mien"], "Mine"),
        (["compare", "-s", "patient.py:Mien"], "Mine"),
        (["compare", "-s", "patiant.py:Mine"], "patient.py"),
        (["compare", "--data", "mime.npz"], "mine.npz"),
        (["compare", "--config", "cas.toml"], "case.toml"),
        (["compare", "--resume", "runs/compare1"], "runs/compare-1"),
        (["theory", "runs/compare1"], "runs/compare-1"),
        (["explain", "runs/compare1", "--round", "1"], "runs/compare-1"),
    ):
        result = adcs(*words)
        assert result.exit_code == 2
        assert result.stderr.lower().count("did you mean") == 1, result.stderr
        assert re.search(rf"did you mean \S*{meant}\?", result.stderr), result.stderr
    assert "name its class: patient.py:Mine" in refused(adcs("compare", "-s", "patient.py"))
    nobody = tmp_path / "nobody.py"
    nobody.write_text("class Mine: pass")
    assert "nobody.py has no subclass of adcs.Scheduler" in refused(
        adcs("compare", "-s", "nobody.py:Mine")
    )


def test_class_labels_may_be_text(tmp_path: Path) -> None:
    text = np.array(["cat", "catfish", "cat", "catfish"])
    words = ["--clients", 2, "--m", 1, "--rounds", 2, "--scheduler", "Uniform", "--jobs", 1]
    for kind, labels in (("text", text), ("bytes", text.astype(bytes))):
        file = npz(tmp_path / f"{kind}.npz", y_train=labels, y_test=labels[:, None])
        result = adcs("compare", "--data", file, *words, "--out", tmp_path / kind)
        assert result.exit_code == 0, result.output
        assert "the labels of the data are cat, catfish" in result.stderr
        assert RunFolder.open(tmp_path / kind).config["classes"] == ["cat", "catfish"]
        assert adcs("compare", "--resume", tmp_path / kind).exit_code == 0
    bad = npz(tmp_path / "bad.npz", y_train=text, y_test=["cat", "cat", "cow", "cat"])
    sentence = refused(adcs("compare", "--data", bad, *words))
    assert "y_test holds label cow, which has no training example" in sentence
    objects = npz(tmp_path / "objects.npz", y_train=text.astype(object))
    assert "with astype(str), as text" in refused(adcs("compare", "--data", objects, *words))


def test_a_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    sentence = refused(adcs("compare", *SMALL, *TWO, "--out", folder))
    assert sentence == f"adcs: {folder} is not empty and holds no run; choose another folder"
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    (folder / "thesis.tex").unlink()
    (folder / "records").mkdir()  # as a crash right at the start leaves it
    assert adcs("compare", *SMALL, "-s", "Uniform", "--out", folder).exit_code == 0
    # Records without their config are nothing to write over either.
    (folder / "config.json").unlink()
    assert "is not empty" in refused(adcs("compare", *SMALL, "-s", "Uniform", "--out", folder))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("no arrays")
    assert "not an .npz file" in refused(adcs("compare", "--data", text))
    bad = npz(tmp_path / "bad.npz", y_test=[0, 1, 0, 7])
    assert "label 7, which has no training example" in refused(adcs("compare", "--data", bad))
    config = tmp_path / "bad.toml"
    config.write_text("rounds = ")
    assert "is not valid TOML" in refused(adcs("compare", "--config", config))
    config.write_text("[training]\nrouns = 3")
    assert "in [training]; did you mean rounds" in refused(adcs("compare", "--config", config))
    config.write_text("rounds = 3")
    assert "it belongs in [training]" in refused(adcs("compare", "--config", config))
    config.write_text('data = "digits"')
    for words in ([], ["--data", "synthetic"]):
        sentence = refused(adcs("compare", "--config", config, *words))
        assert sentence.endswith("data must be a table of settings, [data], got 'digits'")
    config.write_text("[model]\nname = 5")
    assert "model.name must be a text, got 5" in refused(adcs("compare", "--config", config))
    config.write_text("[run]\neval-every = 5\neval_every = 10")
    assert "eval_every is set twice" in refused(adcs("compare", "--config", config))
    config.write_bytes(b'data = "\xff"')
    assert f"{config} is not UTF-8" in refused(adcs("compare", "--config", config))
    assert "is not a run folder" in refused(adcs("compare", "--resume", tmp_path))
    assert "is not a run folder" in refused(adcs("explain", tmp_path, "--round", 1))
    assert "is not a run folder" in refused(adcs("theory", tmp_path))


def test_an_existing_run_is_not_overwritten(run: Path) -> None:
    before = (run / "config.json").read_bytes()
    assert "already holds a run" in refused(adcs("compare", *SMALL, "--out", run))
    assert (run / "config.json").read_bytes() == before


def test_options_take_precedence_over_the_config_file(tmp_path: Path) -> None:
    config = tmp_path / "a.toml"
    config.write_text(
        "[training]\nrounds = 10\nbatch-size = 4\n"
        '[partition]\nkind = "dirichlet"\nclients = 40\nalpha = 0.1\n'
        '[network]\nspread = 0.5\ndropout = 0.1\n[schedulers]\nA = "ADCS"\n'
    )
    values = merged(config, {"rounds": 20, "network": {"dropout": 0.2}})
    assert values["training"] == {"rounds": 20, "batch_size": 4}
    assert values["network"] == {"spread": 0.5, "dropout": 0.2}
    assert merged(config, {"schedulers": {"U": "Uniform"}})["schedulers"] == {"U": "Uniform"}
    assert merged(config, {"partition_settings": {"sizes": "skewed"}})["partition"] == {
        "kind": "dirichlet",
        "clients": 40,
        "alpha": 0.1,
        "sizes": "skewed",
    }
    assert merged(config, {"partition": "iid"})["partition"] == {"kind": "iid", "clients": 40}


def test_the_documented_toml_is_a_valid_config(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "simulator.md").read_text()
    config = tmp_path / "case.toml"
    config.write_text(page.partition("```toml\n")[2].partition("```")[0])
    experiment = from_dict(merged(config, {}))
    assert list(experiment.schedulers) == ["Uniform", "half"]
    assert (experiment.model.name, experiment.run.pass_width) == ("mlp:32", 1)
    assert experiment.network == NetworkSettings(availability=0.8, deadline=30)
    simulation = experiment.simulation(0, ("Uniform",))
    for _ in range(experiment.training.rounds):
        simulation.step()
    assert simulation.evaluate()[0]["average"] > 0.8  # It learns.


def test_the_documentation_lists_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "simulator.md").read_text()
    rows = dict(re.findall(r"^\| `\[(\w+)\]` \| (.*) \|$", page, flags=re.MULTILINE))
    assert set(rows) == set(Experiment.model_fields)
    for each in SETTINGS.values():
        if each.section != "network":
            assert f"`{each.key}`" in rows[each.section]


def test_the_documentation_lists_the_network_settings() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "simulator.md").read_text()
    page = page.partition("## The virtual network")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", page, flags=re.MULTILINE))
    listed = {
        name: None if default == "none" else float(default.replace(",", ""))
        for name, default in rows.items()
    }
    assert listed == asdict(NetworkSettings())


def test_help_shows_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = adcs("compare", "--help").stdout
    for each in SETTINGS.values():
        if each.section == "network":
            continue
        option = f"--{each.option.replace('_', '-')} "
        line = next(line for line in text.splitlines() if option in line)
        assert each.help in line
        if each.default not in (None, (), False):
            assert f"Default: {each.default}." in line
    assert f"Default: {', '.join(Experiment().schedulers)}." in text


def test_the_version_is_printed() -> None:
    from adcs import __version__

    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert adcs("--version").stdout == f"adcs {__version__}\n"
    words = [sys.executable, "-m", "adcs", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == (
        f"adcs {__version__}\n"
    )
    # The package's metadata take it from the same place.
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/adcs/__init__.py"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, whatever the output is."""
    monkeypatch.setattr(console_module, "WIDTH", 80)


def test_help_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("compare", "explain", "theory"):
        assert "…" not in adcs(command, "--help").stdout
    assert "--paper-literal-weights " in adcs("compare", "--help").stdout


@pytest.mark.usefixtures("narrow")
def test_the_list_of_data_sets_fits_eighty_columns() -> None:
    lines = adcs("data", "list").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    listed = [entry.name for entry in available()]
    assert [name for name in names if name] == [*listed, *listed]
    assert "…" not in "".join(lines)


@pytest.mark.usefixtures("narrow")
def test_explain_fits_eighty_columns(run: Path) -> None:
    tables = adcs("explain", run, "--round", 25).stdout.partition("\nSelected")[2]
    lines = tables.splitlines()
    assert max(map(len, lines)) <= 80
    clients = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert set(clients) == set("0123456789")
    assert "similarity" in tables
    assert "…" not in tables


def test_a_wide_table_is_split_between_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_module, "WIDTH", 30)
    label = "a label longer than half of it"
    console_module.show_table("T", ["name", "first head", "last"], [[label, "123.45", "6789.0"]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 30
    text = "\n".join(lines)
    assert text.count("a label longer") == 2  # Once in each part.
    assert "123.45" in text
    assert "6789.0" in text


def test_fallback_data_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adcs.experiments import config

    load = config.load

    def offline(name: str, folder: str | None = None, **settings: Any) -> object:
        if name == "fashion-mnist":
            raise DataUnavailable("Fashion-MNIST could not be had; tried everything")
        return load(name, folder, **settings)

    monkeypatch.setattr(config, "load", offline)
    monkeypatch.setattr(comparison, "run_experiment", lambda *_, **__: None)
    monkeypatch.setattr(comparison, "write_report", lambda *_: [])
    monkeypatch.setattr(compare_module, "show_results", lambda *_: None)
    assert "could not be had" in refused(adcs("compare", "--out", tmp_path / "a"))
    assert not (tmp_path / "a").exists()
    result = adcs("compare", "--fallback-data", "digits", "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("this run is on digits") == 2
    assert RunFolder.open(tmp_path / "a").config["data"]["name"] == "digits"


def test_a_diverged_run_is_announced(tmp_path: Path) -> None:
    wild = ["--lr", "1e9", "--model", "mlp:4", "--out", tmp_path / "wild"]
    result = adcs("compare", *SMALL, "--scheduler", "Uniform", *wild)
    assert result.exit_code == 0, result.output
    assert "Training diverged" in result.stderr
    assert "for Uniform." in result.stderr
    assert "**Training diverged" in (tmp_path / "wild" / "summary.md").read_text()


def test_a_run_without_training_is_announced(tmp_path: Path) -> None:
    late = ["--network", "deadline=0.9,spread=0", "--out", tmp_path / "late"]
    result = adcs("compare", *SMALL, *TWO, *late)
    assert result.exit_code == 0, result.output
    assert "Hardly anybody trained" in result.stderr
    assert "for Uniform (0 %), ours (0 %)" in result.stderr
    assert "**Hardly anybody trained" in (tmp_path / "late" / "summary.md").read_text()
    said = adcs("explain", tmp_path / "late", "--round", 12).stdout
    assert "It had no usable report of anybody, so it drew at random" in said


def test_schedulers_are_listed() -> None:
    result = adcs("schedulers")
    assert all(name in result.stdout for name in NAMES)
    for title in ("At random", "By loss", "By norm", "By time", "By diversity"):
        assert title in result.stdout
    assert "100 evaluations" in " ".join(result.stdout.split())
    one = adcs("schedulers", "ADCS")
    assert "R: all clients are probed, and the kernel is rebuilt, every R rounds." in one.stdout
    assert "refresh_every=20" in one.stdout
    oort = adcs("schedulers", "Oort", "-n", 1000, "-m", 50, "-d", 100).stdout
    for part in ("Formula", "Reading", "References", ">>> ", "cutoff=0.95"):
        assert part in oort
    assert "N = 1000, m = 50, d = 100, beyond training: 200 B up" in oort
    assert "--per-round must be a whole number from 1 to 5" in refused(
        adcs("schedulers", "-n", 5, "-m", 6)
    )
    assert "did you mean ADCS" in refused(adcs("schedulers", "ADSC"))


OWN = """
import adcs

class Mine(adcs.Scheduler):
    def _select(self, server_round, clients, m):
        if server_round == 7:
            helper({})
        return adcs.Cohort.of(clients[: m - (server_round == 9)])

def helper(table):
    return table["nothing"]
"""


def test_an_error_in_a_user_scheduler_names_round_file_and_line(tmp_path: Path) -> None:
    file, run = tmp_path / "own.py", tmp_path / "run"
    file.write_text(OWN)
    result = adcs("compare", *SMALL, "--scheduler", f"{file}:Mine", "--out", run)
    sentence = refused(result)
    assert "scheduler Mine failed in round 7: KeyError: 'nothing' (own.py, line 11" in sentence
    assert f"adcs compare --resume {run}" in sentence
    file.write_text(OWN.replace("server_round == 7", "False"))
    sentence = refused(adcs("compare", "--resume", run))
    assert "scheduler Mine failed in round 9: Mine._select must return 5 clients, got 4" in sentence
    file.write_text(OWN.replace("server_round == 7", "False").replace(" - (server_round == 9)", ""))
    assert adcs("compare", "--resume", run).exit_code == 0
    file.write_text("import adcs\nclass Mine(adcs.Uniform):\n    def __init__(self, **_): 1 / 0\n")
    sentence = refused(adcs("compare", *SMALL, "--scheduler", f"{file}:Mine"))
    assert sentence.endswith("ZeroDivisionError: division by zero")


def test_a_user_scheduler_whose_state_cannot_be_saved_is_named(tmp_path: Path) -> None:
    """The traceback of a checkpoint did not say whose state it was."""
    file = tmp_path / "own.py"
    file.write_text(
        "import adcs\n\n"
        "class Mine(adcs.Uniform):\n"
        "    def state(self):\n"
        "        return {**super().state(), 'seen': {1, 2}}\n"
    )
    result = adcs("compare", *SMALL, "--scheduler", f"{file}:Mine", "--out", tmp_path / "run")
    sentence = refused(result)
    assert "scheduler Mine failed in round " in sentence
    assert "Object of type set is not JSON serializable; no records are lost" in sentence


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys\nsys.exit(3)\n", "cannot be loaded: SystemExit: 3"),
        (
            "class Mine(adcs.Uniform):\n    def __init__(self, **_): raise SystemExit\n",
            "own.py:Mine': SystemExit",
        ),
        (OWN.replace("helper({})", "raise SystemExit(7)"), "failed in round 7: SystemExit: 7 (own"),
        (
            OWN.replace("helper({})", "raise RuntimeError('one\\n  two')"),
            "failed in round 7: RuntimeError: one two (own.py",
        ),
    ],
)
def test_a_user_scheduler_that_exits_is_an_error_in_one_line(
    tmp_path: Path, code: str, said: str
) -> None:
    """sys.exit() ended the command without a word, and argparse printed a usage of its own."""
    file = tmp_path / "own.py"
    file.write_text(f"import adcs\n{code}")
    result = adcs("compare", *SMALL, "--scheduler", f"{file}:Mine", "--out", tmp_path / "run")
    assert said in refused(result)


FULL = """
import errno, multiprocessing, adcs, adcs.run_folder

class Mine(adcs.Uniform):
    pass

def full(path, data):
    raise OSError(errno.ENOSPC, "No space left on device", str(path))

if multiprocessing.parent_process() is not None:
    adcs.run_folder.write_atomically = full
"""


def test_a_full_disk_in_a_worker_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(FULL)
    values = {"data": "synthetic", "clients": 10, "m": 5, "rounds": 20, "eval_every": 10}
    experiment = Experiment.of(**values, schedulers={"own": f"{file}:Mine"})
    folder = create_run(tmp_path / "run", experiment)
    result = adcs("compare", "--resume", folder.path)
    sentence = refused(result)
    assert "the disk is full" in sentence
    assert f"adcs compare --resume {folder.path}" in sentence
    file.write_text(FULL.replace("is not None", "is False"))
    assert adcs("compare", "--resume", folder.path).exit_code == 0
    assert (folder.path / "summary.md").is_file()


def test_a_full_disk_at_the_report_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(comparison, "run_experiment", lambda *_, **__: None)
    monkeypatch.setattr(comparison, "write_report", full)
    assert "the disk is full" in refused(adcs("compare", "--resume", run))


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    folder = tmp_path / "long run"
    words = ["compare", *SMALL, "--rounds", "10000000", *TWO, "--out", str(folder)]
    process = subprocess.Popen(
        [*MAIN, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    yield process, folder
    if process.poll() is None:
        process.kill()
        process.communicate()


def wait_for_lines(folder: Path) -> Path:
    """Wait until a run has written its first records; return their file."""
    lines = folder / "records" / "seed0-pass0.jsonl"
    deadline = time.monotonic() + 60
    while not (lines.exists() and lines.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    return lines


def test_ctrl_c_prints_how_to_resume(long_run: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = long_run
    lines = wait_for_lines(folder)
    os.killpg(process.pid, signal.SIGINT)  # As a terminal does: to the workers too.
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert f"resume with: adcs compare --resume '{folder}'" in stderr
    assert json.loads(lines.read_text().splitlines()[0])["server_round"] == 0


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_sigterm_is_handled_like_ctrl_c(
    long_run: tuple[subprocess.Popen[str], Path], kill: Callable[[int, int], None]
) -> None:
    process, folder = long_run
    lines = wait_for_lines(folder)
    kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)  # Workers hold its pipes until they end.
    assert process.returncode == 128 + signal.SIGTERM
    said = [line for line in stderr.splitlines() if not line.startswith("compare: ")]
    sentence = f"adcs: stopped; nothing is lost, resume with: adcs compare --resume '{folder}'"
    assert said == [f"results go to {folder}", sentence]  # No word of leaked semaphores.
    assert json.loads(lines.read_text().splitlines()[0])["server_round"] == 0


def test_a_run_in_use_by_another_process_is_refused(
    long_run: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = long_run
    wait_for_lines(folder)
    begun = time.monotonic()
    sentence = refused(adcs("compare", "--resume", folder))
    assert sentence == (
        f"adcs: {folder} is in use: another process is running it; wait for it, or stop it first"
    )
    assert time.monotonic() - begun < 8
    assert process.poll() is None


def test_a_failed_worker_ends_the_others(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    words = ["compare", *SMALL, "--rounds", "10000000", "--eval-every", "100000", "--jobs", "2"]
    words += ["--exact", "-s", "Uniform", "-s", f"{file}:Mine", "--out", str(tmp_path / "run")]
    done = subprocess.run([*MAIN, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "scheduler Mine failed in round 7" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupting_the_command_alone_ends_its_workers(
    long_run: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = long_run
    wait_for_lines(folder)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)  # Workers hold its pipes until they end.
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_the_plain_log_estimates_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    report = plain_log("compare", "rounds", clock=lambda: now[0])
    for done in range(0, 101, 10):
        report(done, 100)
        now[0] += 2.0
    report(100, 100)
    lines = capsys.readouterr().err.splitlines()
    # A line at the first report after every five seconds, and one at the end.
    assert lines == [
        "compare: 30 % (30 of 100 rounds), 6 s",  # of which 4 s are since the first progress
        "compare: 60 % (60 of 100 rounds), 12 s, 8 s left",
        "compare: 90 % (90 of 100 rounds), 18 s, 2 s left",
        "compare: 100 % (100 of 100 rounds), 20 s",
    ]


@pytest.mark.parametrize("done_before", [0, 50])
def test_what_was_done_before_and_the_start_of_processes_are_not_in_the_remaining_time(
    capsys: pytest.CaptureFixture[str], done_before: int
) -> None:
    now = [0.0]
    report = plain_log("compare", "rounds", clock=lambda: now[0])
    report(done_before, 100)
    now[0] = 60.0  # processes start
    for rounds in range(1, 10):
        report(done_before + rounds, 100)
        now[0] += 1.0
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f"({done_before + 1} of 100 rounds), 60 s")
    assert second.endswith(f"({done_before + 6} of 100 rounds), 65 s, {94 - done_before} s left")


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys, importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'typer' else found(name, *a)\n"
        "from adcs.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "adcs: the command line needs typer; pip install 'adcs[cli]' brings it"
    )


def test_explain_marks_clients_that_waited_too_long(tmp_path: Path) -> None:
    run = tmp_path / "run"
    adcs("compare", *SMALL, "--scheduler", "LiveADCS(patience=1.0)", "--out", run)
    said = adcs("explain", run, "--round", 8).output
    assert "had waited for too long" in said
    assert "The oldest report is of round" in said


def test_labels_in_brackets_are_text(tmp_path: Path) -> None:
    """They are no markup of the terminal's tables."""
    labels = ["[red]A", "B[/]", ":smile:"]
    named = [word for label in labels for word in ("-s", f"{label}=Uniform")]
    out = tmp_path / "run"
    shown = adcs("compare", *SMALL, *named, "--out", out)
    assert shown.exit_code == 0
    assert all(label in shown.stdout for label in labels)
