"""Flower messages: sending them, matching replies, and converting both to plain values.

Flower forgets a message whose reply did not come in time, while the node continues to work on it.
`Transport` keeps such messages in the client registry and collects late replies before each round.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from adcs.federated.client_registry import ClientRegistry, PendingMessage
from adcs.federated.messages import (
    ALL_CHECKS,
    MAX_METRICS,
    TEXT_LIMIT,
    Arrays,
    ClientReply,
    Layout,
    MetricKey,
    Purpose,
    Refused,
    SentModel,
    check_values,
    clean_text,
)
from adcs.federated.probes import ANSWER, QUESTION, Probe, ProbeQuestion
from adcs.flower.receive import ReplyStream, clock_of

APP_RAISED = 2
"""Flower's error code of a ClientApp that raised an exception."""

FIRST_ASKED = 2
"""How many nodes are asked one after the other, until one answers, whether they have the mod."""

MAX_RECORDS = 64
"""A reply with more records is refused unread."""

MAX_LIST = 100_000
"""A reply with more numbers in lists of metrics is refused unread."""

HEADER_BYTES = 4096
"""An array of so many bytes more than its numbers need is refused unread."""

PULLED_BYTES = 64 * 2**20
"""About how many bytes of replies are pulled from the grid together."""

OBJECT_BYTES = 64 * 2**20
"""By how much a serialised object, such as trees, may be larger than four times that sent."""


