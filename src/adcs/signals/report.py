"""What clients say about themselves, what of it is believed, and what is remembered.

Reports are claims of strangers. `refusal` says in one sentence why a report cannot be used, and
`ReportBook` keeps the latest usable evidence of every client.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adcs.dpp.kernel import FloatArray, row_norms
from adcs.signals.sketch import Sketch

ClientId = int | str
Update = ArrayLike | Sequence[ArrayLike]

ABSURD = 1e30
"""No loss, norm or time of a working client is beyond this; one that claims so is refused."""


@dataclass(frozen=True, eq=False, slots=True)
class ClientReport:
    """What is known of one client at one round; anything but its name may be missing.

    Attributes
    ----------
    client
        The client's id: an int or a string, opaque.
    round
        The round at whose model the signals were computed. Rounds count from 0.
    loss, norm, update, sketch
        The learning signals, all at that model: local loss, norm of the update, the update
        itself (one vector, or a list of layer arrays) or a sketch of it.
    examples
        Number of training examples.
    compute_seconds, communication_seconds
        Measured or predicted time for one round's computation and for its traffic.

    Examples
    --------
    >>> ClientReport("hospital-3", round=0, loss=1.7, examples=812).loss
    1.7
    """

    client: ClientId
    round: int
    loss: float | None = None
    norm: float | None = None
    update: Update | None = None
    sketch: Sketch | None = None
    examples: int | None = None
    compute_seconds: float | None = None
    communication_seconds: float | None = None

    @property
    def vector(self) -> FloatArray | None:
        """The update as one vector, else the sketch's values, else None."""
        if self.update is not None:
            return flatten(self.update)
        return None if self.sketch is None else self.sketch.values

    @property
    def length(self) -> float | None:
        """The norm of the update: as stated, as sent beside a sketch, or computed."""
        if self.norm is not None:
            return self.norm
        if self.sketch is not None:
            return self.sketch.norm
        return None if self.update is None else _norm(flatten(self.update))


def _norm(vector: FloatArray) -> float:
    norm = float(np.linalg.norm(vector)) if vector.dtype != np.float16 else 0.0
    # Squares may leave the range of the type; then the careful way is worth its time.
    return norm if 0.0 < norm < math.inf else float(row_norms(vector[None].astype(np.float64))[0])


NUMBERS = ("loss", "norm", "examples", "compute_seconds", "communication_seconds")


def flatten(update: Update) -> FloatArray:
    """Return an update, one array or a list of layer arrays, as one vector.

    >>> flatten([np.ones((2, 2)), np.zeros(1)])
    array([1., 1., 1., 1., 0.])
    """
    if isinstance(update, np.ndarray) and update.dtype.kind == "f":
        return update.ravel()
    if isinstance(update, (list, tuple)) and any(np.ndim(layer) for layer in update):
        return np.concatenate([np.ravel(np.asarray(layer)) for layer in update])
    return np.asarray(update, dtype=np.float64).ravel()


def refusal(report: ClientReport, width: int | None = None) -> str | None:
    """Return why a report cannot be used, or None if it can.

    Parameters
    ----------
    report
        The report to look at.
    width
        The length that its update, or sketch, must have; None accepts any.

    Examples
    --------
    >>> refusal(ClientReport(3, round=0, loss=float("nan")))
    'loss must be finite, got nan'
    >>> refusal(ClientReport(3, round=0, update=[0.0, 0.0]))
    'update must have a direction, got all zeros'
    >>> refusal(ClientReport(3, round=0, update=[1.0, 0.0]), width=3)
    'update must have 3 numbers, got 2'
    """
    if not isinstance(report.round, (int, np.integer)) or report.round < 0:
        return f"round must be a whole number >= 0, got {report.round!r}"
    for name in NUMBERS:
        value = getattr(report, name)
        # Plain numbers of the usual size are nearly all there is; they pass at once.
        if value is None or (type(value) is float and 0.0 <= value <= ABSURD):
            continue
        if type(value) is int and 0 <= value < 2**63:
            continue
        if (reason := _number_refusal(name, value)) is not None:
            return reason
    if report.update is None and report.sketch is None:
        return None
    return _vector_refusal(report, width)


def _number_refusal(name: str, value: Any) -> str | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return f"{name} must be a number, got {str(value)[:60]!r}"
    if not math.isfinite(number):
        return f"{name} must be finite, got {number}"
    if abs(number) > ABSURD:
        return f"{name} must be at most {ABSURD:g}, got {number:g}"
    if number < 0 and name != "loss":
        return f"{name} must not be negative, got {number:g}"
    return None


def _vector_refusal(report: ClientReport, width: int | None) -> str | None:
    name = "update" if report.update is not None else "sketch"
    try:
        vector = report.vector
        if vector is None:
            return None
        if vector.dtype.kind not in "fiu":
            return f"{name} must be numbers, got {vector.dtype}"
    except (TypeError, ValueError, AttributeError) as error:
        return f"{name} must be an array of numbers: {error}"
    if width is not None and vector.size != width:
        return f"{name} must have {width} numbers, got {vector.size}"
    peak = float(np.abs(vector).max()) if vector.size else 0.0
    if not math.isfinite(peak):
        return f"{name} must be finite, got {peak}"
    if peak == 0.0:
        return f"{name} must have a direction, got all zeros"
    if peak > ABSURD:
        return f"{name} must be at most {ABSURD:g} in size, got {peak:g}"
    return None


