"""The reports that are read from replies, and the replies that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adcs import Sketcher
from adcs.federated import (
    PlainReply,
    Purpose,
    ReplyChecks,
    ReplyReader,
    RoundRecord,
    SentModel,
)
from adcs.federated.replies import usual_layout

CHECKS = ReplyChecks("num-examples", "train_loss")
MODEL = SentModel({"w": np.zeros(3)})
METRICS = {"train_loss": 0.5, "num-examples": 4}


def read(replies: dict[Any, Any], purpose: Purpose, **options: Any) -> tuple[Any, RoundRecord]:
    record = RoundRecord()
    usable = ReplyReader(CHECKS).read(purpose, replies, record, **{"sketch": None, **options})
    return usable, record


def test_arrays_are_converted_to_the_models_precision_in_the_reply() -> None:
    reply = PlainReply({"w": np.ones(3, np.float16)}, METRICS)
    usable, record = read({7: reply}, Purpose("training", 2, MODEL))
    assert reply.arrays(MODEL)["w"].dtype == np.float64
    assert usable.trained == {7: reply}
    [report] = usable.reports
    assert (report.client, report.server_round, report.loss, report.examples) == (7, 2, 0.5, 4)
    assert report.norm == pytest.approx(np.sqrt(3))
    assert not record.refused


def test_errors_and_refusals_are_recorded_individually() -> None:
    replies = {
        "b": PlainReply(error="error 2: out of memory"),
        "a": PlainReply({"w": np.full(3, np.inf)}, METRICS),
        3: PlainReply({"w": np.ones(3)}, {**METRICS, "num-examples": True}),
        2: PlainReply({"w": np.ones(3)}, METRICS),
        1: PlainReply({"w": -np.ones(3)}, METRICS),
    }
    usable, record = read(replies, Purpose("training", 0, MODEL))
    assert list(usable.trained) == [1, 2]
    assert [report.client for report in usable.reports] == [1, 2]
    assert record.failed == [
        {"client": "b", "stage": "training", "reason": "error 2: out of memory"}
    ]
    assert [(entry["client"], entry["reason"]) for entry in record.refused] == [
        (3, "metrics must hold a number num-examples, got True"),
        (
            "a",
            "array 'w' must be finite and at most 1e+30, got inf; "
            "to accept it, leave 'values' out of checks=",
        ),
    ]


def replies_with(*extras: dict[str, Any]) -> dict[Any, PlainReply]:
    return {
        client: PlainReply({"w": np.full(3, 1.0 + client)}, METRICS | extra)
        for client, extra in enumerate(extras)
    }


@pytest.mark.parametrize("extras", [({}, {"other": 1.0}, {}), ({"other": 1.0}, {})])
def test_metrics_that_not_all_replies_have_are_left_out(extras: Any) -> None:
    replies = replies_with(*extras)
    usable, record = read(replies, Purpose("training", 0, MODEL))
    assert list(usable.trained) == list(replies)
    assert all(reply.metrics == METRICS for reply in usable.trained.values())
    assert record.metrics_left_out == ["other"]
    assert not record.refused


def test_lists_of_other_lengths_are_left_out() -> None:
    replies = replies_with({"each": [1.0, 2.0]}, {"each": [1.0]})
    usable, record = read(replies, Purpose("training", 0, MODEL))
    assert [reply.metrics for reply in usable.trained.values()] == [METRICS, METRICS]
    assert record.metrics_left_out == ["each"]


def test_a_strategy_that_reads_metrics_needs_those_of_most_replies() -> None:
    checks = ReplyChecks("num-examples", "train_loss", reads_metrics=True)
    replies = replies_with({"a": 1.0}, {"a": 1.0}, {"a": 1.0}, {"a": 1.0, "b": 2.0}, {})
    record = RoundRecord()
    reader = ReplyReader(checks)
    usable = reader.read(Purpose("training", 0, MODEL), replies, record, sketch=None)
    assert list(usable.trained) == [0, 1, 2, 3]
    assert all(
        "a" in reply.metrics and "b" not in reply.metrics for reply in usable.trained.values()
    )
    [refused] = record.refused
    assert refused["reason"].startswith("metrics must be those of the other replies, got none of a")
    assert [report.client for report in usable.reports] == [0, 1, 2, 3]


def test_a_strategy_without_equal_metrics_gets_all_of_them() -> None:
    checks = ReplyChecks("num-examples", "train_loss", equal_metrics=False)
    replies = replies_with({}, {"other": 1.0})
    record = RoundRecord()
    ReplyReader(checks).read(Purpose("training", 0, MODEL), replies, record, sketch=None)
    assert replies[1].metrics == METRICS | {"other": 1.0}


def test_an_unchanged_model_trains_and_has_no_direction() -> None:
    model = SentModel({"w": np.ones(3)})
    usable, record = read(
        {7: PlainReply({"w": np.ones(3)}, METRICS)}, Purpose("training", 0, model)
    )
    assert list(usable.trained) == [7]
    [report] = usable.reports
    assert (report.loss, report.examples, report.vector) == (0.5, 4, None)
    assert not record.refused
    sketch = Sketcher(size=16)
    probe = Purpose("probe", 1, model, expects_answer=True, sketch=sketch)
    answer = {"loss": 0.5, "unchanged": True, "norm": 0.0, "seconds": 1.0}
    usable, record = read({7: PlainReply(answer=answer)}, probe)
    assert (usable.reports[0].loss, usable.reports[0].sketch) == (0.5, None)
    assert not record.refused


def test_the_number_of_examples_is_compared_with_the_median() -> None:
    replies = {
        client: PlainReply({"w": np.ones(3)}, {**METRICS, "num-examples": n})
        for client, n in enumerate([10, 12, 900, 10_000])
    }
    usable, record = read(replies, Purpose("training", 0, MODEL))
    assert list(usable.trained) == [0, 1, 2]
    [refused] = record.refused
    assert "and 1200, 100 times the median of the clients, got 10000" in refused["reason"]
    assert "set max_examples=" in refused["reason"]
    known = ReplyReader(CHECKS, {"a": 5e4, "b": 4e4, "c": 6e4, "d": 5e4})
    few = {client: replies[client] for client in (0, 3)}
    assert list(
        known.read(Purpose("training", 0, MODEL), few, RoundRecord(), sketch=None).trained
    ) == [0, 3]


def test_many_metrics_are_refused_before_they_are_read() -> None:
    many = PlainReply({"w": np.ones(3)}, {**METRICS, **{f"m{i}": 1.0 for i in range(2000)}})
    usable, record = read(
        {1: many, 2: PlainReply({"w": np.ones(3)}, METRICS)}, Purpose("training", 0, MODEL)
    )
    assert list(usable.trained) == [2]
    assert "reply must have at most 1000 metrics, got 2002" in record.refused[0]["reason"]


def test_text_of_clients_is_bounded_and_escaped() -> None:
    replies = {
        1: PlainReply(error="\x1b[2J\n" + "a" * 10**6),
        2: PlainReply(answer={"refused": "\n" * 999}),
    }
    probe = Purpose("probe", 1, MODEL, expects_answer=True)
    _, record = read(replies, probe)
    [failed], [refused] = record.failed, record.refused
    assert failed["reason"].startswith("\\x1b[2J\\na")
    assert failed["reason"].endswith("(1000005 characters)")
    for text in (failed["reason"], refused["reason"]):
        assert text.isprintable()
        assert len(text) <= 200


def test_an_answer_counts_only_where_one_was_expected() -> None:
    sketch = Sketcher(size=16)
    answer = {"sketch": sketch.sketch(np.ones(3)).encode(), "loss": 0.5, "seconds": 2.0}
    reply = PlainReply({"w": np.ones(3)}, METRICS, answer)
    probe = Purpose("probe", 1, MODEL, expects_answer=True, sketch=sketch)
    usable, _ = read({7: reply}, probe)
    assert usable.trained == {}
    [report] = usable.reports
    assert report.sketch is not None
    assert (report.loss, report.compute_seconds, report.norm) == (0.5, 2.0, None)
    usable, _ = read({7: reply}, Purpose("training", 1, MODEL))
    assert list(usable.trained) == [7]


def test_updates_are_left_out_of_reports_that_nobody_reads() -> None:
    reply = PlainReply({"w": np.ones(3)}, METRICS)
    usable, _ = read({7: reply}, Purpose("training", 0, MODEL), with_update=False)
    assert usable.reports[0].vector is None
    assert usable.reports[0].loss == 0.5


def test_most_replies_decide_the_usual_layout() -> None:
    one = (("arrays", "ArrayRecord", ("a",)),)
    two = (("arrays", "ArrayRecord", ("a", "b")),)
    assert usual_layout([two, one, one], last=two) == one
    assert usual_layout([one, two], last=one) == one
    assert usual_layout([one, two], last=None) == usual_layout([two, one], last=None) == two


def test_metrics_of_the_names_of_signals_are_read() -> None:
    signals = {
        "rms_loss": 0.7,
        "held_out_accuracy": 0.9,
        "label_counts": [3, -1, 5],
        "compute_seconds": 2.0,
        "communication_seconds": 1.0,
        "availability": 0.25,
    }
    reply = PlainReply({"w": np.ones(3)}, {**METRICS, **signals})
    usable, record = read({7: reply}, Purpose("training", 2, MODEL))
    [report] = usable.reports
    assert {name: getattr(report, name) for name in signals} == signals
    assert not record.refused


def test_the_last_array_is_the_output_bias_unless_a_metric_says_otherwise() -> None:
    model = SentModel({"w": np.zeros((2, 3)), "b": np.ones(2)})
    arrays = {"w": np.ones((2, 3)), "b": np.array([1.5, 0.0])}
    replies = {
        1: PlainReply(arrays, METRICS),
        2: PlainReply(arrays, {**METRICS, "output_bias_update": [9.0, 9.0]}),
    }
    for client, expected in ((1, [0.5, -1.0]), (2, [9.0, 9.0])):
        usable, _ = read({client: replies[client]}, Purpose("training", 0, model))
        assert list(usable.reports[0].output_bias_update) == expected
    usable, _ = read(
        {1: PlainReply({"w": np.ones((2, 3))}, METRICS)},
        Purpose("training", 0, SentModel({"w": np.zeros((2, 3))})),
    )
    assert usable.reports[0].output_bias_update is None


def test_an_evaluation_without_a_requested_signal_says_how_to_report_it() -> None:
    purpose = Purpose("probe", 0, signals=frozenset({"label_counts"}))
    replies = {
        1: PlainReply(metrics={"eval_loss": 0.3, "label_counts": [1, 2]}),
        2: PlainReply(metrics={"eval_loss": 0.3}),
        3: PlainReply(metrics={"label_counts": [1, float("nan")]}),
    }
    usable, record = read(replies, purpose)
    assert [(r.client, r.label_counts, r.loss) for r in usable.reports] == [(1, [1, 2], None)]
    reasons = {entry["client"]: entry["reason"] for entry in record.refused}
    assert reasons[2] == (
        "evaluate reply must have a metric 'label_counts' (the number of training examples of each "
        "class): return it from your evaluate handler, got ['eval_loss']"
    )
    assert "finite" in reasons[3]


def test_the_rms_loss_is_not_taken_for_the_loss() -> None:
    reply = PlainReply(metrics={"eval_loss": 0.3, "rms_loss": 0.5})
    usable, _ = read({1: reply}, Purpose("probe", 0))
    assert (usable.reports[0].loss, usable.reports[0].rms_loss) == (0.3, 0.5)
