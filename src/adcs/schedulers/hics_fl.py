"""HiCSFL: clients with balanced labels, by the output layer's bias (Chen and Vikalo, 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from adcs._types import ClientId, Float64Array
from adcs._validation import check_int, check_number
from adcs.reports.histogram import per_class_rows
from adcs.schedulers.base import Cohort, Scheduler, Source
from adcs.schedulers.clustering import condensed_angles, ward_clusters
from adcs.schedulers.sampling import example_counts, weighted_permutation
from adcs.schedulers.selection_history import SelectionHistory


class HiCSFL(Scheduler):
    """Clients drawn from clusters, those of more balanced labels more often at the beginning.

    How balanced a client's labels are is estimated from the change of the output layer's bias in
    its local training.

    Parameters
    ----------
    temperature
        T > 0 of the softmax. It scales with the learning rate times the number of local steps: the
        paper has 0.0025 for Fashion-MNIST and 0.0015 for CIFAR-10.
    entropy_weight
        lambda >= 0: the weight of the difference of entropies in the distance.
    clusters
        M >= 1, the number of clusters; None takes m.
    sharpness
        gamma_0 >= 0: how much clusters of large entropy are preferred in the first round.
    rounds
        The planned number of rounds, >= 1: the preference falls linearly to 0 at the last one.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    With db the change of the bias of a client, after training minus before:

        H = entropy of softmax(db / T), natural logarithm
        d = angle between db and db' + lambda |H - H'|

    Ward's method makes M clusters. A client is drawn m times without repeats: first the cluster, in
    proportion to exp(gamma_0 (1 - t / rounds) mean H), then the client, in proportion to its
    examples.

    Reading
    -------
    Section 3 of the paper. Clients that were never selected come first, in random order, which
    makes the first ceil(N / m) rounds of the paper; so does a client that has not reported
    ceil(N / m) rounds after its selection. A draw of a client that is taken is repeated, cluster
    and client. The authors' code differs: it uses the means of the weight rows in place of the
    bias, ignores entropies where their variance is 0.1 or more, draws uniformly within a cluster,
    passes a square matrix to Ward's method, and fails for M > m.

    References
    ----------
    Chen, Vikalo: Heterogeneity-guided client sampling: Towards fast and efficient non-IID
    federated learning. NeurIPS 2024.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = HiCSFL(temperature=1.0, sharpness=100.0, clusters=2)
    >>> scheduler.select(0, ["a", "b", "c"], 3).clients == ("a", "b", "c")
    False
    >>> changes = {"a": [3.0, -3.0], "b": [0.1, 0.1], "c": [3.0, -2.9]}
    >>> reports = [ClientReport(c, 0, output_bias_update=db) for c, db in changes.items()]
    >>> scheduler.observe(0, reports, "training")
    >>> scheduler.select(1, ["a", "b", "c"], 1).clients
    ('b',)
    """

    family = "diversity"
    observed_sources = frozenset[Source]({"enrolment", "training"})
    training_signals = frozenset({"output_bias_update"})
    needed_signals = frozenset({"output_bias_update"})

    def __init__(
        self,
        *,
        temperature: float = 0.0025,
        entropy_weight: float = 10.0,
        clusters: int | None = None,
        sharpness: float = 4.0,
        rounds: int = 500,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.temperature = check_number("temperature", temperature, above=0)
        self.entropy_weight = check_number("entropy_weight", entropy_weight, minimum=0)
        self.clusters = None if clusters is None else check_int("clusters", clusters, minimum=1)
        self.sharpness = check_number("sharpness", sharpness, minimum=0)
        self.rounds = check_int("rounds", rounds, minimum=1)
        self._history = SelectionHistory()

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Select newcomers first, then draw clusters and clients."""
        rng = self.rng(server_round)
        known, changes = per_class_rows(self.reports, clients, "output_bias_update")
        listed = set(known)
        due = server_round - math.ceil(len(clients) / m)
        unknown = [
            client
            for client in (clients[i] for i in rng.permutation(len(clients)))
            if client not in listed
        ]
        newcomers = [c for c in unknown if self._history.last.get(c, -1) <= max(due, -1)]
        waiting = [c for c in unknown if c not in set(newcomers)]
        drawn: list[ClientId] = []
        entropies: dict[ClientId, float] = {}
        if known and len(newcomers) < m:
            entropy = bias_entropies(changes, self.temperature)
            labels = self._cluster(changes, entropy, m)
            gamma = self.sharpness * max(0.0, 1.0 - server_round / self.rounds)
            sizes = example_counts(self.reports, known)
            p = cluster_probabilities(entropy, labels, sizes, gamma)
            drawn = [known[i] for i in weighted_permutation(rng, p)]
            entropies = dict(zip(known, entropy.tolist(), strict=True))
        else:
            drawn = [known[i] for i in rng.permutation(len(known))]
        chosen = self.take([*newcomers, *drawn, *waiting], m)
        self._history.add(chosen, server_round)
        return Cohort.of(
            chosen,
            entropies=[[client, entropies[client]] for client in chosen if client in entropies],
            newcomers=[client for client in chosen if client not in listed],
        )

    def _cluster(self, changes: Float64Array, entropy: Float64Array, m: int) -> Any:
        """Return each client's cluster."""
        n = len(changes)
        distances = pdist(entropy[:, None], "cityblock")
        distances *= self.entropy_weight
        distances += condensed_angles(changes)
        return ward_clusters(distances, n, self.clusters or m)

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        return {**super().state(), "history": self._history.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._history.restore(state["history"])


def bias_entropies(changes: Float64Array, temperature: float) -> Float64Array:
    """Return the entropy of the softmax of each row, divided by the temperature.

    >>> bias_entropies(np.array([[1.0, 1.0], [np.log(3.0), 0.0]]), temperature=1.0).round(3)
    array([0.693, 0.562])
    """
    scaled = changes / temperature
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray((np.log(total) - (weights * scaled).sum(axis=1, keepdims=True) / total)[:, 0])


def cluster_probabilities(
    entropy: Float64Array, labels: Any, sizes: Float64Array, gamma: float
) -> Float64Array:
    """Return the probability of each client: that of its cluster times that within it.

    >>> entropy, labels = np.array([0.6931, 0.5623]), np.array([0, 1])
    >>> cluster_probabilities(entropy, labels, np.ones(2), gamma=2.0).round(3)
    array([0.565, 0.435])
    """
    names = np.unique(labels)
    means = np.array([entropy[labels == name].mean() for name in names])
    chance = np.exp(gamma * (means - means.max()))
    chance /= chance.sum()
    p = np.zeros(len(entropy))
    for name, share in zip(names, chance, strict=True):
        members = labels == name
        weights = sizes[members]
        total = weights.sum()
        p[members] = share * (weights / total if total > 0.0 else 1.0 / weights.size)
    return p
