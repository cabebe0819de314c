"""The simulator: runs several schedulers at once on one federation, round by round.

Each round, for each run: request, probe, observe, select, local training, aggregate, observe. The
runs differ in their schedulers alone. They share the clients, each client's mini-batches and the
network; one pass over the data computes single mini-batch steps for all of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from adcs import metrics
from adcs._types import ClientId, Float64Array, FloatArray, IndexArray
from adcs.backoff import Backoff, Stage, without_unanswered
from adcs.observers import (
    EvaluationEvent,
    Observer,
    RoundEvent,
    SelectionEvent,
    listeners,
)
from adcs.reports.report import NUMBER_BYTES, SIGNALS
from adcs.reports.sketch import (
    SKETCH_ABOVE,
    Sketch,
    Sketcher,
    Sketches,
    default_sketch,
    sketch_sentence,
)
from adcs.reports.table import ReportTable
from adcs.run_folder import Ledger
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.simulation.aggregation import Aggregation, Mean, check_aggregate
from adcs.simulation.attacks import Attack, AttackedRound, check_attack
from adcs.simulation.batches import Batches
from adcs.simulation.client_signals import (
    TRAINED_WITH,
    evaluated_signals,
    output_bias_updates,
)
from adcs.simulation.costs import RoundCosts
from adcs.simulation.federation import Federation
from adcs.simulation.local_rounds import (
    LocalRound,
    Setup,
    WeightedCohorts,
    chunks,
    count_numbers,
    round_starter,
)
from adcs.simulation.local_training import LocalSGD, LocalTraining, TrainingStates
from adcs.simulation.models import Model, buffers_of
from adcs.simulation.network import Network, NetworkSettings
from adcs.simulation.scheduler_errors import own_error, scheduler_error
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


@dataclass
class Run:
    """The run of one scheduler.

    Attributes
    ----------
    name
        The label of the scheduler, as in records.
    scheduler
        The scheduler.
    ledger
        What clients and network have spent so far.
    counts
        How often each client has been selected.
    cohort
        The last cohort.
    selected
        Its clients as an array.
    cohort_weights
        For each of them, the client's weight p times its weight in the cohort.
    backoff
        The clients that have failed, and how long each is left alone.
    states
        What clients and server keep for local training.

    Examples
    --------
    >>> from adcs.schedulers import Uniform
    >>> run = Run("Uniform", Uniform(), Ledger(), np.zeros(3, dtype=np.intp))
    >>> sorted(run.call(0, run.scheduler.select, 0, [0, 1, 2], 3).clients)
    [0, 1, 2]
    """

    name: str
    scheduler: Scheduler
    ledger: Ledger
    counts: IndexArray
    cohort: Cohort = field(default_factory=lambda: Cohort((), ()))
    selected: IndexArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    cohort_weights: Float64Array = field(default_factory=lambda: np.empty(0))
    backoff: Backoff = field(default_factory=Backoff)
    states: TrainingStates = field(default_factory=lambda: TrainingStates({}))

    def call(self, server_round: int | None, method: Callable[..., T], *args: Any) -> T:
        """Call a method of the scheduler; an error of a user's scheduler names it and the round."""
        try:
            return method(*args)
        except Exception as error:
            named = scheduler_error(self.scheduler, error, server_round)
            if named is error:
                raise
            raise named from error


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
        size = NUMBER_BYTES * model.size
        traffic = self.network.seconds(np.arange(n), down=size, work=0.0, up=size)
        self._facts: dict[str, Any] = {
            "examples": federation.sizes,
            "compute_seconds": self.network.compute_seconds
            * (1.0 if self._work is None else self._work),
            "communication_seconds": traffic,
        }
        for run in self.runs:
            self._observe(run, self._table(np.arange(n)), "enrolment")

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
            for record, measured in zip(records, measures or [{}] * len(records), strict=True):
                self._announce_record({**record, **measured})
            self._train(local, costs)
            yield self.server_round
        for record in self.evaluate(final=True):
            self._announce_record(record)
        for observer in self.observers:
            observer.on_end()

    def step(self, *, measured: bool = False) -> list[dict[str, Any]]:
        """Run one round; if `measured`, return the selection bias of each run's cohort."""
        local, costs, measures = self._select_cohorts(measured=measured)
        self._train(local, costs)
        return measures

    def _select_cohorts(
        self, *, measured: bool
    ) -> tuple[LocalRound, list[RoundCosts], list[dict[str, Any]]]:
        """Select the cohort of each run, after the probe that its scheduler requests."""
        server_round, m = self.server_round, self.training.m
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
            offered = run.backoff.offered(server_round, available, m)
            request = run.call(server_round, run.scheduler.request, server_round, offered, m)
            if request.clients:
                if "update" in request.signals and request.sketch is None:
                    request = replace(request, sketch=self._default_sketch)
                self._probed.add(i)
                probed = np.array(request.clients, dtype=np.intp)
                answered = self._in_time(probed, partial(costs[i].probe_seconds, request))
                probes.append((i, request, offered, probed, answered))
                needed.append(answered)
            else:
                # Schedulers without a probe select first, so that one pass serves all runs.
                self._select(run, offered, request)
                needed.append(run.selected)
        measured = measured and self._measurable
        if measured:
            needed.append(np.arange(len(self.federation.clients)))
        if needed:
            local.prepare(np.concatenate(needed))
        for i, request, offered, probed, answered in probes:
            costs[i].probe(request, probed, answered)
            # Schedulers copy what they keep: the answers, perhaps whole updates, end here.
            self._observe(self.runs[i], self._answers(local, i, request, answered), "probe")
            whole = "update" in request.signals and request.sketch is None
            stage: Stage = "training" if whole else "probe"
            self._record_failures(self.runs[i], stage, probed, answered)
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
            reported=self._reported_bytes(run.scheduler),
        )

    def _reported_bytes(self, scheduler: Scheduler) -> int:
        """Return the bytes of signals that training replies carry for this scheduler alone."""
        if "training" not in scheduler.observed_sources:
            return 0
        added = (SIGNALS[name] for name in scheduler.training_signals - TRAINED_WITH)
        return sum(signal.wire_bytes(0) for signal in added if signal.work != "update")

    def _in_time(
        self, clients: IndexArray, seconds: Callable[[IndexArray], Float64Array]
    ) -> IndexArray:
        """Return the clients that neither fail nor miss the deadline."""
        settings = self.network.settings
        if settings.dropout > 0.0:
            clients = clients[~self.network.fails(self.server_round, clients)]
        if settings.deadline is not None:
            clients = clients[seconds(clients) <= settings.deadline]
        return clients

    def _record_failures(
        self, run: Run, stage: Stage, asked: IndexArray, usable: IndexArray
    ) -> None:
        """Record who gave no usable reply in time; evidence of those that fail again expires."""
        if asked.size == usable.size and not run.backoff:
            return
        server_round = self.server_round
        expired = run.backoff.record(server_round, stage, asked.tolist(), usable.tolist())
        if expired:
            run.call(server_round, run.scheduler.expire, expired)

    def _observe(self, run: Run, reports: ReportTable, source: Source) -> None:
        server_round = self.server_round
        run.call(server_round, run.scheduler.observe, server_round, reports, source)

    def _select(self, run: Run, available: tuple[ClientId, ...], request: Request) -> None:
        """Let a scheduler select, and announce its cohort."""
        server_round, m, last = self.server_round, self.training.m, run.cohort
        run.cohort = run.call(server_round, run.scheduler.select, server_round, available, m)
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
                pending=(),
                request=request,
                cohort=run.cohort,
            )
            for observer in observers:
                observer.on_selection(event)

    def _answers(
        self, local: LocalRound, index: int, request: Request, clients: IndexArray
    ) -> ReportTable:
        """Return what clients answer to a request."""
        signals: dict[str, Any] = {}
        if clients.size == 0:
            return self._table(clients)
        if "loss" in request.signals:
            signals["loss"] = local.losses(index, clients)
        if request.signals - TRAINED_WITH:
            w = self.parameters[index]
            signals |= evaluated_signals(self.federation, self.model, w, clients, request.signals)
        if "output_bias_update" in request.signals:
            rows = [local.updates(index, part) for part in chunks(clients, self._size)]
            changes = [output_bias_updates(self.model, part, self.training.lr) for part in rows]
            if all(change is not None for change in changes):
                signals["output_bias_update"] = np.concatenate(changes)  # type: ignore[arg-type]
        if request.signals & {"norm", "update"}:
            signals |= self._update_signals(local, index, request, clients)
        return self._table(clients, **signals)

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

    def _table(self, clients: IndexArray, **signals: Any) -> ReportTable:
        """Return what clients report: signals, and what they always say of themselves."""
        facts = {name: column.take(clients) for name, column in self._facts.items()}
        return ReportTable(tuple(clients.tolist()), self.server_round, **signals, **facts)

    def _train(self, local: LocalRound, costs: list[RoundCosts]) -> None:
        """Train the cohorts, aggregate what arrives in time, and announce the round."""
        server_round = self.server_round
        arrived: WeightedCohorts = []
        for run, cost in zip(self.runs, costs, strict=True):
            clients = self._in_time(run.selected, cost.training_seconds)
            cost.training(run.selected, clients)
            arrived.append((clients, self._weights(run, clients)))
        arrivals = [clients for clients, _ in arrived if clients.size]
        update: FloatArray | None = None
        if arrivals:
            local.prepare(np.concatenate(arrivals))
            update = self._aggregate(local, arrived)
        for i, run in enumerate(self.runs):
            if "training" in run.scheduler.observed_sources:
                signals = run.scheduler.training_signals
                sketch = run.scheduler.sketch or self._default_sketch
                request = Request(run.cohort.clients, signals, sketch)
                self._observe(run, self._answers(local, i, request, arrived[i][0]), "training")
            self._record_failures(run, "training", run.selected, arrived[i][0])
        if update is not None:
            self._step(local, arrived, update)
        self.server_round += 1
        if self.observers and (observers := listeners(self.observers, "on_round")):
            for run, cost, (clients, _) in zip(self.runs, costs, arrived, strict=True):
                event = RoundEvent(
                    run=run.name,
                    seed=self.seed,
                    server_round=server_round,
                    scheduler=run.scheduler,
                    trained=tuple(clients.tolist()),
                    costs=cost.spent(),
                )
                for observer in observers:
                    observer.on_round(event)

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
            except Exception as error:
                where = f"round {self.server_round}"
                raise own_error("aggregation", rule, error, where) from error
        return total

    def _step(self, local: LocalRound, arrived: WeightedCohorts, update: FloatArray) -> None:
        """Change the models, their statistics, and what clients and server keep."""
        active = np.array([clients.size > 0 for clients, _ in arrived])
        before = self.parameters
        new = self._server_optimizer.step(
            before[:, : self._size], update, active, self.server_round
        )
        if self._size < before.shape[1]:
            new = np.concatenate([new, before[:, self._size :]], axis=1)
            for i, (clients, weights) in enumerate(arrived):
                if clients.size and weights.sum() > 0:
                    shares = weights / weights.sum()
                    new[i, self._size :] = shares @ local.buffers(i, clients)
        for i, (clients, _) in enumerate(arrived):
            local.commit(i, clients)
        self.parameters = new

    def _announce_record(self, record: dict[str, Any]) -> None:
        event = EvaluationEvent(
            run=record["scheduler"],
            seed=self.seed,
            server_round=record["server_round"],
            record=record,
        )
        for observer in self.observers:
            observer.on_evaluation(event)

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

    def _measures(self, local: LocalRound) -> list[dict[str, Any]]:
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
            entries.append(entry)
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
        self._server_optimizer.restore(
            state.get("server_optimizer", {}), self.parameters[:, : self._size]
        )


def _named(training: Training, argument: str, make: Callable[[], T]) -> T:
    """Return an object that the settings name; one of a user's own must be given as an object."""
    value = training.local if argument == "local_training" else training.aggregation
    if is_spec(value):
        raise ValueError(f"{value} must be given to Simulation as an object, {argument}=...")
    return make()


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
