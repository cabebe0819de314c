"""What a round costs: each run is charged for the probes and the training of its scheduler.

A client that is probed for its update and then selected computes and sends it once. Arrays that
local training exchanges beside the model, such as SCAFFOLD's control variates, are charged too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.reports.report import NUMBER_BYTES, SIGNALS
from adcs.run_folder import Ledger
from adcs.schedulers.base import Request
from adcs.simulation.network import Network

LOSS_WORK = 1 / 3
"""Work of computing a loss, as a fraction of a mini-batch step: the forward pass."""


class RoundCosts:
    """The costs of one round of one run: first of the probe, then of training.

    Parameters
    ----------
    ledger
        The run's total costs, to which those of the round are added.
    size
        Number of model parameters.
    steps
        Local steps in a typical update, E: its work is E mini-batch gradients.
    network
        How long clients take.
    work
        Each client's work, relative to a typical update; None if all have the same.
    shared
        Numbers that the server sends beside the model to a client that trains.
    sent
        From clients to the numbers that each sends beside its update; None if there are none.
    classes
        The number of classes, which is the size of label histograms.
    reported
        Bytes of further signals in a training reply.

    Examples
    --------
    >>> from adcs.simulation.network import NetworkSettings
    >>> total = Ledger()
    >>> costs = RoundCosts(total, 10, 1, Network(NetworkSettings(), clients=5, seed=0))
    >>> costs.training(np.array([1, 4]), np.array([4]))
    >>> total.updates, total.bytes_down, costs.spent() == total
    (1, 80, True)
    """

    def __init__(
        self,
        ledger: Ledger,
        size: int,
        steps: float,
        network: Network,
        *,
        work: Float64Array | None = None,
        shared: int = 0,
        sent: Callable[[IndexArray], IndexArray] | None = None,
        classes: int = 10,
        reported: int = 0,
    ) -> None:
        self._ledger = ledger
        self._model_bytes = NUMBER_BYTES * size
        self._shared_bytes = NUMBER_BYTES * shared
        self._sent_numbers = sent
        self._classes, self._reported = classes, reported
        self._steps = steps
        self._work = work
        self._network = network
        self._probed: set[int] = set()
        self._answered: set[int] = set()
        # Whether the clients that answered have computed their update, and sent all of it.
        self._computed = self._sent = False
        # Bytes that clients of the probe still have to receive before they train.
        self._missing_bytes = self._shared_bytes
        self._before = dict(vars(ledger))
        self._waited = 0.0

    def spent(self) -> Ledger:
        """Return what this round has cost so far."""
        now = vars(self._ledger)
        spent = {name: now[name] - before for name, before in self._before.items()}
        return Ledger(**{**spent, "seconds": self._waited})

    def probe(
        self,
        request: Request,
        probed: IndexArray,
        answered: IndexArray,
        waited: float | None = None,
    ) -> None:
        """Charge a probe; clients that do not answer are charged their download.

        Parameters
        ----------
        request, probed, answered
            The probe, whom it was sent to, and who has answered it.
        waited
            How long the server waited; None follows from the clients' times and the deadline.
        """
        ledger = self._ledger
        down, up, work = self._probe_cost(request)
        if not down:  # facts, which need no model
            ledger.bytes_up += up * answered.size
            times = self._seconds(probed, down=0, work=0.0, up=up)
            self._wait(times, probed.size > answered.size, waited)
            return
        ledger.bytes_down += down * probed.size
        ledger.bytes_up += up * answered.size
        self._missing_bytes -= down - self._model_bytes
        self._probed, self._answered = set(probed.tolist()), set(answered.tolist())
        kinds = {SIGNALS[name].work for name in request.signals}
        if kinds == {"evaluation"}:
            ledger.loss_evaluations += answered.size
        elif "update" in kinds:
            ledger.updates += answered.size
            ledger.extra_updates += answered.size
            self._computed = True
            self._sent = "update" in request.signals and request.sketch is None
        times = self._seconds(probed, down=down, work=work, up=up)
        self._wait(times, probed.size > answered.size, waited)

    def _probe_cost(self, request: Request) -> tuple[int, int, float]:
        """Return bytes down, bytes up and work, in updates, of one answer."""
        signals = [SIGNALS[name] for name in request.signals]
        work = {"none": 0.0, "evaluation": LOSS_WORK / self._steps, "update": 1.0}
        trains = any(signal.work == "update" for signal in signals)
        computes = any(signal.work != "none" for signal in signals)
        return (
            self._model_bytes * computes + self._shared_bytes * trains,
            sum(s.wire_bytes(self._model_bytes, request.sketch, self._classes) for s in signals),
            max(work[signal.work] for signal in signals),
        )

    def _seconds(self, clients: IndexArray, *, down: float, work: float, up: float) -> Float64Array:
        """Return each client's time; an update takes longer where it has more steps."""
        if self._work is None or work != 1:
            return self._network.seconds(clients, down=down, work=work, up=up)
        computing = self._work[clients] * self._network.compute_seconds[clients]
        return self._network.seconds(clients, down=down, work=0.0, up=up) + computing

    def probe_seconds(self, request: Request, clients: IndexArray) -> Float64Array:
        """Return how long each client takes to answer a probe."""
        down, up, work = self._probe_cost(request)
        return self._seconds(clients, down=down, work=work, up=up)

    def training_seconds(self, clients: IndexArray) -> Float64Array:
        """Return how long each client takes to train, without what it did for the probe."""
        times = self._training_seconds(clients)
        if self._sent_numbers is None:
            return times
        return times + NUMBER_BYTES * self._sent_numbers(clients) / self._network.up[clients]

    def _training_seconds(self, clients: IndexArray) -> Float64Array:
        size, missing = self._model_bytes, self._missing_bytes
        whole = size + self._shared_bytes
        if not self._probed:
            return self._seconds(clients, down=whole, work=1, up=size)
        left = self._seconds(
            clients, down=missing, work=not self._computed, up=0 if self._sent else size
        )
        ids = clients.tolist()
        if self._answered.issuperset(ids):
            return left
        unanswered = self._seconds(clients, down=missing, work=1, up=size)
        unprobed = self._seconds(clients, down=whole, work=1, up=size)
        probed = np.array([client in self._probed for client in ids])
        answered = np.array([client in self._answered for client in ids])
        return np.where(answered, left, np.where(probed, unanswered, unprobed))

    def training(self, selected: IndexArray, arrived: IndexArray) -> None:
        """Charge the training of the selected clients, of which some arrive in time.

        An update that was sent for the probe is not sent again.
        """
        ledger = self._ledger
        times = self.training_seconds(selected)
        downloads, known = selected.size, 0
        if self._probed:
            downloads = len(set(selected.tolist()) - self._probed)
            known = len(self._answered.intersection(arrived.tolist())) if self._computed else 0
        ledger.bytes_down += (self._model_bytes + self._shared_bytes) * downloads
        ledger.bytes_down += self._missing_bytes * (selected.size - downloads)
        ledger.bytes_up += self._model_bytes * (arrived.size - known * self._sent)
        ledger.bytes_up += self._reported * arrived.size
        if self._sent_numbers is not None:
            ledger.bytes_up += NUMBER_BYTES * int(self._sent_numbers(arrived).sum())
        ledger.updates += arrived.size - known
        ledger.extra_updates -= known
        self._wait(times, arrived.size < selected.size)

    def send(self, clients: IndexArray) -> list[tuple[int, bool]]:
        """Charge what clients receive before they train, and not yet what they send.

        Returns for each the bytes that it will send, and whether its update was computed, and
        charged, for the probe: `receive` charges these.
        """
        ids = clients.tolist()
        downloads = len(set(ids) - self._probed)
        self._ledger.bytes_down += (self._model_bytes + self._shared_bytes) * downloads
        self._ledger.bytes_down += self._missing_bytes * (len(ids) - downloads)
        more = np.zeros(clients.size, dtype=np.intp)
        if self._sent_numbers is not None:
            more = NUMBER_BYTES * self._sent_numbers(clients)
        found = []
        for client, beside in zip(ids, more.tolist(), strict=True):
            is_known = self._computed and client in self._answered
            up = self._reported + beside + self._model_bytes * (not (is_known and self._sent))
            found.append((up, is_known))
        return found

    def receive(self, bytes_up: int, is_charged: bool, *, aggregated: bool) -> None:
        """Charge a reply when it arrives, as `send` has returned it.

        >>> from adcs.simulation.network import NetworkSettings
        >>> total = Ledger()
        >>> costs = RoundCosts(total, 10, 1, Network(NetworkSettings(), clients=5, seed=0))
        >>> costs.send(np.array([3]))
        [(40, False)]
        >>> costs.receive(40, False, aggregated=False)
        >>> total.updates, total.extra_updates, total.bytes_down, total.bytes_up
        (1, 1, 40, 40)
        """
        self._ledger.bytes_up += bytes_up
        self._ledger.updates += not is_charged
        self._ledger.extra_updates += (not aggregated) - is_charged

    def wait_until(self, end: float) -> None:
        """Charge the wait until a moment of the run's clock, which is the seconds spent so far."""
        self._waited += end - self._ledger.seconds
        self._ledger.seconds = end

    def _wait(self, times: Float64Array, missing: bool, waited: float | None = None) -> None:
        """Charge the wait: for the slowest client, or until the deadline if one is missing."""
        if times.size == 0:
            return
        deadline = self._network.settings.deadline
        longest = float(times.max())
        if waited is not None:
            longest = waited
        elif isinstance(deadline, float | int):
            longest = deadline if missing else min(longest, deadline)
        self._ledger.seconds += longest
        self._waited += longest
