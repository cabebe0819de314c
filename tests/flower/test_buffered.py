"""Asynchronous training with a buffer: versions of the model, staleness, faults."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedXgbBagging,
    FedYogi,
    Krum,
    QFedAvg,
)

import adcs
from adcs.flower import Scheduled
from adcs.observers import Observer
from adcs.rounds import Buffered
from adcs.run_folder import RunFolder
from adcs.schedulers.base import Cohort

STRATEGIES: dict[str, Any] = {
    "FedAvg": FedAvg,
    "FedProx": lambda **options: FedProx(proximal_mu=0.1, **options),
    "FedAvgM": lambda **options: FedAvgM(server_learning_rate=0.7, server_momentum=0.5, **options),
    "FedAdam": lambda **options: FedAdam(eta=0.1, **options),
    "FedYogi": lambda **options: FedYogi(eta=0.1, **options),
    "FedAdagrad": lambda **options: FedAdagrad(eta=0.1, **options),
}
SLOW = [1.0, 1.3, 1.9, 2.6, 4.7, 8.3]
"""Seconds of six nodes."""


def buffered(base: Any = None, scheduler: Any = None, **options: Any) -> Scheduled:
    settings = {"mode": Buffered(size=2, concurrency=4), **options}
    base = FedAvg(fraction_evaluate=0.0) if base is None else base
    return Scheduled(base, scheduler or adcs.Uniform(), **settings)


def run(toy: Any, strategy: Scheduled, grid: Any, versions: int, **options: Any) -> Any:
    """Run, and return the result with the models of all versions and the records."""
    models: list[np.ndarray] = []

    def keep(version: int, arrays: ArrayRecord) -> None:
        assert version == len(models)
        models.append(arrays["w"].numpy())

    result = toy.start(strategy, grid, versions, evaluate_fn=keep, **options)
    result.models = models
    return result


def rebased(toy: Any, mode: Buffered, models: Sequence[np.ndarray], record: Any) -> list[Message]:
    """Return the replies of a version as a strategy should see them, from closed forms."""
    version = len(models) - 1
    messages = []
    for client in record.trained:
        stale = record.staleness[client]
        sent = models[version - stale]
        delta = -0.5 * toy.gradient(sent, client)
        arrays = ArrayRecord({"w": Array(models[version] + mode.discount(stale) * delta)})
        metrics = {"train_loss": toy.loss(sent, client), "num-examples": toy.examples(client)}
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
        messages.append(Message(content, 1, "train"))
    return messages


@pytest.mark.parametrize("staleness", ["sqrt", "inverse", "constant"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_each_version_is_the_strategys_step_of_rebased_replies(
    toy: Any, name: str, staleness: Any
) -> None:
    mode = Buffered(size=2, concurrency=4, staleness=staleness)
    strategy = buffered(STRATEGIES[name](fraction_evaluate=0.0), mode=mode)
    grid = toy.known_grid(strategy, SLOW)
    done = run(toy, strategy, grid, 12)
    oracle = STRATEGIES[name](fraction_evaluate=0.0)
    empty = toy.grid()
    for version, record in enumerate(done.records):
        arrays = ArrayRecord({"w": Array(done.models[version])})
        list(oracle.configure_train(version + 1, arrays, ConfigRecord(), empty))
        replies = rebased(toy, mode, done.models[: version + 1], record)
        expected, _ = oracle.aggregate_train(version + 1, replies)
        np.testing.assert_allclose(
            done.models[version + 1], expected["w"].numpy(), rtol=1e-9, atol=1e-12
        )
    stale = [value for record in done.records for value in record.staleness.values()]
    assert max(stale) >= 2
    assert min(stale) == 0


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "FedAvgM"])
def test_the_step_is_the_weighted_mean_of_discounted_updates(toy: Any, name: str) -> None:
    base = FedAvgM(fraction_evaluate=0.0) if name == "FedAvgM" else STRATEGIES[name]()
    strategy = buffered(base)
    done = run(toy, strategy, toy.known_grid(strategy, SLOW), 10)
    for version, record in enumerate(done.records):
        n = np.array([toy.examples(client) for client in record.trained], dtype=float)
        deltas = []
        for client in record.trained:
            stale = record.staleness[client]
            sent = done.models[version - stale]
            deltas.append(-0.5 * toy.gradient(sent, client) / math.sqrt(1 + stale))
        step = (n[:, None] * np.stack(deltas)).sum(axis=0) / n.sum()
        np.testing.assert_allclose(
            done.models[version + 1], done.models[version] + step, rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_full_buffer_without_slow_nodes_is_the_synchronous_round(toy: Any, name: str) -> None:
    whole = Scheduled(STRATEGIES[name](), adcs.Uniform(), clients_per_round=3)
    first = run(toy, whole, toy.grid(), 6)
    strategy = buffered(STRATEGIES[name](), mode=Buffered(size=3, concurrency=3))
    second = run(toy, strategy, toy.grid(), 6)
    assert [r.trained for r in first.records] == [r.trained for r in second.records]
    for one, other in zip(first.models, second.models, strict=True):
        np.testing.assert_array_equal(one, other)
    metrics = [each.result.evaluate_metrics_clientapp for each in (first, second)]
    assert metrics[0] == metrics[1]


def test_slots_are_filled_once_per_version_and_never_by_busy_clients(toy: Any) -> None:
    strategy = buffered()
    grid = toy.known_grid(strategy, SLOW)
    done = run(toy, strategy, grid, 15)
    at_work: set[int] = set()
    for record in done.records:
        assert set(record.pending) == at_work
        assert not at_work & set(record.cohort.clients)
        assert len(at_work) + len(record.cohort.clients) == 4
        at_work |= set(record.cohort.clients)
        assert set(record.trained) <= at_work
        assert len(record.trained) >= 2
        at_work -= set(record.trained)
    # A version needs the second fastest of those at work, never the slowest.
    assert all(record.costs.seconds < 8.3 for record in done.records)
    rounds = [server_round for _, server_round in toy.trained]
    assert rounds == sorted(rounds)


def test_schedulers_condition_on_clients_at_work(toy: Any) -> None:
    seen: list[tuple[int, ...]] = []

    class Watching(adcs.LiveADCS):
        def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
            seen.append(self.pending)
            return super()._select(server_round, clients, m)

    strategy = buffered(scheduler=Watching(sketch=adcs.Sketcher(size=32)))
    done = run(toy, strategy, toy.known_grid(strategy, SLOW), 5)
    assert seen == [tuple(sorted(record.pending)) for record in done.records]
    assert any(seen)


def test_weights_are_those_of_each_clients_cohort(toy: Any) -> None:
    class Weighted(adcs.Uniform):
        def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
            scale = 10.0**server_round  # The weights of one cohort compare with each other only.
            chosen = clients[:m]
            return Cohort(chosen, tuple(scale * (1.0 + i) for i in range(len(chosen))))

    strategy = buffered(scheduler=Weighted())
    done = run(toy, strategy, toy.known_grid(strategy, SLOW), 6)
    weight: dict[int, float] = {}
    mixed = 0
    for version, record in enumerate(done.records):
        size = len(record.cohort.clients)
        for i, client in enumerate(record.cohort.clients):
            weight[client] = (1.0 + i) / (sum(range(1, size + 1)) / size)
        mixed += len(set(record.staleness.values())) > 1
        n = np.array([toy.examples(client) * weight[client] for client in record.trained])
        deltas = [
            -0.5 * toy.gradient(done.models[version - stale], client) / math.sqrt(1 + stale)
            for client, stale in record.staleness.items()
        ]
        step = (n[:, None] * np.stack(deltas)).sum(axis=0) / n.sum()
        np.testing.assert_allclose(done.models[version + 1], done.models[version] + step)
    assert mixed


def test_messages_under_way_keep_their_config(toy: Any) -> None:
    class Decaying(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["lr"] = config.get("lr", 1.0) / 2
            return super().configure_train(server_round, arrays, config, grid)

    strategy = buffered(Decaying(fraction_evaluate=0.0))
    grid = toy.known_grid(strategy, SLOW)
    sent: list[tuple[int, Message]] = []
    push = grid.push_messages

    def keep(messages: Any) -> Any:
        messages = list(messages)
        sent.extend((strategy.rounds_done, message) for message in messages)
        return push(messages)

    grid.push_messages = keep
    run(toy, strategy, grid, 4)
    assert len(sent) > 4
    for version, message in sent:
        config = message.content["config"]
        assert (config["server-round"], config["lr"]) == (version + 1, 0.5 ** (version + 1))


def test_busy_nodes_do_not_evaluate(toy: Any) -> None:
    strategy = buffered(FedAvg())
    grid = toy.known_grid(strategy, SLOW)
    busy: list[set[int]] = []

    class AtWork(Observer):
        def on_round(self, event: Any) -> None:
            toy.evaluated.clear()
            at_work = {*event.record.pending, *event.record.cohort.clients}
            busy.append(at_work - set(event.record.trained))

        def on_evaluation(self, event: Any) -> None:
            assert not busy[-1] & set(toy.evaluated)
            assert toy.evaluated

    strategy.observers.append(AtWork())
    run(toy, strategy, grid, 6)
    assert all(busy)


# Faults.


def test_a_reply_to_an_old_model_counts_by_its_staleness(toy: Any, tmp_path: Path) -> None:
    """One node is thirty times slower: its reply is to a model of many versions ago."""
    strategy = buffered(folder=tmp_path / "run")
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 1.4, 30.0])
    done = run(toy, strategy, grid, 40)
    stale = {client: s for r in done.records for client, s in r.staleness.items() if client == 5}
    assert stale[5] >= 10
    lines = list(RunFolder.open(tmp_path / "run").records())
    assert [line["server_round"] for line in lines] == list(range(1, 41))
    [old] = [line for line in lines if 5 in line["trained"]]
    assert old["staleness"][old["trained"].index(5)] == stale[5]
    assert len(old["late"]) == 0
    assert grid.clock() < 60.0


def test_a_dead_node_holds_its_slot_no_longer_than_the_deadline(toy: Any) -> None:
    strategy = buffered(deadline=20.0)
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 1.4, math.inf])
    done = run(toy, strategy, grid, 60)
    assert all(len(record.trained) >= 2 for record in done.records)
    silent = [i for i, r in enumerate(done.records) if r.timed_out]
    assert done.records[silent[0]].timed_out == {"training": [5]}
    # Nobody waits for it: it misses its deadline while others train.
    assert all(record.costs.seconds < 3.0 for record in done.records)
    assert 5 not in done.records[silent[0] + 1].cohort.clients
    assert 5 in done.records[silent[0] + 1].pending


def test_nobody_complements_a_client_that_was_given_up(toy: Any) -> None:
    seen: list[tuple[int, ...]] = []

    class Watching(adcs.Uniform):
        def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
            seen.append(self.pending)
            return super()._select(server_round, clients, m)

    strategy = buffered(scheduler=Watching(), deadline=3.0)
    done = run(toy, strategy, toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 1.4, math.inf]), 30)
    given_up = [i for i, record in enumerate(done.records) if record.timed_out]
    assert given_up
    late = [i for i, record in enumerate(done.records) if 5 in record.pending and i > given_up[0]]
    assert len(late) > 5
    for i in late:
        assert sorted([*seen[i], 5]) == sorted(done.records[i].pending)


def test_a_buffer_ends_with_fewer_if_nobody_is_left_at_work(toy: Any) -> None:
    strategy = buffered(mode=Buffered(size=3, concurrency=3), deadline=10.0)
    grid = toy.known_grid(strategy, [1.0, 1.1, math.inf])
    done = run(toy, strategy, grid, 3)
    assert [record.trained for record in done.records] == [[0, 1]] * 3
    assert done.records[0].timed_out == {"training": [2]}
    assert done.records[0].costs.seconds == 10.0
    assert done.records[1].pending == [2]
    assert done.records[1].costs.seconds == pytest.approx(1.1)


def test_without_a_deadline_a_grid_may_say_that_nobody_will_answer(toy: Any) -> None:
    strategy = buffered(mode=Buffered(size=2, concurrency=2))
    grid = toy.known_grid(strategy, [1.0, math.inf])
    done = run(toy, strategy, grid, 1, timeout=None)
    assert done.records[0].trained == [0]


def test_a_node_that_returns_nan_is_refused_and_backs_off(toy: Any, changed: Any) -> None:
    strategy = buffered()
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    grid.nodes[0].tamper = lambda reply: changed(reply, w=np.full(6, np.nan))
    done = run(toy, strategy, grid, 20)
    assert all(np.isfinite(model).all() for model in done.models)
    assert all(0 not in record.trained and len(record.trained) >= 2 for record in done.records)
    refused = [one for record in done.records for one in record.refused]
    assert {one["client"] for one in refused} == {0}
    assert 1 <= len(refused) <= 5


def test_a_node_that_disconnects_frees_its_slot(toy: Any) -> None:
    strategy = buffered()
    grid = toy.known_grid(strategy, SLOW)
    run(toy, strategy, grid, 2)

    class Leaves(Observer):
        def on_selection(self, event: Any) -> None:
            grid.nodes[0].online = event.server_round < 4

    strategy.observers.append(Leaves())
    models = toy.start(strategy, grid, 10)
    assert np.isfinite(models.w).all()
    assert all(record.trained for record in models.records)
    assert all(0 not in record.cohort.clients for record in models.records[4:])


def test_a_restarted_server_goes_on_without_the_work_in_flight(toy: Any, tmp_path: Path) -> None:
    first = buffered(STRATEGIES["FedAvgM"](), folder=tmp_path / "run", deadline="adaptive")
    grid = toy.known_grid(first, SLOW)
    before = toy.start(first, grid, 5)
    # The nodes are still at work on messages of the server that has stopped.
    assert any(node._busy_until > grid.clock() for node in grid.nodes)
    second = buffered(STRATEGIES["FedAvgM"](), folder=tmp_path / "run", deadline="adaptive")
    for node in grid.nodes:
        second._registry.identify(node.node_id, node.context.node_config["partition-id"])
    assert second.rounds_done == 5
    assert second.recorder.deadlines.state() == first.recorder.deadlines.state()
    assert first.recorder.deadlines
    np.testing.assert_array_equal(second.recorder.model["w"], before.w)
    np.testing.assert_array_equal(
        second.strategy.momentum_vector[0], first.strategy.momentum_vector[0]
    )
    after = run(toy, second, grid, 5)
    np.testing.assert_array_equal(after.models[0], before.w)
    assert [max(r.staleness.values()) <= i for i, r in enumerate(after.records)] == [True] * 5
    lines = list(RunFolder.open(tmp_path / "run").records())
    assert [line["server_round"] for line in lines] == list(range(1, 11))
    assert all(line["staleness"] for line in lines)


def test_work_in_flight_at_the_end_is_late_for_the_next_start(toy: Any) -> None:
    strategy = buffered()
    grid = toy.known_grid(strategy, SLOW)
    run(toy, strategy, grid, 3)
    assert strategy._registry.pending_nodes()
    assert not strategy._registry.at_work
    grid.advance(100.0)
    done = toy.start(strategy, grid, 1)
    assert len(done.records[0].late) == 2
    assert all(one["server_round"] <= 3 for one in done.records[0].late)
    assert done.records[0].pending == []


SERVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Toy
import adcs
from adcs.flower import Scheduled
from adcs.observers import Observer
from adcs.rounds import Buffered
from flwr.serverapp.strategy import FedAdam

toy = Toy(6)


class Slow(Observer):
    def on_selection(self, event):
        print("version", event.server_round, len(event.pending), flush=True)
        time.sleep(float(sys.argv[3]))


strategy = Scheduled(
    FedAdam(fraction_evaluate=0.0), adcs.LiveADCS(sketch=adcs.Sketcher(size=32)),
    mode=Buffered(size=2, concurrency=4), folder=sys.argv[2], observers=[Slow()],
)
grid = toy.known_grid(strategy, [1.0, 1.3, 1.9, 2.6, 4.7, 8.3])
strategy.start(grid, toy.initial(), num_rounds=9 - strategy.rounds_done)
"""


