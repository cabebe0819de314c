"""`adcs.select`: the call for people who have a loop already."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs

GOOD = np.random.default_rng(0).standard_normal((6, 4))


@pytest.mark.parametrize(
    ("updates", "kwargs", "named"),
    [
        (np.full((3, 2), np.nan), {"m": 1}, "row 0 holds nan"),
        ([[1.0, np.inf], [1.0, 2.0]], {"m": 1}, "row 0 holds inf"),
        ([[1.0, 2.0], [0.0, 0.0]], {"m": 1}, "row 1 is zero"),
        ([[1.0, 2.0], [1.0]], {"m": 1}, r"same length, got lengths \[1, 2\]"),
        ([], {"m": 1}, "got"),
        (np.empty((0, 4)), {"m": 1}, "at least one row"),
        (np.ones(4), {"m": 1}, "2-d"),
        ([["a", "b"]], {"m": 1}, "numbers"),
        (GOOD, {"m": -1}, "-1"),
        (GOOD, {"m": 0}, "got 0"),
        (GOOD, {"m": 7}, r"\(6\), got 7"),
        (GOOD, {"m": 2.0}, r"2\.0"),
        (GOOD, {"m": 2, "theta": 1.5}, r"1\.5"),
        (GOOD, {"m": 2, "theta": -0.1}, r"-0\.1"),
        (GOOD, {"m": 2, "theta": float("nan")}, "nan"),
        (GOOD, {"m": 2, "quality": [1.0]}, r"shape \(1,\)"),
        (GOOD, {"m": 2, "quality": [1, 2, 3, 4, 5, float("inf")]}, "entry 5 is inf"),
        (GOOD, {"m": 2, "candidates": [0, 9]}, "got 9"),
        (GOOD, {"m": 2, "candidates": [0, 0, 1]}, "0 more than once"),
        (GOOD, {"m": 2, "candidates": []}, "at least one"),
        (GOOD, {"m": 2, "candidates": [1]}, r"\(1\), got 2"),
        (GOOD, {"m": 1, "required": [1, 2]}, "more than m = 1"),
        (GOOD, {"m": 2, "candidates": [0, 1, 2], "required": [5]}, "row 5"),
        (GOOD, {"m": 4, "groups": [0] * 6, "caps": 2}, "admit only 2"),
        (GOOD, {"m": 4, "caps": 2}, "groups"),
        (
            GOOD,
            {"m": 2, "groups": list("aabbcc"), "caps": {"a": -1}},
            "'a' must be a whole number >= 0, got -1",
        ),
    ],
)
def test_bad_input_is_one_clear_sentence(updates, kwargs, named):
    with pytest.raises(ValueError, match=named) as caught:
        adcs.select(updates, **kwargs)
    assert "\n" not in str(caught.value)
    assert caught.traceback[-1].path.parent.name in ("dpp", "adcs")


def test_layers_or_vectors_give_the_same():
    layers = [[row[:2].reshape(1, 2), row[2:]] for row in GOOD]
    assert list(adcs.select(layers, m=3)) == list(adcs.select(GOOD, m=3))


def test_theta_one_is_top_m():
    assert list(adcs.select(GOOD, m=3, quality=[1, 9, 2, 8, 7, 3], theta=1.0)) == [1, 3, 4]


def test_huge_and_tiny_updates():
    scale = np.array([1e-200, 1e200, 1.0, 1e-300, 1e300, 5.0])[:, None]
    assert sorted(adcs.select(GOOD * scale, m=4)) == sorted(adcs.select(GOOD, m=4))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 12), st.integers(1, 5), st.floats(0.05, 1), st.integers(0, 10**6))
def test_exactly_m_distinct_and_order_of_clients_is_nothing(n, d, theta, seed):
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal((n, d))
    quality = rng.uniform(0, 3, n)
    m = int(rng.integers(1, n + 1))
    chosen = adcs.select(updates, m, quality=quality, theta=theta)
    assert len(set(chosen.tolist())) == m
    turn = rng.permutation(n)
    turned = adcs.select(updates[turn], m, quality=quality[turn], theta=theta)
    if m <= d:
        assert set(turn[turned].tolist()) == set(chosen.tolist())


def test_errors_speak_of_updates() -> None:
    for updates, named in (([], "at least one row"), ([[1.0, np.nan]], "finite")):
        with pytest.raises(ValueError, match=f"updates must .*{named}"):
            adcs.select(updates, m=1)


def test_whole_numbers_are_not_rounded() -> None:
    large = [10_000_000, 10_000_001, 10_000_003]
    assert list(adcs.select(np.eye(3), m=2, quality=large, theta=1.0)) == [2, 1]


class Frame:
    """Like a data frame: its values are an array, and iterating gives labels of columns."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)

    def __iter__(self):
        return iter(self.columns)


def test_a_frame_is_its_values() -> None:
    values = np.random.default_rng(0).normal(size=(8, 5))
    expected = adcs.select(values, 3).tolist()
    for columns in (range(5), range(1, 6), list("abcde")):
        assert adcs.select(Frame(values, columns), 3).tolist() == expected


@pytest.mark.parametrize(
    "rows", [[np.array([1j, 1]), np.array([1, 1j])], [["1.0", "2"], ["3", "4"]]]
)
def test_what_is_no_real_number_is_not_read_as_one(rows) -> None:
    with pytest.raises(ValueError, match="updates must be numbers"):
        adcs.select(rows, 1)
