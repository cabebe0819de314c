"""Client reports and their validation. Reports are untrusted input.

Every signal that a client can report is declared once, as a field of `ClientReport`: how it is
checked, kept and requested, and what it costs. Tables, the store, engines, the wire and the
contract suite go by `SIGNALS`, which is made from the fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import ClientId, FloatArray
from adcs._validation import as_numbers, brief, is_int, real
from adcs.dpp.kernel import row_norms
from adcs.reports.sketch import Sketch, Sketcher

Update = ArrayLike | Sequence[ArrayLike]

MAX_VALUE = 1e30
"""No loss, norm or time of a working client is larger; a report that claims so is refused."""

NUMBER_BYTES = 4
"""Size of one number on the wire: updates, losses and norms travel as float32."""

MAX_CLASSES = 100_000
"""The largest number of classes in a label histogram."""

_MAX_INT = 2**63 - 1  # the largest whole number that arrays and files hold


@dataclass(frozen=True)
class Signal:
    """The declaration of a signal: a field of `ClientReport`.

    Attributes
    ----------
    name
        The field of `ClientReport`, the column of `ReportTable`, the word in a `Request`.
    belongs_to_model
        True for a learning signal, computed on the model of one round: a newer report replaces
        all of a client's learning signals together. False for a fact about the client: it is
        kept until a newer value arrives, and clients may add it to any reply.
    requestable
        Whether it may stand in `Request.signals`.
    kind
        "number", "count" (whole as a rule; a fraction is kept), "per_class" (a short vector, one
        number for each class), "vector" or "sketch".
    signed
        Whether a number may be negative.
    maximum
        The largest number that is accepted.
    work
        What a client computes for it: "none", an "evaluation" of the loss, or an "update".
    meaning
        What it is, for the message that asks clients to report it.

    Examples
    --------
    >>> SIGNALS["loss"].belongs_to_model, SIGNALS["examples"].belongs_to_model
    (True, False)
    >>> SIGNALS["update"].wire_bytes(31_400), SIGNALS["update"].wire_bytes(31_400, Sketcher())
    (31400, 272)
    >>> SIGNALS["label_counts"].wire_bytes(31_400, classes=10)
    40
    """

    name: str
    belongs_to_model: bool
    requestable: bool = False
    kind: Literal["number", "count", "per_class", "vector", "sketch"] = "number"
    signed: bool = False
    maximum: float = MAX_VALUE
    work: Literal["none", "evaluation", "update"] = "none"
    meaning: str = ""

    def wire_bytes(
        self, model_bytes: int, sketch: Sketcher | None = None, classes: int = 10
    ) -> int:
        """Return the size of the signal in a reply, for a model of this many bytes and classes."""
        if self.kind in ("number", "count"):
            return NUMBER_BYTES
        if self.kind == "per_class":
            return NUMBER_BYTES * classes
        return model_bytes if sketch is None else sketch.nbytes

    def how_to_report(self, who: str) -> str:
        """Return one sentence that says how clients report a signal that a scheduler lacks.

        >>> SIGNALS["rms_loss"].how_to_report("Oort")[:60]
        "Oort needs 'rms_loss' (the root mean square of the losses of"
        """
        return (
            f"{who} needs {self.name!r} ({self.meaning}), and no client reported it: return it as "
            f"a metric of that name, or as ClientReport({self.name}=...) in a loop of your own"
        )


def _learning_signal(**declaration: Any) -> dict[str, Any]:
    return {"belongs_to_model": True, **declaration}


def _fact(**declaration: Any) -> dict[str, Any]:
    return {"belongs_to_model": False, **declaration}


@dataclass(frozen=True, eq=False, slots=True)
class ClientReport:
    """What one client reports at one round; anything but its id may be missing.

    Attributes
    ----------
    client
        The client's id: an int or a string, opaque.
    server_round
        The round of the model on which the learning signals were computed, counted from 0.
    loss, norm, update, sketch
        The learning signals, all of that model: the local loss, the norm of the update, the
        update itself (one vector, or a list of layer arrays) or a sketch of it.
    rms_loss
        The root mean square of the losses of the client's examples, a learning signal.
    held_out_accuracy
        The accuracy on the client's held-out data, from 0 to 1, a learning signal.
    output_bias_update
        The output layer's bias after local training minus the bias received, one number for each
        class; a learning signal.
    examples
        Number of training examples.
    compute_seconds, communication_seconds
        Measured or predicted time for one round's computation and for its traffic.
    label_counts
        How many training examples the client has of each class. Clients may add noise
        (`adcs.reports.count_labels`), so that counts may be negative; schedulers read those as 0.
    availability
        The client's own forecast that it will be available in the next round, from 0 to 1.

    Examples
    --------
    >>> ClientReport("hospital-3", server_round=0, loss=1.7, examples=812).loss
    1.7
    """

    client: ClientId
    server_round: int
    loss: float | None = field(
        default=None,
        metadata=_learning_signal(
            requestable=True, signed=True, work="evaluation", meaning="the local loss"
        ),
    )
    norm: float | None = field(
        default=None,
        metadata=_learning_signal(
            requestable=True, work="update", meaning="the norm of the update"
        ),
    )
    update: Update | None = field(
        default=None,
        metadata=_learning_signal(
            requestable=True, kind="vector", work="update", meaning="the update"
        ),
    )
    sketch: Sketch | None = field(
        default=None, metadata=_learning_signal(kind="sketch", work="update")
    )
    rms_loss: float | None = field(
        default=None,
        metadata=_learning_signal(
            requestable=True,
            work="evaluation",
            meaning="the root mean square of the losses of the client's examples",
        ),
    )
    held_out_accuracy: float | None = field(
        default=None,
        metadata=_learning_signal(
            requestable=True,
            maximum=1.0,
            work="evaluation",
            meaning="the accuracy on the client's held-out data, from 0 to 1",
        ),
    )
    output_bias_update: Sequence[float] | None = field(
        default=None,
        metadata=_learning_signal(
            requestable=True,
            kind="per_class",
            signed=True,
            work="update",
            meaning="the output layer's bias after training minus the bias received",
        ),
    )
    examples: int | None = field(
        default=None,
        metadata=_fact(kind="count", meaning="the number of training examples"),
    )
    compute_seconds: float | None = field(
        default=None, metadata=_fact(meaning="the time for one round's computation")
    )
    communication_seconds: float | None = field(
        default=None, metadata=_fact(meaning="the time for one round's traffic")
    )
    label_counts: Sequence[float] | None = field(
        default=None,
        metadata=_fact(
            requestable=True,
            kind="per_class",
            signed=True,
            meaning="the number of training examples of each class",
        ),
    )
    availability: float | None = field(
        default=None,
        metadata=_fact(
            maximum=1.0, meaning="the forecast that the client is available in the next round"
        ),
    )

    @property
    def vector(self) -> FloatArray | None:
        """The update as one vector, else the sketch's values, else None."""
        if self.update is not None:
            return flatten(self.update)
        return None if self.sketch is None else self.sketch.values

    @property
    def update_norm(self) -> float | None:
        """The norm of the update: as stated, as sent with a sketch, or computed."""
        if self.norm is not None:
            return self.norm
        if self.sketch is not None:
            return self.sketch.norm
        return None if self.update is None else _norm(flatten(self.update))


