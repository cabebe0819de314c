"""Scheduling for Flower federations.

`Scheduled` wraps a strategy at the server, `probe_mod` answers probes at the client, and
`LocalGrid` runs a ClientApp in this process, for tests.
"""

try:
    import flwr.serverapp  # noqa: F401
except ImportError as error:
    raise ImportError("adcs.flower needs Flower: pip install 'adcs[flower]'") from error

from adcs.federated.client_registry import key_id
from adcs.flower.local_grid import LocalGrid, LocalNode
from adcs.flower.probe_mod import probe_mod
from adcs.flower.strategy import Scheduled

__all__ = ["LocalGrid", "LocalNode", "Scheduled", "key_id", "probe_mod"]
