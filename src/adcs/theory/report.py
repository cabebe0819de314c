"""Compares a run with the theory: the bias of each round with each bound, for each scheduler.

The run's records must hold `bias`, `gradient_norm`, `cohort_weights`, `gram` (the upper
triangle of inner products between all clients' updates) and `batch_losses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adcs._types import Float64Array
from adcs.run_folder import RunFolder
from adcs.theory.bias import share_bound
from adcs.theory.clusters import ClusterCheck, check_clusters, find_clusters
from adcs.theory.convergence import Constants, convergence_bound
from adcs.theory.estimates import batch_noise, largest_norm, uniform_selection_variance
from adcs.theory.gram import from_triangle

Row = dict[str, Any]

ROUNDING = 5e-6
"""The relative error of recorded inner products: they have six significant digits."""


@dataclass(frozen=True)
class Policy:
    """The properties of a scheduler that the theorems depend on.

    Attributes
    ----------
    theta
        Weight of quality; 0 if it does not count, None if records do not hold q.
    quality
        The quality scores q, from the losses and the norms of the updates of all clients.
    unbiased
        Whether cohorts are m clients drawn without replacement from all clients, so that the
        expected update is that of all clients.
    """

    theta: float | None = 0.0
    quality: Callable[[Float64Array, Float64Array], Float64Array] | None = None
    unbiased: bool = False


@dataclass(frozen=True)
class Analysis:
    """Tables that compare a run with the theory; None means that a value does not apply.

    Attributes
    ----------
    rounds
        One row for each evaluated round of each run: scheduler, seed, round, bias (||g_S - g_N||),
        gradient_norm (||g_N||), general and centred (the general bound), theorem1 (its right-hand
        side), above_theorem1 (whether the bias exceeds it by more than rounding can explain),
        masses (the cluster bound that always holds), clusters (how many the cohort takes), mu, r
        and kappa (the largest |cosine| between clusters, the spread inside them, the least norm
        of one), structured (whether clusters were found; None where they were not sought),
        failed (the conditions of Theorem 1 that fail).
    schedulers
        One row for each scheduler: means over rounds and seeds of the same, epsilon (the largest
        bias seen), above_theorem1 (the share of rounds), structured (the share of the rounds in
        which clusters were sought that have them), failed (the share of rounds in which each
        condition fails; None where none was checked). Where clusters were sought and at most half
        of the rounds have them, there is no cluster structure to speak of: theorem1,
        above_theorem1, masses, clusters and failed are None.
    convergence
        One row for each scheduler: the constants put into Theorem 2, its four terms, their total,
        and measured, the mean of ||g_N||^2 over evaluated rounds. Here g is the mean of an
        update's E gradients, in the other two tables their sum, the update itself.
    notes
        Notes for the reader of the tables.
    """

    rounds: list[Row]
    schedulers: list[Row]
    convergence: list[Row]
    notes: list[str]


def analyse(
    folder: RunFolder,
    *,
    policies: Mapping[str, Policy] | None = None,
    groups: Sequence[Any] | None = None,
    smoothness: float | None = None,
) -> Analysis:
    """Compare a run's selection bias with the bounds, and its gradients with Theorem 2.

    Parameters
    ----------
    folder
        The run.
    policies
        How its schedulers choose, by label; one that is not there is taken to be biased and to
        have no quality.
    groups
        The cluster of each client; None takes `groups` from the run's config, or else looks for
        clusters in each round's updates.
    smoothness
        L, for Theorem 2. None takes the largest that the run's step size allows, 1/(8 E lr),
        which makes the terms as large as the theorem permits.

    Examples
    --------
    >>> import tempfile
    >>> config = {"m": 1, "lr": 0.1, "rounds": 1, "schedulers": {"Uniform": "Uniform"}}
    >>> folder = RunFolder.create(tempfile.mkdtemp() + "/run", config)
    >>> with folder.writer("task") as lines:
    ...     lines.append({"scheduler": "Uniform", "seed": 0, "server_round": 0, "bias": 0.5**0.5,
    ...                   "gradient_norm": 0.5**0.5, "cohort_weights": [1.0, 0.0],
    ...                   "gram": [1.0, 0.0, 1.0], "batch_losses": [1.0, 2.0]})
    >>> row = analyse(folder, groups=["a", "b"]).schedulers[0]
    >>> round(row["bias"], 4), round(row["general"], 4), round(row["theorem1"], 4)
    (0.7071, 0.7071, 0.7071)
    """
    config = folder.config
    config |= {**config.get("training", {}), **config.get("run", {})}
    known = policies or {}
    if smoothness is not None and not smoothness > 0.0:
        raise ValueError(f"smoothness must be above 0, got {smoothness!r}")
    if config.get("weights", "uniform") != "uniform":
        raise ValueError("the theory of a run needs uniform client weights, this run's are by size")
    labels = groups if groups is not None else config.get("groups")
    everything = list(folder.records())
    measured = [record for record in everything if record.get("gram")]
    records = [record for record in measured if _finite(record)]
    if not measured:
        raise ValueError(
            f"{folder.path} holds no inner products between updates to analyse; simulations keep "
            "them for up to 50 clients"
        )
    if not records:
        raise ValueError(
            f"{folder.path} holds no round whose updates are finite: its training diverged"
        )
    specs = dict(config.get("schedulers", {}))
    rounds, grams = [], []
    for record in records:
        gram = from_triangle(record["gram"])
        grams.append(gram)
        try:
            rounds.append(_round(record, gram, labels, known.get(record["scheduler"], Policy())))
        except ValueError as error:
            raise ValueError(f"{_name(record)}, round {record['server_round']}: {error}") from error
    found = dict.fromkeys(row["scheduler"] for row in rounds)
    # In the config's order; passes over the data deal schedulers out in turn.
    names = sorted(found, key=lambda name: list(specs).index(name) if name in specs else len(specs))
    by_name = {
        name: [i for i, row in enumerate(rounds) if row["scheduler"] == name] for name in names
    }
    schedulers = [_summary(name, [rounds[i] for i in by_name[name]]) for name in names]
    done = _rounds_done(everything, names)
    notes = [
        *_unfinished(config, done, {int(record["seed"]) for record in everything}),
        *_diverged([record for record in measured if not _finite(record)]),
        *_notes(config, labels, rounds),
    ]
    convergence = []
    eta = int(config.get("steps", 1)) * float(config["lr"])
    limit = 1.0 / (8.0 * eta)
    if config.get("server_lr") not in (None, config["lr"]):
        notes.append("Theorem 2 is not shown: it takes the server's learning rate to be lr.")
    elif not _is_plain(config):
        notes.append("Theorem 2 is not shown: it is about E plain SGD steps and the mean.")
    elif smoothness is not None and smoothness > limit:
        notes.append(
            f"Theorem 2 does not apply: its step size E lr = {eta:.3g} exceeds 1/(8 L) = "
            f"{1 / (8 * smoothness):.3g}."
        )
    else:
        if smoothness is None:
            notes.append(f"L is taken as {limit:.4g}, the largest that E lr = {eta:.3g} allows.")
        for name in names:
            chosen = [(records[i], rounds[i], grams[i]) for i in by_name[name]]
            unbiased = known.get(name, Policy()).unbiased
            constant = limit if smoothness is None else smoothness
            least = min(done[name], int(config["rounds"]))
            convergence.append(
                _convergence(name, unbiased, chosen, {**config, "rounds": least}, labels, constant)
            )
        if any(row["sigma"] is None for row in convergence):
            notes.append(
                "Theorem 2 has no terms here: sigma is estimated from clients of one group, and "
                + ("the run names no groups." if labels is None else "no group has two of them.")
            )
    return Analysis(rounds, schedulers, convergence, notes)


def _finite(record: Row) -> bool:
    """Return whether all that is needed of a record are numbers; null stands for what is none."""
    keys = ("bias", "gradient_norm", "cohort_weights", "gram", "batch_losses")
    return all(np.isfinite(np.array(record[key], dtype=np.float64)).all() for key in keys)


def _name(record: Row) -> str:
    return f"{record['scheduler']}, seed {record['seed']}"


def _rounds_done(records: Sequence[Row], names: Sequence[str]) -> dict[str, int]:
    """Return how many rounds each scheduler has done, in the seed that is least far.

    A record is followed by a round, except for the last one of a run that has come to its end.
    """
    last: dict[str, dict[int, int]] = {name: {} for name in names}
    for record in records:
        if record["scheduler"] in last:
            of = last[record["scheduler"]]
            done = int(record["server_round"]) + bool(record.get("gram"))
            of[record["seed"]] = max(done, of.get(record["seed"], 0))
    return {name: min(of.values()) for name, of in last.items()}


def _unfinished(config: dict[str, Any], done: dict[str, int], begun: set[int]) -> list[str]:
    """Return a note on the rounds that are still to come, if there are any."""
    whole, start = int(config["rounds"]), int(config.get("first_seed", 0))
    behind = [f"{name} {rounds:,}" for name, rounds in done.items() if rounds < whole]
    behind += [f"{name} none" for name in config.get("schedulers", {}) if name not in done]
    seeds = range(start, start + int(config.get("seeds", 1)))
    behind += [f"seed {seed} none" for seed in seeds if seed not in begun]
    if not behind:
        return []
    return [
        f"This run is unfinished. Rounds done, of {whole:,}: {', '.join(behind)}. T of Theorem 2 "
        "is the rounds done, in the seed that is least far."
    ]


def _diverged(records: list[Row]) -> list[str]:
    """Return a note on records that cannot be used, if there are any."""
    first: dict[str, int] = {}
    for record in records:
        first.setdefault(_name(record), int(record["server_round"]))
    where = "; ".join(
        f"{name}, from round {server_round:,} on" for name, server_round in first.items()
    )
    return [f"Rounds whose updates are not finite are left out: {where}."] if first else []


def _round(record: Row, gram: Float64Array, labels: Sequence[Any] | None, policy: Policy) -> Row:
    shares = np.array(record["cohort_weights"], dtype=np.float64)
    chosen = np.flatnonzero(shares)
    row: Row = {
        key: record[key] for key in ("scheduler", "seed", "server_round", "bias", "gradient_norm")
    }
    row["general"] = share_bound(gram, shares)
    row.update(centred=None, theorem1=None, masses=None, clusters=None)
    row.update(above_theorem1=None, mu=None, r=None, kappa=None, structured=None, failed=())
    whole = chosen.size > 0 and abs(float(shares.sum()) - 1.0) < 1e-6
    if whole:
        row["centred"] = share_bound(gram, shares / shares.sum(), centred=True)
    equal = whole and np.allclose(shares[chosen], 1.0 / chosen.size, rtol=1e-5)
    # Clusters are found by directions, which an update of zero does not have.
    grouped = labels is not None or gram.diagonal().min() > 0.0
    if equal and grouped and policy.theta is not None:
        if labels is None:
            found = find_clusters(gram=gram)
            row["structured"] = found is not None
            if found is None:
                return row
            labels = found.tolist()
        losses, norms = np.array(record["batch_losses"]), np.sqrt(gram.diagonal())
        check: ClusterCheck = check_clusters(
            gram=gram,
            m=chosen.size,
            labels=labels,
            quality=losses if policy.quality is None else policy.quality(losses, norms),
            theta=policy.theta if policy.theta < 1.0 else 0.0,
            chosen=chosen,
            rounding=ROUNDING,
        )
        row["theorem1"] = check.bound
        row["above_theorem1"] = bool(row["bias"] > check.bound + check.slack)
        row["masses"] = check.mass_bound
        row["clusters"] = int(np.unique(check.labels[chosen]).size)
        row.update(mu=check.mu, r=check.r, kappa=check.kappa, failed=check.failed)
    return row


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _summary(name: str, rows: list[Row]) -> Row:
    keys = ("bias", "gradient_norm", "general", "centred", "theorem1", "masses", "clusters")
    summary: Row = {"scheduler": name, **{key: _mean([row[key] for row in rows]) for key in keys}}
    summary["epsilon"] = max(row["bias"] for row in rows)
    summary["structured"] = _mean([row["structured"] for row in rows])
    shown = [row for row in rows if row["theorem1"] is not None]
    if summary["structured"] is not None and summary["structured"] <= 0.5:
        summary.update(theorem1=None, masses=None, clusters=None)
        shown = []
    summary["above_theorem1"] = _mean([row["above_theorem1"] for row in shown])
    conditions = list(dict.fromkeys(c for row in shown for c in row["failed"]))
    shares = {c: sum(c in row["failed"] for row in shown) / len(shown) for c in conditions}
    summary["failed"] = shares if shown else None
    return summary


def _convergence(
    name: str,
    unbiased: bool,
    rounds: list[tuple[Row, Row, Float64Array]],
    config: dict[str, Any],
    labels: Sequence[Any] | None,
    smoothness: float,
) -> Row:
    steps = int(config.get("steps", 1))
    # Of weights a that differ, as many clients count as 1 / sum a^2: the least of the rounds.
    squares = [float(np.square(record["cohort_weights"]).sum()) for record, *_ in rounds]
    m = 1.0 / max(squares) if max(squares) > 0.0 else float(config["m"])
    # An update is the sum of E gradients; Theorem 2 speaks of their mean.
    epsilon = 0.0 if unbiased else max(row["bias"] for _, row, _ in rounds) / steps
    variance = 0.0
    if unbiased:
        cohort_size = int(config["m"])
        variance = max(uniform_selection_variance(gram=g, m=cohort_size) for _, _, g in rounds)
        variance /= steps**2
    sigma = 0.0
    if config.get("local", "steps") != "full":
        sigma = math.nan
        if labels is not None:
            # The sum of E gradients has E times the variance of one.
            sigma = max(batch_noise(gram, labels) for *_, gram in rounds) / math.sqrt(steps)
    moment = max(largest_norm(gram=gram) for *_, gram in rounds) / steps
    start = [float(np.mean(r["batch_losses"])) for r, row, _ in rounds if row["server_round"] == 0]
    row: Row = {
        "scheduler": name,
        "L": smoothness,
        "G": moment,
        "sigma": sigma if math.isfinite(sigma) else None,
        "epsilon": epsilon,
        "nu_sel": variance,
        "gap": max(start) if start else None,
    }
    terms = dict.fromkeys(("optimisation", "bias", "variance", "drift", "total"))
    if row["gap"] is not None and row["sigma"] is not None:
        constants = Constants(row["gap"], smoothness, m, epsilon, variance, sigma, moment)
        bound = convergence_bound(
            constants, lr=float(config["lr"]), rounds=int(config["rounds"]), steps=steps
        )
        terms = {key: getattr(bound, key) for key in terms}
    row.update(terms)
    row["measured"] = _mean([(r["gradient_norm"] / steps) ** 2 for _, r, _ in rounds])
    return row


def _is_plain(config: dict[str, Any]) -> bool:
    """Return whether clients run plain SGD steps and the server takes the mean.

    >>> _is_plain({"steps": 5}), _is_plain({"prox": 0.1})
    (True, False)
    """
    plain: dict[str, tuple[Any, ...]] = {
        "local": ("steps", "sgd", "full"),
        "server_optimizer": ("mean",),
        "aggregation": ("mean",),
        **dict.fromkeys(("momentum", "weight_decay", "prox"), (0,)),
        **dict.fromkeys(("epochs", "clip"), (None,)),
    }
    return all(config.get(name, values[0]) in values for name, values in plain.items())


def _notes(config: dict[str, Any], labels: Sequence[Any] | None, rounds: list[Row]) -> list[str]:
    notes = [
        "The general bound and the cluster bound by masses hold for every cohort.",
        "Theorem 1 needs m <= K, Assumption 1 and an exact MAP cohort, fresh every round; its "
        "right-hand side is shown where they fail too, and is then no bound.",
        "epsilon is the largest bias among the evaluated rounds; those between may have larger.",
        "f(w_0) - f* is taken as the first round's mean loss: no loss is below 0.",
    ]
    if labels is not None and int(config["m"]) > len(set(labels)):
        notes.append(
            f"Theorem 1 does not cover this run: m = {config['m']} exceeds K = {len(set(labels))}."
        )
    if labels is None:
        sought = [row["structured"] for row in rounds if row["structured"] is not None]
        notes.append(
            "The run names no groups, so clusters were sought in each round's updates: found in "
            f"{sum(sought):,} of {len(sought):,} rounds. The cluster columns are means over those, "
            "for schedulers that have clusters in more than half of their rounds."
        )
    if config.get("local", "steps") != "full":
        notes.append(
            "Updates are of mini-batches: bias and gradient norm carry batch noise, and Theorem 2 "
            "takes selection to be independent of it."
        )
    if int(config.get("steps", 1)) > 1:
        notes.append(
            f"Bias, its bounds and ||g_N|| are of updates, sums of E = {config['steps']} "
            "gradients; Theorem 2 and the mean of ||g_N||^2 beside it are of an update over E."
        )
    if any(row["theorem1"] is None and row["structured"] is None for row in rounds):
        notes.append(
            "Cohorts with weights other than 1/m, or by a quality that records do not hold, have "
            "the general bound only; so have rounds with an update of zero where clusters are to "
            "be found."
        )
    return notes
