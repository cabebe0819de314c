"""Flower's messages as plain values."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from adcs.federated import Refused, SentModel
from adcs.flower import LocalGrid
from adcs.flower.transport import FlowerReply, new_message, read_arrays, sent_arrays, sent_bytes


@pytest.fixture(autouse=True)
def grid(toy: Any) -> LocalGrid:
    """Messages can be created only after a grid has set this process's identity."""
    return toy.grid()


def arrays(**values: np.ndarray) -> ArrayRecord:
    return ArrayRecord({key: Array(value) for key, value in values.items()})


def reply(**records: Any) -> FlowerReply:
    return FlowerReply(Message(RecordDict(records), 7, "train"))


def test_the_model_is_the_record_of_the_name_that_was_sent_else_the_first() -> None:
    content = RecordDict({"arrays": arrays(w=np.zeros(2)), "control": arrays(c=np.ones(3))})
    name, values = sent_arrays(content)
    assert (name, list(values)) == ("arrays", ["w"])
    with pytest.raises(ValueError, match="must carry an ArrayRecord, got none"):
        sent_arrays(RecordDict({"metrics": MetricRecord({"a": 1})}))
    model = SentModel(values, record_name="arrays")
    both = reply(control=arrays(c=np.ones(3)), arrays=arrays(w=np.ones(2)))
    assert list(both.arrays(model)) == ["w"]
    assert list(reply(other=arrays(w=np.ones(2))).arrays(model)) == ["w"]
    with pytest.raises(ValueError, match="reply must carry an ArrayRecord, got none"):
        reply(metrics=MetricRecord({"a": 1})).arrays(model)


def test_a_header_with_a_false_shape_is_refused() -> None:
    record = arrays(w=np.ones(4))
    record["w"].shape = (3,)
    with pytest.raises(ValueError, match=r"shape of its header \(3,\), got \(4,\)"):
        read_arrays(record)


def test_layouts_differ_by_arrays_and_metrics_by_the_lengths_of_lists() -> None:
    replies = [
        reply(metrics=MetricRecord(values))
        for values in ({"a": 1}, {"a": 1, "b": [1.0, 2.0]}, {"a": 1, "b": [1.0]})
    ]
    assert {each.layout for each in replies} == {(("metrics", "MetricRecord", ()),)}
    assert len({each.metric_keys for each in replies}) == 3
    assert reply(arrays=arrays(w=np.ones(2))).layout == (("arrays", "ArrayRecord", ("w",)),)


def array_of(claimed: tuple[int, ...], held: int, dtype: str = "<i8") -> Array:
    """Return an array whose bytes claim another shape than they hold."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": claimed}
    )
    return Array("int64", claimed, "numpy.ndarray", file.getvalue() + bytes(held))


@pytest.mark.parametrize("dtype", ["<i8", "<f4", "|u1", "<c16"])
def test_sizes_of_arrays_are_checked_before_they_are_read(dtype: str) -> None:
    for record in (
        ArrayRecord({"w": array_of((10**12,), 16, dtype)}),
        ArrayRecord({"w": array_of((1,), 10**6, dtype)}),
    ):
        with pytest.raises(Refused, match=r"array 'w' declares \d+ bytes, but the reply holds"):
            reply(other=record).check_sizes(SentModel({"w": np.zeros(2)}))
    trees = SentModel({"w": np.zeros(8, np.uint8)})
    reply(other=arrays(w=np.zeros(10**6, np.uint8))).check_sizes(trees)
    with pytest.raises(Refused, match="at most 67108896 bytes"):
        reply(other=arrays(w=np.zeros(65 * 2**20, np.uint8))).check_sizes(trees)


def test_many_metrics_and_records_are_refused() -> None:
    many = MetricRecord({f"m{i}": 1.0 for i in range(1001)})
    with pytest.raises(Refused, match="at most 1000 metrics, got 1001"):
        reply(metrics=many).check_sizes(None)
    with pytest.raises(Refused, match="at most 64 records, got 65"):
        reply(**{f"r{i}": MetricRecord() for i in range(65)}).check_sizes(None)
    with pytest.raises(Refused, match="at most 100000 numbers, got 100001"):
        reply(metrics=MetricRecord({"m": [1.0] * 100_001})).check_sizes(None)


def test_changes_are_made_in_a_copy_of_the_content() -> None:
    metrics, model = MetricRecord({"n": 5}), arrays(w=np.ones(2), v=np.ones(1))
    one = reply(arrays=model, metrics=metrics)
    one.replace_metric("n", 10.0)
    one.replace_arrays({"w": np.zeros(2)}, SentModel({}, record_name="arrays"))
    assert one.metrics == {"n": 10.0}
    assert one.message.content["arrays"]["w"].numpy().tolist() == [0.0, 0.0]
    assert one.message.content["arrays"]["v"].numpy().tolist() == [1.0]
    assert metrics["n"] == 5
    assert model["w"].numpy().tolist() == [1.0, 1.0]


def test_a_new_message_has_the_content_and_metadata_of_the_old_one() -> None:
    old = Message(RecordDict({"c": ConfigRecord({"lr": 0.1})}), 9, "train.x", ttl=50, group_id="3")
    new = new_message(old)
    assert new is not old
    assert new.content is old.content
    for name in ("dst_node_id", "message_type", "ttl", "group_id"):
        assert getattr(new.metadata, name) == getattr(old.metadata, name)


def test_each_message_counts_though_contents_are_shared() -> None:
    content = RecordDict({"c": ConfigRecord({"lr": 0.1, "name": "abc", "steps": [1, 2]})})
    assert sent_bytes([Message(content, node, "train") for node in (7, 8)]) == 2 * (10 + 7 + 21)
