"""Checks of arrays and metrics, and the reports read from replies."""

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
    check_arrays,
)
from adcs.federated.replies import is_statistic, usual_layout

CHECKS = ReplyChecks("num-examples", "train_loss")
MODEL = SentModel({"w": np.zeros(3)})
METRICS = {"train_loss": 0.5, "num-examples": 4}


def read(replies: dict[Any, Any], purpose: Purpose, **options: Any) -> tuple[Any, RoundRecord]:
    record = RoundRecord()
    usable = ReplyReader(CHECKS).read(purpose, replies, record, **{"sketch": None, **options})
    return usable, record


@pytest.mark.parametrize(
    ("key", "statistic"),
    [
        ("bn1.running_mean", True),
        ("layer1.0.bn2.running_var", True),
        ("bn1.num_batches_tracked", True),
        ("batch_normalization/moving_variance:0", True),
        ("running_mean", True),
        ("bn1.weight", False),
        ("running_mean.weight", False),
        ("layer.3.bias", False),
    ],
)
def test_statistics_are_recognised_by_name(key: str, statistic: bool) -> None:
    assert is_statistic(key) is statistic


def test_serialised_objects_may_change_their_length() -> None:
    """Tree strategies send the bytes of a model, in an array of uint8."""
    model = SentModel({"trees": np.zeros(0, np.uint8)})
    trees = np.frombuffer(b"trees", np.uint8)
    np.testing.assert_array_equal(check_arrays({"trees": trees}, model)["trees"], trees)
    assert model.keys == ()
    with pytest.raises(ValueError, match="must be of uint8, got float64"):
        check_arrays({"trees": np.zeros(3)}, model)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_updates_are_exact_in_every_precision(dtype: Any) -> None:
    sent = np.array([1.0, 2.0, -3.0], dtype)
    model = SentModel({"w": sent})
    [update] = model.update({"w": (sent + np.array([0.5, 0.25, -1.0], dtype)).astype(dtype)})
    assert update.dtype == max(np.dtype(dtype), np.dtype(np.float32))
    assert update.tolist() == [0.5, 0.25, -1.0]


def test_arrays_are_converted_to_the_models_precision_in_the_reply() -> None:
    reply = PlainReply({"w": np.ones(3, np.float16)}, METRICS)
    usable, record = read({7: reply}, Purpose("training", 2, MODEL))
    assert reply.arrays(MODEL)["w"].dtype == np.float64
    assert usable.trained == {7: reply}
    [report] = usable.reports
    assert (report.client, report.server_round, report.loss, report.examples) == (7, 2, 0.5, 4)
    assert report.norm == pytest.approx(np.sqrt(3))
    assert not record.refused


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"v": np.ones(3)}, r"must have the model's keys, got without \['w'\] and with \['v'\]"),
        ({"w": np.ones(4)}, r"array 'w' must have shape \(3,\), got \(4,\)"),
        ({"w": np.ones(3, int)}, "array 'w' must be of float64, got int64"),
        ({"w": np.full(3, np.nan)}, "array 'w' must be finite and at most 1e.30, got nan"),
        ({"w": np.zeros(3)}, "update must have a direction, got all zeros"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(arrays: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_arrays(arrays, MODEL)


def test_an_integer_counter_may_come_back_as_an_average() -> None:
    model = SentModel({"w": np.zeros(3), "n": np.array(2.5)}, keys=("w",))
    assert model.keys == ("w",)
    checked = check_arrays({"w": np.ones(3), "n": np.array(3)}, model)
    assert checked["n"] == 3


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
