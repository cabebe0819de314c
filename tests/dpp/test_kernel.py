"""Checks of kernels and rows."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from adcs.dpp import kernel
from adcs.dpp.greedy import greedy_map_features
from adcs.dpp.kernel import as_similarity, as_table, unit_rows


def test_the_row_furthest_from_norm_one_is_named():
    with pytest.raises(ValueError, match=r"row 1 has norm 0\.5"):
        greedy_map_features([[1.0, 0.0], [0.5, 0.0]], 1, unit=True)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_a_similarity_is_square(shape):
    with pytest.raises(
        ValueError, match=re.escape(f"similarity must be square, got shape {shape}")
    ):
        as_similarity(np.ones(shape))


@pytest.mark.parametrize("wrong", [None, 3.0, object()])
def test_what_has_no_rows_is_no_table(wrong):
    with pytest.raises(ValueError, match="updates must be"):
        as_table(wrong)


def test_rows_too_short_for_an_inverse_keep_their_direction():
    unit = unit_rows([[3e-310, 4e-310], [3.0, 4.0]])
    np.testing.assert_allclose(unit, [[0.6, 0.8], [0.6, 0.8]], rtol=1e-12)


def test_a_similarity_is_checked_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_similarity(np.eye(37))


@pytest.mark.parametrize("limit", [2**10, 2**25])
def test_similarities_of_many_float32_rows_are_summed_in_float64(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    rows = np.random.default_rng(0).normal(size=(7, 5001)).astype(np.float32)
    monkeypatch.setattr(kernel, "_MANY", limit)
    monkeypatch.setattr(kernel, "_CONVERTED", 1000)
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1)[:, None]
    np.testing.assert_allclose(kernel.similarity(rows), unit @ unit.T, rtol=0, atol=1e-13)


def test_rows_are_scaled_in_place_if_they_may_be_overwritten():
    rows = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    before = rows.copy()
    expected = unit_rows(rows)
    np.testing.assert_array_equal(rows, before)
    assert unit_rows(rows, overwrite=True) is rows
    np.testing.assert_array_equal(rows, expected)
