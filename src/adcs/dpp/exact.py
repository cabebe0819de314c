"""The true maximum of (1 - theta) log det C_S + theta sum q, and 1-swap improvement.

Branch and bound. A node has some rows in and some out; R is what remains of C for the free rows
outside the span of those that are in (a Schur complement), and some places are left. Blocks of
similar rows bound det R_T over the sets T that fill them. Where R has an inverse,
det R_T = det R det (R^-1)_{T^c} gives a second bound from the rows left out, which is often far
tighter. Both come for each free row in and out, so that a node also fixes rows and knows where
to branch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._types import Float64Array, IndexArray
from adcs.dpp.blocks import block_bounds
from adcs.dpp.constraints import Constraints, ResolvedConstraints
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import as_quality, as_similarity, check_theta, quality_precision
from adcs.dpp.selection import Selection
from adcs.dpp.tolerances import Scoring

_WELL_CONDITIONED = 1e-7  # smallest to largest eigenvalue from which R^-1 is trusted


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

    Meant for N up to about 30. The rows come in the order in which a greedy over the set alone
    takes them (required rows first), and gains belong to that order. Where greedy is optimal up
    to rounding, its set is returned; so it is where every set of m rows is linearly dependent.

    Parameters
    ----------
    similarity, m, quality, theta, constraints
        As in `greedy_map`.
    node_limit
        Largest number of nodes to bound. Similarities of a rank barely above m need most.

    Raises
    ------
    RuntimeError
        If node_limit is reached: the answer is never silently inexact.

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
    room = constraints.resolve(c.shape[0], m)
    _check_none_given(room)
    start = greedy_map(similarity, m, quality=quality, theta=theta, constraints=constraints)
    if theta == 1.0:  # a sum under caps: greedy is exact
        return start
    everyone = Constraints(candidates=constraints.candidates)
    if greedy_map(similarity, m, constraints=everyone).rank < m:  # no set has an objective
        return start
    better, _ = improve(start, similarity, quality=quality, theta=theta, constraints=constraints)
    search = _Search(
        theta=theta,
        floor=Scoring.of_kernel(similarity, quality, theta=theta).floor,
        margin=_margin(quality, q, theta, m),
        node_limit=node_limit,
        best=better.objective,
    )
    free = np.flatnonzero(room.allowed)
    root = _Node(c[np.ix_(free, free)], theta * q[free], free, m, room, room.caps, 0.0, ())
    fixed = np.isin(free, room.required)
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
    """Transport one chosen row for another while that helps; return the result and its gain.

    Each step makes the best of all swaps that the constraints allow. The gain is what the
    objective rose by, 0 if the selection is returned as it was. A selection of linearly dependent
    rows is left alone (theta < 1): its objective is -inf and no swap can be compared with it.

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
    room = constraints.resolve(n, m)
    _check_none_given(room)
    stranger = selection.indices[~room.allowed[selection.indices]]
    if stranger.size:
        raise ValueError(f"selection holds row {stranger[0]}, which is not among the candidates")
    first = now = _ordered(similarity, selection.indices, quality, theta, constraints)
    if not np.isfinite(first.objective):
        return selection, 0.0
    margin = _margin(quality, q, theta, m)
    for _ in range(max_swaps):
        inside = now.indices
        outside = np.setdiff1d(np.flatnonzero(room.allowed), inside)
        if outside.size == 0:
            break
        gains = _swap_gains(c, q, theta, room, inside, outside)
        i, j = np.unravel_index(int(gains.argmax()), gains.shape)
        if not gains[i, j] > margin:
            break
        swapped = np.append(np.delete(inside, i), outside[j])
        after = _ordered(similarity, swapped, quality, theta, constraints)
        if not after.objective > now.objective + margin:  # a gain made of rounding alone
            break
        now = after
    return (selection, 0.0) if now is first else (now, now.objective - first.objective)


def _check_none_given(room: ResolvedConstraints) -> None:
    if room.given.size:
        raise ValueError(f"given rows are for greedy_map only, got {room.given.tolist()}")