class Transport:
    """Sends messages, matches replies, and keeps unanswered messages in the client registry.

    Parameters
    ----------
    registry
        The client registry.
    """

    def __init__(self, registry: ClientRegistry[int]) -> None:
        self.registry = registry
        self.has_mod: bool | None = None  # whether the app has probe_mod; None if not known

    def send(
        self,
        grid: Grid,
        messages: Sequence[Message],
        timeout: float | None,
        purpose: Purpose,
        reply_bytes: int = 0,
    ) -> Iterator[tuple[int, FlowerReply]]:
        """Send messages and yield each node's reply as it arrives; the others are pending then.

        Parameters
        ----------
        grid, messages, timeout
            The grid, what to send, and how long to wait.
        purpose
            What the messages ask for.
        reply_bytes
            How large a reply may be; large ones are not pulled all together.
        """
        stream = ReplyStream(grid, at_once=max(PULLED_BYTES // max(reply_bytes, 1), 1))
        stream.push(messages)
        nodes = dict(stream.unanswered)
        try:
            for reply in stream.replies(timeout):
                yield nodes[reply.metadata.reply_to_message_id], FlowerReply(reply)
        finally:
            for message_id, node in stream.unanswered.items():
                asked = purpose.of(self.registry.client_of(node))
                self.registry.add_pending(message_id, node, asked, clock_of(grid)())

    def ask_partitions(
        self, grid: Grid, training: Mapping[int, Message], timeout: float | None, purpose: Purpose
    ) -> dict[int, FlowerReply]:
        """Ask nodes for their partition ids; return the reply of each that has answered.

        Without `probe_mod` a question would reach the user's handler. So one node is asked first,
        in a training message that any handler can answer; its app is as a rule that of all nodes.
        If it lacks the mod, the others are not asked.

        Parameters
        ----------
        grid, timeout, purpose
            The grid, how long to wait, and the purpose of the messages.
        training
            The strategy's training message for each node to ask.
        """
        question = identity_content()
        answered: dict[int, FlowerReply] = {}
        nodes = list(training)
        for node in nodes[:FIRST_ASKED] if self.has_mod is None else ():
            content = RecordDict({**dict(training[node].content.items()), **dict(question.items())})
            nodes.remove(node)
            kind = training[node].metadata.message_type
            answered |= dict(self.send(grid, [Message(content, node, kind)], timeout, purpose))
            reply = answered.get(node)
            if reply is not None and reply.error is None:
                self.has_mod = reply.answer is not None
                break
            if reply is not None and reply.raised:
                self.has_mod = False  # Unless the next node answers: this one may be broken.
        if self.has_mod:
            messages = [
                Message(question, node, training[node].metadata.message_type) for node in nodes
            ]
            answered |= dict(self.send(grid, messages, timeout, purpose))
        elif self.has_mod is False:
            self.registry.partition_ids = False
        return answered

    def match(
        self,
        messages: Iterable[Message],
        replies: Iterable[Message],
        purpose: Purpose,
        now: float,
    ) -> list[tuple[int, FlowerReply]]:
        """Return the replies with their nodes, in the order of the messages; others are pending.

        Replies are matched by the message they reply to: an error made by the SuperLink carries
        the SuperLink's own node id.
        """
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        nodes.pop("", None)
        answered: dict[str, FlowerReply] = {}
        for reply in replies:
            message_id = reply.metadata.reply_to_message_id
            if message_id in nodes and message_id not in answered:
                answered[message_id] = FlowerReply(reply)
        for message_id, node in nodes.items():
            if message_id not in answered:
                asked = purpose.of(self.registry.client_of(node))
                self.registry.add_pending(message_id, node, asked, now)
        return [(node, answered[name]) for name, node in nodes.items() if name in answered]

    def collect_late(self, grid: Grid) -> list[tuple[PendingMessage[int], FlowerReply]]:
        """Return the late replies that have arrived, and forget messages that are too old."""
        late = []
        pending = self.registry.pending_messages()
        for reply in grid.pull_messages(pending) if pending else ():
            message = self.registry.pop_pending(reply.metadata.reply_to_message_id)
            if message is not None:
                late.append((message, FlowerReply(reply)))
        self.registry.expire(clock_of(grid)())
        return late

    def wait_late(
        self, grid: Grid, timeout: float | None
    ) -> list[tuple[PendingMessage[int], FlowerReply]]:
        """Wait until a late reply arrives or a message is too old; return the late replies.

        Parameters
        ----------
        grid
            The grid.
        timeout
            The longest wait in seconds; None sets no limit.
        """
        clock, expiry = clock_of(grid), self.registry.next_expiry()
        if expiry is None:
            return []
        left = max(expiry - clock(), 0.0)
        stream = ReplyStream(grid)
        stream.expect(self.registry.pending_by_message())
        replies = list(islice(stream.replies(left if timeout is None else min(left, timeout)), 1))
        late = []
        for reply in (*replies, *stream.replies(0.0)):
            message = self.registry.pop_pending(reply.metadata.reply_to_message_id)
            if message is not None:
                late.append((message, FlowerReply(reply)))
        self.registry.expire(clock())
        return late


class FlowerReply(ClientReply):
    """A reply message of Flower's.

    Parameters
    ----------
    message
        The message. Its content is replaced by a changed copy where the reply is changed.
    """

    def __init__(self, message: Message) -> None:
        if message.has_error():
            # Strategies log the reason, which is a client's text. With what `error` puts before
            # it, it is not too long for records.
            error = message.error
            limit = TEXT_LIMIT - len(_error_text(error.code, ""))
            message.error = Error(error.code, clean_text(error.reason, limit))
        self.message = message
        self._metrics: dict[str, Any] | None = None
        self._answer: dict[str, Any] | None = None

    @property
    def error(self) -> str | None:
        """Flower's error code and reason, or None."""
        if not self.message.has_error():
            return None
        return _error_text(self.message.error.code, self.message.error.reason)

    @property
    def raised(self) -> bool:
        """Whether the ClientApp raised an exception."""
        return self.message.has_error() and self.message.error.code == APP_RAISED

    @property
    def nbytes(self) -> int:
        """The bytes of the content."""
        return content_bytes(self.message.content) if self.message.has_content() else 0

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of all MetricRecords together."""
        if self._metrics is None:
            self._metrics = metrics_of(self.message.content)
        return self._metrics

    @property
    def metric_keys(self) -> frozenset[MetricKey]:
        """The metrics by name, with the lengths of lists."""
        return frozenset(
            (key, len(value) if isinstance(value, list) else -1)
            for key, value in self.metrics.items()
        )

    @property
    def layout(self) -> Layout:
        """Names and kinds of the ArrayRecords and MetricRecords, and the keys of arrays."""
        return tuple(
            (
                name,
                type(record).__name__,
                tuple(sorted(record)) if isinstance(record, ArrayRecord) else (),
            )
            for name, record in sorted(self.message.content.items())
            if isinstance(record, (ArrayRecord, MetricRecord))
        )

    def check_sizes(self, model: SentModel | None) -> None:
        """Raise `Refused` if there is too much to read, by what the headers say."""
        content = self.message.content
        if len(content) > MAX_RECORDS:
            raise Refused(
                "sizes", f"reply must have at most {MAX_RECORDS} records, got {len(content)}"
            )
        values = [record for record in content.values() if not isinstance(record, ArrayRecord)]
        count = sum(len(record) for record in values)
        if count > MAX_METRICS:
            raise Refused("sizes", f"reply must have at most {MAX_METRICS} metrics, got {count}")
        numbers = sum(
            len(value) for record in values for value in record.values() if isinstance(value, list)
        )
        if numbers > MAX_LIST:
            raise Refused(
                "sizes", f"lists of metrics must have at most {MAX_LIST} numbers, got {numbers}"
            )
        sent = {} if model is None else model.arrays
        for record in content.values():
            if isinstance(record, ArrayRecord):
                for key, array in record.items():
                    _check_array_size(key, array, sent.get(key))

    @property
    def answer(self) -> dict[str, Any] | None:
        """The answer of `probe_mod`."""
        if self._answer is None:
            record = self.message.content.get(ANSWER)
            self._answer = dict(record.items()) if isinstance(record, ConfigRecord) else None
        return self._answer

    def arrays(self, model: SentModel) -> Arrays:
        """Return the arrays of the model's record, or raise ValueError if one cannot be read."""
        return read_arrays(self._array_record(model)[1])

    def checked_arrays(self, model: SentModel, checks: Collection[str] = ALL_CHECKS) -> Arrays:
        """Return the model's arrays after the checks; other ArrayRecords are checked as well."""
        checked = super().checked_arrays(model, checks)
        model_record = self._array_record(model)[0]
        for name, record in self.message.content.items():
            if isinstance(record, ArrayRecord) and name != model_record and "values" in checks:
                for key, array in record.items():
                    check_values(key, _read_array(key, array))
        return checked

    def replace_arrays(self, arrays: Mapping[str, NDArray[Any]], model: SentModel) -> None:
        """Replace arrays in a copy of the model's record."""
        name, record = self._array_record(model)
        changed = record.copy()
        for key, values in arrays.items():
            changed[key] = Array(values)
        self._replace_record(name, changed)

    def replace_metric(self, key: str, value: float) -> None:
        """Replace a metric in a copy of its record."""
        for name, record in list(self.message.content.items()):
            if isinstance(record, MetricRecord) and key in record:
                changed = record.copy()
                changed[key] = value
                self._replace_record(name, changed)

    def keep_metrics(self, keys: Collection[str]) -> None:
        """Remove all other metrics, in copies of their records."""
        for name, record in list(self.message.content.items()):
            if isinstance(record, MetricRecord) and any(key not in keys for key in record):
                kept = {key: value for key, value in record.items() if key in keys}
                self._replace_record(name, MetricRecord(kept))

    def check_records(self, *, arrays: bool) -> None:
        """Raise ValueError unless there is one record of each kind, as Flower's strategies need."""
        for kind in (ArrayRecord, MetricRecord) if arrays else (MetricRecord,):
            count = sum(isinstance(record, kind) for record in self.message.content.values())
            if count != 1:
                raise Refused("records", f"reply must have one {kind.__name__}, got {count}")

    def _array_record(self, model: SentModel) -> tuple[str, ArrayRecord]:
        """Return the ArrayRecord of the name that was sent, else the first one."""
        content = self.message.content
        for name in (model.record_name, *content):
            if isinstance(record := content.get(name), ArrayRecord):
                return name, record
        raise ValueError("reply must carry an ArrayRecord, got none")

    def _replace_record(self, name: str, record: ArrayRecord | MetricRecord) -> None:
        self.message.content = RecordDict({**dict(self.message.content.items()), name: record})
        self._metrics = None


def _error_text(code: int, reason: str | None) -> str:
    return f"error {code}: {reason}"


def metrics_of(content: RecordDict) -> dict[str, Any]:
    """Return the metrics of all MetricRecords of a content.

    >>> metrics_of(RecordDict({"metrics": MetricRecord({"train_loss": 0.5})}))
    {'train_loss': 0.5}
    """
    return {
        key: value
        for record in content.values()
        if isinstance(record, MetricRecord)
        for key, value in record.items()
    }


def read_arrays(record: ArrayRecord) -> Arrays:
    """Return a record's arrays, or raise ValueError if one cannot be read.

    >>> import numpy as np
    >>> read_arrays(ArrayRecord({"w": Array(np.ones(2))}))
    {'w': array([1., 1.])}
    """
    return {key: _read_array(key, array) for key, array in record.items()}


def _read_array(key: str, array: Array) -> NDArray[Any]:
    try:
        values: NDArray[Any] = array.numpy()
    except Exception as error:  # np.load raises many kinds on foreign bytes
        raise ValueError(f"array {key!r} cannot be read: {str(error)[:80]}") from error
    if not isinstance(values, np.ndarray):  # np.load opens archives as well.
        raise ValueError(f"array {key!r} must be one array, got {type(values).__name__}")
    if tuple(array.shape) != values.shape:
        raise ValueError(
            f"array {key!r} must have the shape of its header {tuple(array.shape)}, "
            f"got {values.shape}"
        )
    return values


def _check_array_size(key: str, array: Array, sent: NDArray[Any] | None) -> None:
    """Raise `Refused` if an array has other bytes than its header says, or too many."""
    held = len(array.data)
    if sent is not None and sent.dtype == np.uint8:
        most = 4 * sent.nbytes + OBJECT_BYTES
        if held > most:
            raise Refused("sizes", f"array {key!r} must have at most {most} bytes, got {held}")
    try:
        file = io.BytesIO(array.data[:HEADER_BYTES])
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception:  # Damaged headers fail in many ways; reading the array says which.
        return
    needed = math.prod(shape) * dtype.itemsize + file.tell()
    if held != needed:
        raise Refused("sizes", f"array {key!r} declares {needed} bytes, but the reply holds {held}")


def sent_record(content: RecordDict, name: str = "") -> tuple[str, ArrayRecord]:
    """Return the name and the ArrayRecord of the model in a training message.

    Parameters
    ----------
    content
        The message's content.
    name
        The name of the record, if it has one of this name; otherwise the first is the model.

    Examples
    --------
    >>> model = ArrayRecord({"w": Array(np.zeros(2))})
    >>> sent_record(RecordDict({"control": ArrayRecord(), "arrays": model}), "arrays")[0]
    'arrays'
    """
    for each in (name, *content):
        if isinstance(record := content.get(each), ArrayRecord):
            return each, record
    raise ValueError("a training message must carry an ArrayRecord, got none")


def sent_arrays(content: RecordDict, name: str = "") -> tuple[str, Arrays]:
    """Return the name and the arrays of the model in a training message; as of `sent_record`.

    >>> import numpy as np
    >>> sent_arrays(RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})}))
    ('arrays', {'w': array([0., 0.])})
    """
    found, record = sent_record(content, name)
    return found, read_arrays(record)


def array_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return arrays as Flower's record of them.

    >>> array_record({"w": np.zeros(2)})["w"].shape
    (2,)
    """
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def shapes_of(record: ArrayRecord) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a record.

    >>> shapes_of(array_record({"w": np.zeros((2, 3))}))
    {'w': (2, 3)}
    """
    return {key: tuple(array.shape) for key, array in record.items()}


def names_any(patterns: Sequence[str] | None, names: Iterable[str]) -> bool:
    """Return whether a pattern names one of the arrays; None names all.

    >>> names_any(["head.*"], ["head.w", "body.w"]), names_any(["head.*"], ["body.w"])
    (True, False)
    """
    return patterns is None or any(fnmatchcase(name, each) for name in names for each in patterns)


def are_equal(one: ArrayRecord, other: ArrayRecord) -> bool:
    """Return whether two records hold the same arrays.

    >>> are_equal(ArrayRecord({"w": Array(np.zeros(2))}), ArrayRecord({"w": Array(np.ones(2))}))
    False
    """
    if one is other:
        return True
    return list(one) == list(other) and all(one[key] == other[key] for key in one)


def identity_content() -> RecordDict:
    """Return the content of a message that asks a node for its partition id."""
    return RecordDict({QUESTION: ConfigRecord(ProbeQuestion(partition=True).encode())})


def find_question(content: RecordDict) -> ProbeQuestion | None:
    """Return the question in a message's content, or None if the message is no probe.

    >>> find_question(identity_content())
    ProbeQuestion(partition=True, sketch=None, loss_key='', weight_key='', arrays=None, record='')
    """
    record: Any = content.get(QUESTION)
    return None if record is None else ProbeQuestion.decode(record)


@dataclass(frozen=True)
class Addressed:
    """How a node is asked to evaluate a model.

    Attributes
    ----------
    message_type
        The type of the message, which says the handler.
    configs
        Its ConfigRecords.

    Examples
    --------
    >>> Addressed("evaluate", {"config": {"batch": 32}}).message_type
    'evaluate'
    """

    message_type: str
    configs: Mapping[str, Mapping[str, Any]]


def addressed_evaluations(messages: Iterable[Message]) -> dict[int, Addressed]:
    """Return how each node is asked to evaluate, by the first of its messages.

    >>> content = RecordDict({"config": ConfigRecord({"batch": 32})})
    >>> addressed_evaluations([Message(content, 7, "evaluate")])
    {7: Addressed(message_type='evaluate', configs={'config': {'batch': 32}})}
    """
    shared: dict[tuple[int, str], Addressed] = {}  # all messages of a strategy share one content
    found: dict[int, Addressed] = {}
    for message in messages:
        content, kind = message.content, message.metadata.message_type
        if (id(content), kind) not in shared:
            configs = {
                name: dict(record.items())
                for name, record in content.items()
                if isinstance(record, ConfigRecord)
            }
            shared[id(content), kind] = Addressed(kind, configs)
        found.setdefault(message.metadata.dst_node_id, shared[id(content), kind])
    return found


def probe_messages(
    probe: Probe,
    training: Iterable[Message],
    evaluate_config: ConfigRecord,
    evaluations: Mapping[int, Addressed] | None = None,
) -> list[Message]:
    """Return the messages of a probe.

    Flower sends a message to a handler before mods run, so a question travels in a message of type
    `train`; `probe_mod` removes it before the user's handler is called.

    Parameters
    ----------
    probe
        The probe.
    training
        The strategy's training message for each node to probe.
    evaluate_config
        The configuration of evaluate messages to nodes that have not evaluated yet.
    evaluations
        How the strategy has asked nodes to evaluate.
    """
    server_round = probe.purpose.server_round + 1  # Flower counts rounds from 1.
    question = None if probe.question is None else ConfigRecord(probe.question.encode())
    # All messages of a strategy share one content.
    contents: dict[tuple[int, int], RecordDict] = {}
    messages = []
    for message in training:
        content, node = message.content, message.metadata.dst_node_id
        # A strategy may train by another handler, such as "train.personal".
        kind, last = message.metadata.message_type, None
        if probe.handler == "evaluate":
            last = (evaluations or {}).get(node)
            kind = probe.handler if last is None else last.message_type
        key = id(content), id(last)
        if key not in contents:
            changed = content
            if probe.handler == "evaluate":
                configs = _first_configs(content, evaluate_config) if last is None else last.configs
                changed = _evaluation_content(content, configs, server_round)
            elif question is not None:
                changed = RecordDict({**dict(content.items()), QUESTION: question})
            contents[key] = changed
        messages.append(Message(contents[key], node, kind))
    return messages


def _first_configs(
    content: RecordDict, evaluate_config: ConfigRecord
) -> dict[str, Mapping[str, Any]]:
    """Return the configs of an evaluation by a node that the strategy has not asked for one."""
    names = [name for name, record in content.items() if isinstance(record, ConfigRecord)]
    config = {**dict(evaluate_config.items()), "server-round": 0}
    return {names[0] if names else "config": config}


def _evaluation_content(
    content: RecordDict, configs: Mapping[str, Mapping[str, Any]], server_round: int
) -> RecordDict:
    """Return the arrays of a training message with the configs of an evaluation."""
    now = {"server-round": server_round}
    current = {
        name: ConfigRecord({**config, **(now if "server-round" in config else {})})
        for name, config in configs.items()
    }
    arrays = {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}
    return RecordDict({**arrays, **current})


def new_message(message: Message) -> Message:
    """Return a new message of the same content: a time to live counts from construction."""
    metadata = message.metadata
    return Message(
        message.content,
        metadata.dst_node_id,
        metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )


def copy_content(content: RecordDict) -> RecordDict:
    """Return a copy that can be changed independently; serialised arrays are shared.

    >>> content = RecordDict({"config": ConfigRecord({"steps": [1, 2]})})
    >>> copy_content(content)["config"]["steps"].append(3)
    >>> content["config"]["steps"]
    [1, 2]
    """
    copied = RecordDict()
    for name, record in content.items():
        duplicate = record.copy()
        if isinstance(duplicate, (ConfigRecord, MetricRecord)):
            for key, value in duplicate.items():
                if isinstance(value, list):
                    duplicate[key] = list(value)  # type: ignore[assignment]
        copied[name] = duplicate
    return copied


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a content: keys and values, without Flower's overhead.

    Metrics and settings beyond those that a reply may have are counted as 16 bytes each.

    >>> content_bytes(RecordDict({"config": ConfigRecord({"lr": 0.1})}))
    10
    """
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += record_bytes(record)
        elif len(record) > MAX_METRICS:
            total += 16 * len(record)
        else:
            total += sum(len(key) + _value_bytes(value) for key, value in record.items())
    return total


def record_bytes(record: ArrayRecord) -> int:
    """Return the bytes of an ArrayRecord: keys and arrays.

    >>> record_bytes(ArrayRecord({"w": Array(np.zeros(2))})) - record_bytes(ArrayRecord())
    145
    """
    return sum(len(key) + len(array.data) for key, array in record.items())


def sent_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes of the contents of messages; those of a strategy share one content."""
    sizes: dict[int, int] = {}
    total = 0
    for message in messages:
        content = message.content
        if id(content) not in sizes:
            sizes[id(content)] = content_bytes(content)
        total += sizes[id(content)]
    return total


def _value_bytes(value: Any) -> int:
    if isinstance(value, (int, float)):
        return 8  # Numbers travel in 64 bits.
    return len(value) if isinstance(value, (str, bytes)) else sum(map(_value_bytes, value))
