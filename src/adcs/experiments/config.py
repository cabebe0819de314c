"""The config of a comparison: checked, resolved, and turned into a simulation."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from adcs._validation import did_you_mean, near_by
from adcs.experiments.hints import check_value
from adcs.experiments.specs import make_scheduler
from adcs.simulation.datasets import Dataset, load
from adcs.simulation.engine import Simulation
from adcs.simulation.federation import Federation
from adcs.simulation.models import MLP
from adcs.simulation.network import Network, NetworkSettings
from adcs.simulation.partition import Partition, check_settings, make_partition
from adcs.simulation.training import Training

PAPER_SCHEDULERS = {
    "Uniform": "Uniform",
    "PowerOfChoice": "PowerOfChoice",
    "OCS": "OCS",
    "DivFL": "DivFL",
    "StaticDPP": "StaticDPP",
    "ADCS": "ADCS",
}

MILLION = 10**6

WHOLE = {
    "clients": (1, MILLION),
    "m": (1, MILLION),
    "rounds": (1, 1000 * MILLION),
    "eval_every": (1, 1000 * MILLION),
    "batch_size": (1, MILLION),
    "steps": (1, MILLION),
    "seeds": (1, MILLION),
    "first_seed": (0, 10**15),
    "pass_width": (1, MILLION),
}
"""Settings that are whole numbers, with the smallest and largest allowed value. Products of them
fit 64 bits, and seeds are exact as JSON numbers."""


@dataclass(frozen=True)
class Experiment:
    """Everything that determines the results of a comparison; the defaults are the paper's.

    Attributes
    ----------
    data, data_folder
        A data set's name or an .npz file; a folder to look for its files in.
    partition, clients, partition_settings
        How the data is divided, among how many clients, and that way's own settings.
    hidden
        Sizes of hidden layers; none is softmax regression.
    schedulers
        What is compared: label to spec.
    m, rounds, eval_every
        Clients per round, number of rounds, rounds between evaluations.
    batch_size, steps, local, lr, server_lr, weights, paper_literal_weights
        Local training and aggregation: see `Training`.
    seeds, first_seed
        How many seeds, from which on. Each has its own partition and mini-batches.
    dtype
        "float32" or "float64".
    network
        Settings of the virtual network; empty for equal, faultless clients.
    pass_width
        How many schedulers share a pass over the data. It is part of the config because a GEMM
        rounds differently in another width; 1 runs each scheduler alone.
    baseline
        The label that paired differences are taken against.
    """

    data: str = "fashion-mnist"
    data_folder: str | None = None
    partition: str = "by-class"
    clients: int = 30
    partition_settings: Mapping[str, Any] = field(default_factory=dict)
    hidden: tuple[int, ...] = ()
    schedulers: Mapping[str, str] = field(default_factory=lambda: dict(PAPER_SCHEDULERS))
    m: int = 18
    rounds: int = 20000
    eval_every: int = 100
    batch_size: int = 16
    steps: int = 1
    local: str = "steps"
    lr: float = 0.001
    server_lr: float | None = None
    weights: str = "uniform"
    paper_literal_weights: bool = False
    seeds: int = 1
    first_seed: int = 0
    dtype: str = "float32"
    network: Mapping[str, Any] = field(default_factory=dict)
    pass_width: int = 3
    baseline: str | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in WHOLE.items():
            _between(name, getattr(self, name), least, most)
        if self.m > self.clients:
            raise ValueError(f"m must be at most {self.clients} (all clients), got {self.m}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be finite and above 0, got {self.lr!r}")
        if self.server_lr is not None and not 0 < self.server_lr < math.inf:
            raise ValueError(f"server_lr must be finite and above 0, got {self.server_lr!r}")
        _one_of("local", self.local, ("steps", "full"))
        if self.local == "full" and self.steps > 1:
            raise ValueError(f"steps must be 1 where local is full, got {self.steps}")
        _one_of("weights", self.weights, ("uniform", "size"))
        _one_of("dtype", self.dtype, ("float32", "float64"))
        for size in self.hidden:
            _between("hidden", size, 1, MILLION)
        if not self.schedulers:
            raise ValueError("schedulers must name at least one, got none")
        for spec in self.schedulers.values():
            make_scheduler(spec, seed=0)
        if self.baseline is not None and self.baseline not in self.schedulers:
            labels = ", ".join(self.schedulers)
            raise ValueError(f"baseline must be one of {labels}; got {self.baseline!r}")
        hints = check_settings(self.partition, self.partition_settings)
        _check_values(self.partition_settings, hints, f"{self.partition} ")
        self.network_settings()

    def network_settings(self) -> NetworkSettings | None:
        """Return the network's settings, or None for equal, faultless clients."""
        if not self.network:
            return None
        known = [f.name for f in fields(NetworkSettings)]
        _no_strangers(self.network, known, "network setting")
        _check_values(self.network, get_type_hints(NetworkSettings), "network ")
        return NetworkSettings(**self.network)

    @property
    def seed_list(self) -> range:
        """The seeds to run."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def passes(self) -> list[tuple[str, ...]]:
        """Return the labels that share each pass over the data, dealt out in turn."""
        labels = list(self.schedulers)
        count = -(-len(labels) // self.pass_width)
        return [tuple(labels[i::count]) for i in range(count)]

    def dataset(self) -> Dataset:
        """Load the data."""
        return load(self.data, self.data_folder)

    def divide(self, dataset: Dataset, seed: int) -> Partition:
        """Divide the data among the clients."""
        return make_partition(
            dataset, self.partition, self.clients, seed=seed, **self.partition_settings
        )

    def simulation(
        self,
        seed: int,
        labels: tuple[str, ...] | None = None,
        dataset: Dataset | None = None,
    ) -> Simulation:
        """Return the simulation of one seed and of some of the schedulers."""
        dataset = dataset or self.dataset()
        federation = Federation(
            dataset,
            self.divide(dataset, seed),
            batch_size=self.batch_size,
            seed=seed,
            dtype=np.dtype(self.dtype),
        )
        network = self.network_settings()
        return Simulation(
            federation,
            MLP(dataset.x_train.shape[1], dataset.classes, self.hidden),
            {
                label: make_scheduler(self.schedulers[label], seed)
                for label in labels or tuple(self.schedulers)
            },
            Training(
                m=self.m,
                lr=self.lr,
                server_lr=self.server_lr,
                local=self.local,
                steps=self.steps,
                weights=self.weights,  # type: ignore[arg-type]
                paper_literal_weights=self.paper_literal_weights,
            ),
            network=None if network is None else Network(network, self.clients, seed),
            seed=seed,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the config as JSON values."""
        return asdict(self)