def test_a_server_killed_with_work_in_flight_resumes(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def serve(pause: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                sys.executable,
                str(script),
                str(Path(__file__).parent),
                str(tmp_path / "r"),
                f"{pause}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"},
        )

    process = serve(0.3)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("version 5"):
            assert int(line.split()[2]) == 2  # clients at work
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait(timeout=120) == -signal.SIGKILL
    lines = list(RunFolder.open(tmp_path / "r").records())
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4, 5]
    assert serve(0.0).wait(timeout=120) == 0
    lines = list(RunFolder.open(tmp_path / "r").records())
    assert [line["server_round"] for line in lines] == list(range(1, 10))
    # What was in flight is lost: the sixth version begins with nobody at work.
    assert lines[5]["pending"] == []
    assert max(lines[5]["staleness"]) == 0
    assert json.loads((tmp_path / "r" / "config.json").read_text())["mode"].startswith("Buffered(")


class Median(FedAvg):
    """Aggregates by itself."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return None, None


class Logs(FedAvg):
    """Aggregates as FedAvg."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize(
    "make",
    [
        FedMedian,
        Krum,
        FedXgbBagging,
        Median,
        lambda: QFedAvg(client_learning_rate=0.5),
        lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2),
    ],
)
def test_other_strategies_are_refused(make: Any) -> None:
    base = make()
    with pytest.raises(ValueError, match=f"mode=Buffered works with .* got {type(base).__name__}"):
        buffered(base)


def test_subclasses_that_aggregate_by_flowers_are_not(toy: Any) -> None:
    strategy = buffered(Logs(fraction_evaluate=0.0))
    assert run(toy, strategy, toy.known_grid(strategy, SLOW), 2).models[2].any()


def test_unnormalised_cohorts_are_refused(toy: Any) -> None:
    with pytest.raises(ValueError, match="mode=Buffered needs cohorts whose weights are normal"):
        run(toy, buffered(scheduler=adcs.Uniform(independent=True)), toy.grid(), 1)