SIGNALS: Mapping[str, Signal] = MappingProxyType(
    {entry.name: Signal(entry.name, **entry.metadata) for entry in fields(ClientReport)[2:]}
)
"""Every signal by name, as declared by the fields of `ClientReport`."""

NUMBERS = tuple(s.name for s in SIGNALS.values() if s.kind in ("number", "count"))
PER_CLASS = tuple(s.name for s in SIGNALS.values() if s.kind == "per_class")
LEARNING_SIGNALS = tuple(s.name for s in SIGNALS.values() if s.belongs_to_model)
FACTS = tuple(s.name for s in SIGNALS.values() if not s.belongs_to_model)
REQUESTABLE = frozenset(s.name for s in SIGNALS.values() if s.requestable)


def has_learning_signal(report: ClientReport) -> bool:
    """Return whether a report has any learning signal.

    >>> has_learning_signal(ClientReport(3, 0, loss=0.5)), has_learning_signal(ClientReport(3, 0))
    (True, False)
    """
    # A generator would cost more: stores call this for every report.
    for name in LEARNING_SIGNALS:  # noqa: SIM110
        if getattr(report, name) is not None:
            return True
    return False


def flatten(update: Update, name: str = "update") -> FloatArray:
    """Return an update, one array or a list of layer arrays, as one vector.

    >>> flatten([np.ones((2, 2)), np.zeros(1)])
    array([1., 1., 1., 1., 0.])
    """
    if type(update) is np.ndarray and update.ndim == 1 and update.dtype in (np.float64, np.float32):
        return np.ascontiguousarray(update)
    if isinstance(update, (list, tuple)) and any(map(has_dimensions, update)):
        return np.concatenate([_float_array(layer, name).ravel() for layer in update])
    return _float_array(update, name).ravel()


