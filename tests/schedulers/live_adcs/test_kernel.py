"""The kernel of LiveADCS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
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


def test_clients_whose_updates_are_noise_hardly_change_the_persistence_of_the_others() -> None:
    """Four of ten clients send random directions, twice as often as the others send theirs."""
    found = {}
    for liars in (0, 4):
        rng = np.random.default_rng(0)
        own = rng.normal(size=(10, 50))
        kernel = LiveKernel()
        for server_round in range(60):
            rows = np.arange(10) if server_round % 2 == 0 else np.arange(4)
            updates = own[rows] + 0.3 * rng.normal(size=(rows.size, 50))
            noise = rng.normal(size=(rows.size, 50))
            sent = np.where(rows[:, None] < liars, noise, updates)
            directions = sent / np.linalg.norm(sent, axis=1)[:, None]
            kernel.compare(rows, directions)
            kernel.update(rows, directions, np.ones(rows.size))
        found[liars] = kernel.persistence
    assert found[0] > 0.9
    assert found[4] > found[0] - 0.03


def test_persistence_is_one_until_a_few_clients_have_been_compared() -> None:
    kernel = LiveKernel()
    assert kernel.persistence == 1.0
    kernel.update(np.arange(6), np.eye(6), np.ones(6))
    for row, expected in enumerate((1.0, 1.0, 1.0, 1.0, 0.0, 0.0)):
        rows, other = np.array([row]), np.eye(6)[[(row + 1) % 6]]
        kernel.compare(rows, other)
        assert kernel.persistence == expected


def test_persistence_is_that_of_all_clients_where_there_are_few() -> None:
    kernel = LiveKernel()
    kernel.update(np.arange(2), np.eye(2), np.ones(2))
    kernel.compare(np.arange(2), np.eye(2)[::-1])
    assert kernel.persistence == 0.0


def test_clients_that_join_are_waited_for_in_the_persistence_as_after_a_restart() -> None:
    kernel, restored = LiveKernel(), LiveKernel()
    kernel.update(np.arange(2), np.eye(8)[:2], np.ones(2))
    kernel.compare(np.arange(2), np.eye(8)[1::-1])
    assert kernel.persistence == 0.0
    kernel.update(np.arange(2, 8), np.eye(8)[2:], np.ones(6))
    restored.restore(kernel.state())
    assert kernel.persistence == restored.persistence == 1.0


def test_comparisons_are_averaged_with_a_memory_of_twenty() -> None:
    kernel, one = LiveKernel(), np.array([0])
    for direction in ([1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]):
        kernel.compare(one, np.array([direction]))
        kernel.update(one, np.array([direction]), np.ones(1))
    assert kernel.persistence == pytest.approx(0.95 * 0.95 + 0.05)  # of cosines 1, 0 and 1


def test_a_state_of_an_earlier_version_has_no_comparisons() -> None:
    kernel, restored = LiveKernel(), LiveKernel()
    kernel.update(np.arange(2), np.eye(2), np.ones(2))
    kernel.compare(np.arange(2), np.eye(2)[::-1])
    state = kernel.state()
    del state["compared"]
    restored.restore(state)
    assert restored.persistence == 1.0


def test_no_cosine_is_above_one_whatever_the_rounding() -> None:
    """The same sketch of several clients, in float32: explanations need a similarity."""
    for seed in range(40):
        row = np.random.default_rng(seed).normal(size=(1, 16)).astype(np.float32)
        kernel = LiveKernel()
        kernel.update(np.arange(4), np.repeat(row / np.linalg.norm(row), 4, axis=0), np.ones(4))
        found = kernel.similarity(np.arange(4))
        assert found is not None
        assert np.abs(found).max() == 1.0
