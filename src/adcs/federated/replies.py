"""Client replies: they are checked, read as reports and weighted for aggregation.

Replies are untrusted input. One bad reply could end a run or spoil the model: averaging spreads a
NaN, and a wrong shape raises an error. Each check raises a ValueError with one sentence; the
reply is refused, the reason is recorded, and the round continues with the other replies. Metrics
that some replies lack are left out of the others, so that clients of different versions can train
together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np

from adcs._types import ClientId
from adcs.federated.messages import (
    ALL_CHECKS,
    Arrays,
    ClientReply,
    Layout,
    Purpose,
    Refused,
    Reply,
    SentModel,
    Stage,
    clean_text,
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


EXAMPLES_FACTOR = 100.0
"""A client may report this many times the median number of examples of the federation."""

MAX_EXAMPLES = 1e7
"""The largest number of examples where no other client has reported one."""

MOST = 0.75
"""A metric that a larger fraction of the replies has is needed by a strategy that reads metrics."""


@dataclass(frozen=True)
class ReplyChecks:
    """What is checked in replies.

    Attributes
    ----------
    weight_key
        The number of examples, by which the strategy weights; None if it has no such key.
    loss_key
        The loss that the scheduler observes; a reply may lack it.
    required_loss_key
        A loss that the strategy itself computes with; no reply may lack it.
    max_examples
        The largest number of examples that a client may report; None allows 100 times the
        federation's median.
    enabled
        The checks that are made, by the names of `messages.CHECKS`.
    equal_metrics
        Whether the strategy needs the same metrics in all replies, as Flower's strategies do.
    reads_metrics
        Whether the strategy reads metrics with a function of the user's. Replies without a metric
        that most others have are refused then; otherwise the metric is left out for all.

    Examples
    --------
    >>> checks = ReplyChecks("num-examples", "train_loss")
    >>> "values" in checks.enabled, checks.max_examples
    (True, None)
    """

    weight_key: str | None
    loss_key: str
    required_loss_key: str | None = None
    max_examples: float | None = None
    enabled: frozenset[str] = ALL_CHECKS
    equal_metrics: bool = True
    reads_metrics: bool = False

    def without_losses(self) -> ReplyChecks:
        """Return the checks for replies that are not training replies."""
        return replace(self, loss_key="", required_loss_key=None)


def check_metrics(
    metrics: Mapping[str, Any], checks: ReplyChecks, limit: float = MAX_EXAMPLES
) -> None:
    """Raise ValueError if the number of examples or a loss cannot be used.

    Parameters
    ----------
    metrics
        The metrics of a reply.
    checks
        What they must contain.
    limit
        The largest number of examples, where `checks.max_examples` sets none.

    Examples
    --------
    >>> check_metrics({"num-examples": -5}, ReplyChecks("num-examples", "train_loss"))
    Traceback (most recent call last):
    ...
    adcs.federated.messages.Refused: num-examples must lie between 0 (not included) and 1e+07,
    got -5
    """
    if checks.weight_key is not None:
        _check_examples(_number(metrics, checks.weight_key), checks, limit)
    if checks.loss_key in metrics and "losses" in checks.enabled:
        try:
            _loss(metrics, checks.loss_key)
        except ValueError as error:
            raise Refused("losses", str(error)) from None
    required = checks.required_loss_key
    if required is not None and _loss(metrics, required) < 0:
        raise ValueError(f"{required} must not be negative, got {metrics[required]:g}")


def _check_examples(examples: float, checks: ReplyChecks, limit: float) -> None:
    relative = checks.max_examples is None and limit != MAX_EXAMPLES
    most = limit if checks.max_examples is None else checks.max_examples
    if "examples" in checks.enabled and not 0 < examples <= most:
        source = f", {EXAMPLES_FACTOR:g} times the median of the clients" if relative else ""
        raise Refused(
            "examples",
            f"{checks.weight_key} must lie between 0 (not included) and {most:g}{source}, "
            f"got {examples:g}",
        )


def _number(metrics: Mapping[str, Any], key: str) -> float:
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"metrics must hold a number {key}, got {value!r}"[:120])
    return _as_float(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # Python's integers have no bound.
        return math.inf if value > 0 else -math.inf


def _loss(metrics: Mapping[str, Any], key: str) -> float:
    loss = _number(metrics, key)
    if not abs(loss) <= MAX_VALUE:
        raise ValueError(f"{key} must be finite and at most {MAX_VALUE:g}, got {loss:g}")
    return loss


def usable_loss(value: object) -> float | None:
    """Return a loss that a scheduler can use; None if there is none.

    >>> usable_loss(0.5), usable_loss(float("nan")), usable_loss([0.5, 0.4])
    (0.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(_as_float(value)) <= MAX_VALUE else None


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
    adcs.federated.messages.Refused: eval_acc must be finite and at most 1e+30, got nan
    """
    for key, value in metrics.items():
        for number in value if isinstance(value, list) else [value]:
            if not abs(number) <= MAX_VALUE:
                raise Refused(
                    "values", f"{key} must be finite and at most {MAX_VALUE:g}, got {number}"
                )


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
        What is checked.
    examples
        The number of examples that each client has reported so far.
    uses_losses
        Whether the scheduler uses the losses of training replies; if not, they are not checked.

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

    def __init__(
        self,
        checks: ReplyChecks,
        examples: Mapping[ClientId, float] | None = None,
        *,
        uses_losses: bool = True,
    ) -> None:
        self.checks = checks
        self.uses_losses = uses_losses
        self.examples = {} if examples is None else examples
        self._without_losses = checks.without_losses()
        self._layouts: dict[str, Layout] = {}  # the usual layout of earlier rounds

    def batch(
        self, purpose: Purpose, *, sketch: Sketcher | None, with_update: bool = True
    ) -> ReplyBatch[Reply]:
        """Return an empty batch, for replies that are read as they arrive.

        Parameters
        ----------
        purpose
            What was asked for.
        sketch
            How whole updates are sketched for the scheduler; None keeps them whole.
        with_update
            Whether the scheduler's reports contain the update.
        """
        return ReplyBatch(self, purpose, sketch, with_update=with_update)

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
        purpose, sketch, with_update
            As of `batch`.
        replies
            Each client's reply.
        record
            The record of the round.
        """
        batch: ReplyBatch[Reply] = self.batch(purpose, sketch=sketch, with_update=with_update)
        for client, reply in replies.items():
            batch.add(client, reply)
        return batch.finish(record)

    def read_evaluations(
        self, replies: Iterable[tuple[ClientId, Reply]], record: RoundRecord
    ) -> list[tuple[ClientId, Reply]]:
        """Return the evaluation replies that can be used, sorted by client.

        A client may have sent several, for example of two sets of data.
        """
        numbered: dict[ClientId, tuple[ClientId, Reply]] = dict(enumerate(_by_client(replies)))
        found = RoundRecord()
        usable = self._read_numbered(numbered, found)
        for entry in (*found.refused, *found.failed):
            entry["client"] = numbered[entry["client"]][0]
        record.refused += found.refused
        record.failed += found.failed
        record.metrics_left_out = sorted({*record.metrics_left_out, *found.metrics_left_out})
        return [numbered[number] for number in usable]

    def _read_numbered(
        self, numbered: Mapping[ClientId, tuple[ClientId, Reply]], record: RoundRecord
    ) -> dict[ClientId, Reply]:
        """Return the usable evaluations by their number; the record has numbers for clients."""
        usable: dict[ClientId, Reply] = {}
        purpose = Purpose("evaluation", 0)
        checks = self._without_losses
        readable = self._readable({i: reply for i, (_, reply) in numbered.items()}, record)
        limit = self.examples_limit(
            {numbered[i][0]: self.stated_examples(reply) for i, reply in readable.items()}
        )
        for client, reply in readable.items():
            try:
                if self.checks.weight_key is not None and "records" in self.checks.enabled:
                    reply.check_records(arrays=False)
                check_metrics(reply.metrics, checks, limit)
                if "values" in self.checks.enabled:
                    check_finite(reply.metrics)
            except ValueError as error:
                record.refused.append(_entry(client, "evaluation", error))
                continue
            usable[client] = reply
        self.refuse_unusual("evaluation", usable, record, purpose)
        self.align_metrics(usable, record, "evaluation")
        return usable

    def _readable(
        self, replies: Mapping[ClientId, Reply], record: RoundRecord
    ) -> dict[ClientId, Reply]:
        """Return the evaluations that have a content of bounded size."""
        readable: dict[ClientId, Reply] = {}
        for client, reply in replies.items():
            if reply.error is not None:
                record.failed.append(_entry(client, "evaluation", reply.error))
                continue
            try:
                if "sizes" in self.checks.enabled:
                    reply.check_sizes(None)
            except ValueError as error:
                record.refused.append(_entry(client, "evaluation", error))
                continue
            readable[client] = reply
        return readable

    def stated_examples(self, reply: ClientReply) -> float | None:
        """Return the number of examples that a reply states; None if it states none."""
        key, answer = self.checks.weight_key, reply.answer
        if key is None:
            return None
        value = reply.metrics.get(key) if answer is None else answer.get("examples")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return _as_float(value)

    def examples_limit(self, stated: Mapping[ClientId, float | None]) -> float:
        """Return the largest number of examples that is plausible beside those of others.

        Parameters
        ----------
        stated
            The numbers that the replies in hand state; earlier ones are known.
        """
        if self.checks.weight_key is None or self.checks.max_examples is not None:
            return MAX_EXAMPLES
        known = dict(self.examples)
        known |= {client: n for client, n in stated.items() if n is not None and 0 < n < math.inf}
        if len(known) < 2:
            return MAX_EXAMPLES
        middle = (len(known) - 1) // 2  # Of two, the smaller: one of them may be absurd.
        values = np.fromiter(known.values(), np.float64, len(known))
        return EXAMPLES_FACTOR * float(np.partition(values, middle)[middle])

    def report(
        self,
        client: ClientId,
        purpose: Purpose,
        reply: ClientReply,
        sketch: Sketcher | None,
        *,
        with_update: bool,
    ) -> ClientReport:
        """Return the report in a reply, or raise ValueError with what is wrong with it.

        Whether the number of examples is plausible is known when all replies are there.
        """
        if purpose.model is None:
            return self._evaluation_report(client, purpose, reply.metrics)
        answer = _expected_answer(purpose, reply)
        if answer is not None:
            return self._answer_report(client, purpose, purpose.model, answer)
        if self.checks.weight_key is not None and "records" in self.checks.enabled:
            reply.check_records(arrays=True)
        metrics = reply.metrics
        uses_losses = self.uses_losses or purpose.stage == "probe"
        checks = self.checks if uses_losses else replace(self.checks, loss_key="")
        check_metrics(metrics, checks, math.inf)
        arrays = reply.checked_arrays(purpose.model, self.checks.enabled)
        signals: dict[str, Any] = {}
        if with_update and purpose.model.keys:
            update = purpose.model.update(arrays)
            del arrays
            # The model, or the part of it that makes up the update, may be unchanged. The reply
            # counts, and has no direction.
            if any(layer.any() for layer in update):
                bias = update[-1]
                whole = len(update) == len(purpose.model.keys)
                if whole and bias.ndim == 1 and bias.size <= MAX_CLASSES:
                    # The last array of a model is the bias of its output layer, if it has one.
                    signals["output_bias_update"] = bias
                if sketch is None:
                    vector = np.concatenate([layer.ravel() for layer in update])
                    vector.flags.writeable = False  # The scheduler may keep it without a copy.
                    signals["update"] = vector
                    signals["norm"] = float(np.linalg.norm(vector))
                else:
                    signals["sketch"] = sketch.sketch([layer.ravel() for layer in update])
        weight_key = self.checks.weight_key
        return ClientReport(
            client,
            purpose.server_round,
            loss=usable_loss(metrics.get(self.checks.loss_key)),
            examples=None if weight_key is None else metrics[weight_key],
            **{**signals, **metric_signals(metrics)},
        )

    def _answer_report(
        self, client: ClientId, purpose: Purpose, model: SentModel, answer: Mapping[str, Any]
    ) -> ClientReport:
        """Return the report in a probe handler's answer."""
        if "refused" in answer:
            raise ValueError(clean_text(answer["refused"]))
        weight_key = self.checks.weight_key
        if weight_key is not None and "examples" in answer:
            check_metrics({weight_key: answer["examples"]}, self._without_losses, math.inf)
        sketch = None
        if purpose.sketch is not None and answer.get("unchanged") is not True:
            sketch = purpose.sketch.decode(answer.get("sketch", b""))
            part = "missing" not in self.checks.enabled and (sketch.update_size or 0) < model.size
            if sketch.update_size != model.size and not part:
                raise ValueError(
                    f"sketch must be of an update of {model.size} numbers, got {sketch.update_size}"
                )
        return ClientReport(
            client,
            purpose.server_round,
            loss=self._answered_loss(client, purpose, answer.get("loss")),
            norm=None if purpose.sketch is not None else answer.get("norm"),
            sketch=sketch,
            examples=answer.get("examples"),
            **{"compute_seconds": answer.get("seconds"), **metric_signals(answer)},
        )

    def _answered_loss(self, client: ClientId, purpose: Purpose, loss: Any) -> Any:
        """Return the loss in a probe handler's answer after its check."""
        reason = validate_report(ClientReport(client, purpose.server_round, loss=loss))
        if reason is not None and "losses" in self.checks.enabled:
            raise Refused("losses", reason)
        return None if reason is not None else loss

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

    def refuse_unusual(
        self,
        name: str,
        replies: dict[ClientId, Reply],
        record: RoundRecord,
        purpose: Purpose,
        layouts: Mapping[ClientId, Layout] | None = None,
    ) -> list[ClientId]:
        """Remove and return the clients whose records differ from those of most others.

        The layouts that are compared may be given; by default they are those of the replies.
        """
        if not replies or "agreement" not in self.checks.enabled:
            return []
        if layouts is None:
            layouts = {client: reply.layout for client, reply in replies.items()}
        usual = usual_layout(layouts.values(), self._layouts.get(name))
        unusual = self.unusual(name, layouts)
        if len(layouts) > 1 or name not in self._layouts:
            self._layouts[name] = usual
        for client in unusual:
            reason = (
                f"records must be those of the other replies, {_names(usual)}, "
                f"got {_names(layouts[client])}"
            )
            record.refused.append(_entry(client, purpose.stage, Refused("agreement", reason)))
            del replies[client]
        return unusual

    def unusual(self, name: str, layouts: Mapping[ClientId, Layout]) -> list[ClientId]:
        """Return the clients whose records differ from those of most others.

        Parameters
        ----------
        name
            The kind of replies, "training" or "evaluation".
        layouts
            The records of each client's reply.
        """
        if not layouts or "agreement" not in self.checks.enabled:
            return []
        usual = usual_layout(layouts.values(), self._layouts.get(name))
        return [client for client, layout in layouts.items() if layout != usual]

    def align_metrics(
        self, replies: dict[ClientId, Reply], record: RoundRecord, stage: Stage
    ) -> set[ClientId]:
        """Leave metrics out that not all replies have; return the clients that are refused."""
        refused: set[ClientId] = set()
        if not self.checks.equal_metrics or len(replies) < 2:
            return refused
        keys = {client: reply.metric_keys for client, reply in replies.items()}
        if len(set(keys.values())) == 1:
            return refused
        votes = Counter(key for each in keys.values() for key in each)
        if self.checks.reads_metrics and "agreement" in self.checks.enabled:
            needed = {key for key, count in votes.items() if count > MOST * len(replies)}
            for client, each in keys.items():
                if needed - each:
                    missing = ", ".join(sorted(name for name, _ in needed - each))
                    reason = f"metrics must be those of the other replies, got none of {missing}"
                    record.refused.append(_entry(client, stage, Refused("agreement", reason)))
                    refused.add(client)
                    del replies[client]
            keys = {client: keys[client] for client in replies}
        common = frozenset.intersection(*keys.values())
        names = {name for name, _ in common}
        dropped = {name for each in keys.values() for name, _ in each - common}
        for client, each in keys.items():
            if each != common:
                replies[client].keep_metrics(names)
        record.metrics_left_out = sorted({*record.metrics_left_out, *map(clean_text, dropped)})
        return refused


class ReplyBatch(Generic[Reply]):
    """Replies to the messages of one purpose, each of which is read as it arrives.

    Of a reply that carries no trained model only the report is kept.

    Parameters
    ----------
    reader
        The reader that has the checks.
    purpose, sketch, with_update
        As of `ReplyReader.batch`.

    Attributes
    ----------
    clients
        The clients that have replied, with an error or not.
    contents, nbytes
        The number of replies without an error, and their bytes.

    Examples
    --------
    >>> from adcs.federated import PlainReply
    >>> reader = ReplyReader(ReplyChecks(None, "train_loss"))
    >>> purpose = Purpose("training", 0, SentModel({"w": np.zeros(2)}))
    >>> batch = reader.batch(purpose, sketch=None)
    >>> batch.add(3, PlainReply({"w": np.ones(2)}, {"train_loss": 0.5}))
    True
    >>> batch.usable()
    [3]
    >>> batch.finish(RoundRecord()).reports[0].loss
    0.5
    """

    def __init__(
        self, reader: ReplyReader, purpose: Purpose, sketch: Sketcher | None, *, with_update: bool
    ) -> None:
        self.clients: set[ClientId] = set()
        self.contents = 0
        self.nbytes = 0
        self._reader = reader
        self._purpose = purpose
        self._sketch = sketch
        self._with_update = with_update
        self._stated: dict[ClientId, float | None] = {}  # numbers of examples
        self._reports: dict[ClientId, ClientReport] = {}
        self._trained: dict[ClientId, Reply] = {}  # in order of arrival
        self._layouts: dict[ClientId, Layout] = {}
        self._failed: dict[ClientId, str] = {}
        self._refused: dict[ClientId, ValueError] = {}

    def add(self, client: ClientId, reply: Reply, purpose: Purpose | None = None) -> bool:
        """Read a reply; return whether it can be used, as far as it alone shows.

        Parameters
        ----------
        client, reply
            The client and its reply.
        purpose
            What this client was asked for, if that is another model than the others were sent.
        """
        self.clients.add(client)
        if reply.error is not None:
            self._failed[client] = reply.error
            return False
        self.contents += 1
        self.nbytes += reply.nbytes
        reader, purpose = self._reader, self._purpose if purpose is None else purpose
        try:
            purpose = purpose.of(client)
            if "sizes" in reader.checks.enabled:
                reply.check_sizes(purpose.model)
            self._stated[client] = reader.stated_examples(reply)
            report = reader.report(
                client, purpose, reply, self._sketch, with_update=self._with_update
            )
            if (reason := validate_report(report)) is not None:
                raise ValueError(reason)
            report = self._comparable(report, purpose.model)
        except ValueError as error:
            self._refused[client] = error.with_traceback(None)  # Its frames hold the arrays.
            return False
        self._reports[client] = report
        if purpose.model is not None and _expected_answer(purpose, reply) is None:
            self._trained[client] = reply
            self._layouts[client] = self._layout(reply, purpose.model)
        return True

    def _comparable(self, report: ClientReport, sent: SentModel | None) -> ClientReport:
        """Return a report without its update if that is of another part of the model than others'.

        Number by number it would be compared with what others changed elsewhere.
        """
        model = self._purpose.model
        if sent is model or model is None or sent is None or sent.has_layout_of(model):
            return report
        return replace(report, update=None, sketch=None, norm=report.update_norm)

    def _layout(self, reply: ClientReply, sent: SentModel) -> Layout:
        """Return the layout that must agree with those of others.

        An aggregation of the user's own may send clients different parts of the model. Those that
        return what they were sent agree.
        """
        model = self._purpose.model
        if self._reader.checks.equal_metrics or model is None or sent is model:
            return reply.layout
        part, whole = tuple(sorted(sent.arrays)), tuple(sorted(model.arrays))
        return tuple(
            (name, kind, whole if kind == "ArrayRecord" and keys == part else keys)
            for name, kind, keys in reply.layout
        )

    def usable(self) -> list[ClientId]:
        """Return the clients whose replies can be aggregated if no more arrive, in their order."""
        implausible = self._implausible()
        layouts = {c: self._layouts[c] for c in self._trained if c not in implausible}
        unusual = self._reader.unusual("training", layouts)
        return [client for client in layouts if client not in unusual]

    def remove(self, client: ClientId) -> Reply:
        """Remove and return a reply that is not aggregated."""
        reply = self._trained.pop(client)
        del self._reports[client], self._stated[client]
        self.clients.remove(client)
        self.contents -= 1
        self.nbytes -= reply.nbytes
        return reply

    def finish(self, record: RoundRecord) -> UsableReplies[Reply]:
        """Return what can be used; refusals and errors are added to the record of the round."""
        for client, error in self._implausible().items():
            self._refused[client] = error
            self._reports.pop(client, None)
            self._trained.pop(client, None)
        stage = self._purpose.stage
        record.failed += [_entry(c, stage, self._failed[c]) for c in _sorted(self._failed)]
        record.refused += [_entry(c, stage, self._refused[c]) for c in _sorted(self._refused)]
        trained = {client: self._trained[client] for client in _sorted(self._trained)}
        layouts = {client: self._layouts[client] for client in trained}
        refused = set(
            self._reader.refuse_unusual("training", trained, record, self._purpose, layouts)
        )
        if stage == "training":
            refused |= self._reader.align_metrics(trained, record, stage)
        order = [client for client in _sorted(self._reports) if client not in refused]
        return UsableReplies([self._reports[client] for client in order], trained)

    def _implausible(self) -> dict[ClientId, Refused]:
        """Return the clients whose numbers of examples are implausible beside those of others."""
        found: dict[ClientId, Refused] = {}
        if self._purpose.model is None:
            return found
        checks, limit = self._reader.checks, self._reader.examples_limit(self._stated)
        for client, examples in self._stated.items():
            try:
                if examples is not None:
                    _check_examples(examples, checks, limit)
            except Refused as error:
                found[client] = error
        return found


def usual_layout(layouts: Iterable[Layout], last: Layout | None) -> Layout:
    """Return the layout of most replies; ties go to the last round's, then to the largest.

    >>> one = (("arrays", "ArrayRecord", ("w",)),)
    >>> two = (("arrays", "ArrayRecord", ("v", "w")),)
    >>> usual_layout([one, two], last=one) == one
    True
    """
    votes = Counter(layouts)
    return max(votes, key=lambda one: (votes[one], one == last, len(str(one)), str(one)))


def _expected_answer(purpose: Purpose, reply: ClientReply) -> dict[str, Any] | None:
    """Return the probe handler's answer; None if it was not asked, whatever the reply holds."""
    return reply.answer if purpose.expects_answer else None


def _sorted(clients: Iterable[ClientId]) -> list[ClientId]:
    # The order of arrival would show in the last bits of an average.
    return sorted(clients, key=lambda client: (isinstance(client, str), client))


def _by_client(replies: Iterable[tuple[ClientId, Reply]]) -> list[tuple[ClientId, Reply]]:
    return sorted(replies, key=lambda pair: (isinstance(pair[0], str), pair[0]))


def _entry(client: ClientId, stage: Stage, reason: str | ValueError) -> dict[str, Any]:
    remedy = reason.remedy if isinstance(reason, Refused) else ""
    return {"client": client, "stage": stage, "reason": clean_text(reason) + remedy}


def _names(layout: Layout) -> str:
    text = ", ".join(f"{name} ({' '.join(keys)})" if keys else name for name, _, keys in layout)
    return clean_text(text, 80)


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
        if sent.dtype.kind == "f" and key in arrays
    }
