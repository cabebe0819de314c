"""Signals beyond losses and updates, as simulated clients report them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.reports.histogram import count_labels
from adcs.simulation.federation import Federation
from adcs.simulation.models import Model

TRAINED_WITH = frozenset({"loss", "update"})
"""Signals that training replies of every scheduler carry."""

HISTOGRAM_NOISE = 17
"""The random stream of the noise of label histograms, beside seed and client."""


def evaluated_signals(
    federation: Federation,
    model: Model,
    w: FloatArray,
    clients: IndexArray,
    names: Collection[str],
) -> dict[str, Any]:
    """Return the named signals that need the client's data and no local training.

    Parameters
    ----------
    federation, model, w
        The clients' data, and the model that they received.
    clients
        The clients that report.
    names
        Which of "rms_loss", "held_out_accuracy" and "label_counts" are asked for; other names are
        left out.

    Examples
    --------
    >>> from adcs.simulation import MLP, load, make_partition
    >>> data = load("synthetic:clusters=2,dimension=3")
    >>> federation = Federation(data, make_partition(data, "iid", 6, seed=0))
    >>> model = MLP(3, 2)
    >>> found = evaluated_signals(
    ...     federation, model, model.initial(0), np.array([1, 4]), ["rms_loss", "label_counts"]
    ... )
    >>> found["rms_loss"].round(3), found["label_counts"].shape
    (array([0.693, 0.693]), (2, 2))
    """
    signals: dict[str, Any] = {}
    if "rms_loss" in names:
        squares = [_mean_square_loss(federation, model, w, int(c)) for c in clients]
        signals["rms_loss"] = np.sqrt(squares)
    if "held_out_accuracy" in names:
        accuracy, _ = federation.test(model, w[None])[0]
        signals["held_out_accuracy"] = np.asarray(accuracy)[clients]
    if "label_counts" in names:
        signals["label_counts"] = np.stack([_histogram(federation, int(c)) for c in clients])
    return signals


def output_bias_updates(model: Model, updates: FloatArray, lr: float) -> FloatArray | None:
    """Return how training changed the output layer's bias; None if the model names none.

    Parameters
    ----------
    model
        Its `output_bias`, a slice, says where the bias is in the vector.
    updates
        The clients' updates, (received - trained) / lr, a row each.
    lr
        The learning rate.

    Examples
    --------
    >>> from adcs.simulation import MLP
    >>> output_bias_updates(MLP(1, 2), np.array([[0.0, 0.0, 3.0, -3.0]]), lr=0.1).round(3)
    array([[-0.3,  0.3]])
    """
    where = getattr(model, "output_bias", None)
    return None if where is None else np.asarray(-lr * updates[:, where])


def _histogram(federation: Federation, client: int) -> IndexArray:
    """Return a client's label histogram; its noise is the same each time it is asked."""
    return count_labels(
        federation.all_of(client)[1],
        federation.dataset.classes,
        epsilon=federation.histogram_epsilon,
        rng=np.random.default_rng([federation.seed, client, HISTOGRAM_NOISE]),
    )


def _mean_square_loss(federation: Federation, model: Model, w: FloatArray, client: int) -> float:
    x, y = federation.all_of(client)
    own = getattr(model, "example_losses", None)
    if own is not None:
        losses = own(w, x, y)
    elif federation.dataset.task == "regression":
        losses = np.square(model.predict(w, x)[:, 0] - y)
    else:
        losses = cross_entropies(model.predict(w, x), y)
    return float(np.mean(np.square(losses, dtype=np.float64)))


def cross_entropies(logits: FloatArray, y: Any) -> Float64Array:
    """Return the cross-entropy of each example.

    >>> cross_entropies(np.array([[0.0, 0.0], [np.log(3.0), 0.0]]), np.array([0, 0])).round(3)
    array([0.693, 0.288])
    """
    z = logits.astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), y])
