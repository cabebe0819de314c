"""Client ids of nodes: public key, partition id or node id."""

from __future__ import annotations

from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs.flower import LocalGrid, Scheduled, key_id, probe_mod


def run(toy: Any, grid: Any, rounds: int = 1, **options: Any) -> Any:
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=1.0, **options)
    return toy.start(strategy, grid, rounds)


class FirstNodeFirst(FedAvg):
    """Addresses the nodes in the order of the grid; Flower's strategies draw an order."""

    def configure_train(self, *args: Any) -> Any:
        grid = args[-1]
        order = list(grid.get_node_ids())
        messages = super().configure_train(*args)
        return sorted(messages, key=lambda each: order.index(each.metadata.dst_node_id))


def test_nodes_are_asked_once_for_their_partition_id(toy: Any) -> None:
    grid = toy.grid()
    records = run(toy, grid, rounds=3).records
    assert [record.trained for record in records] == [[0, 1, 2, 3, 4, 5]] * 3
    # One question, which the mod answers, then training and evaluation in each round.
    assert [node.calls for node in grid.nodes] == [1 + 2 * 3] * 6
    assert len(toy.trained) == 18


def test_cohorts_do_not_depend_on_node_ids(toy: Any) -> None:
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


def test_the_key_of_an_authenticated_node_is_its_client_id(toy: Any) -> None:
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


def test_keys_of_nodes_that_are_not_authenticated_are_ignored(toy: Any) -> None:
    """Flower gives every node a key, also where nodes are not authenticated."""
    grid = toy.grid()
    for node in grid.nodes:
        node.public_key = b"made up at the start"
    assert run(toy, grid).records[0].trained == [0, 1, 2, 3, 4, 5]


def test_node_ids_are_client_ids_on_request(toy: Any) -> None:
    grid = toy.grid(mod=False)
    trained = run(toy, grid, partition_ids=False).records[0].trained
    assert trained == sorted(f"node:{node.node_id}" for node in grid.nodes)


def test_a_conflict_of_partition_ids_is_recorded_and_logged_once(toy: Any, caplog: Any) -> None:
    grid = toy.grid()
    grid.nodes[3].context.node_config["partition-id"] = 1
    records = run(toy, grid, rounds=2).records
    name = f"node:{grid.nodes[3].node_id}"
    assert records[0].trained == [0, 1, 2, 4, 5, name]
    assert list(records[0].id_conflicts) == [name]
    assert f"partition-id 1 is that of node {grid.nodes[1].node_id}" in caplog.text
    assert caplog.text.count("so this node goes by its node id") == 1


def test_a_restarted_node_has_its_client_id_again(toy: Any) -> None:
    """For some time Flower lists both nodes."""
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


def test_a_late_partition_id_is_used(toy: Any) -> None:
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


def test_the_node_id_is_the_client_id_without_a_partition_id(toy: Any) -> None:
    grid = toy.grid()
    content: list[RecordDict] = []

    def keep(reply: Message) -> Message:
        content.append(reply.content)
        return reply

    grid.nodes[0].tamper = keep
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


def test_a_handler_without_the_mod_gets_training_messages_only(toy: Any, caplog: Any) -> None:
    grid = toy.grid(mod=False)
    records = run(toy, grid, rounds=2).records
    assert [len(record.trained) for record in records] == [6, 6]
    # One node was asked, in a training message; the others were not asked.
    assert [node.calls for node in grid.nodes] == [1 + 2 * 2] + [2 * 2] * 5
    assert all({"arrays", "config"} <= set(names) for names in toy.record_names)
    assert caplog.text.count("no answer from probe_mod of node") == 1


def test_another_node_is_asked_if_the_first_is_silent(toy: Any) -> None:
    grid = toy.grid()
    grid.nodes[0].online = False
    grid.nodes[1].tamper = lambda reply: None
    records = run(toy, grid, rounds=1).records
    assert set(records[0].trained) == {2, 3, 4, 5}


def test_another_node_is_asked_if_the_first_raises(toy: Any) -> None:
    """A broken node, such as one whose lifespan function fails, says nothing about the others."""
    grid = toy.grid()

    def broken(message: Message, context: Any) -> Message:
        raise OSError("no such data")

    strategy = Scheduled(FirstNodeFirst(), adcs.Uniform(), clients_per_round=1.0)
    grid.nodes[0].app = broken
    records = toy.start(strategy, grid, 1).records
    assert set(records[0].trained) == {1, 2, 3, 4, 5}


def watches(message: Message, context: Any, call_next: Any) -> Message:
    """A mod that changes nothing, as those that measure time or size."""
    return call_next(message, context)


def reads_reply(message: Message, context: Any, call_next: Any) -> Message:
    """A mod that needs a model in the reply, as those that clip."""
    reply = call_next(message, context)
    assert reply.content["arrays"]
    return reply


def test_a_mod_before_probe_mod_is_reported_as_such(toy: Any, caplog: Any) -> None:
    grid = LocalGrid(toy.make_app([watches, probe_mod]), 6)
    records = run(toy, grid, rounds=2).records
    assert records[0].trained == [0, 1, 2, 3, 4, 5]
    assert records[0].without_mod == []
    assert caplog.text.count("is not the first of its mods") == 1
    assert "no answer from probe_mod" not in caplog.text


def test_no_order_is_reported_where_probe_mod_is_first(toy: Any, caplog: Any) -> None:
    app = toy.make_app([probe_mod, watches])
    strategy = Scheduled(FedAvg(), adcs.ADCS(sketch=adcs.Sketcher()), clients_per_round=2)
    toy.start(strategy, LocalGrid(app, 6), 2)
    assert "mods" not in caplog.text


def test_order_is_reported_in_probes_of_authenticated_nodes(toy: Any, caplog: Any) -> None:
    grid = LocalGrid(toy.make_app([watches, probe_mod]), 3)
    for i, node in enumerate(grid.nodes):
        node.public_key = bytes([i])
    scheduler = adcs.ADCS(sketch=adcs.Sketcher())
    strategy = Scheduled(FedAvg(), scheduler, clients_per_round=2, authenticated=True)
    toy.start(strategy, grid, 1)
    assert caplog.text.count("is not the first of its mods") == 1


def test_a_mod_that_breaks_the_answer_is_named_as_a_cause(toy: Any, caplog: Any) -> None:
    grid = LocalGrid(toy.make_app([reads_reply, probe_mod]), 6)
    records = run(toy, grid, rounds=1).records
    assert len(records[0].trained) == 6
    assert "it is missing, or a mod before it has changed its answer" in caplog.text
