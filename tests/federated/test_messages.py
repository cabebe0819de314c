"""The model that was sent, its updates, and the arrays that a reply may carry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs.federated import CHECKS, Refused, SentModel, check_arrays, clean_text
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


def test_an_unchanged_model_is_accepted_and_zeros_for_a_model_are_not() -> None:
    model = SentModel({"w": np.ones(3), "v": np.zeros(2)})
    assert list(check_arrays(model.arrays, model)) == ["w", "v"]
    with pytest.raises(Refused, match="arrays must not all be zero"):
        check_arrays({"w": np.zeros(3), "v": np.zeros(2)}, model)
    # A part that was zero when it was sent is unchanged.
    assert list(check_arrays({"v": np.zeros(2)}, model, CHECKS.keys() - {"missing"})) == ["v"]


def test_each_check_can_be_switched_off() -> None:
    model = SentModel({"w": np.ones(3), "v": np.ones(2)})
    cases = {
        "missing": {"w": np.ones(3)},
        "extra": {"w": np.ones(3), "v": np.ones(2), "u": np.ones(1)},
        "shapes": {"w": np.ones(4), "v": np.ones(2)},
        "values": {"w": np.full(3, np.nan), "v": np.ones(2)},
        "zeros": {"w": np.zeros(3), "v": np.zeros(2)},
    }
    for check, arrays in cases.items():
        with pytest.raises(Refused) as refused:
            check_arrays(arrays, model)
        assert refused.value.check == check
        assert f"leave {check!r} out of checks=" in refused.value.remedy
        assert list(check_arrays(arrays, model, CHECKS.keys() - {check})) == list(arrays)


def test_the_update_is_over_the_arrays_that_came_back() -> None:
    model = SentModel({"base": np.ones(3), "adapter": np.zeros(2)})
    assert [u.tolist() for u in model.update({"adapter": np.array([1.0, 2.0])})] == [[1.0, 2.0]]


@given(text=st.text(max_size=500), limit=st.integers(60, 300))
def test_text_of_clients_is_one_printable_line_of_bounded_length(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert cleaned.isprintable()
    if text.isprintable() and len(text) <= limit:
        assert cleaned == text


def test_numbers_that_do_not_fit_into_the_models_precision_are_refused() -> None:
    half = SentModel({"w": np.zeros(3, np.float16)})
    checked = check_arrays({"w": np.array([1.0, 2.0, 65504.0])}, half)
    assert checked["w"].tolist() == [1.0, 2.0, 65504.0]
    with pytest.raises(Refused, match="array 'w' must fit into float16, got 70000") as refused:
        check_arrays({"w": np.array([1.0, -70000.0, 2.0])}, half)
    assert refused.value.check == "values"
    assert (check_arrays({"w": np.full(3, 1e6)}, half, {"shapes"})["w"] == 1e6).all()


@pytest.mark.parametrize("reply", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sent", [np.float16, np.float32, np.float64])
def test_nothing_of_a_reply_is_cut_to_less_than_float32(sent: Any, reply: Any) -> None:
    """More would become the precision of all clients, since averages have the largest."""
    values = np.array([1.0 + np.finfo(reply).eps], reply)
    checked = check_arrays({"w": values}, SentModel({"w": np.zeros(1, sent)}))["w"]
    precision = np.promote_types(sent, np.float32 if sent != reply else reply)
    assert checked.dtype == precision
    assert checked == values.astype(precision)
