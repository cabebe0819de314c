"""Training rounds that need not wait for all of their clients.

Flower's loop sends the messages that `configure_train` returns and waits for all replies. In these
rounds `Scheduled` sends the messages itself, while `configure_train` runs, and returns none: so it
also works in a strategy's own `start`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from adcs._types import ClientId
from adcs.federated.buffer import Buffer
from adcs.federated.messages import Exchange
from adcs.federated.round import RoundDriver
from adcs.federated.waiting import Deadline, Wait
from adcs.flower.receive import ReplyStream, clock_of
from adcs.flower.transport import FlowerReply, Transport, sent_bytes
from adcs.rounds import over_selected
from adcs.schedulers.base import Cohort


@dataclass
class Received:
    """The end of a training round.

    Attributes
    ----------
    exchange
        Who was asked and who was not waited for. Replies have been read as they arrived.
    errors
        The error replies.
    late
        Replies beyond those that the round needs.
    buffer
        What the clients were sent, in asynchronous rounds.

    Examples
    --------
    >>> Received(Exchange(clients=[3, 7], outrun=[7])).exchange.outrun
    [7]
    """

    exchange: Exchange[FlowerReply]
    errors: list[FlowerReply] = field(default_factory=list)
    late: list[tuple[ClientId, FlowerReply]] = field(default_factory=list)
    buffer: Buffer | None = None


class FirstReplies:
    """Sends training messages and receives replies until there are enough, or until a deadline.

    Parameters
    ----------
    driver, transport
        The driver of rounds, and the transport with its client registry.
    factor
        How many times the number of needed replies are asked; None waits for all that are asked.
    deadline
        How long to wait for clients that do not answer.
    """

    def __init__(
        self,
        driver: RoundDriver[FlowerReply],
        transport: Transport,
        factor: float | None,
        deadline: Deadline,
    ) -> None:
        self._driver = driver
        self._transport = transport
        self._factor = factor
        self._deadline = deadline

    def cohort_size(self, m: int) -> int:
        """Return how many clients to select if m replies are needed."""
        return m if self._factor is None else over_selected(m, self._factor)

    def receive(
        self,
        grid: Grid,
        messages: Sequence[Message],
        clients: Mapping[int, ClientId],
        m: int,
        timeout: float | None,
    ) -> Received:
        """Send the messages of the cohort, and read replies until the round ends.

        Parameters
        ----------
        grid, messages
            The grid and the messages.
        clients
            The client of each node.
        m
            How many usable replies the round needs.
        timeout
            The longest wait in seconds; None sets no limit.
        """
        driver, this_round = self._driver, self._driver.round
        assert this_round is not None
        cohort = this_round.record.cohort
        asked = [clients[message.metadata.dst_node_id] for message in messages]
        early = [client for client in cohort.clients if client in this_round.early_replies]
        needed = len(asked)
        unneeded: list[ClientId] = []
        if self._factor is not None:
            check_normalised(cohort, "over_select")
            unneeded, needed = early[m:], max(m - len(early), 0)
        if not needed:
            rest = [client for client in cohort.clients if client not in early]
            return Received(Exchange(outrun=[*unneeded, *rest]))
        clock = clock_of(grid)
        purpose = this_round.training
        longest = math.inf if timeout is None else timeout
        wait = Wait(asked, needed, cohort.awaited, self._deadline, longest)
        stream, sent_at = ReplyStream(grid), clock()
        stream.push(messages)
        nodes = dict(stream.unanswered)
        received = Received(Exchange())

        def read(message: Message) -> None:
            client = clients[nodes[message.metadata.reply_to_message_id]]
            reply = FlowerReply(message)
            wait.answer(client)
            if reply.error is not None:
                received.errors.append(reply)
            if driver.read_reply(client, reply):
                self._deadline.record(client, clock() - sent_at)

        usable: list[ClientId] = []
        while (seconds := wait.seconds(len(usable))) > 0:
            reply = next(stream.replies(max(sent_at + seconds - clock(), 0.0)), None)
            if reply is None:
                break
            read(reply)
            usable = driver.usable_replies()
        ended = clock()
        if len(usable) >= needed:
            # A poll may bring more replies than are needed, and an error is no late reply.
            for reply in stream.replies(0.0):
                read(reply)
        timed_out = wait.timed_out(len(usable))
        outrun = wait.outrun(len(usable))
        first = set(wait.first(usable))
        for client in driver.usable_replies():
            if client not in first:
                received.late.append((client, driver.remove_reply(client)))
                outrun.append(client)
        self._deadline.miss(timed_out)
        for message_id, node in stream.unanswered.items():
            self._transport.registry.add_pending(
                message_id,
                node,
                purpose.of(clients[node]),
                ended,
                sent_at=sent_at,
                outrun=clients[node] in outrun,
            )
        received.exchange = Exchange(
            clients=asked,
            bytes_down=sent_bytes(messages),
            seconds=ended - sent_at,
            outrun=[*unneeded, *outrun],
        )
        return received

    def end(self) -> None:
        """End the run: no message is under way that is not pending."""


def check_normalised(cohort: Cohort, setting: str) -> None:
    """Raise ValueError for a cohort whose update is a sum over exactly its clients.

    >>> check_normalised(Cohort(("a",), (2.0,), normalise=False), "over_select")
    Traceback (most recent call last):
    ...
    ValueError: over_select needs cohorts whose weights are normalised: an unbiased sum over all
    clients of a cohort is not one over those that answer first
    """
    if not cohort.normalise:
        raise ValueError(
            f"{setting} needs cohorts whose weights are normalised: an unbiased sum over all "
            "clients of a cohort is not one over those that answer first"
        )
