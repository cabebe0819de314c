"""The lazy search: float64 where float32 is not exact enough, and rank at theta = 1."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from adcs.dpp import greedy
from adcs.dpp.greedy import greedy_map_features
from adcs.dpp.greedy_lazy import FeatureRowSource, LazySearch
from adcs.dpp.tolerances import Scorer


def test_rows_that_tie_in_float32_are_compared_in_float64():
    # After row 0, the others have r^2 = 1 - 2e-13 * rank: a tie in float32, none in float64.
    rank = 1 + np.random.default_rng(2).permutation(599)
    features = np.eye(600)
    features[1:, 0] = np.sqrt(2e-13 * rank)
    rows = FeatureRowSource(features)
    search = LazySearch(rows, Scorer.of_features(features, None, theta=0.0), np.zeros(600), m=12)
    search.admit(np.arange(600))
    picks = [row for row, _ in islice(search.picks(), 12)]
    assert not rows.use_float64()  # it is in use already
    selection = greedy_map_features(features, 12)
    assert selection.indices.tolist() == picks == [0, *(1 + np.argsort(rank)[:11])]
    np.testing.assert_allclose(selection.gains[1:], -2e-13 * np.arange(1, 12), atol=2e-14)
    assert selection.rank == 12


@pytest.mark.parametrize("few", [1024, 0])
def test_at_theta_one_a_copy_does_not_end_the_count_of_directions(monkeypatch, few):
    monkeypatch.setattr(greedy, "_SMALL", few)
    monkeypatch.setattr(greedy, "_LARGE", few)
    monkeypatch.setattr(greedy, "_MANY", few)
    rows = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    selection = greedy_map_features(rows, 4, quality=[4.0, 3.0, 2.0, 1.0], theta=1.0)
    assert selection.indices.tolist() == [0, 1, 2, 3]
    assert selection.rank == 3
