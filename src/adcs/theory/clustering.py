"""Clusters of updates, where nobody says what they are.

Clients are merged by average linkage on cosine distance. Of the tree's cuts into K clusters the one
with the largest mean silhouette counts, out of those that meet two conditions:

- At least two clusters have two members or more, and the mean silhouette inside each of these is
  at least SUBSTANTIAL. A crowd with a few loners, or with noise of unequal size, has no such cut.
- The mean silhouette is above that of ROTATIONS random rotations of the same data. If updates are
  a sample of one normal distribution, of any mean and covariance, then G and R G have the same
  distribution for every orthogonal R with R 1 = 1. So Gram matrices R L R^T show what silhouettes
  there are without clusters, and a cut that beats all of them has a p-value of
  1 / (ROTATIONS + 1). Only inner products are needed.

Where no cut meets both, there is no cluster structure.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from adcs._types import Float64Array, IndexArray
from adcs.dpp.kernel import check_m
from adcs.theory.gram import cosines, gram_matrix

SUBSTANTIAL = 0.25
"""Mean silhouettes below this show no substantial structure (Kaufman and Rousseeuw 1990)."""

ROTATIONS = 99
"""How many random rotations a cut must beat."""

EXACT = 1e-9
"""Distances and silhouettes this close to those of copies are taken for theirs."""


def find_clusters(
    updates: ArrayLike | None = None, *, gram: ArrayLike | None = None, k: int | None = None
) -> IndexArray | None:
    """Return a cluster for each client, 0 .. K-1, or None if there is no cluster structure.

    Only directions count. Updates that all point the same way are one cluster; otherwise K is at
    least 2. The same updates give the same answer: the rotations are seeded.

    Parameters
    ----------
    updates, gram
        Updates, a row for each client, or their inner products.
    k
        Number of clusters, whether there is structure or not; None finds it.

    Examples
    --------
    >>> find_clusters([[1, 0.1], [1, 0], [0, 1], [0.1, 1], [1, -0.1], [-0.1, 1]])
    array([0, 0, 1, 1, 0, 1])
    >>> noise = np.random.default_rng(0).normal(size=(20, 400)) + 0.3
    >>> find_clusters(noise) is None
    True
    """
    c = cosines(gram_matrix(updates, gram))
    n = c.shape[0]
    if k is not None:
        k = check_m(k, n)
    elif float(c.min()) >= 1.0 - EXACT:
        k = 1
    if n == 1 or k == 1:
        return np.zeros(n, dtype=np.intp)
    distances = 1.0 - c
    tree = _tree(distances)
    if k is None:
        found, silhouette = _best_cut(distances, tree)
        # Copies leave a rotation nothing to beat, and no noise makes them.
        if found is None or (
            silhouette < 1.0 - EXACT
            and any(
                _best_cut(other, _tree(other))[1] >= silhouette for other in _rotated_distances(c)
            )
        ):
            return None
        k = found
    return _cut(tree, k)


def _tree(distances: Float64Array) -> Float64Array:
    tree: Float64Array = linkage(squareform(distances, checks=False), method="average")
    return tree


def _cut(tree: Float64Array, k: int) -> IndexArray:
    """Return the k clusters of a tree, named in the order of their first client."""
    n = tree.shape[0] + 1
    codes: IndexArray = np.arange(n)
    for merge, (one, other) in enumerate(tree[: n - k, :2].astype(np.intp)):
        codes[(codes == one) | (codes == other)] = n + merge
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    names: IndexArray = np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.intp)
    return names


def _best_cut(distances: Float64Array, tree: Float64Array) -> tuple[int | None, float]:
    """Return K and the mean silhouette of the best cut that is substantial; None, 0 if none is.

    A client's silhouette is (b - a) / max(a, b), with a its mean distance to the others of its
    own cluster and b that to the nearest other cluster; a client alone has 0. Merges are followed
    one by one. A merged cluster is no nearer to anybody than its two parts were, so b changes
    only where one of these was the nearest.
    """
    n = distances.shape[0]
    mean = distances.copy()  # to each cluster, which is held in the column of one of its parts
    other = distances.copy()  # the same, without the client's own cluster
    np.fill_diagonal(other, np.inf)
    nearest = other.argmin(axis=1)
    b = other[np.arange(n), nearest]
    a, s = np.zeros(n), np.zeros(n)
    size: Float64Array = np.ones(n)
    column: IndexArray = np.arange(n)
    held = list(range(n))
    best: tuple[int | None, float] = (None, 0.0)
    for merge, (one, two) in enumerate(tree[: n - 2, :2].astype(np.intp).tolist()):
        kept, gone = held[one], held[two]
        held.append(kept)
        both = size[kept] + size[gone]
        joint = (size[kept] * mean[:, kept] + size[gone] * mean[:, gone]) / both
        size[kept], size[gone] = both, 0.0
        column[column == gone] = kept
        members = column == kept
        mean[:, kept] = other[:, kept] = joint
        other[members, kept] = np.inf
        other[:, gone] = np.inf
        moved = ((nearest == kept) | (nearest == gone)).nonzero()[0]
        nearest[moved] = other[moved].argmin(axis=1)
        b[moved] = other[moved, nearest[moved]]
        a[members] = joint[members] * (both / (both - 1.0))
        grouped = size[column] > 1.0
        s[grouped] = (b - a)[grouped] / np.maximum(np.maximum(a, b)[grouped], EXACT)
        silhouette = float(s.mean())
        if silhouette > best[1]:
            crowds = size > 1.0
            inside = np.bincount(column, weights=s, minlength=n)[crowds] / size[crowds]
            if inside.size >= 2 and inside.min() >= SUBSTANTIAL:
                best = (n - merge - 1, silhouette)
    return best


def _rotated_distances(c: Float64Array) -> Iterator[Float64Array]:
    """Yield the cosine distances of R G for random R that are orthogonal and keep R 1 = 1.

    In coordinates whose first axis is 1, R = diag(1, Q) with Q uniform among orthogonal matrices.
    With V D V^T the rest of C in these coordinates, Q V is as uniform as Q, so that V is needed
    for the products with the first axis only, and no column of Q where D is zero.
    """
    n = c.shape[0]
    rng = np.random.default_rng(0)
    mirror = np.full(n, n**-0.5)
    mirror[0] += 1.0
    mirror *= np.sqrt(2.0 / (mirror @ mirror))  # I - mirror mirror^T takes the first axis to -1

    def reflected(matrix: Float64Array) -> Float64Array:
        half = matrix - np.outer(mirror, mirror @ matrix)
        return np.asarray(half - np.outer(half @ mirror, mirror))

    inner = reflected(c)
    values, vectors = np.linalg.eigh(inner[1:, 1:])
    some = values > n * np.finfo(np.float64).eps * values[-1]
    roots = np.sqrt(values[some])
    first = (vectors[:, some].T @ inner[1:, 0]) / roots
    for _ in range(ROTATIONS):
        q, r = np.linalg.qr(rng.normal(size=(n - 1, roots.size)))
        half = q * (np.sign(r.diagonal()) * roots)
        inner[1:, 1:] = half @ half.T
        inner[1:, 0] = inner[0, 1:] = half @ first
        rotated = reflected(inner)
        norms = np.sqrt(np.maximum(rotated.diagonal(), np.finfo(np.float64).tiny))
        distances = 1.0 - np.clip(rotated / norms[:, None] / norms, -1.0, 1.0)
        np.fill_diagonal(distances, 0.0)
        yield 0.5 * (distances + distances.T)
