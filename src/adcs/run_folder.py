"""The run folder: written by every engine, read by every table and figure.

    runs/NAME/
      config.json          the schema version of the folder, the engine, its settings, versions of
                           packages, and the fingerprint of the data if the engine has the data
      records/TASK.jsonl   one JSON line for each evaluated round of each run, appended and flushed
      checkpoints/TASK     the state from which an engine resumes, replaced atomically
      selections/          the cohort of every round and, at evaluated rounds, why it was selected:
                           see `adcs.experiments.selections`; a federation's records hold both
      status.json          who is at work in the round of a federation that has begun
      figures/             figures, and the CSV files of what they show

A task is the work of one process. An engine may have several tasks, each with its own files, so
that processes never write to the same file. A record has at least `scheduler`, `seed` and
`server_round` (the number of rounds done); the other keys are the engine's. Numbers that JSON
cannot hold (NaN, infinities) are null. Client ids beyond 2^53 are strings, because other readers
would round them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy

import adcs
from adcs._serialization import pack, unpack

__all__ = ["SCHEMA_VERSION", "InUse", "Ledger", "Line", "RunFolder", "Writer"]

SCHEMA_VERSION = 1
"""The version of the folder's layout, of config.json and of the records. Readers refuse others."""

CHECKPOINT_FORMAT = 4
"""The version of what checkpoints hold; a run does not resume from another one."""

RESTART = "that part of the run then starts again from its first round"
REMEDY = f"delete it: {RESTART}"
"""What to do with a checkpoint that cannot be used."""

UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
"""Errors of reading values of another form than the one written."""

PARTS = ("records", "checkpoints", "selections", "figures")
"""The folders inside a run folder."""

PART = ".part"
"""The suffix of files that are being written."""


class InUse(OSError):
    """Another process is writing into the run folder.

    >>> raise InUse("runs/a is in use: another process is running it")
    Traceback (most recent call last):
    ...
    adcs.run_folder.InUse: runs/a is in use: another process is running it
    """


