"""Models as flat parameter vectors, and passes that serve many runs at once.

A user's model implements `Model`: initial parameters, loss and gradient, predictions. The models
here also implement `WideModel`: one pass over the data serves all compared runs. The runs share
each client's mini-batch, so the first layers of all runs are one wide GEMM.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from adcs._types import FloatArray, IndexArray

if TYPE_CHECKING:
    from adcs.simulation.datasets.dataset import Dataset

SAFE_LOGIT = 60.0
"""Exponentials of logits within this bound, and their sums, do not overflow in float32."""

Labels = NDArray[np.integer[Any]]


class Model(Protocol):
    """What the engine needs of a model; parameters and gradients are vectors of `size` numbers.

    A model may have more. The engine reads each through a function with a default:

    - `buffers`: so many last entries of the vector are statistics, such as BatchNorm's. In what
      `loss_and_gradient` and `local_update` return, these entries are the statistics afterwards.
      They are averaged over the clients that trained, and are no part of updates.
    - `keyed`: the model draws random numbers in training. `loss_and_gradient` then takes `key`, a
      hash of (seed, round, client, step).
    - `local_update(w, batches, sgd, key)`: returns the loss before the first step and the update of
      all local steps of a client; `sgd` is a `LocalSGD`, `key` a hash of (seed, round, client).
    - `weighted_gradient(w, batches, weights)`: returns the losses of clients' batches and the
      weighted sum of their gradients, faster than one by one, unless `sums_gradients` is False.
    - `wide` and `stacked`, as in `WideModel`.

    Examples
    --------
    >>> class Mean:
    ...     size = 1
    ...     def initial(self, seed): return np.zeros(1)
    ...     def loss_and_gradient(self, w, x, y):
    ...         return float(((w - y) ** 2).mean()), 2 * (w - y).mean(keepdims=True)
    ...     def predict(self, w, x): return np.broadcast_to(w, (len(x), 1))
    >>> Mean().loss_and_gradient(np.zeros(1), np.ones((2, 3)), np.array([1.0, 3.0]))
    (5.0, array([-4.]))
    """

    size: int

    def initial(self, seed: int) -> FloatArray:
        """Return the initial parameters."""

    @property
    def loss_and_gradient(self) -> Callable[..., tuple[float, FloatArray]]:
        """From (w, x, y) to the mean loss over a batch and its gradient."""

    def predict(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return one score for each class and example: logits."""


class NonFiniteLoss(ValueError):
    """The loss of a model on a client's batch is NaN or infinite.

    Parameters
    ----------
    sentence
        What has happened.
    batch
        Which of the batches it is, where a function takes one of each of several clients.

    Examples
    --------
    >>> raise NonFiniteLoss("the loss of network Net is nan")
    Traceback (most recent call last):
    ...
    adcs.simulation.models.NonFiniteLoss: the loss of network Net is nan
    """

    def __init__(self, sentence: str, batch: int = 0) -> None:
        super().__init__(sentence)
        self.batch = batch


def factory_arguments(factory: Callable[..., Any], data: Dataset) -> dict[str, Any]:
    """Return the facts about a data set that the signature of a model's factory names.

    They are `input_shape`, `features`, `classes` and `vocabulary`.

    >>> from adcs.simulation.datasets import load
    >>> factory_arguments(MLP, load("digits"))
    {'features': 64, 'classes': 10}
    """
    facts = {
        "input_shape": tuple(data.input_shape),
        "features": data.x_train.shape[1],
        "classes": data.classes,
        "vocabulary": data.vocabulary,
    }
    try:
        names = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return {}
    return {name: value for name, value in facts.items() if name in names}


