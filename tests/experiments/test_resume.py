"""Resumed run folders: with other data, with broken files, of other versions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from adcs._serialization import pack, unpack
from adcs.cli.app import app
from adcs.experiments import runner
from adcs.experiments.config import Experiment, from_dict, with_options
from adcs.experiments.explain import replay
from adcs.experiments.runner import (
    create_run,
    experiment_of,
    run_experiment,
    run_task,
    same_data,
    tasks,
)
from adcs.run_folder import SCHEMA_VERSION, RunFolder, fingerprint


def adcs(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("adcs: ")]
    return line


def save(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), 20)
    x = rng.standard_normal((60, 4)) + y[:, None]
    np.savez(path, x_train=x, y_train=y, x_test=x[::2], y_test=y[::2])
    return path


def small(data: Path) -> Experiment:
    values = {"data": str(data), "clients": 6, "m": 2, "rounds": 20, "eval_every": 5, "lr": 0.05}
    return Experiment.of(**values, schedulers=["Uniform", "ADCS"])


OWN = """
from adcs import Cohort, Scheduler

class Mine(Scheduler):
    def _select(self, server_round, clients, m):
        return Cohort.of(self.take(clients, m))
"""


def test_a_changed_file_of_ones_own_is_named_at_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "chg.py"
    own.write_text(OWN)
    settings = small(save(tmp_path / "a.npz", 0)).as_dict()
    experiment = from_dict({**settings, "schedulers": ["Uniform", f"{own}:Mine"]})
    (tmp_path / "new").mkdir()
    begun = create_run(tmp_path / "new" / "run", experiment)
    folder = started(tmp_path / "run", experiment, monkeypatch)
    before = (folder.path / "config.json").read_bytes()
    own.write_text(OWN.replace("clients, m))", "clients[::-1], m))"))
    run_experiment(begun, experiment, jobs=1)
    assert begun.config.get("notes", []) == []  # All of its rounds are of the new version.
    assert "chg.py" not in caplog.text
    said = "chg.py has changed since the run began; its results are of both versions."
    found = adcs("compare", "--resume", folder.path, "--jobs", 1)
    assert found.exit_code == 0
    assert said in caplog.text
    assert folder.config["notes"] == [said]
    assert [len(held) for held in folder.config["own_files"].values()] == [2]
    assert {**folder.config, "notes": [], "own_files": {}} == {
        **json.loads(before),
        "notes": [],
        "own_files": {},
    }
    for file in ("summary.md", "report.html"):
        assert said in (folder.path / file).read_text()
    own.write_text(OWN)
    caplog.clear()
    adcs("compare", "--resume", folder.path, "--jobs", 1)  # There is nothing left to run.
    assert "chg.py" not in caplog.text


class Interrupted(Exception):
    pass


def started(
    path: Path, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, at: int = 10
) -> RunFolder:
    """A run that was interrupted at a round, with a checkpoint."""
    folder = create_run(path, experiment)
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(runner, "PROGRESS_SECONDS", -1.0)

    def stop(rounds: int) -> None:
        if rounds >= at:
            raise Interrupted

    (task,) = tasks(experiment)
    with pytest.raises(Interrupted):
        run_task(folder, experiment, task, stop)
    assert folder.load_checkpoint(task.name) is not None
    return folder


def records(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder.path / "records").iterdir()}


@pytest.mark.parametrize("at", [3, 13, 18])
def test_checkpoints_do_not_wait_for_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    experiment = small(save(tmp_path / "mine.npz", seed=0))
    folder = started(tmp_path / "run", experiment, monkeypatch, at)
    (task,) = tasks(experiment)
    assert folder.load_checkpoint(task.name)["simulation"]["server_round"] == at - 1
    run_experiment(folder, experiment, jobs=1)
    whole = create_run(tmp_path / "whole", experiment)
    run_experiment(whole, experiment, jobs=1)
    assert records(folder) == records(whole)


def test_what_clients_and_server_keep_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaffold = Path(__file__).parents[2] / "examples" / "scaffold.py"
    experiment = small(save(tmp_path / "mine.npz", seed=0)).replace(
        local=f"{scaffold}:Scaffold", steps=3, server_optimizer="yogi", network={"dropout": 0.2}
    )
    folder = started(tmp_path / "run", experiment, monkeypatch, at=13)
    run_experiment(folder, experiment, jobs=1)
    whole = create_run(tmp_path / "whole", experiment)
    run_experiment(whole, experiment, jobs=1)
    assert records(folder) == records(whole)


def test_an_error_in_ones_own_training_is_fixed_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.py"
    text = (
        "from adcs.simulation import ClientResult, LocalTraining\n"
        "class Mine(LocalTraining):\n"
        "    def train(self, work):\n"
        "        loss, gradient = work.loss_and_gradient(work.w, *work.batches[0])\n"
        "        return ClientResult(loss, gradient * FACTOR)\n"
    )
    path.write_text(f"FACTOR = float('nan')\n{text}")
    data = save(tmp_path / "mine.npz", seed=0)
    words = ["--data", data, "--clients", 6, "--m", 2, "--rounds", 5, "--local", f"{path}:Mine"]
    run = tmp_path / "run"
    sentence = refused(adcs("compare", *words, "-s", "Uniform", "--out", run))
    assert "local training Mine failed in round 0, client " in sentence
    assert "the update must be finite numbers; no records are lost, fix it and resume" in sentence
    path.write_text(f"FACTOR = 1.0\n{text}")
    monkeypatch.chdir(tmp_path)
    assert adcs("compare", "--resume", run).exit_code == 0


def test_configs_of_earlier_versions_are_read(tmp_path: Path) -> None:
    values = small(save(tmp_path / "mine.npz", seed=0)).as_dict()
    names = ("m", "lr", "server_lr", "steps", "weights", "paper_literal_weights", "rounds")
    values["training"] = {name: values["training"][name] for name in (*names, "batch_size")}
    assert from_dict({**values, "training": {**values["training"], "local": "steps"}}) == small(
        tmp_path / "mine.npz"
    )


def test_a_run_does_not_resume_with_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = save(tmp_path / "mine.npz", seed=0)
    experiment = small(data)
    folder = started(tmp_path / "run", experiment, monkeypatch)
    before = records(folder)
    save(data, seed=1)
    sentence = refused(adcs("compare", "--resume", folder.path, "--jobs", 1))
    assert f"the data {data} is no longer what this run began with" in sentence
    # A worker looks for itself, since the file may be replaced while others run.
    with pytest.raises(ValueError, match="no longer what this run began with"):
        run_task(folder, experiment, tasks(experiment)[0], lambda rounds: None)
    assert records(folder) == before
    save(data, seed=0)  # Written anew, but the same data: times and paths do not count.
    assert adcs("compare", "--resume", folder.path, "--jobs", 1).exit_code == 0


def test_a_selection_is_not_explained_with_other_data(tmp_path: Path) -> None:
    data = save(tmp_path / "mine.npz", seed=0)
    experiment = small(data)
    held = create_run(tmp_path / "run", experiment).config["data_fingerprint"]
    assert replay(experiment, 0, "ADCS", 1, fingerprint=held)[1] == 0
    save(data, seed=1)
    with pytest.raises(ValueError, match=r"the data .*mine\.npz is no longer what this run"):
        replay(experiment, 0, "ADCS", 1, fingerprint=held)
    assert replay(experiment, 0, "ADCS", 1)[1] == 0


def test_a_config_without_a_fingerprint_takes_the_data_as_they_are(tmp_path: Path) -> None:
    data = save(tmp_path / "mine.npz", seed=0)
    experiment = small(data)
    folder = create_run(tmp_path / "run", experiment)
    config = folder.config
    del config["data_fingerprint"]
    (folder.path / "config.json").write_text(json.dumps(config))
    save(data, seed=1)
    assert experiment_of(folder) == experiment
    run_experiment(folder, experiment, jobs=1)
    assert len(list(folder.records())) == 2 * 5


def test_the_same_data_gives_the_same_config(tmp_path: Path) -> None:
    one, other = (tmp_path / name / "mine.npz" for name in ("one", "other"))
    configs = []
    for data in (one, other):
        data.parent.mkdir()
        save(data, seed=0)
        folder = create_run(data.parent / "run", small(data))
        configs.append(folder.config["data_fingerprint"])
    assert configs[0] == configs[1]
    assert same_data(small(one), configs[1]).classes == 3


def test_a_fingerprint_sees_bytes_shapes_and_types() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    changed = x.copy()
    changed[1, 2] = np.nextafter(changed[1, 2], np.float32(9))
    others = [changed, x.reshape(3, 2), x.astype(np.float64), x.view(np.int32), x[::-1]]
    found = {fingerprint(array) for array in [x, *others]}
    assert len(found) == 6
    assert fingerprint(x) == fingerprint(np.asfortranarray(x))
    assert fingerprint(x, x[:0]) != fingerprint(x[:0], x)


@pytest.mark.parametrize("text", ['{"engine": "sim', "", "[1, 2]", "\xff\xfe"])
def test_a_broken_config_is_named(text: str, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {"engine": "simulation"})
    path = folder.path / "config.json"
    path.write_text(text, encoding="latin-1")
    for words in (["compare", "--resume"], ["explain", "--round", 0], ["theory"]):
        sentence = refused(adcs(*words, folder.path))
        assert f"{path} is broken" in sentence
        assert "start a new run" in sentence


@pytest.mark.parametrize(
    "wrong", [{"m": 0}, {"model": "mlp"}, {"schedulers": "ADCS"}, {"lr": None}]
)
def test_invalid_settings_are_named_with_their_file(
    wrong: dict[str, object], tmp_path: Path
) -> None:
    folder = create_run(tmp_path / "run", small(save(tmp_path / "mine.npz", seed=0)))
    path = folder.path / "config.json"
    sections = {key: folder.config[key] for key in Experiment.model_fields}
    path.write_text(json.dumps({**folder.config, **with_options(sections, wrong)}))
    sentence = refused(adcs("compare", "--resume", folder.path))
    assert f"{path} holds settings that cannot be used" in sentence
    assert next(iter(wrong)) in sentence


@pytest.mark.parametrize("size", [0, 1, 100, -200, -1])
def test_a_checkpoint_cut_short_can_be_deleted(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small(save(tmp_path / "mine.npz", seed=0))
    folder = started(tmp_path / "run", experiment, monkeypatch)
    whole = create_run(tmp_path / "whole", experiment)
    path = folder.path / "checkpoints" / tasks(experiment)[0].name
    path.write_bytes(path.read_bytes()[:size])
    sentence = refused(adcs("compare", "--resume", folder.path, "--jobs", 1))
    assert f"{path} is not a whole checkpoint; delete it" in sentence
    path.unlink()
    for each in (folder, whole):
        run_task(each, experiment, tasks(experiment)[0], lambda rounds: None)
    assert records(folder) == records(whole)


def test_a_checkpoint_of_another_version_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small(save(tmp_path / "mine.npz", seed=0))
    folder = started(tmp_path / "run", experiment, monkeypatch)
    (path,) = (folder.path / "checkpoints").iterdir()
    state = unpack(path.read_bytes())
    for format in (None, 1):
        path.write_bytes(pack({**state, "format": format}))
        sentence = refused(adcs("compare", "--resume", folder.path, "--jobs", 1))
        assert f"{path} was written by another version of adcs; delete it" in sentence
    path.unlink()
    assert adcs("compare", "--resume", folder.path, "--jobs", 1).exit_code == 0


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (None, "was written by an older version of adcs: its config.json has no schema_version"),
        (0, "was written by an older version of adcs: its config.json has schema_version 0"),
        (99, "was written by a newer version of adcs: its config.json has schema_version 99"),
        ("1", "version of adcs: its config.json has schema_version '1'"),
        (True, "version of adcs: its config.json has schema_version True"),
        (1.0, "version of adcs: its config.json has schema_version 1.0"),
    ],
)
def test_a_folder_of_another_schema_version_is_refused_in_a_sentence(
    version: object, sentence: str, tmp_path: Path
) -> None:
    experiment = small(save(tmp_path / "mine.npz", seed=0))
    folder = create_run(tmp_path / "run", experiment)
    config = folder.config
    assert config["schema_version"] == SCHEMA_VERSION
    del config["schema_version"]
    if version is not None:
        config["schema_version"] = version
    (folder.path / "config.json").write_text(json.dumps(config))
    for words in (["compare", "--resume"], ["explain", "--round", 0], ["theory"]):
        line = refused(adcs(*words, folder.path))
        assert f"{folder.path} {sentence}" in line or sentence in line
        assert f"this version reads {SCHEMA_VERSION}" in line
