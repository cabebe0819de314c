"""Apps in the shapes of Flower's own examples, scheduled and unscheduled, with local data."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
    Result,
    Strategy,
)

import adcs
from adcs.flower import LocalGrid, Scheduled, probe_mod

NODES = 6
SKETCH = adcs.Sketcher(size=32)


def blobs(client: int, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return examples of two of four classes."""
    rng = np.random.default_rng(client)
    y = rng.choice([client % 4, (client + 1) % 4], size=n)
    x = 2.0 * np.eye(4)[y] + rng.normal(size=(n, 4))
    return x.astype(np.float32), y


def plain(base: Any) -> Strategy:
    return base


def with_uniform(base: Any) -> Strategy:
    return Scheduled(base, adcs.Uniform(), clients_per_round=3)


def with_adcs(base: Any) -> Strategy:
    return Scheduled(base, adcs.ADCS(refresh_every=2), clients_per_round=3)


def with_live(base: Any) -> Strategy:
    return Scheduled(base, adcs.LiveADCS(sketch=SKETCH), clients_per_round=3)


SCHEDULED = [with_uniform, with_adcs, with_live]


def run_app(app: ClientApp, server: ServerApp, run_config: dict[str, Any]) -> None:
    context = Context(1, 1, {}, RecordDict(), run_config)
    server(LocalGrid(app, NODES, run_config=run_config), context)


def left_by(result: Result) -> dict[str, Any]:
    """Return what a run leaves: rounds and names of metrics, without those of the scheduler."""

    def names(metrics: Any) -> dict[int, list[str]]:
        suffixes = ("-worst", "-worst20", "-average")
        return {
            server_round: sorted(
                key for key in record if not key.startswith("adcs-") and not key.endswith(suffixes)
            )
            for server_round, record in metrics.items()
        }

    assert result.arrays is not None
    return {
        "arrays": {key: tuple(array.shape) for key, array in result.arrays.items()},
        "train": names(result.train_metrics_clientapp),
        "evaluate": names(result.evaluate_metrics_clientapp),
        "server": names(result.evaluate_metrics_serverapp),
    }


# quickstart-pytorch: a state_dict, a learning rate in the config, a central evaluation.


