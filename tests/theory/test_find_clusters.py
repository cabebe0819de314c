"""Clusters are found where there are some, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from adcs.theory import check_clusters, find_clusters
from adcs.theory.clusters import SUBSTANTIAL, _best_cut, _cut, _tree
from adcs.theory.gram import cosines


def planted(
    rng: np.random.Generator, sizes: list[int], noise: float, mean: float = 0.0, d: int = 200
) -> tuple[np.ndarray, list[int]]:
    """Return updates around centres of length one, of any length, and the cluster of each.

    Noise and mean are in lengths of a centre.
    """
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), d))
    updates = centres[labels] + noise * rng.normal(size=(labels.size, d)) + mean
    return updates * rng.gamma(2.0, size=(labels.size, 1)), labels.tolist()


def test_noise_around_a_common_mean_has_none() -> None:
    assert find_clusters(np.random.default_rng(0).normal(size=(20, 400)) + 0.3) is None


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])  # how much the noise of clients differs, in log
@pytest.mark.parametrize("mean", [0.0, 0.3, 10.0])
@pytest.mark.parametrize(("n", "d"), [(8, 100), (20, 400), (30, 1000), (60, 400)])
def test_noise_in_many_dimensions_has_none(n: int, d: int, mean: float, spread: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scale = np.exp(spread * rng.normal(size=(n, 1)))
        assert find_clusters(rng.normal(size=(n, d)) * scale + mean) is None, seed


@pytest.mark.parametrize(("n", "d"), [(5, 20), (10, 5), (30, 2), (30, 3), (30, 10), (60, 50)])
def test_noise_in_few_dimensions_seldom_has_any(n: int, d: int) -> None:
    """Chance makes good silhouettes there; about one in 100 beats its rotations."""
    found = 0
    for seed in range(100):
        found += find_clusters(np.random.default_rng(seed).normal(size=(n, d))) is not None
    assert found <= 5


@pytest.mark.parametrize(
    ("sizes", "noise", "mean"),
    [
        ([3] * 10, 0.05, 0.0),
        ([3] * 10, 0.7, 0.0),
        ([3] * 10, 0.7, 1.0),
        ([2] * 10, 0.5, 0.0),
        ([15, 5], 0.7, 0.0),
        ([8, 4, 2, 1, 1], 0.3, 1.0),
        ([5] * 4 + [1] * 6, 0.5, 0.0),
        ([3, 3], 0.1, 0.0),
        ([2, 2], 0.02, 0.0),
        ([40, 3, 3], 0.3, 0.0),
    ],
)
def test_planted_clusters_are_found(sizes: list[int], noise: float, mean: float) -> None:
    for seed in range(5):
        updates, labels = planted(np.random.default_rng(seed), sizes, noise, mean)
        found = find_clusters(updates)
        assert found is not None
        assert found.tolist() == labels
        assert find_clusters(gram=updates @ updates.T).tolist() == labels
        assert find_clusters(updates).tolist() == labels  # again: nothing is left to chance


def test_opposite_clusters_are_two() -> None:
    rng = np.random.default_rng(1)
    signs = np.repeat([1.0, -1.0], [6, 4])
    updates = signs[:, None] * rng.normal(size=50) + 0.2 * rng.normal(size=(10, 50))
    assert find_clusters(updates).tolist() == [0] * 6 + [1] * 4


@pytest.mark.parametrize("sizes", [[2, 2], [3, 2], [2, 2, 2], [10, 5, 2]])
def test_copies_are_clusters(sizes: list[int]) -> None:
    updates, labels = planted(np.random.default_rng(2), sizes, noise=0.0)
    assert find_clusters(updates).tolist() == labels


def test_copies_either_way_are_two_clusters() -> None:
    signs = np.array([1.0, -2.0, 3.0, -1.0, 0.5])
    assert find_clusters(signs[:, None] * np.arange(1.0, 8.0)).tolist() == [0, 1, 0, 1, 0]


def test_copies_of_one_are_one_cluster() -> None:
    for n in (1, 2, 3, 8):
        assert find_clusters(np.outer(np.arange(1.0, n + 1), [0.1, 0.7, -3.0])).tolist() == [0] * n


@pytest.mark.parametrize(
    "updates",
    [
        np.eye(2),
        np.eye(3),
        np.eye(6),
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]],  # a pair and one more
        np.vstack([np.ones((19, 5)), np.eye(5)[:1]]),  # a crowd and one more
        np.vstack([np.ones((5, 20)), np.eye(20)[:8]]),  # a crowd and loners
        np.ones((20, 400)) + 0.01 * np.random.default_rng(0).normal(size=(20, 400)),  # a crowd
    ],
)
def test_loners_and_crowds_are_no_structure(updates: np.ndarray) -> None:
    assert find_clusters(updates) is None


def test_an_update_of_zero_has_no_direction() -> None:
    with pytest.raises(ValueError, match="row 1 is zero"):
        find_clusters([[1.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("k", [1, 3, 5, 6])
def test_a_number_of_clusters_is_kept_to(k: int) -> None:
    """Copies tie, and still there are k."""
    found = find_clusters(np.repeat(np.eye(3), 2, axis=0), k=k)
    assert np.unique(found).tolist() == list(range(k))


def silhouettes(distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return every client's silhouette, by the definition."""
    found = np.zeros(labels.size)
    for i, own in enumerate(labels):
        same = (labels == own) & (np.arange(labels.size) != i)
        if same.any():
            a = distances[i, same].mean()
            others = [distances[i, labels == k].mean() for k in np.unique(labels) if k != own]
            b = min(others)
            found[i] = (b - a) / max(a, b)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_best_cut_is_that_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(4, 25)), int(rng.integers(2, 12))
    updates = rng.normal(size=(n, d))
    if seed % 2:
        updates = np.repeat(updates, 2, axis=0) + 0.1 * rng.normal(size=(2 * n, d))
    distances = 1.0 - cosines(updates @ updates.T)
    tree = _tree(distances)
    best, most = None, 0.0
    for k in range(len(distances) - 1, 1, -1):
        labels = _cut(tree, k)
        assert np.unique(labels).size == k
        s = silhouettes(distances, labels)
        inside = [s[labels == c].mean() for c in range(k) if (labels == c).sum() > 1]
        if len(inside) >= 2 and min(inside) >= SUBSTANTIAL and s.mean() > most:
            best, most = k, s.mean()
    found, silhouette = _best_cut(distances, tree)
    assert found == best
    assert silhouette == pytest.approx(most)


