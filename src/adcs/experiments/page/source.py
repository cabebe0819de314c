"""Reads a run folder again and again: each time only the lines that are new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adcs.experiments.selections import FOLDER, cosines_of
from adcs.run_folder import Line, RunFolder
from adcs.schedulers.choice import pack_cosines

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
    """Return a record without its largest lists; inner products become packed cosines.

    >>> light({"worst": 0.5, "gram": [4.0, 3.0, 9.0], "cohort_weights": [0.0, 0.5]})
    {'worst': 0.5, 'cosines': 'QA==', 'selected': [1]}
    """
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
    """The records and selections of a run folder, kept current.

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

    def read(self) -> bool:
        """Read what is new; return whether anything is."""
        changed = False
        for part in ("records", FOLDER):
            for path in sorted((self.folder.path / part).glob("*.jsonl")):
                if path not in self._tails and path.is_file():
                    self._tails[path] = LineTail(path)
        for tail in self._tails.values():
            changed |= tail.read()
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

    @property
    def status(self) -> Mapping[str, Any]:
        """What a federation does at the moment; empty if it does not say."""
        try:
            found = json.loads((self.folder.path / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