def torch_app(mods: list[Any]) -> Any:
    torch = pytest.importorskip("torch", reason="needs adcs[torch]")

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4)
        )

    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = map(torch.as_tensor, blobs(context.node_config["partition-id"]))
        optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
        for _ in range(context.run_config["local-epochs"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        metrics = {"train_loss": loss.item(), "num-examples": len(y)}
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
        return Message(content=RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        net = model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.eval()
        x, y = map(torch.as_tensor, blobs(context.node_config["partition-id"]))
        with torch.no_grad():
            scores = net(x)
        metrics = {
            "eval_loss": torch.nn.functional.cross_entropy(scores, y).item(),
            "eval_acc": (scores.argmax(1) == y).float().mean().item(),
            "num-examples": len(y),
        }
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app, model


def torch_server(make: Any, model: Any, folder: Path, base: Any = FedAvg) -> ServerApp:
    import torch

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            net = model()
            net.load_state_dict(arrays.to_torch_state_dict())
            return MetricRecord({"parameters": float(sum(p.numel() for p in net.parameters()))})

        strategy = make(base(fraction_train=1.0))
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(model().state_dict()),
            train_config=ConfigRecord({"lr": context.run_config["lr"]}),
            num_rounds=context.run_config["num-server-rounds"],
            evaluate_fn=central,
        )
        torch.save(result.arrays.to_torch_state_dict(), folder / "final_model.pt")
        (folder / "left.json").write_text(json.dumps(left_by(result)))

    return server


CONFIG = {"num-server-rounds": 3, "lr": 0.1, "local-epochs": 2}


@pytest.mark.parametrize("make", SCHEDULED)
def test_quickstart_pytorch(make: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs adcs[torch]")

    left = []
    for mods, strategy in (([], plain), ([probe_mod], make)):
        folder = tmp_path / strategy.__name__
        folder.mkdir()
        app, model = torch_app(mods)
        run_app(app, torch_server(strategy, model, folder), CONFIG)
        left.append(json.loads((folder / "left.json").read_text()))
        model().load_state_dict(torch.load(folder / "final_model.pt"))
    assert left[0] == left[1]


# advanced-pytorch: a strategy with a `start` of its own.


class Tracked(FedAvg):
    """Logs to a tracker and saves the best model in `start`; the learning rate decays."""

    folder: Path

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        if server_round % 2 == 0:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        tracked: list[dict[str, Any]] = []
        best = -1.0
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        result, arrays, started = Result(), initial_arrays, time.time()
        for server_round in range(1, num_rounds + 1):
            replies = grid.send_and_receive(
                messages=self.configure_train(server_round, arrays, train_config, grid),
                timeout=timeout,
            )
            new, metrics = self.aggregate_train(server_round, replies)
            if new is not None:
                result.arrays = arrays = new
            result.train_metrics_clientapp[server_round] = metrics
            replies = grid.send_and_receive(
                messages=self.configure_evaluate(server_round, arrays, evaluate_config, grid),
                timeout=timeout,
            )
            evaluated = self.aggregate_evaluate(server_round, replies)
            result.evaluate_metrics_clientapp[server_round] = evaluated
            if evaluate_fn:
                central = evaluate_fn(server_round, arrays)
                result.evaluate_metrics_serverapp[server_round] = central
                if central["parameters"] > best:
                    best = central["parameters"]
                    (self.folder / "best.json").write_text(str(best))
            tracked.append({"round": server_round, "lr": train_config["lr"]})
        assert time.time() >= started
        (self.folder / "results.json").write_text(json.dumps(tracked))
        return result


@pytest.mark.parametrize("make", SCHEDULED)
def test_advanced_pytorch(make: Any, tmp_path: Path) -> None:
    left = []
    for mods, strategy in (([], plain), ([probe_mod], make)):
        folder = tmp_path / strategy.__name__
        folder.mkdir()
        app, model = torch_app(mods)

        def base(folder: Path = folder, **settings: Any) -> Tracked:
            tracked = Tracked(**settings)
            tracked.folder = folder
            return tracked

        run_app(app, torch_server(strategy, model, folder, base), CONFIG)
        files = {path.name: path.read_text() for path in folder.glob("*.json")}
        left.append(files)
    assert left[0] == left[1]
    assert sorted(left[0]) == ["best.json", "left.json", "results.json"]
    assert [each["lr"] for each in json.loads(left[0]["results.json"])] == [0.1, 0.05, 0.05]


# quickstart-sklearn: coefficients and intercepts as a list of arrays.


def sklearn_app(mods: list[Any]) -> ClientApp:
    linear = pytest.importorskip("sklearn.linear_model")
    app = ClientApp(mods=mods)

    def model_of(message: Message) -> Any:
        model = linear.LogisticRegression(max_iter=1, warm_start=True)
        model.classes_ = np.arange(4)
        model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
        return model

    @app.train()
    def train(message: Message, context: Context) -> Message:
        import warnings

        x, y = blobs(context.node_config["partition-id"])
        x, y = np.concatenate([x, np.eye(4)]), np.concatenate([y, np.arange(4)])
        model = model_of(message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x, y)
        metrics = {"train_logloss": float(-model.predict_log_proba(x)[np.arange(len(y)), y].mean())}
        arrays = ArrayRecord([model.coef_, model.intercept_])
        records = {"arrays": arrays, "metrics": MetricRecord({**metrics, "num-examples": len(y)})}
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        x, y = blobs(context.node_config["partition-id"])
        metrics = {"accuracy": float(model_of(message).score(x, y)), "num-examples": len(y)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


@pytest.mark.parametrize("make", SCHEDULED)
def test_quickstart_sklearn(make: Any) -> None:
    left = []
    for mods, strategy in (([], plain), ([probe_mod], make)):
        wrapped = strategy(FedAvg())
        initial = ArrayRecord([np.zeros((4, 4)), np.zeros(4)])
        left.append(left_by(wrapped.start(LocalGrid(sklearn_app(mods), NODES), initial, 3)))
    assert left[0] == left[1]


# quickstart-numpy: a model that clients change at random.


def numpy_app(mods: list[Any], *, train_mods: list[Any] | None = None) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train(mods=train_mods)
    def train(message: Message, context: Context) -> Message:
        [model] = message.content["arrays"].to_numpy_ndarrays()
        rng = np.random.default_rng(context.node_config["partition-id"])
        model = model + rng.random(model.shape)
        records = {
            "arrays": ArrayRecord([model]),
            "metrics": MetricRecord({"random_metric": float(rng.random()), "num-examples": 1}),
        }
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"random_metric": 0.5, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("make", SCHEDULED)
def test_quickstart_numpy(make: Any) -> None:
    left = []
    for mods, strategy in (([], plain), ([probe_mod], make)):
        result = strategy(FedAvg()).start(
            LocalGrid(numpy_app(mods), NODES), ArrayRecord([np.zeros((3, 2))]), 3
        )
        left.append(left_by(result))
    assert left[0] == left[1]


# custom-mods: Flower's mods and the user's own beside probe_mod.


@pytest.mark.parametrize("make", SCHEDULED)
def test_custom_mods(make: Any) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    def counting(name: str) -> Any:
        def mod(message: Message, context: Context, call_next: Any) -> Message:
            config = message.content["config"]
            seen.setdefault(name, []).append(
                (context.node_config["partition-id"], config["server-round"])
            )
            context.state["calls"] = MetricRecord({"n": len(seen[name])})
            return call_next(message, context)

        return mod

    left = []
    for name, first, strategy in (("plain", [], plain), ("scheduled", [probe_mod], make)):
        app = numpy_app([*first, counting(name), arrays_size_mod])
        result = strategy(FedAvg()).start(LocalGrid(app, NODES), ArrayRecord([np.zeros((3, 2))]), 3)
        left.append(left_by(result))
    assert left[0] == left[1]
    # The user's mod sees training and evaluation messages only, whatever the scheduler asks.
    assert {server_round for _, server_round in seen["scheduled"]} == {1, 2, 3}


def test_clipping_behind_probe_mod_acts_on_probes() -> None:
    app = numpy_app([probe_mod, fixedclipping_mod])

    class Clipping(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["dpfedavg_adaptive_clip_enabled"] = False
            config["clipping_norm"] = 0.1
            return super().configure_train(server_round, arrays, config, grid)

    scheduler = adcs.ADCS(sketch=SKETCH)
    strategy = Scheduled(Clipping(), scheduler, clients_per_round=3)
    strategy.start(LocalGrid(app, NODES), ArrayRecord([np.zeros((3, 2))]), 1)
    norms = [scheduler.reports[client].update_norm for client in range(NODES)]
    assert norms == pytest.approx([0.1] * NODES, rel=1e-4)


@pytest.mark.parametrize("alone", [False, True], ids=["all handlers", "train handler"])
def test_clipping_that_fails_on_evaluations_is_told_where_it_goes(alone: bool, caplog: Any) -> None:
    """Flower's clipping mods need what only training messages have."""
    clipping = [fixedclipping_mod]
    app = numpy_app([probe_mod, *([] if alone else clipping)], train_mods=clipping * alone)
    private = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.0, 1.0, 3)
    strategy = Scheduled(private, adcs.Uniform(), clients_per_round=3)
    result = strategy.start(LocalGrid(app, NODES), ArrayRecord([np.zeros((3, 2))]), 2)
    assert [metrics["adcs-trained"] for metrics in result.train_metrics_clientapp.values()] == [
        3,
        3,
    ]
    assert len(result.evaluate_metrics_clientapp) == (2 if alone else 0)
    assert caplog.text.count("give it to the train handler only") == (0 if alone else 1)
