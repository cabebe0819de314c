"""Scheduling for federations of NVIDIA FLARE.

`ScheduledFedAvg` is NVFlare's FedAvg whose clients a scheduler selects, and `ProbeFilter` answers
probes for sketches at the client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adcs.nvflare.controller import ScheduledFedAvg
    from adcs.nvflare.probe_filter import ProbeFilter

__all__ = ["ProbeFilter", "ScheduledFedAvg"]


def __getattr__(name: str) -> Any:
    """Import the names that need NVFlare when they are used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import nvflare  # noqa: F401
    except ImportError as error:
        raise ImportError("adcs.nvflare needs NVFlare: pip install 'adcs[nvflare]'") from error
    from adcs.nvflare import controller, probe_filter

    return getattr(controller if name == "ScheduledFedAvg" else probe_filter, name)
