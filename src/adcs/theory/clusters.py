"""Theorem 1: a bound on the bias if updates form clusters, and a check of its assumption.

The clusters C_1 .. C_K have representatives c_k. r is how far an update lies from its own, mu the
largest |cosine| between two of them, kappa the smallest of their norms. Assumption 1 requires
small mu and r. Then every exact MAP cohort of m <= K clients takes m distinct clusters, and

    ||g_S - g_N|| <= || sum_k (1{k in T}/m - n_k/N) c_k || + 2 r,

T being the clusters taken. With weights p, 1/m and n_k/N become the cluster's weight in the cohort
and in the population; the choice does not depend on p, so nothing else changes.

The last step of the proof does not need distinct clusters. With A_k, the weight of cluster k in
the cohort, and a_i - p_i as in `adcs.theory.bias`,

    ||g_S - g_N|| <= || sum_k (A_k - P_k) c_k || + r sum_i |a_i - p_i|

holds for every cohort, m > K and greedy ones too; it is `mass_bound` here. Where m distinct
clusters are taken it is at most the theorem's bound, since sum |a_i - p_i| <= 2.

All of it can be computed from inner products between updates.

`find_clusters` finds clusters where no labels are given. Clients are merged by average linkage on
cosine distance. Of the tree's cuts into K clusters it takes the one with the largest mean
silhouette that meets two conditions:

- At least two clusters have two members or more, and the mean silhouette inside each of these is
  at least SUBSTANTIAL. One large cluster with a few outliers, or noise of unequal size, has no
  such cut.
- The mean silhouette is above that of ROTATIONS random rotations of the same data. If updates are
  a sample of one normal distribution, of any mean and covariance, then G and R G have the same
  distribution for every orthogonal R with R 1 = 1. So Gram matrices R L R^T show the silhouettes
  of data without clusters, and a cut that beats all of them has a p-value of 1 / (ROTATIONS + 1).
  Only inner products are needed.

If no cut meets both, there is no cluster structure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import linkage
from scipy.optimize import brentq
from scipy.spatial.distance import squareform

from adcs._types import Float64Array, IndexArray
from adcs.dpp.exact import exact_map
from adcs.dpp.kernel import alpha, as_quality, as_rows, check_m, row_norms
from adcs.metrics import selection_bias
from adcs.theory.gram import as_weights, cohort_shares, cosines, gram_matrix, quadratic

UNIT = 2.0**-53
"""The relative rounding of one operation in float64."""

SUBSTANTIAL = 0.25
"""Mean silhouettes below this show no substantial structure (Kaufman and Rousseeuw 1990)."""

ROTATIONS = 99
"""How many random rotations a cut must beat."""

EXACT = 1e-9
"""Distances and silhouettes this close to those of identical updates count as equal to them."""


class Condition(NamedTuple):
    """One inequality, `value` below `limit`.

    >>> print(Condition("r < kappa", 2.0, 1.5, holds=False))
    r < kappa fails by 0.5 (2 against 1.5)
    """

    name: str
    value: float
    limit: float
    holds: bool

    @property
    def margin(self) -> float:
        """The limit minus the value, negative if the condition fails."""
        return self.limit - self.value

    def __str__(self) -> str:
        if self.holds:
            return f"{self.name} holds ({self.value:.3g} against {self.limit:.3g})"
        by = f"{-self.margin:.3g}" if self.margin < 0.0 else "equality"
        return f"{self.name} fails by {by} ({self.value:.3g} against {self.limit:.3g})"


@dataclass(frozen=True)
class ClusterCheck:
    """Theorem 1 on one federation: its quantities, conditions and bound, and the actual bias.

    Attributes
    ----------
    labels
        The cluster of each client, 0 .. K-1.
    chosen
        The cohort, an exact MAP solution unless another was given.
    r, mu, kappa
        Spread inside clusters, largest |cosine| between them, smallest norm of a representative.
    log_w
        log w_i = 2 alpha q_i for each client; w itself may overflow.
    log_q_m
        log Q_m, the largest product of m clusters' best w; nan if m > K.
    rho
        sqrt(1 - (m - 1) mu) - 2 r sqrt(m) / kappa; nan if there is no such root.
    r_star
        The r up to which distinct clusters always win; nan if it is not defined.
    conditions
        The theorem's conditions. Conditions on r that are defined only if mu < 1/(m-1), or m <= K,
        are left out if that fails.
    distinct
        Whether the cohort takes m distinct clusters.
    bound
        The right-hand side of Theorem 1 at this cohort. It is guaranteed if `distinct`.
    mass_bound
        The bound from the cohort's cluster weights, which always holds.
    bias
        ||g_S - g_N||.
    slack
        The largest error of the bound by rounding: a bias is certainly above the bound only if it
        exceeds `bound + slack`.

    Examples
    --------
    >>> check = check_clusters([[1.0, 0.0], [0.0, 1.0]], m=2, labels=["a", "b"])
    >>> check.distinct, check.bias, check.failed
    (True, 0.0, ())
    """

    labels: IndexArray
    chosen: IndexArray
    r: float
    mu: float
    kappa: float
    log_w: Float64Array
    log_q_m: float
    rho: float
    r_star: float
    conditions: tuple[Condition, ...]
    distinct: bool
    bound: float
    mass_bound: float
    bias: float
    slack: float

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the conditions that fail."""
        return tuple(c.name for c in self.conditions if not c.holds)

    @property
    def holds(self) -> bool:
        """Whether m <= K and Assumption 1 hold."""
        return not self.failed

    @property
    def verdict(self) -> str:
        """The result as text."""
        m = self.chosen.size
        if self.holds:
            first = f"Theorem 1 applies: every exact MAP cohort of {m} takes {m} distinct clusters."
        else:
            failures = "; ".join(str(c) for c in self.conditions if not c.holds)
            first = f"Theorem 1 does not apply: {failures}."
        taken = np.unique(self.labels[self.chosen]).size
        if self.distinct:
            second = f"This cohort takes {m} distinct clusters, so its bias is at most"
            return f"{first} {second} {self.bound:.3g}; it is {self.bias:.3g}."
        second = f"This cohort of {m} takes {taken} clusters: its bias, {self.bias:.3g}, is under"
        return f"{first} {second} {self.mass_bound:.3g} by its cluster weights."


