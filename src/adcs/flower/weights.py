"""A cohort's weights, in the terms of the strategy that aggregates.

Flower's strategies average by the metric under `weighted_by_key`: sum n x / sum n. Weights w
multiply that metric, in a copy. What they then compute, sum n w x / sum n w, is what a cohort with
`normalise=True` asks for. For `normalise=False` the update is to be sum p w g with p = n / (sum n
over all clients), which is the same average times s = sum p w over the cohort; so every reply
moves to (model sent) + s (reply - model sent) first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    QFedAvg,
    Strategy,
)

from adcs._types import ClientId
from adcs.flower.replies import Model, model_record
from adcs.schedulers.base import Cohort

UNWEIGHTED = (Bulyan, FedMedian, FedTrimmedAvg, FedXgbBagging, FedXgbCyclic, Krum, QFedAvg)
"""Flower's strategies that aggregate without weights, or by weights of their own."""


def innermost(strategy: Strategy) -> Strategy:
    """Return the strategy that others (differential privacy) are wrapped around."""
    while isinstance(inner := getattr(strategy, "strategy", None), Strategy):
        strategy = inner
    return strategy


def uses_weights(strategy: Strategy) -> bool:
    """Return whether the strategy averages models by its `weighted_by_key`.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> uses_weights(FedAvg()), uses_weights(QFedAvg(client_learning_rate=0.1))
    (True, False)
    """
    inner = innermost(strategy)
    return hasattr(inner, "weighted_by_key") and not isinstance(inner, UNWEIGHTED)


def is_plain(cohort: Cohort) -> bool:
    """Return whether the strategy's own average is what the cohort asks for.

    >>> is_plain(Cohort.of([1, 2]))
    True
    """
    return cohort.normalise and len(set(cohort.weights)) <= 1


def weigh(
    strategy: Strategy,
    cohort: Cohort,
    replies: Mapping[ClientId, Message],
    model: Model,
    weight_key: str | None,
    known: Mapping[ClientId, float],
    clients: Collection[ClientId],
) -> bool:
    """Change the replies' contents so that the strategy's average is the cohort's update.

    Parameters
    ----------
    strategy
        The strategy that will aggregate.
    cohort
        The cohort, with its weights.
    replies
        The replies to aggregate; their contents are replaced by changed copies.
    model
        The model that was sent.
    weight_key
        The strategy's `weighted_by_key`.
    known
        The numbers of examples that clients have told.
    clients
        All that could have been chosen; who has not told its size counts as an average one.

    Returns
    -------
    bool
        False if the cohort has weights and the strategy takes none.
    """
    if not replies or is_plain(cohort):
        return True
    if weight_key is None or not uses_weights(strategy):
        return False
    weight = dict(zip(cohort.clients, cohort.weights, strict=True))
    scale = 1.0
    if not cohort.normalise:
        told = [known[client] for client in clients if client in known]
        mean = sum(told) / len(told) if told else 1.0
        total = sum(known.get(client, mean) for client in clients)
        scale = sum(known.get(client, mean) * weight[client] for client in replies) / total
    for client, message in replies.items():
        content = RecordDict(dict(message.content.items()))
        for name, record in message.content.items():
            if isinstance(record, MetricRecord) and weight_key in record:
                weighted = record.copy()
                weighted[weight_key] = float(record[weight_key]) * weight[client]  # type: ignore[arg-type]
                content[name] = weighted
            elif scale != 1.0 and record is model_record(message.content, model.name):
                content[name] = _moved(record, model, scale)
        message.content = content
    return True


def _moved(record: ArrayRecord, model: Model, scale: float) -> ArrayRecord:
    moved = record.copy()
    for key, sent in model.arrays.items():
        if sent.dtype.kind == "f":
            values = record[key].numpy()
            # Python's scale keeps a float32 model float32.
            moved[key] = Array(np.asarray(sent + scale * (values - sent), dtype=values.dtype))
    return moved
