"""Replies that plain Flower accepts are accepted, and the strategy gets what it would get."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

import adcs
from adcs.flower import LocalGrid, Scheduled, probe_mod
from adcs.schedulers.base import Scheduler

SKETCH = adcs.Sketcher(size=64)


def schedulers() -> dict[str, Scheduler]:
    return {
        "nothing": adcs.Uniform(),
        "whole updates": adcs.ADCS(refresh_every=1),
        "sketches": adcs.ADCS(refresh_every=1, sketch=SKETCH),
        "live": adcs.LiveADCS(sketch=SKETCH),
    }


def everyone(base: Any, **options: Any) -> Scheduled:
    return Scheduled(base, adcs.Uniform(), **{"clients_per_round": 1.0, **options})


def arrays(**values: Any) -> ArrayRecord:
    return ArrayRecord({key: Array(np.asarray(value, float)) for key, value in values.items()})


def app_of(train: Any, mods: Any = (probe_mod,)) -> ClientApp:
    """Return an app whose train handler returns the records of `train(client, arrays, round)`."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def handler(message: Message, context: Any) -> Message:
        client = context.node_config["partition-id"]
        held = {key: array.numpy() for key, array in message.content["arrays"].items()}
        server_round = message.content["config"]["server-round"]
        records = train(client, held, server_round)
        metrics = {"train_loss": 1.0 + client, "num-examples": 10}
        records.setdefault("metrics", MetricRecord(metrics))
        return Message(RecordDict(records), reply_to=message)

    return app