def check_clusters(
    updates: ArrayLike | None = None,
    *,
    m: int,
    gram: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    representatives: ArrayLike | None = None,
    quality: ArrayLike | None = None,
    theta: float = 0.0,
    weights: ArrayLike | None = None,
    chosen: ArrayLike | None = None,
    rounding: float = 0.0,
) -> ClusterCheck:
    """Check Theorem 1's conditions and return its bound beside the actual bias.

    Parameters
    ----------
    updates
        N x d, one row for each client; or pass `gram`.
    m
        Cohort size.
    gram
        N x N inner products of updates, instead of them.
    labels
        The cluster of each client; None finds clusters (see `find_clusters`), and it is an error
        if there is no cluster structure.
    representatives
        The vectors c_k, K x d, in the order of sorted labels; with `gram`, K x N coefficients
        over the updates. None means each cluster's mean.
    quality, theta
        Quality scores q and their weight in the objective, below 1.
    weights
        The clients' weights p; None means uniform.
    chosen
        The cohort; None finds an exact MAP solution, which is suitable for N up to about 30.
    rounding
        The relative error of the given entries of `gram`; that of float64 arithmetic is added.

    Examples
    --------
    >>> updates = [[1.0, 0.02, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.02], [0.0, 1.0, 0.0]]
    >>> check = check_clusters(updates, m=2, labels=[0, 0, 1, 1])
    >>> check.holds, check.bias <= check.bound
    (True, True)
    >>> print(check_clusters(updates, m=3, labels=[0, 0, 1, 1], chosen=[0, 1, 2]).verdict)
    Theorem 1 does not apply: m <= K fails by 1 (3 against 2). This cohort of 3 takes 2 clusters:
    its bias, 0.235, is under 0.24 by its cluster weights.
    """
    matrix = gram_matrix(updates, gram)
    n = matrix.shape[0]
    m = check_m(m, n)
    if theta == 1.0:
        raise ValueError("theta = 1 has no kernel: Theorem 1 needs theta below 1")
    q = as_quality(quality, n)
    p = as_weights(weights, n)
    if labels is None:
        found = find_clusters(gram=matrix)
        if found is None:
            raise ValueError("labels must be given: no cluster structure found in these updates")
        codes = found
    else:
        codes = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1).astype(np.intp)
        if codes.size != n:
            raise ValueError(
                f"labels must name a cluster for each of {n} clients, got {codes.size}"
            )
    k = int(codes.max()) + 1
    member = np.equal.outer(np.arange(k), codes).astype(np.float64)
    inner, r, error = _representatives(
        matrix, updates, representatives, member * p, codes, rounding
    )
    kappa = float(np.sqrt(max(float(inner.diagonal().min()), 0.0)))
    mu = _separation(inner)
    log_w = 2.0 * alpha(theta) * q
    best = np.sort([log_w[codes == c].max() for c in range(k)])[::-1]
    log_q_m = float(best[:m].sum()) if m <= k else math.nan
    excess = m * float(log_w.max()) - log_q_m
    slack = 1.0 - (m - 1) * mu
    rho = math.sqrt(slack) - _ratio(2.0 * r * math.sqrt(m), kappa) if slack > 0.0 else math.nan
    r_star = kappa * _root(m, slack, excess) if slack > 0.0 and m <= k else math.nan
    conditions = _conditions(m, k, r, mu, kappa, slack, r_star)
    if chosen is None:
        index = exact_map(cosines(matrix), m, quality=q, theta=theta).indices
    else:
        index = np.asarray(chosen, dtype=np.intp)
        if index.size != m:
            raise ValueError(f"chosen must hold m = {m} clients, got {index.size}")
    a = cohort_shares(index, n, p)
    taken = np.unique(codes[index])
    distinct = taken.size == m
    # Theorem 1 gives 1/m to each cluster taken; with weights, the member's weight.
    share = member @ a if distinct else np.isin(np.arange(k), taken) / m
    norm = quadratic(inner, share - member @ p)
    return ClusterCheck(
        labels=codes,
        chosen=index,
        r=r,
        mu=mu,
        kappa=kappa,
        log_w=log_w,
        log_q_m=log_q_m,
        rho=rho,
        r_star=r_star,
        conditions=conditions,
        distinct=distinct,
        bound=norm + 2.0 * r,
        mass_bound=quadratic(inner, member @ (a - p)) + r * float(np.abs(a - p).sum()),
        bias=selection_bias(matrix, a, p),
        slack=error.of(norm, share - member @ p)
        + 2.0 * error.r
        # The weights themselves are rounded, which matters if their differences are zero.
        + 4.0 * UNIT * float((a + p) @ np.sqrt(matrix.diagonal())),
    )


