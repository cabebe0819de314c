"""Corners of the search that looks at few rows, against the search over the whole kernel."""

from __future__ import annotations

import numpy as np
import pytest

from adcs.dpp import greedy
from adcs.dpp.greedy import greedy_map_features, greedy_map_trusted
from adcs.dpp.kernel import similarity
from adcs.dpp.lazy import LazySearch
from adcs.dpp.scoring import Scoring


def test_a_crowd_that_float32_cannot_tell_apart(monkeypatch):
    sharpened = []
    before = LazySearch._sharpen
    monkeypatch.setattr(
        LazySearch, "_sharpen", lambda search: sharpened.append(1) or before(search)
    )
    rng = np.random.default_rng(2)
    # Cosines of about 1e-6: their squares differ by more than a tie in float64.
    rows = np.eye(600) + 1e-6 * rng.normal(size=(600, 600))
    lazy = greedy_map_features(rows, 12)
    assert sharpened
    scoring = Scoring.of_features(rows, None, theta=0.0)
    dense = greedy_map_trusted(similarity(rows), 12, scoring)
    assert lazy.indices.tolist() == dense.indices.tolist()
    np.testing.assert_allclose(lazy.gains, dense.gains, atol=1e-12)
    assert lazy.rank == 12


@pytest.mark.parametrize("few", [1024, 0])
def test_at_theta_one_a_copy_does_not_end_the_count_of_directions(monkeypatch, few):
    for limit in ("_FEW", "_GRAM", "_MOST"):
        monkeypatch.setattr(greedy, limit, few)
    rows = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    selection = greedy_map_features(rows, 4, quality=[4.0, 3.0, 2.0, 1.0], theta=1.0)
    assert selection.indices.tolist() == [0, 1, 2, 3]
    assert selection.rank == 3
