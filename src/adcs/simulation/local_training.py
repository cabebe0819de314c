"""Local training: what one client computes in one round.

`LocalSGD` is SGD with momentum, weight decay, FedProx's proximal term and gradient clipping. A
user's own is a subclass of `LocalTraining` with one method, `train`. It may keep arrays for each
client from round to round, and exchange arrays with the server beside the model, as SCAFFOLD does.

An update is (w - w_local) / lr: for SGD the sum of the directions of its steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import FloatArray
from adcs._validation import brief, check_number
from adcs.simulation.models import Labels

Batch = tuple[FloatArray, Labels]
"""Examples and labels of one step."""

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by name."""


@dataclass(frozen=True)
class ClientWork:
    """What a client gets for its training in a round.

    Attributes
    ----------
    client, server_round
        The client, and the round, counted from 0.
    w
        The parameters of the global model, read-only. Statistics such as BatchNorm's, if the model
        has any, are not among them.
    batches
        The examples and labels of each step.
    lr
        The learning rate.
    loss_and_gradient
        From (w, x, y) to the mean loss over a batch and its gradient, in training mode.
    state
        The arrays that this client kept the last time that its training arrived; empty at first.
    shared
        The arrays that the server sends beside the model.

    Examples
    --------
    >>> batch = np.ones((1, 2)), np.zeros(1, dtype=int)
    >>> work = ClientWork(0, 0, np.ones(2), [batch], 0.1, lambda w, x, y: (0.5, 2 * w))
    >>> LocalSGD(work.lr).train(work).update
    array([2., 2.])
    """

    client: int
    server_round: int
    w: FloatArray
    batches: Sequence[Batch]
    lr: float
    loss_and_gradient: Callable[[FloatArray, FloatArray, Labels], tuple[float, FloatArray]]
    state: Arrays = field(default_factory=dict)
    shared: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class ClientResult:
    """What a client's training returns.

    Attributes
    ----------
    loss
        The loss of the global model on the first batch.
    update
        (w - w_local) / lr.
    state
        Arrays that the client keeps. They are kept only if the training arrives at the server.
    sent
        Arrays for the server, beside the update.

    Examples
    --------
    >>> ClientResult(0.5, np.zeros(3)).sent
    {}
    """

    loss: float
    update: FloatArray
    state: Arrays = field(default_factory=dict)
    sent: Arrays = field(default_factory=dict)


class LocalTraining(ABC):
    """The base class of local training.

    A subclass implements `train`. If it exchanges arrays with the server, it also implements
    `initial_shared` and `combine`. An instance serves all clients and all compared runs, so it must
    keep nothing that changes: what changes is in `ClientWork.state` and `ClientWork.shared`.

    Examples
    --------
    >>> class SignSGD(LocalTraining):
    ...     def train(self, work):
    ...         x, y = work.batches[0]
    ...         loss, gradient = work.loss_and_gradient(work.w, x, y)
    ...         return ClientResult(loss, np.sign(gradient))
    >>> work = ClientWork(0, 0, np.ones(2), [(np.ones((1, 2)), np.zeros(1, dtype=int))], 0.1,
    ...                   lambda w, x, y: (0.5, np.array([3.0, -2.0])))
    >>> SignSGD().train(work).update
    array([ 1., -1.])
    """

    @abstractmethod
    def train(self, work: ClientWork) -> ClientResult:
        """Return the result of one client's training in one round."""

    def initial_shared(self, w: FloatArray) -> Arrays:
        """Return the arrays that the server sends beside the first model; none by default.

        Parameters
        ----------
        w
            The initial parameters.
        """
        return {}

    def combine(self, shared: Arrays, sent: Sequence[Arrays], clients: int) -> Arrays:
        """Return the shared arrays of the next round; those of this one by default.

        Parameters
        ----------
        shared
            The shared arrays of this round.
        sent
            What each client sent whose training arrived; at least one.
        clients
            The number of all clients, N.
        """
        return shared


