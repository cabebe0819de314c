"""Replies one by one, as they arrive."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from adcs.federated import ClientRegistry, Purpose
from adcs.flower import LocalGrid
from adcs.flower.receive import ReplyStream
from adcs.flower.transport import Transport


def messages(grid: LocalGrid) -> list[Message]:
    content = {"arrays": ArrayRecord({"w": Array(np.zeros(6))}), "config": ConfigRecord()}
    content["config"]["server-round"] = 1
    return [Message(RecordDict(content), node.node_id, "train") for node in grid.nodes]


def senders(grid: LocalGrid, replies: Iterable[Message]) -> list[int]:
    partitions = {node.node_id: i for i, node in enumerate(grid.nodes)}
    return [partitions[reply.metadata.src_node_id] for reply in replies]


def test_replies_come_in_the_order_of_their_arrival(toy: Any) -> None:
    grid = toy.grid()
    for node, delay in zip(grid.nodes, (5.0, 1.0, 0.0, 9.0, 1.0, 20.0), strict=True):
        node.delay = delay
    stream, times = ReplyStream(grid), []
    stream.push(messages(grid))
    order = []
    for reply in stream.replies(timeout=10.0):
        order += senders(grid, [reply])
        times.append(grid.clock())
    assert order == [2, 1, 4, 0, 3]
    assert times == [0.0, 1.0, 1.0, 5.0, 9.0]
    assert grid.clock() == 10.0
    assert list(stream.unanswered.values()) == [grid.nodes[5].node_id]
    # The last one arrives if the wait goes on.
    assert senders(grid, stream.replies(timeout=math.inf)) == [5]
    assert grid.clock() == 20.0
    assert not stream.unanswered


def test_the_same_replies_as_those_of_the_grid(toy: Any) -> None:
    for timeout in (None, 4.0):
        grids = [toy.grid(), toy.grid()]
        for grid in grids:
            grid.nodes[1].delay = 3.0
            grid.nodes[2].delay = 8.0
            grid.nodes[3].online = False
            grid.nodes[4].tamper = lambda reply: None
        theirs = list(grids[0].send_and_receive(messages(grids[0]), timeout=timeout))
        stream = ReplyStream(grids[1])
        stream.push(messages(grids[1]))
        ours = list(stream.replies(timeout))
        assert grids[0].clock() == grids[1].clock()
        answered = [{each.metadata.reply_to_message_id for each in both} for both in (theirs, ours)]
        assert answered[0] == answered[1]
        assert sum(each.has_error() for each in ours) == 1


def test_a_caller_that_stops_loses_nothing(toy: Any) -> None:
    grid = toy.grid()
    stream = ReplyStream(grid)
    stream.push(messages(grid))
    first = next(stream.replies())
    assert senders(grid, [first]) == [0]
    assert senders(grid, stream.replies()) == [1, 2, 3, 4, 5]
    # More can be pushed while others are on their way.
    stream.push(messages(grid)[:2])
    seen = []
    for reply in stream.replies():
        seen += senders(grid, [reply])
        if len(seen) == 1:
            stream.push(messages(grid)[3:4])
    assert seen == [0, 1, 3]


@pytest.mark.parametrize("at_once", [1, 4])
def test_few_replies_are_pulled_at_a_time_and_let_go(toy: Any, at_once: int) -> None:
    alive: list[weakref.ref[Message]] = []

    class Counting(LocalGrid):
        most = 0

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            pulled = list(super().pull_messages(message_ids))
            alive.extend(map(weakref.ref, pulled))
            gc.collect()
            self.most = max(self.most, sum(each() is not None for each in alive))
            return pulled

    grid = Counting(toy.app, 12)
    stream = ReplyStream(grid, at_once=at_once)
    stream.push(messages(grid))
    count = 0
    for reply in stream.replies():
        count += 1
        del reply
    assert count == 12
    assert grid.most == at_once


def test_flowers_interval_is_kept_between_polls(toy: Any, monkeypatch: Any) -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("adcs.flower.receive.time.sleep", sleep)
    monkeypatch.setattr("adcs.flower.receive.time.monotonic", lambda: now[0])

    class Plain:
        """What a grid of Flower's offers; one message is answered at the third poll."""

        polls = 0

        def __init__(self, grid: LocalGrid) -> None:
            self.grid = grid

        def push_messages(self, sent: Any) -> Any:
            ids = list(self.grid.push_messages(sent))
            return ids[:-1]  # The last one was not accepted.

        def pull_messages(self, ids: Any) -> Any:
            self.polls += 1
            return self.grid.pull_messages(ids) if self.polls >= 3 else []

    grid: Any = Plain(toy.grid())
    stream = ReplyStream(grid)
    stream.push(messages(grid.grid)[:3])
    assert len(stream.unanswered) == 2
    assert len(list(stream.replies(timeout=100.0))) == 2
    assert slept == [3.0, 3.0]
    stream = ReplyStream(grid)
    grid.polls = -10
    stream.push(messages(grid.grid)[:2])
    slept.clear()
    assert list(stream.replies(timeout=7.0)) == []
    assert slept == [3.0, 3.0, 1.0]
    grid.pull_interval = 0.5
    slept.clear()
    assert list(ReplyStream(grid).replies(timeout=1.0)) == []
    stream = ReplyStream(grid)
    stream.push(messages(grid.grid)[:2])
    list(stream.replies(timeout=1.0))
    assert slept == [0.5, 0.5]


def test_nodes_are_pending_if_the_reader_stops(toy: Any) -> None:
    grid = toy.grid()
    grid.nodes[4].delay = grid.nodes[5].delay = 50.0
    registry = ClientRegistry[int]()
    transport = Transport(registry)
    answers = transport.send(grid, messages(grid), 100.0, Purpose("probe", 0))
    for node, _ in answers:
        if node == grid.nodes[3].node_id:
            break
    answers.close()  # type: ignore[attr-defined]
    assert registry.pending_nodes() == {grid.nodes[4].node_id, grid.nodes[5].node_id}
    grid.advance(60.0)
    assert len(transport.collect_late(grid)) == 2
