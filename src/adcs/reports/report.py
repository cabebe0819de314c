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
from adcs._validation import as_numbers, brief, real
from adcs.dpp.kernel import row_norms
from adcs.reports.sketch import Sketch

Update = ArrayLike | Sequence[ArrayLike]

ABSURD = 1e30
"""No loss, norm or time of a working client is beyond this; one that claims so is refused."""

_MOST = 2**63 - 1  # the largest whole number that arrays and files hold


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
    if isinstance(update, (list, tuple)) and any(np.ndim(layer) for layer in update):
        return np.concatenate([_plain_array(layer, "update").ravel() for layer in update])
    return _plain_array(update, "update").ravel()


def _plain_array(values: Any, name: str) -> FloatArray:
    """Return numbers as an array of float16, float32 or float64."""
    if isinstance(values, np.ndarray) and values.dtype == np.float16:
        return np.asarray(values)
    return as_numbers(values, name)


def plain_client(client: object) -> ClientId | None:
    """Return a client's id as Python's own int or string; None if it is no id.

    >>> plain_client(np.int64(3)), plain_client("a"), plain_client((1, 2)), plain_client(True)
    (3, 'a', None, None)
    """
    if type(client) is int or type(client) is str:
        return client
    if isinstance(client, str):
        return str.__str__(client)  # of an Enum, str() would be its name
    if isinstance(client, (int, np.integer)) and not isinstance(client, bool):
        return int(client)
    return None


def validate_report(report: ClientReport) -> str | None:
    """Return why a report cannot be used, or None if it can.

    >>> validate_report(ClientReport(3, server_round=0, loss=float("nan")))
    'loss must be finite, got nan'
    >>> validate_report(ClientReport(3, server_round=0, update=[0.0, 0.0]))
    'update must have a direction, got all zeros'
    """
    if not _whole(report.server_round) or not 0 <= report.server_round <= _MOST:
        given = brief(report.server_round)
        return f"server_round must be a whole number from 0 to 2^63 - 1, got {given}"
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
        return cls(True, vector.size, int(report.sketch.update_size or 0))

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

    Numbers are floats and the examples an int. Whoever reads them later need not know what else
    can be taken for a number.

    >>> as_plain(ClientReport(np.int64(3), 0, loss=10**25)).loss
    1e+25
    """
    changes: dict[str, Any] = {}
    if type(report.client) is not int and type(report.client) is not str:
        changes["client"] = plain_client(report.client)
    if type(report.server_round) is not int:
        changes["server_round"] = int(report.server_round)
    for name in NUMBERS:
        value = getattr(report, name)
        wanted = int if name == "examples" else float
        if value is not None and type(value) is not wanted:
            changes[name] = wanted(value if _whole(value) else _real(value))
    if report.sketch is not None and (plain := _plain_sketch(report.sketch)) is not report.sketch:
        changes["sketch"] = plain
    return replace(report, **changes) if changes else report


def _plain_sketch(sketch: Sketch) -> Sketch:
    values = _plain_array(sketch.values, "sketch")
    if (
        values is sketch.values
        and type(sketch.norm) is float
        and type(sketch.update_size) in _LENGTHS
    ):
        return sketch
    length = None if sketch.update_size is None else int(sketch.update_size)
    return Sketch(values, _real(sketch.norm), length, sketch.wire)


_LENGTHS = (int, type(None))


def _real(value: Any) -> float:
    number = real(value)
    assert number is not None  # or it would have been refused
    return number


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _number_refusal(name: str, value: Any) -> str | None:
    number = real(value)
    if number is None:
        return f"{name} must be a number, got {brief(value)}"
    if math.isnan(number) or (isinstance(value, (float, np.floating)) and math.isinf(number)):
        return f"{name} must be finite, got {number}"
    if abs(number) > ABSURD:
        shown = brief(value) if math.isinf(number) else f"{number:g}"
        return f"{name} must be at most {ABSURD:g}, got {shown}"
    if number < 0 and name != "loss":
        return f"{name} must not be negative, got {number:g}"
    return None


def _vector_refusal(report: ClientReport) -> str | None:
    if report.update is not None:
        try:
            reason = _array_refusal("update", flatten(report.update))
        except (TypeError, ValueError) as error:
            return str(error)
        if reason is not None:
            return reason
    sketch = report.sketch
    if sketch is None:
        return None
    if not isinstance(sketch, Sketch) or not isinstance(sketch.values, np.ndarray):
        return f"sketch must be a Sketch, got {brief(sketch)}"
    if sketch.values.ndim != 1:
        return f"sketch must be one row of numbers, got an array of shape {sketch.values.shape}"
    length = sketch.update_size
    if length is not None and not (_whole(length) and 1 <= length <= _MOST):
        return f"sketch must have an update_size from 1 to 2^63 - 1, or None, got {brief(length)}"
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