def has_dimensions(value: object) -> bool:
    """Return whether a value is an array, or list, rather than a single number.

    >>> has_dimensions([1.0]), has_dimensions(np.array(1.0))
    (True, False)
    """
    try:
        return np.ndim(value) > 0  # type: ignore[arg-type]
    except Exception:  # no array; reading it as numbers says why
        return True


def as_client_id(client: object) -> ClientId | None:
    """Return a client's id as Python's own int or string; None if it is no id.

    >>> as_client_id(np.int64(3)), as_client_id("a"), as_client_id((1, 2)), as_client_id(True)
    (3, 'a', None, None)
    """
    if type(client) is int or type(client) is str:
        return client
    if isinstance(client, str):
        return str.__str__(client)  # of an Enum, str() would be its name
    return int(client) if is_int(client) else None  # type: ignore[call-overload]


def are_plain_ids(clients: Iterable[object]) -> bool:
    """Return whether all are ids in Python's own types.

    >>> are_plain_ids([3, "a"]), are_plain_ids([np.int64(3)])
    (True, False)
    """
    return set(map(type, clients)) <= {int, str}


def validate_report(report: ClientReport) -> str | None:
    """Return why a report cannot be used, or None if it can.

    >>> validate_report(ClientReport(3, server_round=0, loss=float("nan")))
    'loss must be finite, got nan'
    >>> validate_report(ClientReport(3, server_round=0, update=[0.0, 0.0]))
    'update must have a direction, got all zeros'
    """
    server_round = report.server_round
    if not is_int(server_round) or not 0 <= server_round <= _MAX_INT:
        return f"server_round must be a whole number from 0 to 2^63 - 1, got {brief(server_round)}"
    for name in NUMBERS:
        value = getattr(report, name)
        # Nearly all values are Python's own numbers in the usual range.
        if value is None:
            continue
        signal = SIGNALS[name]
        if type(value) is float and 0.0 <= value <= signal.maximum and signal.kind == "number":
            continue
        if type(value) is int and 0 <= value <= min(_MAX_INT, signal.maximum):
            continue
        if (reason := _check_number(signal, value)) is not None:
            return reason
    for name in PER_CLASS:
        value = getattr(report, name)
        if value is not None and (reason := _check_per_class(name, value)) is not None:
            return reason
    if report.update is None and report.sketch is None:
        return None
    return _check_update(report) or _check_sketch(report.sketch)


def with_plain_types(report: ClientReport) -> ClientReport:
    """Return a usable report with its id and numbers in Python's own types.

    Numbers become floats and counts ints, so that later code need not know what else passes for
    a number.

    >>> with_plain_types(ClientReport(np.int64(3), 0, loss=10**25)).loss
    1e+25
    """
    changes: dict[str, Any] = {}
    if type(report.client) is not int and type(report.client) is not str:
        changes["client"] = as_client_id(report.client)
    if type(report.server_round) is not int:
        changes["server_round"] = int(report.server_round)
    for name in NUMBERS:
        value = getattr(report, name)
        count = SIGNALS[name].kind == "count"
        if value is None or type(value) is (int if count else float):
            continue
        number = value if is_int(value) else _as_float(value)
        # A count may be a fraction: frameworks use it as a weight.
        whole = count and (is_int(number) or float(number).is_integer())
        changes[name] = int(number) if whole else float(number)
    for name in PER_CLASS:
        value = getattr(report, name)
        if value is not None and not _is_plain_row(value):
            changes[name] = tuple(as_numbers(value, name).astype(np.float64).tolist())
    if report.sketch is not None:
        sketch = _plain_sketch(report.sketch)
        if sketch is not report.sketch:
            changes["sketch"] = sketch
    return replace(report, **changes) if changes else report


