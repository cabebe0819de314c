"""Asynchronous training: the model changes whenever enough replies are in (FedBuff)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from adcs._types import ClientId
from adcs.federated.buffer import Buffer, Work, relative_weights
from adcs.federated.messages import Exchange
from adcs.federated.round import RoundDriver
from adcs.federated.waiting import Deadline
from adcs.flower.over_selection import FirstReplies, Received, check_normalised
from adcs.flower.receive import ReplyStream, clock_of
from adcs.flower.transport import FlowerReply, Transport, copy_content, sent_bytes
from adcs.rounds import Buffered


class BufferedTraining:
    """Keeps clients at work while rounds go on, and ends a round when its buffer is full.

    A round is a version of the model. Free slots are filled once, when it begins, with clients
    that train this version; replies to earlier ones are re-based.

    Parameters
    ----------
    driver, transport
        The driver of rounds, and the transport with its client registry.
    mode
        The size of the buffer, the number of clients at work, and what stale replies count.
    deadline
        How long a client may be at work.
    """

    def __init__(
        self,
        driver: RoundDriver[FlowerReply],
        transport: Transport,
        mode: Buffered,
        deadline: Deadline,
    ) -> None:
        self._driver = driver
        self._transport = transport
        self._mode = mode
        self._deadline = deadline
        self._stream: ReplyStream | None = None
        # By message id: node, work, and when it is given up.
        self._works: dict[str, tuple[int, Work, float]] = {}

    def cohort_size(self, m: int) -> int:
        """Return the number of free slots."""
        return self._mode.concurrency - len(self._works)

    def receive(
        self,
        grid: Grid,
        messages: Sequence[Message],
        clients: Mapping[int, ClientId],
        m: int,
        timeout: float | None,
    ) -> Received:
        """Send messages to the cohort, and read replies until the buffer is full.

        Fewer replies end the round if no client is left at work. Replies that are there with the
        last one are taken as well.

        Parameters
        ----------
        grid, messages, clients, m, timeout
            As of `FirstReplies.receive`; m is not used, and the timeout is that of each message.
        """
        driver, this_round = self._driver, self._driver.round
        assert this_round is not None
        clock = clock_of(grid)
        started = clock()
        cohort = this_round.record.cohort
        check_normalised(cohort, "mode=Buffered")
        if this_round.model_of is not None:
            raise ValueError(
                "mode=Buffered needs one model for all nodes, to which old replies are moved: "
                "configure_train sends them different ones"
            )
        purpose = this_round.training
        weights = relative_weights(cohort)
        received = Received(Exchange(), buffer=Buffer(self._mode))
        buffer = received.buffer
        assert buffer is not None
        for client in cohort.clients:
            if client in this_round.early_replies:
                buffer.works[client] = Work(client, purpose, weights[client], started)
        early = len(buffer.works)
        stream = self._push(grid, messages)
        accepted = {node: name for name, node in stream.unanswered.items()}
        done: list[ClientId] = []
        longest = math.inf if timeout is None else timeout
        for message in messages:
            node = message.metadata.dst_node_id
            if node in accepted:
                work = Work(clients[node], purpose, weights[clients[node]], started)
                limit = self._deadline.of(work.client, longest)
                self._works[accepted[node]] = (node, work, started + limit)
                self._transport.registry.at_work.add(node)
            else:
                done.append(clients[node])

        def take(message: Message) -> None:
            _, work = self._pop(message.metadata.reply_to_message_id)
            client = this_round.record.renamed.get(work.client, work.client)
            reply = FlowerReply(message)
            buffer.works[client] = work
            done.append(client)
            if reply.error is not None:
                received.errors.append(reply)
            if driver.read_reply(client, reply, work.purpose):
                self._deadline.record(client, clock() - work.sent_at)

        while self._works and early + len(driver.usable_replies()) < self._mode.size:
            ends = {name: end for name, (_, _, end) in self._works.items()}
            reply = next(stream.replies(max(min(ends.values()) - clock(), 0.0)), None)
            if reply is not None:
                take(reply)
                continue
            # Of a grid that says that nobody will ever answer, none of them is over.
            over = [name for name, end in ends.items() if end <= clock()] or list(ends)
            done += self._give_up(over, clock(), outrun=False)
        for reply in stream.replies(0.0):
            take(reply)
        received.exchange = Exchange(
            clients=done, bytes_down=sent_bytes(messages), seconds=clock() - started
        )
        return received

    def end(self) -> None:
        """End the run: work in flight is not aggregated, and its nodes are pending."""
        if self._stream is not None:
            self._give_up(list(self._works), self._now(), outrun=True)
        self._stream = None

    def _push(self, grid: Grid, messages: Sequence[Message]) -> ReplyStream:
        """Send messages with contents of their own: strategies change their config in place."""
        if self._stream is None:
            self._stream, self._now = ReplyStream(grid), clock_of(grid)
        copies = {id(message.content): copy_content(message.content) for message in messages}
        for message in messages:
            message.content = copies[id(message.content)]
        self._stream.push(messages)
        return self._stream

    def _pop(self, message_id: str) -> tuple[int, Work]:
        node, work, _ = self._works.pop(message_id)
        self._transport.registry.at_work.discard(node)
        return node, work

    def _give_up(self, message_ids: list[str], now: float, *, outrun: bool) -> list[ClientId]:
        """Free the slots of clients that have not answered; their replies will be late."""
        given_up = []
        for message_id in message_ids:
            node, work = self._pop(message_id)
            assert self._stream is not None
            self._stream.unanswered.pop(message_id, None)
            self._transport.registry.add_pending(
                message_id, node, work.purpose, now, sent_at=work.sent_at, outrun=outrun
            )
            given_up.append(work.client)
        if not outrun:
            self._deadline.miss(given_up)
        return given_up


def make_training(
    driver: RoundDriver[FlowerReply],
    transport: Transport,
    over_select: float | None,
    mode: Buffered | None,
    deadline: Deadline,
) -> FirstReplies | BufferedTraining | None:
    """Return what sends training messages and receives replies; None leaves both to Flower."""
    if mode is not None:
        return BufferedTraining(driver, transport, mode, deadline)
    if over_select is not None or deadline.setting is not None:
        return FirstReplies(driver, transport, over_select, deadline)
    return None
