"""A grid in this process: runs a ClientApp for many nodes, without Ray and without a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from adcs.flower.transport import copy_content

SERVER_NODE = 1
"""The node id of Flower's SuperLink."""


@dataclass
class LocalNode:
    """A node of a `LocalGrid`. Tests set its fields to simulate faults.

    Attributes
    ----------
    node_id, context
        As Flower would set them; the context's state is kept between messages.
    app
        The ClientApp of this node.
    delay
        Seconds on the grid's clock that each message takes; infinite for a node that never answers.
    online
        Whether the node is connected. If not, messages to it get the error that a SuperLink sends.
    public_key
        The node's key, where nodes are authenticated.
    tamper
        A function of each reply that returns the reply to send, or None to lose it.
    calls
        The number of messages that the app was called with.

    Examples
    --------
    >>> LocalGrid(ClientApp(), nodes=2).nodes[1].context.node_config["partition-id"]
    1
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
    """Runs a ClientApp for a number of nodes in this process, one message at a time.

    The grid has a virtual clock, which advances by waiting for nodes with a `delay` and by
    `advance`, so a straggler costs a test no time. Runs are deterministic. Node ids are large, as
    Flower's are; partition ids are 0, 1, 2, ....

    Parameters
    ----------
    app
        The ClientApp.
    nodes
        The number of nodes at the start.
    run_config
        The content of `context.run_config`.

    Examples
    --------
    >>> from flwr.app import ConfigRecord
    >>> app = ClientApp()
    >>> @app.query()
    ... def partition(message, context):
    ...     config = ConfigRecord({"id": context.node_config["partition-id"]})
    ...     return Message(RecordDict({"config": config}), reply_to=message)
    >>> grid = LocalGrid(app, nodes=3)
    >>> messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    >>> [r.content["config"]["id"] for r in grid.send_and_receive(messages)]
    [0, 1, 2]
    """

    def __init__(
        self, app: ClientApp, nodes: int, *, run_config: Mapping[str, Any] | None = None
    ) -> None:
        self.app = app
        self.run_config = dict(run_config or {})
        self.nodes: list[LocalNode] = []
        self._num_partitions = nodes
        self._run = Run.create_empty(1)
        self._now = 0.0
        self._sent = 0
        self._due: dict[str, tuple[float, Message]] = {}  # replies, and when they arrive
        self._lost: set[str] = set()  # messages that are never answered
        _set_task_identity()
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> LocalNode:
        """Connect another node, with the next partition id."""
        partition = len(self.nodes)
        node_id = int(np.random.default_rng([1, partition]).integers(2**63, 2**64, dtype=np.uint64))
        config: dict[str, Any] = {
            "partition-id": partition,
            "num-partitions": max(self._num_partitions, partition + 1),
        }
        context = Context(self._run.run_id, node_id, config, RecordDict(), self.run_config)
        self.nodes.append(LocalNode(node_id, context, self.app))
        return self.nodes[-1]

    def clock(self) -> float:
        """Return the grid's time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._now += seconds

    def wait(self, message_ids: Iterable[str], seconds: float) -> bool:
        """Advance the clock until a reply arrives, by at most so many seconds.

        Parameters
        ----------
        message_ids
            The messages whose replies are waited for.
        seconds
            The longest wait. If it is infinite and no reply will ever arrive, False is returned.
        """
        arrivals = [self._due[name][0] - self._now for name in message_ids if name in self._due]
        wait = min([seconds, *arrivals])
        if math.isinf(wait):
            return False
        self.advance(max(wait, 0.0))
        return True

    # Flower's Grid interface.

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
        """Return Flower's description of each connected node."""
        return [
            NodeInfo(node_id=node.node_id, public_key=node.public_key)
            for node in self.nodes
            if node.online
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages; their replies are due when the nodes' delays are over."""
        nodes = {node.node_id: node for node in self.nodes}
        ids = []
        for message in messages:
            self._sent += 1
            message_id = f"message-{self._sent}"
            # Flower's own grids set the id on sending as well.
            message.metadata.__dict__["_message_id"] = message_id
            ids.append(message_id)
            node = nodes.get(message.metadata.dst_node_id)
            if node is None or not node.online:
                self._due[message_id] = (self._now, _unavailable(message))
                continue
            reply = self._deliver(message, node)
            if reply is None or math.isinf(node.delay):
                self._lost.add(message_id)
            else:
                node._busy_until = max(node._busy_until, self._now) + node.delay
                self._due[message_id] = (node._busy_until, reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived, each of them once."""
        ready = [name for name in message_ids if name in self._due and self._is_due(name)]
        return [self._due.pop(name)[1] for name in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that arrive before the timeout, on the grid's clock.

        Without a timeout, the wait ends when all replies that will ever arrive are there.
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
        except Exception as error:  # A SuperNode reports it likewise.
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=arrived)
        return reply if node.tamper is None else node.tamper(reply)


def _unavailable(message: Message) -> Message:
    reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
    # The SuperLink sends these errors itself, under its own node id.
    reply.metadata.__dict__["_src_node_id"] = SERVER_NODE
    return reply


def _set_task_identity() -> None:
    """Allow messages to be created in this process, as Flower does in a ServerApp's process."""
    for name in ("run_id", "node_id", "task_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, SERVER_NODE)
