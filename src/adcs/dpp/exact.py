"""The exact maximum of (1 - theta) log det C_S + theta sum q, and improvement by swaps.

The search is branch and bound. A node has some rows fixed in, some fixed out, and some slots left.
R is the Schur complement of the rows that are in, over the free rows. Blocks of similar rows bound
det R_T over the sets T that fill the slots (`adcs.dpp.exact_bounds`). If R has an inverse,
det R_T = det R det (R^-1)_{T^c} gives a second bound from the rows left out, which is often far
tighter. Both bounds are computed with each free row in and out, so a node also fixes rows and
finds the row to branch on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array, IndexArray
from adcs.dpp.constraints import Constraints, ResolvedConstraints
from adcs.dpp.exact_bounds import block_bounds
from adcs.dpp.greedy import Selection, greedy_map
from adcs.dpp.kernel import as_quality, as_similarity, check_theta
from adcs.dpp.tolerances import Scorer, set_tie

_WELL_CONDITIONED = 1e-7  # least ratio of smallest to largest eigenvalue at which R^-1 is used


def exact_map(
    similarity: ArrayLike,
    m: int,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    constraints: Constraints = Constraints(),  # noqa: B008 - frozen
    node_limit: int = 20_000,
) -> Selection:
    """Choose the m rows that maximise the objective, by branch and bound.

    Suitable for N up to about 30. The rows are in the order in which a greedy search over the set
    alone picks them (required rows first), and gains belong to that order. If greedy is optimal
    up to rounding, or every set of m rows is linearly dependent, the greedy set is returned.

    Parameters
    ----------
    similarity, m, quality, theta, constraints
        As in `greedy_map`.
    node_limit
        Largest number of nodes to bound. A similarity whose rank is just above m needs the most.

    Raises
    ------
    RuntimeError
        If node_limit is reached before the optimum is proved.

    Examples
    --------
    >>> c = [[1.0, 0.5, 0.5, 0.7], [0.5, 1.0, -0.4, 0.0], [0.5, -0.4, 1.0, 0.1],
    ...      [0.7, 0.0, 0.1, 1.0]]
    >>> greedy_map(c, 2, constraints=Constraints(required=[0])).indices
    array([0, 1])
    >>> exact_map(c, 2).indices
    array([1, 3])
    """
    theta = check_theta(theta)
    c = as_similarity(similarity)
    q = _summable(quality, c.shape[0])
    resolved = constraints.resolve(c.shape[0], m)
    start = greedy_map(similarity, m, quality=quality, theta=theta, constraints=constraints)
    if theta == 1.0:  # a sum under caps: greedy is exact
        return start
    free_choice = Constraints(candidates=constraints.candidates, given=constraints.given)
    if greedy_map(similarity, m, constraints=free_choice).rank < m:  # every objective is -inf
        return start
    better, _ = improve(start, similarity, quality=quality, theta=theta, constraints=constraints)
    floor = Scorer.of_kernel(similarity, quality, theta=theta).floor
    search = _Search(
        theta=theta,
        floor=floor,
        margin=set_tie(quality, theta, m),
        node_limit=node_limit,
        best=better.objective,
    )
    free = np.flatnonzero(resolved.allowed)
    kernel = _conditioned(c, resolved.given, floor)[np.ix_(free, free)]
    root = _Node(kernel, theta * q[free], free, m, resolved, resolved.caps, 0.0, ())
    fixed = np.isin(free, resolved.required)
    found = search.run(_reduce(root, fixed, np.zeros_like(fixed), search))
    if found is None:
        return better
    best = _ordered(similarity, found, quality, theta, constraints)
    # Rows at the edge of dependence may lose their rank in another order.
    return best if best.objective > better.objective else better


def improve(
    selection: Selection,
    similarity: ArrayLike,
    *,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    constraints: Constraints = Constraints(),  # noqa: B008 - frozen
    max_swaps: int = 100,
) -> tuple[Selection, float]:
    """Swap chosen rows for others while that helps; return the result and its gain.

    Each step makes the best of all swaps that the constraints allow. The gain is the increase of
    the objective, 0 if the selection is returned unchanged. A selection of linearly dependent
    rows is returned unchanged (theta < 1): its objective is -inf, so swaps cannot be compared.

    Parameters
    ----------
    selection
        The set to start from.
    similarity, quality, theta, constraints
        As in `greedy_map`.
    max_swaps
        The largest number of swaps.

    Examples
    --------
    >>> c = [[1.0, 0.5, 0.5, 0.7], [0.5, 1.0, -0.4, 0.0], [0.5, -0.4, 1.0, 0.1],
    ...      [0.7, 0.0, 0.1, 1.0]]
    >>> start = greedy_map(c, 2)
    >>> better, gain = improve(start, c)
    >>> start.indices, better.indices, round(gain, 3)
    (array([0, 1]), array([1, 3]), 0.288)
    """
    theta = check_theta(theta)
    c = as_similarity(similarity)
    n, m = c.shape[0], selection.indices.size
    q = _summable(quality, n)
    resolved = constraints.resolve(n, m)
    excluded = selection.indices[~resolved.allowed[selection.indices]]
    if excluded.size:
        raise ValueError(f"selection holds row {excluded[0]}, which is not among the candidates")
    first = now = _ordered(similarity, selection.indices, quality, theta, constraints)
    if not np.isfinite(first.objective):
        return selection, 0.0
    margin = set_tie(quality, theta, m)
    kernel = _conditioned(
        c, resolved.given, Scorer.of_kernel(similarity, quality, theta=theta).floor
    )
    for _ in range(max_swaps):
        inside = now.indices
        outside = np.setdiff1d(np.flatnonzero(resolved.allowed), inside)
        if outside.size == 0:
            break
        gains = _swap_gains(kernel, q, theta, resolved, inside, outside)
        i, j = np.unravel_index(int(gains.argmax()), gains.shape)
        if not gains[i, j] > margin:
            break
        swapped = np.append(np.delete(inside, i), outside[j])
        after = _ordered(similarity, swapped, quality, theta, constraints)
        if not after.objective > now.objective + margin:  # the gain was rounding
            break
        now = after
    return (selection, 0.0) if now is first else (now, now.objective - first.objective)


def _conditioned(c: Float64Array, given: IndexArray, floor: float) -> Float64Array:
    """Return C conditioned on rows that are chosen already: the Schur complement of their block."""
    for row in given:
        if c[row, row] > floor:
            c = c - np.outer(c[row] / c[row, row], c[row])
    return c


def _swap_gains(
    c: Float64Array,
    q: Float64Array,
    theta: float,
    resolved: ResolvedConstraints,
    inside: IndexArray,
    outside: IndexArray,
) -> Float64Array:
    """Return the gain of every swap, inside x outside, -inf where it is not allowed."""
    gains = theta * (q[outside] - q[inside][:, None])
    if theta < 1.0:
        inverse = np.linalg.inv(c[np.ix_(inside, inside)])
        cross = c[np.ix_(inside, outside)]
        coefficients = inverse @ cross
        residual = np.maximum(c.diagonal()[outside] - (cross * coefficients).sum(axis=0), 0.0)
        # det C_{S - i + j} / det C_S = K_ii s_j + (K b_j)_i^2, with K the inverse of C_S.
        ratio = np.diagonal(inverse)[:, None] * residual + coefficients**2
        with np.errstate(divide="ignore"):
            gains = gains + (1.0 - theta) * np.log(ratio)
    taken = np.bincount(resolved.codes[inside], minlength=resolved.caps.size)
    full = (taken >= resolved.caps)[resolved.codes[outside]]
    same = resolved.codes[inside][:, None] == resolved.codes[outside]
    gains[full & ~same] = -np.inf
    gains[np.isin(inside, resolved.required)] = -np.inf
    return gains


def _ordered(
    similarity: ArrayLike,
    rows: ArrayLike,
    quality: ArrayLike | None,
    theta: float,
    constraints: Constraints,
) -> Selection:
    """Return the set as a Selection, in greedy order."""
    index = np.sort(np.asarray(rows, dtype=np.intp))
    within = replace(constraints, candidates=index)
    return greedy_map(similarity, index.size, quality=quality, theta=theta, constraints=within)


def _summable(quality: ArrayLike | None, n: int) -> Float64Array:
    """Return quality, or raise if a sum of it could overflow."""
    q = as_quality(quality, n)
    with np.errstate(over="ignore"):
        if np.isfinite(2.0 * np.abs(q).sum()):
            return q
    raise ValueError(f"quality is too large to be added up: the largest is {np.abs(q).max():g}")


@dataclass(frozen=True)
class _Node:
    """The rows chosen and their objective, the free rows with their kernel, and the slots left."""

    kernel: Float64Array
    weight: Float64Array  # theta q
    rows: IndexArray
    slots: int
    resolved: ResolvedConstraints
    caps: IndexArray
    value: float
    chosen: tuple[int, ...]


class _Search:
    """Depth-first branch and bound; `best` is the objective of the best set known."""

    def __init__(
        self, *, theta: float, floor: float, margin: float, node_limit: int, best: float
    ) -> None:
        self.theta, self.floor, self._margin = theta, floor, margin
        self._limit, self._nodes, self._best = node_limit, 0, best

    def run(self, root: _Node | None) -> IndexArray | None:
        """Return the best set, or None if none is better than the one known at the start."""
        found: IndexArray | None = None
        stack = [root]
        while stack:
            node = stack.pop()
            if node is None:
                continue
            if node.slots == 0 or node.rows.size == node.slots:
                value, rows = self._complete(node)
                if value > self._best + self._margin:
                    self._best, found = value, rows
                continue
            stack.extend(self._branch(node))
        return found

    def _complete(self, node: _Node) -> tuple[float, IndexArray]:
        everything = np.ones(node.rows.size, dtype=bool)
        last = _reduce(node, everything, ~everything, self) if node.slots else node
        if last is None:
            return -np.inf, node.rows
        return last.value, np.array(last.chosen, dtype=np.intp)

    def _branch(self, node: _Node) -> list[_Node | None]:
        """Return the child nodes, the more promising one last."""
        target = self._best + self._margin - node.value
        scores = (1.0 - self.theta) * np.log(np.diagonal(node.kernel)) + node.weight
        if np.sort(scores)[-node.slots :].sum() <= target:  # residuals only shrink
            return []
        self._nodes += 1
        if self._nodes > self._limit:
            raise RuntimeError(
                f"node_limit = {self._limit} was reached before an optimum was proved; raise "
                "node_limit, or use greedy_map and improve"
            )
        with_row, without_row = self._bounds(node, target)
        out, into = with_row <= target, without_row <= target
        if (out & into).any():
            return []
        if (out | into).any():
            return [_reduce(node, into, out, self)]
        pick = np.zeros(node.rows.size, dtype=bool)
        pick[((with_row - target) * (without_row - target)).argmin()] = True
        none = np.zeros_like(pick)
        parts = [_reduce(node, none, pick, self), _reduce(node, pick, none, self)]
        return parts if with_row[pick] >= without_row[pick] else parts[::-1]

    def _bounds(self, node: _Node, target: float) -> tuple[Float64Array, Float64Array]:
        """Return upper bounds on what the free slots can add, with and without each free row."""
        theta, free = self.theta, node.rows.size
        kernel, codes = node.kernel, node.resolved.codes[node.rows]
        with_row, without_row = block_bounds(
            kernel, node.weight, node.slots, theta, self.floor, codes, node.caps, kept=True
        )
        spectrum = np.linalg.eigvalsh(kernel)
        if max(with_row[0], without_row[0]) <= target or (
            spectrum[0] <= _WELL_CONDITIONED * spectrum[-1]
        ):
            return with_row, without_row
        inverse = np.linalg.inv(kernel)
        left_out, left_in = block_bounds(
            (inverse + inverse.T) / 2,
            -node.weight,
            free - node.slots,
            theta,
            self.floor,
            codes,
            node.caps,
            kept=False,
        )
        whole = (1.0 - theta) * float(np.log(spectrum).sum()) + float(node.weight.sum())
        return np.minimum(with_row, left_in + whole), np.minimum(without_row, left_out + whole)


def _reduce(
    node: _Node, into: NDArray[np.bool_], out: NDArray[np.bool_], search: _Search
) -> _Node | None:
    """Return the node with rows fixed in and out, None if no set is feasible."""
    kernel, caps, value, chosen = node.kernel, node.caps.copy(), node.value, node.chosen
    for i in np.flatnonzero(into):
        square = float(kernel[i, i])
        if square <= search.floor:
            return None
        value += (1.0 - search.theta) * float(np.log(square)) + float(node.weight[i])
        kernel = kernel - np.outer(kernel[i] / square, kernel[i])
        caps[node.resolved.codes[node.rows[i]]] -= 1
        chosen = (*chosen, int(node.rows[i]))
    slots = node.slots - int(into.sum())
    codes = node.resolved.codes[node.rows]
    keep = ~into & ~out & (caps[codes] > 0) & (np.diagonal(kernel) > search.floor)
    possible = int(np.minimum(np.bincount(codes[keep], minlength=caps.size), caps).sum())
    if caps.min() < 0 or not 0 <= slots <= possible:
        return None
    left = kernel[np.ix_(keep, keep)]
    return _Node(
        left, node.weight[keep], node.rows[keep], slots, node.resolved, caps, value, chosen
    )
