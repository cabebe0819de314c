"""The kernel of LiveADCS."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adcs.dpp.kernel import similarity, unit_rows
from adcs.schedulers.live_adcs import LiveKernel


@settings(max_examples=30, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True), min_size=1, max_size=8
    ),
    limit=st.sampled_from([3, 2000]),
)
def test_row_by_row_updates_equal_the_kernel_rebuilt(batches: list[list[int]], limit: int) -> None:
    rng = np.random.default_rng(len(batches))
    kernel = LiveKernel(gram_limit=limit)
    latest: dict[int, Any] = {}
    row: dict[int, int] = {}
    for batch in batches:
        rows = [row.setdefault(client, len(row)) for client in batch]
        updates = rng.normal(size=(len(rows), 9))
        norms = np.linalg.norm(updates, axis=1)
        kernel.update(np.array(rows), unit_rows(updates), norms)
        latest.update(zip(rows, updates, strict=True))
    table = np.array([latest[c] for c in range(len(latest))])
    everyone = np.arange(len(latest))
    np.testing.assert_allclose(kernel.inner_products(everyone), table @ table.T, atol=1e-12)
    found = kernel.similarity(everyone)
    if len(latest) > limit:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_allclose(found, similarity(unit_rows(table)), atol=1e-12)
        assert (found == found.T).all()
        assert (found.diagonal() == 1.0).all()


def test_above_the_limit_cosines_are_computed_as_needed():
    kernel = LiveKernel(gram_limit=2)
    kernel.update(np.arange(3), np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), np.ones(3))
    assert kernel.similarity(np.arange(3)) is None
    assert kernel.similarity(np.array([0, 2])) is None
    np.testing.assert_allclose(kernel.cosines(np.array([1])), [[0.6, 1.0, 0.8]])
