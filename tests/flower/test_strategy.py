"""Scheduled strategies: probes, cohorts, weights, costs and settings."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    Krum,
    QFedAvg,
    Strategy,
)

import adcs
from adcs import ClientReport, Cohort, Sketcher
from adcs.flower import LocalGrid, Scheduled, probe_mod
from adcs.run_folder import RunFolder, plain
from adcs.schedulers.base import Request, Scheduler

LR = 0.5
SKETCH = Sketcher(size=64, dtype="float32")

STRATEGIES = {
    "FedAvg": lambda: FedAvg(),
    "FedProx": lambda: FedProx(proximal_mu=0.25),
    "FedAdam": lambda: FedAdam(eta=0.1),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.5),
    "QFedAvg": lambda: QFedAvg(client_learning_rate=LR, q=0.1),
    "FedMedian": lambda: FedMedian(),
    "Krum": lambda: Krum(num_malicious_nodes=0),
}


@pytest.mark.parametrize("sketch", [None, SKETCH], ids=["whole", "sketch"])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "Krum"])  # order decides
def test_every_strategy_computes_the_model_of_the_cohort(
    toy: Any, name: str, sketch: Sketcher | None
) -> None:
    """It is that of the unwrapped strategy on a grid of the selected clients."""
    seen: list[int] = []

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"size": float(np.linalg.norm(arrays["w"].numpy()))})

    base = STRATEGIES[name]()
    strategy = Scheduled(base, adcs.ADCS(refresh_every=2, sketch=sketch), clients_per_round=3)
    run = toy.start(strategy, toy.grid(), 1, evaluate_fn=evaluate_fn)
    chosen = run.records[0].cohort.clients
    assert len(chosen) == 3
    assert run.records[0].trained == sorted(chosen)
    assert seen == [0, 1]
    assert run.result.evaluate_metrics_serverapp[1]["size"] == np.linalg.norm(run.w)

    alone = toy.grid()
    for node in alone.nodes:
        node.online = node.context.node_config["partition-id"] in chosen
    plain = STRATEGIES[name]().start(alone, toy.initial(), num_rounds=1)
    np.testing.assert_allclose(run.w, plain.arrays["w"].numpy(), rtol=0, atol=1e-12)
    ours, theirs = run.result.train_metrics_clientapp[1], plain.train_metrics_clientapp[1]
    assert ours["train_loss"] == pytest.approx(theirs["train_loss"])
    assert ours["adcs-chosen"] == ours["adcs-trained"] == 3
    assert ours["adcs-probed"] == ours["adcs-answered"] == 6


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_runs_for_several_rounds(toy: Any, name: str) -> None:
    strategy = Scheduled(STRATEGIES[name](), adcs.ADCS(refresh_every=2), clients_per_round=3)
    run = toy.start(strategy, toy.grid(), 5)
    assert [len(record.trained) for record in run.records] == [3] * 5
    assert np.isfinite(run.w).all()
    assert strategy.rounds_done == 5


def test_handlers_get_the_strategys_config_and_no_probe_records(toy: Any) -> None:
    config = ConfigRecord({"lr": 0.1})
    scheduler = adcs.ADCS(sketch=SKETCH, refresh_every=1)
    strategy = Scheduled(FedProx(proximal_mu=0.25), scheduler, clients_per_round=2)
    toy.start(strategy, toy.grid(), 2, train_config=config)
    expected = {"lr": 0.1, "proximal-mu": 0.25}
    assert toy.configs[0] == {**expected, "server-round": 1}
    assert toy.configs[-1] == {**expected, "server-round": 2}
    assert all(names == ["arrays", "config"] for names in toy.record_names)
    assert dict(config) == {**expected, "server-round": 2}


@pytest.mark.parametrize("mod", [True, False], ids=["mod", "no mod"])
@pytest.mark.parametrize(("rounds", "refresh"), [(7, 3), (6, 3), (4, 1)])
def test_whole_probes_cost_what_the_paper_counts(
    toy: Any, mod: bool, rounds: int, refresh: int
) -> None:
    """mT + (N - m) ceil(T / R) client updates, exactly."""
    m = 2
    strategy = Scheduled(
        FedAvg(), adcs.ADCS(refresh_every=refresh), clients_per_round=m, partition_ids=mod
    )
    run = toy.start(strategy, toy.grid(mod=mod), rounds)
    count = m * rounds + (toy.n - m) * math.ceil(rounds / refresh)
    assert len(toy.trained) == count
    assert strategy.recorder.costs.updates == count
    assert strategy.recorder.costs.extra_updates == (toy.n - m) * math.ceil(rounds / refresh)
    assert all(len(record.trained) == m for record in run.records)


def test_sketched_probes_do_not_change_the_context(toy: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.ADCS(refresh_every=3, sketch=SKETCH), clients_per_round=2)
    grid = toy.grid()
    run = toy.start(strategy, grid, 4)
    assert len(toy.trained) == 2 * toy.n + 2 * 4
    assert strategy.recorder.costs.updates == 2 * toy.n + 2 * 4
    assert strategy.recorder.costs.extra_updates == 2 * toy.n
    times = [
        node.context.state["times"]["n"] if "times" in node.context.state else 0
        for node in grid.nodes
    ]
    chosen = [client for record in run.records for client in record.cohort.clients]
    assert times == [chosen.count(client) for client in range(toy.n)]
    probe, later = run.records[0].costs, run.records[1].costs
    answers = probe.bytes_up - later.bytes_up
    # Six answers of a sketch of 16 + 4 * 64 bytes, and a few numbers with their names.
    assert 6 * 272 < answers < 6 * (272 + 80)


@pytest.mark.parametrize("sketch", [None, SKETCH], ids=["whole", "sketch"])
def test_cohorts_are_those_of_a_loop_around_the_scheduler(
    toy: Any, sketch: Sketcher | None
) -> None:
    rounds, m = 8, 3
    strategy = Scheduled(
        FedAvg(), adcs.ADCS(refresh_every=3, sketch=sketch, seed=4), clients_per_round=m
    )
    run = toy.start(strategy, toy.grid(), rounds)
    scheduler = adcs.ADCS(refresh_every=3, sketch=sketch, seed=4)
    w = np.zeros(6)
    for number in range(rounds):
        request = scheduler.request(number, range(toy.n), m)
        reports = []
        for c in request.clients:
            update = -LR * toy.gradient(w, c)
            signal = {"update": update} if sketch is None else {"sketch": sketch.sketch(update)}
            reports.append(ClientReport(c, number, loss=toy.loss(w, c), **signal))
        scheduler.observe(number, reports, "probe")
        chosen = scheduler.select(number, range(toy.n), m).clients
        assert run.records[number].cohort.clients == chosen
        sizes = np.array([toy.examples(c) for c in chosen])
        steps = np.array([-LR * toy.gradient(w, c) for c in chosen])
        w = w + (sizes / sizes.sum()) @ steps
    np.testing.assert_allclose(run.w, w, atol=1e-12)


def test_uniform_sends_no_probe(toy: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.Uniform(seed=2), clients_per_round=2)
    run = toy.start(strategy, toy.grid(), 5)
    assert len(toy.trained) == 10
    assert all(record.probed == () for record in run.records)
    expected = [adcs.Uniform(seed=2).select(i, range(toy.n), 2).clients for i in range(5)]
    assert [record.cohort.clients for record in run.records] == expected


def test_a_loss_comes_from_the_evaluate_handler(toy: Any) -> None:
    strategy = Scheduled(FedAvg(fraction_evaluate=0.0), adcs.PowerOfChoice(), clients_per_round=2)
    run = toy.start(strategy, toy.grid(), 3)
    assert len(toy.trained) == 6
    assert len(toy.evaluated) == 18
    losses = [toy.loss(np.zeros(6), c) for c in range(toy.n)]
    assert run.records[0].cohort.clients == tuple(np.argsort(losses)[::-1][:2])
    assert strategy.recorder.costs.loss_evaluations == 18


@pytest.mark.parametrize(("mod", "trainings"), [(True, 6 + 2), (False, 6)])
def test_a_norm_comes_from_the_mod_or_from_training(toy: Any, mod: bool, trainings: int) -> None:
    strategy = Scheduled(FedAvg(), adcs.OCS(), clients_per_round=2, partition_ids=mod)
    grid = toy.grid(mod=mod)
    run = toy.start(strategy, grid, 1)
    assert len(toy.trained) == trainings
    norms = [np.linalg.norm(toy.gradient(np.zeros(6), c)) for c in range(toy.n)]
    largest = set(np.argsort(norms)[::-1][:2])
    partition = {f"node:{node.node_id}": i for i, node in enumerate(grid.nodes)}
    assert {partition.get(c, c) for c in run.records[0].cohort.clients} == largest
    assert len(run.records[0].trained) == 2


def test_training_messages_are_new_and_the_strategy_configures_once_a_round(toy: Any) -> None:
    made: list[Message] = []

    class Observed(FedAvg):
        def configure_train(self, *args: Any) -> list[Message]:
            made.extend(messages := list(super().configure_train(*args)))
            return messages

    sent: list[Message] = []

    class Grid(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            sent.extend(messages)
            return super().push_messages(messages)

    strategy = Scheduled(Observed(), adcs.ADCS(sketch=SKETCH), clients_per_round=2)
    strategy.start(Grid(toy.app, toy.n), toy.initial(), num_rounds=1)
    assert len(made) == toy.n
    assert not {id(message) for message in made} & {id(message) for message in sent}
    kinds = [message.metadata.message_type for message in sent]
    identity, probes, training = sent[:6], sent[6:12], sent[12:14]
    assert kinds == ["train"] * 14 + ["evaluate"] * 6
    # The first node is asked in a training message, which an app without the mod can answer.
    assert list(identity[0].content) == ["arrays", "config", "adcs-question"]
    assert all(list(message.content) == ["adcs-question"] for message in identity[1:])
    assert all("adcs-question" in message.content for message in probes)
    assert all("adcs-question" not in message.content for message in training)
    newest_probe = max(message.metadata.created_at for message in probes)
    assert all(message.metadata.created_at >= newest_probe for message in training)


@pytest.mark.parametrize(
    ("setting", "sizes"),
    [(4, [4, 4, 4]), (0.5, [3, 3, 3]), (lambda r: r, [1, 2, 3]), (99, [6, 6, 6])],
    ids=["number", "fraction", "function", "more than there are"],
)
def test_clients_per_round(toy: Any, setting: Any, sizes: list[int]) -> None:
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=setting)
    run = toy.start(strategy, toy.grid(), 3)
    assert [len(record.trained) for record in run.records] == sizes


@pytest.mark.parametrize("setting", [0, -1, 0.0, 1.5, True, "many"])
def test_clients_per_round_is_checked_at_construction(setting: Any) -> None:
    with pytest.raises(ValueError, match="clients_per_round must be"):
        Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=setting)


def test_only_eligible_clients_are_asked(toy: Any) -> None:
    grid = toy.grid()
    asked: set[int] = set()

    def even(client: Any, info: Any) -> bool:
        asked.add(info.node_id)
        return client % 2 == 0

    strategy = Scheduled(FedAvg(), adcs.ADCS(refresh_every=1), clients_per_round=2, eligible=even)
    run = toy.start(strategy, grid, 3)
    assert asked == {node.node_id for node in grid.nodes}
    assert all(record.probed == (0, 2, 4) for record in run.records)
    assert {client for client, _ in toy.trained} == {0, 2, 4}
    # The strategy decides which clients evaluate.
    assert set(run.records[0].evaluation["eval_acc"]) == set(range(6))


class FirstClients(Scheduler):
    """Selects the first m, with weights, and keeps what it observes."""

    def __init__(
        self, weights: tuple[float, ...], normalise: bool = True, sketch: Sketcher | None = None
    ) -> None:
        super().__init__()
        self.weights, self.normalise, self.sketch = weights, normalise, sketch
        self.observed: list[tuple[int, str, list[ClientReport]]] = []

    def observe(self, server_round: int, reports: Any, source: Any) -> None:
        self.observed.append((server_round, source, list(reports)))
        super().observe(server_round, self.observed[-1][2], source)

    def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
        return Cohort(clients[:m], self.weights, self.normalise)


def test_the_scheduler_observes_training_before_aggregation(toy: Any) -> None:
    order: list[str] = []

    class Observed(FedAvg):
        def aggregate_train(self, *args: Any) -> Any:
            order.append("aggregate")
            return super().aggregate_train(*args)

    class Ordered(FirstClients):
        def observe(self, server_round: int, reports: Any, source: Any) -> None:
            order.append(source)
            super().observe(server_round, reports, source)

    scheduler = Ordered((1.0, 1.0))
    toy.start(Scheduled(Observed(), scheduler, clients_per_round=2), toy.grid(), 1)
    assert order == ["enrolment", "training", "aggregate"]
    _, _, reports = scheduler.observed[1]
    assert [report.client for report in reports] == [0, 1]
    assert reports[1].loss == toy.loss(np.zeros(6), 1)
    assert reports[1].examples == 11
    np.testing.assert_array_equal(reports[1].update, LR * toy.points[1])


def test_training_replies_are_sketched_for_a_scheduler_with_sketches(toy: Any) -> None:
    scheduler = FirstClients((1.0,), sketch=SKETCH)
    toy.start(Scheduled(FedAvg(), scheduler, clients_per_round=1), toy.grid(), 1)
    [report] = scheduler.observed[1][2]
    assert report.update is None
    assert report.sketch.encode() == SKETCH.sketch(LR * toy.points[0]).encode()


def test_weights_multiply_the_number_of_examples(toy: Any) -> None:
    scheduler = FirstClients((3.0, 1.0))
    run = toy.start(Scheduled(FedAvg(), scheduler, clients_per_round=2), toy.grid(), 1)
    n = np.array([3.0 * toy.examples(0), toy.examples(1)])
    np.testing.assert_allclose(run.w, n / n.sum() @ (LR * toy.points[:2]), atol=1e-14)
    losses = np.array([toy.loss(np.zeros(6), c) for c in (0, 1)])
    metrics = run.result.train_metrics_clientapp[1]
    assert metrics["train_loss"] == pytest.approx(n / n.sum() @ losses)


@pytest.mark.parametrize("base", [FedAvg, lambda: FedAvgM(server_learning_rate=1.0)])
def test_unnormalised_weights_give_the_unnormalised_sum(toy: Any, base: Any) -> None:
    """The update is sum p w g with p over all clients; those of unknown size count as average."""
    scheduler = FirstClients((2.0, 5.0), normalise=False)
    run = toy.start(Scheduled(base(), scheduler, clients_per_round=2), toy.grid(), 1)
    n = np.array([toy.examples(0), toy.examples(1)], dtype=float)
    p = n / (n.sum() + 4 * n.mean())
    expected = (p * [2.0, 5.0]) @ (LR * toy.points[:2])
    np.testing.assert_allclose(run.w, expected, atol=1e-13)


def test_an_empty_cohort_leaves_the_model_unchanged(toy: Any) -> None:
    class Nobody(Scheduler):
        fixed_size = False

        def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
            return Cohort((), (), False)

    run = toy.start(Scheduled(FedAvg(), Nobody(), clients_per_round=2), toy.grid(), 2)
    assert toy.trained == []
    assert run.w is None
    assert run.result.train_metrics_clientapp[2]["adcs-chosen"] == 0


def test_a_strategy_without_weights_is_logged_once(toy: Any, caplog: Any) -> None:
    strategy = Scheduled(
        QFedAvg(client_learning_rate=LR), FirstClients((3.0, 1.0)), clients_per_round=2
    )
    toy.start(strategy, toy.grid(), 3)
    said = [r.message for r in caplog.records if "without client weights" in r.message]
    assert said == ["QFedAvg aggregates without client weights: those of FirstClients are not used"]


def test_caps_without_authenticated_ids_are_logged_once(toy: Any, caplog: Any) -> None:
    caps = {"groups": {0: "a", 1: "a", 2: "b"}, "caps": 1}
    cases = [(caps, False, 1), (caps, True, 0), ({"groups": {0: "a"}}, False, 0), ({}, False, 0)]
    for constraints, authenticated, warnings in cases:
        caplog.clear()
        strategy = Scheduled(
            FedAvg(fraction_train=1.0),
            adcs.ADCS(**constraints),
            clients_per_round=2,
            authenticated=authenticated,
        )
        toy.start(strategy, toy.grid(), 2)
        assert caplog.text.count("without authenticated=True") == warnings


def test_a_strategy_that_samples_nodes_is_logged(caplog: Any) -> None:
    Scheduled(FedAvg(fraction_train=0.3), adcs.Uniform(), clients_per_round=2)
    assert "fraction_train=0.3" in caplog.text


def layered_app(steps: dict[str, np.ndarray], mods: list[Any]) -> ClientApp:
    """An app that adds a step to each array, times partition id + 1."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        factor = context.node_config["partition-id"] + 1
        arrays = {
            key: Array(np.asarray(array.numpy() + factor * steps[key]).astype(array.dtype))
            for key, array in message.content["arrays"].items()
        }
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 5})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


