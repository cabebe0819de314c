"""Local training: what clients compute in one round, for all runs of a simulation.

The kinds are those of the paper: one mini-batch step, E mini-batch steps, full-batch gradient
descent. An update is the sum of the gradients of its steps. A new kind is a class with the methods
of `LocalTraining` and an entry of `LOCAL_TRAINING`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from adcs._types import FloatArray, IndexArray
from adcs.simulation.federation import Federation
from adcs.simulation.models import Model, Pass, WideModel, widened

if TYPE_CHECKING:
    from adcs.simulation.training import Training

WeightedCohorts = list[tuple[IndexArray, FloatArray]]
"""For each run, the clients whose updates are aggregated and their weights."""


class LocalTraining(Protocol):
    """What clients compute in one round. A value that is asked for twice is computed once."""

    def prepare(self, clients: IndexArray) -> None:
        """Announce clients, in any order, of which some run will need losses or updates."""

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses of a run's model on prepared clients' data."""

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the updates of prepared clients, a row each."""

    def aggregate(self, cohorts: WeightedCohorts) -> FloatArray:
        """Return, for each run, the weighted sum of updates: runs x parameters."""


class SingleStep:
    """One mini-batch gradient of each client; one pass over the data serves all runs."""

    def __init__(
        self, federation: Federation, model: WideModel, parameters: FloatArray, server_round: int
    ) -> None:
        self._federation = federation
        self._model = model
        self._parameters = parameters
        self._round = server_round
        self._passes: list[Pass] = []
        # Positions of clients, counted through all passes.
        self._ends = [0]
        self._position = np.zeros(len(federation.clients), dtype=np.intp)
        self._computed = np.zeros(len(federation.clients), dtype=bool)

    def prepare(self, clients: IndexArray) -> None:
        """Run a pass over the clients that no earlier pass has computed."""
        if self._computed[clients].all():
            return
        wanted = np.zeros(self._computed.size, dtype=bool)
        wanted[clients] = True
        new = (wanted & ~self._computed).nonzero()[0]
        x, y = self._federation.batches(self._round, new)
        self._passes.append(self._model.wide(self._parameters, x, y))
        self._ends.append(self._ends[-1] + new.size)
        self._position[new] = np.arange(*self._ends[-2:])
        self._computed[new] = True

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses on the clients' batches."""
        losses: FloatArray = np.concatenate([done.losses[run] for done in self._passes])
        return losses.take(self._position[clients])

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the gradients on the clients' batches."""
        position = self._position[clients]
        if len(self._passes) == 1:
            return self._passes[0].gradients(run, position)
        out = np.empty((clients.size, self._parameters.shape[1]), dtype=self._parameters.dtype)
        for done, (start, end) in zip(self._passes, pairwise(self._ends), strict=True):
            here = (start <= position) & (position < end)
            if here.any():
                out[here] = done.gradients(run, position[here] - start)
        return out

    def aggregate(self, cohorts: WeightedCohorts) -> FloatArray:
        """Return the weighted sums, by one GEMM for all runs."""
        weights = np.zeros((len(cohorts), self._ends[-1]), dtype=self._parameters.dtype)
        for run, (clients, cohort_weights) in enumerate(cohorts):
            weights[run, self._position[clients]] = cohort_weights
        if len(self._passes) == 1:
            return self._passes[0].aggregate(weights).astype(self._parameters.dtype, copy=False)
        total = np.zeros_like(self._parameters)
        for done, (start, end) in zip(self._passes, pairwise(self._ends), strict=True):
            here = weights[:, start:end]
            if here.any():
                total += done.aggregate(here)
        return total


