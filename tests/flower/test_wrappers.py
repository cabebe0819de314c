"""Strategies of users around another strategy, which they hold under a name of their own."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    Strategy,
)

import adcs
from adcs.flower import Scheduled
from adcs.flower.strategies import chain, innermost


class Wrapper(Strategy):
    """Passes everything on, as strategies do that measure or log."""

    def __init__(self, base: Strategy) -> None:
        self.base = base

    def summary(self) -> None:
        self.base.summary()

    def configure_train(self, *args: Any) -> Any:
        return self.base.configure_train(*args)

    def aggregate_train(self, *args: Any) -> Any:
        return self.base.aggregate_train(*args)

    def configure_evaluate(self, *args: Any) -> Any:
        return self.base.configure_evaluate(*args)

    def aggregate_evaluate(self, *args: Any) -> Any:
        return self.base.aggregate_evaluate(*args)


class Passing(Wrapper):
    """Has the attributes of the other strategy as well."""

    def __getattr__(self, name: str) -> Any:
        if name == "base":
            raise AttributeError(name)
        return getattr(self.base, name)


class Helped(FedAvg):
    """Aggregates as FedAvg, and holds another strategy for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.other = FedMedian()


def private(base: Strategy) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(base, 0.0, 1e9, 3)


@pytest.mark.parametrize("kind", [Wrapper, Passing])
def test_the_strategy_inside_is_found(kind: type[Wrapper]) -> None:
    base = FedAdam()
    assert innermost(kind(base)) is base
    names = [type(each).__name__ for each in chain(kind(private(base)))]
    assert names == [kind.__name__, "DifferentialPrivacyServerSideFixedClipping", "FedAdam"]
    assert len(chain(Helped())) == 1


def test_strategies_that_hold_each_other_end() -> None:
    one = Wrapper(FedAvg())
    one.base = Wrapper(one)
    assert len(chain(one)) == 2


def test_numbers_of_examples_are_checked(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    grid.nodes[2].tamper = lambda reply: (
        changed(reply, metrics={"num-examples": 10**9}) if "arrays" in reply.content else reply
    )
    strategy = Scheduled(Wrapper(FedAvg()), adcs.Uniform(), clients_per_round=1.0)
    run = toy.start(strategy, grid, 1)
    assert set(run.records[0].trained) == {0, 1, 3, 4, 5}


class FromScratch(Strategy):
    """Averages the replies itself, by a metric that nobody else knows."""

    configure_train = FedAvg.configure_train
    configure_evaluate = FedAvg.configure_evaluate
    aggregate_evaluate = FedAvg.aggregate_evaluate

    def summary(self) -> None:
        pass

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return None, None


def test_a_limit_of_examples_needs_the_metric() -> None:
    strategy = FromScratch()
    sentence = (
        "max_examples needs a strategy with the attribute weighted_by_key, .* FromScratch has"
    )
    with pytest.raises(ValueError, match=sentence):
        Scheduled(strategy, adcs.Uniform(), clients_per_round=3, max_examples=100)
    strategy.weighted_by_key = "num-examples"  # type: ignore[attr-defined]
    Scheduled(strategy, adcs.Uniform(), clients_per_round=3, max_examples=100)


def test_a_run_resumes_with_the_moments(toy: Any, tmp_path: Any) -> None:
    def part(name: str, rounds: int) -> Any:
        strategy = Scheduled(
            Wrapper(FedAdam()), adcs.Uniform(), clients_per_round=3, folder=tmp_path / name
        )
        return toy.start(strategy, toy.grid(), rounds)

    part("restarted", 3)
    assert part("restarted", 2).w.tobytes() == part("whole", 5).w.tobytes()


class Starting(Wrapper):
    """Opens a log, and leaves the loop to the other strategy."""

    def start(self, *args: Any, **kwargs: Any) -> Any:
        return self.base.start(*args, **kwargs)


class Hidden(FedAvg):
    """Trains by another strategy, which it does not hold."""

    def start(self, *args: Any, **kwargs: Any) -> Any:
        return FedAvg().start(*args, **kwargs)


def test_the_start_of_the_strategy_inside_is_scheduled(toy: Any, caplog: Any) -> None:
    strategy = Scheduled(
        Starting(Starting(FedAvg())), adcs.ADCS(refresh_every=2), clients_per_round=3
    )
    run = toy.start(strategy, toy.grid(), 3)
    assert [len(record.trained) for record in run.records] == [3, 3, 3]
    assert strategy.rounds_done == 3
    assert "selected nobody" not in caplog.text


def test_a_start_that_goes_round_the_scheduler_is_named(toy: Any, caplog: Any) -> None:
    strategy = Scheduled(Hidden(), adcs.Uniform(), clients_per_round=3)
    toy.start(strategy, toy.grid(), 0)
    assert "selected nobody" not in caplog.text
    toy.start(strategy, toy.grid(), 1)
    assert caplog.text.count("start of Hidden has trained without calling configure_train") == 1


def test_privacy_inside_is_seen() -> None:
    with pytest.raises(ValueError, match="over_select does not work with DifferentialPrivacy"):
        Scheduled(Wrapper(private(FedAvg())), adcs.Uniform(), clients_per_round=3, over_select=1.5)
    counted = private(FedAvg())
    counted.accountant = object()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="privacy accountant"):
        Scheduled(Wrapper(counted), adcs.Uniform(), clients_per_round=3)
