"""Clustering of clients: angles between vectors, Ward trees, k-means."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from adcs._types import Float64Array, FloatArray, IndexArray
from adcs.dpp.kernel import row_norms

BLOCK = 512
"""Rows of the matrix of angles that are computed at a time."""


def condensed_angles(rows: FloatArray) -> Float64Array:
    """Return the angle between each pair of rows, in SciPy's condensed order.

    A row of zeros has a right angle with every other row.

    >>> condensed_angles(np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])).round(3)
    array([1.571, 1.571, 0.   ])
    """
    norms = row_norms(rows)
    unit = rows / np.where(norms > 0.0, norms, 1.0)[:, None]
    n = len(unit)
    angles = np.empty(n * (n - 1) // 2)
    end = 0
    for start in range(0, n, BLOCK):
        block = unit[start : start + BLOCK] @ unit[start:].T
        for i, row in enumerate(block):
            values = row[i + 1 :]
            angles[end : end + values.size] = values
            end += values.size
    return np.arccos(np.clip(angles, -1.0, 1.0, out=angles), out=angles)


def ward_tree(condensed: Float64Array) -> Float64Array:
    """Return SciPy's linkage matrix of Ward's method on condensed distances.

    >>> ward_tree(np.array([1.0, 1.0, 0.1]))[0, :2]
    array([1., 2.])
    """
    return np.asarray(linkage(condensed, "ward")) if condensed.size else np.empty((0, 4))


def ward_clusters(condensed: Float64Array, n: int, clusters: int) -> IndexArray:
    """Return the cluster of each of n rows, for at most so many clusters.

    >>> ward_clusters(np.array([1.0, 1.0, 0.1]), n=3, clusters=2).tolist()
    [1, 0, 0]
    """
    if n < 2:
        return np.zeros(n, dtype=np.intp)
    labels = fcluster(ward_tree(condensed), clusters, criterion="maxclust")
    return np.asarray(labels, dtype=np.intp) - 1


def heaviest_subtrees(tree: Float64Array, mass: Float64Array, limit: float) -> list[list[int]]:
    """Return the leaves of each maximal subtree whose mass is at most the limit.

    A leaf heavier than the limit is a subtree of its own.

    >>> tree = ward_tree(np.array([1.0, 1.0, 0.1]))
    >>> heaviest_subtrees(tree, np.array([0.5, 0.4, 0.4]), limit=1.0)
    [[0], [1, 2]]
    """
    n = mass.size
    leaves: dict[int, list[int]] = {i: [i] for i in range(n)}
    total = {i: float(mass[i]) for i in range(n)}
    finished: list[list[int]] = []
    for step, (left, right) in enumerate(tree[:, :2].astype(np.intp).tolist()):
        node = n + step
        whole = [child for child in (left, right) if child in leaves]
        if len(whole) == 2 and total[left] + total[right] <= limit + 1e-12:
            leaves[node] = leaves.pop(left) + leaves.pop(right)
            total[node] = total[left] + total[right]
        else:
            finished += [leaves.pop(child) for child in whole]
    finished += leaves.values()
    return sorted(sorted(members) for members in finished)


def k_means(rows: Float64Array, k: int, rng: np.random.Generator, steps: int = 100) -> IndexArray:
    """Return the cluster of each row by k-means from a k-means++ start.

    Clusters may be empty if there are fewer than k distinct rows.

    >>> rows = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> labels = k_means(rows, 2, np.random.default_rng(0))
    >>> bool(labels[0] == labels[1] != labels[2] == labels[3])
    True
    """
    centres = _plus_plus(rows, k, rng)
    labels = np.full(len(rows), -1, dtype=np.intp)
    for _ in range(steps):
        nearest = np.argmin(_squared_distances(rows, centres), axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        for j in range(k):
            members = rows[labels == j]
            if len(members):
                centres[j] = members.mean(axis=0)
    return labels


def davies_bouldin(rows: Float64Array, labels: IndexArray) -> float:
    """Return the Davies-Bouldin index of a clustering: small for compact, separate clusters.

    Infinite for fewer than two clusters, or for clusters of the same centre.

    >>> davies_bouldin(np.array([[0.0], [2.0], [10.0], [12.0]]), np.array([0, 0, 1, 1]))
    0.2
    """
    names = np.unique(labels)
    if names.size < 2:
        return float("inf")
    centres = np.stack([rows[labels == j].mean(axis=0) for j in names])
    spread = np.array(
        [
            np.linalg.norm(rows[labels == j] - centre, axis=1).mean()
            for j, centre in zip(names, centres, strict=True)
        ]
    )
    gaps = np.sqrt(_squared_distances(centres, centres))
    np.fill_diagonal(gaps, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (spread[:, None] + spread) / gaps
    return float(np.nan_to_num(ratios, nan=np.inf, posinf=np.inf).max(axis=1).mean())


def _plus_plus(rows: Float64Array, k: int, rng: np.random.Generator) -> Float64Array:
    centres = [rows[rng.integers(len(rows))]]
    for _ in range(k - 1):
        nearest = _squared_distances(rows, np.stack(centres)).min(axis=1)
        total = nearest.sum()
        p = nearest / total if total > 0.0 else None
        centres.append(rows[rng.choice(len(rows), p=p)])
    return np.stack(centres)


def _squared_distances(rows: Float64Array, centres: Float64Array) -> Float64Array:
    return np.stack([np.square(rows - centre).sum(axis=1) for centre in centres], axis=1)