def _is_plain_row(row: Any) -> bool:
    return type(row) is tuple and all(type(number) is float for number in row)


def _norm(vector: FloatArray) -> float:
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(vector)) if vector.dtype != np.float16 else 0.0
    # Squares may leave the range of the type; row_norms scales first.
    return norm if 0.0 < norm < math.inf else float(row_norms(vector[None].astype(np.float64))[0])


def _float_array(values: Any, name: str) -> FloatArray:
    """Return numbers as an array of float16, float32 or float64."""
    if type(values) is np.ndarray and values.dtype == np.float16:
        return np.asarray(values)
    return as_numbers(values, name)


def _plain_sketch(sketch: Sketch) -> Sketch:
    values, size = _float_array(sketch.values, "sketch"), sketch.update_size
    plain_size = size is None or type(size) is int
    if values is sketch.values and type(sketch.norm) is float and plain_size:
        return sketch
    return Sketch(values, _as_float(sketch.norm), None if size is None else int(size), sketch.wire)


def _as_float(value: Any) -> float:
    number = real(value)
    assert number is not None  # or the report would have been refused
    return number


def _check_number(signal: Signal, value: Any) -> str | None:
    name, number = signal.name, real(value)
    if number is None:
        return f"{name} must be a number, got {brief(value)}"
    if math.isnan(number) or (isinstance(value, (float, np.floating)) and math.isinf(number)):
        return f"{name} must be finite, got {number}"
    if abs(number) > signal.maximum:
        shown = brief(value) if math.isinf(number) else f"{number:g}"
        return f"{name} must be at most {signal.maximum:g}, got {shown}"
    if number < 0 and not signal.signed:
        return f"{name} must not be negative, got {number:g}"
    return None


def _check_per_class(name: str, value: Any) -> str | None:
    """Return why a vector of one number for each class cannot be used; they may be negative."""
    if type(value) is str or not has_dimensions(value):
        return f"{name} must be a list of numbers, got {brief(value)}"
    try:
        vector = as_numbers(value, name)
    except (TypeError, ValueError) as error:
        return str(error)
    if vector.ndim != 1 or not 1 <= vector.size <= MAX_CLASSES:
        return f"{name} must have 1 to {MAX_CLASSES} numbers in one row, got {vector.shape}"
    peak = max(float(vector.max()), -float(vector.min()))
    if not peak <= MAX_VALUE:
        return f"{name} must be finite and at most {MAX_VALUE:g}, got {peak:g}"
    return None


def _check_update(report: ClientReport) -> str | None:
    if report.update is None:
        return None
    try:
        return _check_array("update", flatten(report.update))
    except (TypeError, ValueError) as error:
        return str(error)


def _check_sketch(sketch: Any) -> str | None:
    if sketch is None:
        return None
    if not isinstance(sketch, Sketch) or not isinstance(sketch.values, np.ndarray):
        return f"sketch must be a Sketch, got {brief(sketch)}"
    if sketch.values.ndim != 1:
        return f"sketch must be one row of numbers, got an array of shape {sketch.values.shape}"
    size = sketch.update_size
    if size is not None and not (is_int(size) and 1 <= size <= _MAX_INT):
        return f"sketch must have an update_size from 1 to 2^63 - 1, or None, got {brief(size)}"
    norm = sketch.norm
    usual = type(norm) is float and 0.0 <= norm <= MAX_VALUE
    if not usual and (reason := _check_number(SIGNALS["norm"], norm)) is not None:
        return f"sketch: {reason}"
    return _check_array("sketch", sketch.values)


def _check_array(name: str, vector: FloatArray) -> str | None:
    if vector.dtype.kind not in "fiu":
        return f"{name} must be numbers, got {vector.dtype}"
    peak = max(float(vector.max()), -float(vector.min())) if vector.size else 0.0
    if not math.isfinite(peak):
        return f"{name} must be finite, got {peak}"
    if peak == 0.0:
        return f"{name} must have a direction, got all zeros"
    if peak > MAX_VALUE:
        return f"{name} must be at most {MAX_VALUE:g} in magnitude, got {peak:g}"
    return None
