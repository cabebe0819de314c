"""Strategies may send each node a model of its own; its update is the difference to that model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs.federated import SentModel
from adcs.flower import LocalGrid, Scheduled, probe_mod
from adcs.rounds import Buffered

STEP = 1.0


def make_app() -> ClientApp:
    """Return an app whose every client moves all numbers of its model by one."""
    app = ClientApp(mods=[probe_mod])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        content = RecordDict({"metrics": MetricRecord({"train_loss": 1.0, "num-examples": 5})})
        if "control" in message.content:
            content["control"] = message.content["control"]
        model = message.content["arrays"]
        content["arrays"] = ArrayRecord(
            {key: Array(array.numpy() + STEP) for key, array in model.items()}
        )
        return Message(content, reply_to=message)

    return app


class PerNode(FedAvg):
    """Sends each node what `content` makes of the model and the node's position."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)

    def content(self, arrays: ArrayRecord, position: int) -> dict[str, ArrayRecord]:
        return {"arrays": ArrayRecord({"w": Array(arrays["w"].numpy() + 10.0 * position)})}

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        sent = super().configure_train(server_round, arrays, config, grid)
        for i, message in enumerate(sent):
            records: dict[str, Any] = {**self.content(arrays, i), "config": config}
            yield Message(RecordDict(records), message.metadata.dst_node_id, "train")


class Copies(PerNode):
    """Sends each node a copy of the model."""

    def content(self, arrays: ArrayRecord, position: int) -> dict[str, ArrayRecord]:
        return {"arrays": ArrayRecord({"w": Array(arrays["w"].numpy())})}


class Control(PerNode):
    """Sends another record before the model, as SCAFFOLD does, and aggregates by itself."""

    def content(self, arrays: ArrayRecord, position: int) -> dict[str, ArrayRecord]:
        control = ArrayRecord({"w": Array(np.full((5, 2), float(position)))})
        return {"control": control, "arrays": arrays}

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        models = [reply.content["arrays"]["w"].numpy() for reply in replies]
        return ArrayRecord({"w": Array(np.mean(models, axis=0))}), MetricRecord()


class Parts(PerNode):
    """Sends every second node three of five rows, and sums up what comes back."""

    def content(self, arrays: ArrayRecord, position: int) -> dict[str, ArrayRecord]:
        rows = 5 if position % 2 == 0 else 3
        return {"arrays": ArrayRecord({"w": Array(arrays["w"].numpy()[:rows].copy())})}

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        total = np.zeros((5, 2))
        for reply in replies:
            w = reply.content["arrays"]["w"].numpy()
            total[: len(w)] += w
        return ArrayRecord({"w": Array(total)}), MetricRecord()


class Layers(PerNode):
    """Sends every third node one of two layers, and averages each over those that have it."""

    def content(self, arrays: ArrayRecord, position: int) -> dict[str, ArrayRecord]:
        keys = ("w",) if position % 3 == 0 else ("w", "v")
        return {"arrays": ArrayRecord({key: arrays[key] for key in keys})}

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        models = [reply.content["arrays"] for reply in replies]
        return ArrayRecord(
            {
                key: Array(np.mean([m[key].numpy() for m in models if key in m], axis=0))
                for key in ("w", "v")
            }
        ), MetricRecord()


class Norms(adcs.ADCS):
    """Keeps the norms of updates, as they are reported."""

    seen: list[tuple[str, dict[Any, float]]]

    def observe(self, server_round: int, reports: Any, source: Any) -> None:
        norms = {
            each.client: float(each.norm if each.sketch is None else each.sketch.norm)
            for each in reports
            if each.norm is not None or each.sketch is not None
        }
        self.seen = [*getattr(self, "seen", []), *([(source, norms)] if norms else [])]
        super().observe(server_round, reports, source)


def initial() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros((5, 2)))})


def start(strategy: Scheduled, grid: LocalGrid | None = None, rounds: int = 1, **other: Any) -> Any:
    grid = LocalGrid(make_app(), 4) if grid is None else grid
    return strategy.start(grid, initial(), num_rounds=rounds, **other)


@pytest.mark.parametrize("kind", [PerNode, Copies, Control])
@pytest.mark.parametrize("sketch", [None, adcs.Sketcher(size=16)])
def test_an_update_is_the_difference_to_the_model_of_its_node(kind: Any, sketch: Any) -> None:
    scheduler = Norms(sketch=sketch)
    start(Scheduled(kind(), scheduler, clients_per_round=3))
    [(source, norms)] = scheduler.seen[:1]
    assert source == "probe"
    assert list(norms) == [0, 1, 2, 3]
    np.testing.assert_allclose(list(norms.values()), STEP * np.sqrt(10))