@pytest.mark.parametrize("sketch", [None, SKETCH], ids=["whole", "sketch"])
@pytest.mark.parametrize(
    ("arrays", "keys"),
    [(None, ["conv.weight", "head.weight"]), (["head.*"], ["head.weight"])],
    ids=["default", "patterns"],
)
def test_the_update_consists_of_parameters(
    arrays: list[str] | None, keys: list[str], sketch: Sketcher | None
) -> None:
    steps = {
        "conv.weight": np.array([[1.0, -2.0]]),
        "bn.running_mean": np.full(3, 100.0),
        "bn.num_batches_tracked": np.array(1),
        "head.weight": np.array([0.5]),
    }
    model = ArrayRecord(
        {
            key: Array(np.zeros(step.shape, np.int64 if step.ndim == 0 else np.float32))
            for key, step in steps.items()
        }
    )
    scheduler = adcs.ADCS(refresh_every=1, theta=0.0, sketch=sketch)
    strategy = Scheduled(
        FedAvg(fraction_evaluate=0.0), scheduler, clients_per_round=2, arrays=arrays
    )
    strategy.start(LocalGrid(layered_app(steps, [probe_mod]), 3), model, num_rounds=1)
    update = np.concatenate([2 * steps[key].ravel() for key in keys]).astype(np.float32)
    expected = update if sketch is None else sketch.sketch(update).values
    np.testing.assert_array_equal(scheduler.reports[1].vector, expected)


