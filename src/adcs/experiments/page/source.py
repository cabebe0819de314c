"""Reads a run folder again and again: each time only the lines that are new."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adcs.experiments.selections import (
    FOLDER,
    CohortLayout,
    cosines_of,
    read_cohorts,
    selection_paths,
)
from adcs.run_folder import Line, RunFolder
from adcs.schedulers.choice import pack_cosines

Made = TypeVar("Made")

LEFT_OUT = ("gram", "batch_losses", "cohort_weights")
"""Fields of records that the page does not show as they are."""


class LineTail:
    """The whole lines of a file that grows; read from the start if it was cut or replaced.

    A resumed run cuts off lines that follow its checkpoint and writes them again. The last line
    read is compared each time, so that other lines in its place are seen.

    Parameters
    ----------
    path
        The file; it may not exist yet.

    Attributes
    ----------
    lines
        What has been read.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> tail = LineTail(path)
    >>> line = b'{"scheduler":"U","seed":0,"server_round":5}\\n'
    >>> tail.read(), path.write_bytes(line + b'{"sched')
    (False, 51)
    >>> tail.read(), tail.lines[0]["server_round"], len(tail.lines), tail.read()
    (True, 5, 1, False)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self._end = 0
        self._last = b""

    def read(self) -> bool:
        """Read new lines; return whether there are any, or whether earlier ones were replaced."""
        try:
            size = self.path.stat().st_size
            if size == self._end and not self._replaced():
                return False
            changed = False
            if size < self._end or self._replaced():
                self.lines, self._end, self._last = [], 0, b""
                changed = True
            with self.path.open("rb") as file:
                file.seek(self._end)
                data = file.read()
        except FileNotFoundError:
            if not self.lines:
                return False
            self.lines, self._end, self._last = [], 0, b""
            return True
        whole = data[: data.rfind(b"\n") + 1]
        for text in whole.splitlines(keepends=True):
            self.lines.append(light(self._parsed(text)))
            self._last = text
        self._end += len(whole)
        return changed or bool(whole)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        return Line.read(self.path, len(self.lines) + 1, text).record

    def _replaced(self) -> bool:
        if not self._last:
            return False
        with self.path.open("rb") as file:
            file.seek(self._end - len(self._last))
            return file.read(len(self._last)) != self._last


def light(record: dict[str, Any]) -> dict[str, Any]:
    """Return a line without its largest lists: coordinates as an array, inner products as cosines.

    >>> light({"worst": 0.5, "gram": [4.0, 3.0, 9.0], "cohort_weights": [0.0, 0.5]})
    {'worst': 0.5, 'cosines': 'QA==', 'selected': [1]}
    >>> light({"plane": [[1.0, 0.0]]})["plane"]
    array([[1., 0.]])
    """
    if "plane" in record:
        with suppress(ValueError, TypeError):  # A broken line is named where it is shown.
            record["plane"] = np.array(record["plane"], dtype=np.float64)
    if "gram" not in record:
        return record
    found = {key: value for key, value in record.items() if key not in LEFT_OUT}
    upper = np.array(record["gram"], dtype=np.float64)
    n = int((np.sqrt(8 * upper.size + 1) - 1) / 2)
    gram = np.zeros((n, n))
    gram[np.triu_indices(n)] = upper
    gram = gram + np.triu(gram, 1).T
    found["cosines"] = pack_cosines(cosines_of(gram))
    found["selected"] = [i for i, w in enumerate(record["cohort_weights"]) if w]
    return found


class RunSource:
    """The records and selections of a run folder, kept current. One thread at a time may use it.

    Parameters
    ----------
    folder
        The run folder.

    Attributes
    ----------
    config
        The content of config.json.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.config = folder.config
        self._tails: dict[Path, LineTail] = {}
        self._cohorts: dict[str, list[list[NDArray[np.intp]]]] = {}
        self._made: dict[int, tuple[tuple[Any, ...], Hashable, Any]] = {}

    def read(self) -> bool:
        """Read what is new; return whether anything is."""
        changed = False
        for part in ("records", FOLDER):
            for path in sorted((self.folder.path / part).glob("*.jsonl")):
                if path not in self._tails and path.is_file():
                    self._tails[path] = LineTail(path)
        for tail in self._tails.values():
            before = tail.lines
            try:
                changed |= tail.read()
            finally:
                if tail.lines is not before:  # Read from the start: nothing made of them is kept.
                    self._made.clear()
        return changed

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records, task by task."""
        return self._of("records")

    @property
    def selections(self) -> list[dict[str, Any]]:
        """The lines about selections, task by task."""
        return self._of(FOLDER)

    def _of(self, part: str) -> list[dict[str, Any]]:
        found = []
        for path, tail in sorted(self._tails.items()):
            if path.parent.name == part:
                found += tail.lines
        return found

    def once(self, lines: tuple[Any, ...], given: Hashable, make: Callable[[], Made]) -> Made:
        """Return what is made of some lines: at the first call, or when anything has changed.

        A live page is made again and again, and most of its lines are those of the time before.
        Lines are the objects in `records` and `selections`, or None, and are never changed.

        Parameters
        ----------
        lines
            A record, and other lines that belong to it. There is one result for a record.
        given
            What the result depends on besides.
        make
            Makes the result.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as path:
        ...     source = RunSource(RunFolder.create(Path(path) / "run", {}))
        >>> line, made = {"server_round": 5}, lambda: [line["server_round"]]
        >>> source.once((line,), 3, made) is source.once((line,), 3, made)
        True
        """
        key = id(lines[0])  # The record is held as well, so that no other line gets this id.
        held = self._made.get(key)
        if held is None or held[1] != given or any(map(operator.is_not, held[0], lines)):
            held = self._made[key] = (lines, given, make())
        found: Made = held[2]
        return found

    def cohorts(self, task: str, layout: CohortLayout) -> list[list[NDArray[np.intp]]]:
        """Return the cohorts of a task's runs, [] for each where there are none.

        Only those of new rounds are read: a resumed run writes the ones that it has cut off again.

        Parameters
        ----------
        task
            The name of the task.
        layout
            The layout of its cohorts.
        """
        path, _ = selection_paths(self.folder, task)
        done = path.stat().st_size // layout.stride if path.is_file() else 0
        held = self._cohorts.setdefault(task, [[] for _ in range(layout.runs)])
        new = read_cohorts(self.folder, task, layout, first=len(held[0]))
        for cohorts, more in zip(held, new, strict=True):
            cohorts += more
            del cohorts[done:]
        return held

    @property
    def status(self) -> Mapping[str, Any]:
        """What a federation does at the moment; empty if it does not say."""
        try:
            found = json.loads((self.folder.path / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