def test_late_updates_too() -> None:
    class Late(Norms):
        observed_sources = frozenset({"probe", "training", "late"})

    grid = LocalGrid(make_app(), 4)
    scheduler = Late(refresh_every=100)
    strategy = Scheduled(PerNode(), scheduler, clients_per_round=4, probe_timeout=5)
    for node in grid.nodes:
        strategy._registry.identify(node.node_id, node.context.node_config["partition-id"])
    grid.nodes[1].delay, grid.nodes[2].delay = 3.0, 12.0
    start(strategy, grid, rounds=4, timeout=10)
    late = [norms for source, norms in scheduler.seen if 2 in norms]
    assert late
    np.testing.assert_allclose([each[2] for each in late], STEP * np.sqrt(10))


def test_parts_of_a_model_are_checked_against_what_a_node_was_sent(tmp_path: Any) -> None:
    for scheduler in (adcs.Uniform(), Norms()):
        strategy = Scheduled(Parts(), scheduler, clients_per_round=4)
        result = start(strategy)
        assert result.train_metrics_clientapp[1]["adcs-trained"] == 4
        assert result.train_metrics_clientapp[1]["adcs-refused"] == 0
        np.testing.assert_array_equal(result.arrays["w"].numpy()[:, 0], [4, 4, 4, 2, 2])


@pytest.mark.parametrize("scheduler", [adcs.Uniform, adcs.ADCS, adcs.LiveADCS])
def test_layers_that_a_node_was_not_sent_are_not_missing(scheduler: Any) -> None:
    model = ArrayRecord({key: Array(np.zeros(3)) for key in ("w", "v")})
    grid = LocalGrid(make_app(), 6)
    strategy = Scheduled(Layers(), scheduler(), clients_per_round=6)
    result = strategy.start(grid, model, num_rounds=2)
    assert strategy.recorder.update_keys == ("w", "v")
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["adcs-trained"], metrics["adcs-refused"]) == (6, 0)
    np.testing.assert_array_equal(result.arrays["v"].numpy(), 2.0)


class Halves(PerNode):
    """Sends every second node one of two layers of one shape, and the others the other."""

    def content(self, arrays: ArrayRecord, position: int) -> dict[str, ArrayRecord]:
        key = ("w", "v")[position % 2]
        return {"arrays": ArrayRecord({key: arrays[key]})}

    aggregate_train = Layers.aggregate_train


@pytest.mark.parametrize("sketch", [None, adcs.Sketcher(size=16)])
def test_updates_of_different_parts_are_not_compared(sketch: Any, caplog: Any) -> None:
    model = ArrayRecord({key: Array(np.zeros(3)) for key in ("w", "v")})
    scheduler = Norms(sketch=sketch)
    strategy = Scheduled(Halves(), scheduler, clients_per_round=4)
    strategy.start(LocalGrid(make_app(), 4), model, num_rounds=2)
    assert caplog.text.count("nodes are sent different parts of the model") == 1
    held = [scheduler.reports[client] for client in range(4)]
    np.testing.assert_allclose([report.update_norm for report in held], np.sqrt(3), rtol=1e-6)
    assert sum(report.update is not None or report.sketch is not None for report in held) == 2


@pytest.mark.parametrize("sketch", [None, adcs.Sketcher(size=16)])
def test_a_node_without_the_arrays_to_go_by_trains(sketch: Any) -> None:
    """Whether it answers or not."""
    model = ArrayRecord({key: Array(np.zeros(3)) for key in ("w", "v")})
    for scheduler, slow in ((adcs.Uniform(), True), (adcs.LiveADCS(sketch=sketch), False)):
        grid = LocalGrid(make_app(), 4)
        strategy = Scheduled(Halves(), scheduler, clients_per_round=4, arrays=["v"])
        for node in grid.nodes:
            strategy._registry.identify(node.node_id, node.context.node_config["partition-id"])
        grid.nodes[2].delay = 30.0 if slow else 0.0
        found = strategy.start(grid, model, num_rounds=2, timeout=10).train_metrics_clientapp
        assert found[1]["adcs-trained"] == (3 if slow else 4)
        assert found[2]["adcs-refused"] == 0


def test_equal_models_are_one() -> None:
    grid = LocalGrid(make_app(), 4)
    for strategy, differs in ((Copies(), False), (Control(), False), (PerNode(), True)):
        scheduled = Scheduled(strategy, adcs.Uniform(), clients_per_round=2)
        scheduled._started = True
        list(scheduled.configure_train(1, initial(), ConfigRecord(), grid))
        this_round = scheduled._driver.round
        assert this_round is not None
        assert (this_round.model_of is not None) == differs
        assert isinstance(this_round.training.of(3).model, SentModel)


def test_what_needs_one_model_is_refused() -> None:
    unbiased = Scheduled(PerNode(), adcs.Uniform(independent=True), clients_per_round=2)
    with pytest.raises(
        ValueError, match="a sum of changes of one model, and clients are sent diff"
    ):
        start(unbiased)
    buffered = Scheduled(PerNode(), adcs.Uniform(), mode=Buffered(size=2, concurrency=3))
    with pytest.raises(ValueError, match="mode=Buffered needs one model for all nodes"):
        start(buffered)
    result = start(Scheduled(PerNode(), adcs.Uniform(), clients_per_round=2, over_select=1.5))
    assert result.train_metrics_clientapp[1]["adcs-trained"] == 2
