"""Client scheduling for federated learning: which clients train next.

`select` chooses clients from arrays in one call. The schedulers (`LiveADCS`, the paper's `ADCS` and
the methods it is compared with) keep reports from round to round, under one contract.
"""

from adcs._select import select
from adcs.reports import ClientReport, Sketcher
from adcs.schedulers import (
    ADCS,
    FLIPS,
    OCS,
    REFL,
    ActiveFL,
    ClusteredSampling,
    Cohort,
    DivFL,
    FedCBS,
    FedCor,
    FedCS,
    HiCSFL,
    LiveADCS,
    Oort,
    PowerOfChoice,
    Request,
    Scheduler,
    StaticDPP,
    TiFL,
    Uniform,
)

__version__ = "0.1.0"

__all__ = [
    "ADCS",
    "FLIPS",
    "OCS",
    "REFL",
    "ActiveFL",
    "ClientReport",
    "ClusteredSampling",
    "Cohort",
    "DivFL",
    "FedCBS",
    "FedCS",
    "FedCor",
    "HiCSFL",
    "LiveADCS",
    "Oort",
    "PowerOfChoice",
    "Request",
    "Scheduler",
    "Sketcher",
    "StaticDPP",
    "TiFL",
    "Uniform",
    "__version__",
    "select",
]
