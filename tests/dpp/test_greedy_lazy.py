"""Corners of the search that looks at few rows."""

from __future__ import annotations

import numpy as np
import pytest

from adcs.dpp import greedy
from adcs.dpp.greedy import greedy_map_features
from adcs.dpp.greedy_lazy import LazySearch


def test_a_crowd_that_float32_cannot_tell_apart(monkeypatch):
    sharpened = []
    before = LazySearch._sharpen
    monkeypatch.setattr(
        LazySearch, "_sharpen", lambda search: sharpened.append(1) or before(search)
    )
    # Once row 0 is in, the others have r^2 = 1 - step * place: a tie in float32, none in float64.
    place = 1 + np.random.default_rng(2).permutation(599)
    rows = np.eye(600)
    rows[1:, 0] = np.sqrt(2e-13 * place)
    selection = greedy_map_features(rows, 12)
    assert sharpened
    assert selection.indices.tolist() == [0, *(1 + np.argsort(place)[:11])]
    np.testing.assert_allclose(selection.gains[1:], -2e-13 * np.arange(1, 12), atol=2e-14)
    assert selection.rank == 12


@pytest.mark.parametrize("few", [1024, 0])
def test_at_theta_one_a_copy_does_not_end_the_count_of_directions(monkeypatch, few):
    for limit in ("_FEW", "_GRAM", "_MOST"):
        monkeypatch.setattr(greedy, limit, few)
    rows = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    selection = greedy_map_features(rows, 4, quality=[4.0, 3.0, 2.0, 1.0], theta=1.0)
    assert selection.indices.tolist() == [0, 1, 2, 3]
    assert selection.rank == 3
