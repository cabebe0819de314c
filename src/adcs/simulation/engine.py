"""The simulator: runs several schedulers at once on one federation, round by round.

Each round, for each run: request, probe, observe, select, local training, aggregate, observe. The
runs differ in their schedulers alone. They share the clients, each client's mini-batches and the
network; one pass over the data computes single mini-batch steps for all of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from adcs import metrics
from adcs._types import ClientId, Float64Array, FloatArray, IndexArray
from adcs.backoff import Stage, without_unanswered
from adcs.observers import (
    EvaluationEvent,
    Observer,
    RoundEvent,
    SelectionEvent,
    announce,
    listeners,
)
from adcs.reports.report import ClientReport
from adcs.reports.sketch import SKETCH_ABOVE, default_sketch, sketch_sentence
from adcs.reports.table import ReportTable
from adcs.rounds import Buffered
from adcs.run_folder import Ledger
from adcs.schedulers.base import Request, Scheduler, Source
from adcs.simulation.aggregation import Aggregation, Mean, check_aggregate
from adcs.simulation.arrivals import (
    aggregate_buffer,
    hold_reports,
    hold_updates,
    reports_of,
    start_jobs,
)
from adcs.simulation.attacks import Attack, AttackedRound, check_attack
from adcs.simulation.batches import Batches
from adcs.simulation.costs import RoundCosts
from adcs.simulation.federation import Federation
from adcs.simulation.in_flight import InFlight, Job
from adcs.simulation.local_rounds import (
    LocalRound,
    Setup,
    WeightedCohorts,
    count_numbers,
    round_starter,
)
from adcs.simulation.local_training import LocalSGD, LocalTraining, TrainingStates
from adcs.simulation.models import Model, buffers_of
from adcs.simulation.network import ADAPTIVE, Network, NetworkSettings
from adcs.simulation.reporting import Reporter
from adcs.simulation.round_settings import RoundSettings
from adcs.simulation.run import Run
from adcs.simulation.scheduler_errors import OWN_ERRORS, own_error
from adcs.simulation.training import Training, is_spec

PER_CLIENT_LIMIT = 1000
"""With more clients than this, records leave out lists with an entry for each client."""

GRAM_LIMIT = 50
"""With more clients than this, records leave out inner products between updates."""

MEASURED_NUMBERS = 2**26
"""If all clients' updates have more numbers than this, records leave out the selection bias: it
would take 540 MB of memory."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Measures(NamedTuple):
    """What an evaluated round measures of a run beside its record.

    Attributes
    ----------
    entries
        The entries of the record: the selection bias and what it is made of.
    gram
        Inner products of all clients' updates; None if they are not measured.

    Examples
    --------
    >>> Measures({"bias": 0.5}).gram is None
    True
    """

    entries: dict[str, Any]
    gram: Float64Array | None = None


