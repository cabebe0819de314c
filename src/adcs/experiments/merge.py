"""Merges the parts of a comparison or sweep, which a batch queue ran as separate jobs.

Part i of n has every n-th task, from the i-th on. The merged folder has the bytes of a run in one
piece, because the result of a task follows from the config alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adcs._validation import did_you_mean_path
from adcs.experiments.runner import check_part, experiment_of, tasks, unfinished
from adcs.experiments.selections import selection_paths
from adcs.run_folder import RunFolder, read_json, write_atomically

SWEEP = "sweep.json"
"""The file that makes a folder one of a sweep: its grid and settings."""


def parse_part(text: str) -> tuple[int, int]:
    """Return part i of n from a text such as "2/8".

    >>> parse_part("2/8")
    (2, 8)
    >>> parse_part("3/2")
    Traceback (most recent call last):
    ...
    ValueError: --part must be i of n with 1 <= i <= n, got 3 of 2
    >>> parse_part("2")
    Traceback (most recent call last):
    ...
    ValueError: --part must look like 2/8, part 2 of 8; got '2'
    """
    i, _, n = text.partition("/")
    if not (i.strip().isdecimal() and n.strip().isdecimal()):
        raise ValueError(f"--part must look like 2/8, part 2 of 8; got {text!r}")
    return check_part((int(i), int(n)), "--part")


def merge_parts(out: str | Path, parts: Sequence[str | Path]) -> Path:
    """Merge the folders of all parts of a comparison or of a sweep into a new folder.

    Records and checkpoints are copied; the report is not written. The parts are not changed.

    Parameters
    ----------
    out
        The folder to make.
    parts
        The folders of the parts, in any order.

    Raises
    ------
    ValueError
        If the parts are of different runs, if one is missing, given twice or not finished.

    Examples
    --------
    >>> merge_parts("runs/all", [])
    Traceback (most recent call last):
    ...
    ValueError: merge needs the folders of the parts, got none
    """
    target, paths = Path(out), [Path(part) for part in parts]
    if not paths:
        raise ValueError("merge needs the folders of the parts, got none")
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: there is no such folder{did_you_mean_path(path)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} is not empty; parts are merged into a new folder")
    if not any((path / SWEEP).is_file() for path in paths):
        _merge_runs(target, paths)
        return target
    for path in paths:
        if not (path / SWEEP).is_file():
            raise ValueError(f"{path} is not a part of a sweep, as the other parts are")
    held = [read_json(path / SWEEP, "run that part again") for path in paths]
    common = _common(paths, held, SWEEP)
    _check_numbers(paths, [each.get("part") for each in held])
    names = [path.name for path in sorted(paths[0].glob("run-*"))]
    for name in names:
        _check_runs([path / name for path in paths])
    for name in names:
        _merge_runs(target / name, [path / name for path in paths])
    write_atomically(target / SWEEP, (json.dumps(common, indent=2) + "\n").encode())
    return target


def _check_runs(paths: Sequence[Path]) -> tuple[list[RunFolder], dict[str, Any]]:
    """Return the folders of the parts of one run and the config of the whole."""
    folders = [RunFolder.open(path) for path in paths]
    common = _common(paths, [folder.config for folder in folders], "config.json")
    _check_numbers(paths, [folder.config.get("part") for folder in folders])
    for folder in folders:
        if left := unfinished(folder, experiment_of(folder)):
            raise ValueError(
                f"{folder.path} is not finished: {left[0]} is not done; resume it before the merge"
            )
    return folders, common


def _merge_runs(target: Path, paths: Sequence[Path]) -> None:
    folders, common = _check_runs(paths)
    described = {k: v for k, v in common.items() if k not in ("schema_version", "versions")}
    merged = RunFolder.create(target, described)
    with merged.locked():
        for folder in folders:
            experiment = experiment_of(folder)
            for task in tasks(experiment, folder.config["part"]):
                for name in (f"records/{task.name}.jsonl", f"checkpoints/{task.name}"):
                    write_atomically(target / name, (folder.path / name).read_bytes())
                for path in selection_paths(folder, task.name):
                    if path.is_file():  # parts of earlier versions have none
                        name = str(path.relative_to(folder.path))
                        write_atomically(target / name, path.read_bytes())
    # The versions are those that the parts ran with.
    merged.write_config(common)


def _common(paths: Sequence[Path], configs: Sequence[dict[str, Any]], file: str) -> dict[str, Any]:
    """Return the config of the whole; raise ValueError if the parts' configs differ elsewhere."""
    first = {key: value for key, value in configs[0].items() if key != "part"}
    for path, config in zip(paths, configs, strict=True):
        if "part" not in config:
            raise ValueError(f"{path} is a whole run, not a part (--part i/n)")
        for key in {**first, **config}:
            if key != "part" and config.get(key) != first.get(key):
                what = _difference(first.get(key), config.get(key))
                raise ValueError(
                    f"{path} and {paths[0]} are not parts of one run: {key}{what} differs in their "
                    f"{file}"
                )
    return first


def _difference(a: Any, b: Any) -> str:
    """Return the key in which two tables differ, with a dot; "" if they are no tables."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return ""
    return "." + str(next(key for key in {**a, **b} if a.get(key) != b.get(key)))


def _check_numbers(paths: Sequence[Path], parts: Sequence[Any]) -> None:
    """Raise ValueError unless the parts are 1, ..., n of the same n, each once."""
    seen: dict[int, Path] = {}
    n = parts[0][1]
    for path, (i, count) in zip(paths, parts, strict=True):
        if count != n:
            raise ValueError(
                f"{path} is part {i} of {count}, and {paths[0]} is one of {n}: they are not parts "
                "of one run"
            )
        if i in seen:
            raise ValueError(f"{seen[i]} and {path} are both part {i} of {n}; give each part once")
        seen[i] = path
    missing = [i for i in range(1, n + 1) if i not in seen]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"part {missing[0]} of {n} is missing{more}; merge needs all parts")
