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
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import scipy

import adcs
from adcs._serialization import pack, unpack

FORMAT = 2
"""What checkpoints hold changes with this number; those of another one are not gone on with."""

RESTART = "that part of the run then starts again from its first round"
REMEDY = f"delete it: {RESTART}"
"""What helps against a checkpoint that cannot be used."""

UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
"""Errors of reading what is not of the form that was written."""

PARTS = ("records", "checkpoints", "figures")
"""The folders inside a run folder."""


PART = ".part"
"""How the names of files end that are being written."""


class InUse(OSError):
    """Another process is writing into the run folder."""


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
        """Make a new run folder and write its config.

        An existing run is never overwritten, and a folder that holds anything else is refused.
        """
        folder = cls(Path(path))
        if (folder.path / "config.json").exists():
            raise FileExistsError(
                f"{path} already holds a run; resume it, or choose another folder"
            )
        parts = [folder.path / part for part in PARTS]
        empty = [part.name for part in parts if part.is_dir() and not any(part.iterdir())]
        refuse_foreign(folder.path, empty)
        for part in PARTS:
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
        return (line.record for line in self.lines())

    def lines(self) -> Iterator[Line]:
        """Yield every record with its place; one that cannot be read is named in a ValueError."""
        for path in sorted((self.path / "records").glob("*.jsonl")):
            with path.open("rb") as lines:
                for number, text in enumerate(lines, start=1):
                    if text.endswith(b"\n"):
                        yield Line.read(path, number, text)

    def save_checkpoint(self, task: str, state: dict[str, Any]) -> None:
        """Replace a task's checkpoint, atomically."""
        write_atomically(self.path / "checkpoints" / task, pack({**state, "format": FORMAT}))

    def load_checkpoint(self, task: str) -> dict[str, Any] | None:
        """Return a task's checkpoint, or None if it has none."""
        path = self.path / "checkpoints" / task
        if not path.is_file():
            return None
        try:
            state = unpack(path.read_bytes())
        except (ValueError, MemoryError) as error:
            raise ValueError(f"{path} is not a whole checkpoint; {REMEDY}") from error
        if state.get("format") != FORMAT:
            raise ValueError(f"{path} was written by another version of adcs; {REMEDY}")
        offset, records = state.get("offset"), self.path / "records" / f"{task}.jsonl"
        held = records.stat().st_size if records.exists() else 0
        if isinstance(offset, int) and held < offset:
            raise ValueError(
                f"{records} has {held} bytes and had {offset} at its last checkpoint, {path}; "
                f"bring back the file as it was, or delete the checkpoint: {RESTART}"
            )
        return state

    @contextmanager
    def restoring(self, task: str) -> Iterator[None]:
        """Turn whatever goes wrong with a task's checkpoint inside into a sentence about it."""
        try:
            yield
        except UNREADABLE as error:
            path = self.path / "checkpoints" / task
            raise ValueError(
                f"{path} does not fit the settings of the run ({_reason(error)}); {REMEDY}"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running what this folder holds; InUse if one does."""
        with (self.path / "config.json").open("r+b") as file:  # NFS locks what may be written
            if not _try_lock(file):
                raise InUse(f"{self.path} is in use: another process is running it")
            for folder in (self.path, self.path / "checkpoints"):
                for part in folder.glob(f".*{PART}"):  # of a process that was killed
                    part.unlink(missing_ok=True)
            yield


class Line(NamedTuple):
    """A record and its place: a line of a file.

    >>> Line(Path("run/records/seed0.jsonl"), 3, {}).broken("no server_round")
    ValueError('run/records/seed0.jsonl, line 3 is broken (no round); bring back the file as it
    was, or delete run/checkpoints/seed0 and resume: that part of the run then starts again from
    its first round')
    """

    path: Path
    number: int
    record: dict[str, Any]

    @classmethod
    def read(cls, path: Path, number: int, text: bytes) -> Line:
        """Return the record that a line holds, with the keys that every record has."""
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise cls(path, number, {}).broken(_reason(error)) from error
        line = cls(path, number, record)
        if not isinstance(record, dict):
            raise line.broken("it holds no JSON object")
        for key, kind in (("scheduler", str), ("seed", int), ("server_round", int)):
            if type(record.get(key)) is not kind:
                raise line.broken(f"its {key} is {record.get(key)!r}")
        return line

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn whatever goes wrong with the record inside into a sentence about its line."""
        try:
            yield
        except UNREADABLE as error:
            raise self.broken(_reason(error)) from error

    def broken(self, why: str) -> ValueError:
        """Return the error that says that the line cannot be used, and why."""
        checkpoint = self.path.parent.parent / "checkpoints" / self.path.stem
        return ValueError(
            f"{self.path}, line {self.number} is broken ({why}); bring back the file as it was, "
            f"or delete {checkpoint} and resume: {RESTART}"
        )


class Writer:
    """Appends JSON lines to a file and flushes each."""

    def __init__(self, path: Path, offset: int | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab", opener=_unlinked)  # noqa: SIM115
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
    for _ in range(100):
        if _try_lock(file):
            return
        time.sleep(0.1)
    raise InUse(f"{file.name} is being written by another process")


def _try_lock(file: BinaryIO) -> bool:
    """Lock a file until it is closed; return whether nobody else has it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlinked(path: str, flags: int) -> int:
    """Open a file, but never through a symbolic link in its place."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _reason(error: Exception) -> str:
    """Return an error in words; those that were written to be read need no name."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def refuse_foreign(path: Path, ours: Collection[str]) -> None:
    """Refuse a folder that holds anything but folders and files of these names.

    >>> refuse_foreign(Path("no/such/folder"), ())
    >>> refuse_foreign(Path("."), ())
    Traceback (most recent call last):
    ...
    FileExistsError: . is not empty and holds no run; choose another folder
    """
    if path.is_dir() and any(entry.name not in ours for entry in path.iterdir()):
        raise FileExistsError(f"{path} is not empty and holds no run; choose another folder")


def next_folder(base: Path, name: str) -> Path:
    """Return the first of name-1, name-2, ... that does not exist under base.

    >>> next_folder(Path("nowhere"), "compare").name
    'compare-1'
    """
    count = 1
    while (base / f"{name}-{count}").exists():
        count += 1
    return base / f"{name}-{count}"


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
    except (ValueError, RecursionError) as error:
        found, why = None, _reason(error)
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
    return {
        "adcs": adcs.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part.

    The part is a new file of a name that nobody can guess: nothing that lies in the folder, such
    as a symbolic link, is written through.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        with open(part, "xb", opener=_unlinked) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
