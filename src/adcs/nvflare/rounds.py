"""The rounds of a scheduled federation, as NVFlare's controller runs them.

NVFlare sends a task to clients by name and waits for their results; `Communicator` is that part of
it. This module does not import NVFlare.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from adcs._types import ClientId
from adcs.federated.client_registry import ClientRegistry
from adcs.federated.messages import Exchange, Purpose
from adcs.federated.probes import ProbeQuestion, plan_probe
from adcs.federated.recorder import RoundRecord
from adcs.federated.round import RoundDriver, cohort_size
from adcs.nvflare.replies import FlareReply
from adcs.schedulers.base import Request


@dataclass
class Answers:
    """What came of a task.

    Attributes
    ----------
    replies
        The replies that came in time, by client.
    unanswered
        The client of each task that was fetched and not answered, by the id of the client's task.
    """

    replies: dict[str, FlareReply] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)


class Communicator(Protocol):
    """What the rounds need of NVFlare."""

    def connected(self) -> list[str]:
        """Return the names of the clients that are connected."""

    def send(
        self,
        task: str,
        model: Any,
        clients: Sequence[str],
        timeout: float,
        question: ProbeQuestion | None = None,
    ) -> Answers:
        """Send a task to clients and wait for them, at most `timeout` seconds; 0 sets no limit."""

    def late(self) -> list[tuple[str, FlareReply]]:
        """Return the results that have come too late since the last call, by the task's id."""


@dataclass(frozen=True)
class Settings:
    """The settings of the rounds.

    Attributes
    ----------
    num_clients
        The number of clients to select, or a fraction of those connected.
    train_task, evaluate_task
        The names of the tasks.
    timeout, probe_timeout
        Seconds to wait for training and evaluation, and for probes; 0 sets no limit.
    evaluate_every
        After how many rounds all clients evaluate the model; 0 never asks them.
    arrays
        Shell patterns of the arrays that make up the update; None takes all parameters.
    """

    num_clients: int | float
    train_task: str = "train"
    evaluate_task: str = "validate"
    timeout: float = 0
    probe_timeout: float = 0
    evaluate_every: int = 0
    arrays: Sequence[str] | None = None


class Rounds:
    """Drives a scheduler through the rounds of NVFlare's FedAvg.

    Parameters
    ----------
    driver
        The scheduler's part in a round.
    communicator
        Sends tasks.
    settings
        The settings.
    patience
        Seconds during which a client that has not answered in time is not asked again.
    clock
        The time in seconds.
    """

    def __init__(
        self,
        driver: RoundDriver[FlareReply],
        communicator: Communicator,
        settings: Settings,
        patience: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = driver
        self.communicator = communicator
        self.settings = settings
        self._registry = ClientRegistry[str](patience=patience)
        self._clock = clock

    def train(self, model: Any, arrays: Mapping[str, NDArray[Any]]) -> dict[str, FlareReply]:
        """Probe if the scheduler requests it, select, train, and return the replies to aggregate.

        Parameters
        ----------
        model, arrays
            The model as NVFlare sends it, and its arrays.
        """
        driver, settings = self.driver, self.settings
        this_round = driver.begin()
        sent = driver.set_model(arrays, settings.arrays)
        if not sent.keys:
            raise ValueError(
                "the model must have floating-point arrays before the first round: give FedAvg a "
                "model, or a persistor that loads one"
            )
        clients: dict[ClientId, str] = {
            name: name for name in sorted(self.communicator.connected())
        }
        this_round.clients = tuple(clients)
        self._observe_late(clients)
        asked: list[str] = []
        if clients:
            m = cohort_size(settings.num_clients, len(clients), this_round.server_round + 1)
            request = driver.request(*self._registry.split(clients), m)
            if request.clients:
                self._probe(model, request)
            cohort = driver.select(*self._registry.split(clients), m)
            early = this_round.early_replies
            asked = [str(client) for client in cohort.clients if client not in early]
        purpose = Purpose("training", this_round.server_round, sent)
        exchange = self._exchange(settings.train_task, model, asked, settings.timeout, purpose)
        usable = driver.observe_training(exchange)
        return {str(client): reply for client, reply in usable.items()}

    def finish_training(self, trained: Sequence[str]) -> RoundRecord:
        """End the training of the round with the clients whose replies were aggregated."""
        return self.driver.finish_training(trained)

    def close(self, model: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Let clients evaluate the new model if it is time, and write the round.

        Parameters
        ----------
        model, arrays
            The new model as NVFlare sends it, and its arrays, which the checkpoint saves.
        """
        driver, settings = self.driver, self.settings
        this_round = driver.round
        assert this_round is not None
        done = this_round.server_round + 1
        if settings.evaluate_every and done % settings.evaluate_every == 0:
            busy = self._registry.pending_nodes()
            free = [name for name in sorted(self.communicator.connected()) if name not in busy]
            purpose = Purpose("evaluation", this_round.server_round)
            exchange = self._exchange(
                settings.evaluate_task, model, free, settings.timeout, purpose
            )
            driver.observe_evaluation(exchange.replies)
        if driver.recorder.saves:
            driver.recorder.model = dict(arrays)
        driver.close()

    def _observe_late(self, clients: Mapping[ClientId, str]) -> None:
        """Pass late replies of clients that are still connected on to the scheduler."""
        for task_id, reply in self.communicator.late():
            message = self._registry.pop_pending(task_id)
            if message is not None and message.node in clients:
                self.driver.observe_late(message.purpose, message.node, reply)
        self._registry.expire(self._clock())

    def _probe(self, model: Any, request: Request) -> None:
        """Send the probe that the scheduler requests, and pass the answers on to it."""
        driver, settings = self.driver, self.settings
        this_round = driver.round
        assert this_round is not None
        assert this_round.model is not None
        probe = plan_probe(request, this_round.server_round, this_round.model, driver.checks)
        is_evaluation = probe.handler == "evaluate"
        task = settings.evaluate_task if is_evaluation else settings.train_task
        wait = settings.timeout if probe.is_training else settings.probe_timeout or settings.timeout
        names = [str(client) for client in request.clients]
        exchange = self._exchange(task, model, names, wait, probe.purpose, probe.question)
        driver.observe_probe(probe, exchange)
        if probe.question is not None and this_round.early_replies:
            self._report_missing_filter([str(client) for client in this_round.early_replies])

    def _report_missing_filter(self, clients: Sequence[str]) -> None:
        """Record clients that have answered a probe for a sketch with a whole training reply."""
        this_round = self.driver.round
        assert this_round is not None
        this_round.record.without_mod = list(clients)
        self.driver.warn_once(
            "filter",
            f"no answer from ProbeFilter of {', '.join(clients)}: a probe costs a whole training "
            "reply there; add it with job.to_clients(ProbeFilter())",
        )

    def _exchange(
        self,
        task: str,
        model: Any,
        clients: Sequence[str],
        timeout: float,
        purpose: Purpose,
        question: ProbeQuestion | None = None,
    ) -> Exchange[FlareReply]:
        """Send a task; clients that have fetched it and do not answer in time are pending."""
        if not clients:
            return Exchange()
        this_round = self.driver.round
        assert this_round is not None
        assert this_round.model is not None
        started = self._clock()
        answers = self.communicator.send(task, model, clients, timeout, question)
        now = self._clock()
        for task_id, client in answers.unanswered.items():
            self._registry.add_pending(task_id, client, purpose, now)
        sent = sum(array.nbytes for array in this_round.model.arrays.values())
        return Exchange(
            clients=list(clients),
            replies=dict(answers.replies.items()),
            bytes_down=sent * len(clients),
            seconds=now - started,
        )
