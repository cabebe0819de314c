"""What travels beside Flower's own records: a probe's question, and its answer.

Both are a ConfigRecord of their own in a message's content, so that a user's records are left as
they are. The question makes a message of type `train` a probe; the mod takes it out before the
user's handler sees the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from adcs.reports.sketch import Sketcher

QUESTION = "adcs-question"
ANSWER = "adcs-answer"
VERSION = 1


@dataclass(frozen=True)
class Question:
    """What the mod is asked for.

    Attributes
    ----------
    partition
        True: the node's partition id, and nothing else.
    sketch
        How to sketch the update; None asks for its norm alone.
    loss_key, weight_key
        The names of the loss and of the number of examples in the handler's metrics.
    arrays
        Patterns of the arrays that the update is made of; None for all but statistics.

    Examples
    --------
    >>> question = Question(sketch=Sketcher(size=64), loss_key="train_loss")
    >>> Question.find(RecordDict({QUESTION: question.record()})) == question
    True
    """

    partition: bool = False
    sketch: Sketcher | None = None
    loss_key: str = ""
    weight_key: str = ""
    arrays: tuple[str, ...] | None = None

    def record(self) -> ConfigRecord:
        """Return the question as it travels."""
        record = ConfigRecord({"version": VERSION, "partition": self.partition})
        if self.partition:
            return record
        record["loss-key"] = self.loss_key
        record["weight-key"] = self.weight_key
        if self.arrays is not None:
            record["arrays"] = list(self.arrays)
        if self.sketch is not None:
            record["sketch-size"] = int(self.sketch.size)
            record["sketch-kind"] = self.sketch.kind
            record["sketch-dtype"] = self.sketch.dtype
            # Seeds go up to 2**64 - 1, Flower's integers to 2**63 - 1.
            record["sketch-seed"] = str(self.sketch.seed)
        return record

    @classmethod
    def find(cls, content: RecordDict) -> Question | None:
        """Return the question in a message's content, or None if the message is no probe."""
        record: Any = content.get(QUESTION)
        if record is None:
            return None
        if record["version"] != VERSION:
            raise ValueError(
                f"probe must be of version {VERSION}, got {record['version']}: "
                "server and client need the same version of adcs"
            )
        if record["partition"]:
            return cls(partition=True)
        sketch = None
        if "sketch-size" in record:
            sketch = Sketcher(
                size=record["sketch-size"],
                kind=record["sketch-kind"],
                dtype=record["sketch-dtype"],
                seed=int(record["sketch-seed"]),
            )
        arrays = tuple(record["arrays"]) if "arrays" in record else None
        return cls(False, sketch, record["loss-key"], record["weight-key"], arrays)


def find_answer(content: RecordDict) -> dict[str, Any] | None:
    """Return the mod's answer in a reply's content, or None if there is none.

    >>> find_answer(RecordDict({ANSWER: ConfigRecord({"norm": 2.0})}))
    {'norm': 2.0}
    """
    record = content.get(ANSWER)
    return dict(record.items()) if isinstance(record, ConfigRecord) else None


def size(content: RecordDict) -> int:
    """Return the bytes of a content: keys and values, without what transport adds.

    >>> size(RecordDict({"config": ConfigRecord({"lr": 0.1})}))
    10
    """
    total = 0
    for record in content.values():
        for key, value in record.items():
            total += len(key) + _width(value)
    return total


def _width(value: Any) -> int:
    if isinstance(value, list):
        return sum(_width(item) for item in value)
    if isinstance(value, (str, bytes)):
        return len(value)
    # An Array holds its serialised data; numbers travel in 64 bits.
    return len(value.data) if hasattr(value, "shape") else 8
