"""Large models and models without updates: sketches by default, memory, trees."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs.federated import Purpose, ReplyChecks, ReplyReader, RoundRecord, SentModel
from adcs.flower import LocalGrid, Scheduled, probe_mod
from adcs.flower.transport import FlowerReply
from adcs.run_folder import RunFolder


@pytest.mark.parametrize("make", [adcs.ADCS, adcs.LiveADCS])
def test_updates_above_the_limit_are_sketched(toy: Any, make: Any, caplog: Any) -> None:
    caplog.set_level("INFO")
    scheduler = make(seed=1)
    strategy = Scheduled(FedAvg(), scheduler, clients_per_round=3, sketch_above=5)
    run = toy.start(strategy, toy.grid(), 3)
    assert all(len(record.trained) == 3 for record in run.records)
    assert scheduler.reports.width == 256
    assert caplog.text.count("updates have 6 numbers, more than sketch_above=5") == 1
    # The same cohorts as with that sketch given.
    given = make(seed=1, sketch=adcs.Sketcher(size=256))
    again = toy.start(Scheduled(FedAvg(), given, clients_per_round=3), toy.grid(), 3)
    assert [r.cohort.clients for r in again.records] == [r.cohort.clients for r in run.records]
    np.testing.assert_array_equal(again.w, run.w)


def test_updates_up_to_the_limit_and_given_sketches_stay(toy: Any, caplog: Any) -> None:
    whole = adcs.ADCS()
    toy.start(Scheduled(FedAvg(), whole, clients_per_round=3, sketch_above=6), toy.grid(), 1)
    assert whole.reports.width == 6
    own = adcs.ADCS(sketch=adcs.Sketcher(size=64))
    toy.start(Scheduled(FedAvg(), own, clients_per_round=3, sketch_above=0), toy.grid(), 1)
    assert own.reports.width == 64
    assert "sketch_above" not in caplog.text


def test_schedulers_without_updates_are_not_concerned(toy: Any, caplog: Any) -> None:
    for scheduler in (adcs.Uniform(), adcs.PowerOfChoice(), adcs.OCS()):
        toy.start(
            Scheduled(FedAvg(), scheduler, clients_per_round=3, sketch_above=0), toy.grid(), 2
        )
    assert "sketch_above" not in caplog.text


def test_replies_are_read_one_at_a_time(toy: Any) -> None:
    toy.grid()  # Messages can be created only after a grid has set this process's identity.
    size = 500_000
    model = SentModel({"w": np.zeros(size, np.float32)})
    replies = {}
    for client in range(6):
        arrays = ArrayRecord({"w": Array(np.full(size, 1.0 + client, np.float32))})
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        replies[client] = FlowerReply(Message(content, client, "train"))
    reader = ReplyReader(ReplyChecks("num-examples", "train_loss"))
    purpose, sketch = Purpose("training", 0, model), adcs.Sketcher(size=64)
    tracemalloc.start()
    usable = reader.read(purpose, replies, RoundRecord(), sketch=sketch)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(usable.trained) == 6
    # In models of this size: little is kept, and one reply needs a few at a time.
    assert held < 0.5 * 4 * size
    assert peak < 5 * 4 * size


@pytest.fixture
def no_automatic_gc() -> Iterator[None]:
    """Python looks for reference cycles when it has made many objects, however large they are."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_automatic_gc")
def test_replies_are_let_go_before_those_of_the_next_round_arrive(toy: Any) -> None:
    alive: list[weakref.ref[Any]] = []
    before: list[int] = []

    class Watched(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            before.append(sum(each() is not None for each in alive))
            pulled = list(super().pull_messages(message_ids))
            alive.extend(weakref.ref(each.content["arrays"]) for each in pulled)
            return pulled

    base = FedAvg(fraction_evaluate=0.0)
    strategy = Scheduled(base, adcs.Uniform(), clients_per_round=3, partition_ids=False)
    strategy.start(Watched(toy.app, 6), toy.initial(), num_rounds=4)
    assert len(alive) == 12
    assert not any(before), before


class Trees(FedAvg):
    """Its model is a serialised object that grows."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        trees = [reply.content["arrays"]["0"].numpy() for reply in replies]
        return ArrayRecord([np.concatenate(trees)]), MetricRecord()


def trees_app(sizes: list[int]) -> ClientApp:
    """Return an app that adds a byte to its model, and notes the sizes of models to evaluate."""
    app = ClientApp(mods=[probe_mod])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        trees = message.content["arrays"]["0"].numpy()
        record = ArrayRecord([np.append(trees, np.uint8(7))])
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        client = context.node_config["partition-id"]
        sizes.append(message.content["arrays"]["0"].numpy().size)
        held = {"loss": float(client), "num-examples": 10, "label_counts": [float(client), 1.0]}
        return Message(RecordDict({"metrics": MetricRecord(held)}), reply_to=message)

    return app


def start_trees(scheduler: Any) -> Any:
    strategy = Scheduled(Trees(fraction_evaluate=0.0), scheduler, clients_per_round=2)
    initial = ArrayRecord([np.zeros(0, np.uint8)])
    return strategy.start(LocalGrid(trees_app([]), 4), initial, num_rounds=3)


def test_trees_can_be_scheduled_without_updates() -> None:
    assert start_trees(adcs.Uniform()).arrays["0"].numpy().size == 14  # 2 n + 2, three times


def test_clients_are_not_asked_to_evaluate_an_empty_model(caplog: Any, tmp_path: Any) -> None:
    """XGBoost ends the client's process if it loads one."""
    sizes: list[int] = []
    base = Trees(fraction_evaluate=0.0)
    strategy = Scheduled(base, adcs.PowerOfChoice(), clients_per_round=2, folder=tmp_path / "run")
    initial = ArrayRecord([np.zeros(0, np.uint8)])
    strategy.start(LocalGrid(trees_app(sizes), 4), initial, num_rounds=3)
    assert sizes == [2] * 4 + [6] * 4
    lines = list(RunFolder.open(tmp_path / "run").records())
    assert [line["probed"] for line in lines] == [[], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert [sorted(line["trained"]) for line in lines[1:]] == [[2, 3], [2, 3]]
    assert caplog.text.count("the model is empty, so that no client can evaluate it") == 1


@pytest.mark.parametrize(
    "scheduler",
    [adcs.LiveADCS(kernel="labels"), adcs.ADCS(kernel="labels"), adcs.FLIPS(), adcs.FedCBS()],
)
def test_what_is_not_asked_of_an_empty_model_is_asked_in_the_next_round(scheduler: Any) -> None:
    sizes: list[int] = []
    base = Trees(fraction_evaluate=0.0)
    strategy = Scheduled(base, scheduler, clients_per_round=2)
    strategy.start(
        LocalGrid(trees_app(sizes), 4), ArrayRecord([np.zeros(0, np.uint8)]), num_rounds=2
    )
    assert sizes == [2] * 4
    found = [scheduler.reports.get(client) for client in range(4)]
    assert all(report is not None and report.label_counts is not None for report in found)


@pytest.mark.parametrize(
    "scheduler", [adcs.ADCS(), adcs.ADCS(sketch=adcs.Sketcher(64)), adcs.LiveADCS(), adcs.OCS()]
)
def test_schedulers_that_go_by_updates_refuse_trees(scheduler: Any) -> None:
    with pytest.raises(ValueError, match=r"no floating-point arrays, got \['0'\]: .*Uniform or"):
        start_trees(scheduler)
