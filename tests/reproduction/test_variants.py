"""The variants of LiveADCS keep the scheduler contract."""

from __future__ import annotations

from typing import Any

import pytest

from adcs.testing import CHECKS
from reproduction import variants

KINDS = [
    variants.NoReuse,
    variants.RawQuality,
    variants.NoUncertainty,
    variants.NoPrediction,
    variants.NoTrend,
    variants.NoDraw,
    variants.FullEmphasis,
    variants.NoBalance,
    variants.NoWaitingBonus,
    variants.NoDiscount,
    variants.NoSmoothing,
    variants.FittedWeights,
    variants.NoDiversity,
    variants.OtherBatch,
]


@pytest.mark.parametrize("kind", KINDS)
def test_variants_keep_the_contract(kind: Any) -> None:
    for check in CHECKS:
        check(kind)