@dataclass
class Ledger:
    """What clients and network have spent for a run: its total costs.

    Attributes
    ----------
    updates
        Client updates computed, for probes and for training.
    extra_updates
        The updates among them that were not aggregated.
    loss_evaluations
        Losses computed for probes that ask for nothing else.
    bytes_up, bytes_down
        Traffic from and to the clients, without the overhead of the transport.
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
        """Create a run folder and write its config.

        Raises FileExistsError for a folder that holds a run or any other files.
        """
        folder = cls(Path(path))
        if folder.path.exists() and not folder.path.is_dir():
            raise FileExistsError(f"{path} is a file; choose a folder")
        if (folder.path / "config.json").exists():
            raise FileExistsError(
                f"{path} already holds a run; resume it, or choose another folder"
            )
        _check_parts(folder.path)
        parts = [folder.path / part for part in PARTS]
        empty = [part.name for part in parts if part.is_dir() and not any(part.iterdir())]
        # A process that was killed while it wrote the config has left the file that it wrote.
        left = [each.name for each in folder.path.glob(f".config.json.*{PART}")]
        refuse_foreign(folder.path, [*empty, *left])
        for each in parts:
            make_folder(each)
        described = {"schema_version": SCHEMA_VERSION, **plain(config), "versions": versions()}
        folder.write_config(described)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run folder; one of another schema version is refused."""
        folder = cls(Path(path))
        if not (folder.path / "config.json").is_file():
            raise FileNotFoundError(f"{path} is not a run folder: it has no config.json")
        _check_schema(folder.path, folder.config)
        _check_parts(folder.path)
        return folder

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        config: dict[str, Any] = read_json(self.path / "config.json", "start a new run")
        return config

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.json as a whole."""
        write_atomically(self.path / "config.json", (json.dumps(config, indent=2) + "\n").encode())

    @property
    def figures(self) -> Path:
        """The folder of figures; created if there is none."""
        target = self.path / "figures"
        _check_parts(self.path)
        make_folder(target)
        return target

    def writer(self, task: str, offset: int | None = None) -> Writer:
        """Return a writer of a task's records; the file is cut off at the offset, if given."""
        return Writer(self.path / "records" / f"{task}.jsonl", offset)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every record, task by task, without a last line that a crash cut short."""
        return (line.record for line in self.lines())

    def lines(self) -> Iterator[Line]:
        """Yield every record with its file and line; ValueError names an unreadable one."""
        for path in sorted((self.path / "records").glob("*.jsonl")):
            if not path.is_file():  # a named pipe would be waited for
                raise ValueError(f"{path} is not a regular file; remove it from the run folder")
            with path.open("rb") as lines:
                for number, text in enumerate(lines, start=1):
                    if text.endswith(b"\n"):
                        yield Line.read(path, number, text)

    def save_checkpoint(self, task: str, state: dict[str, Any]) -> None:
        """Replace a task's checkpoint, atomically."""
        self.write_checkpoint(task, pack_checkpoint(state))

    def write_checkpoint(self, task: str, data: bytes) -> None:
        """Replace a task's checkpoint by one of `pack_checkpoint`, atomically."""
        write_atomically(self.path / "checkpoints" / task, data)

    def read_checkpoint(self, task: str) -> bytes | None:
        """Return the content of a task's checkpoint, or None if it has none."""
        path = self.path / "checkpoints" / task
        return path.read_bytes() if path.is_file() else None

    def load_checkpoint(self, task: str) -> dict[str, Any] | None:
        """Return a task's checkpoint, or None if it has none."""
        path = self.path / "checkpoints" / task
        content = self.read_checkpoint(task)
        if content is None:
            return None
        try:
            state = unpack(content)
        except (ValueError, MemoryError) as error:
            raise ValueError(f"{path} is not a whole checkpoint; {REMEDY}") from error
        if state.get("format") != CHECKPOINT_FORMAT:
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
        """Turn errors of restoring a task's checkpoint into a ValueError that names the file."""
        try:
            yield
        except UNREADABLE as error:
            path = self.path / "checkpoints" / task
            raise ValueError(
                f"{path} does not fit the settings of the run ({_reason(error)}); {REMEDY}"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process; raise InUse if another process has it."""
        with (self.path / "config.json").open("r+b") as file:  # NFS locks files open for writing
            if not _try_lock(file):
                raise InUse(f"{self.path} is in use: another process is running it")
            _check_parts(self.path)
            for folder in (self.path, self.path / "checkpoints", self.path / "figures"):
                for part in folder.glob(f".*{PART}"):  # left by a killed process
                    part.unlink(missing_ok=True)
            yield


@dataclass(frozen=True)
class Line:
    """A record with its file and line.

    >>> Line(Path("run/records/seed0.jsonl"), 3, {}).broken("no server_round")
    ValueError('run/records/seed0.jsonl, line 3 is broken (no server_round); bring back the file as
    it was, or delete run/checkpoints/seed0 and resume: that part of the run then starts again from
    its first round')
    """

    path: Path
    number: int
    record: dict[str, Any]

    @classmethod
    def read(cls, path: Path, number: int, text: bytes) -> Line:
        """Parse a line; raise ValueError if it is not a record."""
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
        """Turn errors of reading the record into a ValueError that names file and line."""
        try:
            yield
        except UNREADABLE as error:
            raise self.broken(_reason(error)) from error

    def broken(self, why: str) -> ValueError:
        """Return the error to raise for an unusable line."""
        checkpoint = self.path.parent.parent / "checkpoints" / self.path.stem
        return ValueError(
            f"{self.path}, line {self.number} is broken ({why}); bring back the file as it was, "
            f"or delete {checkpoint} and resume: {RESTART}"
        )


class Writer:
    """Appends JSON lines to a file and flushes each; made by `RunFolder.writer`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as path:
    ...     folder = RunFolder.create(Path(path) / "run", {})
    ...     with folder.writer("seed0") as writer:
    ...         writer.append({"scheduler": "ADCS", "seed": 0, "server_round": 0, "worst": 0.5})
    ...     [record["worst"] for record in folder.records()]
    [0.5]
    """

    def __init__(self, path: Path, offset: int | None) -> None:
        _check_parts(path.parent.parent)
        make_folder(path.parent)
        self._file = open(path, "ab", opener=_unlinked)  # noqa: SIM115
        held = os.fstat(self._file.fileno())
        if not stat.S_ISREG(held.st_mode) or held.st_nlink > 1:
            self._file.close()
            raise ValueError(
                f"{path} is {'a hard link' if stat.S_ISREG(held.st_mode) else 'no regular file'}; "
                "records are written into a file of the run folder alone: replace it by a copy"
            )
        _lock(self._file)
        if offset is not None:
            self._file.truncate(offset)
            self._file.seek(offset)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, so that others may write it."""
        self._file.close()

    @property
    def offset(self) -> int:
        """The number of bytes written so far."""
        return self._file.tell()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        self.write(record_line(record))

    def write(self, lines: bytes) -> None:
        """Write lines of `record_line`."""
        self._file.write(lines)
        self._file.flush()


def record_line(record: Mapping[str, Any]) -> bytes:
    """Return the line of a record.

    >>> record_line({"scheduler": "Uniform", "worst": np.float32(0.5)})
    b'{"scheduler":"Uniform","worst":0.5}\\n'
    """
    return json.dumps(plain(record), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def pack_checkpoint(state: dict[str, Any]) -> bytes:
    """Return a state as the content of a checkpoint.

    >>> unpack(pack_checkpoint({"offset": 0}))["offset"]
    0
    """
    return pack({**state, "format": CHECKPOINT_FORMAT})


def _lock(file: BinaryIO) -> None:
    """Wait until no other process writes the file; a killed run's worker may for a moment."""
    for _ in range(100):
        if _try_lock(file):
            return
        time.sleep(0.1)
    raise InUse(f"{file.name} is being written by another process")


def _try_lock(file: BinaryIO) -> bool:
    """Lock a file until it is closed; return False if another process has it."""
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
    """Open a file; a symbolic link is not followed, a named pipe is not waited for.

    A new file is not writable by everybody, whatever the umask is.
    """
    for name in ("O_NOFOLLOW", "O_NONBLOCK"):  # not on Windows
        flags |= getattr(os, name, 0)
    return os.open(path, flags, 0o664)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, none of them writable by everybody, whatever the umask is.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "runs" / "a"
    >>> make_folder(path)
    >>> path.is_dir()
    True
    """
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(mode=0o775, exist_ok=True)
    path.mkdir(mode=0o775, exist_ok=True)  # raises if it is no folder


def _check_parts(path: Path) -> None:
    """Refuse a run folder whose subfolders are links or files: writing would leave the folder."""
    for name in PARTS:
        part = path / name
        if part.is_symlink() or (part.exists() and not part.is_dir()):
            kind = "a symbolic link" if part.is_symlink() else "a file"
            raise ValueError(
                f"{part} is {kind}; {name} must be a folder inside the run folder: put one there"
            )


def _reason(error: Exception) -> str:
    """Return an error as text; a ValueError needs no type name."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _check_schema(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder of another schema version, or of none."""
    version = config.get("schema_version")
    if version == SCHEMA_VERSION and type(version) is int:
        return
    older = version is None or (isinstance(version, int) and version < SCHEMA_VERSION)
    which = "no schema_version" if version is None else f"schema_version {version!r}"
    raise ValueError(
        f"{path} was written by {'an older' if older else 'a newer'} version of adcs: its "
        f"config.json has {which}, this version reads {SCHEMA_VERSION}; read it with the version "
        "that wrote it, or start a new run"
    )


def refuse_foreign(path: Path, ours: Collection[str]) -> None:
    """Raise FileExistsError if a folder holds anything but entries of these names.

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
    """Return a value as JSON values: arrays as lists, NaN and infinities as null.

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
    """Return the object of a JSON file; `otherwise` ends the error if the file has none.

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
    """Return a SHA-256 over the types, shapes and bytes of arrays.

    >>> fingerprint(np.zeros((2, 3)))[:8], fingerprint(np.zeros((3, 2)))[:8]
    ('a96d0007', '1db0460f')
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on.

    >>> sorted(versions())
    ['adcs', 'numpy', 'python', 'scipy']
    """
    return {
        "adcs": adcs.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a crash leaves the old content or the new one.

    The content is first written to a new file with a random name, so that no existing file or
    symbolic link is written to.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> write_atomically(path, b"new")
    >>> path.read_bytes()
    b'new'
    """
    make_folder(path.parent)
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
