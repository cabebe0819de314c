"""Clients without a usable report."""

from __future__ import annotations

import adcs


def test_weights_are_equal_if_no_client_is_known():
    cohort = adcs.ADCS().select(0, range(5), 2)
    assert cohort.weights == (1.0, 1.0)
