from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import chain, combinations

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from adcs.dpp.kernel import alpha, similarity, unit_rows
from adcs.dpp.sampling import (
    _sample_projection,
    elementary_symmetric,
    log_probability,
    log_probability_mdpp,
    sample_mdpp,
)
from adcs.reports.report import ClientReport
from adcs.schedulers import StaticDPP


def instance(seed, n, dim):
    rng = np.random.default_rng(seed)
    return similarity(unit_rows(rng.normal(size=(n, dim)))), rng.normal(size=n)


def kernel(c, q, theta):
    weight = np.exp(alpha(theta) * q)
    return weight[:, None] * c * weight


def subsets(n):
    return chain.from_iterable(combinations(range(n), k) for k in range(n + 1))


def reference(c, q, theta, m):
    """Probabilities of all sets of m rows, in 60 digits."""
    with mpmath.workdps(60):
        two_alpha = mpmath.mpf(theta) / (1 - mpmath.mpf(theta))
        weights = {}
        for s in combinations(range(len(c)), m):
            det = mpmath.det(mpmath.matrix(c[np.ix_(s, s)].tolist()))
            weights[s] = det * mpmath.exp(two_alpha * mpmath.fsum(q[list(s)].tolist()))
        total = mpmath.fsum(weights.values())
        return {s: weight / total for s, weight in weights.items()}


def counts(samples, cells):
    found = Counter(map(tuple, np.asarray(samples).tolist()))
    assert set(found) <= set(cells)
    return np.array([found[s] for s in cells])


def pooled(observed, expected, least=8.0):
    """Cells whose expected counts are at least so large, and all others as one."""
    large = expected >= least
    if large.all():
        return observed, expected
    rest = observed[..., ~large].sum(axis=-1, keepdims=True)
    return (
        np.concatenate([observed[..., large], rest], axis=-1),
        np.append(expected[large], expected[~large].sum()),
    )


@pytest.mark.parametrize("theta", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("dim", [4, 12])
def test_probabilities_of_the_ensemble_are_those_of_its_kernel(theta, dim):
    c, q = instance(1, 8, dim)
    full = kernel(c, q, theta)
    normaliser = np.linalg.det(full + np.eye(8))
    total = 0.0
    for s in subsets(8):
        p = np.exp(log_probability(c, list(s), quality=q, theta=theta))
        brute = np.linalg.det(full[np.ix_(s, s)]) / normaliser
        assert p == pytest.approx(brute, rel=1e-8, abs=1e-12)
        total += p
    assert total == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("theta", [0.0, 0.4, 0.9])
@pytest.mark.parametrize(("n", "m", "dim"), [(8, 1, 8), (9, 4, 6), (12, 3, 20), (7, 7, 9)])
def test_probabilities_of_the_m_dpp_are_those_of_its_kernel(n, m, dim, theta):
    c, q = instance(2, n, dim)
    exact = reference(c, q, theta, m)
    found = {s: np.exp(log_probability_mdpp(c, s, quality=q, theta=theta)) for s in exact}
    for s, p in exact.items():
        assert found[s] == pytest.approx(float(p), rel=1e-9, abs=1e-15)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-11)


# Seeds are fixed, so a law that holds passes for ever; the level is low enough for that not to
# depend on luck, and each test shows that samples of a different theta are told apart.
LEVEL = 1e-4


@pytest.mark.parametrize(("theta", "m", "dim"), [(0.0, 3, 10), (0.6, 3, 10), (0.6, 4, 5)])
def test_samples_follow_the_probabilities(theta, m, dim):
    c, q = instance(3, 8, dim)
    exact, size = reference(c, q, theta, m), 4000

    def p_value(sampled_theta):
        rng = np.random.default_rng(5)
        samples = sample_mdpp(c, m, quality=q, theta=sampled_theta, rng=rng, size=size)
        expected = size * np.array([*map(float, exact.values())])
        return chisquare(*pooled(counts(samples, exact), expected)).pvalue

    assert p_value(theta) > LEVEL
    assert p_value(theta + 0.15) < LEVEL


@pytest.mark.parametrize("theta", [0.0, 0.7])
def test_samples_agree_with_dppy(theta, oracle):
    finite_dpps = oracle("dppy.finite_dpps")
    c, q = instance(4, 8, 12)
    size, cells = 3000, list(combinations(range(8), 3))
    dpp = finite_dpps.FiniteDPP("likelihood", L=kernel(c, q, theta))
    state = np.random.RandomState(0)
    for _ in range(size):
        dpp.sample_exact_k_dpp(size=3, random_state=state)
    theirs = counts([sorted(map(int, s)) for s in dpp.list_of_samples], cells)

    def p_value(sampled_theta):
        rng = np.random.default_rng(1)
        ours = sample_mdpp(c, 3, quality=q, theta=sampled_theta, rng=rng, size=size)
        table = np.stack([theirs, counts(ours, cells)])
        return chi2_contingency(pooled(table, table.mean(axis=0))[0]).pvalue

    assert p_value(theta) > LEVEL
    assert p_value(theta + 0.25) < LEVEL


