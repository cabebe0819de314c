"""The result of every search for a set: what was picked, in which order, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass

from adcs._types import Float64Array, IndexArray


@dataclass(frozen=True)
class Selection:
    """A set of m rows.

    With given rows (`Constraints.given`), gains, log_det and objective are what the set adds to
    them.

    Attributes
    ----------
    indices
        The rows, in the order in which they were picked.
    gains
        What each pick added to the objective: (1 - theta) log residual^2 + theta q. It is -inf
        for a pick that adds no direction of its own (theta < 1).
    log_det
        log det C_S, of the similarity alone; -inf when the picks are linearly dependent.
    objective
        (1 - theta) log det C_S + theta sum q.
    rank
        How many of the picks have a direction of their own. A rank below m means that the rest
        were filled by a fresh greedy over the remainder.
    """

    indices: IndexArray
    gains: Float64Array
    log_det: float
    objective: float
    rank: int
