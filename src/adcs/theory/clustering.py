"""Clusters of updates, where nobody says what they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from adcs._types import IndexArray
from adcs.dpp.kernel import check_m
from adcs.theory.gram import cosines, gram_matrix


def find_clusters(
    updates: ArrayLike | None = None, *, gram: ArrayLike | None = None, k: int | None = None
) -> IndexArray:
    """Return a cluster for each client, 0 .. K-1: average linkage on cosine distance.

    Parameters
    ----------
    updates, gram
        Updates, a row for each client, or their inner products.
    k
        Number of clusters; None cuts where the merging distances jump most.

    Examples
    --------
    >>> find_clusters([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    array([0, 0, 1, 1])
    """
    matrix = gram_matrix(updates, gram)
    n = matrix.shape[0]
    if n == 1:
        return np.zeros(1, dtype=np.intp)
    tree = linkage(squareform(1.0 - cosines(matrix), checks=False), method="average")
    if k is None:
        jumps = np.diff(tree[:, 2], prepend=0.0)
        # Stopping before merge j leaves n - j clusters; without a jump all updates are alike.
        k = n - int(np.argmax(jumps)) if jumps.max() > 1e-12 else 1
    found = fcluster(tree, check_m(k, n), criterion="maxclust")
    # Clusters are named in the order of their first client.
    _, first, inverse = np.unique(found, return_index=True, return_inverse=True)
    names: IndexArray = np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.intp)
    return names
