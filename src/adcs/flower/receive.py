"""Replies one by one, as they arrive.

Flower's `Grid.send_and_receive` returns all replies together when the last one has arrived. A
`ReplyStream` pushes messages, polls for replies at the same interval and hands each one out as soon
as it is there, so that the server can read it and let it go, or stop waiting for the others.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

POLL_INTERVAL = 3.0
"""Seconds between polls, as in Flower's grid of a SuperLink."""


def clock_of(grid: Grid) -> Callable[[], float]:
    """Return the clock of a grid that has one, as `LocalGrid` does, else the machine's."""
    clock: Callable[[], float] = getattr(grid, "clock", time.monotonic)
    return clock


class ReplyStream:
    """Pushes messages to a grid and hands out their replies one by one.

    Parameters
    ----------
    grid
        The grid. One with a method `wait`, as `LocalGrid` has, says itself when to poll again.
    at_once
        How many messages are polled for together; None polls for all. Their replies, if all have
        arrived, are in memory at the same time.
    interval
        Seconds between polls; None is the grid's own `pull_interval`, else Flower's 3 seconds.

    Attributes
    ----------
    unanswered
        The node of each message that was sent and has no reply yet, by message id.

    Examples
    --------
    >>> from flwr.app import RecordDict
    >>> from flwr.clientapp import ClientApp
    >>> from adcs.flower import LocalGrid
    >>> app = ClientApp()
    >>> @app.query()
    ... def answer(message, context):
    ...     return Message(RecordDict(), reply_to=message)
    >>> grid = LocalGrid(app, nodes=3)
    >>> grid.nodes[0].delay = 60.0
    >>> stream = ReplyStream(grid)
    >>> stream.push([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])
    >>> sum(1 for reply in stream.replies(timeout=10.0)), len(stream.unanswered)
    (2, 1)
    """

    def __init__(
        self, grid: Grid, *, at_once: int | None = None, interval: float | None = None
    ) -> None:
        self.unanswered: dict[str, int] = {}
        self._grid = grid
        self._at_once = at_once
        own = getattr(grid, "pull_interval", POLL_INTERVAL)
        self._interval = own if interval is None else interval
        self._pulled: deque[Message] = deque()  # pulled, and not handed out yet

    def push(self, messages: Iterable[Message]) -> None:
        """Send messages; replies to them are handed out from now on."""
        sent = list(messages)
        if not sent:
            return
        # The grid sets the ids, and reports only those of messages that it has accepted.
        accepted = set(self._grid.push_messages(sent))
        for message in sent:
            if message.metadata.message_id in accepted:
                self.unanswered[message.metadata.message_id] = message.metadata.dst_node_id

    def expect(self, message_ids: Mapping[str, int]) -> None:
        """Hand out replies to messages that were sent before; the node of each by message id."""
        self.unanswered.update(message_ids)

    def replies(self, timeout: float | None = None) -> Iterator[Message]:
        """Yield each reply as it arrives, until all are there or the timeout is over.

        The caller may stop at any reply and call this method again: none is lost. Error replies are
        replies.

        Parameters
        ----------
        timeout
            Seconds from this call; None waits for all replies.
        """
        clock = clock_of(self._grid)
        end = math.inf if timeout is None else clock() + timeout
        while True:
            yield from self._arrived()
            if not self.unanswered:
                return
            left = end - clock()
            if left <= 0 or not self._wait(left):
                return

    def _arrived(self) -> Iterator[Message]:
        """Yield the replies that are there."""
        yield from self._hand_out()
        ids = list(self.unanswered)
        step = self._at_once or max(len(ids), 1)
        for start in range(0, len(ids), step):
            self._pulled.extend(
                reply
                for reply in self._grid.pull_messages(ids[start : start + step])
                if self.unanswered.pop(reply.metadata.reply_to_message_id, None) is not None
            )
            yield from self._hand_out()

    def _hand_out(self) -> Iterator[Message]:
        while self._pulled:
            yield self._pulled.popleft()

    def _wait(self, left: float) -> bool:
        """Wait for the next poll; return False if no reply will ever arrive."""
        wait: Callable[[Iterable[str], float], bool] | None = getattr(self._grid, "wait", None)
        if wait is not None:
            return wait(self.unanswered, left)
        time.sleep(min(self._interval, left))
        return True
