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
