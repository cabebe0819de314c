"""Label histograms: how a client counts its labels, with noise if it likes, and how they are read.

A histogram is protected at the level of examples, not of clients: with noise of a given epsilon,
the presence of one example changes the probability of any histogram by a factor of at most
exp(epsilon). That a client takes part, and roughly how much data it has, stays visible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import ClientId, Float64Array, IndexArray
from adcs._validation import check_int, check_number
from adcs.reports.store import ReportStore


def count_labels(
    labels: ArrayLike,
    classes: int,
    *,
    epsilon: float | None = None,
    rng: np.random.Generator | None = None,
) -> IndexArray:
    """Return how many examples have each label, with noise for privacy if epsilon is given.

    A client calls it once and sends the same histogram ever after: each further noised histogram
    of the same data would cost another epsilon.

    Parameters
    ----------
    labels
        The labels of the client's examples, whole numbers from 0 to classes - 1.
    classes
        The number of classes.
    epsilon
        Example-level differential privacy: adding or removing one example changes one count by
        one, so discrete Laplace noise of scale 1 / epsilon on each count makes the histogram
        epsilon-private. Counts may then be negative. None adds no noise.
    rng
        Where the noise comes from; by default the system's entropy.

    Examples
    --------
    >>> count_labels([0, 2, 2], classes=4)
    array([1, 0, 2, 0])
    >>> count_labels([0, 2, 2], classes=4, epsilon=0.5, rng=np.random.default_rng(0))
    array([ 0, -4,  1, -2])
    """
    given = np.asarray(labels)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(
            f"labels must be a row of whole numbers, got {given.dtype} of shape {given.shape}"
        )
    classes = check_int("classes", classes, minimum=1)
    if given.size and not 0 <= given.min() <= given.max() < classes:
        raise ValueError(
            f"labels must lie between 0 and {classes - 1}, got {given.min()} to {given.max()}"
        )
    counts = np.bincount(given.astype(np.intp), minlength=classes)
    if epsilon is None:
        return counts
    epsilon = check_number("epsilon", epsilon, above=0.0)
    source = np.random.default_rng() if rng is None else rng
    # The difference of two geometric numbers is discrete Laplace noise, exact on whole counts.
    p = -np.expm1(-epsilon)
    return counts + source.geometric(p, classes) - source.geometric(p, classes)


def label_counts(
    reports: ReportStore, clients: Sequence[ClientId]
) -> tuple[list[ClientId], Float64Array]:
    """Return those of the clients whose histogram can be used, and their counts, a row each.

    Negative counts, which noise makes, are read as 0. A client whose histogram has no positive
    count, or another number of classes than most others, is left out.

    >>> from adcs.reports import ClientReport
    >>> reports = ReportStore()
    >>> histograms = {"a": [3, -1], "b": [0, 2], "c": [-1, -2], "d": [1, 1, 1]}
    >>> sent = [ClientReport(c, 0, label_counts=h) for c, h in histograms.items()]
    >>> refused = reports.record(sent)
    >>> label_counts(reports, ["a", "b", "c", "d", "e"])
    (['a', 'b'], array([[3., 0.],
           [0., 2.]]))
    """
    known, table = per_class_rows(reports, clients, "label_counts")
    usable = (table > 0.0).any(axis=1)
    return [known[i] for i in np.flatnonzero(usable)], np.maximum(table[usable], 0.0)


def per_class_rows(
    reports: ReportStore, clients: Sequence[ClientId], name: str
) -> tuple[list[ClientId], Float64Array]:
    """Return those of the clients that reported a vector of most clients' size, and the vectors.

    Parameters
    ----------
    reports, clients
        The reports, and the clients to read.
    name
        A signal of one number for each class: "label_counts" or "output_bias_update".

    Examples
    --------
    >>> from adcs.reports import ClientReport
    >>> reports = ReportStore()
    >>> refused = reports.record([ClientReport("a", 0, output_bias_update=[0.5, -0.5])])
    >>> per_class_rows(reports, ["a", "b"], "output_bias_update")
    (['a'], array([[ 0.5, -0.5]]))
    """
    found: list[tuple[ClientId, Sequence[float]]] = [
        (client, row)
        for client in clients
        if (report := reports.get(client)) is not None
        and (row := getattr(report, name)) is not None
    ]
    sizes = Counter(len(row) for _, row in found)
    classes = max(sizes, key=lambda size: (sizes[size], -size), default=0)
    usable = [(client, row) for client, row in found if len(row) == classes]
    table = np.empty((len(usable), classes))
    for into, (_, row) in zip(table, usable, strict=True):
        into[:] = row
    return [client for client, _ in usable], table
