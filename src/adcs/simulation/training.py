"""How a model is trained, and what a run of it has come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.run_folder import Ledger
from adcs.schedulers.base import Cohort, Scheduler
from adcs.simulation.settings import FORBID_UNKNOWN, MILLION, check_settings, setting


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

    m: int = setting(18, "Clients per round.", ge=1, le=MILLION, summary="m = {} per round")
    lr: float = setting(0.001, "Learning rate.", gt=0, summary="lr {:g}")
    server_lr: float | None = setting(None, "Learning rate of the server; lr by default.", gt=0)
    local: Literal["steps", "full"] = setting(
        "steps", "Local training: steps on mini-batches, or one on the full batch.", strict=None
    )
    steps: int = setting(1, "Local steps, E.", ge=1, le=MILLION, summary="{} step(s) of SGD")
    weights: Literal["uniform", "size"] = setting(
        "uniform", "Weights of clients: equal, or by their number of examples.", strict=None
    )
    paper_literal_weights: bool = setting(
        False, "Divide weights by m twice, as the paper's text does."
    )

    __pydantic_config__: ClassVar = FORBID_UNKNOWN

    def __post_init__(self) -> None:
        check_settings(self, "training")
        if self.local == "full" and self.steps != 1:
            raise ValueError(f"training.steps must be 1 where local is full, got {self.steps}")


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
