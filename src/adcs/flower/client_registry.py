"""Who is there in a round: names for nodes, the user's rule, and who owes an answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from adcs._types import ClientId
from adcs.flower.identity import Eligible, IdentityRegistry, answered_partition, node_name, question
from adcs.flower.logs import Once, log
from adcs.flower.recorder import RoundRecord
from adcs.flower.transport import Owed, Purpose, Transport


class ClientRegistry:
    """Calls the roll at the start of a round.

    Parameters
    ----------
    registry
        Names for nodes.
    exchange
        How nodes are asked, and who owes an answer.
    eligible
        The user's rule for who may be asked.
    once
        Where warnings go.

    Attributes
    ----------
    clients
        The client id of every node that was there at the last call, eligible or not.
    """

    def __init__(
        self, registry: IdentityRegistry, exchange: Transport, eligible: Eligible | None, once: Once
    ) -> None:
        self._registry = registry
        self._exchange = exchange
        self._eligible = eligible
        self._once = once
        self._without_mod: set[int] = set()
        self.clients: dict[int, ClientId] = {}

    def call(
        self,
        grid: Grid,
        nodes: Collection[int],
        note: RoundRecord,
        *,
        server_round: int,
        late: Iterable[tuple[Owed, Message]],
        timeout: float | None,
    ) -> dict[ClientId, int]:
        """Return the node of each client that may be asked, after asking new nodes who they are.

        Parameters
        ----------
        grid, nodes
            The grid, and the nodes on it that the strategy addresses.
        note
            The record of the round.
        server_round
            The scheduler's round.
        late
            Answers to earlier messages, among them perhaps to the question who a node is.
        timeout
            Seconds to wait for answers.
        """
        for owed, reply in late:
            if owed.purpose.kind == "identity":
                self._learn(owed.node, reply)
        infos = {info.node_id: info for info in grid.get_nodes() if info.node_id in nodes}
        strangers = self._registry.strangers(infos.values(), self._exchange.owing())
        content = question()
        messages = [Message(content, node, "train") for node in strangers]
        answers = self._exchange.send(grid, messages, timeout, Purpose("identity", server_round))
        without = [node for node, reply in answers.items() if not self._learn(node, reply)]
        named = self._name(infos, note)
        if without:
            self.lacks_mod({self.clients[node]: node for node in without}, note)
        return named

    def free(self, nodes: Mapping[ClientId, int]) -> tuple[ClientId, ...]:
        """Return the clients that owe no answer, or all of them if everyone does."""
        owing = self._exchange.owing()
        return tuple(c for c, node in nodes.items() if node not in owing) or tuple(nodes)

    def lacks_mod(self, nodes: Mapping[ClientId, int], note: RoundRecord) -> None:
        """RoundRecord the clients that run without the mod, and say so, once for each node."""
        note.without_mod = list(dict.fromkeys([*note.without_mod, *nodes]))
        new = [node for node in nodes.values() if node not in self._without_mod]
        self._without_mod.update(new)
        if new:
            log.warning(
                "no probe_mod in the ClientApp of node %s: add ClientApp(mods=[probe_mod]). Until "
                "then it goes by its node id, and a probe costs it a whole training reply "
                "(partition_ids=False stops the question for its partition id)",
                ", ".join(str(node) for node in new),
            )

    def _learn(self, node: int, reply: Message) -> bool:
        """Take a partition id from a reply; return whether the node has the mod."""
        if reply.has_error():
            raised = reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            if raised:
                self._registry.settle(node)
            return not raised
        self._registry.settle(node)
        has_mod, partition = answered_partition(reply.content)
        self._registry.claim(node, partition)
        return has_mod

    def _name(self, infos: Mapping[int, NodeInfo], note: RoundRecord) -> dict[ClientId, int]:
        named = self._registry.name(infos.values())
        before = self.clients
        self.clients = {node: client for client, node in named.items()}
        note.renamed = {
            before[node]: client
            for node, client in self.clients.items()
            if before.get(node) == node_name(node) != client
        }
        for old, client in note.renamed.items():
            log.info("%s says that it is %s", old, client)
        note.disputed = dict(self._registry.disputed)
        for client, reason in note.disputed.items():
            self._once(("disputed", client), f"{client}: {reason}")
        if self._eligible is None:
            return named
        return {c: node for c, node in named.items() if self._eligible(c, infos[node])}
