"""`make attacks`: what clients gain that do not tell the truth, and what it costs the honest."""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs import Scheduler
from adcs.experiments import Experiment, estimate, make_scheduler, markdown_table
from adcs.metrics import summary
from adcs.simulation import (
    Aggregation,
    Attack,
    ClippedMean,
    Dataset,
    Federation,
    Mean,
    Median,
    Simulation,
    TrimmedMean,
    Truth,
)
from reproduction.folder import (
    CONFIGS,
    next_folder,
    one_sentence,
    options,
    overrides_of,
    read_toml,
    write_text,
)

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]

HUGE = 1e6
"""The largest claim of a loss."""

FLIP = -100.0
"""Factor of the updates that are to undo training."""


class HugeClaim(Attack):
    """Claims a loss of a million."""

    def losses(self, liars: Indices, truth: Truth) -> Floats:
        """Return the claim."""
        return np.full(liars.size, HUGE)


class HighClaim(Attack):
    """Claims the 90th percentile of the honest clients' losses."""

    def losses(self, liars: Indices, truth: Truth) -> Floats:
        """Return the claim."""
        return np.full(liars.size, np.quantile(truth.losses(self.honest(truth)), 0.9))

    def honest(self, truth: Truth) -> Indices:
        """Return the clients that tell the truth."""
        return np.setdiff1d(truth.clients, self.clients)


class Gang(HighClaim):
    """Claims a high loss, and sends random updates of honest norm: each resembles nobody."""

    def updates(self, liars: Indices, truth: Truth) -> Floats:
        """Return random directions."""
        true = truth.updates(liars)
        sent = np.empty_like(true)
        for row, client in enumerate(liars):
            rng = np.random.default_rng([truth.server_round, int(client)])
            noise = rng.standard_normal(true.shape[1])
            sent[row] = noise * np.linalg.norm(true[row]) / np.linalg.norm(noise)
        return sent


class Copies(HighClaim):
    """All report and send what the first honest client does."""

    def losses(self, liars: Indices, truth: Truth) -> Floats:
        """Return its loss."""
        return np.repeat(truth.losses(self.honest(truth)[:1]), liars.size)

    def updates(self, liars: Indices, truth: Truth) -> Floats:
        """Return its update."""
        return np.repeat(truth.updates(self.honest(truth)[:1]), liars.size, axis=0)


class SignFlip(Attack):
    """Sends updates against the true ones, a hundred times as long."""

    def updates(self, liars: Indices, truth: Truth) -> Floats:
        """Return them."""
        return FLIP * truth.updates(liars)


ATTACKS: Mapping[str, type[Attack] | None] = {
    "none": None,
    "claims of 1e6": HugeClaim,
    "claims of the 90th percentile": HighClaim,
    "gang, scattered directions": Gang,
    "copies": Copies,
    "labels are noise": None,
    "sign-flip x 100": SignFlip,
}
"""What the liars do; those whose labels are noise do all else as they should."""

SCHEDULERS: Mapping[str, str] = {
    label: label
    for label in ("Uniform", "PowerOfChoice", "OCS", "Oort", "ActiveFL", "DivFL", "ADCS")
} | {
    "LiveADCS without both": "reproduction/variants.py:NoDiscount(max_share=None)",
    "LiveADCS without limit": "LiveADCS(max_share=None)",
    "LiveADCS without discount": "reproduction/variants.py:NoDiscount",
    "LiveADCS": "LiveADCS",
}
"""Schedulers by label: LiveADCS also without its limit of participation and its discount."""

CLIP_NORM = 5.0
"""The norm that "clipped-mean" clips at: about the median of the honest norms."""

OURS = "LiveADCS"


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Let a logger log errors only."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class FlowerAggregation(Aggregation):
    """The aggregation of a strategy of Flower that goes by distances between models.

    Distances between models of one round are those between updates, so it takes updates.

    Parameters
    ----------
    name
        The name of its class in `flwr.serverapp.strategy`.
    **settings
        Its arguments.

    Examples
    --------
    >>> updates = np.array([[1.0, 1.0], [1.1, 1.0], [0.9, 1.0], [1.0, 1.1], [-100.0, -100.0]])
    >>> FlowerAggregation("Krum", num_malicious_nodes=1).aggregate(updates, np.ones(5) / 5)
    array([1., 1.])
    """

    def __init__(self, name: str, **settings: Any) -> None:
        self.name, self.settings = name, settings

    def aggregate(self, updates: Floats, weights: Floats) -> Floats:
        """Return what the strategy aggregates replies with these updates and weights to."""
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import strategy

        from adcs.flower import LocalGrid

        LocalGrid(ClientApp(), nodes=1)  # Without a grid Flower creates no messages.
        replies = []
        for node, (update, weight) in enumerate(zip(updates, weights, strict=True), start=1):
            metrics = MetricRecord({"num-examples": float(weight)})
            content = RecordDict({"arrays": ArrayRecord([update]), "metrics": metrics})
            replies.append(Message(content, node, "train"))
        with _quiet("flwr"):
            gc.freeze()  # Flower collects garbage for every reply: not all that was there before.
            arrays, _ = getattr(strategy, self.name)(**self.settings).aggregate_train(1, replies)
            gc.unfreeze()
        aggregated: Floats = arrays.to_numpy_ndarrays()[0]
        return aggregated


