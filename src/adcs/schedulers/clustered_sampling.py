"""ClusteredSampling: one client of each group of similar ones (Fraboni et al., ICML 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs.reports.sketch import Sketcher
from adcs.reports.store import ReportStore
from adcs.schedulers.base import Cohort, Scheduler, Source
from adcs.schedulers.clustering import condensed_angles, heaviest_subtrees, ward_tree
from adcs.schedulers.sampling import example_counts
from adcs.schedulers.snapshot import check_sketch


class ClusteredSampling(Scheduler):
    """One draw from each of m groups of clients with similar updates, unbiased.

    A client may be drawn more than once. It then trains once, and its weight counts the draws; a
    cohort has at most m clients. If no more than m are available, all of them train, with weight 1.

    Parameters
    ----------
    sketch
        A `Sketcher` if updates are to be kept as sketches.
    **common
        `seed`: see `Scheduler`. Required clients and caps would bias the estimate and are refused.

    Formula
    -------
    r is the clients' share of the examples, and m rows of probabilities are made whose columns
    add up to m r:

        1. A client with m r >= 1 gets floor(m r) rows of its own.
        2. Ward's tree on the angles between last updates is cut into the largest subtrees with a
           sum of m r up to 1. The heaviest become the other rows.
        3. Clients of the lighter subtrees, the lightest subtree first and in random order within
           it, are poured into the rows until each adds up to 1; a client may be split.

    One client is drawn from each row. A client drawn c times has the weight c / (m r), and the
    weighted sum is unnormalised: its expectation is the sum over all available clients.

    Reading
    -------
    Algorithm 2 of the paper. Step 1 is an addition: the authors' code keeps one row for a client
    with more than 1/m of the examples and is biased then; shares (0.7, 0.1, 0.1, 0.1) and m = 2
    give expected counts (1, 1/3, 1/3, 1/3) in place of (1.4, 0.2, 0.2, 0.2). Their code also
    passes a square matrix of angles to SciPy, which takes its rows for points. Clients without an
    update have a right angle with all others and none among themselves.

    References
    ----------
    Fraboni, Vidal, Kameni, Lorenzi: Clustered sampling: Low-variance and improved
    representativity for clients selection in federated learning. ICML 2021.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = ClusteredSampling()
    >>> updates = {1: [1.0, 0.0], 2: [1.0, 0.1], 3: [0.0, 1.0], 4: [0.1, 1.0]}
    >>> reports = [ClientReport(c, 0, update=u, examples=10) for c, u in updates.items()]
    >>> scheduler.observe(0, reports, "training")
    >>> cohort = scheduler.select(1, [1, 2, 3, 4], 2)
    >>> len(set(cohort.clients) & {1, 2}), cohort.weights, cohort.normalise
    (1, (2.0, 2.0), False)
    """

    family = "diversity"
    fixed_size = False
    supports_constraints = False
    observed_sources = frozenset[Source]({"enrolment", "training"})
    training_signals = frozenset({"update"})
    needed_signals = frozenset[str]()

    def __init__(self, *, sketch: Sketcher | None = None, **common: Any) -> None:
        super().__init__(**common)
        if self.constraints:
            raise ValueError("caps and required clients would bias ClusteredSampling's estimate")
        self.sketch = check_sketch(sketch)
        self.reports = ReportStore(self.sketch)

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Draw one client from each row."""
        if m >= len(clients):
            return Cohort(clients, (1.0,) * len(clients), normalise=False)
        sizes = example_counts(self.reports, clients)
        share = sizes / sizes.sum() if sizes.sum() > 0.0 else np.full(sizes.size, 1 / sizes.size)
        rng = self.rng(server_round)
        rows = sampling_rows(m * share, self._tree(clients), rng)
        counts = np.zeros(len(clients))
        for members, p in rows:
            counts[members[int(np.searchsorted(np.cumsum(p) / sum(p), rng.random(), "right"))]] += 1
        drawn = np.flatnonzero(counts)
        return Cohort(
            clients=tuple(clients[i] for i in drawn),
            weights=tuple(float(counts[i] / (m * share[i])) for i in drawn),
            normalise=False,
            diagnostics={"draws": [[clients[i], int(counts[i])] for i in drawn]},
        )

    def _tree(self, clients: tuple[ClientId, ...]) -> Float64Array:
        """Return Ward's tree of all clients, those without an update at one point."""
        vectors = [
            None if (report := self.reports.get(client)) is None else report.vector
            for client in clients
        ]
        width = self.reports.width or 0
        known = [i for i, vector in enumerate(vectors) if vector is not None]
        # Unknown clients share a direction of their own.
        table = np.zeros((len(clients), width + 1))
        table[:, width] = 1.0
        if known:
            table[known, :width] = self.reports.vectors([clients[i] for i in known])
            table[known, width] = 0.0
        return ward_tree(condensed_angles(table))


def sampling_rows(
    mass: Float64Array, tree: Float64Array, rng: np.random.Generator
) -> list[tuple[list[int], list[float]]]:
    """Return rows of clients and probabilities; the columns add up to the mass of each client.

    Parameters
    ----------
    mass
        m r of each client; it adds up to m, the number of rows.
    tree
        Ward's tree of the clients.
    rng
        Orders the clients that are poured.

    Examples
    --------
    Clients 1 and 2 are similar. Their row and that of client 0 are filled up with client 3.

    >>> tree = ward_tree(np.array([1.5, 1.5, 1.5, 0.1, 1.5, 1.5]))
    >>> rows = sampling_rows(np.array([0.8, 0.4, 0.4, 0.4]), tree, np.random.default_rng(0))
    >>> [(members, np.round(p, 3).tolist()) for members, p in rows]
    [([0, 3], [0.8, 0.2]), ([1, 2, 3], [0.4, 0.4, 0.2])]
    """
    own = np.floor(mass + 1e-9).astype(np.intp)
    left = np.maximum(mass - own, 0.0)
    left[left < 1e-9] = 0.0
    rows: list[tuple[list[int], list[float]]] = [
        ([int(i)], [1.0]) for i in np.flatnonzero(own) for _ in range(own[i])
    ]
    clusters = [_members(group, left) for group in heaviest_subtrees(tree, left, 1.0)]
    clusters = [group for group in clusters if group]
    # The heaviest first; ties go to the first client.
    clusters.sort(key=lambda group: (-round(float(left[group].sum()), 9), group[0]))
    number = round(float(mass.sum())) - len(rows)
    kept = [(list(group), [float(x) for x in left[group]]) for group in clusters[:number]]
    poured = [int(i) for group in reversed(clusters[number:]) for i in rng.permutation(group)]
    _pour(kept, poured, left)
    return rows + kept


def _members(group: Sequence[int], left: Float64Array) -> list[int]:
    return [i for i in group if left[i] > 0.0]


def _pour(
    rows: list[tuple[list[int], list[float]]], clients: Sequence[int], left: Float64Array
) -> None:
    """Fill rows up to 1 with clients, in order; a client may be split."""
    row = 0
    for client in clients:
        rest = float(left[client])
        while rest > 1e-12 and row < len(rows):
            members, p = rows[row]
            part = min(rest, 1.0 - math.fsum(p))
            if part > 1e-12:
                members.append(client)
                p.append(part)
                rest -= part
            if math.fsum(p) >= 1.0 - 1e-12:
                row += 1