class Simulation:
    """Several schedulers on one federation.

    Parameters
    ----------
    federation
        The clients.
    model
        What they train.
    schedulers
        The schedulers to compare, by name; each starts from the same initial model.
    training
        How they train.
    network
        Speeds, availability and failures; None is a network of equal, faultless clients.
    seed
        Named in the records; also seeds the initial model.
    observers
        Observers of the runs (`adcs.observers`); more can be added to `observers`.
    local_training
        How one client trains; None is the SGD of `training`.
    aggregation
        How updates are aggregated; None is that of `training`.
    round_settings
        How rounds end; None waits for all clients of a cohort.
    attack
        Clients that do not tell the truth.
    sketch_above
        If updates have more numbers than this, schedulers that have no `sketch` of their own get
        sketches of max(256, 8 m) numbers; 0 and None never.

    Examples
    --------
    >>> from adcs.schedulers import ADCS, Uniform
    >>> from adcs.simulation import MLP, load, make_partition
    >>> data = load("synthetic:clusters=2,dimension=3")
    >>> federation = Federation(data, make_partition(data, "iid", 6, seed=0))
    >>> schedulers = {"Uniform": Uniform(), "ADCS": ADCS()}
    >>> simulation = Simulation(federation, MLP(3, 2), schedulers, Training(m=2, lr=0.1))
    >>> simulation.run(20)
    >>> [round(record["average"], 1) for record in simulation.evaluate()]
    [1.0, 1.0]
    """

    def __init__(
        self,
        federation: Federation,
        model: Model,
        schedulers: Mapping[str, Scheduler],
        training: Training,
        *,
        network: Network | None = None,
        seed: int = 0,
        observers: Iterable[Observer] = (),
        local_training: LocalTraining | None = None,
        aggregation: Aggregation | None = None,
        round_settings: RoundSettings | None = None,
        attack: Attack | None = None,
        sketch_above: int | None = SKETCH_ABOVE,
    ) -> None:
        n = len(federation.clients)
        if not 1 <= training.m <= n:
            raise ValueError(f"m must lie between 1 and {n} (all clients), got {training.m}")
        self.federation = federation
        self.model = model
        self.training = training
        self.network = network or Network(NetworkSettings(spread=0.0), n, seed)
        self.seed = seed
        self.observers = list(observers)
        self.server_round = 0
        self.runs = [
            Run(name, scheduler, Ledger(), np.zeros(n, dtype=np.intp))
            for name, scheduler in schedulers.items()
        ]
        initial = model.initial(seed).astype(federation.dtype)
        self.parameters: FloatArray = np.repeat(initial[None], len(self.runs), axis=0)
        self._size = model.size - buffers_of(model)
        self._default_sketch = default_sketch(self._size, training.m, above=sketch_above or None)
        if self._default_sketch is not None:
            log.info(sketch_sentence(self._size, self._default_sketch, sketch_above))
        self._probed: set[int] = set()  # Runs that have probed clients in this round.
        self._local = local_training or _named(training, "local_training", training.local_sgd)
        self._aggregation = aggregation or _named(
            training, "aggregation", training.make_aggregation
        )
        self._server_optimizer = training.make_server_optimizer()
        self._attack = None if attack is None else check_attack(attack, n)
        for run in self.runs:
            run.states = TrainingStates(self._local.initial_shared(initial[: self._size].copy()))
        self._sends_updates_only = isinstance(self._local, LocalSGD)
        batches = Batches(federation, training, seed)
        self._steps = float(np.median(batches.steps))
        self._work = batches.relative_work
        states = [run.states for run in self.runs]
        self._start_round = round_starter(
            Setup(federation, model, self._local, batches, training.lr, seed, states)
        )
        by_size = federation.sizes / federation.sizes.sum()
        self._p: Float64Array = by_size if training.weights == "size" else np.full(n, 1.0 / n)
        self._measurable = n <= PER_CLIENT_LIMIT and n * model.size <= MEASURED_NUMBERS
        self._reporter = Reporter(federation, model, self.network, training.lr, self._work)
        self._rounds = round_settings or RoundSettings()
        self._buffered = self._rounds.buffered(training.m)
        adaptive = self.network.settings.deadline == ADAPTIVE
        if adaptive or self._buffered or self._rounds.over_select is not None:
            self._check_flights(n)
            for run in self.runs:
                run.in_flight = InFlight(n)
        for run in self.runs:
            self._observe(run, self._reporter.table(np.arange(n), 0), "enrolment")

    def _check_flights(self, clients: int) -> None:
        """Refuse settings that do not go with rounds that end without some of their clients."""
        if self.training.paper_literal_weights:
            raise ValueError(
                "training.paper_literal_weights needs rounds that wait for all clients"
            )
        if self._buffered is None:
            return
        if self._buffered.concurrency > clients:
            raise ValueError(
                f"round.concurrency must be at most {clients} (all clients), "
                f"got {self._buffered.concurrency}"
            )
        if not isinstance(self._local, LocalSGD):
            raise ValueError(
                f"round.mode buffered needs local training by SGD, got {type(self._local).__name__}"
            )

    def run(self, rounds: int, *, eval_every: int = 100) -> None:
        """Run until so many rounds are done in all; announce records, selections and rounds.

        Models are evaluated before every `eval_every`-th round and after the last one. The record
        of a round has the selection bias of its cohort too.

        Parameters
        ----------
        rounds
            The number of rounds, those done before included.
        eval_every
            Rounds between evaluations.
        """
        for _ in self.iter_rounds(rounds, eval_every=eval_every):
            pass

    def iter_rounds(self, rounds: int, *, eval_every: int = 100) -> Iterator[int]:
        """Like `run`, round by round: yield the number of rounds done after each of them."""
        while self.server_round < rounds:
            evaluated = self.server_round % eval_every == 0
            records = self.evaluate() if evaluated else []
            local, costs, measures = self._select_cohorts(measured=evaluated)
            none = [Measures({})] * len(records)
            for record, measured in zip(records, measures or none, strict=True):
                self._announce_record({**record, **measured.entries}, measured.gram)
            self._train(local, costs)
            yield self.server_round
        for record in self.evaluate(final=True):
            self._announce_record(record)
        announce(self.observers, "on_end")

    def step(self, *, measured: bool = False) -> list[dict[str, Any]]:
        """Run one round; if `measured`, return the selection bias of each run's cohort."""
        local, costs, measures = self._select_cohorts(measured=measured)
        self._train(local, costs)
        return [measured.entries for measured in measures]

    def _select_cohorts(
        self, *, measured: bool
    ) -> tuple[LocalRound, list[RoundCosts], list[Measures]]:
        """Select the cohort of each run, after the probe that its scheduler requests."""
        server_round = self.server_round
        available = self.network.available(server_round)
        local = self._start_round(self.parameters, server_round)
        if self._attack is not None:
            n = len(self.federation.clients)
            local = AttackedRound(local, self._attack, server_round, n, self._size)
        costs = [self._costs(local, i) for i in range(len(self.runs))]
        probes = []
        needed = []
        self._probed.clear()
        for i, run in enumerate(self.runs):
            self._take_late(run, costs[i])
            m = self._slots(run)
            free = available if run.in_flight is None else run.in_flight.free(available)
            offered = run.backoff.offered(server_round, free, m)
            request = run.call(server_round, run.scheduler.request, server_round, offered, m)
            if request.clients:
                if "update" in request.signals and request.sketch is None:
                    request = replace(request, sketch=self._default_sketch)
                self._probed.add(i)
                probed = np.array(request.clients, dtype=np.intp)
                seconds = partial(costs[i].probe_seconds, request)
                answered, waited = self._answered(run, probed, seconds)
                probes.append((i, request, offered, probed, answered, waited))
                needed.append(answered)
            else:
                # Schedulers without a probe select first, so that one pass serves all runs.
                self._select(run, offered, request)
                needed.append(run.selected)
        measured = measured and self._measurable and self._buffered is None
        if measured:
            needed.append(np.arange(len(self.federation.clients)))
        if needed:
            local.prepare(np.concatenate(needed))
        for i, request, offered, probed, answered, waited in probes:
            costs[i].probe(request, probed, answered, waited)
            # Schedulers copy what they keep: the answers, perhaps whole updates, end here.
            self._observe(self.runs[i], self._answers(local, i, request, answered), "probe")
            whole = "update" in request.signals and request.sketch is None
            stage: Stage = "training" if whole else "probe"
            self._record_failures(self.runs[i], stage, probed.tolist(), answered.tolist())
            if answered.size < probed.size:
                offered = without_unanswered(offered, probed.tolist(), answered.tolist())
            self._select(self.runs[i], offered, request)
        return local, costs, self._measures(local) if measured else []

    def _costs(self, local: LocalRound, index: int) -> RoundCosts:
        """Return the costs of a round of one run, before anything is charged."""
        run = self.runs[index]
        return RoundCosts(
            run.ledger,
            self.model.size,
            self._steps,
            self.network,
            work=self._work,
            shared=count_numbers(run.states.shared),
            sent=None if self._sends_updates_only else partial(local.sent_numbers, index),
            classes=self.federation.dataset.classes,
            reported=self._reporter.reported_bytes(run.scheduler),
        )

    def _slots(self, run: Run) -> int:
        """Return how many clients a run selects."""
        if self._buffered is not None and run.in_flight is not None:
            return self._buffered.concurrency - len(run.in_flight.at_work())
        return self._rounds.asked(self.training.m)

    def _answered(
        self, run: Run, probed: IndexArray, seconds: Callable[[IndexArray], Float64Array]
    ) -> tuple[IndexArray, float | None]:
        """Return who answers a probe in time, and how long the server waits if that is learned."""
        if self.network.settings.deadline != ADAPTIVE or run.in_flight is None:
            return self._in_time(probed, seconds), None
        fails = self.network.fails(self.server_round, probed)
        return run.in_flight.answered(probed, seconds(probed), fails)

    def _in_time(
        self, clients: IndexArray, seconds: Callable[[IndexArray], Float64Array]
    ) -> IndexArray:
        """Return the clients that neither fail nor miss the deadline."""
        settings = self.network.settings
        if settings.dropout > 0.0:
            clients = clients[~self.network.fails(self.server_round, clients)]
        if isinstance(settings.deadline, float | int):
            clients = clients[seconds(clients) <= settings.deadline]
        return clients

    def _record_failures(
        self, run: Run, stage: Stage, asked: Sequence[ClientId], usable: Sequence[ClientId]
    ) -> None:
        """Record who gave no usable reply in time; evidence of those that fail again expires."""
        if len(asked) == len(usable) and not run.backoff:
            return
        server_round = self.server_round
        expired = run.backoff.record(server_round, stage, asked, usable)
        if expired:
            run.call(server_round, run.scheduler.expire, expired)

    def _answers(
        self, local: LocalRound, index: int, request: Request, clients: IndexArray
    ) -> ReportTable:
        """Return what clients answer to a request."""
        w, server_round = self.parameters[index], self.server_round
        return self._reporter.answers(local, index, w, request, clients, server_round)

    def _training_reports(self, local: LocalRound, index: int, clients: IndexArray) -> ReportTable:
        """Return what clients report in their training replies."""
        run = self.runs[index]
        sketch = run.scheduler.sketch or self._default_sketch
        request = Request(run.cohort.clients, run.scheduler.training_signals, sketch)
        return self._answers(local, index, request, clients)

    def _observe(self, run: Run, reports: Sequence[ClientReport], source: Source) -> None:
        server_round = self.server_round
        run.call(server_round, run.scheduler.observe, server_round, reports, source)

    def _select(self, run: Run, available: tuple[ClientId, ...], request: Request) -> None:
        """Let a scheduler select, and announce its cohort."""
        server_round, m, last = self.server_round, self._slots(run), run.cohort
        at_work = () if run.in_flight is None else tuple(run.in_flight.at_work())
        pending = () if self._buffered is None else at_work
        select = run.scheduler.select
        run.cohort = run.call(server_round, select, server_round, available, m, pending)
        if run.in_flight is not None and not run.cohort.normalise:
            raise ValueError(
                f"rounds that end without some of their clients need weights that sum to 1, and "
                f"{run.name} weights its cohorts otherwise (normalise=False)"
            )
        # A scheduler that keeps its cohort for some rounds returns the same tuples.
        if run.cohort.clients is not last.clients or run.cohort.weights is not last.weights:
            run.selected = np.array(run.cohort.clients, dtype=np.intp)
            run.cohort_weights = np.array(run.cohort.weights) * self._p[run.selected]
        run.counts[run.selected] += 1
        if self.observers and (observers := listeners(self.observers, "on_selection")):
            event = SelectionEvent(
                run=run.name,
                seed=self.seed,
                server_round=server_round,
                scheduler=run.scheduler,
                available=available,
                pending=at_work,
                request=request,
                cohort=run.cohort,
                backing_off=run.backoff.left_out(server_round, available),
            )
            announce(observers, "on_selection", event)

    def _train(self, local: LocalRound, costs: list[RoundCosts]) -> None:
        """Train the cohorts, aggregate what arrives in time, and announce the round."""
        if self._buffered is not None:
            trained = self._train_buffered(local, costs, self._buffered)
        else:
            trained = self._train_synchronously(local, costs)
        server_round, self.server_round = self.server_round, self.server_round + 1
        if self.observers and (observers := listeners(self.observers, "on_round")):
            for run, cost, clients in zip(self.runs, costs, trained, strict=True):
                event = RoundEvent(
                    run=run.name,
                    seed=self.seed,
                    server_round=server_round,
                    scheduler=run.scheduler,
                    trained=tuple(clients),
                    costs=cost.spent(),
                )
                announce(observers, "on_round", event)

    def _train_synchronously(
        self, local: LocalRound, costs: list[RoundCosts]
    ) -> list[list[ClientId]]:
        """Train each run's cohort and aggregate what arrives in time; return who took part."""
        arrived: WeightedCohorts = []
        for run, cost in zip(self.runs, costs, strict=True):
            if run.in_flight is None:
                clients = self._in_time(run.selected, cost.training_seconds)
                cost.training(run.selected, clients)
            else:
                start_jobs(run, self.network, cost, self.server_round)
                replied = self._wait(run, cost, min(self.training.m, run.selected.size))
                clients = run.selected[np.isin(run.selected, [job.client for job in replied])]
            arrived.append((clients, self._weights(run, clients)))
        arrivals = [clients for clients, _ in arrived if clients.size]
        update: FloatArray | None = None
        if arrivals:
            local.prepare(np.concatenate(arrivals))
            update = self._aggregate(local, arrived)
        for i, run in enumerate(self.runs):
            if "training" in run.scheduler.observed_sources:
                reports = self._training_reports(local, i, arrived[i][0])
                self._observe(run, reports, "training")
            if run.in_flight is None:
                asked, usable = run.selected.tolist(), arrived[i][0].tolist()
                self._record_failures(run, "training", asked, usable)
            else:
                self._hold_late(local, i)
        if update is not None:
            active = np.array([clients.size > 0 for clients, _ in arrived])
            self._step(update, active, self._statistics(local, arrived))
            for i, (clients, _) in enumerate(arrived):
                local.commit(i, clients)
        return [clients.tolist() for clients, _ in arrived]

    def _train_buffered(
        self, local: LocalRound, costs: list[RoundCosts], mode: Buffered
    ) -> list[list[ClientId]]:
        """Start the selected clients, and aggregate when a buffer is full; return who took part.

        Clients compute when they start, on the model that they were sent, and what they have
        computed is held until their reply arrives.
        """
        server_round = self.server_round
        started = [
            start_jobs(run, self.network, cost, server_round)
            for run, cost in zip(self.runs, costs, strict=True)
        ]
        if any(clients.size for clients in started):
            local.prepare(np.concatenate(started))
        update = np.zeros((len(self.runs), self._size), dtype=self.parameters.dtype)
        statistics = self.parameters[:, self._size :].copy()
        trained: list[list[ClientId]] = []
        for i, (run, cost) in enumerate(zip(self.runs, costs, strict=True)):
            assert run.in_flight is not None
            new = [
                job
                for job in run.in_flight.jobs
                if job.server_round == server_round and math.isfinite(job.arrives)
            ]
            hold_updates(new, local, i)
            if "training" in run.scheduler.observed_sources:
                hold_reports(new, self._training_reports(local, i, started[i]))
            replied = self._wait(run, cost, mode.size)
            if replied:
                try:
                    update[i], statistics[i] = aggregate_buffer(
                        replied, mode, self._aggregation, server_round, statistics[i]
                    )
                except OWN_ERRORS as error:
                    where = f"round {server_round}"
                    raise own_error("aggregation", self._aggregation, error, where) from error
            if reports := reports_of(replied):
                self._observe(run, reports, "training")
            trained.append([job.client for job in replied])
        if any(trained):
            self._step(update, np.array([bool(clients) for clients in trained]), statistics)
        return trained

    def _wait(self, run: Run, cost: RoundCosts, needed: int) -> list[Job]:
        """Wait on the clock of a run for replies, charge them, and return them."""
        flight = run.in_flight
        assert flight is not None
        awaited = () if self._buffered is not None else run.cohort.awaited
        end, replied = flight.wait(run.ledger.seconds, needed, awaited)
        cost.wait_until(end)
        for job in replied:
            cost.receive(job.bytes_up, job.is_charged, aggregated=True)
        usable = [job.client for job in replied]
        flight.take_part(usable, self.server_round)
        failed = flight.give_up(end)
        flight.record(replied, failed)
        self._record_failures(run, "training", [*usable, *failed], usable)
        return replied

    def _hold_late(self, local: LocalRound, index: int) -> None:
        """Keep what clients of this round will report that are still at work at its end."""
        run = self.runs[index]
        assert run.in_flight is not None
        late = [job for job in run.in_flight.jobs if job.server_round == self.server_round]
        for job in late:
            job.is_late = True
        late = [job for job in late if math.isfinite(job.arrives)]
        if late and "training" in run.scheduler.observed_sources:
            clients = np.array([job.client for job in late], dtype=np.intp)
            local.prepare(clients)
            hold_reports(late, self._training_reports(local, index, clients))

    def _take_late(self, run: Run, cost: RoundCosts) -> None:
        """Charge and observe the replies that have come since, too late to be aggregated."""
        flight = run.in_flight
        if flight is None:
            return
        now = run.ledger.seconds
        failed = flight.give_up(now)
        late = flight.take_late(now)
        for job in late:
            cost.receive(job.bytes_up, job.is_charged, aggregated=False)
        flight.record(late, failed)
        if reports := reports_of(late):
            self._observe(run, reports, "late")
        in_time = [job.client for job in late if not job.has_failed]
        self._record_failures(run, "training", [*in_time, *failed], in_time)

    def _aggregate(self, local: LocalRound, arrived: WeightedCohorts) -> FloatArray:
        """Return the aggregated update of each run: runs x parameters."""
        rule = self._aggregation
        if isinstance(rule, Mean):
            alone = {
                i
                for i, run in enumerate(self.runs)
                if i not in self._probed and "training" not in run.scheduler.observed_sources
            }
            return local.aggregate(arrived, alone)
        total = np.zeros((len(arrived), self._size), dtype=self.parameters.dtype)
        for i, (run, (clients, weights)) in enumerate(zip(self.runs, arrived, strict=True)):
            if clients.size == 0:
                continue
            if rule.needs_normalised_weights and not run.cohort.normalise:
                raise ValueError(
                    f"aggregation {type(rule).__name__} needs weights that sum to 1, and "
                    f"{run.name} weights its cohorts otherwise (normalise=False): use mean"
                )
            updates = local.updates(i, clients)
            try:
                total[i] = check_aggregate(rule.aggregate(updates, weights), self._size)
            except OWN_ERRORS as error:
                where = f"round {self.server_round}"
                raise own_error("aggregation", rule, error, where) from error
        return total

    def _statistics(self, local: LocalRound, arrived: WeightedCohorts) -> FloatArray:
        """Return each run's statistics of the model: the mean of those after training."""
        statistics = self.parameters[:, self._size :].copy()
        if statistics.size:
            for i, (clients, weights) in enumerate(arrived):
                if clients.size and weights.sum() > 0:
                    shares = weights / weights.sum()
                    statistics[i] = shares @ local.buffers(i, clients)
        return statistics

    def _step(self, update: FloatArray, active: Any, statistics: FloatArray) -> None:
        """Change the models of active runs by their updates, and the models' statistics."""
        new = self._server_optimizer.step(
            self.parameters[:, : self._size], update, active, self.server_round
        )
        if statistics.size:
            new = np.concatenate([new, statistics], axis=1)
        self.parameters = new

    def _announce_record(self, record: dict[str, Any], gram: Float64Array | None = None) -> None:
        event = EvaluationEvent(
            run=record["scheduler"],
            seed=self.seed,
            server_round=record["server_round"],
            record=record,
            gram=gram,
        )
        announce(self.observers, "on_evaluation", event)

    def _weights(self, run: Run, arrived: IndexArray) -> Float64Array:
        """Return the aggregation weights p w, normalised unless the cohort says otherwise."""
        weights = run.cohort_weights
        if arrived.size < run.selected.size:
            weights = weights[np.isin(run.selected, arrived)]
        if not run.cohort.normalise:
            return weights
        if self.training.paper_literal_weights:
            return weights / max(run.selected.size, 1)
        return weights / weights.sum() if weights.size else weights

    def _measures(self, local: LocalRound) -> list[Measures]:
        """Return each run's selection bias at this round's model and batches."""
        n = len(self.federation.clients)
        everyone = np.arange(n)
        local.prepare(everyone)
        entries = []
        for i, run in enumerate(self.runs):
            updates = local.updates(i, everyone).astype(np.float64)
            gram = updates @ updates.T
            weights = np.zeros(n)
            weights[run.selected] = self._weights(run, run.selected)
            entry: dict[str, Any] = {
                "bias": metrics.selection_bias(gram, weights, self._p),
                "gradient_norm": math.sqrt(max(float(self._p @ gram @ self._p), 0.0)),
            }
            if n <= GRAM_LIMIT:
                upper = gram[np.triu_indices(n)]
                entry["cohort_weights"] = weights
                entry["gram"] = [float(f"{value:.6g}") for value in upper]
                entry["batch_losses"] = [float(x) for x in local.losses(i, everyone)]
            entries.append(Measures(entry, gram))
        return entries

    def evaluate(self, *, final: bool = False) -> list[dict[str, Any]]:
        """Return a record of each run: metric, costs and selections so far.

        Parameters
        ----------
        final
            Whether this is the last record, which has an entry for each client at any number.
        """
        records = []
        groups = self.federation.groups
        n = len(self.federation.clients)
        tests = self.federation.test(self.model, self.parameters)
        metric = self.federation.metric
        for run, (values, losses) in zip(self.runs, tests, strict=True):
            record: dict[str, Any] = {
                "scheduler": run.name,
                "seed": self.seed,
                "server_round": self.server_round,
                **({"metric": metric} if metric != "accuracy" else {}),
                **self.federation.summary(values),
                "test_loss": float(losses.mean()),
                "jain": metrics.jain(run.counts),
                **run.ledger.as_dict(),
            }
            if run.backoff.total:
                record["failures"] = run.backoff.total
                record["backing_off"] = len(run.backoff.waiting(self.server_round))
            if groups is not None:
                ratios = metrics.group_ratios(run.counts, groups)
                record["group_ratios"] = ratios
                record["tv"] = metrics.total_variation(ratios) if run.counts.any() else None
            if n <= PER_CLIENT_LIMIT or final:
                record[metric] = values
                record["losses"] = losses
                record["counts"] = run.counts.copy()
                if run.in_flight is not None:
                    record["participations"] = run.in_flight.participations.copy()
                    record["longest_waits"] = run.in_flight.longest_waits(self.server_round)
            records.append(record)
        return records

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON values and arrays."""
        return {
            "server_round": self.server_round,
            "parameters": self.parameters,
            "runs": [
                {
                    "name": run.name,
                    "scheduler": run.call(None, run.scheduler.state),
                    "ledger": run.ledger.as_dict(),
                    "counts": run.counts,
                    "backoff": run.backoff.state(),
                    "local_training": run.states.state(),
                    **({} if run.in_flight is None else {"in_flight": run.in_flight.state()}),
                }
                for run in self.runs
            ],
            "server_optimizer": self._server_optimizer.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        names = [saved["name"] for saved in state["runs"]]
        if names != [run.name for run in self.runs]:
            raise ValueError(f"the state is of {names}, not of {[run.name for run in self.runs]}")
        parameters = np.array(state["parameters"])
        if (parameters.shape, parameters.dtype) != (self.parameters.shape, self.parameters.dtype):
            raise ValueError(
                f"the state's parameters are {parameters.dtype} of shape {parameters.shape}, not "
                f"{self.parameters.dtype} of shape {self.parameters.shape}"
            )
        self.server_round, self.parameters = int(state["server_round"]), parameters
        for run, saved in zip(self.runs, state["runs"], strict=True):
            counts = np.array(saved["counts"])
            if counts.shape != run.counts.shape:
                raise ValueError(f"the state is of {counts.size} clients, not {run.counts.size}")
            run.call(None, run.scheduler.restore, saved["scheduler"])
            run.ledger = Ledger(**saved["ledger"])
            run.counts = counts
            run.backoff.restore(saved["backoff"])
            if "local_training" in saved:
                run.states.restore(saved["local_training"])
            if run.in_flight is not None:
                run.in_flight.restore(saved["in_flight"])
        self._server_optimizer.restore(
            state.get("server_optimizer", {}), self.parameters[:, : self._size]
        )


def _named(training: Training, argument: str, make: Callable[[], T]) -> T:
    """Return an object that the settings name; one of a user's own must be given as an object."""
    value = training.local if argument == "local_training" else training.aggregation
    if is_spec(value):
        raise ValueError(f"{value} must be given to Simulation as an object, {argument}=...")
    return make()
