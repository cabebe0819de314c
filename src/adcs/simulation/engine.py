"""The engine: the paper's five steps for several schedulers at once, round by round.

Each round, for each run: request, probe, observe, select, local training, aggregate, observe. Runs
differ in their schedulers alone. They share the clients, each client's mini-batches, and the
network; single mini-batch steps of all of them go through one pass over the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from adcs import metrics
from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.reports.report import NUMBER_BYTES
from adcs.reports.sketch import Sketch, Sketcher
from adcs.reports.table import ReportTable
from adcs.run_folder import Ledger
from adcs.schedulers.base import Request, Scheduler
from adcs.simulation.costs import RoundCosts
from adcs.simulation.federation import Federation
from adcs.simulation.local_training import Chosen, FullBatch, ManySteps, OneStep, Work
from adcs.simulation.models import Model, widened
from adcs.simulation.network import Network, NetworkSettings
from adcs.simulation.training import Run, Training

PER_CLIENT_LIMIT = 1000
"""With more clients than this, records leave out lists with an entry for each client."""

GRAM_LIMIT = 50
"""With more clients than this, records leave out inner products between updates."""


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
    ) -> None:
        n = len(federation.clients)
        if not 1 <= training.m <= n:
            raise ValueError(f"m must lie between 1 and {n} (all clients), got {training.m}")
        self.federation = federation
        self.model = model
        self._wide = widened(model)
        self.training = training
        self.network = network or Network(NetworkSettings(spread=0.0), n, seed)
        self.seed = seed
        self.server_round = 0
        self.runs = [
            Run(name, scheduler, Ledger(), np.zeros(n, dtype=np.intp))
            for name, scheduler in schedulers.items()
        ]
        initial = model.initial(seed).astype(federation.dtype)
        self.ws: FloatArray = np.repeat(initial[None], len(self.runs), axis=0)
        by_size = federation.sizes / federation.sizes.sum()
        self._p: Float64Array = by_size if training.weights == "size" else np.full(n, 1.0 / n)
        self._measurable = n <= PER_CLIENT_LIMIT
        size = NUMBER_BYTES * model.size
        traffic = self.network.seconds(np.arange(n), down=size, work=0.0, up=size)
        self._facts = {
            "examples": federation.sizes,
            "compute_seconds": self.network.compute_seconds,
            "communication_seconds": traffic,
        }
        for run in self.runs:
            run.scheduler.observe(0, self._table(np.arange(n)), "enrolment")

    def step(self, *, measured: bool = False) -> list[dict[str, Any]]:
        """Run one round; return, if it is to be measured, each run's selection bias and more."""
        server_round, m = self.server_round, self.training.m
        available = self.network.available(server_round)
        work = self._work()
        bills = [self._bill(run) for run in self.runs]
        probes = []
        needed = []
        for i, run in enumerate(self.runs):
            request = run.scheduler.request(server_round, available, m)
            if request.clients:
                asked = np.array(request.clients, dtype=np.intp)
                answered = self._in_time(asked, partial(bills[i].probe_seconds, request))
                probes.append((i, request, asked, answered))
                needed.append(answered)
            else:
                # Who asks for nothing chooses at once, so that one pass can serve everyone.
                self._select(run, available)
                needed.append(run.chosen)
        measured = measured and self._measurable
        if measured:
            needed.append(np.arange(len(self.federation.clients)))
        if needed:
            work.prepare(np.concatenate(needed))
        for i, request, asked, answered in probes:
            bills[i].probe(request, asked, answered)
            scheduler = self.runs[i].scheduler
            scheduler.observe(server_round, self._answers(work, i, request, answered), "probe")
            self._select(self.runs[i], available)
        measures = self._measures(work) if measured else []
        self._train(work, bills)
        self.server_round += 1
        return measures

    def _work(self) -> Work:
        training, federation = self.training, self.federation
        if training.local == "full":
            return FullBatch(federation, self.model, self.ws)
        if training.steps == 1:
            return OneStep(federation, self._wide, self.ws, self.server_round)
        return ManySteps(
            federation, self._wide, self.ws, self.server_round, steps=training.steps, lr=training.lr
        )

    def _bill(self, run: Run) -> RoundCosts:
        return RoundCosts(run.ledger, self.model.size, self.training.steps, self.network)

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

    def _select(self, run: Run, available: tuple[int, ...]) -> None:
        last, run.cohort = (
            run.cohort,
            run.scheduler.select(self.server_round, available, self.training.m),
        )
        # A scheduler that keeps its cohort for some rounds gives the same tuples.
        if run.cohort.clients is not last.clients or run.cohort.weights is not last.weights:
            run.chosen = np.array(run.cohort.clients, dtype=np.intp)
            run.shares = np.array(run.cohort.weights) * self._p[run.chosen]
        run.counts[run.chosen] += 1

    def _answers(
        self, work: Work, index: int, request: Request, clients: IndexArray
    ) -> ReportTable:
        """Return what clients answer to a request."""
        signals: dict[str, Any] = {}
        if clients.size == 0:
            return self._table(clients)
        if "loss" in request.signals:
            signals["loss"] = work.losses(index, clients)
        if request.signals & {"norm", "update"}:
            rows = work.updates(index, clients)
            if "norm" in request.signals:
                signals["norm"] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            if "update" in request.signals:
                if request.sketch is None:
                    signals["update"] = rows
                else:
                    signals["sketch"] = _sketches(request.sketch, rows)
        return self._table(clients, **signals)

    def _table(self, clients: IndexArray, **signals: Any) -> ReportTable:
        """Return what clients report: signals, and what they always say of themselves."""
        facts = {name: column.take(clients) for name, column in self._facts.items()}
        return ReportTable(tuple(clients.tolist()), self.server_round, **signals, **facts)

    def _train(self, work: Work, bills: list[RoundCosts]) -> None:
        chosen: Chosen = []
        for run, bill in zip(self.runs, bills, strict=True):
            arrived = self._in_time(run.chosen, bill.training_seconds)
            bill.training(run.chosen, arrived)
            chosen.append((arrived, self._weights(run, arrived)))
        arrivals = [clients for clients, _ in chosen if clients.size]
        update: FloatArray | None = None
        if arrivals:
            work.prepare(np.concatenate(arrivals))
            update = work.aggregate(chosen)
        for i, run in enumerate(self.runs):
            if "training" in run.scheduler.observed_sources:
                request = Request(
                    run.cohort.clients, frozenset({"loss", "update"}), run.scheduler.sketch
                )
                answers = self._answers(work, i, request, chosen[i][0])
                run.scheduler.observe(self.server_round, answers, "training")
        if update is None:
            return
        rate = self.training.lr if self.training.server_lr is None else self.training.server_lr
        self.ws = self.ws - self.ws.dtype.type(rate) * update

    def _weights(self, run: Run, arrived: IndexArray) -> Float64Array:
        """Return what each arrived update counts: p w, normalised unless the cohort says not."""
        shares = run.shares
        if arrived.size < run.chosen.size:
            shares = shares[np.isin(run.chosen, arrived)]
        if not run.cohort.normalise:
            return shares
        if self.training.paper_literal_weights:
            return shares / max(run.chosen.size, 1)
        return shares / shares.sum() if shares.size else shares

    def _measures(self, work: Work) -> list[dict[str, Any]]:
        """Return each run's selection bias at this round's model and batches."""
        n = len(self.federation.clients)
        everyone = np.arange(n)
        work.prepare(everyone)
        entries = []
        for i, run in enumerate(self.runs):
            updates = work.updates(i, everyone).astype(np.float64)
            gram = updates @ updates.T
            weights = np.zeros(n)
            weights[run.chosen] = self._weights(run, run.chosen)
            entry: dict[str, Any] = {
                "bias": metrics.selection_bias(gram, weights, self._p),
                "gradient_norm": math.sqrt(max(float(self._p @ gram @ self._p), 0.0)),
            }
            if n <= GRAM_LIMIT:
                upper = gram[np.triu_indices(n)]
                entry["cohort_weights"] = weights
                entry["gram"] = [float(f"{value:.6g}") for value in upper]
                entry["batch_losses"] = [float(x) for x in work.losses(i, everyone)]
            entries.append(entry)
        return entries

    def evaluate(self, *, final: bool = False) -> list[dict[str, Any]]:
        """Return one record for each run: how its model does, what was spent and chosen so far."""
        records = []
        groups = self.federation.groups
        n = len(self.federation.clients)
        tests = self.federation.test(self.model, self.ws)
        for run, (accuracy, losses) in zip(self.runs, tests, strict=True):
            record: dict[str, Any] = {
                "scheduler": run.name,
                "seed": self.seed,
                "server_round": self.server_round,
                **metrics.summary(accuracy),
                "test_loss": float(losses.mean()),
                "jain": metrics.jain(run.counts),
                **run.ledger.as_dict(),
            }
            if groups is not None:
                ratios = metrics.group_ratios(run.counts, groups)
                record["group_ratios"] = ratios
                record["tv"] = metrics.total_variation(ratios) if run.counts.any() else None
            if n <= PER_CLIENT_LIMIT or final:
                record["accuracy"] = accuracy
                record["losses"] = losses
                record["counts"] = run.counts.copy()
            records.append(record)
        return records

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on."""
        return {
            "server_round": self.server_round,
            "ws": self.ws,
            "runs": [
                {
                    "name": run.name,
                    "scheduler": run.scheduler.state(),
                    "ledger": run.ledger.as_dict(),
                    "counts": run.counts,
                }
                for run in self.runs
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        names = [saved["name"] for saved in state["runs"]]
        if names != [run.name for run in self.runs]:
            raise ValueError(f"the state is of {names}, not of {[run.name for run in self.runs]}")
        ws = np.array(state["ws"])
        if (ws.shape, ws.dtype) != (self.ws.shape, self.ws.dtype):
            raise ValueError(
                f"the state's models are {ws.dtype} of shape {ws.shape}, not {self.ws.dtype} of "
                f"shape {self.ws.shape}"
            )
        self.server_round, self.ws = int(state["server_round"]), ws
        for run, saved in zip(self.runs, state["runs"], strict=True):
            counts = np.array(saved["counts"])
            if counts.shape != run.counts.shape:
                raise ValueError(f"the state is of {counts.size} clients, not {run.counts.size}")
            run.scheduler.restore(saved["scheduler"])
            run.ledger = Ledger(**saved["ledger"])
            run.counts = counts


def _sketches(sketcher: Sketcher, rows: FloatArray) -> list[Sketch | None]:
    """Return the sketch of each row; None for one that has none, such as a zero update."""
    try:
        pairs = zip(*sketcher.sketch_rows(rows), strict=True)
        return [Sketch(values, norm, rows.shape[1]) for values, norm in pairs]
    except ValueError:
        return [_sketch(sketcher, row) for row in rows]


def _sketch(sketcher: Sketcher, row: FloatArray) -> Sketch | None:
    try:
        return sketcher.sketch(row)
    except ValueError:
        return None
