"""Scheduling for Flower federations.

`Scheduled` wraps a strategy at the server, `probe_mod` answers probes at the client, and
`LocalGrid` runs a ClientApp in this process, for tests.
"""

from typing import TYPE_CHECKING, Any

try:
    import flwr.serverapp  # noqa: F401
except ImportError as error:
    raise ImportError("adcs.flower needs Flower: pip install 'adcs[flower]'") from error

from adcs.federated.client_registry import key_id
from adcs.flower.probe_mod import probe_mod
from adcs.flower.strategy import Scheduled

if TYPE_CHECKING:
    from adcs.flower.local_grid import LocalGrid, LocalNode

__all__ = ["LocalGrid", "LocalNode", "Scheduled", "key_id", "probe_mod"]


def __getattr__(name: str) -> Any:
    """Import `LocalGrid` and `LocalNode` when they are used: they need private parts of Flower."""
    if name in ("LocalGrid", "LocalNode"):
        from adcs.flower import local_grid

        return getattr(local_grid, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
