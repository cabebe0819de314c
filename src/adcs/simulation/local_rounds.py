"""The local training of all clients in one round, for all runs of a simulation.

`SingleStep` and `MultiStep` are for models that compute many clients or runs at once; `PerClient`
trains one client after the other, with any model and any `LocalTraining`. All three compute what
is asked for, keep it for the round while it fits, and compute it again otherwise, with the same
bits: updates of large models would fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from adcs._hashing import hashes
from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.simulation.batches import Batches
from adcs.simulation.federation import Federation
from adcs.simulation.local_training import (
    Arrays,
    Batch,
    ClientResult,
    ClientWork,
    LocalSGD,
    LocalTraining,
    TrainingStates,
    check_arrays,
    check_result,
    frozen,
)
from adcs.simulation.models import (
    Labels,
    Model,
    NonFiniteLoss,
    Pass,
    buffers_of,
    is_keyed,
    local_update_of,
    stacked_of,
    weighted_gradient_of,
    wide_of,
)
from adcs.simulation.scheduler_errors import OWN_ERRORS, own_error

WeightedCohorts = list[tuple[IndexArray, Float64Array]]
"""For each run, the clients whose updates are aggregated and their weights."""

CHUNK_NUMBERS = 2**24
"""Updates are computed and aggregated in chunks of at most this many numbers: 67 MB as float32."""

KEPT_NUMBERS = 2**25
"""Updates of at most this many numbers are kept for the round: 134 MB as float32."""

KEY = 15
"""Purpose of the hashes of (seed, purpose, round, client) that are models' keys."""


class LocalRound(Protocol):
    """What clients compute in one round."""

    def prepare(self, clients: IndexArray) -> None:
        """Announce clients, in any order, of which some run will need losses or updates."""

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses of a run's model on the first batches of prepared clients."""

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the updates of prepared clients, a row each, without statistics."""

    def aggregate(
        self, cohorts: WeightedCohorts, alone: Collection[int] = frozenset()
    ) -> FloatArray:
        """Return, for each run, the weighted sum of updates: runs x parameters.

        Runs in `alone` need this sum alone, and no client's own update, in this round.
        """

    def buffers(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the models' statistics after the training of clients, a row each."""

    def sent_numbers(self, run: int, clients: IndexArray) -> IndexArray:
        """Return how many numbers each client sends beside its update."""

    def commit(self, run: int, clients: IndexArray) -> None:
        """Keep what clients, whose training has arrived, keep and send for the next rounds."""


