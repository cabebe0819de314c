"""Settings of training and aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from adcs._validation import check_choice
from adcs.simulation.aggregation import AGGREGATIONS, Aggregation
from adcs.simulation.local_training import LocalSGD
from adcs.simulation.server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from adcs.simulation.settings import FORBID_UNKNOWN, MILLION, check_settings, setting

LOCAL = ("sgd", "full")
"""The kinds of local training that have a name."""

_SGD, _SERVER, _RULE = "local", "server_optimizer", "aggregation"
_ADAPTIVE = ("adam", "yogi", "adagrad")
USED_BY: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "momentum": (_SGD, LOCAL),
    "weight_decay": (_SGD, LOCAL),
    "prox": (_SGD, LOCAL),
    "clip": (_SGD, LOCAL),
    "server_momentum": (_SERVER, ("momentum",)),
    "beta_1": (_SERVER, ("adam", "yogi")),
    "beta_2": (_SERVER, ("adam", "yogi")),
    "tau": (_SERVER, _ADAPTIVE),
    "trim": (_RULE, ("trimmed-mean",)),
    "clip_norm": (_RULE, ("clipped-mean",)),
}
"""Settings that belong to some values of another setting: its name, and these values."""


def is_spec(value: str) -> bool:
    """Return whether a value names a user's own object: `file.py:Class` or `module:Class`.

    >>> is_spec("examples/scaffold.py:Scaffold"), is_spec("sgd")
    (True, False)
    """
    return ":" in value.partition("(")[0]


@dataclass(frozen=True)
class Training:
    """How the model is trained.

    Attributes
    ----------
    m
        Clients per round.
    lr
        Learning rate of local steps.
    local
        The kind of local training. "sgd": mini-batch steps. "full": one step on all of a client's
        data. Else the spec of a user's own `LocalTraining`, whose object `Simulation` takes.
    steps
        Number of local steps, E, on mini-batches that are sampled with replacement.
    epochs
        Passes over a client's data in place of a number of steps.
    momentum, weight_decay, prox, clip
        Settings of `LocalSGD`.
    server_lr
        Learning rate of the server. None takes `lr` for "mean" and "momentum", which for "mean"
        makes the new model the mean of the clients' models, and the default of
        `adcs.simulation.server_optimizer` otherwise.
    server_optimizer
        "mean", "momentum", "adam", "yogi" or "adagrad".
    server_momentum, beta_1, beta_2, tau
        Settings of the server's optimiser.
    aggregation
        "mean", "median", "trimmed-mean" or "clipped-mean"; else the spec of a user's own
        `Aggregation`, whose object `Simulation` takes.
    trim
        Fraction of the values that "trimmed-mean" leaves out at each end.
    clip_norm
        The largest norm of an update for "clipped-mean".
    weights
        The clients' weights p: "uniform", or "size" in proportion to their number of examples.
    paper_literal_weights
        Divide by m what is weighted by p already, as the paper's text does: (1/m) sum p_n g_n.

    Examples
    --------
    >>> Training(m=5, lr=0.1, epochs=2, prox=0.01).local_sgd()
    LocalSGD(lr=0.1, momentum=0.0, weight_decay=0.0, prox=0.01, clip=None)
    >>> Training(m=5, tau=0.1)
    Traceback (most recent call last):
    ...
    ValueError: training.tau is a setting of adam, yogi and adagrad, and server_optimizer is mean
    """

    m: int = setting(18, "Clients per round.", ge=1, le=MILLION, summary="m = {} per round")
    lr: float = setting(0.001, "Learning rate.", gt=0, summary="lr {:g}")
    server_lr: float | None = setting(
        None, "Learning rate of the server; lr by default (adam, adagrad: 0.1, yogi: 0.01).", gt=0
    )
    local: str = setting(
        "sgd",
        "Local training: sgd (mini-batches), full (one step on all of a client's data), or your "
        "own, file.py:Class.",
        metavar="NAME|SPEC",
        is_spec=True,
    )
    steps: int = setting(1, "Local steps, E.", ge=1, le=MILLION, summary="{} step(s) of SGD")
    epochs: int | None = setting(
        None,
        "Passes over a client's data, in place of steps.",
        summary=lambda epochs: "" if epochs is None else f"{epochs} epoch(s) of SGD",
        ge=1,
        le=MILLION,
    )
    momentum: float = setting(0.0, "Momentum of local SGD.", ge=0, lt=1)
    weight_decay: float = setting(0.0, "Weight decay of local SGD.", ge=0)
    prox: float = setting(0.0, "Weight of FedProx's proximal term, mu.", ge=0)
    clip: float | None = setting(None, "Largest norm of a gradient in local SGD.", gt=0)
    server_optimizer: Literal["mean", "momentum", "adam", "yogi", "adagrad"] = setting(
        "mean", "Optimiser of the server, as Flower's FedAvg, FedAvgM, FedAdam ...", strict=None
    )
    server_momentum: float = setting(0.9, "Momentum of the server.", ge=0, lt=1)
    beta_1: float = setting(0.9, "Decay of the mean of updates (adam, yogi).", ge=0, lt=1)
    beta_2: float = setting(0.99, "Decay of the mean of their squares.", ge=0, lt=1)
    tau: float = setting(1e-3, "Added to the root of that mean (adam, yogi, adagrad).", gt=0)
    aggregation: str = setting(
        "mean",
        f"Aggregation: {', '.join(AGGREGATIONS)}, or your own, file.py:Class.",
        metavar="NAME|SPEC",
        is_spec=True,
    )
    trim: float = setting(0.2, "Fraction that trimmed-mean leaves out at each end.", ge=0, lt=0.5)
    clip_norm: float | None = setting(None, "Largest norm of an update for clipped-mean.", gt=0)
    weights: Literal["uniform", "size"] = setting(
        "uniform", "Weights of clients: equal, or by their number of examples.", strict=None
    )
    paper_literal_weights: bool = setting(
        False, "Divide weights by m twice, as the paper's text does."
    )

    __pydantic_config__: ClassVar = FORBID_UNKNOWN

    def __post_init__(self) -> None:
        check_settings(self, "training")
        for name, known in (("local", LOCAL), ("aggregation", tuple(AGGREGATIONS))):
            value = getattr(self, name)
            if not (isinstance(value, str) and is_spec(value)):
                check_choice(f"training.{name}", value, known)
        if self.local == "full" and self.steps != 1:
            raise ValueError(f"training.steps must be 1 where local is full, got {self.steps}")
        if self.local == "full" and self.epochs is not None:
            raise ValueError("training.epochs cannot be given where local is full")
        if self.epochs is not None and self.steps != 1:
            raise ValueError(
                f"training.epochs takes the place of training.steps: give one of them, got "
                f"epochs {self.epochs} and steps {self.steps}"
            )
        if self.aggregation == "clipped-mean" and self.clip_norm is None:
            raise ValueError("training.clip_norm must be given where aggregation is clipped-mean")
        if self.aggregation != "mean" and self.paper_literal_weights:
            raise ValueError(
                f"training.paper_literal_weights needs aggregation mean, got {self.aggregation!r}"
            )
        self._check_use()

    def _check_use(self) -> None:
        """Refuse settings that would have no effect."""
        defaults: dict[str, Any] = {each.name: each.default for each in fields(self)}
        for name, (owner, users) in USED_BY.items():
            value = getattr(self, owner)
            if value not in users and getattr(self, name) != defaults[name]:
                listed = ", ".join(users[:-1]) + " and " * (len(users) > 1) + users[-1]
                raise ValueError(
                    f"training.{name} is a setting of {listed}, and {owner} is {value}"
                )

    def local_sgd(self) -> LocalSGD:
        """Return the local SGD of these settings."""
        return LocalSGD(self.lr, self.momentum, self.weight_decay, self.prox, self.clip)

    def make_aggregation(self) -> Aggregation:
        """Return the aggregation of this name.

        >>> type(Training(aggregation="median").make_aggregation()).__name__
        'Median'
        """
        settings: dict[str, dict[str, Any]] = {
            "trimmed-mean": {"trim": self.trim},
            "clipped-mean": {"norm": self.clip_norm},
        }
        made: Aggregation = AGGREGATIONS[self.aggregation](**settings.get(self.aggregation, {}))
        return made

    def make_server_optimizer(self) -> ServerOptimizer:
        """Return the server's optimiser.

        >>> type(Training(server_optimizer="adam").make_server_optimizer()).__name__
        'Adam'
        """
        return SERVER_OPTIMIZERS[self.server_optimizer](self)
