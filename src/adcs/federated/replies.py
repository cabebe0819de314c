"""Client replies: they are checked, read as reports and weighted for aggregation.

Replies are untrusted input. One bad reply could end a run or spoil the model: averaging spreads a
NaN, and a wrong shape raises an error. Each check raises a ValueError with one sentence; the
reply is refused, the reason is recorded, and the round continues with the other replies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from adcs._types import ClientId
from adcs.federated.messages import (
    Arrays,
    ClientReply,
    Layout,
    Purpose,
    Reply,
    SentModel,
    Stage,
)
from adcs.federated.recorder import RoundRecord
from adcs.reports.report import (
    MAX_CLASSES,
    MAX_VALUE,
    NUMBERS,
    PER_CLASS,
    SIGNALS,
    ClientReport,
    validate_report,
)
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Cohort

METRIC_SIGNALS = tuple(
    name for name in (*NUMBERS, *PER_CLASS) if name not in ("loss", "norm", "examples")
)
"""Signals that clients report as a metric of the same name: a number, or a list of numbers.

The loss and the number of examples have names that the user chooses; the norm is measured.
"""


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
    >>> from adcs.federated import PlainReply
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
            return self._evaluation_report(client, purpose, reply.metrics)
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
                if update[-1].ndim == 1 and update[-1].size <= MAX_CLASSES:
                    # The last array of a model is the bias of its output layer, if it has one.
                    signals["output_bias_update"] = update[-1]
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
            **{**signals, **metric_signals(metrics)},
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
            **{"compute_seconds": answer.get("seconds"), **metric_signals(answer)},
        )

    def _evaluation_report(
        self, client: ClientId, purpose: Purpose, metrics: Mapping[str, Any]
    ) -> ClientReport:
        """Return the report in an evaluation that was a probe for numbers."""
        signals = metric_signals(metrics)
        for name in sorted(purpose.signals - {"loss"}):
            if name not in signals:
                raise ValueError(
                    f"evaluate reply must have a metric {name!r} ({SIGNALS[name].meaning}): return "
                    f"it from your evaluate handler, got {sorted(metrics)}"
                )
        loss = self._loss_of(metrics) if "loss" in purpose.signals else None
        return ClientReport(client, purpose.server_round, loss=loss, **signals)

    def _loss_of(self, metrics: Mapping[str, Any]) -> Any:
        """Return the loss in an evaluation's metrics, or raise ValueError."""
        key = self.checks.loss_key
        if key not in metrics:
            losses = [
                name for name in metrics if "loss" in name.lower() and name not in METRIC_SIGNALS
            ]
            if len(losses) != 1:
                raise ValueError(
                    f"evaluate reply must have a metric {key!r}, or one with 'loss' in its name, "
                    f"got {sorted(metrics)}"
                )
            key = losses[0]
        check_finite({key: metrics[key]})
        return metrics[key]

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


def has_weights(cohort: Cohort) -> bool:
    """Return whether the cohort's update differs from the strategy's own average.

    >>> has_weights(Cohort.of([1, 2])), has_weights(Cohort((1, 2), (1.0, 3.0)))
    (False, True)
    """
    return not cohort.normalise or len(set(cohort.weights)) > 1


def apply_weights(
    cohort: Cohort,
    replies: Mapping[ClientId, ClientReply],
    model: SentModel,
    weight_key: str,
    examples: Mapping[ClientId, float],
    clients: Collection[ClientId],
) -> None:
    """Change the replies so that their average by `weight_key` is the cohort's update.

    Strategies average by a metric, the number of examples n: sum n x / sum n. A cohort's weights w
    multiply that metric. The result, sum n w x / sum n w, is the update of a cohort with
    `normalise=True`. With `normalise=False` the update is sum p w g, where p = n / (sum of n over
    all clients). That is the same average times s = sum p w over the cohort, so each reply is first
    replaced by (model sent) + s (reply - model sent).

    Parameters
    ----------
    cohort
        The cohort, with its weights.
    replies
        The replies to aggregate; they are changed.
    model
        The model that was sent.
    weight_key
        The metric by which the strategy averages.
    examples
        The numbers of examples that clients have reported.
    clients
        All clients that could have been selected. Those that have not reported their number of
        examples count as average ones.

    Examples
    --------
    >>> from adcs.federated import PlainReply
    >>> replies = {3: PlainReply({"w": np.ones(2)}, {"n": 10}), 7: PlainReply(metrics={"n": 10})}
    >>> model = SentModel({"w": np.zeros(2)})
    >>> apply_weights(Cohort((3, 7), (1.0, 3.0)), replies, model, "n", {}, (3, 7))
    >>> replies[7].metrics
    {'n': 30.0}
    """
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    scale = 1.0
    if not cohort.normalise:
        reported = [examples[client] for client in clients if client in examples]
        mean = sum(reported) / len(reported) if reported else 1.0
        total = sum(examples.get(client, mean) for client in clients)
        scale = sum(examples.get(client, mean) * weights[client] for client in replies) / total
    for client, reply in replies.items():
        reply.replace_metric(weight_key, float(reply.metrics[weight_key]) * weights[client])
        if scale != 1.0:
            reply.replace_arrays(_scaled(reply.arrays(model), model, scale), model)


def _scaled(arrays: Arrays, model: SentModel, scale: float) -> Arrays:
    """Return the floating-point arrays of a reply with its update multiplied by `scale`."""
    return {
        # A Python float as scale keeps a float32 model float32.
        key: np.asarray(sent + scale * (arrays[key] - sent), dtype=arrays[key].dtype)
        for key, sent in model.arrays.items()
        if sent.dtype.kind == "f"
    }
