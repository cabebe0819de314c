"""Client scheduling for federated learning: which clients train next.

`select` chooses clients from arrays in one call. The schedulers (`LiveADCS`, the paper's `ADCS` and
the methods it is compared with) keep reports from round to round, under one contract. `compare`
runs schedulers side by side on the simulator; it needs the extra `cli`.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from adcs.experiments.comparison import Comparison, compare

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
    "Comparison",
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
    "compare",
    "select",
]


def __getattr__(name: str) -> Any:
    """Import `compare` and `Comparison` when they are first used: they need the extra `cli`."""
    if name not in ("Comparison", "compare"):
        raise AttributeError(f"module 'adcs' has no attribute {name!r}")
    try:
        from adcs.experiments import comparison
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "adcs":
            raise
        raise ImportError(
            f"adcs.{name} needs {error.name}, which is missing; pip install 'adcs[cli]' brings it"
        ) from error
    return getattr(comparison, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
