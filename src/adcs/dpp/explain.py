"""Why a greedy search chose what it chose, and what the rows left out lacked.

The search is followed pick by pick. At each step every candidate has a score, theta q for its
quality and (1 - theta) log r^2 for its diversity, where r is what remains of its unit vector
outside the span of the rows chosen before; the pick is the one with the largest sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array, IndexArray
from adcs.dpp.kernel import as_quality, as_similarity, check_theta
from adcs.dpp.tolerances import Scoring

TIE = 1e-6
"""Scores this close, relatively, count as a tie."""


@dataclass(frozen=True)
class Score:
    """A row's score at some step: its two parts, and their sum.

    >>> Score(quality=1.0, diversity=-0.25).total
    0.75
    """

    quality: float
    diversity: float

    @property
    def total(self) -> float:
        """The sum, which the search compares."""
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
        What it added to the objective; -inf where it added no direction of its own.
    score
        Its score when it was picked. Where all directions were spent and the search had started
        afresh, the score counts from that start.
    nearest, similarity
        The chosen row most alike (the other way round counts as alike) and the entry of C; None
        if it is the only one.
    """

    row: int
    quality: float
    gain: float
    score: Score
    nearest: int | None
    similarity: float | None


@dataclass(frozen=True)
class Miss:
    """A row left out.

    Attributes
    ----------
    row, quality
        The row and its quality q.
    step
        The pick, counted from 0, at which it came closest to being the one. Picks at which it
        tied are passed over: there the order of rows decided, as at the first pick of theta = 0.
    winner
        The row that was picked there.
    score, winning
        Its score there, and the winner's.
    nearest, similarity
        The chosen row most alike, and the entry of C.
    """

    row: int
    quality: float
    step: int
    winner: int
    score: Score
    winning: Score
    nearest: int
    similarity: float

    @property
    def lacked(self) -> str:
        """What it was short of at that step: "quality", "diversity", or "nothing"."""
        quality = self.winning.quality - self.score.quality
        diversity = self.winning.diversity - self.score.diversity
        if quality + diversity <= 0.0:
            return "nothing"
        return "quality" if quality >= diversity else "diversity"


@dataclass(frozen=True)
class Explanation:
    """The picks in their order, and the rows left out in the order of their index."""

    picks: tuple[Pick, ...]
    left_out: tuple[Miss, ...]


def explain(
    similarity: ArrayLike,
    indices: ArrayLike,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    scoring: Scoring | None = None,
    given: ArrayLike = (),
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
    scoring
        As it was given to `greedy_map_trusted`; None takes C for as exact as its type.
    given
        Chosen rows whose places were theirs whatever their score, because they were required:
        what others lacked is not measured against them.

    Returns
    -------
    Explanation
        Of the picks and of all other rows.

    Examples
    --------
    Row 1 is nearly row 0 over again, and was left out for it.

    >>> c = [[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> why = explain(c, [0, 2])
    >>> why.picks[1].gain, why.picks[1].nearest
    (0.0, 0)
    >>> miss = why.left_out[0]
    >>> miss.nearest, miss.similarity, miss.lacked, round(miss.score.diversity, 4)
    (0, 0.9, 'diversity', -1.6607)
    """
    theta = check_theta(theta)
    c = as_similarity(similarity)
    n = c.shape[0]
    q = as_quality(quality, n)
    chosen = _distinct(indices, n)
    scoring = scoring or Scoring.of_kernel(similarity, quality, theta=theta)
    floor = scoring.floor + scoring.blur
    required = np.isin(chosen, np.asarray(given, dtype=np.intp))
    squares, own = _residuals(c, chosen, required, floor)
    scores = _diversity(squares, theta, floor)
    worth = scoring.weigh(q)
    alike = np.abs(c[:, chosen])
    alike[chosen, np.arange(chosen.size)] = -1.0
    nearest = chosen[alike.argmax(axis=1)]
    picks = []
    for step, row in enumerate(chosen.tolist()):
        score = Score(float(worth[row]), float(scores[step, row]))
        one = int(nearest[row]) if chosen.size > 1 else None
        gain = score.total if own[step] or theta == 1.0 else float("-inf")
        near = None if one is None else float(c[row, one])
        picks.append(Pick(row, float(q[row]), gain, score, one, near))
    totals = scores + worth
    winners = totals[np.arange(chosen.size), chosen][:, None]
    behind = winners - totals
    lost = np.where(np.abs(behind) <= TIE * np.maximum(1.0, np.abs(winners)), np.inf, behind)
    lost[required] = np.inf
    left_out = []
    for row in np.setdiff1d(np.arange(n), chosen).tolist():
        step = int(lost[:, row].argmin())
        left_out.append(
            Miss(
                row=row,
                quality=float(q[row]),
                step=step,
                winner=int(chosen[step]),
                score=Score(float(worth[row]), float(scores[step, row])),
                winning=picks[step].score,
                nearest=int(nearest[row]),
                similarity=float(c[row, nearest[row]]),
            )
        )
    return Explanation(tuple(picks), tuple(left_out))


def _distinct(indices: ArrayLike, n: int) -> IndexArray:
    chosen = np.asarray(indices)
    if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
        raise ValueError(f"indices must be a list of at least one row, got {indices!r}")
    if np.unique(chosen).size < chosen.size or chosen.min() < 0 or chosen.max() >= n:
        raise ValueError(f"indices must be distinct rows from 0 to {n - 1}, got {indices!r}")
    return chosen.astype(np.intp)


def _residuals(
    c: Float64Array, chosen: IndexArray, required: NDArray[np.bool_], floor: float
) -> tuple[Float64Array, list[bool]]:
    """Return every row's squared residual before each pick, and which picks were in the first
    search and brought a direction of their own.
    """
    n, m = c.shape[0], chosen.size
    squares = np.ones(n)
    basis = np.zeros((0, n))
    first = True
    table, own = np.empty((m, n)), []
    for step, row in enumerate(chosen.tolist()):
        if squares[row] <= floor and not required[step]:
            # No row that was still open added anything: the search went on afresh among them.
            squares, basis, first = np.ones(n), np.zeros((0, n)), False
        table[step] = squares
        fresh = bool(squares[row] > floor)
        own.append(first and fresh)
        if fresh:  # A required row may be in though it adds nothing.
            part = (c[row] - basis[:, row] @ basis) / np.sqrt(squares[row])
            basis = np.vstack([basis, part])
            squares = np.maximum(squares - part**2, 0.0)
    return table, own


def _diversity(squares: Float64Array, theta: float, floor: float) -> Float64Array:
    if theta == 1.0:
        return np.zeros_like(squares)
    return (1.0 - theta) * np.log(np.maximum(squares, floor))
