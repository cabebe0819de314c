"""Messages out, replies in, and who still owes an answer.

Flower forgets a message whose reply did not come in time, but the node goes on working on it, and
more messages to it would queue up. So a node that owes an answer is left alone until it has
answered or a set time has passed, and late answers are collected before each round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flwr.app import Message
from flwr.serverapp import Grid

from adcs.flower.replies import Model
from adcs.flower.wire import Question

Kind = Literal["identity", "probe", "training", "evaluation"]


@dataclass(frozen=True)
class Purpose:
    """What some nodes are asked for in one go.

    Attributes
    ----------
    kind
        What it is for.
    server_round
        The scheduler's round.
    model
        The model that was sent, where an update will be read against it.
    question
        What the mod is asked; None if the reply comes from the handler itself.
    """

    kind: Kind
    server_round: int
    model: Model | None = None
    question: Question | None = None


@dataclass(frozen=True)
class Owed:
    """A message that was not answered in time, and when that time was over."""

    node: int
    purpose: Purpose
    since: float


def clock_of(grid: Grid) -> Callable[[], float]:
    """Return the grid's own clock, if it keeps one (`LocalGrid` does), else the machine's."""
    clock: Callable[[], float] = getattr(grid, "clock", time.monotonic)
    return clock


class Transport:
    """Sends messages and keeps account of the answers.

    Parameters
    ----------
    patience
        Seconds after the end of the wait for it in which a node that owes an answer is left
        alone.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._owed: dict[str, Owed] = {}

    def send(
        self, grid: Grid, messages: Sequence[Message], timeout: float | None, purpose: Purpose
    ) -> dict[int, Message]:
        """Send messages, wait, and return each node's reply."""
        if not messages:
            return {}
        replies = grid.send_and_receive(messages, timeout=timeout)
        return self.settle(messages, replies, purpose, clock_of(grid)())

    def settle(
        self,
        messages: Iterable[Message],
        replies: Iterable[Message],
        purpose: Purpose,
        now: float,
    ) -> dict[int, Message]:
        """Return each node's reply; who has not replied owes an answer from now on.

        Replies are matched by the message they reply to: an error that the SuperLink made
        carries the SuperLink's own node id.
        """
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        nodes.pop("", None)
        answers: dict[int, Message] = {}
        for reply in replies:
            node = nodes.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                answers[node] = reply
        self._owed |= {message: Owed(node, purpose, now) for message, node in nodes.items()}
        return answers

    def collect(self, grid: Grid) -> list[tuple[Owed, Message]]:
        """Return the answers that have come in since, and forget what is too old."""
        late = []
        if self._owed:
            for reply in grid.pull_messages(list(self._owed)):
                owed = self._owed.pop(reply.metadata.reply_to_message_id, None)
                if owed is not None:
                    late.append((owed, reply))
        now = clock_of(grid)()
        self._owed = {
            message: owed
            for message, owed in self._owed.items()
            if now - owed.since < self.patience
        }
        return late

    def owing(self) -> set[int]:
        """Return the nodes that owe an answer."""
        return {owed.node for owed in self._owed.values()}
