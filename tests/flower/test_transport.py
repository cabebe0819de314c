"""Flower's messages as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from adcs.federated import SentModel
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


def test_layouts_differ_by_keys_and_by_the_lengths_of_lists() -> None:
    layouts = [
        reply(metrics=MetricRecord(values)).layout
        for values in ({"a": 1}, {"a": 1, "b": [1.0, 2.0]}, {"a": 1, "b": [1.0]})
    ]
    assert len(set(layouts)) == 3
    assert layouts[0] == (("metrics", "MetricRecord", (("a", -1),)),)


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
