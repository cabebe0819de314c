"""What is read from a reply, and what two replies have in common."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from adcs.flower.replies import Model, is_statistic, layout, read_arrays, usual_layout


def record(**arrays: np.ndarray) -> ArrayRecord:
    return ArrayRecord({key: Array(array) for key, array in arrays.items()})


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
def test_statistics_are_known_by_name(key: str, statistic: bool) -> None:
    assert is_statistic(key) is statistic


def test_serialised_objects_may_change_their_length() -> None:
    """Tree strategies send the bytes of a model, in an array of uint8."""
    model = Model(RecordDict({"arrays": record(trees=np.zeros(0, np.uint8))}))
    trees = np.frombuffer(b"trees", np.uint8)
    np.testing.assert_array_equal(read_arrays(record(trees=trees), model)["trees"], trees)
    assert model.keys == ()
    with pytest.raises(ValueError, match="must be of uint8, got float64"):
        read_arrays(record(trees=np.zeros(3)), model)


def test_updates_are_exact_in_every_precision() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        sent = np.array([1.0, 2.0, -3.0], dtype)
        model = Model(RecordDict({"arrays": record(w=sent)}))
        [update] = model.update({"w": (sent + np.array([0.5, 0.25, -1.0], dtype)).astype(dtype)})
        assert update.dtype == max(np.dtype(dtype), np.dtype(np.float32))
        assert update.tolist() == [0.5, 0.25, -1.0]


def test_the_model_is_the_record_of_the_same_name_else_the_first() -> None:
    content = RecordDict({"arrays": record(w=np.zeros(2)), "control": record(c=np.ones(3))})
    assert Model(content).keys == ("w",)
    with pytest.raises(ValueError, match="must carry an ArrayRecord, got none"):
        Model(RecordDict({"metrics": MetricRecord({"a": 1})}))


def test_a_header_that_lies_about_its_shape_is_refused() -> None:
    model = Model(RecordDict({"arrays": record(w=np.zeros(3))}))
    lie = Array(np.ones(4))
    lie.shape = (3,)
    with pytest.raises(ValueError, match=r"must have shape \(3,\), got \(4,\)"):
        read_arrays(ArrayRecord({"w": lie}), model)


def test_most_replies_decide_what_a_reply_looks_like() -> None:
    one = layout(RecordDict({"metrics": MetricRecord({"a": 1})}))
    two = layout(RecordDict({"metrics": MetricRecord({"a": 1, "b": [1.0, 2.0]})}))
    longer = layout(RecordDict({"metrics": MetricRecord({"a": 1, "b": [1.0]})}))
    assert two != longer
    assert usual_layout([two, one, one], last=two) == one
    assert usual_layout([one, two], last=one) == one
    assert usual_layout([one, two], last=None) == usual_layout([two, one], last=None) == two
