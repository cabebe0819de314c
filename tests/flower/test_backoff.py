"""Failing clients are left alone, whatever the scheduler."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs.flower import LocalGrid, Scheduled, probe_mod
from adcs.reports.sketch import Sketcher
from adcs.run_folder import RunFolder

CLIENTS, M, ROUNDS, FIRST_FAILURE = 20, 4, 60, 2

SCHEDULERS = {
    "Uniform": adcs.Uniform,
    "Uniform by size": lambda: adcs.Uniform(by_size=True),
    "PowerOfChoice": adcs.PowerOfChoice,
    "PowerOfChoice of 8": lambda: adcs.PowerOfChoice(candidates=8),
    "OCS": adcs.OCS,
    "DivFL": adcs.DivFL,
    "StaticDPP": adcs.StaticDPP,
    "ADCS": adcs.ADCS,
    "ADCS, sketches": lambda: adcs.ADCS(refresh_every=5, sketch=Sketcher(size=64)),
    "LiveADCS": adcs.LiveADCS,
}


def failing_app(*, in_training_only: bool) -> ClientApp:
    """Clients whose losses fall from round to round; client 0 raises from round 2 on."""
    app = ClientApp(mods=[probe_mod])
    now = {"round": 0}

    def loss(client: int) -> float:
        return 2.3 * 0.97 ** now["round"] + 0.01 * client

    def answer(message: Message, context: Any, *, training: bool) -> Message:
        client = context.node_config["partition-id"]
        if training:
            now["round"] = message.content["config"]["server-round"] - 1
        fails = now["round"] >= FIRST_FAILURE and (training or not in_training_only)
        if client == 0 and fails:
            raise RuntimeError("out of memory")
        metrics = MetricRecord({"num-examples": 10 + client})
        metrics["train_loss" if training else "eval_loss"] = loss(client)
        content = RecordDict({"metrics": metrics})
        if training:
            w = message.content["arrays"]["w"].numpy()
            step = np.random.default_rng([client, now["round"]]).normal(size=w.size)
            content["arrays"] = ArrayRecord({"w": Array(w - 0.01 * step)})
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        return answer(message, context, training=True)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        return answer(message, context, training=False)

    return app


def start(strategy: Scheduled, app: ClientApp, rounds: int) -> None:
    initial = ArrayRecord({"w": Array(np.zeros(6))})
    strategy.start(LocalGrid(app, CLIENTS), initial, num_rounds=rounds)


@pytest.mark.parametrize("in_training_only", [True, False], ids=["training", "always"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_failing_client_is_not_preferred(name: str, in_training_only: bool, tmp_path: Any):
    app = failing_app(in_training_only=in_training_only)
    base = FedAvg(fraction_evaluate=0.0)
    strategy = Scheduled(base, SCHEDULERS[name](), clients_per_round=M, folder=tmp_path)
    start(strategy, app, ROUNDS)
    lines = list(RunFolder.open(tmp_path).records())
    chosen = [0 in line["chosen"] for line in lines]
    trained = sum(len(line["trained"]) for line in lines)
    assert sum(chosen) <= 12
    assert trained >= 230
    failures = [i for i, line in enumerate(lines) if line["failed"]]
    assert len(failures) <= 6
    for before, after in itertools.pairwise(failures):
        assert after > before + 1
    for line in lines:
        # Neither probed nor chosen while it is left alone.
        if line["backing_off"]:
            assert line["backing_off"] == [0]
            assert 0 not in {*line["probed"], *line["chosen"]}
    assert any(line["backing_off"] for line in lines) == bool(failures)


def test_a_restarted_federation_leaves_failing_clients_alone(tmp_path: Any) -> None:
    def run(folder: Any, *parts: int) -> list[dict[str, Any]]:
        for rounds in parts:
            app = failing_app(in_training_only=False)
            scheduler = adcs.ADCS(refresh_every=5)
            strategy = Scheduled(
                FedAvg(fraction_evaluate=0.0), scheduler, clients_per_round=M, folder=folder
            )
            start(strategy, app, rounds)
        return list(RunFolder.open(folder).records())

    whole, parts = run(tmp_path / "whole", 8), run(tmp_path / "parts", 6, 2)
    assert [line["backing_off"] for line in parts] == [line["backing_off"] for line in whole]
    assert parts[6]["backing_off"] == [0]


def test_a_required_client_that_fails_is_left_alone_as_well(tmp_path: Any) -> None:
    app = failing_app(in_training_only=False)
    scheduler = adcs.Uniform(required=[0])
    base = FedAvg(fraction_evaluate=0.0)
    start(Scheduled(base, scheduler, clients_per_round=M, folder=tmp_path), app, 14)
    lines = list(RunFolder.open(tmp_path).records())
    assert [i for i, line in enumerate(lines) if 0 in line["chosen"]] == [0, 1, 2, 4, 7, 12]
    assert all(len(line["chosen"]) == M for line in lines)


def test_failing_clients_fill_the_cohort_if_too_few_others_are_there(tmp_path: Any) -> None:
    app = failing_app(in_training_only=False)
    base = FedAvg(fraction_evaluate=0.0)
    strategy = Scheduled(base, adcs.Uniform(), clients_per_round=CLIENTS, folder=tmp_path)
    start(strategy, app, 5)
    lines = list(RunFolder.open(tmp_path).records())
    assert all(len(line["chosen"]) == CLIENTS for line in lines)
    assert all(line["backing_off"] == [] for line in lines)
    assert strategy.recorder.backoff.total == 3
