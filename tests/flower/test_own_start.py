"""Strategies that override `start` do in it what they did before."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Result,
)

import adcs
from adcs.flower import Scheduled
from adcs.observers import Observer
from adcs.run_folder import RunFolder


class Saves(FedAvg):
    """Saves results and the best model in `start`, as Flower's advanced example does."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self.folder = folder
        self.best = -1.0

    def save_if_best(self, server_round: int, metrics: MetricRecord) -> None:
        if metrics["eval_acc"] > self.best:
            self.best = float(metrics["eval_acc"])
            (self.folder / f"best-{server_round}.json").write_text(json.dumps(self.best))

    def start(  # type: ignore[override]
        self,
        grid: Any,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 60,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        note: str = "",
    ) -> Result:
        result = Result()
        arrays = initial_arrays
        self.summary()
        for server_round in range(1, num_rounds + 1):
            replies = grid.send_and_receive(
                self.configure_train(server_round, arrays, train_config or ConfigRecord(), grid),
                timeout=timeout,
            )
            trained, metrics = self.aggregate_train(server_round, replies)
            arrays = result.arrays = trained or arrays
            result.train_metrics_clientapp[server_round] = metrics
            replies = grid.send_and_receive(
                self.configure_evaluate(
                    server_round, arrays, evaluate_config or ConfigRecord(), grid
                ),
                timeout=timeout,
            )
            evaluated = self.aggregate_evaluate(server_round, replies)
            self.save_if_best(server_round, evaluated)
        (self.folder / "results.json").write_text(json.dumps({"rounds": num_rounds, "note": note}))
        return result


class CallsSuper(FedAdam):
    """Does something before and after Flower's own loop."""

    events: list[str]

    def start(self, *args: Any, **kwargs: Any) -> Result:
        self.events = ["before"]
        result = super().start(*args, **kwargs)
        self.events.append("after")
        return result


class Helper(FedAvg):
    """Its `start` calls a method of its own, which calls the hooks."""

    def start(self, grid: Any, initial_arrays: ArrayRecord, rounds: int = 2) -> Result:
        result = Result()
        result.arrays = initial_arrays
        for server_round in range(1, rounds + 1):
            self.one_round(server_round, grid, result)
        return result

    def one_round(self, server_round: int, grid: Any, result: Result) -> None:
        messages = self.configure_train(server_round, result.arrays, ConfigRecord(), grid)
        arrays, metrics = self.aggregate_train(server_round, grid.send_and_receive(messages))
        self.aggregate_evaluate(server_round, [])
        result.arrays = arrays
        result.train_metrics_clientapp[server_round] = metrics


class NoEvaluation(FedAvg):
    """Its `start` does not evaluate at clients, as that of many strategies."""

    def start(self, grid: Any, initial_arrays: ArrayRecord, rounds: int = 2) -> Result:
        result = Result()
        result.arrays = initial_arrays
        for server_round in range(1, rounds + 1):
            messages = self.configure_train(server_round, result.arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages)
            result.arrays = self.aggregate_train(server_round, replies)[0] or result.arrays
        return result


def test_the_last_round_is_recorded_without_an_evaluation(toy: Any, tmp_path: Path) -> None:
    for rounds, done in ((3, 3), (2, 5)):
        strategy = Scheduled(
            NoEvaluation(), adcs.Uniform(), clients_per_round=2, folder=tmp_path / "run"
        )
        strategy.start(toy.grid(), toy.initial(), rounds=rounds)
        assert strategy.rounds_done == done
        records = RunFolder.open(tmp_path / "run").records()
        assert [line["server_round"] for line in records] == list(range(1, done + 1))


