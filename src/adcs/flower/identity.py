"""Who a node is, from round to round and over restarts.

Node ids are random numbers, new in each run of a simulation and for each SuperNode that
restarts. The scheduler goes by something steadier, if the federation has it: the key of an
authenticated node, else the partition id that the node's own configuration names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable

from flwr.app import RecordDict
from flwr.proto.node_pb2 import NodeInfo

from adcs._types import ClientId
from adcs.flower.wire import QUESTION, Question, find_answer

MAX_PARTITION = 2**53
"""Partition ids stay below this, so that every reader of a record sees the same number."""

Eligible = Callable[[ClientId, NodeInfo], bool]


def key_id(public_key: bytes) -> str:
    """Return the client id of a node that is authenticated by this public key.

    >>> key_id(b"ecdsa-sha2-nistp384 AAAA")
    'key:c766424a5bb88fcce65a547986b33e0d'
    """
    return f"key:{hashlib.sha256(public_key).hexdigest()[:32]}"


def node_name(node: int) -> str:
    """Return the client id of a node of which nothing else is known.

    >>> node_name(12345678901234567890)
    'node:12345678901234567890'
    """
    return f"node:{node}"


class IdentityRegistry:
    """The client ids of the nodes of one run.

    Parameters
    ----------
    authenticated
        True: a node's key is its identity. Flower gives every node a key, but those of nodes
        that are not authenticated are made up anew at each start.
    partitions
        Whether nodes are asked for their partition id.

    Examples
    --------
    >>> registry = IdentityRegistry(authenticated=False, partitions=True)
    >>> nodes = [NodeInfo(node_id=77), NodeInfo(node_id=88)]
    >>> registry.strangers(nodes)
    [77, 88]
    >>> registry.claim(77, 3)
    >>> registry.name(nodes)
    {3: 77, 'node:88': 88}
    """

    def __init__(self, *, authenticated: bool, partitions: bool) -> None:
        self.authenticated = authenticated
        self.partitions = partitions
        self.disputed: dict[ClientId, str] = {}
        self._asked: dict[int, None] = {}  # in the order in which they were first seen
        self._answered: set[int] = set()
        self._claims: dict[int, int] = {}

    def strangers(self, nodes: Iterable[NodeInfo], owing: Collection[int] = ()) -> list[int]:
        """Return the nodes that are to be asked for their partition id.

        A node is asked once; if its answer was lost, again when it owes none any more.
        """
        if self.authenticated or not self.partitions:
            return []
        new = [
            info.node_id
            for info in nodes
            if info.node_id not in self._answered and info.node_id not in owing
        ]
        self._asked |= {node: None for node in new if node not in self._asked}
        return new

    def settle(self, node: int) -> None:
        """Take note that a node has answered, whatever it said: it is not asked again."""
        self._answered.add(node)

    def claim(self, node: int, partition: object) -> None:
        """Take a node's word for its partition id; anything but a small whole number is none."""
        if isinstance(partition, bool) or not isinstance(partition, int):
            return
        if 0 <= partition < MAX_PARTITION:
            self._asked.setdefault(node)
            self._claims[node] = partition

    def name(self, nodes: Iterable[NodeInfo]) -> dict[ClientId, int]:
        """Return the node of each client id, for the nodes that are connected.

        Of two nodes with one partition id the one that was seen first has it while it is
        connected. A restarted node takes its place again when the old one is gone.
        """
        infos = {info.node_id: info for info in nodes}
        if self.authenticated:
            return {
                key_id(info.public_key) if info.public_key else node_name(node): node
                for node, info in infos.items()
            }
        named: dict[ClientId, int] = {}
        self.disputed = {}
        for node in sorted(infos, key=self._seniority()):
            partition = self._claims.get(node)
            if partition is None:
                named[node_name(node)] = node
            elif partition in named:
                named[node_name(node)] = node
                self.disputed[node_name(node)] = (
                    f"partition-id {partition} is that of node {named[partition]}, "
                    "so this node goes by its node id"
                )
            else:
                named[partition] = node
        return named

    def _seniority(self) -> Callable[[int], tuple[int, int]]:
        place = {node: i for i, node in enumerate(self._asked)}
        return lambda node: (place.get(node, len(place)), node)


def question() -> RecordDict:
    """Return the content of the message that asks a node for its partition id."""
    return RecordDict({QUESTION: Question(partition=True).record()})


def answered_partition(content: RecordDict) -> tuple[bool, object]:
    """Return whether the mod answered, and the partition id in its answer, if any."""
    answer = find_answer(content)
    return answer is not None, None if answer is None else answer.get("partition-id")
