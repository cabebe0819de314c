"""Which clients have waited too long to be passed over again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

import numpy as np

from adcs._types import IndexArray
from adcs._validation import check_number
from adcs.dpp.constraints import Constraints


class WaitingRule:
    """Clients that were not chosen for patience N / m rounds get slots before others.

    Parameters
    ----------
    patience
        At least 1; None never gives anyone precedence.

    Examples
    --------
    >>> WaitingRule(patience=2.0).overdue(np.array([0, 4, 9, 5]), m=2)
    [2]
    """

    def __init__(self, patience: float | None) -> None:
        if patience is not None:
            patience = check_number("patience", patience, minimum=1)
        self.patience = patience

    def overdue(
        self,
        waits: IndexArray,
        m: int,
        constraints: Constraints = Constraints(),  # noqa: B008 - frozen
    ) -> list[int]:
        """Return the overdue clients, the longest wait first, for at most half of the slots.

        Parameters
        ----------
        waits
            Rounds since each client was last chosen.
        m
            Number of slots.
        constraints
            Required clients, which have their slots already, given (pending) ones, and caps; on
            positions in `waits`.
        """
        if self.patience is None:
            return []
        over = (waits >= self.patience * waits.size / m).nonzero()[0]
        order = over[np.argsort(-waits[over], kind="stable")].tolist()
        slots = min((m + 1) // 2, m - len(constraints.required))
        held = {*constraints.required, *constraints.given}
        late = (i for i in order if i not in held)
        labels, caps = constraints.groups, constraints.caps
        if labels is None or caps is None:
            return list(islice(late, max(slots, 0)))
        assert isinstance(caps, Mapping)
        free = Counter(caps) - Counter(labels[i] for i in held)
        overdue: list[int] = []
        for i in late:
            if len(overdue) < slots and free[labels[i]] > 0:
                free[labels[i]] -= 1
                overdue.append(i)
        return overdue
