"""Client scheduling for federated learning: which clients train next.

`select` chooses from arrays in one call; the schedulers (`ADCS` and its benchmarks) keep what they
know about clients from round to round, under one contract.
"""

from adcs.schedulers import (
    ADCS,
    OCS,
    Cohort,
    DivFL,
    LiveADCS,
    PowerOfChoice,
    Request,
    Scheduler,
    StaticDPP,
    Uniform,
)
from adcs.selecting import select
from adcs.signals.report import ClientReport
from adcs.signals.sketch import Sketcher

__version__ = "0.1.0"

__all__ = [
    "ADCS",
    "OCS",
    "ClientReport",
    "Cohort",
    "DivFL",
    "LiveADCS",
    "PowerOfChoice",
    "Request",
    "Scheduler",
    "Sketcher",
    "StaticDPP",
    "Uniform",
    "__version__",
    "select",
]
