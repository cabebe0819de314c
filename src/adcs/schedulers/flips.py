"""FLIPS: each cluster of label distributions in turn (Bhope et al., Middleware 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import ClientId, IndexArray
from adcs._validation import check_int
from adcs.reports.histogram import label_counts
from adcs.schedulers.base import Cohort, in_order
from adcs.schedulers.by_labels import LabelScheduler
from adcs.schedulers.clustering import davies_bouldin, k_means


class FLIPS(LabelScheduler):
    """Clusters of similar label distributions in turn, and clients of a cluster in turn.

    Parameters
    ----------
    max_clusters
        The largest number of clusters, >= 2; from 2 up to it, the one with the smallest
        Davies-Bouldin index is taken.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    Clients are clustered by their shares of labels with k-means from a k-means++ start. For each
    slot the cluster with the fewest selections is taken, and in it the client with the fewest;
    both counts grow by one. Ties go to the smaller client id.

    Reading
    -------
    The paper's text keeps clusters and clients in heaps by their number of selections. The first
    author's code gives each cluster m // k slots and the rest to the largest one, so that small
    clusters get nothing for m < k. A cluster's count is the sum over its clients, which survives a
    new clustering. Clients without a histogram are a cluster of their own, as in that code. The
    paper asks extra clients of the same clusters when some are slow; here the engine over-selects.

    References
    ----------
    Bhope, Jayaram, Venkatasubramanian, Verma, Thomas: FLIPS: Federated learning using intelligent
    participant selection. Middleware 2023.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = FLIPS()
    >>> counts = {1: [9, 0], 2: [8, 0], 3: [7, 0], 4: [0, 9]}
    >>> reports = [ClientReport(c, 0, label_counts=row) for c, row in counts.items()]
    >>> scheduler.observe(0, reports, "probe")
    >>> [scheduler.select(r, [1, 2, 3, 4], 2).clients for r in range(2)]
    [(1, 4), (2, 4)]
    """

    def __init__(self, *, max_clusters: int = 10, **common: Any) -> None:
        super().__init__(**common)
        self.max_clusters = check_int("max_clusters", max_clusters, minimum=2)
        self._clustering: tuple[Any, dict[ClientId, int]] | None = None  # and what it is of

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Take the least selected cluster, and its least selected client, for each slot."""
        self._note(server_round)
        cluster = self._clusters()
        picks: dict[int, int] = {}
        members: dict[int, list[ClientId]] = {}
        for client, count in self._history.counts.items():
            label = cluster.get(client, -1)
            picks[label] = picks.get(label, 0) + count
        counts = self._history.counts
        for client in clients:
            members.setdefault(cluster.get(client, -1), []).append(client)
        rank = {client: i for i, client in enumerate(clients)}
        for label in members:
            members[label].sort(key=lambda client: (counts.get(client, 0), rank[client]))
            members[label].reverse()  # the next one is the last
        first = {label: min(rank[client] for client in group) for label, group in members.items()}
        builder = self.constraints.builder(clients, m, self.pending)
        chosen = builder.fill(builder.required)
        for client in chosen:
            label = cluster.get(client, -1)
            picks[label] = picks.get(label, 0) + 1
            members[label].remove(client)
        while builder.slots_left:
            label = min(
                (label for label, group in members.items() if group),
                key=lambda label: (picks.get(label, 0), first[label]),
            )
            client = members[label].pop()
            if builder.admit(client):
                chosen.append(client)
                picks[label] = picks.get(label, 0) + 1
        self._history.add(chosen, server_round)
        return Cohort.of(chosen, clusters=[[client, cluster.get(client, -1)] for client in chosen])

    def _clusters(self) -> dict[ClientId, int]:
        """Return the cluster of each client with a histogram; -1 is that of the others."""
        known, counts = label_counts(self.reports, in_order(self.reports))
        key = (tuple(known), counts.tobytes())
        if self._clustering is None or self._clustering[0] != key:
            labels = cluster_labels(
                counts / counts.sum(axis=1, keepdims=True), self.max_clusters, self.rng(0, 1)
            )
            self._clustering = (key, dict(zip(known, labels.tolist(), strict=True)))
        return self._clustering[1]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._clustering = None


def cluster_labels(shares: Any, max_clusters: int, rng: np.random.Generator) -> IndexArray:
    """Return the cluster of each row, for the number of clusters with the best index.

    >>> rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    >>> len(set(cluster_labels(rows, 10, np.random.default_rng(0)).tolist()))
    3
    """
    best, least = np.zeros(len(shares), dtype=np.intp), np.inf
    for k in range(2, min(max_clusters, len(shares) - 1) + 1):
        labels = k_means(shares, k, rng)
        index = davies_bouldin(shares, labels)
        if index < least:
            best, least = labels, index
    return best