def test_patterns_that_match_nothing_are_an_error(toy: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.ADCS(), clients_per_round=2, arrays=["head.*"])
    with pytest.raises(ValueError, match=r"arrays must name .* got \['head.\*'\]"):
        strategy.start(toy.grid(), toy.initial(), num_rounds=1)
    with pytest.raises(ValueError, match="list of patterns"):
        Scheduled(FedAvg(), adcs.ADCS(), clients_per_round=2, arrays="head.*")


def test_a_missing_loss_is_logged_once(toy: Any, caplog: Any) -> None:
    strategy = Scheduled(
        FedAvg(), adcs.ADCS(refresh_every=1), clients_per_round=2, loss_key="my_loss"
    )
    run = toy.start(strategy, toy.grid(), 3)
    assert caplog.text.count("no client reported 'my_loss'") == 1
    assert [len(record.trained) for record in run.records] == [2, 2, 2]


def test_evaluation_metrics_include_worst_and_average(toy: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=2)
    run = toy.start(strategy, toy.grid(), 1)
    metrics = run.result.evaluate_metrics_clientapp[1]
    accuracy = 1.0 / (1.0 + np.arange(6))
    losses = np.array([toy.loss(run.w, c) for c in range(6)])
    n = np.array([toy.examples(c) for c in range(6)])
    assert metrics["eval_acc"] == pytest.approx(accuracy @ n / n.sum())
    assert metrics["eval_acc-worst"] == accuracy.min()
    assert metrics["eval_acc-worst20"] == pytest.approx(np.sort(accuracy)[:2].mean())
    assert metrics["eval_acc-average"] == pytest.approx(accuracy.mean())
    assert metrics["eval_loss-worst"] == pytest.approx(losses.max())
    assert metrics["eval_loss-worst20"] == pytest.approx(np.sort(losses)[-2:].mean())
    assert metrics["eval_loss-average"] == pytest.approx(losses.mean())


