"""Angles, Ward trees and k-means, against SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from adcs.schedulers import clustering


def test_angles_equal_scipys_cosine_distance(monkeypatch):
    rows = np.random.default_rng(0).standard_normal((23, 5))
    expected = np.arccos(1.0 - pdist(rows, "cosine"))
    for block in (1, 4, 512):
        monkeypatch.setattr(clustering, "BLOCK", block)
        np.testing.assert_allclose(clustering.condensed_angles(rows), expected, rtol=1e-9)


def test_zero_rows_have_right_angles():
    angles = clustering.condensed_angles(np.array([[0.0, 0.0], [1.0, 0.0]]))
    assert angles == pytest.approx([np.pi / 2])


@pytest.mark.parametrize("limit", [0.5, 1.0, 2.0, 100.0])
def test_subtrees_are_maximal(limit):
    """Against the recursive definition: the whole subtree, or those of its children."""
    rng = np.random.default_rng(1)
    rows, mass = rng.standard_normal((20, 3)), rng.uniform(0.05, 0.6, 20)
    tree = clustering.ward_tree(clustering.condensed_angles(rows))

    def leaves(node):
        if node < 20:
            return [node]
        return leaves(int(tree[node - 20, 0])) + leaves(int(tree[node - 20, 1]))

    def cut(node):
        if node < 20 or mass[leaves(node)].sum() <= limit:
            return [sorted(leaves(node))]
        return cut(int(tree[node - 20, 0])) + cut(int(tree[node - 20, 1]))

    assert clustering.heaviest_subtrees(tree, mass, limit) == sorted(cut(38))


def test_davies_bouldin_equals_scikit_learns(oracle):
    metrics = oracle("sklearn.metrics")
    rng = np.random.default_rng(2)
    rows, labels = rng.standard_normal((30, 4)), rng.integers(0, 4, 30)
    expected = metrics.davies_bouldin_score(rows, labels)
    assert clustering.davies_bouldin(rows, labels) == pytest.approx(expected, rel=1e-12)


def test_davies_bouldin_of_one_cluster_or_equal_centres_is_infinite():
    rows = np.array([[0.0], [2.0], [0.0], [2.0]])
    assert clustering.davies_bouldin(rows, np.zeros(4, dtype=int)) == np.inf
    assert clustering.davies_bouldin(rows, np.array([0, 0, 1, 1])) == np.inf


def test_k_means_finds_separate_clusters():
    rng = np.random.default_rng(3)
    centres = np.repeat(10.0 * np.eye(4), 5, axis=0)
    for seed in range(5):
        labels = clustering.k_means(centres + 0.1 * rng.standard_normal((20, 4)), 4, rng)
        assert len({tuple(labels[5 * i : 5 * i + 5]) for i in range(4)}) == 4, seed


def test_k_means_of_equal_rows():
    assert set(clustering.k_means(np.ones((4, 2)), 3, np.random.default_rng(0))) == {0}
