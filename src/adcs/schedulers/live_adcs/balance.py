"""Clients that make a cohort represent all clients."""

from __future__ import annotations

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs.dpp.constraints import ResolvedConstraints
from adcs.schedulers.live_adcs.kernel import LiveKernel

POOL = 500
"""Of more clients than this, those that are best by themselves are compared."""

MAX_WAIT_RATIO = 5.0
"""No wait counts as longer than this many times the median: one would leave none to the others."""

MAX_EXPONENT = 500.0
"""The largest exponent in target shares is from -500 to 500: exp overflows at 709."""

MAX_NORM_RATIO = 5.0
"""No update counts as longer than this many times the median."""

TIE = 1e-6
"""Scores that differ by no more for each client of a cohort are equal: the smaller id wins.

In mean squared norms. Scores grow with the size of the cohort, and so do their rounding errors.
"""


def target_shares(log_shares: Float64Array) -> Float64Array:
    """Return what each client counts in the step to approximate, from logarithms up to a constant.

    >>> target_shares(np.log([1.0, 3.0])).round(2)
    array([0.25, 0.75])
    """
    largest = float(log_shares.max())
    shares = np.exp(log_shares - (largest - min(max(largest, -MAX_EXPONENT), MAX_EXPONENT)))
    return np.asarray(shares / shares.sum())


def scaled_norms(norms: Float64Array) -> Float64Array:
    """Return norms of updates, none above `MAX_NORM_RATIO` medians, with a mean square of one.

    >>> scaled_norms(np.array([2.0, 2.0, 100.0])).round(2)
    array([0.33, 0.33, 1.67])
    """
    norms = np.minimum(norms, MAX_NORM_RATIO * np.median(norms))
    mean_square = float((norms**2).mean())
    return norms / np.sqrt(mean_square) if mean_square > 0.0 else np.ones(norms.size)


def waiting_bonus(waits: IndexArray, unanswered: IndexArray) -> Float64Array:
    """Return what waiting counts for: standardised over clients, less one for each silence.

    Parameters
    ----------
    waits
        Rounds since each client was last selected.
    unanswered
        How often each client was selected since its last report.

    Examples
    --------
    >>> waiting_bonus(np.array([1, 3, 3]), np.array([0, 0, 1])).round(2)
    array([-1.41,  0.71, -0.29])
    """
    counted = np.minimum(waits, MAX_WAIT_RATIO * max(float(np.median(waits)), 1.0))
    spread = float(counted.std())
    standardised = (counted - counted.mean()) / spread if spread > 0.0 else np.zeros(waits.size)
    return np.asarray(standardised - unanswered)


def balancing_clients(
    kernel: LiveKernel,
    rows: IndexArray,
    norms: Float64Array,
    targets: Float64Array,
    bonus: Float64Array,
    chosen: IndexArray,
    count: int,
    rules: ResolvedConstraints,
) -> list[int]:
    """Return clients that bring the mean update of a cohort closest to a target step.

    With g the target step, S the cohort so far and m its size at the end, the next client maximises
    2 <u_i, m g - sum_S u_j> - |u_i|^2 + bonus_i. The first two terms are by how much its update
    lowers |m g - sum_S u_j|^2.

    Parameters
    ----------
    kernel, rows
        The directions of updates, and the row of each client.
    norms
        Norms of the updates, with a mean square of one.
    targets
        The inner product of each update with the target step.
    bonus
        What else speaks for a client.
    chosen
        Positions of the cohort so far, pending clients included.
    count
        How many clients to add.
    rules
        Which clients may be chosen, and the caps of groups, as for the whole cohort.

    Returns
    -------
    list of int
        Positions of the clients, in the order in which they were added.

    Examples
    --------
    Clients 0 and 1 pull to one side, and clients 2 and 3 to the other.

    >>> from adcs.dpp.constraints import Constraints
    >>> updates = np.array([[1.0, 1.0], [1.0, 0.9], [1.0, -1.0], [1.0, -0.9]])
    >>> norms, rows = np.linalg.norm(updates, axis=1), np.arange(4)
    >>> kernel = LiveKernel()
    >>> kernel.update(rows, updates / norms[:, None], norms)
    >>> targets, rules = updates @ updates.mean(axis=0), Constraints().resolve(4, 2)
    >>> balancing_clients(kernel, rows, norms, targets, np.zeros(4), np.array([0]), 1, rules)
    [2]
    """
    score = 2.0 * (chosen.size + count) * targets - norms**2 + bonus
    free = rules.allowed.copy()
    free[chosen] = False
    slots = rules.caps.copy()  # They count all but the given clients.
    np.subtract.at(slots, rules.codes[chosen[~np.isin(chosen, rules.given)]], 1)
    tie = TIE * (chosen.size + count)
    pool = np.arange(score.size)
    if score.size > (size := max(POOL, 5 * count)) + chosen.size:
        pool = _pool(np.where(free, score, -np.inf), rules.codes, slots, size, tie)
        pool = np.union1d(pool, chosen)
    scores, codes, free, norms = score[pool], rules.codes[pool], free[pool], norms[pool]
    cosines = kernel.cosine_rows(rows[pool])
    for i in np.searchsorted(pool, chosen).tolist():
        scores -= 2.0 * norms[i] * norms * cosines(i)
    added: list[int] = []
    for _ in range(count):
        candidates = (free & (slots[codes] > 0)).nonzero()[0]
        if not candidates.size:
            break
        found = scores[candidates]
        i = int(candidates[np.argmax(found >= found.max() - tie)])
        added.append(int(pool[i]))
        free[i] = False
        slots[codes[i]] -= 1
        scores -= 2.0 * norms[i] * norms * cosines(i)
    return added


def _pool(
    scores: Float64Array, codes: IndexArray, slots: IndexArray, size: int, tie: float
) -> IndexArray:
    """Return the positions with the best scores: among all, and among those that fit the slots."""
    best = _best(scores, size, tie)
    if bool((np.bincount(codes[scores > -np.inf], minlength=slots.size) <= slots).all()):
        return best
    # The best of each group, as many as it has slots. From any of the pool's cohorts that is too
    # small, one of them leads to a larger one.
    order = np.lexsort((-scores, codes))
    rank = np.arange(order.size) - np.searchsorted(codes[order], codes[order])
    fitting = np.full(scores.size, -np.inf)
    within = order[rank < slots[codes[order]]]
    fitting[within] = scores[within]
    return np.union1d(best, _best(fitting, size, tie))


def _best(scores: Float64Array, size: int, tie: float) -> IndexArray:
    """Return the positions of the largest scores; of those that tie, the first."""
    least = float(np.partition(scores, -size)[-size])
    better = (scores > least + tie).nonzero()[0]
    tied = ((scores >= least - tie) & (scores <= least + tie)).nonzero()[0]
    return np.append(better, tied[: size - better.size])
