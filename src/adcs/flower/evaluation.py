"""How the worst-off clients fare, from the evaluation replies that Flower collects anyway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from adcs.metrics import worst_share


def per_client(
    metrics: Mapping[Any, Mapping[str, Any]], skip: str | None
) -> dict[str, dict[Any, float]]:
    """Return each single-valued metric by client, without the number of examples.

    >>> per_client({7: {"eval_acc": 0.5, "num-examples": 10}}, skip="num-examples")
    {'eval_acc': {7: 0.5}}
    """
    values: dict[str, dict[Any, float]] = {}
    for client, reported in metrics.items():
        for key, value in reported.items():
            if key != skip and not isinstance(value, list):
                values.setdefault(key, {})[client] = float(value)
    return values


def summarise(key: str, values: Iterable[float]) -> dict[str, float]:
    """Return worst, worst20 (mean over the worst 20 %), average and std over clients.

    Of a metric with "loss" in its name, larger is worse.

    >>> summarise("eval_loss", [0.5, 1.5])
    {'worst': 1.5, 'worst20': 1.5, 'average': 1.0, 'std': 0.5}
    """
    array = np.array(list(values), dtype=np.float64)
    sign = -1.0 if "loss" in key.lower() else 1.0
    return {
        "worst": sign * float((sign * array).min()),
        "worst20": sign * worst_share(sign * array),
        "average": float(array.mean()),
        "std": float(array.std()),
    }


def add_summaries(record: MetricRecord, values: Mapping[str, Mapping[Any, float]]) -> None:
    """Add worst, worst20 and average of each metric to Flower's aggregated metrics.

    >>> record = MetricRecord({"eval_acc": 0.6})
    >>> add_summaries(record, {"eval_acc": {0: 0.5, 1: 1.0}})
    >>> record
    {'eval_acc': 0.6, 'eval_acc-worst': 0.5, 'eval_acc-worst20': 0.5, 'eval_acc-average': 0.75}
    """
    for key, by_client in values.items():
        summary = summarise(key, by_client.values())
        for name in ("worst", "worst20", "average"):
            record[f"{key}-{name}"] = summary[name]
