"""Data sets by name, from arrays, and from .npz files.

>>> load("synthetic:clusters=5").x_train.shape
(1000, 32)
"""

from adcs.simulation.datasets.dataset import Dataset, from_arrays, from_npz
from adcs.simulation.datasets.fashion_mnist import DataUnavailable
from adcs.simulation.datasets.registry import Entry, available, fetch, load

__all__ = [
    "DataUnavailable",
    "Dataset",
    "Entry",
    "available",
    "fetch",
    "from_arrays",
    "from_npz",
    "load",
]