AGGREGATIONS: Mapping[str, Aggregation] = {
    "mean": Mean(),
    "median": Median(),
    "trimmed mean": TrimmedMean(0.4),
    "clipped mean": ClippedMean(CLIP_NORM),
    "Flower's Krum": FlowerAggregation("Krum", num_malicious_nodes=3),
    "Flower's MultiKrum": FlowerAggregation(
        "MultiKrum", num_malicious_nodes=3, num_nodes_to_select=5
    ),
    "Flower's Bulyan": FlowerAggregation("Bulyan", num_malicious_nodes=1),
}
"""Aggregations that LiveADCS is combined with. Of ten replies Bulyan tolerates at most one."""

HEADS = ["attack", "scheduler", "largest share of a liar", "worst", "worst 20 %", "average"]
METRICS = ("share", "worst", "worst20", "average")


@dataclass(frozen=True)
class Job:
    """One attack, one seed and one aggregation; all schedulers share the pass."""

    attack: str
    seed: int
    settings: Mapping[str, Any]
    aggregation: str = "mean"
    schedulers: tuple[str, ...] = tuple(SCHEDULERS)

    @property
    def name(self) -> str:
        """What the job is called in the file of records."""
        some = "" if self.schedulers == tuple(SCHEDULERS) else f", {', '.join(self.schedulers)}"
        return f"{self.attack}, {self.aggregation}, seed {self.seed}, {dict(self.settings)}{some}"


def experiment(overrides: Mapping[str, Any]) -> Experiment:
    """Return the settings of `configs/attacks.toml`, some replaced."""
    declared = read_toml(CONFIGS / "attacks.toml")
    flat = {key: value for table in declared.values() for key, value in table.items()}
    found = Experiment.of(data=flat.pop("name"), schedulers=dict(SCHEDULERS), **flat)
    return found.replace(**overrides) if overrides else found


def liars_of(attack: str, overrides: Mapping[str, Any], seed: int) -> Indices:
    """Return the liars: one of each of five classes; a fifth of all where labels are noise.

    No class loses all its honest clients, so that the honest can still learn it.

    >>> given = {"data": "synthetic:clusters=10"}
    >>> liars_of("claims of 1e6", given, 0).size, liars_of("labels are noise", given, 0).size
    (5, 6)
    """
    settings = experiment(overrides)
    groups = np.asarray(settings.divide(settings.dataset(), seed).groups)
    count = groups.size // 5 if attack == "labels are noise" else 5
    rng = np.random.default_rng([seed, 7])
    classes = rng.permutation(np.unique(groups))[:count]
    return np.sort([rng.choice(np.flatnonzero(groups == each)) for each in classes])


def with_noise(data: Dataset, parts: Sequence[Indices], seed: int) -> Dataset:
    """Return the data with random labels of the training examples of some clients."""
    labels = data.y_train.copy()
    rng = np.random.default_rng([seed, 8])
    for part in parts:
        labels[part] = rng.integers(0, data.classes, part.size)
    return replace(data, y_train=labels)


def measure(job: Job) -> list[dict[str, Any]]:
    """Run a job; return share of slots and honest accuracy of each scheduler."""
    liars = liars_of(job.attack, job.settings, job.seed)
    schedulers = {label: make_scheduler(SCHEDULERS[label], job.seed) for label in job.schedulers}
    found = simulate(job.attack, liars, schedulers, job.settings, job.seed, job.aggregation)
    key = {"attack": job.attack, "aggregation": job.aggregation, "seed": job.seed}
    return [{**key, "scheduler": label, **metrics} for label, metrics in found.items()]


