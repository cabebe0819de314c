"""A folder of results: its settings, and its runs, which `adcs compare` makes.

FOLDER/
  reproduce.json       the outputs, and the settings that differ from the declared ones
  methods/, theta/ ..  run folders of `adcs compare`
  figures/             PDF, PNG and CSV of each output
  summary.md           tables and verdicts
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from adcs.experiments import Experiment, checked_records, experiment_of
from adcs.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
CONFIGS = Path(__file__).parent / "configs"

Report = TypeVar("Report")

OVERRIDES: Mapping[str, type] = {"seeds": int, "rounds": int, "data": str, "data_folder": str}
"""Settings that may differ from the declared ones, by type."""

MAKE = {"outputs": "ONLY"} | {
    name: name.upper()
    for name in (*OVERRIDES, "jobs", "tier", "scheduler", "published", "again", "publish")
}
"""The variables of make, by option."""

EVALUATIONS = 50
"""Least number of evaluations of a run with fewer rounds than declared."""


class CommandFailed(Exception):
    """`adcs compare` failed; it has printed the reason."""

    def __init__(self, code: int) -> None:
        super().__init__(f"adcs compare ended with exit code {code}")
        self.code = code


@dataclass(frozen=True)
class Run:
    """A run of `adcs compare`.

    Attributes
    ----------
    name
        The name of its folder.
    config
        The TOML file with its settings.
    settings
        Settings that replace the file's.
    schedulers
        Labels and specs, if the file has none.

    Examples
    --------
    >>> run = Run("theta", Path("theta.toml"), {"eval_every": 6}, {"no quality": "ADCS(theta=0)"})
    >>> run.options()
    ['--config', 'theta.toml', '--eval-every', '6', '--scheduler', 'no quality=ADCS(theta=0)']
    """

    name: str
    config: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    schedulers: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> list[str]:
        """Return the options of the command."""
        words = ["--config", str(self.config)]
        for key, value in self.settings.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        for label, spec in self.schedulers.items():
            words += ["--scheduler", f"{label}={spec}"]
        return words


def quick_look(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides; fewer rounds come with more frequent evaluations.

    >>> quick_look({"rounds": 300})
    {'rounds': 300, 'eval_every': 6}
    """
    if "rounds" not in overrides:
        return dict(overrides)
    every = min(Experiment().run.eval_every, overrides["rounds"] // EVALUATIONS)
    return {**overrides, "eval_every": max(1, every)}


@dataclass(frozen=True)
class ResultFolder:
    """A folder of results.

    Attributes
    ----------
    path
        Where it is.
    outputs
        Which outputs it has.
    overrides
        Settings that differ from the declared ones.
    """

    path: Path
    outputs: tuple[str, ...]
    overrides: Mapping[str, Any]

    @classmethod
    def open(
        cls,
        path: Path,
        known: Sequence[str],
        names: Sequence[str],
        overrides: Mapping[str, Any],
        default: Sequence[str] | None = None,
    ) -> ResultFolder:
        """Return a new folder, or one that exists, with further outputs.

        Parameters
        ----------
        path
            Where it is.
        known
            All outputs there are, in their order.
        names
            Outputs to make. None are those that the folder has, or the default ones in a new one.
        overrides
            Settings that differ from the declared ones. A folder keeps those it was started with.
        default
            The outputs of a new folder, if none are named; all if it is None.
        """
        file = path / "reproduce.json"
        held = _read(file) if file.is_file() else None
        if held is None and path.exists() and any(path.iterdir()):
            raise ValueError(
                f"{path} is not empty and has no reproduce.json; choose another folder"
            )
        have = [] if held is None else held["outputs"]
        for name in [*have, *names]:
            if name not in known:
                what = f"{file} names" if name in have else "there is"
                raise ValueError(f"{what} no output {name!r}; there are {', '.join(known)}")
        kept = overrides if held is None else held["overrides"]
        for key, value in overrides.items():
            if kept.get(key) != value:
                before = kept.get(key, "as declared")
                raise ValueError(f"{path} was started with {key} {before}, not {value}")
        wanted = {*have, *names} or set(known if default is None else default)
        return cls(path, tuple(name for name in known if name in wanted), kept)

    def save(self) -> None:
        """Write reproduce.json."""
        content = {"outputs": list(self.outputs), "overrides": dict(self.overrides)}
        write_text(self.path / "reproduce.json", json.dumps(content, indent=2))

    def execute(self, runs: Sequence[Run], jobs: int | None = None, *, where: str = "") -> None:
        """Make the runs that are missing, and complete those that were interrupted.

        Parameters
        ----------
        runs
            All runs.
        jobs
            The number of processes; None takes one for each core.
        where
            What these runs are part of, for the line that announces each of them.
        """
        for run in runs:
            if (self.path / run.name / "config.json").is_file():
                self._open(run)  # a run of other settings is refused before any work
        self.save()
        for number, run in enumerate(runs, start=1):
            path = (self.path / run.name).resolve()
            if (path / "summary.md").is_file():  # which `adcs compare` writes last
                continue
            count = f"{where}run {number} of {len(runs)}"
            print(f"{run.name} ({count})", file=sys.stderr, flush=True)
            words = [*run.options(), "--out", str(path)]
            if (path / "config.json").is_file():
                words = ["--resume", str(path)]
            if jobs is not None:
                words += ["--jobs", str(jobs)]
            try:
                compare(words)
            except CommandFailed:
                self._discard_if_empty()
                raise

    def _discard_if_empty(self) -> None:
        """Remove a folder without any run, so that the command can be given anew."""
        if [file.name for file in self.path.iterdir()] == ["reproduce.json"]:
            (self.path / "reproduce.json").unlink()
            self.path.rmdir()

    def read(self, run: Run) -> tuple[Experiment, list[dict[str, Any]]]:
        """Return the settings and the records of a run."""
        folder, experiment = self._open(run)
        return experiment, checked_records(folder, experiment)

    def _open(self, run: Run) -> tuple[RunFolder, Experiment]:
        """Open a run folder; refuse one whose settings are not the run's."""
        folder = RunFolder.open(self.path / run.name)
        experiment = experiment_of(folder)
        if difference := experiment.replace(**run.settings).difference(experiment):
            raise ValueError(f"{folder.path} is a run with {difference}")
        return folder, experiment


def _read(path: Path) -> dict[str, Any]:
    """Return what reproduce.json holds, or raise if it cannot be used."""
    remedy = "restore it, or choose another folder"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        outputs, overrides = held["outputs"], held["overrides"]
        usable = all(isinstance(name, str) for name in outputs) and all(
            type(value) is OVERRIDES.get(key) for key, value in overrides.items()
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        usable = False
    if not usable:
        raise ValueError(f"{path} does not hold outputs and overrides; {remedy}")
    return {"outputs": list(outputs), "overrides": dict(overrides)}


def compare(words: Sequence[str]) -> None:
    """Run `adcs compare` at the root of the repository, its table not shown."""
    command = [sys.executable, "-m", "adcs", "compare", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait()  # Ctrl-C reaches the command too, which ends in order
        raise CommandFailed(code) from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if code:
        raise CommandFailed(code)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def next_folder(name: str) -> Path:
    """Return the first of runs/name-1, runs/name-2, .. that does not exist."""
    count = 1
    while (path := Path("runs") / f"{name}-{count}").exists():
        count += 1
    return path


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"{text}\n", encoding="utf-8")
    os.replace(part, path)


def options(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, help="number of seeds (declared: 5)")
    parser.add_argument("--rounds", type=int, help="number of rounds, for a quick look")
    parser.add_argument("--data-folder", help="folder with the files of the data")
    parser.add_argument("--out", type=Path, help="new folder, or one to continue")
    parser.add_argument("--jobs", "-j", type=int, help="number of processes (one for each core)")
    return parser


def overrides_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings given on the command line."""
    found = {key: getattr(given, key, None) for key in OVERRIDES}
    return {key: value for key, value in found.items() if value is not None}


def make_command(name: str, path: Path, given: argparse.Namespace) -> str:
    """Return the command that continues a folder of results, with the options in force.

    >>> given = argparse.Namespace(outputs=["digits"], rounds=9, out=None, scheduler="m.py:M(a=1)")
    >>> make_command("benchmark", Path("runs/a"), given)
    "make benchmark OUT=runs/a ONLY=digits ROUNDS=9 SCHEDULER='m.py:M(a=1)'"
    """
    words = [f"make {name} OUT={shlex.quote(str(path))}"]
    for key, variable in MAKE.items():
        value = getattr(given, key, None)
        value = "1" if value is True else value
        if value not in (None, False, []):
            text = " ".join(value) if isinstance(value, list) else str(value)
            words.append(f"{variable}={shlex.quote(text)}")
    return " ".join(words)


@contextmanager
def one_sentence(command: str) -> Iterator[None]:
    """End the script with one sentence after an error that the user can resolve.

    Parameters
    ----------
    command
        The command that continues the work.
    """
    # As after Ctrl-C, so that `adcs compare` is ended too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    except (CommandFailed, KeyboardInterrupt) as error:
        why = error if isinstance(error, CommandFailed) else "stopped"
        print(f"reproduction: {why}; continue with: {command}", file=sys.stderr)
        sys.exit(error.code if isinstance(error, CommandFailed) else 128 + signal.SIGINT)
    except (ValueError, OSError) as error:
        sys.exit(f"reproduction: {error}")


def make_results(
    name: str,
    known: Sequence[str],
    given: argparse.Namespace,
    runs_of: Callable[[ResultFolder], Sequence[Run]],
    report: Callable[[ResultFolder], Report],
    default: Sequence[str] | None = None,
) -> tuple[ResultFolder, Report]:
    """Make the runs of a folder of results, then its report; return both.

    Parameters
    ----------
    name
        The target of make, which also names the folder.
    known
        All outputs there are, in their order.
    given
        The options of the command line.
    runs_of
        Returns the runs that a folder needs.
    report
        Writes the report from the runs.
    default
        The outputs of a new folder, if none are named; all if it is None.
    """
    path = given.out or next_folder(name)
    with one_sentence(make_command(name, path, given)):
        wanted = getattr(given, "outputs", ())
        folder = ResultFolder.open(path, known, wanted, overrides_of(given), default)
        print(f"results go to {path}", file=sys.stderr)
        folder.execute(runs_of(folder), given.jobs)
        return folder, report(folder)


def print_end(folder: ResultFolder, warning: str | None) -> None:
    """Print the warning, if there is one, and where the results are."""
    if warning is not None:
        print(warning, file=sys.stderr)
    path = folder.path
    print(f"{path / 'summary.md'} has the tables, {path / 'figures'} the figures", file=sys.stderr)
