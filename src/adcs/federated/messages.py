"""Messages between the server and its clients, as plain values.

`SentModel` is the model that was sent and `Purpose` what a message asks for. A framework hands over
the replies as `ClientReply` objects; everything else works on NumPy arrays and Python values.
`CHECKS` names what replies are checked for; `Refused` says which check a reply has failed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId
from adcs.reports.report import MAX_VALUE
from adcs.reports.sketch import Sketcher

Arrays = dict[str, NDArray[Any]]
"""A model's arrays by name."""

Layout = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Names and kinds of a reply's records, with the keys of its arrays."""

MetricKey = tuple[str, int]
"""A metric's name, and the length of its list, or -1 for a single number."""

CHECKS = {
    "sizes": "a reply has at most 1,000 metrics, and no array has more bytes than its shape needs",
    "records": "a reply has one record of arrays and one of metrics",
    "missing": "a reply has every array of the model",
    "extra": "a reply has no arrays beside those of the model",
    "shapes": "arrays have the model's shapes and kinds of numbers",
    "values": "arrays have numbers, and all numbers are finite and at most 1e30",
    "zeros": "the arrays are not all zero",
    "agreement": "a reply has the records and arrays that most other replies have",
    "examples": "the number of examples is positive and plausible",
    "losses": "a loss that the scheduler uses is a finite number of at most 1e30",
}
"""What replies are checked for, by name; settings switch checks on and off by these names."""

ALL_CHECKS = frozenset(CHECKS)

MAX_METRICS = 1000
"""A reply with more metrics is refused before they are read."""

TEXT_LIMIT = 200
"""The largest number of characters of a client's text in records and logs."""


class Refused(ValueError):
    """A reply that fails a check.

    Parameters
    ----------
    check
        The check, one of `CHECKS`.
    reason
        What was expected and what was received.

    Examples
    --------
    >>> raise Refused("zeros", "arrays must not all be zero")
    Traceback (most recent call last):
    ...
    adcs.federated.messages.Refused: arrays must not all be zero
    """

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(reason)
        self.check = check

    @property
    def remedy(self) -> str:
        """How to switch the check off."""
        also = ", or set max_examples=" if self.check == "examples" else ""
        return f"; to accept it, leave {self.check!r} out of checks={also}"


def clean_text(text: object, limit: int = TEXT_LIMIT) -> str:
    """Return a client's text for logs and records: one line, printable, of bounded length.

    >>> clean_text("out of memory\\n\\x1b[31mroot"), clean_text("a" * 10**6, limit=40)
    ('out of memory\\\\n\\\\x1b[31mroot', 'aaaaaaaaaaaaaaaa... (1000000 characters)')
    """
    whole = str(text)
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in whole[:limit]
    )
    if len(whole) <= limit and len(shown) <= limit:
        return shown
    count = f"... ({len(whole)} characters)"
    return shown[: max(limit - len(count), 0)] + count


Stage = Literal["identity", "probe", "training", "evaluation"]

_STATISTIC = re.compile(
    r"(^|[./_])(running_mean|running_var|num_batches_tracked|moving_mean|moving_variance)(:\d+)?$"
)


def is_statistic(key: str) -> bool:
    """Return whether an array's name is that of a normalisation statistic, not a parameter.

    >>> is_statistic("layer1.0.bn1.running_mean"), is_statistic("layer1.0.bn1.weight")
    (True, False)
    """
    return _STATISTIC.search(key) is not None


