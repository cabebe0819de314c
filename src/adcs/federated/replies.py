"""Checks of client replies, and the reports that are read from them.

Replies are untrusted input. One bad reply could end a run or spoil the model: averaging spreads a
NaN, and a wrong shape raises an error. Each check here raises a ValueError with one sentence; the
reply is refused, the reason is recorded, and the round continues with the other replies.

A framework hands over its messages as `ClientReply` objects; everything else works on NumPy arrays
and Python values.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId
from adcs.federated.recorder import RoundRecord
from adcs.reports.report import MAX_VALUE, NUMBERS, ClientReport, validate_report
from adcs.reports.sketch import Sketcher

Arrays = dict[str, NDArray[Any]]
"""A model's arrays by name."""

Layout = tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...]
"""Names and kinds of a reply's records, with their keys and the lengths of lists (else -1)."""

Stage = Literal["identity", "probe", "training", "evaluation"]

METRIC_SIGNALS = tuple(
    name
    for name in NUMBERS
    if name not in ("loss", "norm", "examples", "compute_seconds", "communication_seconds")
)
"""Signals that clients report as a metric of the same name.

The loss and the number of examples have names that the user chooses; norm and times are measured.
"""

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

    Attributes
    ----------
    keys, patterns
        The arrays that make up the update, and the patterns by which a client finds them.
    size
        The number of values in the update.

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
            if not self.keys:
                raise ValueError(
                    f"arrays must name floating-point arrays of the model, got {list(patterns)} "
                    f"for a model of {floating}"
                )
        self.patterns = None if patterns is None else tuple(patterns)
        if keys is not None and set(keys) < set(self.keys):
            self.keys, self.patterns = tuple(keys), tuple(escape(key) for key in keys)
        self.size = sum(self.arrays[key].size for key in self.keys)
        self.is_zero = not any(self.arrays[key].any() for key in floating)

    def update(self, arrays: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the reply minus this model, one array for each of `keys`."""
        return [
            np.subtract(
                arrays[key],
                self.arrays[key],
                dtype=np.result_type(arrays[key], self.arrays[key], np.float32),
            )
            for key in self.keys
        ]


def check_arrays(arrays: Mapping[str, NDArray[Any]], model: SentModel) -> Arrays:
    """Return a reply's arrays in the model's precision, or raise ValueError.

    They must have the model's keys, shapes and kinds, be finite, and differ from the model.
    Floating-point arrays of another precision are converted: one client's float16 would make the
    average float16.

    >>> check_arrays({"w": np.ones(3)}, SentModel({"w": np.zeros(2)}))
    Traceback (most recent call last):
    ...
    ValueError: array 'w' must have shape (2,), got (3,)
    """
    missing, extra = set(model.arrays) - set(arrays), set(arrays) - set(model.arrays)
    if missing or extra:
        raise ValueError(
            "arrays must have the model's keys, got "
            + " and ".join(
                f"{what} {sorted(keys)[:3]}"
                for what, keys in (("without", missing), ("with", extra))
                if keys
            )
        )
    checked: Arrays = {}
    for key, sent in model.arrays.items():
        values = _check_array(key, arrays[key], sent, is_parameter=key in model.keys)
        same_kind = values.dtype.kind == sent.dtype.kind == "f"
        checked[key] = values.astype(sent.dtype, copy=False) if same_kind else values
    floating = [key for key, array in checked.items() if array.dtype.kind == "f"]
    if floating and not model.is_zero and not any(checked[key].any() for key in floating):
        raise ValueError("arrays must not all be zero")
    if floating and all(np.array_equal(checked[key], model.arrays[key]) for key in floating):
        raise ValueError("update must have a direction, got all zeros")
    return checked


def _check_array(
    key: str, values: NDArray[Any], sent: NDArray[Any], *, is_parameter: bool
) -> NDArray[Any]:
    # An array of uint8 is a serialised object, such as trees, whose length may change.
    fixed_shape = sent.dtype != np.uint8
    if fixed_shape and values.shape != sent.shape:
        raise ValueError(f"array {key!r} must have shape {sent.shape}, got {values.shape}")
    kind, expected = values.dtype.kind, sent.dtype.kind
    # Counters are integers at a client and floating-point numbers once they are averaged.
    both_numbers = fixed_shape and not is_parameter and kind in "fiu" and expected in "fiu"
    if not (both_numbers or kind == expected):
        raise ValueError(f"array {key!r} must be of {sent.dtype}, got {values.dtype}")
    if kind == "f" and values.size:
        largest = float(np.abs(values).max())
        if not largest <= MAX_VALUE:
            raise ValueError(
                f"array {key!r} must be finite and at most {MAX_VALUE:g}, got {largest}"
            )
    return values


@dataclass(frozen=True)
class ReplyChecks:
    """What the metrics of a reply must contain.

    Attributes
    ----------
    weight_key
        The number of examples, by which the strategy weights; None if it has no such key.
    loss_key
        The loss that the scheduler observes; a reply may lack it.
    required_loss_key
        A loss that the strategy itself computes with; no reply may lack it.
    max_examples
        The largest number of examples that a client may report.

    Examples
    --------
    >>> ReplyChecks("num-examples", "train_loss").max_examples
    10000000.0
    """

    weight_key: str | None
    loss_key: str
    required_loss_key: str | None = None
    max_examples: float = 1e7

    def without_losses(self) -> ReplyChecks:
        """Return the checks for replies that are not training replies."""
        return ReplyChecks(self.weight_key, "", None, self.max_examples)


def check_metrics(metrics: Mapping[str, Any], checks: ReplyChecks) -> None:
    """Raise ValueError if the number of examples or a loss cannot be used.

    >>> check_metrics({"num-examples": -5}, ReplyChecks("num-examples", "train_loss"))
    Traceback (most recent call last):
    ...
    ValueError: num-examples must lie between 0 (not included) and 1e+07, got -5
    """
    key = checks.weight_key
    if key is not None:
        examples = _number(metrics, key)
        if not 0 < examples <= checks.max_examples:
            raise ValueError(
                f"{key} must lie between 0 (not included) and {checks.max_examples:g}, "
                f"got {examples:g}"
            )
    if checks.loss_key in metrics:
        _loss(metrics, checks.loss_key)
    required = checks.required_loss_key
    if required is not None and _loss(metrics, required) < 0:
        raise ValueError(f"{required} must not be negative, got {metrics[required]:g}")


def _number(metrics: Mapping[str, Any], key: str) -> float:
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"metrics must hold a number {key}, got {value!r}"[:120])
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _loss(metrics: Mapping[str, Any], key: str) -> float:
    loss = _number(metrics, key)
    if not abs(loss) <= MAX_VALUE:
        raise ValueError(f"{key} must be finite and at most {MAX_VALUE:g}, got {loss:g}")
    return loss


def metric_signals(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signals that a client reports as metrics of the same name.

    >>> metric_signals({"train_loss": 0.5, "num-examples": 10})
    {}
    """
    return {name: metrics[name] for name in METRIC_SIGNALS if name in metrics}


def check_finite(metrics: Mapping[str, Any]) -> None:
    """Raise ValueError if any metric is NaN, infinite or too large.

    >>> check_finite({"eval_acc": float("nan")})
    Traceback (most recent call last):
    ...
    ValueError: eval_acc must be finite and at most 1e+30, got nan
    """
    for key, value in metrics.items():
        for number in value if isinstance(value, list) else [value]:
            if not abs(number) <= MAX_VALUE:
                raise ValueError(f"{key} must be finite and at most {MAX_VALUE:g}, got {number}")


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

    def checked_arrays(self, model: SentModel) -> Arrays:
        """Return the arrays after `check_arrays`; conversions are made in the reply as well."""
        arrays = self.arrays(model)
        checked = check_arrays(arrays, model)
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
        """The keys of arrays and metrics."""
        return (
            ("arrays", "arrays", tuple((key, -1) for key in sorted(self._arrays or {}))),
            ("metrics", "metrics", tuple((key, -1) for key in sorted(self._metrics))),
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

    def check_records(self, *, arrays: bool) -> None:
        """Raise ValueError if arrays are expected and there are none."""
        if arrays and self._arrays is None:
            raise ValueError("reply must carry arrays, got none")


Reply = TypeVar("Reply", bound=ClientReply)
"""A framework's own class of replies."""


@dataclass
class UsableReplies(Generic[Reply]):
    """What a batch of replies contains.

    Attributes
    ----------
    reports
        The reports for the scheduler, sorted by client id.
    trained
        The replies that carry a trained model and can be aggregated.
    """

    reports: list[ClientReport] = field(default_factory=list)
    trained: dict[ClientId, Reply] = field(default_factory=dict)


class ReplyReader:
    """Reads batches of replies; each bad reply is refused individually.

    Parameters
    ----------
    checks
        What the metrics of a reply must contain.

    Examples
    --------
    >>> reader, record = ReplyReader(ReplyChecks(None, "train_loss")), RoundRecord()
    >>> purpose = Purpose("training", 0, SentModel({"w": np.zeros(2)}))
    >>> replies = {3: PlainReply({"w": np.ones(2)}), 7: PlainReply({"w": np.full(2, np.nan)})}
    >>> list(reader.read(purpose, replies, record, sketch=None).trained)
    [3]
    >>> record.refused[0]["client"]
    7
    """

    def __init__(self, checks: ReplyChecks) -> None:
        self.checks = checks
        self._layouts: dict[str, Layout] = {}  # the usual layout of earlier rounds

    def read(
        self,
        purpose: Purpose,
        replies: Mapping[ClientId, Reply],
        record: RoundRecord,
        *,
        sketch: Sketcher | None,
        with_update: bool = True,
    ) -> UsableReplies[Reply]:
        """Return the contents of training replies or answers to a probe.

        Refusals and errors are added to the record of the round.

        Parameters
        ----------
        purpose, replies
            What was asked for, and each client's reply.
        record
            The record of the round.
        sketch
            How whole updates are sketched for the scheduler; None keeps them whole.
        with_update
            Whether the scheduler's reports contain the update.
        """
        usable: UsableReplies[Reply] = UsableReplies()
        layouts: dict[ClientId, Layout] = {}
        for client, reply in _sorted(replies):
            if reply.error is not None:
                record.failed.append(_entry(client, purpose.stage, reply.error))
                continue
            try:
                report = self._report(client, purpose, reply, sketch, with_update=with_update)
                if (reason := validate_report(report)) is not None:
                    raise ValueError(reason)
            except ValueError as error:
                record.refused.append(_entry(client, purpose.stage, str(error)))
                continue
            usable.reports.append(report)
            if purpose.model is not None and _expected_answer(purpose, reply) is None:
                usable.trained[client] = reply
                layouts[client] = reply.layout
        for client in self._refuse_unusual("training", layouts, record, purpose.stage):
            del usable.trained[client]
            usable.reports = [report for report in usable.reports if report.client != client]
        return usable

    def read_evaluations(
        self, replies: Mapping[ClientId, Reply], record: RoundRecord
    ) -> dict[ClientId, Reply]:
        """Return the evaluation replies that can be used."""
        usable: dict[ClientId, Reply] = {}
        for client, reply in _sorted(replies):
            if reply.error is not None:
                record.failed.append(_entry(client, "evaluation", reply.error))
                continue
            try:
                if self.checks.weight_key is not None:
                    reply.check_records(arrays=False)
                check_metrics(reply.metrics, self.checks.without_losses())
                check_finite(reply.metrics)
            except ValueError as error:
                record.refused.append(_entry(client, "evaluation", str(error)))
                continue
            usable[client] = reply
        layouts = {client: reply.layout for client, reply in usable.items()}
        for client in self._refuse_unusual("evaluation", layouts, record, "evaluation"):
            del usable[client]
        return usable

    def _report(
        self,
        client: ClientId,
        purpose: Purpose,
        reply: ClientReply,
        sketch: Sketcher | None,
        *,
        with_update: bool,
    ) -> ClientReport:
        """Return the report in a reply, or raise ValueError with what is wrong with it."""
        if purpose.model is None:
            return self._loss_report(client, purpose, reply.metrics)
        answer = _expected_answer(purpose, reply)
        if answer is not None:
            return self._answer_report(client, purpose, purpose.model, answer)
        if self.checks.weight_key is not None:
            reply.check_records(arrays=True)
        metrics = reply.metrics
        check_metrics(metrics, self.checks)
        arrays = reply.checked_arrays(purpose.model)
        signals: dict[str, Any] = {}
        if with_update and purpose.model.keys:
            update = purpose.model.update(arrays)
            vector = np.concatenate([layer.ravel() for layer in update])
            # Part of the model may be frozen; the rest of the reply can still be used.
            if vector.any():
                if sketch is None:
                    signals["update"] = vector
                    signals["norm"] = float(np.linalg.norm(vector))
                else:
                    signals["sketch"] = sketch.sketch(vector)
        weight_key = self.checks.weight_key
        return ClientReport(
            client,
            purpose.server_round,
            loss=metrics.get(self.checks.loss_key),
            examples=None if weight_key is None else metrics[weight_key],
            **signals,
            **metric_signals(metrics),
        )

    def _answer_report(
        self, client: ClientId, purpose: Purpose, model: SentModel, answer: Mapping[str, Any]
    ) -> ClientReport:
        """Return the report in a probe handler's answer."""
        if "refused" in answer:
            raise ValueError(str(answer["refused"])[:200])
        weight_key = self.checks.weight_key
        if weight_key is not None and "examples" in answer:
            check_metrics({weight_key: answer["examples"]}, self.checks.without_losses())
        sketch = None
        if purpose.sketch is not None:
            sketch = purpose.sketch.decode(answer.get("sketch", b""))
            if sketch.update_size != model.size:
                raise ValueError(
                    f"sketch must be of an update of {model.size} numbers, got {sketch.update_size}"
                )
        return ClientReport(
            client,
            purpose.server_round,
            loss=answer.get("loss"),
            norm=None if purpose.sketch is not None else answer.get("norm"),
            sketch=sketch,
            examples=answer.get("examples"),
            compute_seconds=answer.get("seconds"),
            **metric_signals(answer),
        )

    def _loss_report(
        self, client: ClientId, purpose: Purpose, metrics: Mapping[str, Any]
    ) -> ClientReport:
        """Return the report in an evaluation that was a probe for the loss."""
        key = self.checks.loss_key
        if key not in metrics:
            losses = [name for name in metrics if "loss" in name.lower()]
            if len(losses) != 1:
                raise ValueError(
                    f"evaluate reply must have a metric {key!r}, or one with 'loss' in its name, "
                    f"got {sorted(metrics)}"
                )
            key = losses[0]
        check_finite({key: metrics[key]})
        return ClientReport(
            client, purpose.server_round, loss=metrics[key], **metric_signals(metrics)
        )

    def _refuse_unusual(
        self, name: str, layouts: Mapping[ClientId, Layout], record: RoundRecord, stage: Stage
    ) -> list[ClientId]:
        """Refuse the clients whose records differ from those of most others; return them."""
        if not layouts:
            return []
        usual = usual_layout(layouts.values(), self._layouts.get(name))
        if len(layouts) > 1 or name not in self._layouts:
            self._layouts[name] = usual
        unusual = [client for client, layout in layouts.items() if layout != usual]
        for client in unusual:
            reason = (
                f"records must be those of the other replies, {_names(usual)}, "
                f"got {_names(layouts[client])}"
            )
            record.refused.append(_entry(client, stage, reason))
        return unusual


def usual_layout(layouts: Iterable[Layout], last: Layout | None) -> Layout:
    """Return the layout of most replies; ties go to the last round's, then to the largest.

    >>> one = (("metrics", "MetricRecord", (("loss", -1),)),)
    >>> two = (("metrics", "MetricRecord", (("accuracy", -1), ("loss", -1))),)
    >>> usual_layout([one, two], last=one) == one
    True
    """
    votes = Counter(layouts)
    return max(votes, key=lambda one: (votes[one], one == last, len(str(one)), str(one)))


def _expected_answer(purpose: Purpose, reply: ClientReply) -> dict[str, Any] | None:
    """Return the probe handler's answer; None if it was not asked, whatever the reply holds."""
    return reply.answer if purpose.expects_answer else None


def _sorted(replies: Mapping[ClientId, Reply]) -> list[tuple[ClientId, Reply]]:
    # The order of arrival would show in the last bits of an average.
    return sorted(replies.items(), key=lambda item: (isinstance(item[0], str), item[0]))


def _entry(client: ClientId, stage: Stage, reason: str) -> dict[str, Any]:
    return {"client": client, "stage": stage, "reason": reason}


def _names(layout: Layout) -> str:
    text = ", ".join(f"{name} ({' '.join(key for key, _ in keys)})" for name, _, keys in layout)
    return text[:200]
