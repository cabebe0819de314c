"""Constraints on a chosen set: candidates, required rows, given rows, and caps per group."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import IndexArray
from adcs._validation import check_int
from adcs.dpp.kernel import check_m


@dataclass(frozen=True)
class Constraints:
    """Constraints on a set of m out of n rows.

    Parameters
    ----------
    candidates
        Indices of the rows that may be chosen; None means all.
    required
        Indices of the rows that must be chosen; they are picked first.
    groups
        One label for each of the n rows (a site, an operator); None means no groups.
    caps
        At most this many from each group: one number for all groups, or a mapping from label
        to number in which a group that is not named has no cap.
    given
        Indices of rows that are chosen already. They are in the determinant and count towards
        caps, are never returned, and need not be candidates; m counts the other rows.

    Examples
    --------
    >>> Constraints(groups=["a", "a", "a", "b"], caps=1).resolve(n=4, m=3)
    Traceback (most recent call last):
    ...
    ValueError: m = 3 cannot be met: candidates and caps admit only 2
    """

    candidates: ArrayLike | None = None
    required: Sequence[int] = ()
    groups: Sequence[Hashable] | NDArray[np.generic] | None = None
    caps: int | Mapping[Hashable, int] | None = None
    given: Sequence[int] = ()

    def __bool__(self) -> bool:
        return not (
            self.candidates is None
            and self.caps is None
            and np.size(self.required) == 0
            and np.size(self.given) == 0
        )

    def resolve(self, n: int, m: int) -> ResolvedConstraints:
        """Return checked arrays over n rows; raise ValueError if no m rows meet the constraints.

        >>> Constraints(required=[2]).resolve(n=3, m=1).required
        array([2])
        """
        if not self:
            check_m(m, n)
            return _unconstrained(n)
        allowed = self._allowed(n)
        given = _indices(self.given, n, "given")
        allowed[given] = False
        check_m(m, int(allowed.sum()))
        codes, caps = self._caps(n)
        if self.caps is not None:
            caps = np.maximum(caps - np.bincount(codes[given], minlength=caps.size), 0)
        required = _indices(self.required, n, "required")
        if required.size > m:
            raise ValueError(f"required names {required.size} rows, more than m = {m}")
        for i in required:
            if i in given:
                raise ValueError(f"row {i} is both given and required")
            if not allowed[i]:
                raise ValueError(f"required row {i} is not among the candidates")
        taken = np.bincount(codes[required], minlength=caps.size)
        over = np.flatnonzero(taken > caps)
        if over.size:
            raise ValueError(
                f"required holds {taken[over[0]]} rows of one group, above its cap {caps[over[0]]}"
            )
        possible = int(np.minimum(np.bincount(codes[allowed], minlength=caps.size), caps).sum())
        if possible < m:
            raise ValueError(f"m = {m} cannot be met: candidates and caps admit only {possible}")
        return ResolvedConstraints(allowed, required, codes, caps, given)

    def _allowed(self, n: int) -> NDArray[np.bool_]:
        if self.candidates is None:
            return np.ones(n, dtype=bool)
        mask = np.zeros(n, dtype=bool)
        mask[_indices(self.candidates, n, "candidates")] = True
        if not mask.any():
            raise ValueError("candidates must name at least one row, got none")
        return mask

    def _caps(self, n: int) -> tuple[IndexArray, IndexArray]:
        if self.caps is None:
            return np.zeros(n, dtype=np.intp), np.array([n], dtype=np.intp)
        if self.groups is None or len(self.groups) != n:
            given = "none" if self.groups is None else str(len(self.groups))
            raise ValueError(f"caps need groups, one label for each of the {n} rows, got {given}")
        order: dict[Hashable, int] = {}
        codes = np.fromiter(
            (order.setdefault(label, len(order)) for label in list(self.groups)),
            dtype=np.intp,
            count=n,
        )
        values = [
            self.caps.get(label, n) if isinstance(self.caps, Mapping) else self.caps
            for label in order
        ]
        for label, value in zip(order, values, strict=True):
            check_int(f"the cap of group {label!r}", value, minimum=0)
        return codes, np.asarray(values, dtype=np.intp)


@dataclass(frozen=True)
class ResolvedConstraints:
    """Constraints as checked arrays over n rows.

    Attributes
    ----------
    allowed
        Mask of the rows that may be chosen.
    required
        The rows that must be chosen.
    codes
        The group of each row, as a number.
    caps
        For each group, how many of its rows may be chosen in addition to the given ones.
    given
        Rows that are chosen already.
    """

    allowed: NDArray[np.bool_]
    required: IndexArray
    codes: IndexArray
    caps: IndexArray
    given: IndexArray

    @property
    def capped(self) -> bool:
        """Whether a cap can limit the choice."""
        return self.caps.size > 1 or bool(self.caps[0] < self.allowed.size)


@lru_cache(maxsize=4)
def _unconstrained(n: int) -> ResolvedConstraints:
    allowed, codes = np.ones(n, dtype=bool), np.zeros(n, dtype=np.intp)
    none, caps = np.empty(0, dtype=np.intp), np.array([n], dtype=np.intp)
    for array in (allowed, none, codes, caps):
        array.flags.writeable = False  # the arrays are cached
    return ResolvedConstraints(allowed, none, codes, caps, none)


def _indices(values: ArrayLike, n: int, name: str) -> IndexArray:
    array = np.asarray(values)
    if array.dtype == bool and array.shape == (n,):
        return np.flatnonzero(array)
    if array.size == 0:
        return np.empty(0, dtype=np.intp)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a list of row indices, got {values!r}")
    bad = array[(array < 0) | (array >= n)]
    if bad.size:
        raise ValueError(f"{name} must lie between 0 and {n - 1}, got {bad[0]}")
    found, counts = np.unique(array, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{name} must be distinct, got {found[counts > 1][0]} more than once")
    return array.astype(np.intp)
