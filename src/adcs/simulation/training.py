"""How a model is trained, and what a run of it has come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.run_folder import Ledger
from adcs.schedulers.base import Cohort, Scheduler


@dataclass(frozen=True)
class Training:
    """How the model is trained.

    Attributes
    ----------
    m
        Clients per round.
    lr
        Learning rate of local steps.
    server_lr
        Learning rate of the global step; None takes `lr`, which for local steps means that the
        new model is the mean of the clients' models.
    local
        "steps": `steps` mini-batch steps of SGD. "full": one step on all of a client's data.
    steps
        Number of local steps, E; 1 where `local` is "full".
    weights
        The clients' weights p: "uniform", or "size" in proportion to their number of examples.
    paper_literal_weights
        Divide by m what is weighted by p already, as the paper's text does: (1/m) sum p_n g_n.
    """

    m: int
    lr: float = 0.001
    server_lr: float | None = None
    local: Literal["steps", "full"] = "steps"
    steps: int = 1
    weights: Literal["uniform", "size"] = "uniform"
    paper_literal_weights: bool = False

    def __post_init__(self) -> None:
        if self.local == "full" and self.steps != 1:
            raise ValueError(f"steps must be 1 where local is full, got {self.steps}")


@dataclass
class Run:
    """One scheduler's run: what it has learned, spent and chosen.

    Of the clients chosen, `shares` is what the update of each counts: p w.
    """

    name: str
    scheduler: Scheduler
    ledger: Ledger
    counts: IndexArray
    cohort: Cohort = field(default_factory=lambda: Cohort((), ()))
    chosen: IndexArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    shares: Float64Array = field(default_factory=lambda: np.empty(0))
