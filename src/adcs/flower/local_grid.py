"""A grid in this process: a real ClientApp for many nodes, without Ray and without a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1
"""Where Flower's SuperLink has its own node id."""


@dataclass
class LocalNode:
    """A node of a `LocalGrid`. Tests set its fields to make it misbehave.

    Attributes
    ----------
    node_id, context
        As Flower would give them; the context's state is kept from message to message.
    app
        What runs there.
    delay
        Seconds on the grid's clock that each message takes; infinite for one that never answers.
    online
        Whether it is connected. Messages to one that is not get an error, as from a SuperLink.
    public_key
        Its key, where nodes are authenticated.
    tamper
        A function that is given each reply and returns the one to send, or None for none.
    calls
        How many messages the app was called with.
    """

    node_id: int
    context: Context
    app: ClientApp
    delay: float = 0.0
    online: bool = True
    public_key: bytes = b""
    tamper: Callable[[Message], Message | None] | None = None
    calls: int = 0
    _busy_until: float = field(default=0.0, repr=False)


class LocalGrid(Grid):
    """Runs a ClientApp for a number of nodes, in this process, one message after the other.

    Time is a clock of its own, which only waiting for nodes with a `delay` and `advance` move: a
    straggler costs a test no time. Everything is deterministic. Node ids are large, as Flower's
    are; partition ids are 0, 1, 2, ....

    Parameters
    ----------
    app
        The ClientApp.
    nodes
        How many nodes there are at first.
    run_config
        What `context.run_config` holds.

    Examples
    --------
    >>> app = ClientApp()
    >>> @app.query()
    ... def partition(message, context):
    ...     config = ConfigRecord({"id": context.node_config["partition-id"]})
    ...     return Message(RecordDict({"config": config}), reply_to=message)
    >>> grid = LocalGrid(app, nodes=3)
    >>> questions = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    >>> [r.content["config"]["id"] for r in grid.send_and_receive(questions)]
    [0, 1, 2]
    """

    def __init__(
        self, app: ClientApp, nodes: int, *, run_config: Mapping[str, Any] | None = None
    ) -> None:
        self.app = app
        self.run_config = dict(run_config or {})
        self.nodes: list[LocalNode] = []
        self._planned = nodes
        self._run = Run.create_empty(1)
        self._now = 0.0
        self._sent = 0
        self._due: dict[str, tuple[float, Message]] = {}
        self._lost: set[str] = set()
        _introduce_this_process()
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> LocalNode:
        """Connect one more node; it gets the next partition id."""
        partition = len(self.nodes)
        node_id = int(np.random.default_rng([1, partition]).integers(2**63, 2**64, dtype=np.uint64))
        config: dict[str, Any] = {
            "partition-id": partition,
            "num-partitions": max(self._planned, partition + 1),
        }
        context = Context(self._run.run_id, node_id, config, RecordDict(), self.run_config)
        self.nodes.append(LocalNode(node_id, context, self.app))
        return self.nodes[-1]

    def clock(self) -> float:
        """Return the grid's time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    # What Flower asks of a grid.

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of connected nodes."""
        return [node.node_id for node in self.nodes if node.online]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what is known of connected nodes."""
        return [
            NodeInfo(node_id=node.node_id, public_key=node.public_key)
            for node in self.nodes
            if node.online
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand messages over; their replies are due when the nodes' delays are over."""
        nodes = {node.node_id: node for node in self.nodes}
        ids = []
        for message in messages:
            self._sent += 1
            name = f"message-{self._sent}"
            # As Flower's own grids do: the id is given on sending.
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            node = nodes.get(message.metadata.dst_node_id)
            if node is None or not node.online:
                self._due[name] = (self._now, _unavailable(message))
                continue
            reply = self._deliver(message, node)
            if reply is None or math.isinf(node.delay):
                self._lost.add(name)
            else:
                node._busy_until = max(node._busy_until, self._now) + node.delay
                self._due[name] = (node._busy_until, reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there by now, each of them once."""
        ready = [name for name in message_ids if name in self._due and self._is_due(name)]
        return [self._due.pop(name)[1] for name in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that come before the timeout, on the grid's clock.

        Without a timeout, a reply that never comes is waited for no longer than all others.
        """
        ids = list(self.push_messages(messages))
        waits = [self._due[name][0] - self._now for name in ids if name in self._due]
        longest = max(waits, default=0.0)
        if timeout is not None:
            missing = any(name in self._lost for name in ids)
            longest = timeout if missing else min(longest, timeout)
        self.advance(max(longest, 0.0))
        return self.pull_messages(ids)

    def _is_due(self, name: str) -> bool:
        return self._due[name][0] <= self._now

    def _deliver(self, message: Message, node: LocalNode) -> Message | None:
        metadata = message.metadata
        arrived = Message(
            copy_content(message.content),
            metadata.dst_node_id,
            metadata.message_type,
            ttl=metadata.ttl,
            group_id=metadata.group_id,
        )
        arrived.metadata.__dict__["_message_id"] = metadata.message_id
        node.calls += 1
        try:
            reply = node.app(arrived, node.context)
        except Exception as error:  # as a SuperNode does
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=arrived)
        return reply if node.tamper is None else node.tamper(reply)


def copy_content(content: RecordDict) -> RecordDict:
    """Return a copy that can be changed without a trace; serialised arrays are shared.

    >>> content = RecordDict({"config": ConfigRecord({"steps": [1, 2]})})
    >>> copy_content(content)["config"]["steps"].append(3)
    >>> content["config"]["steps"]
    [1, 2]
    """
    copied = RecordDict()
    for name, record in content.items():
        twin = record.copy()
        if isinstance(twin, (ConfigRecord, MetricRecord)):
            for key, value in twin.items():
                if isinstance(value, list):
                    twin[key] = list(value)  # type: ignore[assignment]
        copied[name] = twin
    return copied


def _unavailable(message: Message) -> Message:
    reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
    # Errors that a SuperLink makes are from the SuperLink, not from the node.
    reply.metadata.__dict__["_src_node_id"] = SERVER_NODE
    return reply


def _introduce_this_process() -> None:
    """Let messages be made here; in a ServerApp's process Flower has done so."""
    for name in ("run_id", "node_id", "task_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, SERVER_NODE)
