"""Tolerances are what rounding does to a score."""

from __future__ import annotations

import numpy as np
import pytest

from adcs.dpp.tolerances import Scorer


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("square", [1e-2, 0.5, 1.0])
def test_a_tie_is_as_wide_as_the_rounding_of_the_score(theta, square):
    noise = 1e-9
    scorer = Scorer(theta, floor=1e-14, kernel_error=noise, direction_error=0.0, quality_error=0.0)
    moved = scorer.score_one(square, 2.0) - scorer.score_one(square - noise, 2.0)
    assert scorer.tie_margin(square, 2.0) == pytest.approx(moved, rel=1e-3)
    assert scorer.tie_margin(np.array([square]), np.array([2.0]))[0] == pytest.approx(
        moved, rel=1e-3
    )


@pytest.mark.parametrize("theta", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("quality", [3.0, -3.0])
def test_a_tie_is_as_wide_as_the_rounding_of_the_quality(theta, quality):
    scorer = Scorer(theta, floor=1e-14, kernel_error=0.0, direction_error=0.0, quality_error=1e-9)
    weight = float(scorer.quality_term(np.array([quality]))[0])
    assert scorer.tie_margin(0.5, weight) == pytest.approx(theta * 1e-9 * abs(quality))


@pytest.mark.parametrize("angle", [0.1, 0.8, 1.4])
def test_a_tie_is_as_wide_as_the_rounding_of_the_rows(angle):
    error = 1e-7
    scorer = Scorer(0.0, floor=1e-14, kernel_error=0.0, direction_error=error, quality_error=0.0)
    moved = np.sin(angle + error) ** 2 - np.sin(angle) ** 2
    assert scorer.tie_margin(np.sin(angle) ** 2, 0.0) == pytest.approx(moved, rel=1e-5)
