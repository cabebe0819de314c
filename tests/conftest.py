"""What all tests share."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType

import pytest


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
