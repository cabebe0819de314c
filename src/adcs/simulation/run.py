"""The run of one scheduler in a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.backoff import Backoff
from adcs.run_folder import Ledger
from adcs.schedulers.base import Cohort, Scheduler
from adcs.simulation.in_flight import InFlight
from adcs.simulation.local_training import TrainingStates
from adcs.simulation.scheduler_errors import OWN_ERRORS, scheduler_error

T = TypeVar("T")


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
    in_flight
        The clients at work, where rounds can end without some of them; else None.

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
    in_flight: InFlight | None = None

    def call(self, server_round: int | None, method: Callable[..., T], *args: Any) -> T:
        """Call a method of the scheduler; an error of a user's scheduler names it and the round."""
        try:
            return method(*args)
        except OWN_ERRORS as error:
            named = scheduler_error(self.scheduler, error, server_round)
            if named is error:
                raise
            raise named from error
