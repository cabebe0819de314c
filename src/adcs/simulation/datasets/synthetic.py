"""Data whose gradients have the cluster structure of Theorem 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adcs.simulation.datasets.dataset import Dataset, from_arrays

SETTINGS = {
    "clusters": int,
    "r": float,
    "mu": float,
    "per_cluster": int,
    "test_per_cluster": int,
    "dimension": int,
    "seed": int,
}

MOST = 10**6
"""The most of anything that is counted."""


def synthetic(
    clusters: int = 10,
    *,
    r: float = 0.05,
    mu: float = 0.05,
    per_cluster: int | Sequence[int] = 200,
    test_per_cluster: int = 50,
    dimension: int = 32,
    seed: int = 0,
) -> Dataset:
    """Return data whose gradients have the cluster structure of Theorem 1, exactly.

    The gradients are those of softmax regression with a bias, at zero parameters. Each of the K
    clusters has a centre in feature space and one of two classes, in turn; its representative c_k
    is the gradient at the centre. Then

    - ``|cos(c_k, c_l)| = mu`` for every pair of clusters,
    - every example's gradient is at distance r from its cluster's c_k, so a client with examples
      of one cluster, being their mean, is within r of it (and the closer, the more it has),
    - every c_k has norm ``kappa = sqrt(K / 2)``, the least at which K of them can be orthogonal.

    Clusters are the set's `groups`; in `partition.by_class` each client holds data of one.

    Parameters
    ----------
    clusters : int
        K, at least 2.
    r : float
        Distance of an example's gradient from its cluster's representative, at least 0.
    mu : float
        Absolute cosine between representatives, from 0 to below 1.
    per_cluster : int or sequence of int
        Training examples of every cluster, or of each.
    test_per_cluster : int
        Test examples of every cluster.
    dimension : int
        Number of features, at least K.
    seed : int

    Examples
    --------
    >>> data = synthetic(4, r=0.0, mu=0.2, per_cluster=5, dimension=8)
    >>> centres = np.column_stack([data.x_train[::5], np.ones(4)])  # with the bias
    >>> np.abs(np.round(centres @ centres.T / 4, 2)[0])
    array([1. , 0.2, 0.2, 0.2])
    """
    for name, count in (("clusters", clusters), ("dimension", dimension), ("seed", seed)):
        if not 0 <= count <= MOST:
            raise ValueError(f"{name} is {count}; it is at least 0 and at most {MOST:,}")
    if clusters < 2:
        raise ValueError(f"clusters is {clusters}; it is at least 2")
    if not 0.0 <= mu < 1.0:
        raise ValueError(f"mu is {mu}; it is at least 0 and below 1")
    if not 0.0 <= r < np.inf:
        raise ValueError(f"r is {r}; it is finite and at least 0")
    if dimension < clusters:
        raise ValueError(f"dimension is {dimension}; it is at least the {clusters} clusters")
    sizes = [per_cluster] * clusters if isinstance(per_cluster, int) else list(per_cluster)
    if len(sizes) != clusters or min(*sizes, test_per_cluster) < 1:
        raise ValueError(
            f"per_cluster is {per_cluster} and test_per_cluster {test_per_cluster}; each of the "
            f"{clusters} clusters has at least one example"
        )
    if max(*sizes, test_per_cluster) > MOST:
        raise ValueError(
            f"per_cluster is {per_cluster} and test_per_cluster {test_per_cluster}; a cluster has "
            f"at most {MOST:,} examples"
        )
    rng = np.random.default_rng(seed)
    # At zero parameters the gradient of an example is (x, 1) times +-(1/2, -1/2): its cosines are
    # those of (x, 1) but for the sign. With |(u_k, 1)|^2 = K, the Gram matrix of the (u_k, 1) is
    # K ((1 - mu) I + mu 11'); without the ones it stays positive semidefinite from mu = 0 on.
    gram = clusters * ((1.0 - mu) * np.eye(clusters) + mu) - 1.0
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    rotation, _ = np.linalg.qr(rng.standard_normal((dimension, clusters)))
    centres = root @ rotation.T
    parts = []
    for counts in (sizes, [test_per_cluster] * clusters):
        group = np.repeat(np.arange(clusters, dtype=np.int64), counts)
        noise = rng.standard_normal((group.size, dimension))
        noise *= np.sqrt(2.0) * r / np.linalg.norm(noise, axis=1, keepdims=True)
        parts.append((centres[group] + noise, group))
    (x_train, train), (x_test, test) = parts
    return from_arrays(
        x_train,
        train % 2,
        x_test,
        test % 2,
        name="synthetic",
        groups=(train, test),
        source="made on the spot",
    )
