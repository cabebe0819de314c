"""The bounds of branch and bound against exhaustive search."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from adcs.dpp import exact_bounds
from adcs.dpp.constraints import Constraints
from adcs.dpp.exact import _Node, _reduce, _Search
from adcs.dpp.kernel import similarity, unit_rows


def best_of_all(kernel, weight, slots, theta, labels, cap):
    """The largest value over all allowed sets that hold, and that lack, each row."""
    n = len(kernel)
    holding, lacking = np.full(n, -np.inf), np.full(n, -np.inf)
    for chosen in combinations(range(n), slots):
        s = list(chosen)
        if np.bincount(labels[s]).max() > cap:
            continue
        log_det = np.linalg.slogdet(kernel[np.ix_(s, s)])[1]
        value = (1.0 - theta) * log_det + weight[s].sum()
        holding[s] = np.maximum(holding[s], value)
        others = np.setdiff1d(np.arange(n), s)
        lacking[others] = np.maximum(lacking[others], value)
    return holding, lacking


@pytest.mark.parametrize("theta", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("cap", [2, 9])
@pytest.mark.parametrize("block", [3, 12])
def test_no_set_is_above_its_bound(monkeypatch, block, cap, theta):
    monkeypatch.setattr(exact_bounds, "_BLOCK", block)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n, slots = 8, int(rng.integers(2, 7))
        # Some of the rows are far from orthogonal, so that the blocks matter.
        rows = rng.normal(size=(n, 12)) + 2.0 * rng.normal(size=12) * (rng.random((n, 1)) < 0.6)
        kernel, weight = similarity(unit_rows(rows)), theta * rng.normal(size=n)
        labels = np.arange(n) % 3
        resolved = Constraints(groups=labels, caps=cap).resolve(n, min(slots, 3 * cap))
        slots = min(slots, 3 * cap)
        node = _Node(kernel, weight, np.arange(n), slots, resolved, resolved.caps, 0.0, ())
        search = _Search(theta=theta, floor=1e-14, margin=0.0, node_limit=9, best=-np.inf)
        bounds = search._bounds(node, -np.inf)
        for bound, best in zip(
            bounds, best_of_all(kernel, weight, slots, theta, labels, cap), strict=True
        ):
            assert (bound >= best - 1e-9).all()
            if block >= n:  # all of it was enumerated
                np.testing.assert_allclose(bound, best, atol=1e-9)


def test_a_node_without_a_feasible_set_is_dropped():
    labels = np.array([0, 0, 1, 1])
    resolved = Constraints(groups=labels, caps=1).resolve(4, 2)
    node = _Node(np.eye(4), np.zeros(4), np.arange(4), 2, resolved, resolved.caps, 0.0, ())
    search = _Search(theta=0.0, floor=1e-14, margin=0.0, node_limit=9, best=-np.inf)

    def reduced(into, out):
        return _reduce(node, np.isin(np.arange(4), into), np.isin(np.arange(4), out), search)

    assert reduced([0, 1], []) is None  # above the cap of their group
    assert reduced([], [0, 1]) is None  # one slot too many for the other group
    assert reduced([0, 1, 2], []) is None
    left = reduced([0], [3])
    assert (left.chosen, left.rows.tolist(), left.slots) == ((0,), [2], 1)
    assert left.caps.tolist() == [0, 1]
