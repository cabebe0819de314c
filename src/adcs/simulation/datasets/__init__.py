"""Data sets by name, from arrays, from files, and from the data of each client.

>>> load("synthetic:clusters=5").x_train.shape
(1000, 32)
"""

from adcs.simulation.datasets.cache import DataUnavailable
from adcs.simulation.datasets.clients import (
    from_clients,
    from_folder,
    from_leaf,
    from_partitions,
)
from adcs.simulation.datasets.dataset import Dataset, from_arrays, from_npz
from adcs.simulation.datasets.registry import (
    Entry,
    available,
    fetch,
    is_named,
    load,
    natural_clients,
    reads_folder,
)

__all__ = [
    "DataUnavailable",
    "Dataset",
    "Entry",
    "available",
    "fetch",
    "from_arrays",
    "from_clients",
    "from_folder",
    "from_leaf",
    "from_npz",
    "from_partitions",
    "is_named",
    "load",
    "natural_clients",
    "reads_folder",
]
