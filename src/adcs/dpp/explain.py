"""Explanations of a greedy search: why rows were chosen, and why others were left out.

The search is repeated pick by pick. At each step every candidate has a score: theta q for its
quality plus (1 - theta) log r^2 for its diversity, where r is the norm of the part of its unit
vector outside the span of the rows chosen before. The pick has the largest score.

The reason why a row was left out is a counterfactual: the first of these changes with which the
row would have been chosen.

- "rules": no required rows, no caps, and every row a candidate. A row for which the constraints
  leave no slot, whatever its score, has this reason too.
- "redundant": the nearest chosen row is absent. Its absence alone frees a slot, and the next best
  row would take it, similar or not. So the row must also be chosen with one slot less, or not be
  chosen with one slot more while the nearest row is present.
- "quality": the row has the best quality among the chosen, and loses ties.
- "tie": the row has the lowest index. It tied for the last slot.
- "several": the row is orthogonal to all others. It is redundant with several of the chosen.

A row that would not be chosen with any of these changes has the reason "quality".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array, IndexArray
from adcs._validation import as_array, brief
from adcs.dpp.constraints import Constraints
from adcs.dpp.greedy import greedy_map_trusted
from adcs.dpp.kernel import as_quality, as_similarity, check_theta
from adcs.dpp.tolerances import EXPLAINED_TIE, Scorer

Reason = Literal["rules", "redundant", "quality", "tie", "several"]


@dataclass(frozen=True)
class Score:
    """A row's score at one step: its two parts and their sum.

    >>> Score(quality=1.0, diversity=-0.25).total
    0.75
    """

    quality: float
    diversity: float

    @property
    def total(self) -> float:
        """The sum, by which the search compares rows."""
        return self.quality + self.diversity


@dataclass(frozen=True)
class Pick:
    """A chosen row.

    Attributes
    ----------
    row
        The row.
    quality
        Its quality q.
    gain
        What it added to the objective; -inf if it added no direction of its own.
    score
        Its score when it was picked. After a restart (no row added a direction), the score
        counts from the restart.
    nearest, similarity
        The chosen row with the largest |C|, and the entry of C, negative if the two are opposite;
        None if it is the only chosen row.

    Examples
    --------
    >>> explain([[1.0, 0.6], [0.6, 1.0]], [0]).picks[0].row
    0
    """

    row: int
    quality: float
    gain: float
    score: Score
    nearest: int | None
    similarity: float | None


@dataclass(frozen=True)
class Miss:
    """A row that was not chosen.

    Attributes
    ----------
    row, quality
        The row and its quality q.
    step
        The pick, counted from 0, at which its score came closest to the winner's. Ties do not
        count, because there the order of rows decided, as at the first pick of theta = 0.
    winner
        The row that was picked there.
    score, winning
        Its score there, and the winner's.
    nearest, similarity
        The chosen row with the largest |C|, and the entry of C, negative if the two are opposite.
    reason
        Why it was left out; the docstring of this module lists the reasons.
    with_quality
        Whether it would have been chosen with the best quality among the chosen, losing ties;
        False if its own quality is at least that.

    Examples
    --------
    >>> miss = explain([[1.0, 0.6], [0.6, 1.0]], [0], quality=[2.0, 1.0], theta=0.5).left_out[0]
    >>> miss.row, miss.winner, miss.reason, miss.with_quality
    (1, 0, 'quality', False)
    """

    row: int
    quality: float
    step: int
    winner: int
    score: Score
    winning: Score
    nearest: int
    similarity: float
    reason: Reason
    with_quality: bool


@dataclass(frozen=True)
class Explanation:
    """The picks in their order, and the rows left out by index.

    >>> [miss.row for miss in explain([[1.0, 0.6], [0.6, 1.0]], [0]).left_out]
    [1]
    """

    picks: tuple[Pick, ...]
    left_out: tuple[Miss, ...]


def explain(
    similarity: ArrayLike,
    indices: ArrayLike,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    scorer: Scorer | None = None,
    constraints: Constraints | None = None,
) -> Explanation:
    """Explain the picks of a greedy search.

    Parameters
    ----------
    similarity
        The kernel C, N x N.
    indices
        The chosen rows in the order in which they were picked: `Selection.indices`.
    quality, theta
        As they were given to the search.
    scorer
        As it was given to `greedy_map_trusted`; None means that C is as exact as its type.
    constraints
        As they were given to the search. Rows are not compared with required rows, which are
        chosen whatever their score. Given rows are neither picks nor left out.

    Returns
    -------
    Explanation
        The picks, and all rows left out.

    Examples
    --------
    Row 1 is nearly equal to row 0, and was left out for that.

    >>> c = [[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> why = explain(c, [0, 2])
    >>> why.picks[1].gain, why.picks[1].nearest
    (0.0, 0)
    >>> miss = why.left_out[0]
    >>> miss.nearest, miss.similarity, miss.reason, round(miss.score.diversity, 4)
    (0, 0.9, 'redundant', -1.6607)
    """
    theta = check_theta(theta)
    c = as_similarity(similarity)
    n = c.shape[0]
    q = as_quality(quality, n)
    chosen = _distinct(indices, n)
    scorer = scorer or Scorer.of_kernel(similarity, quality, theta=theta)
    constraints = constraints or Constraints()
    floor = scorer.floor + scorer.kernel_error
    resolved = constraints.resolve(n, chosen.size)
    required, given = np.isin(chosen, resolved.required), resolved.given
    squares, own = _residuals(c, chosen, required, given, floor)
    scores = _diversity(squares, theta, floor)
    quality_terms = scorer.quality_term(q)
    abs_similarity = np.abs(c[:, chosen])
    abs_similarity[chosen, np.arange(chosen.size)] = -1.0
    nearest = chosen[abs_similarity.argmax(axis=1)]
    picks = []
    for step, row in enumerate(chosen.tolist()):
        score = Score(float(quality_terms[row]), float(scores[step, row]))
        one = int(nearest[row]) if chosen.size > 1 else None
        gain = score.total if own[step] or theta == 1.0 else float("-inf")
        near = None if one is None else float(c[row, one])
        picks.append(Pick(row, float(q[row]), gain, score, one, near))
    totals = scores + quality_terms
    winners = totals[np.arange(chosen.size), chosen][:, None]
    behind = _difference(winners, totals)
    lost = np.where(
        np.abs(behind) <= EXPLAINED_TIE * np.maximum(1.0, np.abs(winners)), np.inf, behind
    )
    lost[required] = np.inf
    search = _Search(c, chosen, q, scorer, constraints)
    # At which picks a row was a candidate, and the margin of a tie at each pick.
    opened: NDArray[np.bool_] = search.open() & ~required[:, None]
    never_candidate: NDArray[np.bool_] = ~np.any(opened, axis=0)
    competing = opened if theta == 1.0 else opened & (squares > floor)
    picked = np.maximum(squares[np.arange(chosen.size), chosen], floor)
    margin = scorer.tie_margin(picked, quality_terms[chosen])
    if theta == 0.0:  # there it is a margin of r^2
        margin = margin / picked
    best_quality = scorer.quality_term(np.maximum(q, q[chosen].max()))
    quality_lift = _difference(best_quality, quality_terms)
    still_behind = _difference(behind, quality_lift)
    if_best_quality = competing & (still_behind < -margin[:, None]) & (quality_lift > 0.0)
    with_quality: NDArray[np.bool_] = np.any(if_best_quality, axis=0)
    if_orthogonal = _difference(winners, quality_terms) <= margin[:, None]
    if theta < 1.0:  # while a row adds a direction, the search is not restarted
        if_orthogonal |= ~np.array(own)[:, None]
    if_orthogonal &= opened
    orthogonal: NDArray[np.bool_] = np.any(if_orthogonal, axis=0)
    tied: NDArray[np.bool_] = competing[-1] & (np.abs(behind[-1]) <= margin[-1])
    left_out = []
    for row in np.setdiff1d(np.arange(n), np.append(chosen, given)).tolist():
        step = int(lost[:, row].argmin())
        reason: Reason = "quality"
        if never_candidate[row] or search.ruled_out(row):
            reason = "rules"
        elif row in search.freed_by(int(nearest[row])):
            reason = "redundant"
        elif with_quality[row]:
            reason = "quality"
        elif tied[row]:
            reason = "tie"
        elif orthogonal[row]:
            reason = "several"
        left_out.append(
            Miss(
                row=row,
                quality=float(q[row]),
                step=step,
                winner=int(chosen[step]),
                score=Score(float(quality_terms[row]), float(scores[step, row])),
                winning=picks[step].score,
                nearest=int(nearest[row]),
                similarity=float(c[row, nearest[row]]),
                reason=reason,
                with_quality=bool(with_quality[row]),
            )
        )
    return Explanation(tuple(picks), tuple(left_out))


class _Search:
    """The greedy search behind a choice, run again under changed conditions."""

    def __init__(
        self,
        c: Float64Array,
        chosen: IndexArray,
        quality: Float64Array,
        scorer: Scorer,
        constraints: Constraints,
    ) -> None:
        self._c, self._chosen, self._quality = c, chosen, quality
        self._scorer, self._constraints = scorer, constraints
        self._resolved = constraints.resolve(c.shape[0], chosen.size)
        self._freed: dict[int, frozenset[int]] = {}
        self._unconstrained: frozenset[int] | None = None if constraints else frozenset()
        self._one_more = self._run(chosen.size + 1, constraints)

    def _run(self, m: int, constraints: Constraints) -> frozenset[int]:
        """Return the m rows that are chosen, none if the constraints do not allow m rows."""
        try:
            constraints.resolve(self._c.shape[0], m)
        except ValueError:
            return frozenset()
        found = greedy_map_trusted(
            self._c, m, self._scorer, quality=self._quality, constraints=constraints
        )
        return frozenset(found.indices.tolist())

    def ruled_out(self, row: int) -> bool:
        """Return whether a row would be chosen if there were no constraints."""
        if self._unconstrained is None:
            self._unconstrained = self._run(self._chosen.size, Constraints())
        return row in self._unconstrained

    def freed_by(self, row: int) -> frozenset[int]:
        """Return the rows chosen if this row were absent, other than by the slot that it frees."""
        if row not in self._freed:
            rules, resolved = self._constraints, self._resolved
            caps = rules.caps
            if caps is not None:
                assert rules.groups is not None
                labels = list(rules.groups)
                codes = dict(zip(labels, resolved.codes.tolist(), strict=True))
                # The caps of the constraints count given rows, the resolved ones do not.
                size = resolved.caps.size
                limits = resolved.caps + np.bincount(resolved.codes[resolved.given], minlength=size)
                left = {label: int(limits[code]) for label, code in codes.items()}
                left[labels[row]] -= 1  # its slot in the group stays used
                caps = left
            others = replace(
                rules,
                candidates=np.setdiff1d(resolved.allowed.nonzero()[0], [row]),
                required=[one for one in resolved.required.tolist() if one != row],
                caps=caps,
            )
            m = self._chosen.size
            self._freed[row] = self._run(m - 1, others) | (self._run(m, others) - self._one_more)
        return self._freed[row]

    def open(self) -> NDArray[np.bool_]:
        """Return which rows were candidates at each pick, with a slot left in their group."""
        resolved = self._resolved
        left = resolved.caps.copy()
        table = np.empty((self._chosen.size, self._c.shape[0]), dtype=bool)
        for step, row in enumerate(self._chosen.tolist()):
            table[step] = resolved.allowed & (left[resolved.codes] > 0)
            left[resolved.codes[row]] -= 1
        return table


def _difference(one: Float64Array, other: Float64Array) -> Float64Array:
    """Return one - other; a difference beyond float64 becomes the largest float64."""
    most = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        return np.clip(one - other, -most, most)


def _distinct(indices: ArrayLike, n: int) -> IndexArray:
    chosen = as_array(indices, "indices")
    if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
        raise ValueError(f"indices must be a list of at least one row, got {brief(indices)}")
    if np.unique(chosen).size < chosen.size or chosen.min() < 0 or chosen.max() >= n:
        raise ValueError(f"indices must be distinct rows from 0 to {n - 1}, got {brief(indices)}")
    return chosen.astype(np.intp)


def _residuals(
    c: Float64Array,
    chosen: IndexArray,
    required: NDArray[np.bool_],
    given: IndexArray,
    floor: float,
) -> tuple[Float64Array, list[bool]]:
    """Return every row's r^2 before each pick, and which picks added a direction.

    Picks after a restart count as adding none.
    """
    n, m = c.shape[0], chosen.size
    squares = np.ones(n)
    basis = np.zeros((0, n))
    first = True
    table, own = np.empty((m, n)), []
    for row in given.tolist():
        if squares[row] > floor:
            squares, basis = _project_out(c, squares, basis, row)
    for step, row in enumerate(chosen.tolist()):
        if squares[row] <= floor and not required[step]:
            # No candidate added a direction: the search was restarted.
            squares, basis, first = np.ones(n), np.zeros((0, n)), False
        table[step] = squares
        fresh = bool(squares[row] > floor)
        own.append(first and fresh)
        if fresh:  # A required row may add no direction.
            squares, basis = _project_out(c, squares, basis, row)
    return table, own


def _project_out(
    c: Float64Array, squares: Float64Array, basis: Float64Array, row: int
) -> tuple[Float64Array, Float64Array]:
    """Return every row's r^2 and the coordinates after a row is added to the basis."""
    part = (c[row] - basis[:, row] @ basis) / np.sqrt(squares[row])
    return np.maximum(squares - part**2, 0.0), np.vstack([basis, part])


def _diversity(squares: Float64Array, theta: float, floor: float) -> Float64Array:
    if theta == 1.0:
        return np.zeros_like(squares)
    return (1.0 - theta) * np.log(np.maximum(squares, floor))