def test_a_custom_scheduler_may_request_sketches(toy: Any) -> None:
    class Asking(FirstClients):
        def _request(self, server_round: int, clients: Any, m: int) -> Request:
            return Request(clients[:3], frozenset({"update"}), SKETCH)

    scheduler = Asking((1.0, 1.0))
    toy.start(Scheduled(FedAvg(), scheduler, clients_per_round=2), toy.grid(), 1)
    probe = next(reports for _, source, reports in scheduler.observed if source == "probe")
    assert [report.client for report in probe] == [0, 1, 2]
    training = next(reports for _, source, reports in scheduler.observed if source == "training")
    assert training[0].sketch.encode() == probe[0].sketch.encode()


def test_the_summary_names_the_scheduler_and_the_strategy(caplog: pytest.LogCaptureFixture) -> None:
    strategy = Scheduled(FedAvg(), adcs.ADCS(), clients_per_round=2)
    assert isinstance(strategy, Strategy)
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    assert "Scheduled by ADCS" in caplog.text
    assert "Fraction: train (1.00)" in caplog.text


def test_without_flower_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['flwr'] = None; import adcs; import adcs.flower"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last == "ImportError: adcs.flower needs Flower: pip install 'adcs[flower]'"


class NormalisedApp:
    """Clients whose model has a counter and an index, which are integers."""

    def __init__(self) -> None:
        self.app = ClientApp(mods=[probe_mod])
        self.app.train()(self.train)

    @staticmethod
    def initial() -> ArrayRecord:
        arrays = {
            "w": np.zeros(4, dtype=np.float32),
            "bn.num_batches_tracked": np.array(0),
            "position_ids": np.arange(8),
        }
        return ArrayRecord({key: Array(value) for key, value in arrays.items()})

    def train(self, message: Message, context: Any) -> Message:
        arrays = {key: array.numpy() for key, array in message.content["arrays"].items()}
        client = context.node_config["partition-id"]
        new = {
            "w": arrays["w"] + np.eye(4, dtype=np.float32)[client % 4],
            "bn.num_batches_tracked": arrays["bn.num_batches_tracked"].round().astype(np.int64) + 1,
            "position_ids": arrays["position_ids"].round().astype(np.int64),
        }
        metrics = MetricRecord({"train_loss": 1.0 + client, "num-examples": 10})
        record = ArrayRecord({key: Array(np.asarray(value)) for key, value in new.items()})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


