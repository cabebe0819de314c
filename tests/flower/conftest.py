"""A federation with closed-form updates: each client moves the model towards its own point."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs adcs[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adcs.federated import RoundRecord
from adcs.flower import LocalGrid, probe_mod
from adcs.observers import Observer

WIDTH, LR = 6, 0.5


class Toy:
    """Client c holds the point `points[c]`; its loss is half the squared distance to it."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(5)
        self.points = rng.normal(size=(n + 3, WIDTH)) * (1 + np.arange(n + 3))[:, None] ** 0.5
        self.n = n
        self.trained: list[tuple[int, int]] = []
        self.evaluated: list[int] = []
        self.configs: list[dict[str, Any]] = []
        self.record_names: list[list[str]] = []
        self.app = self.make_app([probe_mod])
        self.plain_app = self.make_app([])

    def examples(self, client: int) -> int:
        return 10 + client

    def loss(self, w: np.ndarray, client: int) -> float:
        return float(0.5 * np.sum((w - self.points[client]) ** 2))

    def gradient(self, w: np.ndarray, client: int) -> np.ndarray:
        return w - self.points[client]

    def make_app(self, mods: list[Any]) -> ClientApp:
        app = ClientApp(mods=mods)

        @app.train()
        def train(message: Message, context: Any) -> Message:
            client = context.node_config["partition-id"]
            arrays = message.content["arrays"]
            config = message.content["config"]
            self.trained.append((client, config["server-round"]))
            self.configs.append(dict(config))
            self.record_names.append(list(message.content))
            times = context.state["times"]["n"] if "times" in context.state else 0
            context.state["times"] = MetricRecord({"n": times + 1})
            # Handlers may empty the record, as Flower's `keep_input=False` does.
            w = arrays.pop("w").numpy()
            metrics = {
                "train_loss": self.loss(w, client),
                "num-examples": self.examples(client),
            }
            new = ArrayRecord({"w": Array(w - LR * self.gradient(w, client))})
            content = RecordDict({"arrays": new, "metrics": MetricRecord(metrics)})
            return Message(content, reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Any) -> Message:
            client = context.node_config["partition-id"]
            self.evaluated.append(client)
            w = message.content["arrays"]["w"].numpy()
            metrics = {
                "eval_loss": self.loss(w, client),
                "eval_acc": 1.0 / (1.0 + client),
                "num-examples": self.examples(client),
            }
            return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

        return app

    def grid(self, *, mod: bool = True, nodes: int | None = None) -> LocalGrid:
        return LocalGrid(self.app if mod else self.plain_app, nodes or self.n)

    def known_grid(self, strategy: Any, delays: Sequence[float]) -> LocalGrid:
        """Return a grid whose partition ids the strategy knows, of nodes that take some seconds."""
        grid = self.grid(nodes=len(delays))
        for node, delay in zip(grid.nodes, delays, strict=True):
            strategy._registry.identify(node.node_id, node.context.node_config["partition-id"])
            node.delay = delay
        return grid

    def initial(self) -> ArrayRecord:
        return ArrayRecord({"w": Array(np.zeros(WIDTH))})

    def start(self, strategy: Any, grid: Any, rounds: int, **options: Any) -> SimpleNamespace:
        """Run, and return the result with the record of every round."""
        kept = KeepRecords()
        strategy.observers.append(kept)
        result = strategy.start(grid, self.initial(), num_rounds=rounds, **options)
        strategy.observers.remove(kept)
        w = result.arrays["w"].numpy() if result.arrays else None
        return SimpleNamespace(result=result, records=kept.records, w=w)


class KeepRecords(Observer):
    """Keeps the record of every round."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round(self, event: Any) -> None:
        self.records.append(event.record)


@pytest.fixture
def toy() -> Toy:
    return Toy(6)


@pytest.fixture
def make_toy() -> type[Toy]:
    return Toy


def change(reply: Message, **changes: Any) -> Message:
    """Return a training reply with some of its parts replaced."""
    content = RecordDict(dict(reply.content.items()))
    if "w" in changes:
        content["arrays"] = ArrayRecord({"w": Array(np.asarray(changes["w"]))})
    if "arrays" in changes:
        content["arrays"] = changes["arrays"]
    if "metrics" in changes:
        content["metrics"] = MetricRecord({**dict(content["metrics"]), **changes["metrics"]})
    if "answer" in changes:
        content["adcs-answer"] = ConfigRecord(changes["answer"])
    reply.content = content
    return reply


@pytest.fixture
def changed() -> Any:
    return change
