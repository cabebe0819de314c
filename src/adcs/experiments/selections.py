"""Recorded selections: the cohort of every round, and why it was selected at evaluated rounds.

    selections/TASK.cohorts   the cohorts of the task's runs, round by round
    selections/TASK.jsonl     one line for each evaluated round of each run: the cohort in the order
                              of its picks, the `Choice` with a reason for each client left out,
                              and where the clients' updates lie relative to each other

A round takes the same number of bytes in every round of a task (`CohortLayout`), so that round r
starts at r times that number. A resumed task cuts off both files at the round of its checkpoint.
The files follow from the config alone, as the records do. Records do not change with them, and
runs without these files, such as those of earlier versions, are read as before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId, Float64Array
from adcs.observers import EvaluationEvent, Observer, SelectionEvent
from adcs.run_folder import RunFolder, Writer, record_line
from adcs.schedulers.base import Cohort
from adcs.schedulers.choice import (
    Choice,
    as_record,
    explain_choice,
    from_record,
    pack_cosines,
)
from adcs.simulation.engine import GRAM_LIMIT, PER_CLIENT_LIMIT

FOLDER = "selections"
"""The folder of these files in a run folder."""

KERNEL_CLIENTS = 200
"""Cosines are recorded of at most this many clients."""

KERNEL_TIMES = 50
"""Cosines are recorded at about this many evaluated rounds of a run."""

DIGITS = 8
"""Significant digits of the numbers of a recorded choice."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CohortLayout:
    """How the cohorts of one round are laid out in bytes: bits, or numbers where they are shorter.

    Attributes
    ----------
    runs
        The number of runs, which follow each other within a round.
    clients, m
        The number of clients, and of slots of the largest cohort.

    Examples
    --------
    >>> layout = CohortLayout(runs=1, clients=10, m=4)
    >>> layout.stride
    2
    >>> cohorts = layout.unpack(layout.pack([[(7, 2), (1,)]]))
    >>> [cohort.tolist() for cohort in cohorts[0]]
    [[2, 7], [1]]
    """

    runs: int
    clients: int
    m: int

    @property
    def _bitmap(self) -> int:
        return -(-self.clients // 8)

    @property
    def _number(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.clients < 2**16 else "<u4")

    @property
    def _bits(self) -> bool:
        return self._bitmap <= self.m * self._number.itemsize

    @property
    def stride(self) -> int:
        """The number of bytes of one round."""
        each = self._bitmap if self._bits else self.m * self._number.itemsize
        return self.runs * each

    def pack(self, cohorts: Sequence[Sequence[Sequence[ClientId]]]) -> bytes:
        """Return cohorts, for each run a list over rounds, as bytes."""
        rounds = len(cohorts[0]) if cohorts else 0
        if rounds == 0:
            return b""
        parts = []
        for run in cohorts:
            sizes = np.array([len(cohort) for cohort in run], dtype=np.intp)
            if not self._bits and sizes.max() > self.m:
                raise ValueError(
                    f"the run's files have room for {self.m} clients of a cohort, got "
                    f"{sizes.max()}: an earlier version began the run; start a new one"
                )
            flat = np.fromiter(chain.from_iterable(run), dtype=np.int64, count=int(sizes.sum()))
            rows = np.repeat(np.arange(rounds), sizes)
            if self._bits:
                held = np.zeros((rounds, self.clients), dtype=bool)
                held[rows, flat] = True
                parts.append(np.packbits(held, axis=1))
            else:
                slots = np.arange(flat.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
                table = np.full((rounds, self.m), np.iinfo(self._number).max, dtype=self._number)
                table[rows, slots] = flat
                parts.append(table.view(np.uint8).reshape(rounds, -1))
        return np.stack(parts, axis=1).tobytes()

    def unpack(self, data: bytes) -> list[list[NDArray[np.intp]]]:
        """Return the sorted clients of each cohort: for each run a list over rounds."""
        rounds = len(data) // self.stride
        table = np.frombuffer(data, dtype=np.uint8, count=rounds * self.stride)
        table = table.reshape(rounds, self.runs, self.stride // self.runs)
        if self._bits:
            held = np.unpackbits(table, axis=2, count=self.clients)
            return [[np.flatnonzero(row) for row in held[:, i]] for i in range(self.runs)]
        numbers = np.sort(np.ascontiguousarray(table).view(self._number), axis=2)
        found = []
        for i in range(self.runs):  # An empty slot holds the largest number: it is at the end.
            taken = numbers[:, i] < self.clients
            ends = np.cumsum(taken.sum(axis=1))
            found.append(np.split(numbers[:, i][taken].astype(np.intp), ends[:-1])[:rounds])
        return found


class SelectionLines(Observer):
    """Collects the cohorts of a task's runs, and the lines of evaluated rounds.

    Parameters
    ----------
    layout
        The layout of cohorts.
    labels
        The runs, in their order.
    rounds, eval_every
        The number of rounds, and of rounds between evaluations.
    """

    def __init__(
        self, layout: CohortLayout, labels: Sequence[str], rounds: int, eval_every: int
    ) -> None:
        self._layout = layout
        self._cohorts: dict[str, list[tuple[ClientId, ...]]] = {label: [] for label in labels}
        self._eval_every = eval_every
        evaluations = -(-rounds // eval_every)
        self._kernel_every = eval_every * max(1, -(-evaluations // KERNEL_TIMES))
        self._selected: dict[str, dict[str, Any]] = {}
        self._lines: list[bytes] = []
        self._unexplained: set[str] = set()

    def on_selection(self, event: SelectionEvent) -> None:
        """Keep the cohort and, if the round is evaluated, why it was selected."""
        self._cohorts[event.run].append(event.cohort.clients)
        if event.server_round % self._eval_every == 0:
            self._selected[event.run] = self._describe(event)

    def _describe(self, event: SelectionEvent) -> dict[str, Any]:
        cohort = event.cohort
        line: dict[str, Any] = {
            "scheduler": event.run,
            "seed": event.seed,
            "server_round": event.server_round,
            "chosen": cohort.clients,
            "weights": rounded(cohort.weights),
            "normalise": cohort.normalise,
            "diagnostics": rounded(cohort.diagnostics),
        }
        if event.backing_off:
            line["backing_off"] = event.backing_off
        if event.pending:
            line["pending"] = event.pending
        if len(event.available) > PER_CLIENT_LIMIT:
            return line
        try:
            choice = explain_choice(event.scheduler, event.available, cohort)
            line["choice"] = compact(as_record(choice), self._layout.clients)
        except Exception as error:  # A custom scheduler; the run continues without it.
            if event.run not in self._unexplained:
                self._unexplained.add(event.run)
                log.warning("the selections of %s have no explanation: %s", event.run, error)
        return line

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Make the line of an evaluated round; the last evaluation has no selection."""
        line = self._selected.pop(event.run, None)
        if line is None:
            return
        if event.gram is not None and len(event.gram) > GRAM_LIMIT:  # else it is in the record
            cosines = cosines_of(event.gram)
            line["plane"] = rounded(plane(cosines).tolist(), 3)
            if event.server_round % self._kernel_every == 0:
                line["cosines"] = pack_cosines(cosines[np.ix_(*[sample(len(cosines))] * 2)])
        self._lines.append(record_line(line))

    def take(self, rounds: int) -> tuple[bytes, bytes]:
        """Return the cohorts of so many rounds, those done since the last call, and new lines."""
        cohorts = self._layout.pack([held[:rounds] for held in self._cohorts.values()])
        lines, self._lines = b"".join(self._lines), []
        for held in self._cohorts.values():
            del held[:rounds]
        return cohorts, lines


class SelectionWriter:
    """Writes the files of a task; what is beyond its first round is cut off.

    Parameters
    ----------
    folder, task
        The run folder and the name of the task.
    layout
        The layout of cohorts.
    server_round
        The round from which the task is resumed.
    """

    def __init__(
        self, folder: RunFolder, task: str, layout: CohortLayout, server_round: int
    ) -> None:
        cohorts, lines = selection_paths(folder, task)
        self._cohorts = Writer(cohorts, server_round * layout.stride)
        self._lines = Writer(lines, _end_before(lines, server_round))

    def write(self, cohorts: bytes, lines: bytes) -> None:
        """Append cohorts and lines."""
        self._cohorts.write(cohorts)
        self._lines.write(lines)

    def close(self) -> None:
        """Close the files."""
        self._cohorts.close()
        self._lines.close()


def selection_paths(folder: RunFolder, task: str) -> tuple[Path, Path]:
    """Return the files of a task: its cohorts, and its lines of evaluated rounds."""
    base = folder.path / FOLDER
    return base / f"{task}.cohorts", base / f"{task}.jsonl"


def _end_before(path: Path, server_round: int) -> int:
    """Return where the lines of earlier rounds end."""
    end = 0
    if path.is_file():
        with path.open("rb") as lines:
            for text in lines:
                try:
                    if not text.endswith(b"\n") or json.loads(text)["server_round"] >= server_round:
                        break
                except (ValueError, LookupError, TypeError):
                    break
                end += len(text)
    return end


def read_cohorts(
    folder: RunFolder, task: str, layout: CohortLayout, first: int = 0
) -> list[list[NDArray[np.intp]]]:
    """Return the cohorts of a task's runs from a round on, [] for each where there are none.

    Rounds of a run that an earlier version began have empty cohorts.
    """
    path, _ = selection_paths(folder, task)
    if not path.is_file():
        return [[] for _ in range(layout.runs)]
    with path.open("rb") as file:
        file.seek(first * layout.stride)
        return layout.unpack(file.read())


def selection_lines(folder: RunFolder, task: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a task's evaluated rounds; ValueError names an unreadable one."""
    _, path = selection_paths(folder, task)
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.endswith(b"\n"):
                return
            with named_if_broken(path, number):
                line = json.loads(text)
                if type(line["server_round"]) is not int or type(line["scheduler"]) is not str:
                    raise ValueError("it names no round and scheduler")
            yield line


@contextmanager
def named_if_broken(path: Path, line: Mapping[str, Any] | int) -> Iterator[None]:
    """Turn errors in reading a line into a ValueError that names the file and the line.

    Parameters
    ----------
    path
        The file.
    line
        The line, or its number if it cannot be read at all.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        where = f"line {line}"
        if not isinstance(line, int):
            where = f"round {line['server_round']} of {line['scheduler']}"
        raise ValueError(
            f"{path}, {where} is broken ({error}); bring back the file as it was, or delete it: "
            "results are not lost, selections are then not shown"
        ) from error


def choice_of(line: Mapping[str, Any], clients: int) -> Choice | None:
    """Return the choice of a line, None if it has none.

    Parameters
    ----------
    line
        A line of `selection_lines`.
    clients
        The number of clients of the run.
    """
    if "choice" not in line:
        return None
    cohort = Cohort(
        tuple(line["chosen"]), tuple(line["weights"]), line["normalise"], line["diagnostics"]
    )
    return from_record(expanded(line["choice"], clients), cohort)


COLUMNS = ("picks", "left_out")
"""The entries of a choice that are lists of rows."""

SCORES = ("score", "winning")
"""The fields of their rows that have parts."""


def compact(record: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """Return the record of a choice with columns for rows, and without lists of all clients.

    >>> compact({"available": [0, 1, 2], "known": [0, 2], "theta": 0.123456789}, clients=3)
    {'known': [0, 2], 'theta': 0.12345679}
    """
    found = {key: value for key, value in record.items() if key not in COLUMNS}
    everyone = list(range(clients))
    for key in ("available", "known"):
        if found.get(key) == everyone:
            del found[key]
            found |= {"known": "all"} if key == "known" else {}
    for name in COLUMNS:
        rows = [_flat(row) for row in record.get(name, ())]
        if name in record:
            found[name] = {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
    return dict(rounded(found))


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in row.items() if key not in SCORES}
    for name in SCORES:
        for part, value in row.get(name, {}).items():
            flat[f"{name}_{part}"] = value
    return flat


def expanded(record: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """Return the record that `compact` was given.

    >>> row = {"row": 1, "score": {"quality": 0.5, "diversity": -1.0}}
    >>> record = {"available": [0, 1], "known": [0, 1], "picks": [row]}
    >>> expanded(compact(record, 2), 2) == record
    True
    """
    found = dict(record)
    everyone = list(range(clients))
    found.setdefault("available", everyone)
    if found.get("known") == "all":
        found["known"] = everyone
    for name in COLUMNS:
        if name in found:
            columns = found[name]
            if len({len(column) for column in columns.values()}) > 1:
                raise ValueError(f"the columns of {name} differ in length")
            rows = [
                dict(zip(columns, values, strict=True))
                for values in zip(*columns.values(), strict=True)
            ]
            found[name] = [_nested(row) for row in rows]
    return found


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        name, _, part = key.partition("_")
        if name in SCORES and part:
            found.setdefault(name, {})[part] = value
        else:
            found[key] = value
    return found


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Return JSON values with numbers of so many significant digits.

    >>> rounded({"a": [1 / 3, 2, "x"]}, digits=3)
    {'a': [0.333, 2, 'x']}
    """
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def sample(clients: int, most: int = KERNEL_CLIENTS) -> NDArray[np.intp]:
    """Return the clients, or so many of them at equal distances.

    >>> sample(5), sample(10, most=4)
    (array([0, 1, 2, 3, 4]), array([0, 3, 6, 9]))
    """
    if clients <= most:
        return np.arange(clients)
    return np.linspace(0, clients - 1, most).round().astype(np.intp)


def cosines_of(gram: Float64Array) -> Float64Array:
    """Return the cosines of updates by their inner products; those of a zero update are 0.

    >>> cosines_of(np.array([[4.0, 3.0], [3.0, 9.0]])).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    found: Float64Array = np.clip(gram * np.outer(inverse, inverse), -1.0, 1.0)
    return np.where(np.isfinite(found), found, 0.0)


def plane(cosines: Float64Array) -> Float64Array:
    """Return coordinates of clients in the plane that shows most of the kernel (kernel PCA).

    Distances in the plane are at most those of the unit vectors whose cosines these are. The sign
    of an axis is arbitrary; the entry of largest size is positive.

    >>> plane(np.array([[1.0, -1.0], [-1.0, 1.0]])).tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """
    n = len(cosines)
    if n < 2:
        return np.zeros((n, 2))
    centred = cosines - cosines.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    if n > 200:
        from scipy.sparse.linalg import eigsh

        values, vectors = eigsh(centred, k=2, v0=np.cos(np.arange(n, dtype=np.float64)), tol=1e-4)
    else:
        from scipy.linalg import eigh

        # Two of all vectors: that also keeps small kernels away from BLAS's threads.
        values, vectors = eigh(centred, subset_by_index=[n - 2, n - 1])
    order = np.argsort(values)[::-1][:2]
    found: Float64Array = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
    largest = np.abs(found).argmax(axis=0)
    found *= np.where(found[largest, [0, 1]] < 0, -1.0, 1.0)
    return found.round(12) + 0.0