class SentModel:
    """The model that was sent to clients, and the arrays that make up an update of it.

    Parameters
    ----------
    arrays
        The model's arrays.
    patterns
        Shell patterns of the arrays that make up the update. None takes all floating-point arrays
        except normalisation statistics, whose changes would dominate the update.
    keys
        The arrays that made up the update in earlier rounds. Averaging turns integer arrays into
        floating-point ones; this keeps them out of the update.
    record_name
        The name of the record in which the arrays travel, in frameworks that name it.
    part
        Whether it may be a part of the model, so that none of its arrays may make up an update.

    Attributes
    ----------
    keys, patterns
        The arrays that make up the update, and the patterns by which a client finds them.
    size
        The number of values in the update.
    nbytes
        The bytes of all arrays.

    Examples
    --------
    >>> model = SentModel({"w": np.zeros(2), "bn.running_mean": np.ones(2)})
    >>> model.keys, model.size
    (('w',), 2)
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        patterns: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        record_name: str = "arrays",
        *,
        part: bool = False,
    ) -> None:
        self.arrays: Arrays = dict(arrays)
        self.record_name = record_name
        floating = [key for key, array in self.arrays.items() if array.dtype.kind == "f"]
        if patterns is None:
            self.keys = tuple(key for key in floating if not is_statistic(key))
        else:
            self.keys = tuple(
                key for key in floating if any(fnmatchcase(key, pattern) for pattern in patterns)
            )
            if not self.keys and not part:
                raise ValueError(
                    f"arrays must name floating-point arrays of the model, got {list(patterns)} "
                    f"for a model of {floating}"
                )
        self.patterns = None if patterns is None else tuple(patterns)
        if keys is not None and set(keys) < set(self.keys):
            self.keys, self.patterns = tuple(keys), tuple(escape(key) for key in keys)
        self.size = sum(self.arrays[key].size for key in self.keys)
        self.nbytes = sum(array.nbytes for array in self.arrays.values())

    def has_layout_of(self, other: SentModel) -> bool:
        """Whether an update of this model has the numbers of an update of another, in their order.

        >>> whole = SentModel({"a": np.zeros(2), "b": np.zeros(2)})
        >>> SentModel({"a": np.ones(2), "b": np.ones(2)}).has_layout_of(whole)
        True
        >>> SentModel({"b": np.zeros(2)}).has_layout_of(whole)
        False
        """
        shapes = [[(key, each.arrays[key].shape) for key in each.keys] for each in (self, other)]
        return shapes[0] == shapes[1]

    def update(self, arrays: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the reply minus this model, one array for each of `keys` that came back."""
        return [
            np.subtract(
                arrays[key],
                self.arrays[key],
                dtype=np.result_type(arrays[key], self.arrays[key], np.float32),
            )
            for key in self.keys
            if key in arrays and arrays[key].shape == self.arrays[key].shape
        ]


def check_arrays(
    arrays: Mapping[str, NDArray[Any]],
    model: SentModel,
    checks: Collection[str] = ALL_CHECKS,
) -> Arrays:
    """Return a reply's arrays in at least the model's precision, or raise `Refused`.

    Floating-point arrays of a lower precision are converted: one client's float16 would make the
    average float16. Those of a higher one are left as they are: a model that is sent as float16 to
    save bandwidth may be trained in float32.

    Parameters
    ----------
    arrays
        The arrays of the reply.
    model
        The model that was sent.
    checks
        What to check, by the names of `CHECKS`.

    Examples
    --------
    >>> check_arrays({"w": np.ones(3)}, SentModel({"w": np.zeros(2)}))
    Traceback (most recent call last):
    ...
    adcs.federated.messages.Refused: array 'w' must have shape (2,), got (3,)
    """
    missing, extra = set(model.arrays) - set(arrays), set(arrays) - set(model.arrays)
    failed = [name for name, keys in (("extra", extra), ("missing", missing)) if keys]
    if any(name in checks for name in failed):
        raise Refused(
            next(name for name in failed if name in checks),
            "arrays must have the model's keys, got "
            + " and ".join(
                f"{what} {sorted(keys)[:3]}"
                for what, keys in (("without", missing), ("with", extra))
                if keys
            ),
        )
    checked: Arrays = {}
    for key, values in arrays.items():
        sent = model.arrays.get(key)
        if sent is not None and "shapes" in checks:
            _check_shape(key, values, sent, is_parameter=key in model.keys)
        if "values" in checks:
            check_values(key, values)
        same_kind = sent is not None and values.dtype.kind == sent.dtype.kind == "f"
        if sent is not None and same_kind and values.dtype != sent.dtype:
            values = _with_precision(key, values, sent.dtype, checks)
        checked[key] = values
    floating = [key for key, array in checked.items() if array.dtype.kind == "f"]
    all_zero = floating and not any(checked[key].any() for key in floating)
    # Arrays that came back as zeros, as they were sent, are an unchanged model.
    was_zero = not any(model.arrays[key].any() for key in floating if key in model.arrays)
    if all_zero and not was_zero and "zeros" in checks:
        raise Refused("zeros", "arrays must not all be zero")
    return checked


def _with_precision(
    key: str, values: NDArray[Any], dtype: np.dtype[Any], checks: Collection[str]
) -> NDArray[Any]:
    """Return an array in a precision, or in its own if that is higher and its numbers fit."""
    if np.promote_types(values.dtype, dtype) == dtype:
        return values.astype(dtype)
    if "values" in checks and values.size:
        largest = max(float(values.max()), -float(values.min()))
        with np.errstate(over="ignore"):
            fits = bool(np.isfinite(np.asarray(largest).astype(dtype)))
        if not fits:
            raise Refused("values", f"array {key!r} must fit into {dtype}, got {largest:g}")
    # More than float32 beside a model of less would become the precision of all clients.
    return values.astype(np.promote_types(dtype, np.float32), copy=False)


