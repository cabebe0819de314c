"""Faults of single clients: the run continues and records them."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import fixedclipping_mod
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAdam,
    FedAvg,
    QFedAvg,
)

import adcs
from adcs import Sketcher
from adcs.flower import LocalGrid, Scheduled, probe_mod

SKETCH = Sketcher(size=64)
ZEROS = np.zeros(6)


def whole(**options: Any) -> Scheduled:
    """Probe all clients for whole updates in each round, which is the training."""
    settings = {"clients_per_round": 3, "loss_key": "train_loss", **options}
    return Scheduled(FedAvg(), adcs.ADCS(refresh_every=1), **settings)


def sketched(**options: Any) -> Scheduled:
    scheduler = adcs.ADCS(refresh_every=1, sketch=SKETCH)
    return Scheduled(FedAvg(), scheduler, **{"clients_per_round": 3, **options})


class UsesLosses(adcs.Uniform):
    """Selects at random, and observes training replies."""

    observed_sources = adcs.Scheduler.observed_sources


def everyone(scheduler: Any = None, **options: Any) -> Scheduled:
    """Train all clients in each round, without probes."""
    scheduler = UsesLosses() if scheduler is None else scheduler
    return Scheduled(FedAvg(), scheduler, **{"clients_per_round": 1.0, **options})


def garbage_array() -> ArrayRecord:
    return ArrayRecord({"w": Array("float64", (6,), "numpy.ndarray", b"\x93NUMPY garbage")})


def archive() -> ArrayRecord:
    """What `np.load` opens as an archive of several arrays."""
    data = io.BytesIO()
    np.savez(data, w=np.zeros(6))
    return ArrayRecord({"w": Array("float64", (6,), "numpy.ndarray", data.getvalue())})


BAD_TRAINING = {
    "nan": ({"w": np.full(6, np.nan)}, "array 'w' must be finite"),
    "infinity": ({"w": np.array([np.inf, 0, 0, 0, 0, 1])}, "array 'w' must be finite"),
    "absurd": ({"w": np.full(6, 1e300)}, "array 'w' must be finite and at most 1e.30"),
    "shape": ({"w": np.ones((2, 3))}, r"array 'w' must have shape \(6,\), got \(2, 3\)"),
    "integers": ({"w": np.ones(6, dtype=int)}, "array 'w' must be of float64, got int64"),
    "key": (
        {"arrays": ArrayRecord({"v": Array(np.ones(6))})},
        r"must have the model's keys, got without \['w'\] and with \['v'\]",
    ),
    "bytes": ({"arrays": garbage_array()}, "array 'w' cannot be read"),
    "archive": ({"arrays": archive()}, "array 'w' must be one array, got NpzFile"),
    "loss": ({"metrics": {"train_loss": 1e300}}, "train_loss must be finite and at most 1e.30"),
    "nan loss": ({"metrics": {"train_loss": math.nan}}, "train_loss must be finite"),
    "many examples": ({"metrics": {"num-examples": 10**15}}, "num-examples must lie between 0"),
    "too many for a float": (
        {"metrics": {"num-examples": 10**400}},
        "num-examples must lie between",
    ),
    "loss beyond a float": ({"metrics": {"train_loss": 10**400}}, "train_loss must be finite"),
    "no examples": ({"metrics": {"num-examples": 0}}, "num-examples must lie between 0"),
    "minus examples": ({"metrics": {"num-examples": -4}}, "num-examples must lie between 0"),
    "list": ({"metrics": {"num-examples": [1, 2]}}, "must hold a number num-examples"),
}


@pytest.mark.parametrize("make", [everyone, whole], ids=["training", "probe that is training"])
@pytest.mark.parametrize("fault", BAD_TRAINING)
def test_a_bad_training_reply_is_refused_individually(
    toy: Any, changed: Any, caplog: Any, make: Any, fault: str
) -> None:
    change, reason = BAD_TRAINING[fault]
    grid = toy.grid()

    def tamper(reply: Message) -> Message:
        is_training = reply.has_content() and "arrays" in reply.content
        return changed(reply, **change) if is_training else reply

    grid.nodes[2].tamper = tamper
    run = toy.start(make(), grid, 3)
    assert np.isfinite(run.w).all()
    # After a failure it is not asked for a round, unless fewer than m others are there.
    assert [r.backing_off for r in run.records] == [[], [] if make is everyone else [2], []]
    for record in run.records:
        assert 2 not in record.trained
        assert len(record.trained) == (5 if make is everyone else 3)
        if record.backing_off:
            assert record.refused == []
            continue
        [refused] = record.refused
        assert refused["client"] == 2
        assert re.search(reason, refused["reason"]), refused["reason"]
    assert "round 1: 1 replies refused: 2: " in caplog.text


@pytest.mark.parametrize("dtype", ["U5", "datetime64[s]", "f8,i4", "S3"])
@pytest.mark.parametrize("make", [everyone, whole])
def test_arrays_that_are_no_numbers_are_refused_without_other_checks(
    toy: Any, changed: Any, make: Any, dtype: str
) -> None:
    grid = toy.grid()
    odd = np.zeros(6, dtype)
    grid.nodes[2].tamper = lambda reply: (
        changed(reply, w=odd) if reply.has_content() and "arrays" in reply.content else reply
    )
    run = toy.start(make(checks="lenient"), grid, 1)
    [refused] = run.records[0].refused
    assert refused["client"] == 2
    assert "array 'w' must have numbers, got" in refused["reason"]
    assert np.isfinite(run.w).all()


def test_a_model_of_zeros_is_refused(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    run = toy.start(everyone(), grid, 1)
    grid.nodes[2].tamper = lambda reply: changed(reply, w=ZEROS) if reply.has_content() else reply
    strategy = everyone(partition_ids=False)
    again = strategy.start(grid, run.result.arrays, num_rounds=1)
    assert again.train_metrics_clientapp[1]["adcs-refused"] == 1
    assert again.train_metrics_clientapp[1]["adcs-trained"] == 5


@pytest.mark.parametrize("missing", ["arrays", "metrics"])
def test_a_reply_that_lacks_a_record_is_refused(toy: Any, missing: str) -> None:
    grid = toy.grid(mod=False)

    def tamper(reply: Message) -> Message:
        reply.content = RecordDict({k: r for k, r in reply.content.items() if k != missing})
        return reply

    grid.nodes[2].tamper = tamper
    run = toy.start(everyone(partition_ids=False), grid, 1)
    assert len(run.records[0].trained) == 5
    assert "must have one" in run.records[0].refused[0]["reason"]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -1e300, [0.7, 0.5]])
@pytest.mark.parametrize("scheduler", [adcs.Uniform, UsesLosses, adcs.ADCS, adcs.LiveADCS])
@pytest.mark.parametrize("sketch", [None, SKETCH])
def test_a_loss_that_is_no_number_belongs_to_a_check(
    toy: Any, changed: Any, scheduler: Any, sketch: Any, loss: Any
) -> None:
    def tamper(reply: Message) -> Message:
        if reply.has_content() and "arrays" in reply.content:
            return changed(reply, metrics={"train_loss": loss})
        answer = reply.content.get("adcs-answer", {}) if reply.has_content() else {}
        if "norm" in answer:
            return changed(reply, answer={**dict(answer), "loss": loss})
        return reply

    def run(**options: Any) -> Any:
        has_sketch = issubclass(scheduler, (adcs.ADCS, adcs.LiveADCS))
        made = scheduler(sketch=sketch) if has_sketch else scheduler()
        grid = toy.grid()
        for node in grid.nodes:
            node.tamper = tamper
        return toy.start(everyone(made, **options), grid, 1).records[0]

    record = run()
    if scheduler is adcs.Uniform:  # It does not use losses.
        assert (len(record.trained), record.refused) == (6, [])
        return
    assert len(record.refused) >= 6
    assert "leave 'losses' out of checks=" in record.refused[0]["reason"]
    record = run(checks={"sizes", "shapes", "values"})
    assert (len(record.trained), record.refused) == (6, [])


def test_the_length_of_a_long_error_is_that_of_the_clients_text(toy: Any) -> None:
    grid = toy.grid()
    broken = toy.loss
    text = "boom\n" + "x" * 10**6

    def raises(w: np.ndarray, client: int) -> float:
        if client == 2:
            raise ValueError(text)
        return float(broken(w, client))

    toy.loss = raises
    run = toy.start(everyone(), grid, 1)
    reason = run.records[0].failed[0]["reason"]
    assert len(reason) <= 200
    assert int(re.search(r"\((\d+) characters\)$", reason)[1]) >= 10**6  # type: ignore[index]


def test_a_mod_that_fails_on_probes_is_told_where_probe_mod_goes(toy: Any, caplog: Any) -> None:
    base = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.0, 1.0, 3)
    grid = LocalGrid(toy.make_app([fixedclipping_mod, probe_mod]), 6)
    toy.start(Scheduled(base, adcs.ADCS(sketch=SKETCH), clients_per_round=3), grid, 1)
    assert caplog.text.count("which probe_mod removes: put probe_mod first, as ClientApp(") == 1


def test_a_loss_that_the_strategy_uses_is_checked(toy: Any, changed: Any) -> None:
    grid = toy.grid()

    def tamper(reply: Message) -> Message:
        is_training = reply.has_content() and "arrays" in reply.content
        return changed(reply, metrics={"train_loss": -1.0}) if is_training else reply

    grid.nodes[2].tamper = tamper
    strategy = Scheduled(QFedAvg(client_learning_rate=0.5), adcs.Uniform(), clients_per_round=1.0)
    run = toy.start(strategy, grid, 2)
    assert np.isfinite(run.w).all()
    assert run.records[0].refused[0]["reason"] == "train_loss must not be negative, got -1"


def test_the_model_is_unchanged_if_all_replies_are_refused(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    for node in grid.nodes:
        node.tamper = lambda reply: (
            changed(reply, w=np.full(6, np.nan)) if "arrays" in reply.content else reply
        )
    for base in (FedAvg(), FedAdam(), QFedAvg(client_learning_rate=0.5)):
        run = toy.start(Scheduled(base, adcs.Uniform(), clients_per_round=3), grid, 2)
        assert run.w is None
        assert [len(record.refused) for record in run.records] == [3, 3]


BAD_ANSWERS = {
    "garbage": ({"sketch": b"\x00" * 80}, "layout version 1, got 0"),
    "short": ({"sketch": b"abc"}, "must be 80 bytes long, got 3"),
    "no sketch": ({"norm": 1.0}, "must be 80 bytes long, got 0"),
    "text": ({"sketch": "sketch"}, "sketch must be bytes, got str"),
    "nan loss": ({"loss": math.nan}, "loss must be finite, got nan"),
    "absurd loss": ({"loss": 1e300}, r"loss must be at most 1e\+30"),
    "text loss": ({"loss": "high"}, "loss must be a number, got 'high'"),
    "examples": ({"examples": 10**12}, "num-examples must lie between 0"),
    "other length": (
        {"sketch": SKETCH.sketch(np.ones(7)).encode()},
        "sketch must be of an update of 6 numbers, got 7",
    ),
    "other seed": (
        {"sketch": Sketcher(size=64, seed=9).sketch(np.ones(6)).encode()},
        "made with another seed",
    ),
    "refused by the mod": ({"refused": "update must be finite"}, "update must be finite"),
}


@pytest.mark.parametrize("fault", BAD_ANSWERS)
def test_a_bad_answer_to_a_probe_is_refused_individually(
    toy: Any, changed: Any, fault: str
) -> None:
    change, reason = BAD_ANSWERS[fault]
    grid = toy.grid()

    def tamper(reply: Message) -> Message:
        if not reply.has_content() or "norm" not in dict(reply.content.get("adcs-answer", {})):
            return reply
        honest = dict(reply.content["adcs-answer"])
        if fault == "no sketch":
            honest.pop("sketch")
        return changed(reply, answer={**honest, **change})

    grid.nodes[2].tamper = tamper
    run = toy.start(sketched(), grid, 3)
    assert [record.backing_off for record in run.records] == [[], [2], []]
    for record in run.records:
        assert record.answered == [0, 1, 3, 4, 5]
        assert 2 not in record.cohort.clients
        if record.backing_off:
            assert record.refused == []
            continue
        [refused] = record.refused
        assert re.search(reason, refused["reason"]), refused["reason"]
        assert (refused["client"], refused["stage"]) == (2, "probe")
        assert len(record.trained) == 3


def test_the_mod_reports_why_an_update_cannot_be_used(toy: Any) -> None:
    toy.points[2] = np.nan
    run = toy.start(sketched(), toy.grid(), 1)
    [refused] = [one for one in run.records[0].refused if one["stage"] == "probe"]
    assert refused["client"] == 2
    assert "array 'w' must be finite" in refused["reason"]
    assert len(run.records[0].trained) == 3


@pytest.mark.parametrize("make", [sketched, whole, everyone])
def test_a_client_app_that_raises_is_recorded_as_failed(toy: Any, make: Any) -> None:
    grid = toy.grid()
    toy.points[4] = 0.0

    def broken(w: np.ndarray, client: int) -> float:
        if client == 4:
            raise RuntimeError("out of memory")
        return 1.0

    toy.loss = broken
    run = toy.start(make(), grid, 3)
    for record in run.records:
        assert 4 not in record.trained
        assert len(record.trained) == (5 if make is everyone else 3)
        failed = [one for one in record.failed if one["stage"] != "evaluation"]
        assert [one["client"] for one in failed] + record.backing_off == [4]
        assert all("out of memory" in one["reason"] for one in failed)
    assert [len(r.backing_off) for r in run.records] == [0, 0 if make is everyone else 1, 0]


def test_errors_of_the_superlink_are_matched_to_the_node(toy: Any) -> None:
    """Such an error comes from node 1, so it is matched by the message that it replies to."""

    class Lagging(LocalGrid):
        def get_node_ids(self) -> list[int]:
            return [node.node_id for node in self.nodes]

        def get_nodes(self) -> Any:
            return [NodeInfo(node_id=node.node_id) for node in self.nodes]

    lagging = Lagging(toy.app, 6)
    strategy = sketched()
    toy.start(strategy, lagging, 1)
    lagging.nodes[3].online = False
    run = toy.start(strategy, lagging, 1)
    [record] = run.records
    failed = [one for one in record.failed if one["stage"] == "probe"]
    assert [one["client"] for one in failed] == [3]
    assert "Node Unavailable" in failed[0]["reason"]
    assert 3 not in record.cohort.clients


@pytest.mark.parametrize("make", [sketched, whole])
def test_a_straggler_is_pending_until_it_has_answered(toy: Any, make: Any) -> None:
    grid = toy.grid()
    slow = grid.nodes[5]
    strategy = make(probe_timeout=10.0)
    toy.start(strategy, grid, 1, timeout=10.0)
    calls = slow.calls
    slow.delay = 25.0
    run = toy.start(strategy, grid, 1, timeout=10.0)
    assert run.records[0].timed_out == {"probe": [5]}
    assert 5 not in run.records[0].cohort.clients
    assert slow.calls == calls + 1

    # It is pending: no probe, no training, no evaluation.
    run = toy.start(strategy, grid, 1, timeout=10.0)
    assert run.records[0].pending == [5]
    assert 5 not in run.records[0].probed
    assert slow.calls == calls + 1

    # The answer has arrived: the scheduler observes it, and the node is asked again.
    slow.delay = 0.0
    grid.advance(25.0)
    run = toy.start(strategy, grid, 1, timeout=10.0)
    assert run.records[0].late == [{"client": 5, "stage": "probe", "server_round": 2}]
    assert run.records[0].pending == []
    assert 5 in run.records[0].probed


def test_the_scheduler_observes_late_answers(toy: Any) -> None:
    grid = toy.grid()
    scheduler = adcs.ADCS(refresh_every=50, sketch=SKETCH)
    strategy = Scheduled(
        FedAvg(), scheduler, clients_per_round=3, probe_timeout=10.0, partition_ids=False
    )
    grid.nodes[5].delay = 15.0
    toy.start(strategy, grid, 1, timeout=100.0)
    name = f"node:{grid.nodes[5].node_id}"
    assert name not in scheduler.reports
    grid.advance(60.0)
    toy.start(strategy, grid, 1, timeout=100.0)
    assert scheduler.reports[name].server_round == 0
    assert scheduler.reports[name].sketch is not None


def test_a_straggler_in_training_is_pending_too(toy: Any) -> None:
    grid = toy.grid()
    strategy = everyone()
    toy.start(strategy, grid, 1, timeout=10.0)
    grid.nodes[1].delay = 12.0
    run = toy.start(strategy, grid, 2, timeout=10.0)
    first, second = run.records
    assert first.timed_out == {"training": [1]}
    assert first.trained == [0, 2, 3, 4, 5]
    # Ten seconds later its answer is still pending.
    assert second.pending == [1]
    grid.advance(5.0)
    run = toy.start(strategy, grid, 1, timeout=100.0)
    assert run.records[0].late == [{"client": 1, "stage": "training", "server_round": 2}]
    assert run.records[0].trained == [0, 1, 2, 3, 4, 5]


def test_a_client_is_asked_again_after_patience(toy: Any) -> None:
    grid = toy.grid()
    strategy = everyone(patience=60.0)
    toy.start(strategy, grid, 1, timeout=10.0)
    grid.nodes[1].delay = math.inf
    run = toy.start(strategy, grid, 2, timeout=10.0)
    assert [record.pending for record in run.records] == [[], [1]]
    grid.nodes[1].delay = 0.0
    grid.advance(60.0)
    run = toy.start(strategy, grid, 1, timeout=10.0)
    assert run.records[0].pending == []
    assert 1 in run.records[0].trained


def test_a_seeded_draw_if_no_client_answers_the_first_probe(toy: Any) -> None:
    grid = toy.grid()
    strategy = sketched(probe_timeout=1.0, partition_ids=False)
    for node in grid.nodes:
        node.delay = 5.0
    run = toy.start(strategy, grid, 1, timeout=100.0)
    [record] = run.records
    assert len(record.timed_out["probe"]) == 6
    assert record.answered == []
    assert len(record.trained) == 3
    clients = [f"node:{node.node_id}" for node in grid.nodes]
    expected = adcs.ADCS(refresh_every=1, sketch=SKETCH).select(0, clients, 3).clients
    assert record.cohort.clients == expected


def test_the_last_kernel_if_no_client_answers_a_later_probe(toy: Any) -> None:
    grid = toy.grid()
    strategy = sketched(probe_timeout=1.0)
    first = toy.start(strategy, grid, 1, timeout=100.0)
    for node in grid.nodes:
        node.delay = 5.0
    second = toy.start(strategy, grid, 1, timeout=100.0)
    assert second.records[0].answered == []
    assert second.records[0].cohort.clients == first.records[0].cohort.clients
    assert len(second.records[0].trained) == 3


def test_a_draw_if_the_evaluate_handler_of_all_clients_fails(toy: Any) -> None:
    grid = toy.grid()
    toy.examples = lambda client: 1 / 0
    strategy = Scheduled(FedAvg(), adcs.PowerOfChoice(), clients_per_round=2)
    run = toy.start(strategy, grid, 1)
    assert len([one for one in run.records[0].failed if one["stage"] == "probe"]) == 6
    assert len(run.records[0].cohort.clients) == 2


def test_all_nodes_train_if_there_are_fewer_than_requested(toy: Any) -> None:
    grid = toy.grid(nodes=2)
    for make in (whole, sketched):
        run = toy.start(make(), grid, 2)
        assert [record.trained for record in run.records] == [[0, 1], [0, 1]]


def test_nodes_join_and_leave_between_rounds(toy: Any) -> None:
    grid = toy.grid(nodes=4)
    strategy = Scheduled(FedAvg(), adcs.ADCS(refresh_every=10), clients_per_round=4)
    toy.start(strategy, grid, 1)
    grid.add_node()
    grid.nodes[0].online = False
    run = toy.start(strategy, grid, 1)
    # No probe is due, so the new node is selected by its proportional share of the slots.
    assert run.records[0].probed == ()
    assert set(run.records[0].cohort.clients) == {1, 2, 3, 4}
    grid.nodes[0].online = True
    run = toy.start(strategy, grid, 1)
    assert set(run.records[0].cohort.clients) <= {0, 1, 2, 3, 4}
    assert len(run.records[0].trained) == 4


def test_a_node_without_the_mod_is_logged_once_and_its_reply_is_used(toy: Any, caplog: Any) -> None:
    grid = toy.grid()
    grid.nodes[2].app = toy.plain_app
    run = toy.start(sketched(clients_per_round=6), grid, 3)
    name = f"node:{grid.nodes[2].node_id}"
    assert caplog.text.count("no answer from probe_mod") == 1
    assert f"of node {grid.nodes[2].node_id}:" in caplog.text
    for record in run.records:
        assert record.without_mod == [name]
        assert name in record.answered
        assert name in record.trained
        assert record.cohort.diagnostics["drawn"] == []
    # Its answer to the probe was its training, so it trains once a round and others twice.
    trainings = [client for client, _ in toy.trained]
    assert trainings.count(2) == 3
    assert trainings.count(1) == 6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"eval_acc": math.nan}, "eval_acc must be finite"),
        ({"num-examples": -1}, "num-examples must lie between 0"),
    ],
)
def test_a_bad_evaluation_reply_is_refused(toy: Any, change: Any, reason: str) -> None:
    grid = toy.grid()

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate":
            metrics = MetricRecord({**dict(reply.content["metrics"]), **change})
            reply.content = RecordDict({"metrics": metrics})
        return reply

    grid.nodes[0].tamper = tamper
    run = toy.start(everyone(), grid, 1)
    metrics = run.result.evaluate_metrics_clientapp[1]
    assert metrics["eval_acc-average"] == pytest.approx(np.mean(1 / (1 + np.arange(1, 6))))
    [refused] = run.records[0].refused
    assert refused["stage"] == "evaluation"
    assert reason in refused["reason"]


def test_a_second_reply_to_one_message_is_ignored(toy: Any) -> None:

    class Repeating(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            return replies + replies[:1]

    run = toy.start(everyone(), Repeating(toy.app, 6), 2)
    assert [record.trained for record in run.records] == [[0, 1, 2, 3, 4, 5]] * 2


def test_patience_starts_at_the_end_of_the_wait(toy: Any) -> None:
    grid = toy.grid()
    grid.nodes[2].delay = math.inf
    strategy = everyone(partition_ids=False)
    run = toy.start(strategy, grid, 4)  # timeout 3600, patience 600
    silent = [len(record.timed_out.get("training", [])) for record in run.records]
    assert silent == [1, 0, 0, 0]
    assert all(len(record.pending) == 1 for record in run.records[1:])


def test_clients_refused_in_the_probe_are_not_selected(toy: Any, changed: Any) -> None:
    grid = toy.grid()
    for node in grid.nodes[:5]:
        node.tamper = lambda reply: (
            changed(reply, w=np.full(6, np.nan))
            if reply.has_content() and "arrays" in reply.content
            else reply
        )
    strategy = Scheduled(FedAvg(), adcs.ADCS(refresh_every=1), clients_per_round=3)
    run = toy.start(strategy, grid, 2)
    assert [record.trained for record in run.records] == [[5], [5]]


def test_a_node_is_asked_again_if_its_partition_id_was_lost(toy: Any) -> None:
    grid = toy.grid()
    lost: list[Message] = []

    def lose(reply: Message) -> Message | None:
        if lost:
            return reply
        lost.append(reply)
        return None

    grid.nodes[2].tamper = lose
    name = f"node:{grid.nodes[2].node_id}"
    strategy = everyone(patience=0.0)
    run = toy.start(strategy, grid, 3)
    assert name in run.records[0].pending
    assert run.records[1].renamed == {name: 2}
    assert set(run.records[2].cohort.clients) == set(range(6))
    assert set(strategy.recorder.counts) == set(range(6))


def test_timeouts_and_refusals_are_logged(toy: Any, changed: Any, caplog: Any) -> None:
    grid = toy.grid()
    grid.nodes[1].delay = math.inf
    grid.nodes[4].tamper = lambda reply: (
        changed(reply, metrics={"eval_acc": math.nan})
        if "eval_acc" in reply.content["metrics"]
        else reply
    )
    toy.start(everyone(partition_ids=False), grid, 1)
    assert "1 clients did not answer in time (training)" in caplog.text
    assert "1 replies refused" in caplog.text
    assert "eval_acc must be finite" in caplog.text
