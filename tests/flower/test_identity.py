"""Who a node is: its key, its partition, or its node id."""

from __future__ import annotations

from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs.flower import Scheduled, key_id


def run(toy: Any, grid: Any, rounds: int = 1, **options: Any) -> Any:
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=1.0, **options)
    return toy.start(strategy, grid, rounds)


def test_partition_ids_are_asked_for_once_without_calling_the_handler(toy: Any) -> None:
    grid = toy.grid()
    records = run(toy, grid, rounds=3).records
    assert [record.trained for record in records] == [[0, 1, 2, 3, 4, 5]] * 3
    # One question, then training and evaluation in each round.
    assert [node.calls for node in grid.nodes] == [1 + 2 * 3] * 6
    assert len(toy.trained) == 18


def test_a_run_in_another_federation_has_the_same_cohorts(toy: Any) -> None:
    """Node ids are new in each run of a simulation, partition ids are not."""
    grid = toy.grid()
    for node in grid.nodes:
        node.node_id -= 1
        node.context.node_id -= 1

    def cohorts(grid: Any) -> Any:
        scheduler = adcs.ADCS(refresh_every=2, seed=3)
        strategy = Scheduled(FedAvg(), scheduler, clients_per_round=2)
        return [record.cohort.clients for record in toy.start(strategy, grid, 4).records]

    assert cohorts(grid) == cohorts(toy.grid())


def test_authenticated_nodes_go_by_their_key_and_are_not_asked(toy: Any) -> None:
    grid = toy.grid(mod=False)
    for i, node in enumerate(grid.nodes):
        node.public_key = f"key {i}".encode()
    strategy = Scheduled(
        FedAvg(fraction_evaluate=0.0), adcs.Uniform(), clients_per_round=1.0, authenticated=True
    )
    result = toy.start(strategy, grid, 1)
    names = [key_id(f"key {i}".encode()) for i in range(6)]
    assert sorted(result.records[0].trained) == sorted(names)
    assert [node.calls for node in grid.nodes] == [1] * 6


def test_keys_that_nobody_vouches_for_are_no_identity(toy: Any) -> None:
    """Flower gives every node a key, also where nodes are not authenticated."""
    grid = toy.grid()
    for node in grid.nodes:
        node.public_key = b"made up at the start"
    assert run(toy, grid).records[0].trained == [0, 1, 2, 3, 4, 5]


def test_node_ids_on_request(toy: Any) -> None:
    grid = toy.grid(mod=False)
    trained = run(toy, grid, partition_ids=False).records[0].trained
    assert trained == sorted(f"node:{node.node_id}" for node in grid.nodes)


def test_two_nodes_with_one_partition_id(toy: Any, caplog: Any) -> None:
    grid = toy.grid()
    grid.nodes[3].context.node_config["partition-id"] = 1
    records = run(toy, grid, rounds=2).records
    name = f"node:{grid.nodes[3].node_id}"
    assert records[0].trained == [0, 1, 2, 4, 5, name]
    assert list(records[0].id_conflicts) == [name]
    assert f"partition-id 1 is that of node {grid.nodes[1].node_id}" in caplog.text
    assert caplog.text.count("so this node goes by its node id") == 1


def test_a_restarted_node_takes_its_place_again(toy: Any) -> None:
    """For a while both are connected, as far as Flower knows."""
    grid = toy.grid()
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=1.0)
    toy.start(strategy, grid, 1)
    restarted = grid.add_node()
    restarted.context.node_config["partition-id"] = 2
    both = toy.start(strategy, grid, 1).records[0]
    assert both.trained == [0, 1, 2, 3, 4, 5, f"node:{restarted.node_id}"]
    grid.nodes[2].online = False
    after = toy.start(strategy, grid, 1).records[0]
    assert after.trained == [0, 1, 2, 3, 4, 5]


def test_a_late_answer_to_the_question_counts(toy: Any) -> None:
    grid = toy.grid()
    grid.nodes[4].delay = 8.0
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=1.0, probe_timeout=5.0)
    first = toy.start(strategy, grid, 1, timeout=50.0).records[0]
    name = f"node:{grid.nodes[4].node_id}"
    assert first.pending == [name]
    assert first.trained == [0, 1, 2, 3, 5]
    grid.advance(10.0)
    second = toy.start(strategy, grid, 1, timeout=50.0).records[0]
    assert second.trained == [0, 1, 2, 3, 4, 5]


def test_a_node_without_a_partition_id_goes_by_its_node_id(toy: Any) -> None:
    grid = toy.grid()
    content: list[RecordDict] = []

    def remember(reply: Message) -> Message:
        content.append(reply.content)
        return reply

    grid.nodes[0].tamper = remember
    grid.nodes[0].context.node_config = {"partition-id": "zero", "num-partitions": 6}
    strategy = Scheduled(
        FedAvg(fraction_evaluate=0.0),
        adcs.Uniform(),
        clients_per_round=1.0,
        eligible=lambda client, info: isinstance(client, int),
    )
    records = toy.start(strategy, grid, 1).records
    assert records[0].trained == [1, 2, 3, 4, 5]
    assert records[0].without_mod == []
    assert [dict(c["adcs-answer"]) for c in content] == [{}]
