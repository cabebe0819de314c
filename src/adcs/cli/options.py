"""Settings as they are written on the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adcs._validation import near_by
from adcs.experiments.config import from_toml, underscored
from adcs.experiments.specs import split
from adcs.run_folder import RunFolder


def pairs(text: str, option: str) -> dict[str, Any]:
    """Return the settings in a text such as "availability=0.8,deadline=30".

    >>> pairs("alpha=0.1, sizes=skewed", "--partition-settings")
    {'alpha': 0.1, 'sizes': 'skewed'}
    """
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"{option} must look like name=value,name=value; got {text!r}")
        found[key.strip().replace("-", "_")] = _literal(value.strip())
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def schedulers(specs: Sequence[str]) -> dict[str, str]:
    """Return labels and specs; a spec without a label is its own.

    >>> schedulers(["Uniform", "greedy=ADCS(theta=0.5)", "ADCS(theta=0.2)"])
    {'Uniform': 'Uniform', 'greedy': 'ADCS(theta=0.5)', 'ADCS(theta=0.2)': 'ADCS(theta=0.2)'}
    """
    found: dict[str, str] = {}
    for text in specs:
        match = re.fullmatch(r"\s*([^=()]+?)\s*=\s*(.+)", text, flags=re.DOTALL)
        label, spec = match.groups() if match else (text.strip(), text.strip())
        if label in found:
            raise ValueError(f"schedulers must have distinct labels, got {label!r} twice")
        file, call = split(spec)
        # A file of one's own must be found again by a resume from elsewhere.
        found[label] = f"{Path(file).resolve()}:{call}" if file.endswith(".py") else spec
    return found


def sizes(text: str) -> list[int]:
    """Return the sizes in a text such as "64,32"; an empty text is none.

    >>> sizes("64,32"), sizes("")
    ([64, 32], [])
    """
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"--hidden must look like 64,32; got {text!r}") from None


def absolute(data: str) -> str:
    """Return the name of a data set, or the full path of a file: a resume may be elsewhere.

    >>> absolute("digits"), Path(absolute("mine.npz")).is_absolute()
    ('digits', True)
    """
    return str(Path(data).resolve()) if Path(data).suffix == ".npz" else data


def open_run(path: Path) -> RunFolder:
    """Open a run folder; where there is no folder, say which one may have been meant.

    >>> open_run(Path("runs/none"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: runs/none is not a run folder: there is no such folder
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not a run folder: there is no such folder{near_by(path)}"
        )
    return RunFolder.open(path)


def check_folder(data: str, folder: str | Path | None, option: str = "--data-folder") -> None:
    """Refuse a folder to look for files in where the data has none to look for.

    >>> check_folder("fashion-mnist", "images")
    >>> check_folder("digits", "images")
    Traceback (most recent call last):
    ...
    ValueError: --data-folder is where Fashion-MNIST's files are; digits is not looked for there
    """
    if folder is not None and data != "fashion-mnist":
        raise ValueError(
            f"{option} is where Fashion-MNIST's files are; {data} is not looked for there"
        )


def merged(config: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a TOML file with those given on the command line put over them.

    Single settings of the network are put over the file's. So are those of the partition, unless
    another kind of partition is given: then the file's no longer apply.

    >>> merged(None, {"rounds": 10})
    {'rounds': 10}
    """
    values = underscored(from_toml(config)) if config is not None else {}
    if config is not None and isinstance(values.get("data"), str):
        values["data"] = _beside(config, values["data"])
    if "partition" in given:
        values.pop("partition_settings", None)
    for key, value in given.items():
        held = values.get(key)
        if key in ("network", "partition_settings") and isinstance(held, Mapping):
            value = {**held, **value}
        values[key] = value
    return values


def _beside(config: Path, data: str) -> str:
    """Return a file named in a config as seen from the config's folder, where there is one."""
    path = config.parent / data
    return str(path.resolve()) if path.suffix == ".npz" and path.exists() else absolute(data)