def _check_shape(key: str, values: NDArray[Any], sent: NDArray[Any], *, is_parameter: bool) -> None:
    # An array of uint8 is a serialised object, such as trees, whose length may change.
    fixed_shape = sent.dtype != np.uint8
    if fixed_shape and values.shape != sent.shape:
        raise Refused("shapes", f"array {key!r} must have shape {sent.shape}, got {values.shape}")
    kind, expected = values.dtype.kind, sent.dtype.kind
    # Counters are integers at a client and floating-point numbers once they are averaged.
    both_numbers = fixed_shape and not is_parameter and kind in "fiu" and expected in "fiu"
    if not (both_numbers or kind == expected):
        raise Refused("shapes", f"array {key!r} must be of {sent.dtype}, got {values.dtype}")


def check_values(key: str, values: NDArray[Any]) -> None:
    """Raise `Refused` unless an array has numbers that are finite and at most 1e30.

    >>> check_values("w", np.array([np.nan]))
    Traceback (most recent call last):
    ...
    adcs.federated.messages.Refused: array 'w' must be finite and at most 1e+30, got nan
    """
    if values.dtype.kind not in "biufc":
        raise Refused("values", f"array {key!r} must have numbers, got {str(values.dtype)[:40]}")
    if values.dtype.kind == "c" and values.size:
        check_values(key, values.real)
        check_values(key, values.imag)
    if values.dtype.kind == "f" and values.size:
        # Two passes without a copy; abs() would make one.
        largest = max(float(values.max()), -float(values.min()))
        if not largest <= MAX_VALUE:
            raise Refused(
                "values", f"array {key!r} must be finite and at most {MAX_VALUE:g}, got {largest}"
            )


@dataclass(frozen=True)
class Purpose:
    """What a message to clients asks for, which decides how its replies are read.

    Attributes
    ----------
    stage
        "identity", "probe", "training" or "evaluation".
    server_round
        The scheduler's round, counted from 0.
    model
        The model that was sent, if the replies carry updates of it.
    expects_answer
        Whether the client's probe handler is asked for an answer (`probes.ProbeQuestion`), rather
        than for a training reply.
    sketch
        How the update in that answer is sketched; None if it has the norm alone.
    signals
        The signals that an evaluation is asked for.
    model_of
        Returns the model that a client was sent, where not all were sent `model`.

    Examples
    --------
    >>> Purpose("training", 0, SentModel({"w": np.zeros(2)})).expects_answer
    False
    """

    stage: Stage
    server_round: int
    model: SentModel | None = None
    expects_answer: bool = False
    sketch: Sketcher | None = None
    signals: frozenset[str] = frozenset({"loss"})
    model_of: Callable[[ClientId], SentModel] | None = None

    def of(self, client: ClientId) -> Purpose:
        """Return what one client was asked for."""
        if self.model_of is None:
            return self
        return replace(self, model=self.model_of(client), model_of=None)


class ClientReply(ABC):
    """A client's reply, as its framework represents it.

    A framework implements this class for its own messages, as `adcs.flower` does, or converts them
    to `PlainReply`.

    Examples
    --------
    >>> issubclass(PlainReply, ClientReply)
    True
    """

    @property
    @abstractmethod
    def error(self) -> str | None:
        """Why the client sent no content, or None if it did."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes of the content, without the framework's own overhead; 0 for an error."""

    @property
    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """The metrics: numbers and lists of numbers."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The structure of the records, in which the replies of a round must agree."""

    @property
    @abstractmethod
    def answer(self) -> dict[str, Any] | None:
        """The probe handler's answer; None if there is none."""

    @abstractmethod
    def arrays(self, model: SentModel) -> Arrays:
        """Return the arrays of the trained model, unchecked, or raise ValueError."""

    @abstractmethod
    def replace_arrays(self, arrays: Mapping[str, NDArray[Any]], model: SentModel) -> None:
        """Replace some of the arrays, in a copy of the content."""

    @abstractmethod
    def replace_metric(self, key: str, value: float) -> None:
        """Replace a metric, in a copy of the content."""

    @abstractmethod
    def check_records(self, *, arrays: bool) -> None:
        """Raise ValueError if the framework could not aggregate records of this structure.

        Called for strategies that weight by a metric; `arrays` says whether a model is expected.
        """

    @property
    def metric_keys(self) -> frozenset[MetricKey]:
        """The metrics by name, with the lengths of lists."""
        return frozenset(
            (key, len(value) if isinstance(value, list) else -1)
            for key, value in self.metrics.items()
        )

    def check_sizes(self, model: SentModel | None) -> None:
        """Raise `Refused` if the reply is too large to read; called before anything is read."""
        if (count := len(self.metrics)) > MAX_METRICS:
            raise Refused("sizes", f"reply must have at most {MAX_METRICS} metrics, got {count}")

    def keep_metrics(self, keys: Collection[str]) -> None:  # noqa: B027
        """Remove all other metrics, in a copy of the content, if strategies need this."""

    def checked_arrays(self, model: SentModel, checks: Collection[str] = ALL_CHECKS) -> Arrays:
        """Return the arrays after `check_arrays`; conversions are made in the reply as well."""
        arrays = self.arrays(model)
        checked = check_arrays(arrays, model, checks)
        changed = {key: array for key, array in checked.items() if array is not arrays[key]}
        if changed:
            self.replace_arrays(changed, model)
        return checked


