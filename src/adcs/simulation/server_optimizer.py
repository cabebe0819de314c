"""Server optimisers: how the aggregated update changes the global model.

The formulas are those of Flower's strategies FedAvg, FedAvgM, FedAdam, FedYogi and FedAdagrad. An
optimiser serves all compared runs: parameters, updates and its state have a row for each run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adcs._types import FloatArray

if TYPE_CHECKING:
    from adcs.simulation.training import Training

Slots = dict[str, FloatArray]
"""Arrays that are kept from round to round, with a row for each run."""


class ServerOptimizer(ABC):
    """The base class of server optimisers.

    Examples
    --------
    >>> momentum = Momentum(lr=0.1, momentum=0.5)
    >>> w = np.zeros((1, 2))
    >>> for server_round in range(2):
    ...     w = momentum.step(w, np.ones((1, 2)), np.array([True]), server_round)
    >>> w
    array([[-0.25, -0.25]])
    """

    slots: ClassVar[tuple[str, ...]] = ()
    """Names of the arrays that are kept from round to round; they start at zero."""

    def __init__(self) -> None:
        self.arrays: Slots = {}

    def step(
        self, parameters: FloatArray, update: FloatArray, active: Any, server_round: int
    ) -> FloatArray:
        """Return the new parameters: runs x parameters.

        Parameters
        ----------
        parameters, update
            The parameters, and the aggregated update of each run.
        active
            For each run, whether any training has arrived; the others stay as they are.
        server_round
            The round, counted from 0.
        """
        if not self.arrays:
            self.arrays = {name: np.zeros_like(parameters) for name in self.slots}
        if active.all():
            return self._step(parameters, update, self.arrays, server_round)
        new = parameters.copy()
        rows = {name: array[active] for name, array in self.arrays.items()}
        new[active] = self._step(parameters[active], update[active], rows, server_round)
        for name, array in rows.items():
            self.arrays[name][active] = array
        return new

    @abstractmethod
    def _step(self, w: FloatArray, u: FloatArray, kept: Slots, server_round: int) -> FloatArray:
        """Return the new parameters of an update u, and replace what is kept."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return dict(self.arrays)

    def restore(self, state: Mapping[str, Any], like: FloatArray) -> None:
        """Resume from a state; its arrays must be like the parameters."""
        for name in state:
            found = np.asarray(state[name])
            if name not in self.slots or (found.shape, found.dtype) != (like.shape, like.dtype):
                raise ValueError(f"the state of the server's optimiser has an unusable {name!r}")
        self.arrays = {name: np.array(array) for name, array in state.items()}


class Mean(ServerOptimizer):
    """A step along the update: w - lr u. With the clients' lr it is the mean of their models.

    >>> Mean(lr=0.5).step(np.zeros((1, 2)), np.ones((1, 2)), np.array([True]), 0)
    array([[-0.5, -0.5]])
    """

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr

    def _step(self, w: FloatArray, u: FloatArray, kept: Slots, server_round: int) -> FloatArray:
        return w - w.dtype.type(self.lr) * u


class Momentum(ServerOptimizer):
    """FedAvgM: v = momentum v + u; w - lr v."""

    slots = ("velocity",)

    def __init__(self, lr: float, momentum: float = 0.9) -> None:
        super().__init__()
        self.lr = lr
        self.momentum = momentum

    def _step(self, w: FloatArray, u: FloatArray, kept: Slots, server_round: int) -> FloatArray:
        kept["velocity"] = self.momentum * kept["velocity"] + u
        return w - w.dtype.type(self.lr) * kept["velocity"]


class Adagrad(ServerOptimizer):
    """FedAdagrad: v = v + d^2; w + eta d / (sqrt(v) + tau), with d = -lr u the mean change.

    Parameters
    ----------
    lr
        The clients' learning rate: d is the mean change of the clients' models.
    eta
        The server's learning rate.
    beta_1, beta_2
        Decay of the mean of changes and of their squares; Adagrad has none.
    tau
        Added to the root, against division by small numbers.

    Examples
    --------
    >>> adagrad = Adagrad(lr=1.0, eta=0.1, tau=1.0)
    >>> adagrad.step(np.zeros((1, 1)), -np.ones((1, 1)), np.array([True]), 0)
    array([[0.05]])
    """

    slots = ("m", "v")

    def __init__(
        self,
        lr: float,
        eta: float = 0.1,
        *,
        beta_1: float = 0.0,
        beta_2: float = 0.0,
        tau: float = 1e-3,
    ) -> None:
        super().__init__()
        self.lr, self.eta, self.tau = lr, eta, tau
        self.beta_1, self.beta_2 = beta_1, beta_2

    def _second(self, v: FloatArray, square: FloatArray) -> FloatArray:
        return v + square

    def _rate(self, server_round: int) -> float:
        return self.eta

    def _step(self, w: FloatArray, u: FloatArray, kept: Slots, server_round: int) -> FloatArray:
        change = -self.lr * u
        kept["m"] = self.beta_1 * kept["m"] + (1 - self.beta_1) * change
        kept["v"] = self._second(kept["v"], change**2)
        return w + self._rate(server_round) * kept["m"] / (np.sqrt(kept["v"]) + self.tau)


class Adam(Adagrad):
    """FedAdam: w + a m / (sqrt(v) + tau), with running means of d and of its square.

    m = beta_1 m + (1 - beta_1) d and v = beta_2 v + (1 - beta_2) d^2. The rate a corrects the bias
    of the first rounds as Flower does: a = eta sqrt(1 - beta_2^t) / (1 - beta_1^t), with t = 2 in
    the first round.
    """

    def _second(self, v: FloatArray, square: FloatArray) -> FloatArray:
        return self.beta_2 * v + (1 - self.beta_2) * square

    def _rate(self, server_round: int) -> float:
        t = server_round + 2
        return self.eta * float((1 - self.beta_2**t) ** 0.5 / (1 - self.beta_1**t))


class Yogi(Adagrad):
    """FedYogi: as Adam without the correction, and v = v - (1 - beta_2) d^2 sign(v - d^2)."""

    def _second(self, v: FloatArray, square: FloatArray) -> FloatArray:
        return v - (1 - self.beta_2) * square * np.sign(v - square)


def _first(value: float | None, default: float) -> float:
    return default if value is None else value


SERVER_OPTIMIZERS: Mapping[str, Callable[[Training], ServerOptimizer]] = {
    "mean": lambda t: Mean(_first(t.server_lr, t.lr)),
    "momentum": lambda t: Momentum(_first(t.server_lr, t.lr), t.server_momentum),
    "adam": lambda t: Adam(
        t.lr, _first(t.server_lr, 0.1), beta_1=t.beta_1, beta_2=t.beta_2, tau=t.tau
    ),
    "yogi": lambda t: Yogi(
        t.lr, _first(t.server_lr, 0.01), beta_1=t.beta_1, beta_2=t.beta_2, tau=t.tau
    ),
    "adagrad": lambda t: Adagrad(t.lr, _first(t.server_lr, 0.1), tau=t.tau),
}
"""The optimisers by name, from the settings of training; the defaults are Flower's."""