class _Error(NamedTuple):
    """Bounds on the rounding of ||sum_k x_k c_k|| and of r.

    Every quantity is a norm ||G v||, v its coefficients over the updates, computed as the root of
    v^T L v. The entries of L are off by at most eps ||g_i|| ||g_j||. Here eps is the error they
    were given with (by Cauchy and Schwarz |L_ij| <= ||g_i|| ||g_j||), and UNIT for each of
    the additions on the way: d in an inner product of float64 rows of length d, 2 N in the form
    itself (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1). So

        | fl(v^T L v) - ||G v||^2 | <= eps s^2,    s = sum_i |v_i| ||g_i||,

    and ||G v|| <= sqrt(fl + eps s^2). For one cluster's representative s is its entry in `sizes`.
    """

    eps: float
    sizes: Float64Array
    r: float

    def of(self, norm: float, shares: Float64Array) -> float:
        return _missing(norm, self.eps, float(np.abs(shares) @ self.sizes))


def _missing(norm: float, eps: float, size: float) -> float:
    return math.sqrt(norm**2 + eps * size**2) - norm


def _representatives(
    gram: Float64Array,
    updates: ArrayLike | None,
    representatives: ArrayLike | None,
    mass: Float64Array,
    codes: IndexArray,
    rounding: float,
) -> tuple[Float64Array, float, _Error]:
    """Return the inner products <c_k, c_l>, r, and bounds on their rounding errors."""
    k, n = mass.shape
    rows = None if updates is None else as_rows(updates).astype(np.float64, copy=False)
    given = mass / mass.sum(axis=1, keepdims=True)
    if representatives is not None:
        given = as_rows(representatives, "representatives").astype(np.float64, copy=False)
        shape = (k, n if rows is None else rows.shape[1])
        if given.shape != shape:
            raise ValueError(f"representatives must have shape {shape}, got {given.shape}")
    elif rows is not None:
        given = given @ rows
    eps = rounding + (2 * n + (0 if rows is None else rows.shape[1])) * UNIT
    if rows is not None:
        # Not from inner products, which lose half of the digits for nearly equal vectors.
        sizes = row_norms(given)
        largest = float(row_norms(rows).max() + sizes.max())
        r = float(row_norms(rows - given[codes]).max())
        return given @ given.T, r, _Error(eps, sizes, eps * largest)
    cross = given @ gram
    inner = cross @ given.T
    square = gram.diagonal() - 2.0 * cross[codes, np.arange(n)] + inner.diagonal()[codes]
    r = float(np.sqrt(max(float(square.max()), 0.0)))
    norms = np.sqrt(gram.diagonal())
    apart = float((np.abs(np.eye(n) - given[codes]) @ norms).max())
    return inner, r, _Error(eps, np.abs(given) @ norms, _missing(r, eps, apart))