class PlainReply(ClientReply):
    """A reply of NumPy arrays and Python values.

    Parameters
    ----------
    arrays
        The arrays of the trained model, if there is one.
    metrics
        The metrics.
    answer
        The probe handler's answer, if there is one.
    error
        Why the client sent no content.

    Examples
    --------
    >>> reply = PlainReply({"w": np.ones(2)}, {"train_loss": 0.5, "num-examples": 10})
    >>> reply.metrics["train_loss"], reply.nbytes
    (0.5, 32)
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        metrics: Mapping[str, Any] | None = None,
        answer: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        self._arrays = None if arrays is None else dict(arrays)
        self._metrics = dict(metrics or {})
        self._answer = None if answer is None else dict(answer)
        self._error = error

    @property
    def error(self) -> str | None:
        """Why the client sent no content, or None if it did."""
        return self._error

    @property
    def nbytes(self) -> int:
        """The bytes of arrays and byte strings, and 8 for each other value."""
        arrays = sum(array.nbytes for array in (self._arrays or {}).values())
        values = [*self._metrics.values(), *(self._answer or {}).values()]
        return arrays + sum(len(v) if isinstance(v, (bytes, str)) else 8 for v in values)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics."""
        return self._metrics

    @property
    def layout(self) -> Layout:
        """The keys of arrays."""
        return (
            ("arrays", "arrays", tuple(sorted(self._arrays or {}))),
            ("metrics", "metrics", ()),
        )

    @property
    def answer(self) -> dict[str, Any] | None:
        """The probe handler's answer; None if there is none."""
        return self._answer

    def arrays(self, model: SentModel) -> Arrays:
        """Return the arrays of the trained model."""
        if self._arrays is None:
            raise ValueError("reply must carry arrays, got none")
        return self._arrays

    def replace_arrays(self, arrays: Mapping[str, NDArray[Any]], model: SentModel) -> None:
        """Replace some of the arrays."""
        self._arrays = {**(self._arrays or {}), **arrays}

    def replace_metric(self, key: str, value: float) -> None:
        """Replace a metric."""
        self._metrics = {**self._metrics, key: value}

    def keep_metrics(self, keys: Collection[str]) -> None:
        """Remove all other metrics."""
        self._metrics = {key: self._metrics[key] for key in self._metrics if key in keys}

    def check_records(self, *, arrays: bool) -> None:
        """Raise ValueError if arrays are expected and there are none."""
        if arrays and self._arrays is None:
            raise ValueError("reply must carry arrays, got none")


Reply = TypeVar("Reply", bound=ClientReply)
"""A framework's own class of replies."""


@dataclass
class Exchange(Generic[Reply]):
    """Messages that were sent to clients in one go, and the replies that came in time.

    Attributes
    ----------
    clients
        The clients that were asked.
    replies
        The replies by client.
    bytes_down
        The bytes of the contents that were sent.
    seconds
        The time from sending to the end of the wait.
    outrun
        The clients among them that were not waited for, because there were enough replies.

    Examples
    --------
    >>> Exchange(clients=[3, 7], bytes_down=800).replies
    {}
    """

    clients: Sequence[ClientId] = ()
    replies: Mapping[ClientId, Reply] = field(default_factory=dict)
    bytes_down: int = 0
    seconds: float = 0.0
    outrun: Sequence[ClientId] = ()
