"""Replies of NVFlare's clients: whole models and differences, hostile contents, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adcs.federated import Purpose, ReplyChecks, ReplyReader, RoundRecord, SentModel
from adcs.nvflare.replies import WEIGHT_KEY, FlareReply, read_metrics

MODEL = SentModel({"w": np.array([1.0, 2.0], dtype=np.float32), "b": np.zeros(1)})
GOOD = {"w": np.array([3.0, 3.0], dtype=np.float32), "b": np.ones(1)}


def read(replies: dict[Any, FlareReply], model: SentModel = MODEL) -> tuple[list[Any], list[Any]]:
    record = RoundRecord()
    checks = ReplyChecks(WEIGHT_KEY, "loss", equal_metrics=False)
    purpose = Purpose("training", 0, model)
    usable = ReplyReader(checks).read(purpose, replies, record, sketch=None)
    return list(usable.trained), [entry["reason"] for entry in record.refused]


def test_a_difference_is_the_model_that_it_makes() -> None:
    params = {"w": np.array([2.0, 1.0], dtype=np.float32), "b": np.ones(1)}
    reply = FlareReply(params, is_diff=True)
    assert {key: list(value) for key, value in reply.arrays(MODEL).items()} == {
        key: list(value) for key, value in GOOD.items()
    }
    assert reply.params["w"] is params["w"], "what NVFlare averages is what was sent"
    reply.replace_arrays({"w": np.zeros(2)}, MODEL)
    assert list(reply.params["w"]) == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({**GOOD, "w": np.full(2, np.nan, dtype=np.float32)}, "must be finite"),
        ({**GOOD, "w": np.ones(1, dtype=np.float32)}, "must have shape (2,), got (1,)"),
        ({"b": np.ones(1)}, "without ['w']"),
        ({**GOOD, "more": np.ones(1)}, "with ['more']"),
        ({**GOOD, "w": [1.0, 2.0]}, "must be a NumPy array, got list"),
        ({**GOOD, "w": np.array([1.0, "x"], dtype=object)}, "must be a NumPy array, got object"),
        ({3: np.ones(2)}, "names of parameters must be strings, got 3"),
        ([1.0], "params must be a dict of NumPy arrays, got list"),
        (None, "reply must carry arrays, got none"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("is_diff", [False, True], ids=["whole", "difference"])
def test_hostile_parameters_are_refused(params: Any, reason: str, is_diff: bool) -> None:
    sites = {"site-1": FlareReply(GOOD, is_diff=is_diff), "site-2": FlareReply(GOOD)}
    sites["site-2"] = FlareReply(params, is_diff=is_diff)
    trained, refused = read(sites)
    assert trained == ["site-1"]
    assert reason in refused[0]


@pytest.mark.parametrize("steps", [0, -3, float("nan"), float("inf"), "many", True, None, 1e9])
def test_hostile_numbers_of_steps_are_refused(steps: Any) -> None:
    sites = {f"site-{i}": FlareReply(GOOD, meta={WEIGHT_KEY: 10}) for i in range(4)}
    sites["site-9"] = FlareReply(GOOD, meta={WEIGHT_KEY: steps})
    trained, refused = read(sites)
    assert "site-9" not in trained
    assert WEIGHT_KEY in refused[0]


def test_whole_models_and_differences_do_not_mix() -> None:
    sites = {"site-1": FlareReply(GOOD), "site-2": FlareReply(GOOD), "site-3": FlareReply(GOOD)}
    sites["site-3"].is_diff = True
    trained, refused = read(sites)
    assert trained == ["site-1", "site-2"]
    assert "records must be those of the other replies" in refused[0]


def test_a_reply_without_steps_has_the_weight_of_fedavg() -> None:
    assert FlareReply(GOOD).metrics == {WEIGHT_KEY: 1.0}
    assert FlareReply(GOOD, {WEIGHT_KEY: 10**9}).metrics[WEIGHT_KEY] == 1.0, "a metric is none"


NUMBERS = st.one_of(st.integers(-(10**9), 10**9), st.floats(), st.booleans())
VALUES: Any = st.recursive(
    NUMBERS | st.text(max_size=5) | st.none() | hnp.arrays(np.float64, st.integers(0, 4)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4) | st.integers(), VALUES, max_size=6))
def test_metrics_are_numbers_and_lists_of_numbers(metrics: Any) -> None:
    for key, value in read_metrics(metrics).items():
        assert isinstance(key, str)
        flat = value if isinstance(value, list) else [value]
        assert all(isinstance(each, (int, float)) for each in flat)