@pytest.mark.parametrize("sketch", [None, SKETCH], ids=["whole", "sketch"])
def test_averaged_integers_do_not_join_the_update(tmp_path: Path, sketch: Sketcher | None) -> None:
    clients = NormalisedApp()
    arrays = clients.initial()
    for _ in range(2):  # The second is a restart with the model that the first has left.
        scheduler = adcs.ADCS(refresh_every=1, sketch=sketch)
        strategy = Scheduled(
            FedAvg(fraction_evaluate=0.0), scheduler, clients_per_round=3, folder=tmp_path / "run"
        )
        result = strategy.start(LocalGrid(clients.app, 6), arrays, num_rounds=3)
        arrays = result.arrays
        for metrics in result.train_metrics_clientapp.values():
            assert (metrics["adcs-trained"], metrics["adcs-refused"]) == (3, 0)
        assert strategy.recorder.update_keys == ("w",)
        assert scheduler.reports.width == (4 if sketch is None else sketch.size)
    assert arrays["bn.num_batches_tracked"].numpy() == pytest.approx(6)
    np.testing.assert_allclose(arrays["position_ids"].numpy(), np.arange(8))


def test_no_client_changes_the_precision_of_the_model(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    grid.nodes[0].tamper = lambda reply: (
        changed(reply, w=reply.content["arrays"]["w"].numpy().astype(np.float16))
        if reply.has_content() and "arrays" in reply.content
        else reply
    )
    run = toy.start(Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=6), grid, 2)
    assert run.w.dtype == np.float64
    assert [len(record.trained) for record in run.records] == [6, 6]


class OwnEvaluation(FedAvg):
    """Puts something into the config of evaluations, and has a handler of its own for them."""

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["batch"] = 32
        for each in super().configure_evaluate(server_round, arrays, config, grid):
            yield Message(each.content, each.metadata.dst_node_id, "evaluate.own")


