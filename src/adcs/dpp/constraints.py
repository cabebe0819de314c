"""Constraints on a chosen set: candidates, required rows, given rows, and caps per group."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import IndexArray
from adcs._validation import as_array, brief, check_int, check_label
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
        A list with one label for each of the n rows (a site, an operator); None means no groups.
    caps
        At most this many from each group: one number for all groups, or a mapping from label
        to number in which a group that is not named has no cap. Each label that the mapping names
        must be the label of a row.
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
            and _is_empty(self.required)
            and _is_empty(self.given)
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
            label = _labels(self.groups, n)[required[codes[required] == over[0]][0]]
            raise ValueError(
                f"required holds {taken[over[0]]} rows of group {brief(label)}, "
                f"above its cap {caps[over[0]]}"
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
        order: dict[Hashable, int] = {}
        codes = np.fromiter(
            (order.setdefault(label, len(order)) for label in _labels(self.groups, n)),
            dtype=np.intp,
            count=n,
        )
        if isinstance(self.caps, Mapping):
            for label in self.caps:
                if label not in order:
                    raise ValueError(f"caps must name groups of rows, got {brief(label)}")
        values = [
            self.caps.get(label, n) if isinstance(self.caps, Mapping) else self.caps
            for label in order
        ]
        checked = [
            # A cap above n is no limit, and may be more than an array holds.
            min(check_int(f"the cap of group {brief(label)}", value, minimum=0), n)
            for label, value in zip(order, values, strict=True)
        ]
        return codes, np.asarray(checked, dtype=np.intp)


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


def _is_empty(values: ArrayLike) -> bool:
    try:
        return np.size(values) == 0
    except Exception:  # no array; `_indices` says why
        return False


def _labels(groups: object, n: int) -> list[Hashable]:
    """Return the labels of n rows, or raise ValueError unless groups is a list of them."""
    if groups is None:
        raise ValueError(f"caps need groups, one label for each of the {n} rows, got none")
    expected = f"groups must be a list of labels, one for each of the {n} rows"
    # The keys of a mapping, and the items of a set, are in no order of rows.
    if isinstance(groups, (Mapping, Set)) or not hasattr(groups, "__len__"):
        raise ValueError(f"{expected}, got {brief(groups)}")
    try:
        labels: list[Hashable] = list(groups)  # type: ignore[call-overload]
    except Exception:
        raise ValueError(f"{expected}, got {brief(groups)}") from None
    if len(labels) != n:
        raise ValueError(f"{expected}, got {len(labels)}")
    for label in labels:
        check_label(label)
    return labels


def _indices(values: ArrayLike, n: int, name: str) -> IndexArray:
    try:
        array = as_array(values, name)
    except ValueError:
        raise ValueError(f"{name} must be a list of row indices, got {brief(values)}") from None
    if array.dtype == bool and array.shape == (n,):
        return np.flatnonzero(array)
    if array.size == 0:
        return np.empty(0, dtype=np.intp)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a list of row indices, got {brief(values)}")
    bad = array[(array < 0) | (array >= n)]
    if bad.size:
        raise ValueError(f"{name} must lie between 0 and {n - 1}, got {bad[0]}")
    found, counts = np.unique(array, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{name} must be distinct, got {found[counts > 1][0]} more than once")
    return array.astype(np.intp)
