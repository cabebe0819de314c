"""The commands sweep and merge, and --part: what they print, what they write, how they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from adcs.cli.app import app

SMALL = ["--data", "synthetic:clusters=2,dimension=3", "--clients", "6", "--m", "2"]
SMALL += ["--rounds", "6", "--eval-every", "3", "--jobs", "1"]
MINE = """
import adcs

class Mine(adcs.Scheduler):
    def __init__(self, *, patience=1, **more):
        super().__init__(**more)
        self.patience = patience

    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(self.take(clients, m))
"""


def adcs(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("adcs: ")]
    return line


def files(folder: Path) -> dict[str, bytes]:
    """Return what files hold; the page names the run folder, which is left out."""
    every = [path for path in folder.rglob("*") if path.is_file()]
    held = {str(path.relative_to(folder)): path.read_bytes() for path in every}
    if "report.html" in held:
        named = f'"folder":"{folder.name}"'.encode()
        held["report.html"] = held["report.html"].replace(named, b'"folder":""')
    return held


def test_sweep_prints_and_resumes(tmp_path: Path) -> None:
    """With a scheduler of the user's own."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    words = ["-s", f"own={file}:Mine", "--grid", "patience=1,2", "--grid", "lr=0.1,0.01"]
    result = adcs("sweep", *words, *SMALL, "--out", tmp_path / "s")
    assert result.exit_code == 0, result.output
    assert "patience=2, lr=0.01" in result.stdout
    assert "Best of 4 points by worst" in result.stderr
    before = files(tmp_path / "s")
    assert {"sweep.json", "summary.md", "table.csv", "figures/sweep.png"} <= set(before)
    again = adcs("sweep", "--resume", tmp_path / "s")
    assert again.exit_code == 0, again.output
    assert again.stdout == result.stdout
    assert files(tmp_path / "s") == before
    assert f"is a sweep; name one of its runs, such as {tmp_path / 's' / 'run-1'}" in refused(
        adcs("report", tmp_path / "s")
    )
    assert "'grid' cannot be given" in refused(
        adcs("sweep", "--resume", tmp_path / "s", "--grid", "lr=1")
    )


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_parts_are_run_and_merged(tmp_path: Path, command: str) -> None:
    """The merged folder has every byte of the whole one, those of tables and figures too."""
    words = ["-s", "ADCS", "--seeds", "3", *SMALL]
    words += ["--grid", "theta=0.2,0.8"] if command == "sweep" else ["-s", "Uniform"]
    whole = adcs(command, *words, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    parts = [tmp_path / f"part{i}" for i in (1, 2)]
    for i, part in enumerate(parts, start=1):
        result = adcs(command, *words, "--part", f"{i}/2", "--out", part)
        assert result.exit_code == 0, result.output
        assert f"part {i} of 2 is done: {3 - i} tasks" in result.stderr
        assert result.stdout == ""
    result = adcs("merge", tmp_path / "merged", *parts)
    assert result.exit_code == 0, result.output
    assert result.stdout == whole.stdout
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    assert adcs(command, "--resume", parts[0]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["sweep", "-s", "ADCS"], "grid must have at least one setting"),
        (["sweep", "--grid", "theta=1"], "a sweep is of one scheduler (-s ADCS), got 6"),
        (["sweep", "-s", "ADCS", "--grid", "theta"], "must look like theta=0.2,0.5,0.8"),
        (["sweep", "-s", "ADCS", "--grid", "thet=1"], "did you mean theta?"),
        (["sweep", "-s", "ADCS", "--grid", "m=2", "--grid", "m=3"], "--grid has m twice"),
        (["sweep", "-s", "ADCS", "--grid", "m=2", "--best-by", "wurst"], "did you mean worst?"),
        (["sweep", "-s", "ADCS", "--grid", "m=2", "--part", "3/2"], "1 <= i <= n, got 3 of 2"),
        (["compare", "--part", "3/2"], "--part must be i of n with 1 <= i <= n, got 3 of 2"),
        (["compare", "--part", "0/2"], "1 <= i <= n, got 0 of 2"),
        (["compare", "--part", "half"], "--part must look like 2/8, part 2 of 8; got 'half'"),
        (["sweep", "--resume", "none"], "none is not the folder of a sweep"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [] if "--resume" in words else SMALL
    assert match in refused(adcs(*words, *settings))
    assert not list(tmp_path.iterdir())


def test_merge_of_what_does_not_belong_together(tmp_path: Path) -> None:
    parts = []
    for i, lr in enumerate(("0.1", "0.2"), start=1):
        parts.append(tmp_path / f"part{i}")
        words = ["compare", "-s", "Uniform", *SMALL, "--lr", lr, "--part", f"{i}/2"]
        assert adcs(*words, "--out", parts[-1]).exit_code == 0
    assert "training.lr differs" in refused(adcs("merge", tmp_path / "m", *parts))
    assert "part 2 of 2 is missing" in refused(adcs("merge", tmp_path / "m", parts[0]))
    assert not (tmp_path / "m").exists()
    assert "is not empty" in refused(adcs("merge", parts[1], parts[0]))
