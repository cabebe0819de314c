"""`adcs.select`: one function for users who have their own training loop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adcs._types import FloatArray, IndexArray
from adcs._validation import as_array
from adcs.dpp.constraints import Constraints
from adcs.dpp.greedy import greedy_map_features
from adcs.dpp.kernel import as_table
from adcs.reports.report import Update, flatten, has_dimensions


def select(
    updates: ArrayLike | Sequence[Update],
    m: int,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.8,
    candidates: ArrayLike | None = None,
    required: Sequence[int] = (),
    groups: Sequence[Hashable] | None = None,
    caps: int | Mapping[Hashable, int] | None = None,
) -> IndexArray:
    """Return the indices of m clients of high quality and diverse updates, in the order picked.

    Parameters
    ----------
    updates
        One update for each client: an N x d array, or a sequence of vectors or of lists of layer
        arrays.
    m
        How many clients to choose.
    quality
        One score for each client, such as its loss; larger scores are preferred. None means equal
        scores.
    theta
        Weight of quality against diversity: 0 is diversity alone, 1 chooses the m best scores.
    candidates
        Indices of the clients that may be chosen; None means all.
    required
        Indices of clients that must be chosen.
    groups, caps
        A list with one group label for each client, and how many clients of a group may be
        chosen: a number, or a mapping from label to number.

    Examples
    --------
    The updates of clients 0 and 1 are nearly parallel, so only one of them is chosen.

    >>> updates = [[1.0, 0.0, 0.1], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.1, -1.0]]
    >>> select(updates, m=3, quality=[1.0, 1.0, 1.0, 1.0])
    array([0, 2, 3])

    Raises
    ------
    ValueError
        If updates of candidates are not finite or are zero; if updates have different lengths; if m
        is outside 1 to N or theta outside [0, 1]; if the constraints cannot be met. The message
        names the value.
    """
    rows = _rows(updates)
    if candidates is not None:
        rows = _with_unused_replaced(rows, candidates)
    return greedy_map_features(
        rows,
        m,
        quality=quality,
        theta=theta,
        constraints=Constraints(candidates, required, groups, caps),
        name="updates",
    ).indices


def _with_unused_replaced(rows: ArrayLike, candidates: ArrayLike) -> FloatArray:
    """Return rows; those that are no candidates and have no direction are replaced by one that has.

    A client that has failed may have sent zeros, or no numbers; it is not compared with others.
    """
    table = as_table(rows, "updates")
    unused = np.flatnonzero(~Constraints(candidates).resolve(len(table), 1).allowed)
    held = table[unused]
    bad = unused[~np.isfinite(held).all(axis=1) | ~held.any(axis=1)]
    if bad.size:
        table = table.copy()
        table[bad] = np.eye(1, table.shape[1], dtype=table.dtype)
    return table


def _rows(updates: Any) -> ArrayLike:
    # Data frames and tensors convert to arrays; other sequences are read row by row. Mappings,
    # sets and bytes are no rows: read as an array, they are refused.
    whole = (Mapping, Set, str, bytes, bytearray, memoryview)
    if hasattr(updates, "__array__") or isinstance(updates, whole):
        return as_array(updates, "updates")
    try:
        rows = list(updates)
    except TypeError:
        return as_array(updates, "updates")
    vectors = [flatten(row, "updates") for row in rows]
    return vectors if all(map(has_dimensions, rows)) else as_array(rows, "updates")
