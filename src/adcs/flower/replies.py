"""Reading replies: the update in them, and why one cannot be used.

Replies are claims of strangers, and one bad reply would end or poison a run: Flower averages a
NaN, and raises on a wrong key. Each reader here raises a ValueError that says in one sentence
what is wrong with a reply; the rest of the round goes on.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from adcs.reports.report import MAX_VALUE

Arrays = dict[str, NDArray[Any]]

_STATISTIC = re.compile(
    r"(^|[./_])(running_mean|running_var|num_batches_tracked|moving_mean|moving_variance)(:\d+)?$"
)


def is_statistic(key: str) -> bool:
    """Return whether an array, by its name, is a normalisation statistic, not a parameter.

    >>> is_statistic("layer1.0.bn1.running_mean"), is_statistic("layer1.0.bn1.weight")
    (True, False)
    """
    return _STATISTIC.search(key) is not None


class Model:
    """The model that was sent in a round, and what of it makes up the update.

    Parameters
    ----------
    content
        The content of a training message.
    patterns
        Shell patterns of the arrays that the update is made of; None takes all floating-point
        arrays but normalisation statistics, which would drown the rest.
    keys
        The arrays that made up the update in earlier rounds. Averaging turns whole numbers into
        floating-point ones, and they would join it.

    Attributes
    ----------
    keys, patterns
        The arrays that the update is made of, and the patterns by which a client finds them.

    Examples
    --------
    >>> sent = ArrayRecord({"w": Array(np.zeros(2)), "bn.running_mean": Array(np.ones(2))})
    >>> Model(RecordDict({"arrays": sent})).keys
    ('w',)
    """

    def __init__(
        self,
        content: RecordDict,
        patterns: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
    ) -> None:
        names = [name for name, record in content.items() if isinstance(record, ArrayRecord)]
        if not names:
            raise ValueError("a training message must carry an ArrayRecord, got none")
        self.name = names[0]
        self.arrays: Arrays = {
            key: array.numpy() for key, array in model_record(content, self.name).items()
        }
        floating = [key for key, array in self.arrays.items() if array.dtype.kind == "f"]
        if patterns is None:
            self.keys = tuple(key for key in floating if not is_statistic(key))
        else:
            self.keys = tuple(
                key for key in floating if any(fnmatchcase(key, pattern) for pattern in patterns)
            )
            if not self.keys:
                raise ValueError(
                    f"arrays must name floating-point arrays of the model, got {list(patterns)} "
                    f"for a model of {floating}"
                )
        self.patterns = None if patterns is None else tuple(patterns)
        if keys is not None and set(keys) < set(self.keys):
            self.keys, self.patterns = tuple(keys), tuple(escape(key) for key in keys)
        self.width = sum(self.arrays[key].size for key in self.keys)
        self.blank = not any(self.arrays[key].any() for key in floating)

    def update(self, arrays: Arrays) -> list[NDArray[Any]]:
        """Return reply minus sent, one array for each of `keys`."""
        return [
            np.subtract(
                arrays[key],
                self.arrays[key],
                dtype=np.result_type(arrays[key], self.arrays[key], np.float32),
            )
            for key in self.keys
        ]


def model_record(content: RecordDict, name: str) -> ArrayRecord:
    """Return the ArrayRecord of that name, else the first one."""
    record = content.get(name)
    if isinstance(record, ArrayRecord):
        return record
    for other in content.values():
        if isinstance(other, ArrayRecord):
            return other
    raise ValueError("reply must carry an ArrayRecord, got none")


def read_arrays(record: ArrayRecord, model: Model) -> Arrays:
    """Return a reply's arrays, which must be those of the model, finite and not all zero.

    Floating-point arrays of another precision than was sent are turned into that, in the record
    too: one client's float16 would make the average float16.
    """
    missing, extra = set(model.arrays) - set(record), set(record) - set(model.arrays)
    if missing or extra:
        raise ValueError(
            "arrays must have the model's keys, got "
            + " and ".join(
                f"{what} {sorted(keys)[:3]}"
                for what, keys in (("without", missing), ("with", extra))
                if keys
            )
        )
    arrays: Arrays = {}
    for key, sent in model.arrays.items():
        values = arrays[key] = _read_array(key, record[key], sent, key in model.keys)
        if values.dtype != sent.dtype and values.dtype.kind == sent.dtype.kind == "f":
            arrays[key] = values.astype(sent.dtype)
            record[key] = Array(arrays[key])
    floating = [key for key, array in arrays.items() if array.dtype.kind == "f"]
    if floating and not model.blank and not any(arrays[key].any() for key in floating):
        raise ValueError("arrays must not all be zero")
    if floating and all(np.array_equal(arrays[key], model.arrays[key]) for key in floating):
        raise ValueError("update must have a direction, got all zeros")
    return arrays


def _read_array(key: str, array: Array, sent: NDArray[Any], parameter: bool) -> NDArray[Any]:
    # Whole bytes are a serialised object, such as trees, whose length may change.
    fixed = sent.dtype != np.uint8
    if fixed and tuple(array.shape) != sent.shape:
        raise ValueError(f"array {key!r} must have shape {sent.shape}, got {tuple(array.shape)}")
    try:
        values = array.numpy()
    except Exception as error:  # np.load raises many kinds on foreign bytes
        raise ValueError(f"array {key!r} cannot be read: {str(error)[:80]}") from error
    kind, wanted = values.dtype.kind, sent.dtype.kind
    # Counters are whole numbers at a client and floating-point ones once they are averaged.
    alike = fixed and not parameter and kind in "fiu" and wanted in "fiu"
    if not (alike or kind == wanted):
        raise ValueError(f"array {key!r} must be of {sent.dtype}, got {array.dtype[:40]}")
    if fixed and values.shape != sent.shape:
        raise ValueError(f"array {key!r} must have shape {sent.shape}, got {values.shape}")
    if values.dtype.kind == "f" and values.size:
        peak = float(np.abs(values).max())
        if not peak <= MAX_VALUE:
            raise ValueError(f"array {key!r} must be finite and at most {MAX_VALUE:g}, got {peak}")
    return values


@dataclass(frozen=True)
class ReplyChecks:
    """What a reply's metrics must hold.

    Attributes
    ----------
    weight_key
        The number of examples, which the strategy weights by; None if it has no such key.
    loss_key
        The loss that the scheduler is told; a reply may lack it.
    needed_loss_key
        A loss that the strategy itself computes with, which no reply may lack.
    max_examples
        The most examples that a client may claim.
    """

    weight_key: str | None
    loss_key: str
    needed_loss_key: str | None = None
    max_examples: float = 1e7

    def without_losses(self) -> ReplyChecks:
        """Return the rules for replies other than to training."""
        return ReplyChecks(self.weight_key, "", None, self.max_examples)


def metrics_of(content: RecordDict) -> dict[str, Any]:
    """Return the metrics of a content, all MetricRecords together.

    >>> metrics_of(RecordDict({"metrics": MetricRecord({"train_loss": 0.5})}))
    {'train_loss': 0.5}
    """
    return {
        key: value
        for record in content.values()
        if isinstance(record, MetricRecord)
        for key, value in record.items()
    }


def check_records(content: RecordDict, rules: ReplyChecks, *, arrays: bool) -> None:
    """Raise unless there is one record of each kind, as strategies with a weight key demand."""
    if rules.weight_key is None:
        return
    for kind in (ArrayRecord, MetricRecord) if arrays else (MetricRecord,):
        count = sum(isinstance(record, kind) for record in content.values())
        if count != 1:
            raise ValueError(f"reply must have one {kind.__name__}, got {count}")


def check_metrics(metrics: Mapping[str, Any], rules: ReplyChecks) -> None:
    """Raise if the number of examples or a loss would end or poison the aggregation.

    >>> check_metrics({"num-examples": -5}, ReplyChecks("num-examples", "train_loss"))
    Traceback (most recent call last):
    ...
    ValueError: num-examples must lie between 0 (not included) and 1e+07, got -5
    """
    key = rules.weight_key
    if key is not None:
        examples = _number(metrics, key)
        if not 0 < examples <= rules.max_examples:
            raise ValueError(
                f"{key} must lie between 0 (not included) and {rules.max_examples:g}, "
                f"got {examples:g}"
            )
    if rules.loss_key in metrics:
        _loss(metrics, rules.loss_key)
    if rules.needed_loss_key is not None and _loss(metrics, rules.needed_loss_key) < 0:
        raise ValueError(
            f"{rules.needed_loss_key} must not be negative, got {metrics[rules.needed_loss_key]:g}"
        )


def _number(metrics: Mapping[str, Any], key: str) -> float:
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"metrics must hold a number {key}, got {value!r}"[:120])
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _loss(metrics: Mapping[str, Any], key: str) -> float:
    loss = _number(metrics, key)
    if not abs(loss) <= MAX_VALUE:
        raise ValueError(f"{key} must be finite and at most {MAX_VALUE:g}, got {loss:g}")
    return loss


def check_finite(metrics: Mapping[str, Any]) -> None:
    """Raise if any metric is NaN, infinite or absurd.

    >>> check_finite({"eval_acc": float("nan")})
    Traceback (most recent call last):
    ...
    ValueError: eval_acc must be finite and at most 1e+30, got nan
    """
    for key, value in metrics.items():
        for number in value if isinstance(value, list) else [value]:
            if not abs(number) <= MAX_VALUE:
                raise ValueError(f"{key} must be finite and at most {MAX_VALUE:g}, got {number}")


Layout = tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...]


def layout(content: RecordDict) -> Layout:
    """Return names, kinds and keys of a reply's records, and the lengths of its lists.

    >>> layout(RecordDict({"metrics": MetricRecord({"num-examples": 3})}))
    (('metrics', 'MetricRecord', (('num-examples', -1),)),)
    """
    return tuple(
        (
            name,
            type(record).__name__,
            tuple(
                sorted(
                    (key, len(value) if isinstance(value, list) else -1)
                    for key, value in record.items()
                )
            ),
        )
        for name, record in sorted(content.items())
        if isinstance(record, (ArrayRecord, MetricRecord))
    )


def usual_layout(layouts: Sequence[Layout], last: Layout | None) -> Layout:
    """Return the layout that most replies have; on a tie, the last round's, else the fullest."""
    votes = Counter(layouts)
    return max(votes, key=lambda one: (votes[one], one == last, len(str(one)), str(one)))
