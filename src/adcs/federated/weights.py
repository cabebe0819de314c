"""A cohort's weights, applied to the replies that a strategy averages.

Strategies average by a metric, the number of examples n: sum n x / sum n. A cohort's weights w
multiply that metric. The result, sum n w x / sum n w, is the update of a cohort with
`normalise=True`. With `normalise=False` the update is sum p w g, where p = n / (sum of n over all
clients). That is the same average times s = sum p w over the cohort, so each reply is first
replaced by (model sent) + s (reply - model sent).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from adcs._types import ClientId
from adcs.federated.replies import Arrays, ClientReply, SentModel
from adcs.schedulers.base import Cohort


def has_weights(cohort: Cohort) -> bool:
    """Return whether the cohort's update differs from the strategy's own average.

    >>> has_weights(Cohort.of([1, 2])), has_weights(Cohort((1, 2), (1.0, 3.0)))
    (False, True)
    """
    return not cohort.normalise or len(set(cohort.weights)) > 1


def apply_weights(
    cohort: Cohort,
    replies: Mapping[ClientId, ClientReply],
    model: SentModel,
    weight_key: str,
    examples: Mapping[ClientId, float],
    clients: Collection[ClientId],
) -> None:
    """Change the replies so that their average by `weight_key` is the cohort's update.

    Parameters
    ----------
    cohort
        The cohort, with its weights.
    replies
        The replies to aggregate; they are changed.
    model
        The model that was sent.
    weight_key
        The metric by which the strategy averages.
    examples
        The numbers of examples that clients have reported.
    clients
        All clients that could have been selected. Those that have not reported their number of
        examples count as average ones.

    Examples
    --------
    >>> from adcs.federated import PlainReply
    >>> replies = {3: PlainReply({"w": np.ones(2)}, {"n": 10}), 7: PlainReply(metrics={"n": 10})}
    >>> model = SentModel({"w": np.zeros(2)})
    >>> apply_weights(Cohort((3, 7), (1.0, 3.0)), replies, model, "n", {}, (3, 7))
    >>> replies[7].metrics
    {'n': 30.0}
    """
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    scale = 1.0
    if not cohort.normalise:
        reported = [examples[client] for client in clients if client in examples]
        mean = sum(reported) / len(reported) if reported else 1.0
        total = sum(examples.get(client, mean) for client in clients)
        scale = sum(examples.get(client, mean) * weights[client] for client in replies) / total
    for client, reply in replies.items():
        reply.replace_metric(weight_key, float(reply.metrics[weight_key]) * weights[client])
        if scale != 1.0:
            reply.replace_arrays(_scaled(reply.arrays(model), model, scale), model)


def _scaled(arrays: Arrays, model: SentModel, scale: float) -> Arrays:
    """Return the floating-point arrays of a reply with its update multiplied by `scale`."""
    return {
        # A Python float as scale keeps a float32 model float32.
        key: np.asarray(sent + scale * (arrays[key] - sent), dtype=arrays[key].dtype)
        for key, sent in model.arrays.items()
        if sent.dtype.kind == "f"
    }