def chunks(clients: IndexArray, size: int) -> Iterator[IndexArray]:
    """Yield clients in chunks whose updates have at most `CHUNK_NUMBERS` numbers.

    >>> [part.size for part in chunks(np.arange(25), CHUNK_NUMBERS // 10)]
    [10, 10, 5]
    """
    step = max(1, CHUNK_NUMBERS // size)
    for start in range(0, clients.size, step):
        yield clients[start : start + step]


@dataclass(frozen=True)
class Setup:
    """What the local training of every round is made from.

    Attributes
    ----------
    federation, model, local_training, batches
        The clients, what they train, how, and on which batches.
    lr, seed
        Learning rate, and seed of the models' random numbers.
    states
        What clients and server keep, for each run.
    """

    federation: Federation
    model: Model
    local_training: LocalTraining
    batches: Batches
    lr: float
    seed: int
    states: Sequence[TrainingStates]


class SingleStep:
    """One mini-batch gradient of each client; one pass over the data serves all runs."""

    def __init__(self, setup: Setup, parameters: FloatArray, server_round: int) -> None:
        self._federation = setup.federation
        self._wide = wide_of(setup.model)
        self._parameters = parameters
        self._round = server_round
        self._passes: list[Pass] = []
        # Positions of clients, counted through all passes.
        self._ends = [0]
        self._position = np.zeros(len(self._federation.clients), dtype=np.intp)
        self._computed = np.zeros(len(self._federation.clients), dtype=bool)

    def prepare(self, clients: IndexArray) -> None:
        """Run a pass over the clients that no earlier pass has computed."""
        if self._computed[clients].all():
            return
        assert self._wide is not None
        wanted = np.zeros(self._computed.size, dtype=bool)
        wanted[clients] = True
        new = (wanted & ~self._computed).nonzero()[0]
        x, y = self._federation.batches(self._round, new)
        self._passes.append(self._wide(self._parameters, x, y))
        self._ends.append(self._ends[-1] + new.size)
        self._position[new] = np.arange(*self._ends[-2:])
        self._computed[new] = True

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses on the clients' batches."""
        position = self._position[clients]
        parts = [done.losses[run] for done in self._passes]
        losses: FloatArray = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return losses.take(position)

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

    def aggregate(
        self, cohorts: WeightedCohorts, alone: Collection[int] = frozenset()
    ) -> FloatArray:
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

    def buffers(self, run: int, clients: IndexArray) -> FloatArray:
        """Return no statistics: models with some are trained client by client."""
        return np.empty((clients.size, 0), dtype=self._parameters.dtype)

    def sent_numbers(self, run: int, clients: IndexArray) -> IndexArray:
        """Return zeros: SGD sends its update alone."""
        return np.zeros(clients.size, dtype=np.intp)

    def commit(self, run: int, clients: IndexArray) -> None:
        """Do nothing: SGD keeps nothing."""


class _ByClient:
    """Updates that are computed for some clients of one run at a time."""

    def __init__(self, setup: Setup, parameters: FloatArray, server_round: int) -> None:
        self._setup = setup
        self._round = server_round
        self._parameters = parameters
        self._size = parameters.shape[1] - buffers_of(setup.model)
        self._rows: list[dict[int, FloatArray]] = [{} for _ in parameters]
        self._room = KEPT_NUMBERS

    def _compute(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the updates of clients, a row each."""
        raise NotImplementedError

    def prepare(self, clients: IndexArray) -> None:
        """Do nothing: which run needs them is not known yet."""

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the updates of clients, a row each."""
        kept = self._rows[run]
        ids = clients.tolist()
        out = np.empty((clients.size, self._size), dtype=self._parameters.dtype)
        missing = []
        for row, client in enumerate(ids):
            if client in kept:
                out[row] = kept[client]
            else:
                missing.append(row)
        for rows in chunks(np.array(missing, dtype=np.intp), self._size):
            new = self._compute(run, clients[rows])
            out[rows] = new
            if new.size <= self._room:
                self._room -= new.size
                kept.update(zip(clients[rows].tolist(), new, strict=True))
        return out

    def _sum(self, run: int, clients: IndexArray, weights: FloatArray) -> FloatArray | None:
        """Return the weighted sum of updates without the updates, None where they are needed."""
        return None

    def aggregate(
        self, cohorts: WeightedCohorts, alone: Collection[int] = frozenset()
    ) -> FloatArray:
        """Return the weighted sums, of one chunk of clients after the other."""
        dtype = self._parameters.dtype
        total = np.zeros((len(cohorts), self._size), dtype=dtype)
        for run, (clients, weights) in enumerate(cohorts):
            if run in alone and (found := self._sum(run, clients, weights)) is not None:
                total[run] = found
                continue
            end = 0
            for part in chunks(clients, self._size):
                start, end = end, end + part.size
                total[run] += weights[start:end].astype(dtype) @ self.updates(run, part)
        return total


class MultiStep(_ByClient):
    """Steps of SGD from the run's model, of many clients at once."""

    def __init__(self, setup: Setup, parameters: FloatArray, server_round: int) -> None:
        super().__init__(setup, parameters, server_round)
        assert isinstance(setup.local_training, LocalSGD)
        self._sgd = setup.local_training
        stacked = stacked_of(setup.model)
        assert stacked is not None
        self._stacked = stacked
        self._first = SingleStep(setup, parameters, server_round)

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses before the first step, on its batches."""
        if self._setup.batches.epochs is None:
            self._first.prepare(clients)
            return self._first.losses(run, clients)
        out = np.empty(clients.size, dtype=self._parameters.dtype)
        seen = np.zeros(clients.size, dtype=bool)
        for rows, x, y in self._setup.batches.stacked(self._round, clients):
            if seen[rows].all():  # The steps after the first.
                break
            ws = np.repeat(self._parameters[run][None], len(y), axis=0)
            out[rows], seen[rows] = self._stacked(ws, x, y)[0], True
        return out

    def _compute(self, run: int, clients: IndexArray) -> FloatArray:
        sgd, start = self._sgd, self._parameters[run]
        lr = start.dtype.type(sgd.lr)
        local = np.repeat(start[None], clients.size, axis=0)
        total = np.zeros_like(local)
        velocity = np.zeros_like(local) if sgd.momentum else None
        for rows, x, y in self._setup.batches.stacked(self._round, clients):
            here = local[rows]
            _, gradients = self._stacked(here, x, y)
            before = None if velocity is None else velocity[rows]
            directions = sgd.direction(gradients, here, start, before)
            if velocity is not None:
                velocity[rows] = directions
            total[rows] += directions
            local[rows] -= lr * directions
        return total

    buffers = SingleStep.buffers
    sent_numbers = SingleStep.sent_numbers
    commit = SingleStep.commit


class PerClient(_ByClient):
    """Any local training of any model, one client after the other."""

    def __init__(self, setup: Setup, parameters: FloatArray, server_round: int) -> None:
        super().__init__(setup, parameters, server_round)
        self._keyed = is_keyed(setup.model)
        sgd = isinstance(setup.local_training, LocalSGD)
        self._local_update = local_update_of(setup.model) if sgd else None
        plain = isinstance(setup.local_training, LocalSGD) and setup.local_training.plain
        single = plain and setup.batches.single
        self._weighted_gradient = weighted_gradient_of(setup.model) if single else None
        self._losses: list[dict[int, float]] = [{} for _ in parameters]
        self._statistics: list[dict[int, FloatArray]] = [{} for _ in parameters]
        self._kept: list[dict[int, tuple[Arrays, Arrays]]] = [{} for _ in parameters]

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses before the first step."""
        values = [self._loss(run, client) for client in clients.tolist()]
        return np.array(values, dtype=self._parameters.dtype)

    def _loss(self, run: int, client: int) -> float:
        found = self._losses[run]
        if client not in found:
            batches = self._setup.batches.of(self._round, client)
            if len(batches) == 1:
                self.updates(run, np.array([client]))  # It has computed the loss, too.
            else:
                sgd = LocalSGD(self._setup.lr)
                found[client] = self._train(run, client, sgd, batches[:1])[0].loss
        return found[client]

    def _compute(self, run: int, clients: IndexArray) -> FloatArray:
        out = np.empty((clients.size, self._size), dtype=self._parameters.dtype)
        for row, client in zip(out, clients.tolist(), strict=True):
            batches = self._setup.batches.of(self._round, client)
            result, statistics = self._train(run, client, self._setup.local_training, batches)
            row[:] = result.update
            self._losses[run][client] = result.loss
            # A view would keep the whole vector of the client.
            self._statistics[run][client] = statistics.copy()
            if result.state or result.sent:
                self._kept[run][client] = frozen(result.state), frozen(result.sent)
        return out

    def _train(
        self, run: int, client: int, training: LocalTraining, batches: Sequence[Batch]
    ) -> tuple[ClientResult, FloatArray]:
        """Return the result of one client, and the model's statistics after it."""
        setup, w = self._setup, self._parameters[run]
        key = int(hashes(setup.seed, KEY, self._round, client) >> np.uint64(1))
        if self._local_update is not None:
            try:
                loss, vector = self._local_update(w, batches, training, key)
            except NonFiniteLoss as error:
                raise self._non_finite(error, client) from error
            return ClientResult(loss, vector[: self._size]), vector[self._size :]
        model = _Stepwise(setup.model, w[self._size :], key if self._keyed else None)
        start = w[: self._size].view()
        start.flags.writeable = False
        states = setup.states[run]
        work = ClientWork(
            client=client,
            server_round=self._round,
            w=start,
            batches=batches,
            lr=setup.lr,
            loss_and_gradient=model,
            state=states.clients.get(client, {}),
            shared=states.shared,
        )
        if isinstance(training, LocalSGD):
            return training.train(work), model.buffers
        try:
            return check_result(training.train(work), self._size), model.buffers
        except OWN_ERRORS as error:
            where = f"round {self._round}, client {client}"
            raise own_error("local training", training, error, where) from error

    def _sum(self, run: int, clients: IndexArray, weights: FloatArray) -> FloatArray | None:
        if self._weighted_gradient is None or clients.size == 0:
            return None
        ids = clients.tolist()
        batches = [self._setup.batches.of(self._round, client)[0] for client in ids]
        try:
            losses, total = self._weighted_gradient(self._parameters[run], batches, weights)
        except NonFiniteLoss as error:
            raise self._non_finite(error, ids[error.batch]) from error
        self._losses[run].update(zip(ids, losses.tolist(), strict=True))
        return total

    def _non_finite(self, error: NonFiniteLoss, client: int) -> ValueError:
        return ValueError(
            f"{error} for client {client} in round {self._round}: training has diverged, or the "
            "network computes such values; a lower learning rate may help"
        )

    def buffers(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the models' statistics after the training of clients, a row each."""
        found = self._statistics[run]
        new = np.array([c for c in clients.tolist() if c not in found], dtype=np.intp)
        for part in chunks(new, self._size):
            self.updates(run, part)
        return np.stack([found[client] for client in clients.tolist()])

    def _state_and_sent(self, run: int, client: int) -> tuple[Arrays, Arrays]:
        """Return what a client keeps and sends."""
        if client not in self._statistics[run]:
            self.updates(run, np.array([client]))
        return self._kept[run].get(client, ({}, {}))

    def sent_numbers(self, run: int, clients: IndexArray) -> IndexArray:
        """Return how many numbers each client sends beside its update."""
        if isinstance(self._setup.local_training, LocalSGD):
            return np.zeros(clients.size, dtype=np.intp)
        sent = [self._state_and_sent(run, client)[1] for client in clients.tolist()]
        return np.array([count_numbers(arrays) for arrays in sent], dtype=np.intp)

    def commit(self, run: int, clients: IndexArray) -> None:
        """Keep the clients' states, and combine what they sent into the new shared arrays."""
        training = self._setup.local_training
        if isinstance(training, LocalSGD) or clients.size == 0:
            return
        states = self._setup.states[run]
        found = [self._state_and_sent(run, client) for client in clients.tolist()]
        try:
            everyone = len(self._setup.federation.clients)
            shared = training.combine(states.shared, [sent for _, sent in found], everyone)
            check_arrays("shared", shared)
        except OWN_ERRORS as error:
            raise own_error(
                "local training", training, error, f"round {self._round}, combine"
            ) from error
        states.shared = frozen(shared)
        for client, (kept, _) in zip(clients.tolist(), found, strict=True):
            if kept:
                states.clients[client] = kept


class _Stepwise:
    """A model's loss and gradient, step by step, with its statistics and random numbers inside."""

    def __init__(self, model: Model, buffers: FloatArray, key: int | None) -> None:
        self._model = model
        self._key = key
        self._step = 0
        self.buffers = buffers

    def __call__(self, w: FloatArray, x: FloatArray, y: Labels) -> tuple[float, FloatArray]:
        """Return the mean loss over a batch and its gradient."""
        more: dict[str, int] = {}
        if self._key is not None:
            more["key"] = int(hashes(self._key, self._step) >> np.uint64(1))
        self._step += 1
        if self.buffers.size == 0:
            return self._model.loss_and_gradient(w, x, y, **more)
        whole = np.concatenate([w, self.buffers])
        loss, vector = self._model.loss_and_gradient(whole, x, y, **more)
        self.buffers = vector[w.size :]
        return loss, vector[: w.size]


def count_numbers(arrays: Arrays) -> int:
    """Return how many numbers arrays have.

    >>> count_numbers({"c": np.zeros((2, 3)), "steps": np.ones(1)})
    7
    """
    return sum(array.size for array in arrays.values())


RoundStarter = Callable[[FloatArray, int], LocalRound]
"""From the runs' global models (runs x size) and a round to the round's local training."""


def round_starter(setup: Setup) -> RoundStarter:
    """Return a function from (parameters, server_round) to the local training of that round.

    Examples
    --------
    >>> from adcs.simulation import MLP, Training, load, make_partition
    >>> data = load("synthetic:clusters=2,dimension=3")
    >>> federation = Federation(data, make_partition(data, "iid", 6, seed=0))
    >>> batches = Batches(federation, Training(m=2), seed=0)
    >>> setup = Setup(federation, MLP(3, 2), LocalSGD(0.1), batches, 0.1, 0, [TrainingStates({})])
    >>> local = round_starter(setup)(np.zeros((1, MLP(3, 2).size), dtype=np.float32), 0)
    >>> local.prepare(np.arange(6))
    >>> local.updates(0, np.arange(2)).shape
    (2, 8)
    """
    kind = _round_class(setup)
    return lambda parameters, server_round: kind(setup, parameters, server_round)


def _round_class(setup: Setup) -> Callable[[Setup, FloatArray, int], LocalRound]:
    """Return the fastest class for a model and its training."""
    model, training, batches = setup.model, setup.local_training, setup.batches
    if not isinstance(training, LocalSGD) or batches.full or wide_of(model) is None:
        return PerClient
    if is_keyed(model) or buffers_of(model):
        return PerClient
    if training.plain and batches.single:
        return SingleStep
    if local_update_of(model) is None and stacked_of(model) is not None:
        return MultiStep
    return PerClient
