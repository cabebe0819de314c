"""What a round costs: every scheduler pays for what it asks for.

A client that was probed for its update and is then chosen computes and sends it once.
"""

from __future__ import annotations

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.reports.report import NUMBER_BYTES, SIGNALS
from adcs.run_folder import Ledger
from adcs.schedulers.base import Request
from adcs.simulation.network import Network

LOSS_WORK = 1 / 3
"""What a loss costs beside an update: the forward third of forward and backward."""


class RoundCosts:
    """What one round of one run costs: first the probe, then training.

    Parameters
    ----------
    ledger
        Where costs are added.
    size
        Number of model parameters.
    steps
        Local steps in an update, E: its work is E mini-batch gradients.
    network
        Who takes how long.
    """

    def __init__(self, ledger: Ledger, size: int, steps: int, network: Network) -> None:
        self._ledger = ledger
        self._model_bytes = NUMBER_BYTES * size
        self._steps = steps
        self._network = network
        self._asked: set[int] = set()
        self._answered: set[int] = set()
        # Whether those that answered have computed their update, and sent it whole.
        self._computed = self._sent = False

    def probe(self, request: Request, asked: IndexArray, answered: IndexArray) -> None:
        """Charge a probe; those that did not answer have cost their download."""
        ledger = self._ledger
        ledger.bytes_down += self._model_bytes * asked.size
        up, work = self._probe_cost(request)
        ledger.bytes_up += up * answered.size
        self._asked, self._answered = set(asked.tolist()), set(answered.tolist())
        kinds = {SIGNALS[name].work for name in request.signals}
        if kinds == {"evaluation"}:
            ledger.loss_evaluations += answered.size
        elif "update" in kinds:
            ledger.updates += answered.size
            ledger.extra_updates += answered.size
            self._computed = True
            self._sent = "update" in request.signals and request.sketch is None
        times = self._network.seconds(asked, down=self._model_bytes, work=work, up=up)
        self._wait(times, asked.size > answered.size)

    def _probe_cost(self, request: Request) -> tuple[int, float]:
        """Return bytes up and work, in updates, of one answer."""
        signals = [SIGNALS[name] for name in request.signals]
        work = {"none": 0.0, "evaluation": LOSS_WORK / self._steps, "update": 1.0}
        return (
            sum(signal.wire_bytes(self._model_bytes, request.sketch) for signal in signals),
            max(work[signal.work] for signal in signals),
        )

    def probe_seconds(self, request: Request, clients: IndexArray) -> Float64Array:
        """Return how long each client takes to answer a probe."""
        up, work = self._probe_cost(request)
        return self._network.seconds(clients, down=self._model_bytes, work=work, up=up)

    def training_seconds(self, clients: IndexArray) -> Float64Array:
        """Return how long each client takes to train, given what it has already."""
        size, seconds = self._model_bytes, self._network.seconds
        if not self._asked:
            return seconds(clients, down=size, work=1, up=size)
        left = seconds(clients, down=0, work=not self._computed, up=0 if self._sent else size)
        ids = clients.tolist()
        if self._answered.issuperset(ids):
            return left
        silent = seconds(clients, down=0, work=1, up=size)
        stranger = seconds(clients, down=size, work=1, up=size)
        asked = np.array([client in self._asked for client in ids])
        answered = np.array([client in self._answered for client in ids])
        return np.where(answered, left, np.where(asked, silent, stranger))

    def training(self, chosen: IndexArray, arrived: IndexArray) -> None:
        """Charge the training of those chosen; an update that was sent is not sent again."""
        ledger = self._ledger
        times = self.training_seconds(chosen)
        to, known = chosen.size, 0
        if self._asked:
            to = len(set(chosen.tolist()) - self._asked)
            known = len(self._answered.intersection(arrived.tolist())) if self._computed else 0
        ledger.bytes_down += self._model_bytes * to
        ledger.bytes_up += self._model_bytes * (arrived.size - known * self._sent)
        ledger.updates += arrived.size - known
        ledger.extra_updates -= known
        self._wait(times, arrived.size < chosen.size)

    def _wait(self, times: Float64Array, missing: bool) -> None:
        """Wait for the slowest, or until the deadline for those that never answer."""
        if times.size == 0:
            return
        deadline = self._network.settings.deadline
        longest = float(times.max())
        if deadline is not None:
            longest = deadline if missing else min(longest, deadline)
        self._ledger.seconds += longest
