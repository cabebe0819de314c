"""Client scheduling for federated learning: which clients train next.

`select` chooses from arrays in one call; the schedulers (`ADCS` and its benchmarks) keep what they
know about clients from round to round, under one contract.
"""

from adcs._select import select
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketcher
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
