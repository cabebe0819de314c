"""The folder of results: its settings, its runs, what it refuses."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reproduction import folder as module
from reproduction.folder import (
    CommandFailed,
    ResultFolder,
    Run,
    make_command,
    one_sentence,
    quick_look,
)

KNOWN = ["figure-1", "kernels"]


def opened(path: Path, *names: str, **overrides: Any) -> ResultFolder:
    return ResultFolder.open(path, KNOWN, names, overrides)


def test_a_folder_keeps_its_settings_and_takes_further_outputs(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert opened(path).outputs == ("figure-1", "kernels")
    opened(path, "kernels", rounds=100).save()
    with pytest.raises(ValueError, match="was started with rounds 100, not 200"):
        opened(path, rounds=200)
    with pytest.raises(ValueError, match="was started with seeds as declared, not 2"):
        opened(path, rounds=100, seeds=2)
    assert opened(path).outputs == ("kernels",)
    more = opened(path, "figure-1")
    assert (more.outputs, more.overrides) == (("figure-1", "kernels"), {"rounds": 100})


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty and has no reproduce\.json"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "null",
        json.dumps({"outputs": ["kernels"]}),
        json.dumps({"outputs": [3], "overrides": {}}),
        json.dumps({"outputs": 3, "overrides": {}}),
        json.dumps({"outputs": [], "overrides": {"rounds": "10"}}),
        json.dumps({"outputs": [], "overrides": {"rounds": True}}),
        json.dumps({"outputs": [], "overrides": {"m": 3}}),
        json.dumps({"outputs": [], "overrides": []}),
    ],
)
def test_broken_settings_are_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "reproduce.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"reproduce\.json does not hold outputs and overrides; "):
        opened(tmp_path)


def test_an_output_that_the_file_names_and_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "reproduce.json").write_text(json.dumps({"outputs": ["beyond"], "overrides": {}}))
    with pytest.raises(ValueError, match=r"reproduce\.json names no output 'beyond'; there are"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("rounds", "every"), [(1, 1), (49, 1), (100, 2), (300, 6), (5000, 100), (90000, 100)]
)
def test_fewer_rounds_are_evaluated_more_often(rounds: int, every: int) -> None:
    assert quick_look({"rounds": rounds}) == {"rounds": rounds, "eval_every": every}


def settings(tmp_path: Path, rounds: int) -> Run:
    config = tmp_path / "small.toml"
    config.write_text(
        'schedulers = ["Uniform"]\ndata.name = "synthetic"\n'
        "partition.clients = 10\ntraining.m = 2\n"
    )
    return Run("small", config, {"rounds": rounds, "eval_every": 5})


def test_runs_are_made_once_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete run is not repeated, an incomplete one resumes, other settings are refused."""
    folder = opened(tmp_path / "a")
    run = settings(tmp_path, rounds=20)
    folder.execute([run], jobs=1)
    given: list[Sequence[str]] = []
    monkeypatch.setattr(module, "compare", given.append)
    experiment, records = folder.read(run)
    assert experiment.training.rounds == 20
    assert [record["server_round"] for record in records] == [0, 5, 10, 15, 20]
    folder.execute([run])
    assert given == []
    (folder.path / "small" / "summary.md").unlink()
    folder.execute([run])
    assert list(given[0]) == ["--resume", str(folder.path / "small")]
    with pytest.raises(ValueError, match=r"small is a run with training\.rounds 20, not 40"):
        folder.execute([settings(tmp_path, rounds=40)])


def test_a_command_that_fails_keeps_what_was_made(tmp_path: Path) -> None:
    folder = opened(tmp_path / "a")
    folder.save()
    (folder.path / "made").mkdir()
    with pytest.raises(CommandFailed, match="exit code 2"):
        folder.execute([settings(tmp_path, rounds=-1)])
    assert (folder.path / "reproduce.json").is_file()


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (CommandFailed(2), 2, "adcs compare ended with exit code 2; continue with: make paper"),
        (KeyboardInterrupt(), 130, "stopped; continue with: make paper"),
        (ValueError("m is 3"), "reproduction: m is 3", ""),
        (OSError(28, "No space left on device"), "reproduction: [Errno 28] No space", ""),
    ],
)
def test_errors_end_the_script_with_one_sentence(
    error: BaseException, code: int | str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop, one_sentence("make paper"):
        raise error
    assert str(stop.value.code).startswith(str(code))
    assert sentence in capsys.readouterr().err


def test_the_command_to_continue_has_the_options_in_force() -> None:
    given = argparse.Namespace(
        outputs=["digits", "letter"],
        seeds=2,
        tier="full",
        scheduler="mine.py:Mine(a=1)",
        published=True,
        publish=False,
        again=None,
        jobs=None,
    )
    assert make_command("benchmark", Path("runs/a"), given) == (
        "make benchmark OUT=runs/a ONLY='digits letter' SEEDS=2 TIER=full "
        "SCHEDULER='mine.py:Mine(a=1)' PUBLISHED=1"
    )


def test_compare_is_ended_with_the_script(tmp_path: Path) -> None:
    """SIGTERM ends the script and the command; the same script then continues."""
    words = ["kernels", "--rounds", "200000", "--data", "digits", "--jobs", "1"]
    script = [sys.executable, "-m", "reproduction.paper", "--out", str(tmp_path / "a"), *words]
    with subprocess.Popen(script, cwd=module.ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("compare:"):
                process.terminate()
                break
        rest = process.stderr.read()  # until all that write to it have ended
    assert process.returncode == 128 + signal.SIGTERM
    assert "adcs: stopped; nothing is lost" in rest
    assert (tmp_path / "a" / "reproduce.json").is_file()
