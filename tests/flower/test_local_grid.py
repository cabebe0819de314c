"""LocalGrid behaves like Flower's own grids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adcs.flower import LocalGrid


def counting_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        seen = context.state["seen"]["n"] + 1 if "seen" in context.state else 1
        context.state["seen"] = MetricRecord({"n": seen})
        config = message.content["config"]
        config["steps"].append(99)
        answer = {"seen": seen, "lr": context.run_config["lr"], "steps": list(config["steps"])}
        return Message(RecordDict({"config": ConfigRecord(answer)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        raise RuntimeError("boom")

    return app


def messages(grid: LocalGrid, kind: str = "train") -> list[Message]:
    content = RecordDict({"config": ConfigRecord({"steps": [1]})})
    return [Message(content, node.node_id, kind) for node in grid.nodes]


def test_state_is_kept_and_messages_are_not_shared() -> None:
    grid = LocalGrid(counting_app(), 3, run_config={"lr": 0.5})
    for server_round in (1, 2):
        sent = messages(grid)
        replies = list(grid.send_and_receive(sent))
        for node, message, reply in zip(grid.nodes, sent, replies, strict=True):
            assert dict(reply.content["config"]) == {
                "seen": server_round,
                "lr": 0.5,
                "steps": [1, 99],
            }
            assert reply.metadata.reply_to_message_id == message.metadata.message_id
            assert reply.metadata.src_node_id == node.node_id
            assert message.content["config"]["steps"] == [1]


def test_node_ids_are_distinct_and_too_large_for_a_float() -> None:
    ids = [node.node_id for node in LocalGrid(ClientApp(), 1000).nodes]
    assert len(set(ids)) == 1000
    assert min(ids) >= 2**63
    assert ids == [node.node_id for node in LocalGrid(ClientApp(), 1000).nodes]
    assert any(int(np.float64(node)) != node for node in ids)


def test_an_exception_in_the_app_becomes_an_error_reply() -> None:
    grid = LocalGrid(counting_app(), 2)
    for reply in grid.send_and_receive(messages(grid, "evaluate")):
        assert reply.has_error()
        assert (reply.error.code, "boom" in reply.error.reason) == (2, True)


def test_messages_to_an_offline_node_get_the_superlinks_error() -> None:
    grid = LocalGrid(counting_app(), 2, run_config={"lr": 0.5})
    grid.nodes[0].online = False
    assert list(grid.get_node_ids()) == [grid.nodes[1].node_id]
    first, second = grid.send_and_receive(messages(grid))
    assert first.has_error()
    assert first.metadata.src_node_id == 1
    assert second.has_content()


def test_waiting_advances_the_virtual_clock() -> None:
    grid = LocalGrid(counting_app(), 3, run_config={"lr": 0.5})
    grid.nodes[1].delay = 8.0
    grid.nodes[2].delay = math.inf
    sent = messages(grid)
    assert len(list(grid.send_and_receive(sent, timeout=5.0))) == 1
    assert grid.clock() == 5.0
    ids = [message.metadata.message_id for message in sent]
    assert list(grid.pull_messages(ids)) == []
    grid.advance(3.0)
    [late] = grid.pull_messages(ids)
    assert late.metadata.src_node_id == grid.nodes[1].node_id
    assert list(grid.pull_messages(ids)) == []


def test_a_node_processes_one_message_at_a_time() -> None:
    grid = LocalGrid(counting_app(), 1, run_config={"lr": 0.5})
    grid.nodes[0].delay = 4.0
    grid.push_messages(messages(grid))
    assert list(grid.send_and_receive(messages(grid), timeout=7.0)) == []
    assert len(list(grid.send_and_receive(messages(grid), timeout=100.0))) == 1
    assert grid.clock() == 12.0


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_the_wait_for_a_lost_reply_ends_at_the_timeout(timeout: float | None) -> None:
    grid = LocalGrid(counting_app(), 2, run_config={"lr": 0.5})
    grid.nodes[0].tamper = lambda reply: None
    assert len(list(grid.send_and_receive(messages(grid), timeout=timeout))) == 1
    assert grid.clock() == (timeout or 0.0)


def test_added_nodes_get_the_next_partition_id() -> None:
    grid = LocalGrid(ClientApp(), 2)
    assert grid.add_node().context.node_config == {"partition-id": 2, "num-partitions": 3}
    assert len(list(grid.get_nodes())) == 3