@pytest.mark.parametrize("base", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("spread", [1.0, 20.0, 300.0, 1e4])
@pytest.mark.parametrize("repeated", [False, True])
def test_large_qualities_stay_exact(base, spread, repeated):
    rng = np.random.default_rng(int(spread))
    c, _ = instance(5, 7, 9)
    q = base + spread * rng.random(7)
    if repeated:  # two rows in two copies, of slightly different quality: each pair shares a place
        twice = np.array([0, 1, 2, 3, 4, 0, 1])
        c = c[np.ix_(twice, twice)]
        q[5:] = q[:2] + 0.3
    for m in (2, 4):
        exact = reference(c, q, 0.5, m)
        total = 0.0
        for s, p in exact.items():
            log_p = log_probability_mdpp(c, s, quality=q, theta=0.5)
            assert np.exp(log_p) == pytest.approx(float(p), rel=1e-9, abs=1e-12)
            total += np.exp(log_p)
        assert total == pytest.approx(1.0, abs=1e-9)
        samples = sample_mdpp(c, m, quality=q, theta=0.5, rng=rng, size=200)
        expected = 200 * np.array([*map(float, exact.values())])
        observed = counts(samples, exact)
        assert observed[expected < 1e-6].sum() == 0
        assert np.abs(observed - expected).max() < 5 * np.sqrt(expected.max() / 4 + 10)


def test_a_spread_without_gap_that_cannot_be_resolved_is_refused():
    q = np.linspace(0, 1000, 101)
    with pytest.raises(ValueError, match="without a gap over e\\^500, above e\\^300"):
        sample_mdpp(np.eye(101), 3, quality=q, theta=0.5, rng=np.random.default_rng(0))


@pytest.mark.parametrize("m", [1, 5, 11, 12])
def test_symmetric_polynomials_of_widely_spread_values(m):
    logs = np.array([-900.0, -700, -300, -20, -1, 0, 0.5, 3, 40, 300, 800, 2000])
    with mpmath.workdps(60):
        values = [mpmath.exp(x) for x in logs.tolist()]
        exact = mpmath.log(mpmath.fsum(mpmath.fprod(s) for s in combinations(values, m)))
    for order in (logs, logs[::-1]):
        assert elementary_symmetric(order, m)[m, -1] == pytest.approx(float(exact), rel=1e-14)


def test_symmetric_polynomials_of_more_values_than_there_are():
    table = elementary_symmetric([0.0, 0.0], 3)
    assert table[3, -1] == -np.inf
    np.testing.assert_allclose(np.exp(table[:, -1]), [1, 2, 1, 0])


def test_samples_depend_on_the_generator_only():
    c, q = instance(6, 10, 12)
    one, same = (sample_mdpp(c, 4, rng=np.random.default_rng(3), quality=q) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    rng = np.random.default_rng(3)
    many = sample_mdpp(c, 4, rng=rng, quality=q, size=50)
    np.testing.assert_array_equal(many[0], one)
    assert len({tuple(s) for s in many}) > 10
    assert (np.diff(many, axis=1) > 0).all()
    assert sample_mdpp(c, 4, rng=rng, size=0).shape == (0, 4)


def test_repeated_rows_are_never_drawn_together():
    c, _ = instance(7, 4, 6)
    twice = np.tile(np.arange(4), 2)
    c = c[np.ix_(twice, twice)]
    for s in sample_mdpp(c, 4, rng=np.random.default_rng(0), size=100):
        assert sorted(s % 4) == [0, 1, 2, 3]
    assert log_probability_mdpp(c, [0, 4]) == -np.inf
    assert log_probability(c, [0, 4], quality=np.full(8, 1e4), theta=0.5) == -np.inf


def test_bad_input_is_refused():
    c, _ = instance(8, 6, 3)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"m = 4 is above the rank of similarity \(3\)"):
        sample_mdpp(c, 4, rng=rng)
    with pytest.raises(ValueError, match=r"m = 4 is above the rank of similarity \(3\)"):
        log_probability_mdpp(c, [0, 1, 2, 3])
    with pytest.raises(ValueError, match="theta = 1 has no kernel L"):
        sample_mdpp(c, 2, theta=1.0, rng=rng)
    with pytest.raises(ValueError, match="theta = 1 has no kernel L"):
        log_probability(c, [0], theta=1.0)
    with pytest.raises(ValueError, match="distinct rows from 0 to 5"):
        log_probability(c, [1, 1])
    with pytest.raises(ValueError, match="distinct rows from 0 to 5"):
        log_probability_mdpp(c, [6])


def test_qualities_too_large_for_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"quality is too large .* 1\.7e\+308"):
        sample_mdpp(
            np.eye(3),
            2,
            quality=[1.7e308, 0.0, -1.7e308],
            theta=0.9999,
            rng=np.random.default_rng(0),
        )


