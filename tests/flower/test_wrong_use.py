"""Every wrong use is refused with one sentence that names what was given and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedXgbCyclic,
)

import adcs
from adcs.flower import LocalGrid, Scheduled, probe_mod
from adcs.observers import Observer


def scheduled(strategy: Any = None, **settings: Any) -> Scheduled:
    base = FedAvg(fraction_evaluate=0.0) if strategy is None else strategy
    return Scheduled(base, adcs.Uniform(), **{"clients_per_round": 3, **settings})


def test_a_strategy_is_scheduled_once() -> None:
    private = DifferentialPrivacyServerSideFixedClipping(scheduled(), 1.0, 1.0, 3)
    for inner in (scheduled(), private):
        with pytest.raises(
            ValueError, match="must not be Scheduled, which selects clients already"
        ):
            scheduled(inner)


def test_a_strategy_around_scheduled_would_miss_replies(toy: Any) -> None:
    """Whole updates come with the probe: differential privacy would not clip them."""
    inner = Scheduled(FedAvg(), adcs.ADCS(), clients_per_round=3)
    outer = DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 3)
    with pytest.raises(ValueError, match=r"put that strategy inside, as Scheduled\(Outer"):
        outer.start(toy.grid(), toy.initial(), num_rounds=1)
    assert not toy.trained
    inside = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1e6, 3)
    strategy = Scheduled(inside, adcs.ADCS(), clients_per_round=3)
    assert len(toy.start(strategy, toy.grid(), 1).records[0].trained) == 3


def test_a_loop_of_ones_own_is_told_that_the_folder_is_not_locked(
    toy: Any, tmp_path: Any, caplog: Any
) -> None:
    grid, arrays = toy.grid(), toy.initial()
    strategy = scheduled(folder=tmp_path / "run")
    for server_round in (1, 2):
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
        arrays, metrics = strategy.aggregate_train(server_round, replies)
        assert metrics["adcs-trained"] == len(replies) == 3  # the loop's list is left alone
    assert caplog.text.count("rounds run without start: the folder is not locked") == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"eligible": [1, 2]}, "eligible must be a function of a client's id .* got list"),
        ({"loss_key": None}, "loss_key must be the name of a metric, got None"),
        ({"probe_timeout": -1}, "probe_timeout must be a number >= 0, got -1"),
        ({"probe_timeout": "5"}, "probe_timeout must be a number >= 0, got '5'"),
        ({"checks": None}, 'checks must be "auto", .* got None'),
        ({"observers": Observer()}, "observers must be a list .* got <adcs.observers.Observer"),
        ({"observers": [Observer]}, "observers must be a list .* got <class"),
        ({"observers": [print]}, "observers must be a list .* got <built-in function print>"),
        ({"clients_per_round": np.int64(0)}, "clients_per_round must be a whole number >= 1"),
    ],
)
def test_settings(settings: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        scheduled(**settings)


def test_numpy_numbers_are_numbers(toy: Any) -> None:
    for two in (np.int64(2), np.float32(2 / 6), np.float64(2 / 6)):
        strategy = scheduled(clients_per_round=two, observers=iter(()))
        assert len(toy.start(strategy, toy.grid(), 1).records[0].trained) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"grid": None}, "grid must be a Grid, as in @server.main.., got NoneType"),
        ({"initial_arrays": {"w": 1.0}}, "initial_arrays must be an ArrayRecord, .* got dict"),
        ({"train_config": {"lr": 0.1}}, "train_config must be a ConfigRecord, .* got dict"),
        ({"evaluate_config": {"a": 1}}, "evaluate_config must be a ConfigRecord, .* got dict"),
    ],
)
def test_arguments_of_start(toy: Any, arguments: Any, sentence: str) -> None:
    given = {"grid": toy.grid(), "initial_arrays": toy.initial(), **arguments}
    with pytest.raises(ValueError, match=sentence):
        scheduled().start(num_rounds=1, **given)


class Configures(FedAvg):
    """Returns what a function makes of FedAvg's messages."""

    def __init__(self, change: Any) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.change = change

    def configure_train(self, *args: Any) -> Any:
        return self.change(list(super().configure_train(*args)))


