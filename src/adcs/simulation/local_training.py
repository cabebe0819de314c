"""Local computation of one round, for all runs that share a pass.

The three kinds that the paper names: one mini-batch step, E mini-batch steps, full-batch gradient
descent. An update is the sum of the gradients of its steps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np

from adcs._types import FloatArray, IndexArray
from adcs.simulation.federation import Federation
from adcs.simulation.models import Model, Pass, WideModel

Chosen = list[tuple[IndexArray, FloatArray]]
"""For each run, the clients whose updates count and their weights."""


class Work(Protocol):
    """What clients compute in one round: once, however often it is asked for."""

    def prepare(self, clients: IndexArray) -> None:
        """Announce clients, in any order, that some run will ask something of."""

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses of a run's model on prepared clients' data."""

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the updates of prepared clients, a row each."""

    def aggregate(self, chosen: Chosen) -> FloatArray:
        """Return, for each run, the weighted sum of its chosen clients' updates."""


class OneStep:
    """One mini-batch gradient of each client: one wide pass serves all runs."""

    def __init__(
        self, federation: Federation, model: WideModel, ws: FloatArray, server_round: int
    ) -> None:
        self._federation = federation
        self._model = model
        self._ws = ws
        self._round = server_round
        self._passes: list[Pass] = []
        # Clients have places in the passes, which are numbered through.
        self._ends = [0]
        self._place = np.zeros(len(federation.clients), dtype=np.intp)
        self._present = np.zeros(len(federation.clients), dtype=bool)

    def prepare(self, clients: IndexArray) -> None:
        """Run a pass over the clients that have not been in one."""
        if self._present[clients].all():
            return
        wanted = np.zeros(self._present.size, dtype=bool)
        wanted[clients] = True
        new = (wanted & ~self._present).nonzero()[0]
        x, y = self._federation.batches(self._round, new)
        self._passes.append(self._model.wide(self._ws, x, y))
        self._ends.append(self._ends[-1] + new.size)
        self._place[new] = np.arange(*self._ends[-2:])
        self._present[new] = True

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses on the clients' batches."""
        losses: FloatArray = np.concatenate([done.losses[run] for done in self._passes])
        return losses.take(self._place[clients])

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the gradients on the clients' batches."""
        place = self._place[clients]
        if len(self._passes) == 1:
            return self._passes[0].gradients(run, place)
        out = np.empty((clients.size, self._ws.shape[1]), dtype=self._ws.dtype)
        for done, (start, end) in zip(self._passes, pairwise(self._ends), strict=True):
            here = (start <= place) & (place < end)
            if here.any():
                out[here] = done.gradients(run, place[here] - start)
        return out

    def aggregate(self, chosen: Chosen) -> FloatArray:
        """Return the weighted sums, by one GEMM for all runs."""
        weights = np.zeros((len(chosen), self._ends[-1]), dtype=self._ws.dtype)
        for run, (clients, shares) in enumerate(chosen):
            weights[run, self._place[clients]] = shares
        if len(self._passes) == 1:
            return self._passes[0].aggregate(weights).astype(self._ws.dtype, copy=False)
        total = np.zeros_like(self._ws)
        for done, (start, end) in zip(self._passes, pairwise(self._ends), strict=True):
            here = weights[:, start:end]
            if here.any():
                total += done.aggregate(here)
        return total


class ManySteps:
    """E mini-batch steps of each client from the run's model; the update is their sum."""

    def __init__(
        self,
        federation: Federation,
        model: WideModel,
        ws: FloatArray,
        server_round: int,
        *,
        steps: int,
        lr: float,
    ) -> None:
        self._federation = federation
        self._model = model
        self._ws = ws
        self._round = server_round
        self._steps = steps
        self._lr = ws.dtype.type(lr)
        self._first = OneStep(federation, model, ws, server_round)
        self._rows: list[dict[int, FloatArray]] = [{} for _ in ws]

    def prepare(self, clients: IndexArray) -> None:
        """Do nothing yet: which run will ask is not known."""

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
            return np.empty((0, self._ws.shape[1]), dtype=self._ws.dtype)
        return np.stack([rows[client] for client in clients.tolist()])

    def _run_steps(self, run: int, clients: IndexArray) -> FloatArray:
        x, y = self._federation.batches(self._round, clients, self._steps)
        batch = self._federation.batch_size
        local = np.repeat(self._ws[run][None], clients.size, axis=0)
        total = np.zeros_like(local)
        for step in range(self._steps):
            part = slice(step * batch, (step + 1) * batch)
            _, gradients = self._model.stacked(local, x[:, part], y[:, part])
            total += gradients
            local -= self._lr * gradients
        return total

    def aggregate(self, chosen: Chosen) -> FloatArray:
        """Return the weighted sums."""
        return _weighted_rows(self, self._ws, chosen)


class FullBatch:
    """The gradient over all of a client's data."""

    def __init__(self, federation: Federation, model: Model, ws: FloatArray) -> None:
        self._federation = federation
        self._model = model
        self._ws = ws
        self._done: list[dict[int, tuple[float, FloatArray]]] = [{} for _ in ws]

    def prepare(self, clients: IndexArray) -> None:
        """Do nothing yet: which run will ask is not known."""

    def losses(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the losses over all of the clients' data."""
        values = [self._both(run, client)[0] for client in clients.tolist()]
        return np.array(values, dtype=self._ws.dtype)

    def updates(self, run: int, clients: IndexArray) -> FloatArray:
        """Return the full gradients."""
        rows = [self._both(run, client)[1] for client in clients.tolist()]
        return np.array(rows, dtype=self._ws.dtype).reshape(len(rows), self._ws.shape[1])

    def _both(self, run: int, client: int) -> tuple[float, FloatArray]:
        done = self._done[run]
        if client not in done:
            x, y = self._federation.all_of(client)
            done[client] = self._model.loss_and_gradient(self._ws[run], x, y)
        return done[client]

    def aggregate(self, chosen: Chosen) -> FloatArray:
        """Return the weighted sums."""
        return _weighted_rows(self, self._ws, chosen)


def _weighted_rows(work: Work, ws: FloatArray, chosen: Chosen) -> FloatArray:
    total = np.zeros_like(ws)
    for run, (clients, weights) in enumerate(chosen):
        if clients.size:
            total[run] = weights.astype(ws.dtype) @ work.updates(run, clients)
    return total
