"""What clients report: answers to probes and replies to training, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adcs._types import FloatArray, IndexArray
from adcs.reports.report import NUMBER_BYTES, SIGNALS
from adcs.reports.sketch import Sketch, Sketcher, Sketches
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Request, Scheduler
from adcs.simulation.client_signals import (
    TRAINED_WITH,
    evaluated_signals,
    output_bias_updates,
)
from adcs.simulation.federation import Federation
from adcs.simulation.local_rounds import LocalRound, chunks
from adcs.simulation.models import Model, buffers_of
from adcs.simulation.network import Network


class Reporter:
    """Makes the reports of clients.

    Parameters
    ----------
    federation, model, network
        The clients, what they train, and their speeds.
    lr
        Learning rate of local steps.
    work
        Each client's work, relative to a typical update; None if all have the same.
    """

    def __init__(
        self,
        federation: Federation,
        model: Model,
        network: Network,
        lr: float,
        work: Any = None,
    ) -> None:
        self._federation, self._model, self._lr = federation, model, lr
        self._size = model.size - buffers_of(model)
        size = NUMBER_BYTES * model.size
        everyone = np.arange(len(federation.clients))
        self._facts: dict[str, Any] = {
            "examples": federation.sizes,
            "compute_seconds": network.compute_seconds * (1.0 if work is None else work),
            "communication_seconds": network.seconds(everyone, down=size, work=0.0, up=size),
        }

    def reported_bytes(self, scheduler: Scheduler) -> int:
        """Return the bytes of signals that training replies carry for this scheduler alone."""
        if "training" not in scheduler.observed_sources:
            return 0
        added = (SIGNALS[name] for name in scheduler.training_signals - TRAINED_WITH)
        return sum(signal.wire_bytes(0) for signal in added if signal.work != "update")

    def table(self, clients: IndexArray, server_round: int, **signals: Any) -> ReportTable:
        """Return what clients report: signals, and what they always say of themselves."""
        facts = {name: column.take(clients) for name, column in self._facts.items()}
        return ReportTable(tuple(clients.tolist()), server_round, **signals, **facts)

    def answers(
        self,
        local: LocalRound,
        index: int,
        w: FloatArray,
        request: Request,
        clients: IndexArray,
        server_round: int,
    ) -> ReportTable:
        """Return what clients of a run answer to a request, on the run's model w."""
        signals: dict[str, Any] = {}
        if clients.size == 0:
            return self.table(clients, server_round)
        if "loss" in request.signals:
            signals["loss"] = local.losses(index, clients)
        if request.signals - TRAINED_WITH:
            signals |= evaluated_signals(self._federation, self._model, w, clients, request.signals)
        if "output_bias_update" in request.signals:
            rows = [local.updates(index, part) for part in chunks(clients, self._size)]
            changes = [output_bias_updates(self._model, part, self._lr) for part in rows]
            if all(change is not None for change in changes):
                signals["output_bias_update"] = np.concatenate(changes)  # type: ignore[arg-type]
        if request.signals & {"norm", "update"}:
            signals |= self._update_signals(local, index, request, clients)
        return self.table(clients, server_round, **signals)

    def _update_signals(
        self, local: LocalRound, index: int, request: Request, clients: IndexArray
    ) -> dict[str, Any]:
        """Return what clients answer about their updates; only whole updates are all held."""
        whole = "update" in request.signals and request.sketch is None
        sketch = request.sketch if "update" in request.signals else None
        rows: FloatArray = np.empty((0, self._size))
        norms: list[FloatArray] = []
        sketches: list[Sequence[Sketch | None]] = []
        for part in [clients] if whole else chunks(clients, self._size):
            rows = local.updates(index, part)
            if "norm" in request.signals:
                norms.append(np.sqrt(np.einsum("ij,ij->i", rows, rows)))
            if sketch is not None:
                sketches.append(_sketches(sketch, rows))
        signals: dict[str, Any] = {"update": rows} if whole else {}
        if norms:
            signals["norm"] = np.concatenate(norms)
        if sketch is not None:
            signals["sketch"] = _joined(sketches)
        return signals


def _joined(parts: Sequence[Sequence[Sketch | None]]) -> Sequence[Sketch | None]:
    """Return sketches of parts of the clients as one column, of arrays if all have one."""
    arrays = [part for part in parts if isinstance(part, Sketches)]
    if len(arrays) < len(parts):
        return [sketch for part in parts for sketch in part]
    if len(arrays) == 1:
        return arrays[0]
    values = np.concatenate([part.values for part in arrays])
    return Sketches(values, np.concatenate([part.norms for part in arrays]), arrays[0].update_size)


def _sketches(sketcher: Sketcher, rows: FloatArray) -> Sequence[Sketch | None]:
    """Return the sketch of each row; None for one that has none, such as a zero update."""
    try:
        return Sketches(*sketcher.sketch_rows(rows), rows.shape[1])
    except ValueError:
        return [_sketch(sketcher, row) for row in rows]


def _sketch(sketcher: Sketcher, row: FloatArray) -> Sketch | None:
    try:
        return sketcher.sketch(row)
    except ValueError:
        return None
