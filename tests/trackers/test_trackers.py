"""Trackers log what the records say, each step once, as their own libraries read it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adcs
from adcs.experiments import Comparison, Experiment
from adcs.observers import EvaluationEvent
from adcs.run_folder import RunFolder
from adcs.trackers.tracker import scalars

SETTINGS: dict[str, Any] = {
    "data": "synthetic",
    "clients": 10,
    "m": 4,
    "rounds": 40,
    "eval_every": 10,
    "schedulers": {"Uniform": "Uniform", "a/b": "ADCS(theta=0.5)"},
}


def expected(records: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return (step, value) of each metric, by scheduler and seed, as the records have them."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["server_round"]):
        metrics = found.setdefault((record["scheduler"], record["seed"]), {})
        for name, value in scalars(record).items():
            metrics.setdefault(name, []).append((record["server_round"], value))
    return found


def check_metrics(logged: Any, metrics: dict[str, Any]) -> None:
    assert set(logged.metrics) == set(metrics)
    for name, points in metrics.items():
        assert [step for step, _ in logged.metrics[name]] == [step for step, _ in points], name
        values = [value for _, value in points]
        # TensorBoard keeps float32.
        assert [value for _, value in logged.metrics[name]] == pytest.approx(values, rel=1e-6)


def one_run(logged: dict[str, Any], label: str, seed: int) -> Any:
    """Return the run of a scheduler and seed; TensorBoard's names are those of folders."""
    (found,) = [
        run
        for run in logged.values()
        if (run.config["scheduler"], str(run.config["seed"])) == (label, str(seed))
    ]
    return found


def test_a_simulation_is_logged(backend: Any, tmp_path: Path, events: Any) -> None:
    simulation = Experiment.of(**SETTINGS).simulation(3)
    simulation.observers += [events, backend.make(tmp_path, config={"training": {"lr": 0.25}})]
    simulation.run(40, eval_every=10)
    records = [e.record for _, e in events.events if isinstance(e, EvaluationEvent)]
    logged = backend.read(tmp_path)
    assert "Uniform/seed3" in logged
    assert len(logged) == 2
    for (label, seed), metrics in expected(records).items():
        assert {"worst", "worst20", "average", "updates", "seconds"} <= set(metrics)
        run = one_run(logged, label, seed)
        check_metrics(run, metrics)
        flat = run.config.get("training.lr")
        assert (float(flat) if flat else run.config["training"]["lr"]) == 0.25


def test_a_resumed_comparison_has_each_step_once(backend: Any, tmp_path: Path) -> None:
    given = {**SETTINGS, "seeds": 2}
    run = adcs.compare(
        **given,
        out=tmp_path / "run",
        jobs=1,
        progress=False,
        observers=[backend.make(tmp_path, group="mine")],
    )
    before = backend.read(tmp_path)
    metrics = expected(list(RunFolder.open(run.folder).records()))
    assert len(before) == len(metrics) == 4
    # As after a crash: one task is behind its records, another has lost both.
    first, second = sorted((run.folder / "checkpoints").iterdir())
    first.unlink()
    second.unlink()
    (run.folder / "records" / f"{second.name}.jsonl").unlink()
    time.sleep(1.1)  # folders of Weights & Biases are named by the second
    again = Comparison.open(run.folder)
    again.run(jobs=1, progress=False, observers=[backend.make(tmp_path, group="mine")])
    assert expected(list(RunFolder.open(run.folder).records())) == metrics
    after = backend.read(tmp_path)
    assert set(after) == set(before)
    for (label, seed), points in metrics.items():
        run_logged = one_run(after, label, seed)
        check_metrics(run_logged, points)
        config = run_logged.config
        clients = config.get("partition.clients") or config["partition"]["clients"]
        assert int(clients) == 10


def client_app() -> Any:
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from adcs.flower import probe_mod

    app = ClientApp(mods=[probe_mod])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        target = context.node_config["partition-id"]
        w = message.content["arrays"]["w"].numpy()
        metrics = MetricRecord({"train_loss": float(np.sum((w - target) ** 2)), "num-examples": 5})
        new = ArrayRecord({"w": Array(w - 0.1 * (w - target))})
        return Message(RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        distance = message.content["arrays"]["w"].numpy()[0] - context.node_config["partition-id"]
        metrics = MetricRecord({"eval_acc": float(1 / (1 + distance**2)), "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def test_a_federation_that_is_resumed(backend: Any, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs adcs[flower]")
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from adcs.flower import LocalGrid, Scheduled

    for _ in range(2):  # the second start continues after the third round
        strategy = Scheduled(
            FedAvg(),
            adcs.LiveADCS(seed=1),
            clients_per_round=2,
            folder=tmp_path / "run",
            observers=[backend.make(tmp_path, group="hospitals")],
        )
        start = ArrayRecord({"w": Array(np.zeros(3))})
        strategy.start(LocalGrid(client_app(), nodes=4), start, num_rounds=3)
        time.sleep(1.1)
    metrics = expected(list(RunFolder.open(tmp_path / "run").records()))
    (logged,) = backend.read(tmp_path).values()
    check_metrics(logged, metrics["LiveADCS", 1])
    assert [step for step, _ in logged.metrics["trained"]] == [1, 2, 3, 4, 5, 6]
    assert any("eval" in name for name in logged.metrics)


def test_without_a_group_each_start_is_a_new_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs adcs[trackers]")
    from mlflow import MlflowClient

    from adcs.trackers import MLflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for _ in range(2):
        tracker = MLflow(uri)
        tracker.on_evaluation(EvaluationEvent("A", 0, 5, {"server_round": 5, "worst": 0.5}))
        tracker.on_end()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("adcs")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_names_that_a_library_refuses(backend: Any, tmp_path: Path) -> None:
    """Metric names of a federation are its clients'; labels are the user's."""
    tracker = backend.make(tmp_path)
    record = {"server_round": 1, "worst": 0.5, "evaluation": {"<b>acc%</b>": {"average": 0.25}}}
    tracker.on_evaluation(EvaluationEvent("../../x<y>", 0, 0, record))
    tracker.on_end()
    (logged,) = backend.read(tmp_path).values()
    assert logged.config["scheduler"] == "../../x<y>"
    assert sorted(points[0][1] for points in logged.metrics.values()) == [0.25, 0.5]
    assert not list(tmp_path.parent.glob("x*"))
