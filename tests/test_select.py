"""`adcs.select`: the call for people who have a loop already."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
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


class NoArray:
    """Like a tensor that requires a gradient: its conversion to an array fails."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


STRINGS = np.array(["a"] * 6, dtype=np.dtypes.StringDType())
MASKED = np.ma.masked_array(np.ones(6), mask=[0, 0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        # Caps never fail open.
        ({"groups": dict.fromkeys(range(6), "x"), "caps": 1}, r"groups must be a list .* \{0: 'x'"),
        ({"groups": set("abcdef"), "caps": 1}, "groups must be a list of labels"),
        ({"groups": (i for i in range(6)), "caps": 1}, "groups must be a list of labels"),
        ({"groups": 3, "caps": 1}, "groups must be a list of labels, .* got 3"),
        ({"groups": NoArray(), "caps": 1}, "groups must be a list of labels"),
        ({"groups": [1, 2], "caps": 1}, "one for each of the 6 rows, got 2"),
        ({"groups": [[1], [1], [2], [2], [3], [3]], "caps": 1}, r"hashable, .* got \[1\]"),
        ({"groups": [([],)] * 6, "caps": 1}, r"hashable, .* got \(\[\],\)"),
        ({"groups": np.ones((6, 2)), "caps": 1}, "hashable"),
        ({"groups": np.full(6, np.nan), "caps": 1}, "a group must be equal to itself, got .*nan"),
        ({"groups": ["x"] * 6, "caps": {"X": 1}}, "caps must name groups of rows, got 'X'"),
        ({"groups": ["x"] * 6, "caps": {10**5000: 1}}, "got a value of type int"),
        ({"groups": ["x"] * 6, "caps": np.timedelta64(1)}, "whole number >= 0, got .*timedelta"),
        # What is no array of numbers.
        ({"quality": NoArray()}, "quality must be numbers, .* NoArray .* detach"),
        ({"quality": STRINGS}, "quality must be numbers, got 'a'"),
        ({"quality": MASKED}, "quality must be numbers, got an array with masked entries"),
        ({"candidates": NoArray()}, "candidates must be a list of row indices"),
        ({"candidates": MASKED.astype(int)}, "candidates must be a list of row indices"),
        ({"candidates": [[0], [1, 2]]}, r"candidates must be .* indices, got \[\[0\], \[1, 2\]\]"),
        ({"candidates": [10**5000]}, "candidates must be a list of row indices"),
        ({"required": NoArray()}, "required must be a list of row indices"),
        ({"m": np.timedelta64(2)}, "m must be a whole number, got .*timedelta64"),
        ({"m": 10**5000}, r"\(6\), got a value of type int"),
        ({"candidates": ["x" * 10_000]}, r"got \['x{58}\.\.\.$"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused(kwargs, named):
    with pytest.raises(ValueError, match=named) as caught:
        adcs.select(GOOD, **{"m": 2, **kwargs})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "updates",
    [
        {7: [1, 0], 9: [0, 1], 11: [1, 1]},
        {1, 2, 3},
        b"abcd",
        bytearray(b"abcd"),
        "abcd",
        [1, 2, 3, 4],
        [[1, 2], 3],
        5,
        None,
        NoArray(),
        [NoArray(), NoArray()],
        [[NoArray(), [1.0]], [NoArray(), [1.0]]],
        np.ma.masked_array(np.eye(3), mask=np.eye(3)),
        [np.ma.masked_array([1.0, 2.0], mask=[0, 1]), np.ones(2)],
        [[np.ma.masked_array([1.0, 2.0], mask=[0, 1])], [np.ones(2)]],
        np.array([["a", "b"]], dtype=np.dtypes.StringDType()),
        np.array([[1, 2]], dtype="m8[s]"),
    ],
)
def test_updates_of_a_wrong_kind_are_refused(updates) -> None:
    with pytest.raises(ValueError, match=r"^updates must ") as caught:
        adcs.select(updates, 1)
    assert "\n" not in str(caught.value)


class Tensor:
    """Like a tensor of bfloat16: NumPy has no such numbers."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        (Tensor(), "got a Tensor that is no array: 'Got unsupported ScalarType BFloat16'"),
        ([Tensor(), Tensor()], "got a Tensor that is no array: 'Got unsupported ScalarType"),
        (scipy.sparse.csr_matrix(GOOD), r"; take its \.toarray\(\)$"),
        ([scipy.sparse.csr_array(row[None]) for row in GOOD], r"; take its \.toarray\(\)$"),
        ([{"weight": row} for row in GOOD], r"; take list\(state_dict\.values\(\)\)$"),
        ([iter([row]) for row in GOOD], r"as list\(model\.parameters\(\)\)$"),
        (Frame([[1.0], [2.0, 3.0]], "ab"), "Frame that is no array: .*inhomogeneous"),
    ],
)
def test_what_holds_numbers_is_refused_with_a_hint(updates, said) -> None:
    with pytest.raises(ValueError, match=f"^updates must be numbers, .*{said}"):
        adcs.select(updates, 1)


def test_a_column_of_rows_gets_a_hint() -> None:
    column = np.empty(6, dtype=object)
    column[:] = list(GOOD)
    with pytest.raises(ValueError, match=r"; a column of rows is given as list\(column\)$"):
        adcs.select(column, 1)
    assert adcs.select(list(column), 2).size == 2


@pytest.mark.parametrize("strange", [np.nan, np.inf, 0.0])
def test_updates_of_clients_that_are_no_candidates_need_no_direction(strange: float) -> None:
    updates = GOOD.copy()
    updates[[1, 4]] = strange
    expected = adcs.select(GOOD, 3, candidates=[0, 2, 3, 5]).tolist()
    assert adcs.select(updates, 3, candidates=[0, 2, 3, 5]).tolist() == expected
    assert (updates[1] == strange).all() or np.isnan(updates[1]).all()
    with pytest.raises(ValueError, match="row 4"):
        adcs.select(updates, 3, candidates=[0, 2, 3, 4])


def test_a_group_that_required_clients_overfill_is_named() -> None:
    with pytest.raises(ValueError, match="required holds 2 rows of group 'y', above its cap 1"):
        adcs.select(GOOD, 3, groups=list("xyyzzz"), caps=1, required=[1, 2])


def test_kinds_of_arrays_that_are_taken() -> None:
    expected = adcs.select(GOOD, 3).tolist()
    assert adcs.select(memoryview(GOOD), 3).tolist() == expected
    assert adcs.select(np.ma.masked_array(GOOD), 3).tolist() == expected
    assert adcs.select(tuple(GOOD), 3).tolist() == expected
    assert adcs.select(GOOD, 3, groups=["x"] * 6, caps=2**63).tolist() == expected
    assert adcs.select(GOOD, 3, groups=["x"] * 6, caps={"x": 10**5000}).tolist() == expected