def _separation(inner: Float64Array) -> float:
    """Return mu; 0 for one cluster, and representatives of norm zero do not count."""
    norms = np.sqrt(np.maximum(inner.diagonal(), 0.0))
    kept = norms > 0.0
    if np.count_nonzero(kept) < 2:
        return 0.0
    c = np.abs(inner[np.ix_(kept, kept)] / norms[kept][:, None] / norms[kept][None, :])
    np.fill_diagonal(c, 0.0)
    return float(c.max())


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0.0 else (math.inf if a > 0.0 else 0.0)


def _root(m: int, slack: float, excess: float) -> float:
    """Return x = r_star / kappa: the root of rho^m = 4 x exp(excess / 2), rho = s - 2 x sqrt(m).

    This is the square root of Q_m rho^{2m} = 16 x^2 w^m. On 0 < x < s / (2 sqrt(m)) the left side
    falls to zero and the right one rises, so there is exactly one root, never none. It is sought
    in log x, for excess = m log w - log Q_m may be in the thousands.
    """
    s = math.sqrt(slack)
    end = s / (2.0 * math.sqrt(m))

    def gap(u: float) -> float:
        rho = max(s - 2.0 * math.sqrt(m) * math.exp(u), 1e-300)
        return m * math.log(rho) - math.log(4.0) - u - 0.5 * excess

    low = min(math.log(0.5 * end), m * math.log(0.5 * s) - math.log(4.0) - 0.5 * excess) - 1.0
    return math.exp(brentq(gap, low, math.log(end), xtol=1e-14))