def from_dict(values: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a config's values; keys with hyphens do too.

    Lists stand for tuples, and a list of schedulers for a table in which each is its own label.

    >>> from_dict({"rouns": 10})
    Traceback (most recent call last):
    ...
    ValueError: unknown setting 'rouns'; did you mean rounds?
    """
    given = underscored(values)
    _no_strangers(given, [f.name for f in fields(Experiment)], "setting")
    hints = get_type_hints(Experiment)
    hints["schedulers"] = list[str] | hints["schedulers"]
    _check_values(given, hints)
    schedulers = given.get("schedulers")
    if isinstance(schedulers, (list, tuple)):
        given["schedulers"] = {spec: spec for spec in schedulers}
        if len(given["schedulers"]) < len(schedulers):
            raise ValueError(f"schedulers must be distinct, got {list(schedulers)!r}")
    if "hidden" in given:
        given["hidden"] = tuple(given["hidden"])
    return replace(Experiment(), **given)


def underscored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names in Python; one that is there with hyphens too is refused.

    >>> underscored({"eval-every": 10})
    {'eval_every': 10}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name in found:
            raise ValueError(f"{name} is set twice, with hyphens and with underscores; keep one")
        found[name] = value
    return found


def from_toml(path: str | Path) -> dict[str, Any]:
    """Return the values in a TOML file."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text, as TOML is: {error}") from error
    except OSError as error:
        near = near_by(Path(path)) if isinstance(error, FileNotFoundError) else ""
        raise ValueError(f"{path} cannot be read: {error.strerror}{near}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep to be settings") from error


def _check_values(given: Mapping[str, Any], hints: Mapping[str, Any], whose: str = "") -> None:
    for name, value in given.items():
        check_value(f"{whose}{name}", value, hints[name])


def _between(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most:,}, got {value!r}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _no_strangers(given: Mapping[str, Any], known: list[str], what: str) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"unknown {what} {key!r}; {did_you_mean(key, known)}")
