"""A round on its way from `configure_train` to `aggregate_evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message

from adcs._types import ClientId
from adcs.flower.recorder import RoundRecord
from adcs.flower.replies import Model
from adcs.flower.transport import Purpose
from adcs.flower.wire import size

ClientsPerRound = int | float | Callable[[int], int | float]


@dataclass
class Round:
    """What is known of a round while it lasts.

    Attributes
    ----------
    number
        The scheduler's round; Flower's is one more.
    clock
        The time.
    note
        The record of the round.
    training
        The strategy's own message for each node that it addresses.
    model
        The model in them; None if the strategy addresses nobody.
    nodes, clients
        The node of each client that may be asked, and back.
    held
        Whole training replies that came in answer to the probe.
    sent, sent_at
        The training messages that were sent, and when.
    done
        Whether its replies have been aggregated.
    """

    number: int
    clock: Callable[[], float]
    note: RoundRecord = field(default_factory=RoundRecord)
    training: Mapping[int, Message] = field(default_factory=dict)
    model: Model | None = None
    nodes: dict[ClientId, int] = field(default_factory=dict)
    held: dict[ClientId, Message] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    sent_at: float = 0.0
    done: bool = False

    @property
    def clients(self) -> dict[int, ClientId]:
        """The client of each node."""
        return {node: client for client, node in self.nodes.items()}

    def by_client(self, answers: Mapping[int, Message]) -> dict[ClientId, Message]:
        """Return nodes' answers by client."""
        clients = self.clients
        return {clients[node]: reply for node, reply in answers.items()}

    def charge(self, sent: Iterable[Message], answers: Mapping[int, Message], stage: str) -> None:
        """RoundRecord the bytes of an exchange, and who did not answer."""
        sent = list(sent)
        self.note.spent.bytes_down += content_bytes(sent)
        self.note.spent.bytes_up += content_bytes(answers.values())
        clients = self.clients
        asked = [message.metadata.dst_node_id for message in sent]
        silent = [clients[node] for node in asked if node not in answers]
        if silent:
            self.note.silent[stage] = silent

    def charge_late(self, purpose: Purpose, reply: Message) -> None:
        """RoundRecord what an answer to an earlier round has cost."""
        spent = self.note.spent
        spent.bytes_up += content_bytes([reply])
        if not reply.has_content():
            return
        if purpose.model is None:
            spent.loss_evaluations += 1
        else:
            spent.updates += 1
            spent.extra_updates += 1


def places(setting: ClientsPerRound, connected: int, server_round: int = 1) -> int:
    """Return how many clients are to be chosen.

    >>> places(18, 30), places(0.5, 30), places(lambda number: 2 * number, 30, server_round=3)
    (18, 15, 6)
    >>> places(1.5, 30)
    Traceback (most recent call last):
    ...
    ValueError: clients_per_round must be a whole number >= 1 or a fraction up to 1.0, got 1.5
    """
    value = setting(server_round) if callable(setting) else setting
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, float) and 0.0 < value <= 1.0:
        return max(1, int(value * connected + 1e-9))
    raise ValueError(
        f"clients_per_round must be a whole number >= 1 or a fraction up to 1.0, got {value!r}"
    )


def again(message: Message) -> Message:
    """Return a new message of the same content: a time to live counts from the making."""
    metadata = message.metadata
    return Message(
        message.content,
        metadata.dst_node_id,
        metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )


def content_bytes(messages: Iterable[Message]) -> int:
    """Return the bytes of the contents of messages."""
    sizes: dict[int, int] = {}
    total = 0
    for message in messages:
        if message.has_content():
            # A strategy's messages share one content.
            content = message.content
            if id(content) not in sizes:
                sizes[id(content)] = size(content)
            total += sizes[id(content)]
    return total
