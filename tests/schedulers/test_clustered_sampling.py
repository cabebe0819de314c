"""ClusteredSampling: rows by hand, and unbiasedness by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs.schedulers.clustered_sampling import sampling_rows
from adcs.schedulers.clustering import condensed_angles, ward_tree


def as_matrix(rows, n):
    """The rows as a matrix of probabilities."""
    matrix = np.zeros((len(rows), n))
    for row, (members, p) in zip(matrix, rows, strict=True):
        np.add.at(row, members, p)
    return matrix


def test_rows_by_hand():
    """p = (.4, .2, .2, .2), m = 2, client 2 near 3: rows (.8, 0, 0, .2), (0, .4, .4, .2)."""
    tree = ward_tree(condensed_angles(np.array([[1.0, 0, 0], [0, 1, 0], [0, 1, 0.1], [0, 0, 1]])))
    rows = sampling_rows(2 * np.array([0.4, 0.2, 0.2, 0.2]), tree, np.random.default_rng(0))
    np.testing.assert_allclose(
        as_matrix(rows, 4), [[0.8, 0, 0, 0.2], [0, 0.4, 0.4, 0.2]], atol=1e-12
    )


def test_a_client_with_more_than_its_share_of_rows():
    """p = (.7, .1, .1, .1), m = 2: one row is client 1's; 0.4 of it joins the others."""
    tree = ward_tree(condensed_angles(np.eye(4)))
    rows = sampling_rows(2 * np.array([0.7, 0.1, 0.1, 0.1]), tree, np.random.default_rng(0))
    matrix = as_matrix(rows, 4)
    np.testing.assert_allclose(matrix, [[1, 0, 0, 0], [0.4, 0.2, 0.2, 0.2]], atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=9), st.integers(1, 8), st.integers(0, 999)
)
def test_rows_add_up_to_one_and_columns_to_the_mass(sizes, m, seed):
    rng = np.random.default_rng(seed)
    mass = min(m, len(sizes) - 1) * np.array(sizes) / sum(sizes)
    tree = ward_tree(condensed_angles(rng.standard_normal((len(sizes), 3))))
    matrix = as_matrix(sampling_rows(mass, tree, rng), len(sizes))
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-8)
    np.testing.assert_allclose(matrix.sum(axis=0), mass, atol=1e-8)


@pytest.mark.parametrize("sizes", [(4, 2, 2, 2), (7, 1, 1, 1), (1, 1, 1, 1, 1)])
def test_the_estimate_is_unbiased_by_enumeration(sizes):
    """The mean of sum p w g over all outcomes of the draws is sum p g, repeats counted."""
    n, m = len(sizes), 2
    rng = np.random.default_rng(3)
    p, g = np.array(sizes) / sum(sizes), rng.standard_normal(n)
    tree = ward_tree(condensed_angles(rng.standard_normal((n, 3))))
    rows = sampling_rows(m * p, tree, rng)
    mean = 0.0
    for outcome in itertools.product(*(range(len(members)) for members, _ in rows)):
        chance, counts = 1.0, np.zeros(n)
        for (members, q), pick in zip(rows, outcome, strict=True):
            chance *= q[pick]
            counts[members[pick]] += 1
        mean += chance * float(p @ (counts / (m * p) * g))
    assert mean == pytest.approx(float(p @ g), rel=1e-9)


def test_cohorts_have_these_frequencies_and_weights():
    sizes = (7, 1, 1, 1)
    scheduler = adcs.ClusteredSampling()
    reports = [
        adcs.ClientReport(c, 0, update=np.eye(4)[c], examples=n) for c, n in enumerate(sizes)
    ]
    scheduler.observe(0, reports, "training")
    total = np.zeros(4)
    for server_round in range(2000):
        cohort = scheduler.select(server_round, range(4), 2)
        assert not cohort.normalise
        for client, weight in zip(cohort.clients, cohort.weights, strict=True):
            total[client] += weight
    np.testing.assert_allclose(total / 2000, 1.0, atol=0.12)


def test_similar_clients_are_not_drawn_together():
    scheduler = adcs.ClusteredSampling()
    updates = [[1, 0], [1, 0.01], [0, 1], [0.01, 1]]
    scheduler.observe(
        0, [adcs.ClientReport(c, 0, update=u) for c, u in enumerate(updates)], "training"
    )
    for server_round in range(20):
        assert len(set(scheduler.select(server_round, range(4), 2).clients) & {0, 1}) == 1


def test_all_clients_train_if_m_is_at_least_their_number():
    cohort = adcs.ClusteredSampling().select(0, ["b", "a"], 3)
    assert (cohort.clients, cohort.weights) == (("a", "b"), (1.0, 1.0))


def test_a_client_without_examples_is_not_drawn():
    scheduler = adcs.ClusteredSampling()
    facts = [adcs.ClientReport(c, 0, examples=n) for c, n in enumerate((0, 5, 5))]
    scheduler.observe(0, facts, "enrolment")
    assert all(0 not in scheduler.select(r, range(3), 2).clients for r in range(30))


@pytest.mark.parametrize("constraints", [{"required": [1]}, {"groups": {1: "a"}, "caps": 1}])
def test_constraints_are_refused(constraints):
    with pytest.raises(ValueError, match="would bias"):
        adcs.ClusteredSampling(**constraints)
