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
        ("a", "array 'w' must be finite and at most 1e+30, got inf"),
    ]


def test_a_reply_with_other_metrics_than_most_is_refused() -> None:
    replies = {
        client: PlainReply({"w": np.full(3, 1.0 + client)}, METRICS | extra)
        for client, extra in enumerate([{}, {"other": 1.0}, {}])
    }
    usable, record = read(replies, Purpose("training", 0, MODEL))
    assert list(usable.trained) == [0, 2]
    [refused] = record.refused
    assert refused["client"] == 1
    assert refused["reason"].startswith("records must be those of the other replies, arrays (w), ")


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
    one = (("metrics", "MetricRecord", (("a", -1),)),)
    two = (("metrics", "MetricRecord", (("a", -1), ("b", 2))),)
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
