"""Client ids of connected nodes, and clients with pending answers.

Frameworks address nodes. A node's own id may be random and change with each restart, so schedulers
use a more stable id where there is one: the public key of an authenticated node, else the partition
id in the node's configuration.

A node that has not answered in time keeps working on its message, and further messages to it would
queue. Its client is pending until it has answered or `patience` seconds have passed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from adcs._types import ClientId
from adcs.federated.messages import Purpose

Node = TypeVar("Node", int, str)
"""A framework's own ids of nodes."""

MAX_PARTITION = 2**53
"""Partition ids are below this, so that every JSON reader sees the same number."""


def key_id(public_key: bytes) -> str:
    """Return the client id of a node that is authenticated by this public key.

    >>> key_id(b"ecdsa-sha2-nistp384 AAAA")
    'key:c766424a5bb88fcce65a547986b33e0d'
    """
    return f"key:{hashlib.sha256(public_key).hexdigest()[:32]}"


def node_client_id(node: int | str) -> str:
    """Return the client id of a node that has no other identity.

    >>> node_client_id(12345678901234567890)
    'node:12345678901234567890'
    """
    return f"node:{node}"


@dataclass(frozen=True)
class PendingMessage(Generic[Node]):
    """A message that was not answered in time.

    Attributes
    ----------
    node
        The node that it was sent to.
    purpose
        What it asked for.
    since
        When the wait for the answer ended, in seconds.
    sent_at
        When it was sent; None if that is not known.
    outrun
        Whether the wait ended before the deadline, because there were enough other replies.

    Examples
    --------
    >>> PendingMessage(7, Purpose("training", 0), since=60.0).node
    7
    """

    node: Node
    purpose: Purpose
    since: float
    sent_at: float | None = None
    outrun: bool = False


