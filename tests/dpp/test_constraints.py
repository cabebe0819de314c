"""Constraints on chosen rows."""

from __future__ import annotations

import pytest

from adcs.dpp.constraints import Constraints


@pytest.mark.parametrize("rows", [[0.5], [[0, 1]], ["0"], [[0.5]]])
@pytest.mark.parametrize("name", ["required", "candidates"])
def test_rows_are_named_by_a_list_of_whole_numbers(name, rows):
    with pytest.raises(ValueError, match=f"{name} must be a list of row indices"):
        Constraints(**{name: rows}).resolve(3, 1)


def test_a_row_named_twice_is_the_one_in_the_message():
    with pytest.raises(ValueError, match="required must be distinct, got 2 more than once"):
        Constraints(required=[1, 2, 2]).resolve(4, 3)
