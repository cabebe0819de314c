"""The scheduler's part in the rounds of a federation, in any framework.

A framework carries the messages; a `RoundDriver` does the rest. One round, in order:

    driver.begin()
    driver.set_model(arrays)                         # the model that will be sent
    driver.round.clients = clients                   # who may be asked
    driver.observe_late(purpose, client, reply)      # for each late answer to an earlier round
    request = driver.request(available, pending, m)
    driver.read_answer(probe, client, reply)         # for each answer to the probe, as it arrives
    driver.observe_probe(probe, exchange)            # if the request names clients
    cohort = driver.select(available, pending, m)    # those in round.early_replies have trained
    driver.read_reply(client, reply)                 # for each training reply, as it arrives
    usable = driver.observe_training(exchange)       # the replies to aggregate
    driver.finish_training(trained)
    driver.observe_evaluation(replies)               # if clients evaluate the new model
    driver.close()                                   # writes the record
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId
from adcs._validation import is_int
from adcs.backoff import Stage, without_unanswered
from adcs.federated.buffer import Buffer
from adcs.federated.messages import Exchange, Purpose, Reply, SentModel
from adcs.federated.probes import Probe
from adcs.federated.recorder import Recorder, RoundRecord, metrics_by_client, why_idle
from adcs.federated.replies import (
    ReplyBatch,
    ReplyChecks,
    ReplyReader,
    apply_weights,
    has_weights,
)
from adcs.federated.warn_once import WarnOnce
from adcs.observers import EvaluationEvent, Observer, RoundEvent, SelectionEvent, announce
from adcs.reports.report import SIGNALS, ClientReport
from adcs.reports.sketch import Sketcher, default_sketch
from adcs.run_folder import Ledger
from adcs.schedulers.base import Cohort, Request, Scheduler, Source

ClientsPerRound = int | float | Callable[[int], int | float]
"""A number of clients, a fraction of those connected, or a function of the round."""


def cohort_size(setting: ClientsPerRound, connected: int, server_round: int = 1) -> int:
    """Return how many clients to select.

    Parameters
    ----------
    setting
        A number, a fraction of the connected clients, or a function of the round that returns
        either.
    connected
        The number of connected clients.
    server_round
        The round as the framework counts it, for the function.

    Examples
    --------
    >>> cohort_size(18, 30), cohort_size(0.5, 30), cohort_size(lambda r: 2 * r, 30, server_round=3)
    (18, 15, 6)
    >>> cohort_size(1.5, 30)
    Traceback (most recent call last):
    ...
    ValueError: clients_per_round must be a whole number >= 1 or a fraction up to 1.0, got 1.5
    """
    value = setting(server_round) if callable(setting) else setting
    if is_int(value) and value >= 1:
        return int(value)
    if isinstance(value, (float, np.floating)) and 0.0 < value <= 1.0:
        return max(1, int(value * connected + 1e-9))
    raise ValueError(
        f"clients_per_round must be a whole number >= 1 or a fraction up to 1.0, got {value!r}"
    )


def check_observers(observers: Iterable[Observer]) -> list[Observer]:
    """Return observers as a list, or raise ValueError for anything else.

    >>> check_observers("tensorboard")
    Traceback (most recent call last):
    ...
    ValueError: observers must be a list of adcs.observers.Observer objects, got 'tensorboard'
    """
    several = isinstance(observers, Iterable) and not isinstance(observers, str)
    given = list(observers) if several else None
    wrong: list[Any] = [observers]
    if given is not None:
        wrong = [each for each in given if not isinstance(each, Observer)]
    if given is None or wrong:
        raise ValueError(
            f"observers must be a list of adcs.observers.Observer objects, got {wrong[0]!r}"
        )
    return given


@dataclass(frozen=True)
class FederatedRoundEvent(RoundEvent):
    """A round of a federation, with its record.

    Attributes
    ----------
    record
        The record of the round. Evaluation metrics are added to it after this event.

    Examples
    --------
    >>> from adcs.observers import Observer
    >>> class Refusals(Observer):
    ...     def on_round(self, event):
    ...         print(event.record.refused)
    """

    record: RoundRecord


@dataclass
class Round(Generic[Reply]):
    """The state of a round.

    Attributes
    ----------
    server_round
        The scheduler's round, counted from 0.
    record
        The record of the round.
    model
        The model that is sent; None if the strategy addresses no client.
    model_of
        Returns the model that a client is sent, where not all are sent `model`.
    clients
        The clients that may be asked.
    request
        What the scheduler has requested.
    answers
        The answers to the probe so far; None before the first and when they have been observed.
    early_replies
        Training replies that came in answer to the probe; their clients need not train again. After
        the selection, those of the cohort.
    early_clients
        The clients of all these replies.
    answerable
        Whether clients could answer the probe. If not, it is no failure of theirs.
    replies
        The training replies so far; None before the first.
    done
        Whether its replies have been aggregated.

    Examples
    --------
    >>> Round(server_round=0).record.trained
    []
    """

    server_round: int
    record: RoundRecord = field(default_factory=RoundRecord)
    model: SentModel | None = None
    model_of: Callable[[ClientId], SentModel] | None = None
    clients: tuple[ClientId, ...] = ()
    request: Request = field(default_factory=Request)
    answers: ReplyBatch[Reply] | None = None
    early_replies: dict[ClientId, Reply] = field(default_factory=dict)
    early_clients: tuple[ClientId, ...] = ()
    answerable: bool = True
    replies: ReplyBatch[Reply] | None = None
    done: bool = False

    @property
    def training(self) -> Purpose:
        """What the training messages ask for."""
        return Purpose("training", self.server_round, self.model, model_of=self.model_of)


class RoundDriver(Generic[Reply]):
    """Drives a scheduler through the rounds of a federation and records them.

    Parameters
    ----------
    scheduler
        The scheduler.
    checks
        What the metrics of a reply must contain.
    recorder
        Accumulates and writes the rounds.
    observers
        Observers of the run.
    warn_once
        Logs warnings.
    unweighted
        The name of a strategy that does not average by `checks.weight_key`, so that a cohort's
        weights cannot be applied; None if it does.
    stop_after
        After so many rounds in a row in which no client has trained, `finish_training` raises a
        RuntimeError with the reasons; None never does.
    sketch_above
        Updates of more numbers than this are sketched if the scheduler has no `sketch` of its own.

    Attributes
    ----------
    round
        The current round; None between rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from adcs import Uniform
    >>> scheduler = Uniform()
    >>> checks = ReplyChecks("num-examples", "train_loss")
    >>> driver = RoundDriver(scheduler, checks, Recorder(None, scheduler, "example", {}))
    >>> driver.begin().clients = (3, 7)
    >>> driver.set_model({"w": np.zeros(2)}).size
    2
    >>> driver.request((3, 7), (), 2).clients
    ()
    >>> driver.select((3, 7), (), 2).clients
    (3, 7)
    """

    def __init__(
        self,
        scheduler: Scheduler,
        checks: ReplyChecks,
        recorder: Recorder,
        *,
        observers: Iterable[Observer] = (),
        warn_once: WarnOnce | None = None,
        unweighted: str | None = None,
        stop_after: int | None = None,
        sketch_above: float = math.inf,
    ) -> None:
        self.scheduler = scheduler
        self.checks = checks
        self.recorder = recorder
        self.observers = check_observers(observers)
        self.warn_once = WarnOnce() if warn_once is None else warn_once
        self.unweighted = unweighted
        self.round: Round[Reply] | None = None
        self.stop_after = stop_after
        self._idle: list[RoundRecord] = []  # the last rounds, if no client has trained in them
        observes = "training" in scheduler.observed_sources
        self._reader = ReplyReader(
            checks,
            recorder.examples,
            uses_losses=observes and "loss" in scheduler.training_signals,
        )
        self.sketch_above = sketch_above
        self._announced_sketch = 0  # the size of updates for which it was logged
        self._sketch: Sketcher | None = scheduler.sketch

    def begin(self) -> Round[Reply]:
        """Start a round; one that was broken off is not counted, and this one replaces it."""
        self.close()
        self.round = Round(self.recorder.rounds_done)
        return self.round

    def set_model(
        self,
        arrays: Mapping[str, NDArray[Any]],
        patterns: Sequence[str] | None = None,
        record_name: str = "arrays",
    ) -> SentModel:
        """Set the model of the round; parameters as of `SentModel`."""
        model = SentModel(arrays, patterns, self.recorder.update_keys, record_name)
        self.recorder.update_keys = model.keys
        self._current().model = model
        if self.scheduler.sketch is None:
            self._sketch = default_sketch(model.size, above=self.sketch_above)
        return model

    def observe_late(
        self, purpose: Purpose, client: ClientId, reply: Reply, *, outrun: bool = False
    ) -> bool:
        """Pass an answer that came too late on to the scheduler; return whether it can be used.

        Parameters
        ----------
        purpose
            What had been asked for.
        client, reply
            The client and its answer.
        outrun
            Whether its round had not waited for it, so that it has not failed so far.
        """
        current = self._current()
        current.record.late.append(
            {"client": client, "stage": purpose.stage, "server_round": purpose.server_round + 1}
        )
        if purpose.stage not in ("probe", "training"):
            return False
        usable = self._reader.read(purpose, {client: reply}, current.record, sketch=self._sketch)
        costs = current.record.costs
        costs.bytes_up += reply.nbytes
        self._count_work(purpose, int(reply.error is None))
        self._enrol(current.server_round, usable.reports)
        source: Source = "late" if purpose.stage == "training" else purpose.stage
        self.scheduler.observe(current.server_round, usable.reports, source)
        if outrun:
            self._record_failures("training", [client], [client] if usable.trained else [])
        return bool(usable.reports)

    def record_silent(self, clients: Sequence[ClientId]) -> None:
        """Record that clients whose round had not waited for them have not answered at all."""
        self._record_failures("training", clients, [])

    def request(
        self, available: Sequence[ClientId], pending: Sequence[ClientId], m: int
    ) -> Request:
        """Return the scheduler's request; clients that back off are not offered to it.

        Parameters
        ----------
        available, pending
            The clients that may be asked, and those with a pending answer.
        m
            How many clients will be selected.
        """
        current = self._current()
        current.record.pending = list(pending)
        offered = self._offered(available, m)
        may_ask = set(offered)
        current.record.backing_off = [client for client in available if client not in may_ask]
        empty = current.model is not None and not current.model.nbytes
        before = self.scheduler.state() if empty else None
        request = self.scheduler.request(current.server_round, offered, m)
        self._check_request(request, current.model)
        if before is not None and self._evaluates_only(request):
            request = Request()
            self.scheduler.restore(before)  # It has asked nobody.
        if "update" in request.signals and request.sketch is None and self._sketch is not None:
            request = replace(request, sketch=self._sketch)
            self._announce_sketch(current, self._sketch)
        current.request = request
        return request

    def _check_request(self, request: Request, model: SentModel | None) -> None:
        """Raise ValueError if updates are requested of a model that has none, such as trees."""
        wanted = [name for name in sorted(request.signals) if SIGNALS[name].work == "update"]
        if request.clients and wanted and model is not None and not model.keys:
            raise ValueError(
                f"{type(self.scheduler).__name__} goes by updates (it requests {wanted[0]!r}), and "
                f"the model has no floating-point arrays, got {sorted(model.arrays)[:3]}: "
                "serialised models, such as trees, have no updates. Use a scheduler that needs "
                "none, such as Uniform or PowerOfChoice"
            )

    def _evaluates_only(self, request: Request) -> bool:
        """Whether clients would only evaluate, which they cannot if the model is empty; warns.

        Trees begin as an empty array; libraries fail on it, some by ending the process.
        """
        if not request.clients or any(SIGNALS[name].work == "update" for name in request.signals):
            return False
        self.warn_once(
            "empty",
            "the model is empty, so that no client can evaluate it: "
            f"{type(self.scheduler).__name__} selects without {', '.join(sorted(request.signals))} "
            "until it has been trained",
        )
        return True

    def _announce_sketch(self, current: Round[Reply], sketch: Sketcher) -> None:
        """Log once that updates are sketched because of their size."""
        size = 0 if current.model is None else current.model.size
        if self._announced_sketch != size:
            self._announced_sketch = size
            self.warn_once.log.info(
                "updates have %d numbers, more than sketch_above=%g: clients send sketches of %d "
                "numbers (sketch= of the scheduler sets another size)",
                size,
                self.sketch_above,
                sketch.size,
            )

    def read_answer(self, probe: Probe, client: ClientId, reply: Reply) -> None:
        """Read a client's answer to the probe as it arrives; what need not be kept is let go.

        Parameters
        ----------
        probe
            The probe, from `probes.plan_probe`.
        client, reply
            The client and its answer.
        """
        current = self._current()
        started = time.perf_counter()
        if current.answers is None:
            if "update" in current.request.signals:
                self._sketch = current.request.sketch
            current.answers = self._reader.batch(probe.purpose, sketch=self._sketch)
        current.answers.add(client, reply)
        current.record.schedule_seconds += time.perf_counter() - started

    def observe_probe(self, probe: Probe, exchange: Exchange[Reply]) -> None:
        """Pass the answers to the probe on to the scheduler.

        Parameters
        ----------
        probe
            The probe, from `probes.plan_probe`.
        exchange
            Its messages, and the replies that were not read as they arrived.
        """
        current = self._current()
        record, request = current.record, current.request
        record.probed = request.clients
        for client, reply in exchange.replies.items():
            self.read_answer(probe, client, reply)
        if "update" in request.signals:
            self._sketch = request.sketch
        batch, current.answers = current.answers, None
        if batch is None:
            batch = self._reader.batch(probe.purpose, sketch=self._sketch)
        self._count_traffic(exchange, "probe", batch)
        started = time.perf_counter()
        usable = batch.finish(record)
        self._enrol(current.server_round, usable.reports)
        self.scheduler.observe(current.server_round, usable.reports, "probe")
        record.schedule_seconds += time.perf_counter() - started
        current.early_replies = usable.trained
        current.early_clients = tuple(usable.trained)
        record.answered = [report.client for report in usable.reports]
        self._count_work(probe.purpose, batch.contents)
        without_loss = "loss" in request.signals and all(r.loss is None for r in usable.reports)
        if without_loss and usable.reports:
            self.warn_once(
                "loss",
                f"no client reported {self.checks.loss_key!r}: name the loss of your training "
                "replies with loss_key=",
            )

    def select(self, available: Sequence[ClientId], pending: Sequence[ClientId], m: int) -> Cohort:
        """Return the cohort of the round.

        Clients that back off or did not answer the probe are left out, unless there are too few
        others.

        Parameters
        ----------
        available, pending
            The clients that may be asked, and those at work, which the cohort complements.
        m
            How many clients to select.
        """
        current = self._current()
        record = current.record
        offered = self._offered(available, m)
        candidates = without_unanswered(offered, record.probed, record.answered)
        started = time.perf_counter()
        record.cohort = self.scheduler.select(current.server_round, candidates, m, pending)
        record.schedule_seconds += time.perf_counter() - started
        summed = not record.cohort.normalise and self.unweighted is None
        if summed and current.model_of is not None:
            raise ValueError(
                f"{type(self.scheduler).__name__} selects cohorts that are not normalised, whose "
                "update is a sum of changes of one model, and clients are sent different ones"
            )
        current.early_replies = {
            client: current.early_replies[client]
            for client in record.cohort.clients
            if client in current.early_replies
        }
        self.recorder.explain(record, candidates, self.warn_once.log)
        self.recorder.announce(record, current.clients)
        if self.observers:
            selection = SelectionEvent(
                run=self._run,
                seed=self.scheduler.seed,
                server_round=current.server_round,
                scheduler=self.scheduler,
                available=candidates,
                pending=tuple(pending),
                request=current.request,
                cohort=record.cohort,
                backing_off=tuple(record.backing_off),
            )
            announce(self.observers, "on_selection", selection)
        return record.cohort

    def read_reply(self, client: ClientId, reply: Reply, purpose: Purpose | None = None) -> bool:
        """Read a training reply as it arrives; return whether it can be used, as far as it shows.

        Parameters
        ----------
        client, reply
            The client and its reply.
        purpose
            What the client was asked for, if it was sent another model than that of the round.
        """
        return self._training_batch().add(client, reply, purpose)

    def usable_replies(self) -> list[ClientId]:
        """Return the clients whose training replies can be used so far, in order of arrival."""
        return self._training_batch().usable()

    def remove_reply(self, client: ClientId) -> Reply:
        """Remove and return a training reply that is not aggregated."""
        return self._training_batch().remove(client)

    def _training_batch(self) -> ReplyBatch[Reply]:
        current = self._current()
        if current.replies is None:
            observes = "training" in self.scheduler.observed_sources
            current.replies = self._reader.batch(
                current.training, sketch=self._sketch, with_update=observes
            )
        return current.replies

    def observe_training(
        self, exchange: Exchange[Reply], buffer: Buffer | None = None
    ) -> dict[ClientId, Reply]:
        """Pass the training replies on to the scheduler; return those to aggregate.

        Replies that came with the probe are among them. The cohort's weights are applied.

        Parameters
        ----------
        exchange
            The training messages and the replies that were not read as they arrived.
        buffer
            What the clients were sent, in asynchronous rounds: their replies are re-based.
        """
        current = self._current()
        model, record = current.model, current.record
        assert model is not None
        record.outrun = list(exchange.outrun)
        observes = "training" in self.scheduler.observed_sources
        batch = self._training_batch()
        for client, reply in exchange.replies.items():
            batch.add(client, reply)
        contents = batch.contents
        self._count_traffic(exchange, "training", batch)
        for client, reply in current.early_replies.items():
            if client not in exchange.outrun:
                batch.add(client, reply)
        usable = batch.finish(record)
        self._enrol(current.server_round, usable.reports)
        if observes:
            self.scheduler.observe(current.server_round, usable.reports, "training")
            if usable.reports:
                for sentence in self.scheduler.missing_signals():
                    self.warn_once(sentence, sentence)
        cohort, asked = record.cohort, record.cohort.clients
        if buffer is not None:
            record.staleness = buffer.rebase(usable.trained, model, current.server_round)
            cohort, asked = buffer.cohort(usable.trained), tuple(exchange.clients)
        if usable.trained and has_weights(cohort):
            self._apply_weights(current, cohort, model, usable.trained)
        record.costs.updates += contents
        record.costs.extra_updates += contents
        if current.answerable:
            self._record_failures("probe", record.probed, record.answered)
        # Whole updates that came with the probe are training replies, selected or not.
        trained = dict.fromkeys([*current.early_clients, *usable.trained])
        waited = [client for client in asked if client not in exchange.outrun]
        asked_once = dict.fromkeys([*current.early_clients, *waited])
        self._record_failures("training", list(asked_once), list(trained))
        return usable.trained

    def finish_training(
        self, trained: Iterable[ClientId], unused: Iterable[ClientId] = ()
    ) -> RoundRecord:
        """End the training of the round; return its record.

        Parameters
        ----------
        trained
            The clients whose replies were aggregated.
        unused
            The clients whose usable replies the strategy made no model of.
        """
        current = self._current()
        record = current.record
        record.trained, record.unused = list(trained), list(unused)
        record.costs.extra_updates -= len(record.trained)
        record.log_problems(self.warn_once.log, current.server_round + 1)
        current.done = True
        current.replies, current.early_replies = None, {}  # They are aggregated: let go.
        if self.observers:
            finished = FederatedRoundEvent(
                run=self._run,
                seed=self.scheduler.seed,
                server_round=current.server_round,
                scheduler=self.scheduler,
                trained=tuple(record.trained),
                costs=record.costs,
                record=record,
            )
            announce(self.observers, "on_round", finished)
        self._stop_if_idle(record)
        return record

    def _stop_if_idle(self, record: RoundRecord) -> None:
        """Raise RuntimeError if no client has trained for `stop_after` rounds."""
        self._idle = [] if record.trained else [*self._idle, record]
        if self.stop_after is None or len(self._idle) < self.stop_after:
            return
        rounds, reasons = len(self._idle), why_idle(self._idle)
        self._idle = []
        self.close()
        raise RuntimeError(
            f"no client has trained in the last {rounds} rounds (stop_after={self.stop_after}): "
            + reasons
        )

    def observe_evaluation(
        self, replies: Mapping[ClientId, Reply]
    ) -> tuple[dict[ClientId, Reply], dict[str, dict[ClientId, float]]]:
        """Return the evaluation replies to aggregate, and their metrics by client."""
        usable, evaluation = self.observe_evaluations(list(replies.items()))
        return dict(usable), evaluation

    def observe_evaluations(
        self, replies: Iterable[tuple[ClientId, Reply]]
    ) -> tuple[list[tuple[ClientId, Reply]], dict[str, dict[ClientId, float]]]:
        """Like `observe_evaluation`, where clients may have sent several replies.

        The metrics of a client are those of its first usable reply.
        """
        record = RoundRecord() if self.round is None else self.round.record
        usable = self._reader.read_evaluations(replies, record)
        record.log_problems(self.warn_once.log, self.recorder.rounds_done + 1)
        first: dict[ClientId, Mapping[str, Any]] = {}
        for client, reply in usable:
            first.setdefault(client, reply.metrics)
        record.evaluation = metrics_by_client(first, self.checks.weight_key)
        return usable, record.evaluation

    def close(self) -> None:
        """Record the round, if its replies have been aggregated."""
        current, self.round = self.round, None
        if current is None or not current.done:
            return
        line = self.recorder.close(current.record, current.clients)
        event = EvaluationEvent(self._run, self.scheduler.seed, current.server_round, line)
        announce(self.observers, "on_evaluation", event)

    def end(self) -> None:
        """Announce the end of the run; a round that is done and still open is recorded first."""
        try:
            self.close()
        finally:
            announce(self.observers, "on_end")

    @property
    def _run(self) -> str:
        return type(self.scheduler).__name__

    def _current(self) -> Round[Reply]:
        if self.round is None:
            raise RuntimeError("no round has begun: call begin() first")
        return self.round

    def _offered(self, available: Sequence[ClientId], m: int) -> tuple[ClientId, ...]:
        """Return the clients that the scheduler may ask."""
        return self.recorder.backoff.offered(self._current().server_round, tuple(available), m)

    def _record_failures(
        self, stage: Stage, asked: Sequence[ClientId], usable: Sequence[ClientId]
    ) -> None:
        """Record who gave no usable reply in time; evidence of those that fail again expires."""
        server_round = self._current().server_round
        expired = self.recorder.backoff.record(server_round, stage, asked, usable)
        if expired:
            self.scheduler.expire(expired)

    def _apply_weights(
        self,
        current: Round[Reply],
        cohort: Cohort,
        model: SentModel,
        replies: Mapping[ClientId, Reply],
    ) -> None:
        key = self.checks.weight_key
        if key is None or self.unweighted is not None:
            self.warn_once(
                "weights",
                f"{self.unweighted or 'the strategy'} aggregates without client weights: those of "
                f"{type(self.scheduler).__name__} are not used",
            )
            return
        apply_weights(cohort, replies, model, key, self.recorder.examples, current.clients)

    def _enrol(self, server_round: int, reports: Iterable[ClientReport]) -> None:
        """Report new numbers of examples to the scheduler; clients state theirs in replies."""
        known = self.recorder.examples
        new = {
            report.client: report.examples
            for report in reports
            if report.examples and known.get(report.client) != report.examples
        }
        known |= new
        if new:
            enrolment = [
                ClientReport(client, server_round, examples=n) for client, n in new.items()
            ]
            self.scheduler.observe(server_round, enrolment, "enrolment")

    def _count_traffic(
        self, exchange: Exchange[Reply], stage: str, batch: ReplyBatch[Reply]
    ) -> None:
        """Add an exchange to the costs of the round, and record who did not answer."""
        record = self._current().record
        record.costs.seconds += exchange.seconds
        record.costs.bytes_down += exchange.bytes_down
        record.costs.bytes_up += batch.nbytes
        answered = {*batch.clients, *exchange.outrun}
        missing = [client for client in exchange.clients if client not in answered]
        if missing:
            record.timed_out[stage] = missing

    def _count_work(self, purpose: Purpose, contents: int) -> None:
        """Add the work behind the answers to a probe, or behind late answers, to the costs."""
        costs: Ledger = self._current().record.costs
        if purpose.model is None:
            costs.loss_evaluations += contents
        else:
            costs.updates += contents
            costs.extra_updates += contents