def test_rounding_does_not_add_rank():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(6, 2))
        rows[1] = rows[0] + 1e-3 * rng.normal(size=2)
        c = similarity(unit_rows(rows))
        with pytest.raises(ValueError, match=r"above the rank of similarity \(2\)"):
            sample_mdpp(c, 3, quality=[9, 9, 0, 0, 0, 0], theta=0.8, rng=rng)


def block_kernel(rng, n):
    """Blocks of up to three like rows, in any order, at right angles to those of other blocks."""
    label = rng.permutation(n) // 3
    c = np.where(label[:, None] == label, rng.uniform(0.1, 0.9), 0.0)
    np.fill_diagonal(c, 1.0)
    return c


ORTHOGONAL = {
    "identity": lambda rng, n: np.eye(n),
    "permutation": lambda rng, n: similarity(np.eye(n)[rng.permutation(n)]),
    "scaled permutation": lambda rng, n: similarity(
        rng.uniform(1e-3, 1e3, n)[:, None] * np.eye(n)[rng.permutation(n)]
    ),
    "block": block_kernel,
    "near-orthogonal": lambda rng, n: similarity(np.eye(n) + 1e-9 * rng.normal(size=(n, n))),
}


def sample_orthogonal() -> None:
    """10,200 samples, each of a kernel of its own: five kinds, 1 to 60 rows."""
    for n in range(1, 61):
        for number, make in enumerate(ORTHOGONAL.values()):
            for repeat in range(34):
                rng = np.random.default_rng([n, number, repeat])
                m = int(rng.integers(1, min(n, 10) + 1))
                theta, q = rng.choice([0.0, 0.5, 0.8]), 3.0 * rng.random(n)
                drawn = sample_mdpp(make(rng, n), m, quality=q, theta=theta, rng=rng)
                assert drawn.shape == (m,)
                assert (np.diff(drawn) > 0).all()
                assert 0 <= drawn[0] <= drawn[-1] < n
        scheduler = StaticDPP(theta=0.5, sample=True)
        one_hot = [ClientReport(i, 0, loss=q[i], update=np.eye(n)[i]) for i in range(n)]
        scheduler.observe(0, one_hot, "probe")
        assert len({*scheduler.select(0, range(n), m).clients}) == m


def test_orthogonal_rows_do_not_corrupt_the_heap():
    """In a process of its own, because what it must not do is to abort."""
    program = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
    program += "from test_sampling import sample_orthogonal; sample_orthogonal()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ORTHOGONAL)
@pytest.mark.parametrize(("n", "m"), [(3, 1), (5, 2), (8, 3)])
def test_samples_of_orthogonal_rows_follow_the_probabilities(kind, n, m):
    rng = np.random.default_rng([n, m])
    c, q = ORTHOGONAL[kind](rng, n), 2.0 * rng.random(n)
    exact, size = reference(c, q, 0.5, m), 3000

    def p_value(sampled_theta):
        samples = sample_mdpp(c, m, quality=q, theta=sampled_theta, rng=rng, size=size)
        expected = size * np.array([*map(float, exact.values())])
        return chisquare(*pooled(counts(samples, exact), expected)).pvalue

    assert p_value(0.5) > LEVEL
    assert p_value(0.75) < LEVEL


def test_weights_whose_squares_leave_the_range_are_refused():
    with pytest.raises(ValueError, match="quality is too large"):
        log_probability(np.eye(2), [0], quality=[1.2e308, 0.0], theta=2 / 3)


def test_a_row_that_was_drawn_is_not_drawn_again():
    class Recording:
        """Takes the likeliest row, and keeps what each was offered with."""

        def __init__(self):
            self.offers = []

        def choice(self, n, p):
            self.offers.append(p)
            return int(p.argmax())

    for seed in range(5):
        rng = Recording()
        vectors = np.linalg.qr(np.random.default_rng(seed).normal(size=(9, 6)))[0]
        picks = _sample_projection(vectors, rng)
        drawn = [int(p.argmax()) for p in rng.offers]
        assert sorted(drawn) == picks.tolist()
        for step, p in enumerate(rng.offers):
            assert (p[drawn[:step]] == 0.0).all()
            assert p.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_rounded_kernel_gives_no_set_above_its_rank(seed, rank):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((5, rank))
    c = similarity(unit_rows(rows)).astype(np.float32)
    quality = 300.0 * rng.integers(0, 2, 5)
    for subset in subsets(5):
        log_p = log_probability(c, list(subset), quality=quality, theta=0.8)
        assert log_p <= 1e-6
        if len(subset) > rank:
            assert log_p == -np.inf