class MoreArguments(FedAvg):
    """Its `start` gives its hooks more than Flower's does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def configure_train(self, *args: Any, quality: float) -> Any:
        self.seen.append(quality)
        return super().configure_train(*args)

    def aggregate_train(self, server_round: int, replies: Any, quality: float) -> Any:  # type: ignore[override]
        self.seen.append(quality)
        return super().aggregate_train(server_round, replies)

    def configure_evaluate(self, *args: Any) -> Any:
        self.seen.append(args[4])
        return super().configure_evaluate(*args[:4])

    def aggregate_evaluate(self, server_round: int, replies: Any, **more: Any) -> Any:
        self.seen.append(more["quality"])
        return super().aggregate_evaluate(server_round, replies)

    def start(self, grid: Any, initial_arrays: ArrayRecord) -> Result:  # type: ignore[override]
        config = ConfigRecord()
        messages = self.configure_train(1, initial_arrays, config, grid, quality=0.5)
        arrays, _ = self.aggregate_train(1, list(grid.send_and_receive(messages)), 0.6)
        messages = self.configure_evaluate(1, arrays, config, grid, 0.7)
        self.aggregate_evaluate(1, list(grid.send_and_receive(messages)), quality=0.8)
        result = Result()
        result.arrays = arrays
        return result


def test_hooks_may_take_more_arguments(toy: Any) -> None:
    base = MoreArguments()
    strategy = Scheduled(base, adcs.Uniform(), clients_per_round=2)
    assert list(strategy.start(toy.grid(), toy.initial()).arrays) == ["w"]
    assert base.seen == [0.5, 0.6, 0.7, 0.8]
    plain = Scheduled(Helper(), adcs.Uniform(), clients_per_round=2)
    with pytest.raises(TypeError, match="configure_train"):
        plain.configure_train(1, toy.initial(), ConfigRecord(), toy.grid(), 0.5)


class OwnModel(FedAdam):
    """Its `start` makes the initial model itself."""

    def start(self, grid: Any, rounds: int = 2) -> Result:  # type: ignore[override]
        initial = ArrayRecord({"w": Array(np.zeros(6))})
        return super().start(grid=grid, initial_arrays=initial, num_rounds=rounds)


def test_a_start_that_makes_the_initial_model_resumes(toy: Any, tmp_path: Path) -> None:
    def make(folder: Path | None) -> Scheduled:
        return Scheduled(OwnModel(eta=0.1), adcs.Uniform(), clients_per_round=2, folder=folder)

    whole = make(None).start(toy.grid(), rounds=5).arrays["w"].numpy()
    make(tmp_path / "run").start(toy.grid(), rounds=3)
    result = make(tmp_path / "run").start(toy.grid(), rounds=2)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), whole)


def test_a_round_without_replies_keeps_the_resumed_model(toy: Any, tmp_path: Path) -> None:
    def make() -> Scheduled:
        return Scheduled(OwnModel(), adcs.Uniform(), clients_per_round=2, folder=tmp_path / "run")

    make().start(toy.grid(), rounds=2)
    strategy = make()
    saved = strategy.recorder.model
    assert saved is not None
    sent = []

    class Silent(Observer):
        def on_round(self, event: Any) -> None:
            for node in grid.nodes:
                node.tamper = None

        def on_selection(self, event: Any) -> None:
            model = strategy._driver.round.model  # type: ignore[union-attr]
            sent.append(model.arrays["w"])  # type: ignore[union-attr]

    strategy.observers.append(Silent())
    grid = toy.grid()
    for node in grid.nodes:
        node.tamper = lambda reply: None if "metrics" in reply.content else reply
    strategy.start(grid, rounds=3)
    np.testing.assert_array_equal(sent[0], saved["w"])
    np.testing.assert_array_equal(sent[1], saved["w"])
    assert not np.array_equal(sent[2], saved["w"])


def test_start_leaves_what_it_leaves_unscheduled(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "scheduled").mkdir()
    Saves(tmp_path / "plain").start(toy.grid(), toy.initial(), 3, note="w")
    base = Saves(tmp_path / "scheduled")
    strategy = Scheduled(base, adcs.Uniform(), clients_per_round=2)
    result = strategy.start(toy.grid(), toy.initial(), 3, note="w")
    for name in ("results.json", "best-1.json"):
        held = (tmp_path / "scheduled" / name).read_text()
        assert held == (tmp_path / "plain" / name).read_text()
    assert base.best > 0
    assert not hasattr(strategy, "best")
    assert [m["adcs-trained"] for m in result.train_metrics_clientapp.values()] == [2, 2, 2]
    assert strategy.rounds_done == 3


def test_super_start_works(toy: Any) -> None:
    base = CallsSuper(eta=0.1)
    strategy = Scheduled(base, adcs.ADCS(refresh_every=2), clients_per_round=3)
    run = toy.start(strategy, toy.grid(), 3)
    assert base.events == ["before", "after"]
    assert [len(record.trained) for record in run.records] == [3, 3, 3]
    plain = Scheduled(FedAdam(eta=0.1), adcs.ADCS(refresh_every=2), clients_per_round=3)
    np.testing.assert_array_equal(run.w, toy.start(plain, toy.grid(), 3).w)


def test_methods_that_start_calls_use_the_schedulers_hooks(toy: Any) -> None:
    strategy = Scheduled(Helper(), adcs.Uniform(), clients_per_round=2)
    result = strategy.start(toy.grid(), toy.initial(), rounds=4)
    assert [m["adcs-trained"] for m in result.train_metrics_clientapp.values()] == [2] * 4
    with pytest.raises(TypeError, match=r"Helper\.start: got an unexpected keyword.*num_rounds"):
        strategy.start(toy.grid(), toy.initial(), num_rounds=4)


def test_the_timeout_of_start_is_that_of_probes(toy: Any, tmp_path: Path) -> None:
    grid = toy.grid()
    grid.nodes[0].delay = float("inf")
    strategy = Scheduled(Saves(tmp_path), adcs.ADCS(), clients_per_round=2)
    strategy.start(grid, toy.initial(), num_rounds=1, timeout=7)
    # The question for the partition id and the probe waited this long, training for nobody.
    assert grid.clock() == 7.0


def test_a_wrapping_strategy_runs_as_in_flower(toy: Any, tmp_path: Path) -> None:
    """Flower does not call the `start` of a strategy inside another one."""
    inner = Saves(tmp_path)
    private = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e9, 2)
    strategy = Scheduled(private, adcs.Uniform(), clients_per_round=2)
    toy.start(strategy, toy.grid(), 1)
    assert not list(tmp_path.iterdir())


def test_a_decorated_start_is_called(toy: Any) -> None:
    calls = []

    def logged(start: Any) -> Any:
        @functools.wraps(start)
        def run(self: Any, *args: Any, **kwargs: Any) -> Result:
            calls.append(type(self).__name__)
            return start(self, *args, **kwargs)

        return run

    class Decorated(FedAvg):
        start = logged(FedAvg.start)

    toy.start(Scheduled(Decorated(), adcs.Uniform(), clients_per_round=2), toy.grid(), 2)
    assert len(calls) == 1


def test_a_start_that_is_set_on_the_object_is_refused() -> None:
    base = FedAvg()
    base.start = functools.partial(FedAvg.start, base)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"replaced on an object of FedAvg.*in a subclass"):
        Scheduled(base, adcs.Uniform(), clients_per_round=2)


class SetsTimeout(FedAvg):
    """Its `start` takes no timeout, and sets one."""

    def start(self, grid: Any, initial_arrays: ArrayRecord) -> Result:  # type: ignore[override]
        return super().start(grid=grid, initial_arrays=initial_arrays, num_rounds=1, timeout=7)


def test_the_timeout_that_is_passed_to_flowers_loop_is_known(toy: Any, caplog: Any) -> None:
    grid = toy.grid()
    grid.nodes[0].delay = float("inf")
    strategy = Scheduled(SetsTimeout(), adcs.ADCS(), clients_per_round=2)
    strategy.start(grid, toy.initial())
    assert grid.clock() == 7.0
    assert "set probe_timeout=" not in caplog.text


def test_a_timeout_that_cannot_be_known(toy: Any, caplog: Any) -> None:
    for options, waited in (({}, 3600.0), ({"probe_timeout": 5}, 5.0), ({"deadline": 6.0}, 6.0)):
        caplog.clear()
        grid = toy.grid()
        grid.nodes[0].delay = float("inf")
        strategy = Scheduled(NoEvaluation(), adcs.ADCS(), clients_per_round=2, **options)
        strategy.start(grid, toy.initial(), rounds=1)
        assert grid.clock() == waited
        sentence = "start of NoEvaluation has no parameter timeout: questions and probes wait up to"
        assert caplog.text.count(sentence) == (waited == 3600.0)


def test_arguments_that_are_passed_on_are_known(toy: Any) -> None:
    grid = toy.grid()
    grid.nodes[0].delay = float("inf")
    strategy = Scheduled(CallsSuper(), adcs.ADCS(), clients_per_round=2)
    strategy.start(grid, toy.initial(), 1, 7)  # the fourth argument is the timeout
    assert grid.clock() == 7.0
