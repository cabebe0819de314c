"""The run folder: written by every engine, read by every table and plot.

    runs/NAME/
      config.json          the resolved config, the engine's name, versions, and where the engine
                           has the data at hand its fingerprint
      records/TASK.jsonl   one JSON line for each evaluated round of each run, appended and flushed
      checkpoints/TASK     what an engine needs to go on from, replaced atomically
      figures/             what was drawn, and the CSV of what is drawn

A task is what one process works on: one engine may have several, each with files of its own, so
that processes never write into one another's lines. A record has at least `scheduler`, `seed` and
`server_round` (the number of rounds done); every other key is the engine's. Numbers that
JSON cannot hold (NaN, infinities) are null. Client ids beyond 2^53 are strings: other
readers would round them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy

from adcs._serialization import pack, unpack

FORMAT = 2
"""What checkpoints hold changes with this number; those of another one are not gone on with."""


@dataclass
class Ledger:
    """What clients and network have spent for a run; every engine keeps one.

    Attributes
    ----------
    updates
        Client updates computed, for probes and for training.
    extra_updates
        Those of them that were not trained on.
    loss_evaluations
        Losses computed for their own sake.
    bytes_up, bytes_down
        Traffic from and to the clients, without what transport adds.
    seconds
        Time for probes and training.

    Examples
    --------
    >>> Ledger(updates=18).as_dict()["updates"]
    18
    """

    updates: int = 0
    extra_updates: int = 0
    loss_evaluations: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the entries by name."""
        return asdict(self)


class RunFolder:
    """A folder of results.

    Examples
    --------
    >>> import tempfile
    >>> folder = RunFolder.create(Path(tempfile.mkdtemp()) / "demo", {"engine": "example"})
    >>> with folder.writer("seed0") as lines:
    ...     lines.append({"scheduler": "Uniform", "seed": 0, "server_round": 0, "worst": 0.1})
    >>> next(folder.records())["worst"]
    0.1
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any]) -> RunFolder:
        """Make a new run folder and write its config; an existing run is never overwritten."""
        folder = cls(Path(path))
        if (folder.path / "config.json").exists():
            raise FileExistsError(
                f"{path} already holds a run; resume it, or choose another folder"
            )
        for part in ("records", "checkpoints", "figures"):
            (folder.path / part).mkdir(parents=True, exist_ok=True)
        write_atomically(
            folder.path / "config.json",
            (json.dumps({**plain(config), "versions": versions()}, indent=2) + "\n").encode(),
        )
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run folder."""
        folder = cls(Path(path))
        if not (folder.path / "config.json").is_file():
            raise FileNotFoundError(f"{path} is not a run folder: it has no config.json")
        return folder

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config."""
        config: dict[str, Any] = read_json(self.path / "config.json", "start a new run")
        return config

    @property
    def figures(self) -> Path:
        """Where figures go."""
        target = self.path / "figures"
        target.mkdir(exist_ok=True)
        return target

    def writer(self, task: str, offset: int | None = None) -> Writer:
        """Return a writer of a task's lines; with an offset, what lies beyond it is cut off."""
        return Writer(self.path / "records" / f"{task}.jsonl", offset)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every record, task by task; a last line cut short by a crash is left out."""
        for path in sorted((self.path / "records").glob("*.jsonl")):
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        yield json.loads(line)

    def save_checkpoint(self, task: str, state: dict[str, Any]) -> None:
        """Replace a task's checkpoint, atomically."""
        write_atomically(self.path / "checkpoints" / task, pack({**state, "format": FORMAT}))

    def load_checkpoint(self, task: str) -> dict[str, Any] | None:
        """Return a task's checkpoint, or None if it has none."""
        path = self.path / "checkpoints" / task
        if not path.is_file():
            return None
        remedy = "delete it, and that part of the run starts again from its first round"
        try:
            state = unpack(path.read_bytes())
            written = state.get("format")
        except (ValueError, EOFError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a whole checkpoint; {remedy}") from error
        if written != FORMAT:
            raise ValueError(f"{path} was written by another version of adcs; {remedy}")
        return state


class Writer:
    """Appends JSON lines to a file and flushes each."""

    def __init__(self, path: Path, offset: int | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        _lock(self._file)
        if offset is not None:
            self._file.truncate(offset)
            self._file.seek(offset)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def offset(self) -> int:
        """The number of bytes written so far."""
        return self._file.tell()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        line = json.dumps(plain(record), allow_nan=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()


def _lock(file: BinaryIO) -> None:
    """Wait until no other process writes the file, which a killed run's worker may for a moment."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    for _ in range(100):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.1)
    raise OSError(f"{file.name} is being written by another process")


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: arrays as lists, NaN and infinities as null.

    >>> plain({"a": np.array([1.5, np.nan]), "client": 2**60})
    {'a': [1.5, None], 'client': '1152921504606846976'}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def read_json(path: Path, otherwise: str) -> dict[str, Any]:
    """Return the object that a JSON file holds; `otherwise` says what to do if it holds none.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.json"
    >>> path.write_text('{"m": 3}')
    8
    >>> read_json(path, "start a new run")
    {'m': 3}
    """
    why = "it holds no JSON object"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        found, why = None, str(error)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is broken ({why}); bring back the file as it was, or {otherwise}")
    return found


def fingerprint(*arrays: np.ndarray[Any, Any]) -> str:
    """Return a SHA-256 over the types, shapes and bytes of arrays: equal for equal data alone.

    >>> fingerprint(np.zeros((2, 3)))[:8], fingerprint(np.zeros((3, 2)))[:8]
    ('a96d0007', '1db0460f')
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    from importlib.metadata import version

    return {
        "adcs": version("adcs"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
