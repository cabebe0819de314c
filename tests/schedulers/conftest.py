"""What tests of schedulers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adcs


@pytest.fixture
def clustered() -> Callable[..., np.ndarray]:
    """A function that makes updates in clusters, `each` of them around each of some centres."""

    def make(groups: int = 5, each: int = 3, width: int = 40, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng(seed)
        centres = np.repeat(rng.standard_normal((groups, width)), each, axis=0)
        return centres + 0.1 * rng.standard_normal((groups * each, width))

    return make


@pytest.fixture
def probed() -> Callable[..., Any]:
    """A function that reports updates and losses of clients 0, 1, ... and returns the scheduler."""

    def probe(scheduler: Any, server_round: int, updates: Any, losses: Any = None) -> Any:
        losses = [1.0] * len(updates) if losses is None else losses
        reports = [
            adcs.ClientReport(c, server_round, loss=loss, update=update)
            for c, (update, loss) in enumerate(zip(updates, losses, strict=True))
        ]
        scheduler.observe(server_round, reports, "probe")
        return scheduler

    return probe