class Aggregates(FedAvg):
    """Returns what a function makes of FedAvg's model and metrics."""

    def __init__(self, change: Any) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.change = change

    def aggregate_train(self, *args: Any) -> Any:
        return self.change(*super().aggregate_train(*args))


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (Configures(lambda sent: None), "configure_train of Configures must return messages"),
        (Configures(lambda sent: sent * 2), "address a node once in a round, got 2 messages"),
        (Aggregates(lambda *both: None), "must return an ArrayRecord and .* got NoneType"),
        (Aggregates(lambda arrays, metrics: arrays), ".* got ArrayRecord"),
        (Aggregates(lambda *both: [dict(b) for b in both]), ".* got dict and dict"),
    ],
)
def test_results_of_a_strategy(toy: Any, strategy: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        scheduled(strategy).start(toy.grid(), toy.initial(), num_rounds=1)


def test_a_strategy_that_selects_by_itself_is_named(toy: Any, caplog: Any) -> None:
    cyclic = FedXgbCyclic(fraction_evaluate=0.0)
    scheduled(cyclic).start(toy.grid(), toy.initial(), num_rounds=2)
    sentence = "FedXgbCyclic addresses 1 of 6 nodes in a round of 3 clients: the scheduler has no"
    assert caplog.text.count(sentence) == 1
    caplog.clear()
    scheduled(Configures(lambda sent: sent[:4])).start(toy.grid(), toy.initial(), num_rounds=1)
    assert "no choice" not in caplog.text


def test_a_strategy_that_aggregates_nothing_is_named_when_the_run_stops(toy: Any) -> None:
    bulyan = Bulyan(num_malicious_nodes=1, fraction_evaluate=0.0)  # It needs seven replies.
    with pytest.raises(RuntimeError, match=r"nothing from 3 replies \(2 times\)$"):
        scheduled(bulyan, stop_after=2).start(toy.grid(), toy.initial(), num_rounds=3)


def test_evaluations_of_a_strategy(toy: Any) -> None:
    class Evaluates(FedAvg):
        result: Any = None

        def aggregate_evaluate(self, *args: Any) -> Any:
            return self.result

    base = Evaluates()
    for base.result in (None, {"a": 1.0}, MetricRecord()):
        scheduled(base).start(toy.grid(), toy.initial(), num_rounds=1)
    base.result = (None, None)
    with pytest.raises(
        ValueError, match=r"aggregate_evaluate of Evaluates must return .* got tuple"
    ):
        scheduled(base).start(toy.grid(), toy.initial(), num_rounds=1)


def test_a_strategy_may_return_no_model_or_no_metrics(toy: Any) -> None:
    for change, trained in (
        (lambda arrays, metrics: (None, metrics), 0),
        (lambda arrays, metrics: (arrays, None), 3),
    ):
        run = toy.start(scheduled(Aggregates(change)), toy.grid(), 2)
        assert [len(record.trained) for record in run.records] == [trained] * 2


def test_another_model_in_the_same_folder_is_named(toy: Any, tmp_path: Any, caplog: Any) -> None:
    scheduled(folder=tmp_path / "run").start(toy.grid(), toy.initial(), num_rounds=1)
    initial = toy.initial()
    initial["frozen"] = Array(np.zeros(3))  # Clients may return a part of the model.
    scheduled(folder=tmp_path / "run").start(toy.grid(), initial, num_rounds=1)
    assert "another model" not in caplog.text
    other = ArrayRecord({"v": Array(np.zeros(3))})
    scheduled(folder=tmp_path / "run").start(toy.grid(), other, num_rounds=1)
    assert "initial_arrays is another model than that of the folder, ['w']" in caplog.text


def test_a_model_of_another_shape_in_the_same_folder_is_named(
    toy: Any, tmp_path: Any, caplog: Any
) -> None:
    scheduled(folder=tmp_path / "run").start(toy.grid(), toy.initial(), num_rounds=1)
    other = ArrayRecord({"w": Array(np.zeros((2, 6)))})
    scheduled(folder=tmp_path / "run").start(toy.grid(), other, num_rounds=1)
    assert "whose array 'w' has shape (6,), not (2, 6): to train it, choose" in caplog.text


def test_a_file_is_no_folder(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="file is a file; choose a folder"):
        scheduled(folder=tmp_path / "file")


def test_strategies_may_train_by_another_handler(toy: Any) -> None:
    """Flower routes `train.personal` to `@app.train("personal")`; so go questions and probes."""
    app = ClientApp(mods=[probe_mod])

    @app.train("personal")
    def train(message: Message, context: Any) -> Message:
        w = message.content["arrays"]["w"].numpy() + context.node_config["partition-id"] + 1.0
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
        arrays = ArrayRecord({"w": Array(w)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    strategy = Configures(
        lambda sent: [Message(m.content, m.metadata.dst_node_id, "train.personal") for m in sent]
    )
    scheduler = adcs.ADCS(refresh_every=1, sketch=adcs.Sketcher(size=64))
    run = toy.start(Scheduled(strategy, scheduler, clients_per_round=3), LocalGrid(app, 6), 2)
    assert [record.answered for record in run.records] == [list(range(6))] * 2
    assert [record.without_mod for record in run.records] == [[], []]