class MultiStep:
    """E mini-batch steps of each client from the run's model; the update is their sum."""

    def __init__(
        self,
        federation: Federation,
        model: WideModel,
        parameters: FloatArray,
        server_round: int,
        *,
        steps: int,
        lr: float,
    ) -> None:
        self._federation = federation
        self._model = model
        self._parameters = parameters
        self._round = server_round
        self._steps = steps
        self._lr = parameters.dtype.type(lr)
        self._first = SingleStep(federation, model, parameters, server_round)
        self._rows: list[dict[int, FloatArray]] = [{} for _ in parameters]

    def prepare(self, clients: IndexArray) -> None:
        """Do nothing: which run needs them is not known yet."""

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses before the first step, on its batches."""
        self._first.prepare(clients)
        return self._first.losses(run, clients)

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the sums of each client's gradients."""
        rows = self._rows[run]
        new = np.array([c for c in clients.tolist() if c not in rows], dtype=np.intp)
        if new.size:
            for client, update in zip(new.tolist(), self._run_steps(run, new), strict=True):
                rows[client] = update
        if clients.size == 0:
            return np.empty((0, self._parameters.shape[1]), dtype=self._parameters.dtype)
        return np.stack([rows[client] for client in clients.tolist()])

    def _run_steps(self, run: int, clients: IndexArray) -> FloatArray:
        x, y = self._federation.batches(self._round, clients, self._steps)
        batch = self._federation.batch_size
        local = np.repeat(self._parameters[run][None], clients.size, axis=0)
        total = np.zeros_like(local)
        for step in range(self._steps):
            part = slice(step * batch, (step + 1) * batch)
            _, gradients = self._model.stacked(local, x[:, part], y[:, part])
            total += gradients
            local -= self._lr * gradients
        return total

    def aggregate(self, cohorts: WeightedCohorts) -> FloatArray:
        """Return the weighted sums."""
        return _weighted_sums(self, self._parameters, cohorts)


class FullBatch:
    """The gradient over all of a client's data."""

    def __init__(self, federation: Federation, model: Model, parameters: FloatArray) -> None:
        self._federation = federation
        self._model = model
        self._parameters = parameters
        self._done: list[dict[int, tuple[float, FloatArray]]] = [{} for _ in parameters]

    def prepare(self, clients: IndexArray) -> None:
        """Do nothing: which run needs them is not known yet."""

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses over all of the clients' data."""
        values = [self._loss_and_update(run, client)[0] for client in clients.tolist()]
        return np.array(values, dtype=self._parameters.dtype)

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the full gradients."""
        rows = [self._loss_and_update(run, client)[1] for client in clients.tolist()]
        return np.array(rows, dtype=self._parameters.dtype).reshape(
            len(rows), self._parameters.shape[1]
        )

    def _loss_and_update(self, run: int, client: int) -> tuple[float, FloatArray]:
        done = self._done[run]
        if client not in done:
            x, y = self._federation.all_of(client)
            done[client] = self._model.loss_and_gradient(self._parameters[run], x, y)
        return done[client]

    def aggregate(self, cohorts: WeightedCohorts) -> FloatArray:
        """Return the weighted sums."""
        return _weighted_sums(self, self._parameters, cohorts)


def _weighted_sums(
    local: LocalTraining, parameters: FloatArray, cohorts: WeightedCohorts
) -> FloatArray:
    total = np.zeros_like(parameters)
    for run, (clients, weights) in enumerate(cohorts):
        if clients.size:
            total[run] = weights.astype(parameters.dtype) @ local.updates(run, clients)
    return total


RoundStarter = Callable[[FloatArray, int], LocalTraining]
"""From the runs' global models (runs x parameters) and a round to the round's local training."""


def _steps(training: Training, federation: Federation, model: Model) -> RoundStarter:
    wide, steps, lr = widened(model), training.steps, training.lr
    if steps == 1:
        return partial(SingleStep, federation, wide)
    return partial(MultiStep, federation, wide, steps=steps, lr=lr)


def _full(training: Training, federation: Federation, model: Model) -> RoundStarter:
    return lambda parameters, server_round: FullBatch(federation, model, parameters)


LOCAL_TRAINING: Mapping[str, Callable[[Training, Federation, Model], RoundStarter]] = {
    "steps": _steps,
    "full": _full,
}
"""The kinds of local training by name; each takes the arguments of `make_local_training`."""


def make_local_training(training: Training, federation: Federation, model: Model) -> RoundStarter:
    """Return a function from (parameters, server_round) to the local training of that round.

    Parameters
    ----------
    training
        Its settings; `local` names the kind.
    federation, model
        The clients, and what they train.

    Examples
    --------
    >>> from adcs.simulation import MLP, Training, load, make_partition
    >>> data = load("synthetic:clusters=2,dimension=3")
    >>> federation = Federation(data, make_partition(data, "iid", 6, seed=0))
    >>> start_round = make_local_training(Training(m=2), federation, MLP(3, 2))
    >>> local = start_round(np.zeros((1, MLP(3, 2).size), dtype=np.float32), 0)
    >>> local.prepare(np.arange(6))
    >>> local.updates(0, np.arange(2)).shape
    (2, 8)
    """
    return LOCAL_TRAINING[training.local](training, federation, model)