class ClientRegistry(Generic[Node]):
    """Maps nodes to client ids and tracks pending answers.

    Parameters
    ----------
    authenticated
        Whether nodes are authenticated, so that a node's public key is its identity.
    partition_ids
        Whether nodes that are not authenticated are asked for their partition id.
    patience
        Seconds for which a client remains pending after the wait for its answer has ended.

    Attributes
    ----------
    clients
        The client id of every node that was connected at the last `resolve`.
    id_conflicts
        Clients whose node claims the partition id of another, with an explanation.
    at_work
        Nodes that train while rounds go on, as in asynchronous training; they are pending too.

    Examples
    --------
    >>> registry = ClientRegistry[int]()
    >>> registry.unidentified([77, 88])
    [77, 88]
    >>> registry.identify(77, 3)
    >>> registry.resolve({77: b"", 88: b""})
    {3: 77, 'node:88': 88}
    """

    def __init__(
        self, *, authenticated: bool = False, partition_ids: bool = True, patience: float = 600.0
    ) -> None:
        self.authenticated = authenticated
        self.partition_ids = partition_ids
        self.patience = patience
        self.clients: dict[Node, ClientId] = {}
        self.id_conflicts: dict[ClientId, str] = {}
        self.at_work: set[Node] = set()
        self._first_seen: dict[Node, None] = {}  # nodes in the order in which they were first seen
        self._identified: set[Node] = set()
        self._partitions: dict[Node, int] = {}
        self._pending: dict[str, PendingMessage[Node]] = {}
        self._silent: list[Node] = []  # outrun, and have not answered since

    # Identity.

    def unidentified(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes to ask for their partition id.

        A node is asked once. If its answer is lost, it is asked again when it is not pending.
        """
        if self.authenticated or not self.partition_ids:
            return []
        pending = self.pending_nodes()
        new = [node for node in nodes if node not in self._identified and node not in pending]
        self._first_seen |= {node: None for node in new if node not in self._first_seen}
        return new

    def identify(self, node: Node, partition: object = None) -> None:
        """Record that a node has answered; anything but a small integer is no partition id."""
        self._identified.add(node)
        if isinstance(partition, bool) or not isinstance(partition, int):
            return
        if 0 <= partition < MAX_PARTITION:
            self._first_seen.setdefault(node)
            self._partitions[node] = partition

    def resolve(self, public_keys: Mapping[Node, bytes]) -> dict[ClientId, Node]:
        """Return the node of each connected client.

        Of two nodes that claim one partition id, the node that was seen first has it while it is
        connected. A restarted node has its id again when the old one is disconnected.

        Parameters
        ----------
        public_keys
            The public key of each connected node; empty if it has none.
        """
        nodes = self._by_key(public_keys) if self.authenticated else self._by_partition(public_keys)
        self.clients = {node: client for client, node in nodes.items()}
        return nodes

    def client_of(self, node: Node) -> ClientId:
        """Return the client id of a node, connected at the last `resolve` or not."""
        return self.clients.get(node, node_client_id(node))

    def _by_key(self, public_keys: Mapping[Node, bytes]) -> dict[ClientId, Node]:
        return {key_id(key) if key else node_client_id(n): n for n, key in public_keys.items()}

    def _by_partition(self, connected: Iterable[Node]) -> dict[ClientId, Node]:
        nodes: dict[ClientId, Node] = {}
        self.id_conflicts = {}
        for node in sorted(connected, key=self._seniority()):
            partition = self._partitions.get(node)
            if partition is None:
                nodes[node_client_id(node)] = node
            elif partition in nodes:
                nodes[node_client_id(node)] = node
                self.id_conflicts[node_client_id(node)] = (
                    f"partition-id {partition} is that of node {nodes[partition]}, "
                    "so this node goes by its node id"
                )
            else:
                nodes[partition] = node
        return nodes

    def _seniority(self) -> Callable[[Node], tuple[int, Node]]:
        rank = {node: i for i, node in enumerate(self._first_seen)}
        return lambda node: (rank.get(node, len(rank)), node)

    # Pending answers.

    def add_pending(
        self,
        message_id: str,
        node: Node,
        purpose: Purpose,
        now: float,
        *,
        sent_at: float | None = None,
        outrun: bool = False,
    ) -> None:
        """Record that a message was not answered in time; as of `PendingMessage`."""
        self._pending[message_id] = PendingMessage(node, purpose, now, sent_at, outrun)

    def pop_pending(self, message_id: str) -> PendingMessage[Node] | None:
        """Return and forget a pending message, now that it is answered; None if it is unknown."""
        return self._pending.pop(message_id, None)

    def pending_messages(self) -> list[str]:
        """Return the ids of the messages that are still to be answered."""
        return list(self._pending)

    def pending_by_message(self) -> dict[str, Node]:
        """Return the node of each message that is still to be answered."""
        return {message_id: message.node for message_id, message in self._pending.items()}

    def pending_nodes(self) -> set[Node]:
        """Return the nodes with an answer pending."""
        return {message.node for message in self._pending.values()} | self.at_work

    def expire(self, now: float) -> None:
        """Forget messages that have been pending for longer than `patience`."""
        old = [key for key, each in self._pending.items() if now - each.since >= self.patience]
        for message_id in old:
            message = self._pending.pop(message_id)
            if message.outrun:
                self._silent.append(message.node)

    def pop_silent(self) -> list[Node]:
        """Return the nodes whose round did not wait for them and that have not answered since."""
        silent, self._silent = self._silent, []
        return silent

    def next_expiry(self) -> float | None:
        """Return when the first pending message will be forgotten; None if there is none."""
        times = [message.since + self.patience for message in self._pending.values()]
        return min(times, default=None)

    def split(
        self, nodes: Mapping[ClientId, Node], *, strict: bool = False
    ) -> tuple[tuple[ClientId, ...], tuple[ClientId, ...]]:
        """Return the clients that are available and those that are pending.

        If all of them are pending, none would be left to select: then all are available.

        Parameters
        ----------
        nodes
            The node of each client.
        strict
            Whether pending clients are unavailable even then.
        """
        busy = self.pending_nodes()
        available = tuple(client for client, node in nodes.items() if node not in busy)
        if not available and not strict:
            return tuple(nodes), ()
        return available, tuple(client for client, node in nodes.items() if node in busy)
