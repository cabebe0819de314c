"""The model that was sent, its updates, and the arrays that a reply may carry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adcs.federated import SentModel, check_arrays
from adcs.federated.messages import is_statistic

MODEL = SentModel({"w": np.zeros(3)})


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