class ReportBook:
    """The latest usable evidence of each client.

    The learning signals of a report (loss, norm, update or sketch) replace a client's older ones
    as a whole, because they belong to one model; its size and timings are kept until newer ones
    arrive. All updates in a book have one length, fixed by the majority of the first reports
    that bring any.

    Examples
    --------
    >>> book = ReportBook()
    >>> refused = book.record([ClientReport("a", 0, examples=10), ClientReport("a", 0, loss=2.0)])
    >>> book["a"].examples, book["a"].loss
    (10, 2.0)
    """

    def __init__(self) -> None:
        self.version = 0
        self._reports: dict[ClientId, ClientReport] = {}
        self._width: int | None = None

    def __getitem__(self, client: ClientId) -> ClientReport:
        return self._reports[client]

    def __contains__(self, client: object) -> bool:
        return client in self._reports

    def __len__(self) -> int:
        return len(self._reports)

    @property
    def width(self) -> int | None:
        """The length of the updates, or sketches, in the book; None while it holds none."""
        return self._width

    def get(self, client: ClientId) -> ClientReport | None:
        """Return the client's evidence, or None if nothing is known."""
        return self._reports.get(client)

    def check(
        self, reports: Iterable[ClientReport]
    ) -> tuple[list[ClientReport], list[tuple[ClientId, str]]]:
        """Return the usable reports and, for each of the others, client and reason."""
        batch = list(reports)
        width = self._width if self._width is not None else _majority_width(batch)
        usable: list[ClientReport] = []
        refused: list[tuple[ClientId, str]] = []
        seen: set[ClientId] = set()
        for report in batch:
            client = getattr(report, "client", None)
            if not isinstance(report, ClientReport):
                refused.append((str(client), f"not a ClientReport but {type(report).__name__}"))
            elif isinstance(client, bool) or not isinstance(client, (int, str)):
                refused.append((str(client), f"client must be an int or a string, got {client!r}"))
            elif client in seen and _brings(report):
                refused.append((client, "a second report of one client in one batch"))
            elif (reason := refusal(report, width)) is not None:
                refused.append((client, reason))
            else:
                if _brings(report):
                    seen.add(client)
                usable.append(report)
        return usable, refused

    def record(self, reports: Iterable[ClientReport]) -> list[tuple[ClientId, str]]:
        """Remember the usable reports; return client and reason of each that was refused."""
        usable, refused = self.check(reports)
        self.remember(usable)
        return refused

    def remember(self, usable: Sequence[ClientReport]) -> None:
        """Remember reports that `check` has found usable."""
        for report in usable:
            self._remember(report)
        self.version += bool(usable)

    def _remember(self, report: ClientReport) -> None:
        if report.update is not None:
            # The array may be a buffer that its owner writes into again.
            report = replace(report, update=np.array(report.vector))
        if (vector := report.vector) is not None:
            self._width = vector.size
        old = self._reports.get(report.client)
        if old is not None and not _covers(report, old):
            learned = report if _brings(report) else old
            report = ClientReport(
                client=report.client,
                round=learned.round if _brings(learned) else report.round,
                loss=learned.loss,
                norm=learned.norm,
                update=learned.update,
                sketch=learned.sketch,
                examples=_newer(report.examples, old.examples),
                compute_seconds=_newer(report.compute_seconds, old.compute_seconds),
                communication_seconds=_newer(
                    report.communication_seconds, old.communication_seconds
                ),
            )
        self._reports[report.client] = report

    def state(self) -> dict[str, Any]:
        """Return everything remembered as JSON values and arrays."""
        reports = list(self._reports.values())
        vectors = [r.vector for r in reports]
        held = [v for v in vectors if v is not None]
        return {
            "version": self.version,
            "width": self._width,
            "clients": [r.client for r in reports],
            "rounds": [int(r.round) for r in reports],
            "numbers": {name: [_plain(getattr(r, name)) for r in reports] for name in NUMBERS},
            "sketch_norms": [None if r.sketch is None else float(r.sketch.norm) for r in reports],
            "has_vector": [v is not None for v in vectors],
            "vectors": np.stack(held) if held else np.empty((0, 0)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.version = int(state["version"])
        self._width = state["width"]
        self._reports = {}
        rows = iter(np.asarray(state["vectors"]))
        numbers = state["numbers"]
        for i, client in enumerate(state["clients"]):
            row = np.array(next(rows)) if state["has_vector"][i] else None
            norm = state["sketch_norms"][i]
            self._reports[client] = ClientReport(
                client=client,
                round=state["rounds"][i],
                update=row if norm is None else None,
                sketch=None if norm is None or row is None else Sketch(values=row, norm=norm),
                **{name: numbers[name][i] for name in numbers},
            )


def _brings(report: ClientReport) -> bool:
    """Return whether a report brings any learning signal."""
    return not (
        report.loss is None
        and report.norm is None
        and report.update is None
        and report.sketch is None
    )


def _covers(new: ClientReport, old: ClientReport) -> bool:
    """Return whether nothing of the old report outlives the new one."""
    return _brings(new) and not (
        (new.examples is None and old.examples is not None)
        or (new.compute_seconds is None and old.compute_seconds is not None)
        or (new.communication_seconds is None and old.communication_seconds is not None)
    )


def _newer(new: Any, old: Any) -> Any:
    return old if new is None else new


def _majority_width(reports: Sequence[ClientReport]) -> int | None:
    widths: Counter[int] = Counter()
    for report in reports:
        if not isinstance(report, ClientReport) or (
            report.update is None and report.sketch is None
        ):
            continue
        if refusal(report) is None and (vector := report.vector) is not None:
            widths[vector.size] += 1
    # The smaller length wins a tie, so that the order of the reports does not matter.
    return min(widths, key=lambda width: (-widths[width], width)) if widths else None


def _plain(value: Any) -> float | int | None:
    return value if value is None or isinstance(value, (int, float)) else value.item()