class Merges(FedAvg):
    """Sends the whole model and averages the adapter, as fine-tuning does."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.whole = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        part, metrics = super().aggregate_train(server_round, replies)
        if part is None:
            return part, metrics
        return ArrayRecord({**dict(self.whole.items()), **dict(part.items())}), metrics


@pytest.mark.parametrize("name", schedulers())
def test_clients_may_return_adapters_only(name: str) -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        return {"arrays": arrays(adapter=held["adapter"] + np.eye(4)[client % 4])}

    initial = arrays(base=np.ones(100), adapter=np.zeros(4))
    scheduler = schedulers()[name]
    strategy = Scheduled(Merges(fraction_evaluate=0.0), scheduler, clients_per_round=4)
    result = strategy.start(LocalGrid(app_of(train), 6), initial, num_rounds=2)
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["adcs-trained"], metrics["adcs-refused"]) == (4, 0)
    assert result.arrays["base"].numpy().tolist() == [1.0] * 100
    assert result.arrays["adapter"].numpy().sum() == pytest.approx(2.0)
    if isinstance(scheduler, adcs.ADCS):
        vectors = [scheduler.reports[client].vector for client in range(4)]
        assert {len(vector) for vector in vectors} == {64 if scheduler.sketch else 4}


def test_plain_fedavg_gets_the_parts_that_came_back() -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        return {"arrays": arrays(adapter=held["adapter"] + client)}

    initial = arrays(base=np.ones(5), adapter=np.zeros(2))
    plain = FedAvg(fraction_evaluate=0.0).start(LocalGrid(app_of(train), 4), initial, num_rounds=2)
    ours = everyone(FedAvg(fraction_evaluate=0.0))
    result = ours.start(LocalGrid(app_of(train), 4), initial, num_rounds=2)
    assert list(result.arrays) == list(plain.arrays) == ["adapter"]
    np.testing.assert_array_equal(result.arrays["adapter"].numpy(), plain.arrays["adapter"].numpy())


def test_a_strategy_that_needs_the_whole_model_is_protected() -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        part = {"adapter": held["adapter"] + 1.0}
        return {"arrays": arrays(**part, **({} if client == 2 else {"base": held["base"]}))}

    initial = arrays(base=np.ones(5), adapter=np.zeros(2))
    strategy = everyone(FedAdam(fraction_evaluate=0.0))
    result = strategy.start(LocalGrid(app_of(train), 4), initial, num_rounds=1)
    assert result.train_metrics_clientapp[1]["adcs-trained"] == 3


class Variates(FedAvg):
    """Aggregates two ArrayRecords, as algorithms with control variates do."""

    received: list[list[str]]

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        contents = [reply.content for reply in replies if reply.has_content()]
        self.received = [sorted(content) for content in contents]
        mean = np.mean([content["arrays"]["w"].numpy() for content in contents], axis=0)
        return arrays(w=mean), MetricRecord({"n": len(contents)})


@pytest.mark.parametrize("name", schedulers())
def test_clients_may_return_several_records_of_arrays(name: str) -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        return {
            "arrays": arrays(w=held["w"] + np.eye(4)[client % 4]),
            "control": arrays(c=np.full(4, float(client))),
        }

    base = Variates(fraction_evaluate=0.0)
    strategy = Scheduled(base, schedulers()[name], clients_per_round=4)
    result = strategy.start(LocalGrid(app_of(train), 6), arrays(w=np.zeros(4)), num_rounds=2)
    assert [m["adcs-trained"] for m in result.train_metrics_clientapp.values()] == [4, 4]
    assert base.received == [["arrays", "control", "metrics"]] * 4


def test_second_records_are_checked_for_values() -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        control = math.nan if client == 1 else 1.0
        return {"arrays": arrays(w=held["w"] + 1.0), "control": arrays(c=[control])}

    strategy = everyone(Variates(fraction_evaluate=0.0))
    result = strategy.start(LocalGrid(app_of(train), 4), arrays(w=np.zeros(4)), num_rounds=1)
    assert result.train_metrics_clientapp[1]["adcs-trained"] == 3


@pytest.mark.parametrize("name", schedulers())
def test_a_client_that_returns_the_model_unchanged_trains(name: str) -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        step = 0.0 if client == 2 else 1.0
        return {"arrays": arrays(w=held["w"] + step * np.eye(6)[client % 6])}

    strategy = Scheduled(FedAvg(fraction_evaluate=0.0), schedulers()[name], clients_per_round=6)
    result = strategy.start(LocalGrid(app_of(train), 6), arrays(w=np.ones(6)), num_rounds=3)
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["adcs-trained"], metrics["adcs-refused"]) == (6, 0)


def test_clients_of_a_rolling_upgrade_train_together() -> None:
    def train(client: int, held: Any, server_round: int) -> dict[str, Any]:
        metrics = {"train_loss": 1.0, "num-examples": 10}
        if client < 2 * server_round:  # Two clients a round are upgraded.
            metrics["accuracy"] = 0.5
        return {"arrays": arrays(w=held["w"] + 1.0), "metrics": MetricRecord(metrics)}

    strategy = everyone(FedAvg(fraction_evaluate=0.0))
    result = strategy.start(LocalGrid(app_of(train), 6), arrays(w=np.ones(2)), num_rounds=4)
    by_round = list(result.train_metrics_clientapp.values())
    assert [metrics["adcs-trained"] for metrics in by_round] == [6, 6, 6, 6]
    assert ["accuracy" in metrics for metrics in by_round] == [False, False, True, True]
    assert all(metrics["train_loss"] == pytest.approx(1.0) for metrics in by_round)


def test_one_of_two_clients_cannot_shut_the_other_out() -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        extra = {"zzz": 1.0} if client == 1 else {}
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10, **extra})
        return {"arrays": arrays(w=held["w"] + 1.0), "metrics": metrics}

    strategy = everyone(FedAvg(fraction_evaluate=0.0))
    result = strategy.start(LocalGrid(app_of(train), 2), arrays(w=np.ones(2)), num_rounds=2)
    assert [m["adcs-trained"] for m in result.train_metrics_clientapp.values()] == [2, 2]


@pytest.mark.parametrize(
    ("checks", "trained"),
    [("strict", 3), ("auto", 3), ("lenient", 4), (("values", "examples", "sizes"), 4)],
)
def test_checks_is_a_setting(checks: Any, trained: int, caplog: Any) -> None:
    class Means(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            contents = [reply.content for reply in replies if reply.has_content()]
            means = [float(content["arrays"]["w"].numpy().mean()) for content in contents]
            return arrays(w=np.full(4, np.mean(means))), MetricRecord()

    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        return {"arrays": arrays(w=np.full(2 if client == 1 else 4, 2.0))}

    strategy = everyone(Means(fraction_evaluate=0.0), checks=checks)
    result = strategy.start(LocalGrid(app_of(train), 4), arrays(w=np.ones(4)), num_rounds=1)
    assert result.train_metrics_clientapp[1]["adcs-trained"] == trained
    if trained == 3:
        assert "array 'w' must have shape (4,), got (2,); to accept it, leave 'shapes' out of" in (
            caplog.text
        )


@pytest.mark.parametrize("checks", ["shape", ["values", "everything"]])
def test_unknown_checks_are_refused(checks: Any) -> None:
    with pytest.raises(ValueError, match='checks must be "auto", "strict", "lenient" or names'):
        everyone(FedAvg(), checks=checks)


def test_hostile_text_is_bounded_in_the_log(caplog: Any) -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        if client == 1:
            raise RuntimeError("\x1b[2J\nround 9: all is well\n" + "x" * 10**6)
        return {"arrays": arrays(w=held["w"] + 1.0)}

    strategy = everyone(FedAvg(fraction_evaluate=0.0), partition_ids=False)
    strategy.start(LocalGrid(app_of(train), 3), arrays(w=np.ones(4)), num_rounds=1)
    lines = [record.getMessage() for record in caplog.records]
    assert any("round 9: all is well" in line for line in lines)
    assert all(len(line) < 1000 and "\x1b" not in line for line in lines)
    assert not any("\n" in line for line in lines if "all is well" in line)


# Runs that cannot work say why.


class Legacy(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        return parameters, 1, {}


def test_a_run_in_which_nobody_trains_stops_with_the_reasons() -> None:
    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        return {"arrays": arrays(w=np.full(4, np.nan))}

    strategy = everyone(FedAvg(fraction_evaluate=0.0), stop_after=3)
    with pytest.raises(RuntimeError, match=r"no client has trained in the last 3 rounds.*finite"):
        strategy.start(LocalGrid(app_of(train), 4), arrays(w=np.ones(4)), num_rounds=9)
    assert strategy.rounds_done == 3


def test_sleeping_clients_stop_a_run_too(toy: Any) -> None:
    grid = toy.grid()
    for node in grid.nodes:
        node.delay = math.inf
    strategy = everyone(FedAvg(), stop_after=2, partition_ids=False)
    with pytest.raises(RuntimeError, match="no answer in time"):
        toy.start(strategy, grid, 5, timeout=5.0)


def test_a_round_with_training_starts_the_count_again() -> None:
    def train(client: int, held: Any, server_round: int) -> dict[str, Any]:
        return {"arrays": arrays(w=held["w"] + (1.0 if server_round % 2 else math.nan))}

    strategy = everyone(FedAvg(fraction_evaluate=0.0), stop_after=2)
    result = strategy.start(LocalGrid(app_of(train), 3), arrays(w=np.ones(4)), num_rounds=6)
    trained = [m["adcs-trained"] for m in result.train_metrics_clientapp.values()]
    assert trained == [3, 0, 3, 0, 3, 0]


def test_legacy_apps_get_a_sentence(toy: Any, caplog: Any) -> None:
    app = ClientApp(client_fn=lambda context: Legacy().to_client())
    strategy = everyone(FedAvg(), stop_after=1, partition_ids=False)
    with pytest.raises(RuntimeError, match="no client has trained"):
        strategy.start(LocalGrid(app, 3), toy.initial(), num_rounds=2)
    assert caplog.text.count("is of Flower's legacy API (NumPyClient or client_fn)") == 1


def test_legacy_strategies_get_a_sentence() -> None:
    from flwr.server.strategy import FedAvg as LegacyFedAvg

    with pytest.raises(ValueError, match=r"legacy API.*use that of flwr\.serverapp\.strategy"):
        Scheduled(LegacyFedAvg(), adcs.Uniform(), clients_per_round=2)


def test_secure_aggregation_gets_a_sentence(toy: Any, caplog: Any) -> None:
    from flwr.client.mod import secaggplus_mod

    def train(client: int, held: Any, _: int) -> dict[str, Any]:
        return {"arrays": arrays(w=held["w"] + 1.0)}

    grid = LocalGrid(app_of(train, mods=[probe_mod, secaggplus_mod]), 3)
    strategy = everyone(FedAvg(), stop_after=1)
    with pytest.raises(RuntimeError, match="no client has trained"):
        strategy.start(grid, toy.initial(), num_rounds=2)
    assert caplog.text.count("SecAgg+ works only with Flower's legacy workflow") == 1
