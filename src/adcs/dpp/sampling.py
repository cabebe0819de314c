"""Probabilities and exact samples of determinantal point processes with L = Q C Q.

The L-ensemble gives a set Z the probability det L_Z / det(L + I). The m-DPP is the same law given
|Z| = m, so its normaliser is the elementary symmetric polynomial e_m of L's eigenvalues
(Kulesza and Taskar 2011, "k-DPPs: fixed-size determinantal point processes"). Weights
exp(alpha q) may span thousands of orders of magnitude, so eigenvalues are kept as logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import lapack, solve_triangular

from adcs._types import Float64Array, IndexArray
from adcs._validation import as_array, brief
from adcs.dpp.constraints import Constraints
from adcs.dpp.greedy import greedy_map_trusted
from adcs.dpp.kernel import as_similarity, log_weights
from adcs.dpp.tolerances import Scorer

_GAP = 20.0  # singular values a factor of e^20 apart: e^-40 in L is below rounding
_RANGE = 300.0  # one factorisation can hold a range of e^300


def elementary_symmetric(log_values: ArrayLike, m: int) -> Float64Array:
    """Return the logarithms of e_k of the first j values, a table of (m + 1) x (n + 1).

    The last column holds log e_0 ... log e_m of all n values. Values are given by their
    logarithms. Every term is positive, so no digits cancel.

    >>> np.exp(elementary_symmetric(np.log([1.0, 2.0, 3.0]), 2)[:, -1]).round(9)
    array([ 1.,  6., 11.])
    """
    logs = np.asarray(log_values, dtype=np.float64)
    table = np.full((m + 1, logs.size + 1), -np.inf)
    table[0] = 0.0
    for j, value in enumerate(logs):
        table[1:, j + 1] = np.logaddexp(table[1:, j], value + table[:-1, j])
    return table


def log_probability(
    similarity: ArrayLike,
    subset: ArrayLike,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
) -> float:
    """Return log P(Z) = log det L_Z - log det(L + I), for a subset of any size.

    >>> log_probability([[1.0, 0.0], [0.0, 1.0]], [0])  # four sets, equally likely
    -1.386...
    """
    kernel = _Kernel.of(similarity, quality, theta)
    log_det = kernel.log_det(subset)
    log_eigenvalues, _ = kernel.spectrum()
    if np.size(subset) > log_eigenvalues.size:  # above the rank
        return -math.inf
    return log_det - float(np.logaddexp(0.0, log_eigenvalues).sum())


def log_probability_mdpp(
    similarity: ArrayLike,
    subset: ArrayLike,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
) -> float:
    """Return log P(Z) = log det L_Z - log e_m(L), the probability among sets of m = |Z| rows.

    >>> log_probability_mdpp([[1.0, 0.6], [0.6, 1.0]], [0])
    -0.693...
    """
    kernel = _Kernel.of(similarity, quality, theta)
    log_det = kernel.log_det(subset)
    m = np.size(subset)
    log_eigenvalues, _ = kernel.spectrum()
    _check_rank(m, log_eigenvalues.size)
    return log_det - float(elementary_symmetric(log_eigenvalues, m)[m, -1])


def sample_mdpp(
    similarity: ArrayLike,
    m: int,
    *,
    rng: np.random.Generator,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    size: int | None = None,
    given: ArrayLike = (),
) -> IndexArray:
    """Draw m rows from the m-DPP. The sampling is exact.

    Parameters
    ----------
    similarity, quality, theta
        C, q and theta of the kernel L; theta must be below 1.
    m
        How many rows to draw, at most the rank of C.
    rng
        Source of randomness; the same state gives the same rows.
    size
        How many samples; None means one.
    given
        Rows that are chosen already: m others are drawn, with probabilities proportional to the
        determinant of L over given and drawn rows together.

    Returns
    -------
    array
        Row indices in increasing order, of shape (m,) or (size, m).

    Examples
    --------
    >>> c = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]  # rows 0 and 1 are the same
    >>> sample_mdpp(c, 2, rng=np.random.default_rng(0), size=3)[:, 1]
    array([2, 2, 2])
    """
    kernel = _Kernel.of(similarity, quality, theta)
    n = kernel.similarity.shape[0]
    conditions = Constraints(given=as_array(given, "given").tolist()).resolve(n, m).given
    log_eigenvalues, vectors = kernel.spectrum(conditions)
    _check_rank(m, log_eigenvalues.size)
    table = elementary_symmetric(log_eigenvalues, m)
    draws = [
        _sample_projection(vectors[:, _sample_eigenvectors(table, log_eigenvalues, rng)], rng)
        for _ in range(1 if size is None else size)
    ]
    return draws[0] if size is None else np.array(draws, dtype=np.intp).reshape(-1, m)


def _check_rank(m: int, rank: int) -> None:
    if m > rank:
        raise ValueError(
            f"m = {m} is above the rank of similarity ({rank}): every set of {m} rows has "
            "probability zero"
        )


@dataclass(frozen=True)
class _Kernel:
    """L = Q C Q as C, log Q, and the rounding of C."""

    similarity: Float64Array
    log_weight: Float64Array
    scorer: Scorer

    @classmethod
    def of(cls, similarity: ArrayLike, quality: ArrayLike | None, theta: float) -> _Kernel:
        c = as_similarity(similarity)
        log_weight = log_weights(quality, c.shape[0], theta)
        scorer = Scorer.of_kernel(similarity, quality, theta=theta)
        return cls(c, log_weight, scorer)

    def log_det(self, subset: ArrayLike) -> float:
        """Return log det L_Z, -inf if the rows are linearly dependent."""
        n = self.similarity.shape[0]
        rows = as_array(subset, "subset")
        if rows.size == 0:
            return 0.0
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ValueError(f"subset must be a list of row indices, got {brief(subset)}")
        if rows.min() < 0 or rows.max() >= n or np.unique(rows).size < rows.size:
            raise ValueError(
                f"subset must hold distinct rows from 0 to {n - 1}, got {brief(subset)}"
            )
        # The rounding of C as it was given: float32's is far above that of `similarity`.
        scorer = replace(self.scorer, theta=0.0)
        chosen = greedy_map_trusted(self.similarity[np.ix_(rows, rows)], rows.size, scorer)
        return chosen.log_det + 2.0 * float(self.log_weight[rows].sum())

    def spectrum(self, given: ArrayLike = ()) -> tuple[Float64Array, Float64Array]:
        """Return the logarithms of L's nonzero eigenvalues, descending, and their eigenvectors.

        With given rows, those of L conditioned on them: its Schur complement.

        L = F F^T with F from a Cholesky factorisation that pivots on the weighted residual, so
        the columns of F are in decreasing size and well-conditioned once scaled. A Jacobi SVD
        then finds every singular value to full relative accuracy. Where the size of columns drops
        by more than e^20, the larger columns alone determine their eigenvectors.
        """
        factor, sizes = self._factor(np.asarray(given, dtype=np.intp))
        cuts = np.flatnonzero(sizes[:-1] - sizes[1:] > _GAP) + 1
        logs: list[Float64Array] = []
        vectors = np.empty((factor.shape[0], 0))
        for level in np.split(np.arange(sizes.size), cuts):
            spread = float(sizes[level[0]] - sizes[level[-1]])
            if spread > _RANGE:
                raise ValueError(
                    f"quality spreads the weights of L without a gap over e^{spread:.0f}, above "
                    f"e^{_RANGE:.0f}; lower theta or the scale of quality"
                )
            block = factor[:, level]
            for _ in range(2):  # a second pass removes the rounding of the first
                block = block - vectors @ (vectors.T @ block)
            block = block * np.exp(sizes[level] - sizes[level[0]])
            # joba=0: each column to its own accuracy; jobu=0: left vectors; jobv=3: no right ones.
            # jobt must be 0: with 1 LAPACK may transpose a square matrix, and then it works in
            # the array of right vectors, which SciPy does not allocate in full for jobv=3.
            values, left, _, work, _, info = lapack.dgejsv(
                block, joba=0, jobu=0, jobv=3, jobr=1, jobt=0, jobp=1
            )
            if info != 0:
                raise np.linalg.LinAlgError(f"the Jacobi SVD did not converge (info = {info})")
            scale = np.log(work[0] / work[1])
            logs.append(2.0 * (np.log(values) + scale + sizes[level[0]]))
            vectors = np.hstack([vectors, left])
        return np.concatenate(logs), vectors

    def _factor(self, given: IndexArray) -> tuple[Float64Array, Float64Array]:
        """Return F with columns scaled to a largest entry of 1, and the logarithms of scales.

        Given rows are the first pivots, and their columns are left out.
        """
        c, weight = self.similarity, self.log_weight
        n = c.shape[0]
        square, lower = np.ones(n), np.zeros((n, n))
        scaled, sizes = np.zeros((n, n)), np.zeros(n)
        rank, smallest, kept = 0, 1.0, 0
        pivots: list[int] = []
        is_given = np.isin(np.arange(n), given)
        while (free := np.flatnonzero(square > self.scorer.floor)).size:
            score = weight[free] + 0.5 * np.log(square[free])
            conditioning = bool(is_given[free].any())
            if conditioning:
                score[~is_given[free]] = -np.inf
            pivot = int(free[score.argmax()])
            if square[pivot] < self.scorer.recheck_threshold(smallest):
                coefficients = solve_triangular(lower[pivots, :rank].T, lower[pivot, :rank])
                if not self.scorer.is_significant(square[pivot], coefficients):
                    square[pivot] = 0.0  # only rounding
                    continue
            smallest = min(smallest, float(square[pivot]))
            pivots.append(pivot)
            root = float(np.sqrt(square[pivot]))
            # A pivot gets no more coordinates: its rounding, times a large weight, would exceed
            # the rows below it.
            column = np.zeros(n)
            column[free] = (c[free, pivot] - lower[free, :rank] @ lower[pivot, :rank]) / root
            column[pivot] = root
            lower[:, rank] = column
            if not conditioning:
                sizes[kept] = score.max()
                scaled[free, kept] = _times_exp(column[free], weight[free] - sizes[kept])
                kept += 1
            square[free] -= column[free] ** 2
            square[pivot] = 0.0
            rank += 1
        return scaled[:, :kept], sizes[:kept]


def _times_exp(values: Float64Array, exponents: Float64Array) -> Float64Array:
    """Return values * exp(exponents), where the product is in range but exp() may not be."""
    with np.errstate(divide="ignore"):
        product: Float64Array = np.sign(values) * np.exp(np.log(np.abs(values)) + exponents)
    return product


def _sample_eigenvectors(
    table: Float64Array, log_eigenvalues: Float64Array, rng: np.random.Generator
) -> list[int]:
    """Draw m eigenvectors, each set with probability proportional to its eigenvalues' product."""
    left = table.shape[0] - 1
    chosen = []
    for j in range(log_eigenvalues.size, 0, -1):
        if left == 0:
            break
        log_p = log_eigenvalues[j - 1] + table[left - 1, j - 1] - table[left, j]
        if j == left or np.log(rng.random()) < log_p:
            chosen.append(j - 1)
            left -= 1
    return chosen


def _sample_projection(vectors: Float64Array, rng: np.random.Generator) -> IndexArray:
    """Draw from the projection DPP with kernel V V^T, V orthonormal: one row for each column."""
    n, m = vectors.shape
    square = (vectors**2).sum(axis=1)
    lower = np.zeros((n, m))
    picks = np.empty(m, dtype=np.intp)
    for k in range(m):
        row = int(rng.choice(n, p=square / square.sum()))
        picks[k] = row
        column = vectors @ vectors[row] - lower[:, :k] @ lower[row, :k]
        lower[:, k] = column / np.sqrt(square[row])
        square = np.maximum(square - lower[:, k] ** 2, 0.0)
        square[picks[: k + 1]] = 0.0
    return np.sort(picks)