def _conditions(
    m: int, k: int, r: float, mu: float, kappa: float, slack: float, r_star: float
) -> tuple[Condition, ...]:
    conditions = [Condition("m <= K", m, k, m <= k)]
    if m > 1 and k > 1:
        conditions.append(Condition("mu < 1/(m-1)", mu, 1.0 / (m - 1), slack > 0.0))
    conditions.append(Condition("r < kappa", r, kappa, r < kappa))
    if slack > 0.0:
        limit = 0.5 * kappa * math.sqrt(slack / m)
        conditions.append(Condition("r < kappa/2 sqrt((1-(m-1)mu)/m)", r, limit, r < limit))
    if not math.isnan(r_star):
        conditions.append(Condition("r < r_star", r, r_star, r < r_star))
    return tuple(conditions)


class StrongClusterBounds(NamedTuple):
    """Corollary 1: Theorem 1's bound and the general one, side by side.

    >>> StrongClusterBounds(cluster=0.3, general=0.7).cluster
    0.3
    """

    cluster: float
    general: float


def strong_cluster_bounds(n: int, k: int, m: int) -> StrongClusterBounds:
    """Return Corollary 1's sqrt((K-m)/(K m)) beside the general bound sqrt((N-m)/(K m)).

    The setting: N clients in K clusters of equal size, r = 0, representatives orthonormal. Every
    cohort of m distinct clusters meets the first with equality.

    >>> strong_cluster_bounds(30, 10, 5)
    StrongClusterBounds(cluster=0.316..., general=0.707...)
    """
    if not 1 <= k <= n or n % k:
        raise ValueError(f"clusters of equal size need K that divides N, got N = {n}, K = {k}")
    if not 1 <= m <= k:
        raise ValueError(f"Corollary 1 needs m between 1 and K = {k}, got {m}")
    return StrongClusterBounds(math.sqrt((k - m) / (k * m)), math.sqrt((n - m) / (k * m)))


def find_clusters(
    updates: ArrayLike | None = None, *, gram: ArrayLike | None = None, k: int | None = None
) -> IndexArray | None:
    """Return a cluster for each client, 0 .. K-1, or None if there is no cluster structure.

    Only directions count. Updates with the same direction are one cluster; otherwise K is at least
    2. The rotations are seeded, so the same updates give the same result.

    Parameters
    ----------
    updates, gram
        Updates, a row for each client, or their inner products.
    k
        Number of clusters, whether there is structure or not; None determines it.

    Examples
    --------
    >>> find_clusters([[1, 0.1], [1, 0], [0, 1], [0.1, 1], [1, -0.1], [-0.1, 1]])
    array([0, 0, 1, 1, 0, 1])
    >>> noise = np.random.default_rng(0).normal(size=(20, 400)) + 0.3
    >>> find_clusters(noise) is None
    True
    """
    c = cosines(gram_matrix(updates, gram))
    n = c.shape[0]
    if k is not None:
        k = check_m(k, n)
    elif float(c.min()) >= 1.0 - EXACT:
        k = 1
    if n == 1 or k == 1:
        return np.zeros(n, dtype=np.intp)
    distances = 1.0 - c
    tree = _tree(distances)
    if k is None:
        found, silhouette = _best_cut(distances, tree)
        # Clusters of identical updates have silhouette 1, which noise never has.
        if found is None or (
            silhouette < 1.0 - EXACT
            and any(
                _best_cut(other, _tree(other))[1] >= silhouette for other in _rotated_distances(c)
            )
        ):
            return None
        k = found
    return _cut(tree, k)


def _tree(distances: Float64Array) -> Float64Array:
    tree: Float64Array = linkage(squareform(distances, checks=False), method="average")
    return tree


def _cut(tree: Float64Array, k: int) -> IndexArray:
    """Return the k clusters of a tree, numbered in the order of their first client."""
    n = tree.shape[0] + 1
    codes: IndexArray = np.arange(n)
    for merge, (one, other) in enumerate(tree[: n - k, :2].astype(np.intp)):
        codes[(codes == one) | (codes == other)] = n + merge
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    names: IndexArray = np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.intp)
    return names


