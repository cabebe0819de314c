"""Why a greedy search chose what it chose."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adcs.dpp.constraints import Constraints
from adcs.dpp.explain import explain
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import similarity, unit_rows


def kernel(n: int, d: int, seed: int) -> np.ndarray:
    return similarity(unit_rows(np.random.default_rng(seed).normal(size=(n, d))))


def test_three_rows_by_hand() -> None:
    # Row 1 is best; row 0 is like it (0.6), row 2 at right angles but poor.
    c = [[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]]
    why = explain(c, [1, 0], quality=[2.0, 3.0, 0.5], theta=0.5)
    first, second = why.picks
    assert (first.row, first.quality, first.gain) == (1, 3.0, 1.5)
    assert second.score.quality == 1.0
    assert second.score.diversity == pytest.approx(0.5 * math.log(1 - 0.36))
    assert second.gain == pytest.approx(1.0 + 0.5 * math.log(0.64))
    assert (second.nearest, second.similarity) == (1, 0.6)
    (miss,) = why.left_out
    # At pick 0 it is 1.5 - 0.25 behind, at pick 1 only 0.777 - 0.25.
    assert (miss.row, miss.step, miss.winner) == (2, 1, 0)
    assert miss.score.total == pytest.approx(0.25)
    assert miss.winning.total == pytest.approx(second.gain)
    assert miss.lacked == "quality"


def test_a_near_copy_lacks_diversity() -> None:
    c = [[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 1.0]]
    (miss,) = explain(c, [0, 2], quality=[1.0, 0.9, 0.5], theta=0.5).left_out
    assert (miss.row, miss.nearest, miss.similarity) == (1, 0, 0.99)
    assert miss.step == 0  # only 0.05 behind there, for its quality
    assert miss.lacked == "quality"
    (miss,) = explain(c, [0, 2], quality=[1.0, 1.0, 0.5], theta=0.5).left_out
    assert miss.step == 1  # pick 0 was a tie
    assert miss.lacked == "diversity"


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.8, 0.99, 1.0])
def test_agrees_with_the_search(theta: float) -> None:
    c = kernel(30, 50, seed=1)
    q = np.random.default_rng(2).exponential(size=30)
    selection = greedy_map(c, 18, quality=q, theta=theta)
    why = explain(c, selection.indices, q, theta)
    assert [pick.row for pick in why.picks] == selection.indices.tolist()
    np.testing.assert_allclose([p.gain for p in why.picks], selection.gains, rtol=1e-8, atol=1e-12)
    assert len(why.left_out) == 12
    for miss in why.left_out:
        assert miss.score.total <= miss.winning.total + 1e-9
        assert miss.winner == selection.indices[miss.step]


def test_picks_without_a_direction_of_their_own() -> None:
    c = similarity(unit_rows(np.repeat(np.eye(3), 2, axis=0)))
    selection = greedy_map(c, 5)
    why = explain(c, selection.indices)
    assert selection.rank == 3
    gains = [pick.gain for pick in why.picks]
    np.testing.assert_array_equal(gains, selection.gains)
    assert gains[3:] == [-math.inf, -math.inf]
    assert [pick.similarity for pick in why.picks] == [1.0, 1.0, 0.0, 1.0, 1.0]


def test_a_cap_keeps_a_better_row_out() -> None:
    rules = Constraints(groups=["a", "a", "b"], caps={"a": 1})
    selection = greedy_map(np.eye(3), 2, quality=[3.0, 2.0, 1.0], theta=0.5, constraints=rules)
    (miss,) = explain(np.eye(3), selection.indices, [3.0, 2.0, 1.0], 0.5).left_out
    assert (miss.row, miss.lacked) == (1, "nothing")


def test_the_other_way_round_counts_as_alike() -> None:
    c = similarity(unit_rows([[1.0, 0.0], [-1.0, 0.1], [0.3, 1.0]]))
    (miss,) = explain(c, [0, 2]).left_out
    assert miss.nearest == 0
    assert miss.similarity < -0.99


@pytest.mark.parametrize("indices", [[], [0, 0], [3], [-1], [0.5]])
def test_indices_are_checked(indices: list[int]) -> None:
    with pytest.raises(ValueError, match="indices must be"):
        explain(np.eye(3), indices)