class Pass(Protocol):
    """A forward pass of several runs over one mini-batch of each of n clients."""

    @property
    def losses(self) -> FloatArray:
        """The mean loss of each run on each client's batch: runs x n."""

    def gradients(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the gradients of one run on some of the clients: a row each."""

    def aggregate(self, weights: FloatArray) -> FloatArray:
        """Return, for each run, the sum of its gradients weighted by its row of weights."""


@runtime_checkable
class WideModel(Protocol):
    """A model that serves several runs in one pass."""

    def wide(self, ws: FloatArray, x: FloatArray, y: Labels) -> Pass:
        """Return the pass of runs with parameters `ws` over batches x (n x batch x features)."""

    def stacked(self, ws: FloatArray, x: FloatArray, y: Labels) -> tuple[FloatArray, FloatArray]:
        """Return losses and gradients of models `ws`, each on its own batch."""

    def wide_predict(self, ws: FloatArray, x: FloatArray) -> Sequence[FloatArray]:
        """Return the logits of several runs on the same examples."""


def widened(model: Model) -> WidePredictor:
    """Return the model itself if it serves several runs, else a loop over runs."""
    return model if isinstance(model, WideModel) else Looped(model)


class WidePredictor(Protocol):
    """Predictions of several runs."""

    def wide_predict(self, ws: FloatArray, x: FloatArray) -> Sequence[FloatArray]:
        """Return the logits of several runs on the same examples."""


class Looped:
    """Any model, called once for each run."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def wide_predict(self, ws: FloatArray, x: FloatArray) -> list[FloatArray]:
        """Return the logits of each run's parameters on the same examples."""
        return [self._model.predict(w, x) for w in ws]


def buffers_of(model: Model) -> int:
    """Return how many last entries of a model's vector are statistics; 0 if it names none.

    >>> buffers_of(MLP(3, 2))
    0
    """
    return int(getattr(model, "buffers", 0))


def is_keyed(model: Model) -> bool:
    """Return whether a model draws random numbers in training, by a key; by default it does not.

    >>> is_keyed(MLP(3, 2))
    False
    """
    return bool(getattr(model, "keyed", False))


def local_update_of(model: Model) -> Callable[..., tuple[float, FloatArray]] | None:
    """Return a model's own function for all local steps of a client, None if it has none.

    >>> local_update_of(MLP(3, 2)) is None
    True
    """
    return getattr(model, "local_update", None)


def weighted_gradient_of(
    model: Model,
) -> Callable[..., tuple[FloatArray, FloatArray]] | None:
    """Return a model's own function for a weighted sum of clients' gradients, None if it has none.

    >>> weighted_gradient_of(MLP(3, 2)) is None
    True
    """
    allowed = getattr(model, "sums_gradients", True)
    return getattr(model, "weighted_gradient", None) if allowed else None


def wide_of(model: Model) -> Callable[[FloatArray, FloatArray, Labels], Pass] | None:
    """Return a model's pass of several runs over several clients, None if it has none.

    >>> wide_of(MLP(3, 2)) is None
    False
    """
    return getattr(model, "wide", None)


def stacked_of(
    model: Model,
) -> Callable[[FloatArray, FloatArray, Labels], tuple[FloatArray, FloatArray]] | None:
    """Return a model's function for several models, each on its own batch; None if it has none.

    >>> stacked_of(MLP(3, 2)) is None
    False
    """
    return getattr(model, "stacked", None)


class MLP:
    """A network of dense layers with ReLU between them; no hidden layer is softmax regression.

    Parameters are, layer by layer, the weights (outputs x inputs) and the biases.

    Parameters
    ----------
    features, classes
        Numbers of inputs and outputs.
    hidden
        Sizes of the hidden layers.
    task
        "classification" with cross-entropy, or "regression" with the squared error of one output.

    Examples
    --------
    >>> model = MLP(features=784, classes=10)
    >>> model.size
    7850
    >>> loss, gradient = model.loss_and_gradient(
    ...     model.initial(0), np.ones((2, 784)), np.array([3, 4])
    ... )
    >>> round(float(loss), 4)
    2.3026
    """

    def __init__(
        self,
        features: int,
        classes: int,
        hidden: Sequence[int] = (),
        task: str = "classification",
    ) -> None:
        self.loss = _squared_error if task == "regression" else _cross_entropy
        self.widths = (features, *hidden, classes)
        self.size = sum(a * b + b for a, b in pairwise(self.widths))
        self.output_bias = slice(self.size - classes, self.size)

    def initial(self, seed: int) -> FloatArray:
        """Return zeros for softmax regression; else weights at random (He) and biases zero."""
        w: FloatArray = np.zeros((1, self.size))
        if len(self.widths) > 2:
            rng = np.random.default_rng([seed, 0x1417])
            for weight, _ in self._layers(w):
                weight[:] = rng.standard_normal(weight.shape) * math.sqrt(2 / weight.shape[2])
        return w.reshape(-1)

    def loss_and_gradient(
        self, w: FloatArray, x: FloatArray, y: Labels
    ) -> tuple[float, FloatArray]:
        """Return the mean loss over a batch and its gradient."""
        losses, gradients = self.stacked(w[None], x[None], y[None])
        return float(losses[0]), gradients[0]

    def predict(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return the logits."""
        return self.wide_predict(w[None], x)[0]

    def wide_predict(self, ws: FloatArray, x: FloatArray) -> list[FloatArray]:
        """Return the logits of several runs, their first layers in one GEMM."""
        layers = self._layers(ws)
        width = self.widths[1]
        first = x @ layers[0][0].reshape(-1, self.widths[0]).T
        outputs = []
        for run in range(ws.shape[0]):
            z = first[:, run * width : (run + 1) * width] + layers[0][1][run]
            for weight, bias in layers[1:]:
                z = np.maximum(z, 0) @ weight[run].T + bias[run]
            outputs.append(z)
        return outputs

    def wide(self, ws: FloatArray, x: FloatArray, y: Labels) -> Pass:
        """Return the pass of several runs over the same batches."""
        return _WidePass(self, ws, x, y)

    def stacked(self, ws: FloatArray, x: FloatArray, y: Labels) -> tuple[FloatArray, FloatArray]:
        """Return losses and gradients of k models, each on its own batch."""
        layers = self._layers(ws)
        inputs = [x]
        for weight, bias in layers[:-1]:
            outputs = np.matmul(inputs[-1], weight.transpose(0, 2, 1)) + bias[:, None]
            inputs.append(np.maximum(outputs, 0))
        weight, bias = layers[-1]
        logits = np.matmul(inputs[-1], weight.transpose(0, 2, 1)) + bias[:, None]
        delta, losses = self.loss(logits, y)
        delta /= x.shape[1]
        gradients = np.empty_like(ws)
        slots = self._layers(gradients)
        for i in reversed(range(len(layers))):
            _collect(slots[i], delta, inputs[i])
            if i:
                delta = np.matmul(delta, layers[i][0]) * (inputs[i] > 0)
        return losses.mean(axis=1), gradients

    def _layers(self, ws: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Return views of weights (k x out x in) and biases (k x out), layer by layer."""
        layers, start = [], 0
        for a, b in pairwise(self.widths):
            end = start + a * b
            layers.append((ws[:, start:end].reshape(-1, b, a), ws[:, end : end + b]))
            start = end + b
        return layers


class _WidePass:
    """One forward pass of all runs; the backward pass is computed when it is needed.

    Rows are the examples of all batches, one client after the other. The first layer's outputs
    are rows x runs x units, so that it is one GEMM forward and one backward; upper layers, if any,
    are stacked by run.
    """

    def __init__(self, model: MLP, ws: FloatArray, x: FloatArray, y: Labels) -> None:
        self._model = model
        self._runs, (self._n, self._batch) = ws.shape[0], x.shape[:2]
        self._x = x.reshape(self._n * self._batch, -1)
        self._layers = model._layers(ws)
        weight, bias = self._layers[0]
        first = self._x @ weight.reshape(-1, weight.shape[2]).T
        first += bias.reshape(-1)
        first = first.reshape(-1, self._runs, weight.shape[1])
        rows = y.reshape(-1)
        self._inputs: list[FloatArray] = []
        self._deltas: list[FloatArray] = []
        if len(self._layers) == 1:
            self._first_delta: FloatArray | None
            self._first_delta, self._each = model.loss(first, rows[:, None])
            return
        outputs = np.ascontiguousarray(first.transpose(1, 0, 2))
        for weight, bias in self._layers[1:]:
            self._inputs.append(np.maximum(outputs, 0))
            outputs = np.matmul(self._inputs[-1], weight.transpose(0, 2, 1)) + bias[:, None]
        self._last_delta, self._each = model.loss(outputs, rows)
        self._first_delta = None

    @cached_property
    def losses(self) -> FloatArray:
        """The mean loss of each run on each client's batch."""
        losses: FloatArray
        if len(self._layers) == 1:
            losses = self._each.reshape(self._n, self._batch, self._runs).mean(axis=1).T
        else:
            losses = self._each.reshape(self._runs, self._n, self._batch).mean(axis=2)
        return losses

    def _back(self) -> FloatArray:
        """Return the derivative of each example's loss by the first layer's outputs."""
        if self._first_delta is None:
            deltas = [self._last_delta]
            for (weight, _), active in zip(
                reversed(self._layers[1:]), reversed(self._inputs), strict=True
            ):
                deltas.insert(0, np.matmul(deltas[0], weight) * (active > 0))
            self._first_delta = np.ascontiguousarray(deltas.pop(0).transpose(1, 0, 2))
            self._deltas = deltas
        return self._first_delta

    def gradients(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the gradients of one run on some of the clients."""
        everyone = clients.size == self._n and bool((clients[1:] > clients[:-1]).all())
        some = slice(None) if everyone else clients
        out = np.empty((clients.size, self._model.size), dtype=self._x.dtype)
        slots = self._model._layers(out)
        deltas = [self._back()[:, run], *(delta[run] for delta in self._deltas)]
        inputs = [self._x, *(rows[run] for rows in self._inputs)]
        for slot, delta, rows in zip(slots, deltas, inputs, strict=True):
            _collect(slot, self._batches(delta)[some] / self._batch, self._batches(rows)[some])
        return out

    def _batches(self, rows: FloatArray) -> FloatArray:
        return rows.reshape(self._n, self._batch, -1)

    def aggregate(self, weights: FloatArray) -> FloatArray:
        """Return the weighted sums of gradients."""
        dtype = self._x.dtype
        share = (weights / self._batch).astype(dtype, copy=False)
        out = np.empty((self._runs, self._model.size), dtype=dtype)
        slots = self._model._layers(out)
        delta = self._batches(self._back())
        # Each weight as often as a run has units, so that the products run along whole rows.
        delta = delta * np.repeat(share.T, self._model.widths[1], axis=1)[:, None]
        flat = delta.reshape(self._x.shape[0], -1)
        slots[0][0][:] = (flat.T @ self._x).reshape(slots[0][0].shape)
        slots[0][1][:] = (np.ones(flat.shape[0], dtype) @ flat).reshape(slots[0][1].shape)
        for slot, upper, inputs in zip(slots[1:], self._deltas, self._inputs, strict=True):
            _collect(slot, upper * np.repeat(share, self._batch, axis=1)[:, :, None], inputs)
        return out


def _collect(slot: tuple[FloatArray, FloatArray], delta: FloatArray, inputs: FloatArray) -> None:
    """Write the gradients of one layer's weights and biases, summed over each batch."""
    np.matmul(delta.transpose(0, 2, 1), inputs, out=slot[0])
    slot[1][:] = delta.sum(axis=1)


def _cross_entropy(logits: FloatArray, y: Labels) -> tuple[FloatArray, FloatArray]:
    """Return the derivative of the loss by the logits, written over them, and each loss."""
    shape, classes = logits.shape[:-1], logits.shape[-1]
    z = logits.reshape(-1, classes)
    if not (z.max() < SAFE_LOGIT and z.min() > -SAFE_LOGIT):
        z -= z.max(axis=1)[:, None]
    flat = z.reshape(-1)
    own = (np.arange(0, z.size, classes).reshape(shape) + y).reshape(-1)
    own_logits = flat[own]
    np.exp(z, out=z)
    total = z @ np.ones(classes, dtype=z.dtype)
    losses = np.log(total) - own_logits
    z /= total[:, None]
    flat[own] -= 1
    return z.reshape(logits.shape), losses.reshape(shape)


def _squared_error(outputs: FloatArray, y: Labels) -> tuple[FloatArray, FloatArray]:
    """Return the derivative of the squared error by the outputs, written over them, and each."""
    error = outputs[..., 0]
    error -= y
    losses = error**2
    error *= 2
    return outputs, losses