def _best_cut(distances: Float64Array, tree: Float64Array) -> tuple[int | None, float]:
    """Return K and the mean silhouette of the best substantial cut, or None and 0.

    A client's silhouette is (b - a) / max(a, b), with a its mean distance to the others of its
    own cluster and b that to the nearest other cluster; a client alone has 0. Merges are applied
    one by one. A merged cluster is no nearer to a client than its two parts were, so b changes
    only if one of these was the nearest.
    """
    n = distances.shape[0]
    mean = distances.copy()  # to each cluster, which is held in the column of one of its parts
    other = distances.copy()  # the same, without the client's own cluster
    np.fill_diagonal(other, np.inf)
    nearest = other.argmin(axis=1)
    b = other[np.arange(n), nearest]
    a, s = np.zeros(n), np.zeros(n)
    size: Float64Array = np.ones(n)
    column: IndexArray = np.arange(n)
    held = list(range(n))
    best: tuple[int | None, float] = (None, 0.0)
    for merge, (one, two) in enumerate(tree[: n - 2, :2].astype(np.intp).tolist()):
        kept, gone = held[one], held[two]
        held.append(kept)
        both = size[kept] + size[gone]
        joint = (size[kept] * mean[:, kept] + size[gone] * mean[:, gone]) / both
        size[kept], size[gone] = both, 0.0
        column[column == gone] = kept
        members = column == kept
        mean[:, kept] = other[:, kept] = joint
        other[members, kept] = np.inf
        other[:, gone] = np.inf
        moved = ((nearest == kept) | (nearest == gone)).nonzero()[0]
        nearest[moved] = other[moved].argmin(axis=1)
        b[moved] = other[moved, nearest[moved]]
        a[members] = joint[members] * (both / (both - 1.0))
        grouped = size[column] > 1.0
        s[grouped] = (b - a)[grouped] / np.maximum(np.maximum(a, b)[grouped], EXACT)
        silhouette = float(s.mean())
        if silhouette > best[1]:
            crowds = size > 1.0
            inside = np.bincount(column, weights=s, minlength=n)[crowds] / size[crowds]
            if inside.size >= 2 and inside.min() >= SUBSTANTIAL:
                best = (n - merge - 1, silhouette)
    return best


def _rotated_distances(c: Float64Array) -> Iterator[Float64Array]:
    """Yield the cosine distances of R G for random R that are orthogonal and keep R 1 = 1.

    In coordinates whose first axis is 1, R = diag(1, Q) with Q uniform among orthogonal matrices.
    With V D V^T the rest of C in these coordinates, Q V is as uniform as Q, so that V is needed
    for the products with the first axis only, and no column of Q where D is zero.
    """
    n = c.shape[0]
    rng = np.random.default_rng(0)
    mirror = np.full(n, n**-0.5)
    mirror[0] += 1.0
    mirror *= np.sqrt(2.0 / (mirror @ mirror))  # I - mirror mirror^T takes the first axis to -1

    def reflected(matrix: Float64Array) -> Float64Array:
        half = matrix - np.outer(mirror, mirror @ matrix)
        return np.asarray(half - np.outer(half @ mirror, mirror))

    inner = reflected(c)
    values, vectors = np.linalg.eigh(inner[1:, 1:])
    some = values > n * np.finfo(np.float64).eps * values[-1]
    roots = np.sqrt(values[some])
    first = (vectors[:, some].T @ inner[1:, 0]) / roots
    for _ in range(ROTATIONS):
        q, r = np.linalg.qr(rng.normal(size=(n - 1, roots.size)))
        half = q * (np.sign(r.diagonal()) * roots)
        inner[1:, 1:] = half @ half.T
        inner[1:, 0] = inner[0, 1:] = half @ first
        rotated = reflected(inner)
        norms = np.sqrt(np.maximum(rotated.diagonal(), np.finfo(np.float64).tiny))
        distances = 1.0 - np.clip(rotated / norms[:, None] / norms, -1.0, 1.0)
        np.fill_diagonal(distances, 0.0)
        yield 0.5 * (distances + distances.T)
