"""The ablations keep the scheduler contract."""

from __future__ import annotations

from typing import Any

import pytest

from adcs.testing import CHECKS
from reproduction import ablations

KINDS = [
    ablations.NoReuse,
    ablations.RawQuality,
    ablations.NoUncertainty,
    ablations.NoPrediction,
    ablations.NoTrend,
    ablations.NoDraw,
    ablations.NoiseIgnored,
    ablations.NoShareLimit,
    ablations.NoSmoothing,
    ablations.EqualWeights,
    ablations.NoDiversity,
    ablations.OtherBatch,
]


@pytest.mark.parametrize("kind", KINDS)
def test_ablations_keep_the_contract(kind: Any) -> None:
    for check in CHECKS:
        check(kind)
