"""What all tests share."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from adcs.observers import Observer

# No test fails because the machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Collect garbage of the tests only: Flower does for each reply, and there are many modules."""
    gc.freeze()


@pytest.fixture
def oracle() -> Callable[[str], ModuleType]:
    """Import a peer library that results are compared with.

    The test is skipped where the library is not installed: not every Python has a wheel of it.
    With ADCS_REQUIRE_ORACLES=1 nothing is skipped, and a missing library fails the test.
    """

    def load(module: str) -> ModuleType:
        top = module.partition(".")[0]
        missing = importlib.util.find_spec(top) is None
        if missing and os.environ.get("ADCS_REQUIRE_ORACLES", "") in ("", "0"):
            pytest.skip(f"the oracle {top} is not installed")
        return importlib.import_module(module)

    return load


class EventLog(Observer):
    """Keeps every event in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_selection(self, event: Any) -> None:
        self.events.append(("selection", event))

    def on_round(self, event: Any) -> None:
        self.events.append(("round", event))

    def on_evaluation(self, event: Any) -> None:
        self.events.append(("evaluation", event))

    def on_end(self) -> None:
        self.events.append(("end", None))


@pytest.fixture
def events() -> EventLog:
    """Return an observer that keeps every event in order."""
    return EventLog()


@pytest.fixture
def records() -> Callable[..., list[dict[str, Any]]]:
    """Return a function that makes up the records of a comparison."""

    def make(
        values: dict[str, float], seeds: int = 3, rounds: int = 20000, **more: Any
    ) -> list[dict[str, Any]]:
        """A flat curve for each label, seeds 0.01 apart, and updates by the paper's formula."""
        return [
            {
                "scheduler": label,
                "seed": seed,
                "server_round": done,
                "worst": worst + 0.01 * seed,
                "worst20": worst,
                "average": 0.79,
                **dict.fromkeys(("std", "tv"), 0.1),
                "jain": 1.0,
                "updates": 18 * done + 12 * -(-done // 20) * (label == "ADCS"),
                **dict.fromkeys(("bytes_up", "bytes_down", "seconds"), float(done)),
                **more,
            }
            for label, worst in values.items()
            for seed in range(seeds)
            for done in range(0, rounds + 1, rounds // 20)
        ]

    return make