def simulate(
    attack: str,
    liars: Indices,
    schedulers: Mapping[str, Scheduler],
    overrides: Mapping[str, Any],
    seed: int,
    aggregation: str = "mean",
) -> dict[str, dict[str, float]]:
    """Run schedulers under an attack; return share of slots and honest accuracy of each."""
    settings = experiment(overrides)
    data, training, kind = settings.dataset(), settings.training, ATTACKS[attack]
    partition = settings.divide(data, seed)
    if attack == "labels are noise":
        data = with_noise(data, [partition.train[client] for client in liars], seed)
    simulation = Simulation(
        Federation(data, partition, batch_size=training.batch_size, seed=seed),
        settings.make_model(data),
        schedulers,
        training,
        seed=seed,
        aggregation=AGGREGATIONS[aggregation],
        attack=None if kind is None else kind(liars.tolist()),
    )
    every = max(1, training.rounds // 100)
    clients = len(partition.train)
    honest, fair = np.setdiff1d(np.arange(clients), liars), training.m * training.rounds / clients
    accuracies: dict[str, list[dict[str, float]]] = {label: [] for label in schedulers}
    for left in range(training.rounds // 10, -1, -every):
        simulation.run(training.rounds - left, eval_every=training.rounds)
        records = list(simulation.evaluate())
        for record in records:
            found = summary(np.asarray(record["accuracy"])[honest])
            accuracies[record["scheduler"]].append(found)
    shares = {
        record["scheduler"]: float(np.asarray(record["counts"])[liars].max() / fair)
        for record in records
    }
    return {label: {"share": shares[label], **_means(found)} for label, found in accuracies.items()}


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {metric: float(np.mean([each[metric] for each in found])) for metric in found[0]}


def jobs_of(
    overrides: Mapping[str, Any], schedulers: Sequence[str] = tuple(SCHEDULERS)
) -> list[Job]:
    """Return all jobs: every attack with the mean, then the sign-flip with other aggregations.

    Results of a scheduler do not depend on which others are run.
    """
    seeds = experiment(overrides).seed_list
    jobs = [
        Job(attack, seed, overrides, schedulers=tuple(schedulers))
        for attack in ATTACKS
        for seed in seeds
    ]
    for attack in ("none", "sign-flip x 100") if OURS in schedulers else ():
        for rule in list(AGGREGATIONS)[1:]:
            jobs += [Job(attack, seed, overrides, rule, (OURS,)) for seed in seeds]
    return jobs


def lines(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the rows of the table, in the order of the records: means over seeds."""
    keys = dict.fromkeys((r["attack"], r["scheduler"], r["aggregation"]) for r in records)
    found = []
    for attack, scheduler, rule in keys:
        wanted = (attack, scheduler, rule)
        held = [r for r in records if (r["attack"], r["scheduler"], r["aggregation"]) == wanted]
        label = scheduler if rule == "mean" else f"{scheduler}, {rule}"
        cells = [estimate(np.array([r[metric] for r in held])).mean for metric in METRICS]
        found.append([attack, label, f"{cells[0]:.2f}", *(f"{cell:.3f}" for cell in cells[1:])])
    return found


def run_jobs(jobs: Sequence[Job], path: Path, processes: int | None) -> list[dict[str, Any]]:
    """Run the jobs that a file does not have yet, add their records to it, and return all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lines = path.read_text(encoding="utf-8").splitlines()
    held = {line["job"]: line["records"] for line in map(json.loads, lines)}
    todo = [job for job in jobs if job.name not in held]
    start = time.monotonic()
    with ProcessPoolExecutor(processes) as pool, path.open("a", encoding="utf-8") as file:
        running = {pool.submit(measure, job): job.name for job in todo}
        for done, future in enumerate(as_completed(running), start=1):
            name = running[future]
            held[name] = future.result()
            file.write(json.dumps({"job": name, "records": held[name]}) + "\n")
            file.flush()
            left = (time.monotonic() - start) / done * (len(todo) - done)
            print(f"{done} of {len(todo)} simulations, {left:.0f} s left", file=sys.stderr)
    return [record for job in jobs for record in held[job.name]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all attacks, and write records.jsonl and summary.md; what is done is not done again."""
    parser = options("Clients that do not tell the truth.")
    names = ", ".join(SCHEDULERS)
    parser.add_argument("schedulers", nargs="*", metavar="SCHEDULER", help=f"some of {names}")
    given = parser.parse_args(arguments)
    path = given.out or next_folder("attacks")
    with one_sentence("make attacks"):
        overrides = overrides_of(given)
        for name in given.schedulers:
            if name not in SCHEDULERS:
                raise ValueError(f"there is no scheduler {name!r}; there are {names}")
        jobs = jobs_of(overrides, given.schedulers or tuple(SCHEDULERS))
        records = run_jobs(jobs, path / "records.jsonl", given.jobs)
        settings = experiment(overrides)
        parts = [
            "# Clients that do not tell the truth",
            f"{settings.in_words()}. Means over seeds. Accuracies are those of the "
            "honest clients, means over the last tenth of rounds.",
            markdown_table(HEADS, lines(records)),
        ]
        write_text(path / "summary.md", "\n\n".join(parts))
    print(f"{path / 'summary.md'} has the table", file=sys.stderr)


if __name__ == "__main__":
    main()