@dataclass(frozen=True)
class LocalSGD(LocalTraining):
    """SGD by mini-batch steps. Momentum starts at zero in each round.

    With g the gradient of the mean loss at the local model, each step is, in this order::

        g += prox * (local - w)                    # FedProx
        if clip: g *= min(1, clip / norm(g))       # gradient clipping
        g += weight_decay * local
        v = momentum * v + g
        local -= lr * v

    Parameters
    ----------
    lr
        Learning rate.
    momentum
        Momentum, from 0 to below 1.
    weight_decay
        Weight decay, as in `torch.optim.SGD`.
    prox
        Weight of FedProx's proximal term, mu.
    clip
        The largest norm of a gradient; None does not clip.

    Examples
    --------
    >>> LocalSGD(0.1, prox=0.01)
    LocalSGD(lr=0.1, momentum=0.0, weight_decay=0.0, prox=0.01, clip=None)
    >>> LocalSGD(0.1, momentum=1.0)
    Traceback (most recent call last):
    ...
    ValueError: momentum must be a number >= 0 and < 1, got 1.0
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        check_number("momentum", self.momentum, minimum=0, below=1)
        check_number("weight_decay", self.weight_decay, minimum=0)
        check_number("prox", self.prox, minimum=0)
        if self.clip is not None:
            check_number("clip", self.clip, above=0)

    @property
    def plain(self) -> bool:
        """Whether the direction of a step is the gradient alone."""
        return not (self.momentum or self.weight_decay or self.prox or self.clip is not None)

    def direction(
        self,
        gradient: FloatArray,
        local: FloatArray,
        start: FloatArray,
        velocity: FloatArray | None,
    ) -> FloatArray:
        """Return the direction v of a step, for one client or for a row each.

        Parameters
        ----------
        gradient
            The gradient of the mean loss at `local`.
        local, start
            The local parameters, and those that the client started from.
        velocity
            The direction of the step before; None at the first one.
        """
        if self.plain:
            return gradient
        if self.prox:
            gradient = gradient + self.prox * (local - start)
        if self.clip is not None:
            norm = np.linalg.norm(gradient, axis=-1, keepdims=True)
            # A zero gradient has no direction to keep.
            factor = np.minimum(1.0, self.clip / np.maximum(norm, np.finfo(norm.dtype).tiny))
            gradient = gradient * factor.astype(gradient.dtype)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * local
        if self.momentum and velocity is not None:
            gradient = self.momentum * velocity + gradient
        return gradient

    def train(self, work: ClientWork) -> ClientResult:
        """Return the result of one client: the update is the sum of its directions."""
        local = work.w.copy()
        total = np.zeros_like(local)
        velocity: FloatArray | None = None
        first = float("nan")
        for step, (x, y) in enumerate(work.batches):
            loss, gradient = work.loss_and_gradient(local, x, y)
            first = float(loss) if step == 0 else first
            velocity = self.direction(gradient, local, work.w, velocity)
            total += velocity
            local -= local.dtype.type(self.lr) * velocity
        return ClientResult(first, total)


class TrainingStates:
    """What one run's clients and server keep for local training from round to round.

    Parameters
    ----------
    shared
        The arrays that the server sends beside the model.

    Examples
    --------
    >>> states = TrainingStates({"c": np.zeros(2)})
    >>> states.clients[3] = frozen({"c": np.ones(2)})
    >>> again = TrainingStates({})
    >>> again.restore(states.state())
    >>> again.clients[3]["c"]
    array([1., 1.])
    """

    def __init__(self, shared: Arrays) -> None:
        self.shared: Arrays = frozen(shared)
        self.clients: dict[int, Arrays] = {}

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        clients = {str(client): dict(arrays) for client, arrays in self.clients.items()}
        return {"shared": dict(self.shared), "clients": clients}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self.shared = frozen(state["shared"])
        self.clients = {int(client): frozen(kept) for client, kept in state["clients"].items()}


def frozen(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return read-only copies of arrays.

    >>> frozen({"c": np.zeros(2)})["c"].flags.writeable
    False
    """
    copies = {name: np.array(array) for name, array in arrays.items()}
    for copy in copies.values():
        copy.flags.writeable = False
    return copies


def check_result(result: Any, size: int) -> ClientResult:
    """Return the result of a user's training, or raise ValueError if it is unusable.

    >>> check_result(ClientResult(0.5, np.zeros(3)), size=4)
    Traceback (most recent call last):
    ...
    ValueError: the update must have shape (4,), got (3,)
    """
    if not isinstance(result, ClientResult):
        raise ValueError(f"train must return a ClientResult, got {brief(result)}")
    check_number("the loss", result.loss)
    update = np.asarray(result.update)
    if update.shape != (size,):
        raise ValueError(f"the update must have shape ({size},), got {update.shape}")
    if update.dtype.kind != "f" or not np.isfinite(update).all():
        raise ValueError("the update must be finite numbers")
    check_arrays("state", result.state)
    check_arrays("sent", result.sent)
    return result


def check_arrays(name: str, arrays: Any) -> None:
    """Raise ValueError unless a value is a mapping of names to arrays of finite numbers.

    >>> check_arrays("sent", {"c": np.array([np.inf])})
    Traceback (most recent call last):
    ...
    ValueError: sent['c'] must be an array of finite numbers, got array([inf])
    """
    if not isinstance(arrays, Mapping) or not all(isinstance(key, str) for key in arrays):
        raise ValueError(f"{name} must be a table of arrays by name, got {brief(arrays)}")
    for key, array in arrays.items():
        numbers = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
        if not numbers or not np.isfinite(array).all():
            raise ValueError(
                f"{name}[{key!r}] must be an array of finite numbers, got {brief(array)}"
            )