def _swap_gains(
    c: Float64Array,
    q: Float64Array,
    theta: float,
    room: ResolvedConstraints,
    inside: IndexArray,
    outside: IndexArray,
) -> Float64Array:
    """Return the gain of every swap, inside x outside, -inf where it is not allowed."""
    gains = theta * (q[outside] - q[inside][:, None])
    if theta < 1.0:
        inverse = np.linalg.inv(c[np.ix_(inside, inside)])
        cross = c[np.ix_(inside, outside)]
        coefficients = inverse @ cross
        residual = np.maximum(1.0 - (cross * coefficients).sum(axis=0), 0.0)
        # det C_{S - i + j} / det C_S = K_ii s_j + (K b_j)_i^2, with K the inverse of C_S.
        ratio = np.diagonal(inverse)[:, None] * residual + coefficients**2
        with np.errstate(divide="ignore"):
            gains = gains + (1.0 - theta) * np.log(ratio)
    taken = np.bincount(room.codes[inside], minlength=room.caps.size)
    full = (taken >= room.caps)[room.codes[outside]]
    same = room.codes[inside][:, None] == room.codes[outside]
    gains[full & ~same] = -np.inf
    gains[np.isin(inside, room.required)] = -np.inf
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
    """Return quality, or raise if sums of it could overflow: sets are compared by them."""
    q = as_quality(quality, n)
    with np.errstate(over="ignore"):
        if np.isfinite(2.0 * np.abs(q).sum()):
            return q
    raise ValueError(f"quality is too large to be added up: the largest is {np.abs(q).max():g}")


def _margin(quality: ArrayLike | None, q: Float64Array, theta: float, m: int) -> float:
    """Return the difference of objectives below which two sets count as equal."""
    return m * (1e-10 + 2 * quality_precision(quality) * theta * float(np.abs(q).max()))


@dataclass(frozen=True)
class _Node:
    """Rows in (`chosen`, worth `value`), free rows with their kernel, and places left."""

    kernel: Float64Array
    weight: Float64Array  # theta q
    rows: IndexArray
    places: int
    room: ResolvedConstraints
    caps: IndexArray
    value: float
    chosen: tuple[int, ...]


class _Search:
    """Depth-first branch and bound; `best` is the objective to beat."""

    def __init__(
        self, *, theta: float, floor: float, margin: float, node_limit: int, best: float
    ) -> None:
        self.theta, self.floor, self._margin = theta, floor, margin
        self._limit, self._nodes, self._best = node_limit, 0, best

    def run(self, root: _Node | None) -> IndexArray | None:
        """Return the best set, or None if nothing beats the objective known at the start."""
        found: IndexArray | None = None
        stack = [root]
        while stack:
            node = stack.pop()
            if node is None:
                continue
            if node.places == 0 or node.rows.size == node.places:
                value, rows = self._complete(node)
                if value > self._best + self._margin:
                    self._best, found = value, rows
                continue
            stack.extend(self._branch(node))
        return found

    def _complete(self, node: _Node) -> tuple[float, IndexArray]:
        everything = np.ones(node.rows.size, dtype=bool)
        last = _reduce(node, everything, ~everything, self) if node.places else node
        if last is None:
            return -np.inf, node.rows
        return last.value, np.array(last.chosen, dtype=np.intp)

    def _branch(self, node: _Node) -> list[_Node | None]:
        """Return what is left to search of a node, the more promising part last."""
        target = self._best + self._margin - node.value
        scores = (1.0 - self.theta) * np.log(np.diagonal(node.kernel)) + node.weight
        if np.sort(scores)[-node.places :].sum() <= target:  # residuals only shrink
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
        """Return upper bounds on what the places left can add, with and without each free row."""
        theta, free = self.theta, node.rows.size
        kernel, codes = node.kernel, node.room.codes[node.rows]
        with_row, without_row = block_bounds(
            kernel, node.weight, node.places, theta, self.floor, codes, node.caps, kept=True
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
            free - node.places,
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
    """Return the node with rows fixed in and out, None if nothing feasible is left."""
    kernel, caps, value, chosen = node.kernel, node.caps.copy(), node.value, node.chosen
    for i in np.flatnonzero(into):
        square = float(kernel[i, i])
        if square <= search.floor:
            return None
        value += (1.0 - search.theta) * float(np.log(square)) + float(node.weight[i])
        kernel = kernel - np.outer(kernel[i] / square, kernel[i])
        caps[node.room.codes[node.rows[i]]] -= 1
        chosen = (*chosen, int(node.rows[i]))
    places = node.places - int(into.sum())
    codes = node.room.codes[node.rows]
    keep = ~into & ~out & (caps[codes] > 0) & (np.diagonal(kernel) > search.floor)
    possible = int(np.minimum(np.bincount(codes[keep], minlength=caps.size), caps).sum())
    if caps.min() < 0 or not 0 <= places <= possible:
        return None
    left = kernel[np.ix_(keep, keep)]
    return _Node(left, node.weight[keep], node.rows[keep], places, node.room, caps, value, chosen)