def test_probes_for_losses_are_addressed_as_evaluations_are(toy: Any, caplog: Any) -> None:
    configs = []
    app = toy.app

    @app.evaluate("own")
    def evaluate(message: Message, context: Any) -> Message:
        config = dict(message.content["config"])
        configs.append((config["server-round"], config["batch"]))
        client = context.node_config["partition-id"]
        metrics = MetricRecord({"eval_loss": 1.0 + client, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    scheduler = adcs.PowerOfChoice(candidates=6)
    run = toy.start(Scheduled(OwnEvaluation(), scheduler, clients_per_round=2), toy.grid(), 3)
    # Before the first evaluation, probes are those of Flower's own strategies.
    assert sorted(toy.evaluated) == list(range(6))
    assert [record.answered for record in run.records] == [list(range(6))] * 3
    # Each round evaluates; those after the first also probe.
    assert Counter(configs) == {(1, 32): 6, (2, 32): 12, (3, 32): 12}
    assert "evaluate_config=" not in caplog.text


def test_probes_that_lack_a_setting_of_evaluations_are_explained(toy: Any, caplog: Any) -> None:
    class Needs(FedAvg):
        def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["batch"] = 32
            return super().configure_evaluate(server_round, arrays, config, grid)

    app = ClientApp(mods=[probe_mod])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        metrics = MetricRecord(
            {"eval_loss": 1.0, "num-examples": message.content["config"]["batch"]}
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def start(**options: Any) -> Any:
        strategy = Scheduled(Needs(), adcs.PowerOfChoice(candidates=6), clients_per_round=2)
        return toy.start(strategy, LocalGrid(app, 6), 2, **options)

    [first, second] = start().records
    # Nobody could answer: nobody backs off.
    assert (len(first.answered), len(second.answered)) == (0, len(second.probed)) == (0, 6)
    assert caplog.text.count("give it to start as evaluate_config= for the first round") == 1
    caplog.clear()
    run = start(evaluate_config=ConfigRecord({"batch": 32}))
    assert [len(record.answered) for record in run.records] == [6, 6]
    assert "evaluate_config=" not in caplog.text


class EvaluatesTwice(FedAvg):
    """Has each node evaluate two sets of data."""

    seen: list[tuple[Any, float]]

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        for _ in ("validation", "test"):
            yield from (
                Message(m.content, m.metadata.dst_node_id, m.metadata.message_type)
                for m in super().configure_evaluate(server_round, arrays, config, grid)
            )

    def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        self.seen = [
            (reply.metadata.src_node_id, reply.content["metrics"]["eval_acc"]) for reply in replies
        ]
        return super().aggregate_evaluate(server_round, replies)


def test_all_evaluations_of_a_node_reach_the_strategy(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    count = []

    def second_is_worse(reply: Message) -> Message:
        if not reply.has_content() or "arrays" in reply.content or "metrics" not in reply.content:
            return reply
        count.append(1)
        return changed(reply, metrics={"eval_acc": 0.25}) if len(count) == 2 else reply

    grid.nodes[5].tamper = second_is_worse
    base = EvaluatesTwice()
    run = toy.start(Scheduled(base, adcs.Uniform(), clients_per_round=2), grid, 1)
    assert len(base.seen) == 2 * 6
    assert sorted(acc for node, acc in base.seen if node == grid.nodes[5].node_id) == [1 / 6, 0.25]
    [record] = run.records
    assert record.evaluation["eval_acc"] == {c: 1.0 / (1.0 + c) for c in range(6)}


def test_bad_evaluations_are_refused_one_by_one(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    count = []

    def first_is_bad(reply: Message) -> Message:
        if not reply.has_content() or "arrays" in reply.content or "metrics" not in reply.content:
            return reply
        count.append(1)
        return changed(reply, metrics={"eval_acc": math.nan}) if len(count) == 1 else reply

    grid.nodes[5].tamper = first_is_bad
    base = EvaluatesTwice()
    run = toy.start(Scheduled(base, adcs.Uniform(), clients_per_round=2), grid, 1)
    assert len(base.seen) == 2 * 6 - 1
    [record] = run.records
    assert [(entry["client"], entry["stage"]) for entry in record.refused] == [(5, "evaluation")]
    assert record.evaluation["eval_acc"][5] == 1 / 6


class SendsHalf(FedAvg):
    """Sends the model as float16, to save bandwidth."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        half = {key: Array(array.numpy().astype(np.float16)) for key, array in arrays.items()}
        return super().configure_train(server_round, ArrayRecord(half), config, grid)


def test_one_reply_of_extended_precision_changes_nothing_for_the_others(
    toy: Any, changed: Any
) -> None:
    """PyTorch, for one, cannot read it."""
    grid = toy.grid()
    grid.nodes[0].tamper = lambda reply: (
        changed(reply, w=reply.content["arrays"]["w"].numpy().astype(np.longdouble))
        if reply.has_content() and "arrays" in reply.content
        else reply
    )
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=6)
    run = toy.start(strategy, grid, 2)
    assert run.w.dtype == np.float64
    assert [len(record.trained) for record in run.records] == [6, 6]


@pytest.mark.parametrize("mixed", [False, True])
def test_replies_to_a_model_in_half_precision_are_averaged_in_float32(
    toy: Any, changed: Any, mixed: bool
) -> None:
    def make_grid() -> Any:
        grid = toy.grid()
        if mixed:
            grid.nodes[3].tamper = lambda reply: (
                changed(reply, w=reply.content["arrays"]["w"].numpy().astype(np.float32))
                if reply.has_content() and "arrays" in reply.content
                else reply
            )
        return grid

    initial = ArrayRecord({"w": Array(np.full(6, 1 / 3))})
    toy.initial = lambda: initial
    plain = SendsHalf().start(make_grid(), initial, num_rounds=1).arrays["w"].numpy()
    strategy = Scheduled(SendsHalf(), adcs.Uniform(), clients_per_round=6)
    scheduled = toy.start(strategy, make_grid(), 1)
    # Plain Flower averages in the precision of the first reply, in any order: in float64 here.
    assert scheduled.w.dtype == np.float32
    np.testing.assert_allclose(scheduled.w, plain, rtol=1e-6)
    assert [len(record.trained) for record in scheduled.records] == [6]


def test_numbers_of_examples_in_a_probe_are_used(toy: Any) -> None:
    class First(adcs.Scheduler):
        def _request(self, server_round, clients, m):
            return adcs.Request(clients, frozenset({"norm"}))

        def _select(self, server_round, clients, m):
            return adcs.Cohort((0,), (6.0,), normalise=False)

    strategy = Scheduled(FedAvg(), First(), clients_per_round=1)
    run = toy.start(strategy, toy.grid(), 1)
    sizes = [toy.examples(client) for client in range(6)]
    expected = 6.0 * sizes[0] / sum(sizes) * LR * toy.points[0]
    np.testing.assert_allclose(run.w, expected)


@pytest.mark.parametrize("scheduler", [adcs.Uniform, adcs.OCS])
def test_numbers_of_examples_may_be_fractions(toy: Any, changed: Any, scheduler: Any) -> None:
    grid = toy.grid()
    grid.nodes[2].tamper = lambda reply: (
        changed(reply, metrics={"num-examples": 0.5})
        if reply.has_content() and "arrays" in reply.content
        else reply
    )
    strategy = Scheduled(FedAvg(), scheduler(independent=True), clients_per_round=5)
    run = toy.start(strategy, grid, 6)
    assert np.isfinite(run.w).all()
    assert strategy.recorder.examples[2] == 0.5


def test_a_round_that_was_broken_off_is_not_counted(toy: Any, tmp_path: Path) -> None:
    class Failing(FedAvg):
        broken = True

        def aggregate_train(self, server_round, replies):
            if server_round == 2 and self.broken:
                self.broken = False
                raise RuntimeError("no more")
            return super().aggregate_train(server_round, replies)

    strategy = Scheduled(Failing(), adcs.Uniform(), clients_per_round=3, folder=tmp_path / "run")
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(toy.grid(), toy.initial(), num_rounds=3)
    assert strategy.rounds_done == 1
    strategy.start(toy.grid(), toy.initial(), num_rounds=2)
    assert strategy.rounds_done == 3
    records = list(RunFolder.open(tmp_path / "run").records())
    assert [record["server_round"] for record in records] == [1, 2, 3]


def test_an_answer_that_was_not_expected_is_ignored(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    grid.nodes[1].tamper = lambda reply: (
        changed(reply, answer={"norm": 1.0})
        if reply.has_content() and "arrays" in reply.content
        else reply
    )
    run = toy.start(Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=6), grid, 1)
    assert run.records[0].trained == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Scheduled(FedAvg(), adcs.ADCS, clients_per_round=2), "scheduler must be a"),
        (lambda: Scheduled(object(), adcs.ADCS(), clients_per_round=2), "flwr.serverapp.strategy"),
        (
            lambda: Scheduled(FedAvg(), adcs.ADCS(), clients_per_round=2, max_examples="many"),
            "max_examples must be a number >= 0, got 'many'",
        ),
        (
            lambda: Scheduled(FedAvg(), adcs.ADCS(), clients_per_round=2, patience=-5),
            "patience must be a number >= 0, got -5",
        ),
    ],
)
def test_wrong_settings_are_refused_at_construction(make: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
@pytest.mark.parametrize("bad", [0, 6])
def test_differential_privacy_wrappers_can_be_scheduled(
    toy: Any, changed: Any, kind: str, bad: int
) -> None:
    private = {
        "fixed": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.01, 10.0, 3),
        "adaptive": lambda: DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.01, 3),
    }[kind]()
    grid = toy.grid()
    for node in grid.nodes[:bad]:
        node.tamper = lambda reply: (
            changed(reply, w=np.full(6, np.nan))
            if reply.has_content() and "arrays" in reply.content
            else reply
        )
    run = toy.start(Scheduled(private, adcs.ADCS(), clients_per_round=3), grid, 3)
    assert [len(record.trained) for record in run.records] == ([0] * 3 if bad else [3] * 3)
    costs = [record.costs for record in run.records]
    assert all(one.updates - one.extra_updates == (0 if bad else 3) for one in costs)


class Weighted(adcs.Uniform):
    """Gives the clients of a cohort different weights."""

    def _select(self, *given: Any) -> Cohort:
        cohort = super()._select(*given)
        return replace(cohort, weights=tuple(1.0 + i for i in range(len(cohort.clients))))


@pytest.mark.parametrize(("scheduler", "told"), [(Weighted, 1), (adcs.LiveADCS, 0)])
def test_weights_under_differential_privacy_are_named(
    toy: Any, caplog: Any, scheduler: Any, told: int
) -> None:
    for base, times in (
        (DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.01, 10.0, 2), told),
        (FedAvg(), 0),
    ):
        caplog.clear()
        toy.start(Scheduled(base, scheduler(), clients_per_round=2), toy.grid(), 2)
        assert caplog.text.count("use a scheduler with equal weights") == times


def test_a_privacy_accountant_is_refused() -> None:
    class Accounted(FedAvg):
        accountant = object()

    with pytest.raises(ValueError, match="privacy accountant"):
        Scheduled(Accounted(), adcs.ADCS(), clients_per_round=3)


def test_more_examples_than_max_examples_are_refused(toy: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=6, max_examples=13)
    run = toy.start(strategy, toy.grid(), 1)
    assert run.records[0].trained == [0, 1, 2, 3]
    assert {one["client"] for one in run.records[0].refused} >= {4, 5}


def test_a_probe_for_losses_is_an_evaluation_with_its_config(toy: Any) -> None:
    seen: list[dict[str, Any]] = []
    app = ClientApp(mods=[probe_mod])

    @app.evaluate()
    def loss(message: Message, context: Any) -> Message:
        seen.append(dict(message.content["config"]))
        client = context.node_config["partition-id"]
        metrics = MetricRecord({"eval_loss": 1.0 + client, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        w = message.content["arrays"]["w"].numpy() + 1.0
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
        arrays = ArrayRecord({"w": Array(w)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    strategy = Scheduled(FedAvg(fraction_evaluate=0.0), adcs.PowerOfChoice(), clients_per_round=2)
    config = ConfigRecord({"shards": 3})
    run = strategy.start(LocalGrid(app, 6), toy.initial(), 2, evaluate_config=config)
    assert run.train_metrics_clientapp[2]["adcs-trained"] == 2
    assert [one["server-round"] for one in seen] == [1] * 6 + [2] * 6
    assert all(one["shards"] == 3 for one in seen)


def test_numbers_of_examples_are_restored_after_a_restart(toy: Any, tmp_path: Path) -> None:
    def strategy() -> Scheduled:
        scheduler = adcs.Uniform(independent=True)
        return Scheduled(FedAvg(), scheduler, clients_per_round=4, folder=tmp_path / "run")

    first = strategy()
    toy.start(first, toy.grid(), 3)
    assert first.recorder.examples
    assert strategy().recorder.examples == first.recorder.examples


def test_a_round_without_messages_counts(toy: Any, tmp_path: Path) -> None:
    class Resting(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = super().configure_train(server_round, arrays, config, grid)
            return [] if server_round == 2 else messages

    strategy = Scheduled(Resting(), adcs.Uniform(), clients_per_round=3, folder=tmp_path / "run")
    strategy.start(toy.grid(), toy.initial(), num_rounds=3)
    assert strategy.rounds_done == 3
    records = list(RunFolder.open(tmp_path / "run").records())
    assert [len(record["trained"]) for record in records] == [3, 0, 3]


def test_observers_see_selection_round_record_and_end(
    toy: Any, events: Any, tmp_path: Path
) -> None:
    grid = toy.grid()
    strategy = Scheduled(
        FedAvg(),
        adcs.ADCS(refresh_every=5, seed=2),
        clients_per_round=2,
        folder=tmp_path / "run",
        observers=[events],
    )
    toy.start(strategy, grid, 1, timeout=10.0)
    grid.nodes[4].delay = 30.0
    toy.start(strategy, grid, 2, timeout=10.0)
    names = [name for name, _ in events.events]
    assert names == ["selection", "round", "evaluation", "end"] + names[:3] * 2 + ["end"]
    selections = [event for name, event in events.events if name == "selection"]
    assert [event.server_round for event in selections] == [0, 1, 2]
    assert selections[0].request.clients == (0, 1, 2, 3, 4, 5)
    # A training reply of the second round is pending in the third.
    assert [event.pending for event in selections] == [(), (), (4,)]
    assert [event.available for event in selections][1:] == [(0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 5)]
    rounds = [event for name, event in events.events if name == "round"]
    assert [event.costs.updates for event in rounds] == [6, 1, 2]
    assert [list(event.trained) for event in rounds] == [event.record.trained for event in rounds]
    written = [dict(event.record) for name, event in events.events if name == "evaluation"]
    recorded = list(RunFolder.open(tmp_path / "run").records())
    assert [plain(line) for line in written] == recorded


def test_observers_see_the_end_of_a_run_that_fails(toy: Any, events: Any) -> None:
    class Failing(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            raise RuntimeError("no more")

    strategy = Scheduled(Failing(), adcs.Uniform(), clients_per_round=2, observers=[events])
    with pytest.raises(RuntimeError, match="no more"):
        strategy.start(toy.grid(), toy.initial(), num_rounds=1)
    assert [name for name, _ in events.events] == ["selection", "end"]


def test_a_round_without_eligible_clients_costs_no_time(toy: Any) -> None:
    grid = toy.grid()
    grid.advance(1000.0)
    strategy = Scheduled(
        FedAvg(), adcs.Uniform(), clients_per_round=2, eligible=lambda client, info: False
    )
    run = toy.start(strategy, grid, 1)
    assert strategy.rounds_done == 1
    assert run.records[0].costs.seconds == 0.0
