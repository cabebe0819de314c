"""What clients say about themselves, and what of it is believed.

Reports are claims of strangers; `validate_report` says in one sentence why one cannot be used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import ClientId, FloatArray
from adcs.dpp.kernel import row_norms
from adcs.reports.sketch import Sketch

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
    server_round
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
    >>> ClientReport("hospital-3", server_round=0, loss=1.7, examples=812).loss
    1.7
    """

    client: ClientId
    server_round: int
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
    def update_norm(self) -> float | None:
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
    array = np.asarray(update)
    if array.dtype.kind not in "fiub":  # Text and complex numbers would be read as something else.
        raise ValueError(f"got an array of {array.dtype}")
    return array.astype(np.float64).ravel()


def validate_report(report: ClientReport) -> str | None:
    """Return why a report cannot be used, or None if it can.

    >>> validate_report(ClientReport(3, server_round=0, loss=float("nan")))
    'loss must be finite, got nan'
    >>> validate_report(ClientReport(3, server_round=0, update=[0.0, 0.0]))
    'update must have a direction, got all zeros'
    """
    if not isinstance(report.server_round, (int, np.integer)) or report.server_round < 0:
        return f"server_round must be a whole number >= 0, got {report.server_round!r}"
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
    return _vector_refusal(report)


class Form(NamedTuple):
    """What has to agree between vectors that are compared.

    Attributes
    ----------
    sketched
        Whether they are sketches.
    size
        How many numbers they have.
    length
        The length of the updates themselves; 0 where it is not known.
    """

    sketched: bool
    size: int
    update_size: int

    @classmethod
    def of(cls, report: ClientReport) -> Form | None:
        """Return the form of a usable report's vector, or None if it brings none."""
        if (vector := report.vector) is None:
            return None
        if report.update is not None or report.sketch is None:
            return cls(False, vector.size, vector.size)
        return cls(True, vector.size, report.sketch.update_size or 0)

    def agrees(self, other: Form) -> bool:
        """Return whether vectors of the two forms can be compared."""
        unknown = self.update_size == 0 or other.update_size == 0
        return self[:2] == other[:2] and (unknown or self.update_size == other.update_size)


def check_compatible(report: ClientReport, form: Form | None) -> str | None:
    """Return why a usable report does not go with others whose vectors have this form, or None.

    >>> check_compatible(ClientReport(3, server_round=0, update=[1.0, 0.0]), Form(False, 3, 3))
    'update must have 3 numbers, got 2'
    """
    own = Form.of(report)
    if form is None or own is None or own.agrees(form):
        return None
    if own.sketched != form.sketched:
        kinds = ("a whole update", "a sketch of one")
        return f"evidence must be {kinds[form.sketched]}, got {kinds[own.sketched]}"
    if own.size != form.size:
        name = "sketch" if own.sketched else "update"
        return f"{name} must have {form.size} numbers, got {own.size}"
    return f"sketch must be of an update of {form.update_size} numbers, got {own.update_size}"


def as_plain(report: ClientReport) -> ClientReport:
    """Return a usable report with its client and numbers as Python's own types.

    Whoever reads them later need not know what else can be taken for a number.

    >>> as_plain(ClientReport(np.int64(3), 0, loss=np.float32(0.5))).loss
    0.5
    """
    changes: dict[str, Any] = {}
    if type(report.client) is not int and not isinstance(report.client, str):
        changes["client"] = int(report.client)
    for name in NUMBERS:
        value = getattr(report, name)
        if value is not None and type(value) is not float and type(value) is not int:
            number = float(value)
            changes[name] = int(number) if name == "examples" else number
    return replace(report, **changes) if changes else report


def _number_refusal(name: str, value: Any) -> str | None:
    try:
        if isinstance(value, (str, bytes)):  # which float() would read
            raise TypeError
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


def _vector_refusal(report: ClientReport) -> str | None:
    if report.update is not None:
        try:
            reason = _array_refusal("update", flatten(report.update))
        except (TypeError, ValueError) as error:
            return f"update must be an array of numbers: {error}"
        if reason is not None:
            return reason
    sketch = report.sketch
    if sketch is None:
        return None
    if not isinstance(sketch, Sketch) or not isinstance(sketch.values, np.ndarray):
        return f"sketch must be a Sketch, got {str(sketch)[:60]!r}"
    length = sketch.update_size
    if length is not None and (not isinstance(length, (int, np.integer)) or length < 1):
        return f"sketch must have an update_size of at least 1, or None, got {length!r}"
    if (reason := _number_refusal("norm", sketch.norm)) is not None:
        return f"sketch: {reason}"
    return _array_refusal("sketch", sketch.values)


def _array_refusal(name: str, vector: FloatArray) -> str | None:
    if vector.dtype.kind not in "fiu":
        return f"{name} must be numbers, got {vector.dtype}"
    peak = max(float(vector.max()), -float(vector.min())) if vector.size else 0.0
    if not math.isfinite(peak):
        return f"{name} must be finite, got {peak}"
    if peak == 0.0:
        return f"{name} must have a direction, got all zeros"
    if peak > ABSURD:
        return f"{name} must be at most {ABSURD:g} in size, got {peak:g}"
    return None
