"""Counter-based random numbers: a hash of a seed and keys, the same in every process.

The number for one key does not depend on the others, so numbers can be drawn in any order, again,
and for some keys only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import Float64Array

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 finaliser of each number.

    >>> mix(np.array([1], dtype=np.uint64))
    array([6238072747940578789], dtype=uint64)
    """
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def hashes(seed: int, *keys: Any) -> NDArray[np.uint64]:
    """Return 64 random bits for each combination of keys (ints or arrays that broadcast).

    >>> bool(hashes(0, 5, np.arange(3))[2] == hashes(0, 5, 2))
    True
    """
    with np.errstate(over="ignore"):
        state = mix(np.asarray(seed, dtype=np.uint64) + GOLDEN)
        for key in keys:
            state = mix(state + GOLDEN * (np.asarray(key, dtype=np.uint64) + np.uint64(1)))
    return state


def uniforms(seed: int, *keys: Any) -> Float64Array:
    """Return a number in [0, 1) for each combination of keys.

    >>> bool(0.0 <= uniforms(0, 5) < 1.0)
    True
    """
    return np.asarray((hashes(seed, *keys) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)