def test_theorem_1_needs_clusters() -> None:
    noise = np.random.default_rng(0).normal(size=(20, 400)) + 0.3
    with pytest.raises(ValueError, match="labels must be given: no cluster structure found"):
        check_clusters(noise, m=3, chosen=[0, 1, 2])


@pytest.mark.parametrize("kind", ["rows", "gram", "six digits"])
@pytest.mark.parametrize("seed", range(40))
def test_slack_covers_rounding_and_little_else(kind: str, seed: int) -> None:
    """With clusters of one each, bias and bound are the same number by two ways."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 20)), int(rng.integers(5, 300))
    updates = (rng.normal(size=(n, d)) + rng.uniform(0, 3)) * rng.gamma(1.0, size=(n, 1))
    m = int(rng.integers(1, n))
    chosen = rng.permutation(n)[:m]
    gram = updates @ updates.T
    exact = check_clusters(updates, m=m, labels=range(n), chosen=chosen)
    source: dict = {"updates": updates}
    rounding = 0.0
    if kind == "gram":
        source = {"gram": gram}
    if kind == "six digits":
        rounding = 5e-6
        source = {"gram": np.array([[float(f"{x:.6g}") for x in row] for row in gram])}
    check = check_clusters(**source, m=m, labels=range(n), chosen=chosen, rounding=rounding)
    assert check.r == 0.0
    assert exact.bias <= check.bound + check.slack
    size = np.linalg.norm(updates, axis=1).max()
    assert check.slack < (1e-3 if rounding else 1e-6) * size


def test_slack_covers_all_clients() -> None:
    """A cohort of everybody has no bias but that of rounding, and no bound but that."""
    updates = np.random.default_rng(0).normal(size=(7, 30))
    shares = np.full(7, 1.0 / 7.0)
    check = check_clusters(updates, m=7, labels=range(7), chosen=range(7))
    residue = np.linalg.norm((shares / shares.sum() - 1.0 / 7.0) @ updates)
    assert residue <= check.bound + check.slack < 1e-12
