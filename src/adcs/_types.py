"""Type aliases used across the package."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
Float64Array = NDArray[np.float64]
IndexArray = NDArray[np.intp]

ClientId = int | str
"""A client's id: an int or a string, not interpreted."""
