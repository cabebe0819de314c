"""The certificate is never below the optimum, and says what is true of a set."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from adcs.dpp.exact import exact_map
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import objective, similarity, unit_rows
from adcs.theory import certify, least_gain


def kernel(rng: np.random.Generator, n: int, kind: str) -> np.ndarray:
    d = {"low rank": max(2, n // 2), "identity": n}.get(kind, 3 * n)
    rows = rng.normal(size=(n, d)) + (0.5 if kind == "common part" else 0.0)
    if kind == "groups":
        rows = rng.normal(size=(4, d))[np.arange(n) % 4] + 0.3 * rows
    if kind == "identity":
        rows = np.eye(n)
    return similarity(unit_rows(rows))


KINDS = ["plain", "common part", "groups", "low rank", "identity"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta", [0.0, 0.3, 0.8, 1.0])
def test_no_bound_is_below_the_optimum_of_all_subsets(kind: str, theta: float) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    for n in (3, 6):
        c, q = kernel(rng, n, kind), rng.normal(size=n) * rng.choice([0.1, 1.0, 30.0])
        for m in range(1, n + 1):
            best = max(objective(c, s, q, theta) for s in combinations(range(n), m))
            certificate = certify(c, rng.permutation(n)[:m], quality=q, theta=theta)
            rounding = 1e-12 * (1.0 + abs(best)) if math.isfinite(best) else 0.0
            for name, bound in certificate.bounds.items():
                assert bound >= best - rounding, name
            if math.isfinite(best):
                assert certificate.gap >= best - certificate.objective - rounding


@pytest.mark.parametrize("kind", ["plain", "common part", "groups"])
@pytest.mark.parametrize(("n", "m"), [(12, 4), (16, 12), (20, 10)])
def test_never_below_branch_and_bound(kind: str, n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    for theta in (0.0, 0.8):
        c, q = kernel(rng, n, kind), rng.gamma(2.0, 0.5, size=n)
        best = exact_map(c, m, quality=q, theta=theta).objective
        chosen = greedy_map(c, m, quality=q, theta=theta)
        certificate = certify(c, chosen.indices, quality=q, theta=theta)
        assert min(certificate.bounds.values()) >= best
        assert certificate.objective == pytest.approx(chosen.objective)
        assert certificate.gap >= best - chosen.objective
        # Not by being useless: nothing is further off than the singletons.
        assert certificate.upper <= theta * np.sort(q)[-m:].sum()


def test_tight_where_it_can_be() -> None:
    """Orthogonal rows are optimal whoever is chosen; with quality alone the best m are."""
    assert certify(np.eye(5), [0, 3]).gap == 0.0
    q = [3.0, 1.0, 2.0]
    assert certify(np.full((3, 3), 0.5) + 0.5 * np.eye(3), [0, 2], quality=q, theta=1.0).gap == 0.0
    everyone = certify(kernel(np.random.default_rng(0), 6, "plain"), range(6))
    assert everyone.gap == pytest.approx(0.0, abs=1e-6)


def test_the_usual_bound_would_be_wrong() -> None:
    """F(S) plus the m largest remaining gains can fall below the optimum: log det decreases."""
    c = np.full((4, 4), 0.9) + 0.1 * np.eye(4)
    c[2:, :2] = c[:2, 2:] = 0.0
    bad = [0, 1]
    rest = [objective(c, [*bad, i]) - objective(c, bad) for i in (2, 3)]
    usual = objective(c, bad) + sum(rest)
    best = exact_map(c, 2).objective
    assert usual < best
    assert certify(c, bad).upper >= best


def test_dependent_rows_have_no_certificate_and_no_error() -> None:
    c = np.ones((3, 3))
    certificate = certify(c, [0, 1])
    assert certificate.objective == -math.inf
    assert certificate.bounds["gains"] == certificate.bounds["greedy"] == math.inf
    assert certificate.gap == math.inf
    assert certify(c, [0, 1, 2]).gap in (0.0, math.inf)


@pytest.mark.parametrize("seed", range(10))
def test_least_gain_is_the_least_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, theta = 5, 0.4
    c, q = kernel(rng, n, "common part"), rng.normal(size=n)
    gains = [
        objective(c, [*s, i], q, theta) - objective(c, s, q, theta)
        for size in range(n)
        for s in combinations(range(n), size)
        for i in set(range(n)) - set(s)
    ]
    assert least_gain(c, q, theta) == pytest.approx(min(gains))


def test_monotone_where_the_kernel_has_no_eigenvalue_below_one() -> None:
    rng = np.random.default_rng(1)
    c = kernel(rng, 6, "common part")
    theta = 0.5
    lift = -math.log(np.linalg.eigvalsh(c)[0])
    q = np.full(6, lift)  # L = exp(lift) C, its smallest eigenvalue exactly one
    assert least_gain(c, q, theta) >= -1e-12
    assert least_gain(c) < 0.0  # a similarity alone never is, unless it is the identity
    m = 3
    greedy = greedy_map(c, m, quality=q, theta=theta).objective
    classic = greedy / (1 - math.exp(-1))
    assert certify(c, [0, 1, 2], quality=q, theta=theta).bounds["greedy"] <= classic + 1e-8


def test_words_and_errors() -> None:
    certificate = certify(np.eye(3), [0, 2])
    assert str(certificate) == "at most 0 nats from optimal (singletons)"
    for chosen in ([0, 0], [0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="distinct indices between 0 and 2"):
            certify(np.eye(3), chosen)
