"""Properties of greedy MAP, for each of the searches behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adcs.dpp import greedy, greedy_lazy
from adcs.dpp.constraints import Constraints
from adcs.dpp.greedy import greedy_map, greedy_map_features, greedy_map_trusted
from adcs.dpp.kernel import objective, similarity, unit_rows
from adcs.dpp.tolerances import Scorer

THETAS = st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.99, 1.0])
PATHS = ("default", "dense", "lazy")


@contextmanager
def path(name: str, pool: int = 4) -> Iterator[None]:
    """Run one of the searches whatever the size, the lazy one with a pool of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "dense":
            patch.setattr(greedy, "_pivoted_cholesky", lambda *_: None)
        if name == "lazy":
            for limit in ("_SMALL", "_LARGE", "_MANY"):
                patch.setattr(greedy, limit, 0)
            patch.setattr(greedy_lazy, "_KERNEL_POOL", pool)
            patch.setattr(greedy_lazy, "_POOL", pool)
            patch.setattr(greedy_lazy, "_CHUNK", 64)
        yield


def whole_numbers(n: st.SearchStrategy[int], d: int = 4) -> st.SearchStrategy[np.ndarray]:
    """Rows of small whole numbers, none of them zero: full of ties and dependences."""
    return n.flatmap(
        lambda size: hnp.arrays(np.float64, (size, d), elements=st.integers(-2, 2))
    ).map(lambda x: np.where(x.any(axis=1, keepdims=True), x, 1.0))


def gaussian(seed: int, n: int, d: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


@st.composite
def problems(draw: st.DrawFn, most: int = 14) -> tuple[np.ndarray, np.ndarray, float, int]:
    x = draw(whole_numbers(st.integers(1, most)))
    n = x.shape[0]
    q = draw(hnp.arrays(np.float64, n, elements=st.floats(-3, 3, width=16)))
    return x, q, draw(THETAS), draw(st.integers(1, n))


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_returns_m_distinct_rows_with_their_gains_and_objective(name: str, problem: Any) -> None:
    x, q, theta, m = problem
    c = similarity(unit_rows(x))
    with path(name):
        found = [greedy_map(c, m, quality=q, theta=theta)]
        found.append(greedy_map_features(x, m, quality=q, theta=theta))
    for selection in found:
        index = selection.indices
        assert len(set(index.tolist())) == m == index.size
        assert selection.rank == np.linalg.matrix_rank(c[np.ix_(index, index)], tol=1e-9)
        if selection.rank == m:
            assert selection.objective == pytest.approx(objective(c, index, q, theta), abs=1e-8)
        else:
            assert selection.log_det == -np.inf
            if theta < 1.0:
                assert selection.objective == -np.inf
                assert np.isneginf(selection.gains[selection.rank :]).all()
        assert selection.gains.sum() == pytest.approx(selection.objective, abs=1e-8)
        if theta < 1.0:
            assert np.isfinite(selection.gains).sum() == selection.rank


@pytest.mark.parametrize("name", PATHS[1:])
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_every_search_finds_the_same_picks(name: str, problem: Any) -> None:
    x, q, theta, m = problem
    usual = greedy_map(similarity(unit_rows(x)), m, quality=q, theta=theta)
    with path(name):
        by_kernel = greedy_map(similarity(unit_rows(x)), m, quality=q, theta=theta)
        by_features = greedy_map_features(x, m, quality=q, theta=theta)
    assert by_kernel.indices.tolist() == usual.indices.tolist()
    assert by_features.indices.tolist() == usual.indices.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("theta", [0.0, 0.3, 0.9])
def test_the_lazy_search_agrees_with_the_kernel_on_many_rows(theta: float, dtype: type) -> None:
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((40, 64))
    x = (centres[rng.integers(0, 40, 3000)] + 0.5 * rng.standard_normal((3000, 64))).astype(dtype)
    q = rng.standard_normal(3000)
    expected = greedy_map(similarity(unit_rows(x.astype(float))), 60, quality=q, theta=theta)
    with path("lazy", pool=64 * 100):
        selection = greedy_map_features(x, 60, quality=q, theta=theta)
    assert selection.indices.tolist() == expected.indices.tolist()
    assert selection.gains == pytest.approx(expected.gains, abs=1e-6)


@pytest.mark.parametrize("name", PATHS)
def test_residuals_closer_than_float32_do_not_tie(name: str) -> None:
    # Row i > 0 keeps half of its squared norm outside row 0, and a little more the larger its rank.
    rank = np.random.default_rng(1).permutation(40)
    square = 0.5 + 1e-8 * rank
    x = np.zeros((41, 41))
    x[0, 0] = 1.0
    x[1:, 0] = np.sqrt(1.0 - square)
    x[np.arange(1, 41), np.arange(1, 41)] = np.sqrt(square)
    for seed in range(10):
        # A rotation, so that float32 rounds the entries.
        turned = x @ np.linalg.qr(gaussian(seed, 41, 41))[0]
        with path(name, pool=41 * 41 * 4):
            at_once = greedy_map_features(turned, 2)
            afterwards = greedy_map_features(turned, 2, constraints=Constraints(required=[0]))
        assert at_once.indices.tolist() == [0, 1 + int(rank.argmax())]
        assert afterwards.indices.tolist() == at_once.indices.tolist()


@pytest.mark.parametrize("name", PATHS)
def test_small_residuals_below_float32_precision_do_not_tie(name: str) -> None:
    rng = np.random.default_rng(2)
    x = np.repeat(rng.standard_normal((6, 30)), 20, axis=0) + 1e-4 * rng.standard_normal((120, 30))
    with path(name, pool=30 * 16):
        selection = greedy_map_features(x, 25)
    assert selection.rank == 25
    c = similarity(unit_rows(x))
    for step in range(1, 25):
        chosen = selection.indices[:step]
        inside = c[np.ix_(chosen, chosen)]
        residual = 1.0 - np.einsum("ij,ij->j", c[chosen], np.linalg.solve(inside, c[chosen]))
        assert residual[selection.indices[step]] > residual.max() * (1 - 1e-5)


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), theta=THETAS)
def test_permuting_the_rows_does_not_change_the_set(name: str, seed: int, theta: float) -> None:
    x = gaussian(seed, 20, 8)
    q = np.random.default_rng(seed + 1).standard_normal(20)
    # The first pick at theta = 0 is a tie of all; a required row takes it out of the question.
    order = np.random.default_rng(seed + 2).permutation(20)
    place = int(np.flatnonzero(order == 3)[0])
    with path(name):
        straight = greedy_map_features(
            x, 7, quality=q, theta=theta, constraints=Constraints(required=[3])
        )
        permuted = greedy_map_features(
            x[order], 7, quality=q[order], theta=theta, constraints=Constraints(required=[place])
        )
    assert order[permuted.indices].tolist() == straight.indices.tolist()


@pytest.mark.parametrize("name", PATHS)
def test_permuting_copies_of_rows_chooses_the_same_directions(name: str) -> None:
    base = gaussian(4, 10, 30)
    scale = np.tile([1.0, 3.0, 0.7], 10)[:, None]
    x, group = np.repeat(base, 3, axis=0) * scale, np.repeat(np.arange(10), 3)
    with path(name):
        for seed in range(5):
            order = np.random.default_rng(seed).permutation(30)
            selection = greedy_map_features(x[order], 18)
            counts = np.bincount(group[order][selection.indices], minlength=10)
            assert selection.rank == 10
            assert sorted(counts.tolist()) == [1, 1] + [2] * 8


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_theta_one_takes_the_best_qualities(name: str, problem: Any) -> None:
    x, q, _, m = problem
    with path(name):
        selection = greedy_map_features(x, m, quality=q, theta=1.0)
    assert selection.indices.tolist() == np.argsort(-q, kind="stable")[:m].tolist()
    assert selection.objective == pytest.approx(q[selection.indices].sum())


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=30, deadline=None)
@given(x=whole_numbers(st.integers(2, 12)))
def test_theta_zero_ignores_quality(name: str, x: np.ndarray) -> None:
    n = x.shape[0]
    with path(name):
        plain = greedy_map_features(x, n // 2 + 1)
        loud = greedy_map_features(x, n // 2 + 1, quality=np.linspace(-1e300, 1e300, n))
    assert loud.indices.tolist() == plain.indices.tolist()
    assert loud.objective == plain.objective


@settings(max_examples=40, deadline=None)
@given(problem=problems(most=8))
def test_greedy_is_never_better_than_the_best_set(problem: Any) -> None:
    x, q, theta, m = problem
    c = similarity(unit_rows(x))
    best = max(objective(c, s, q, theta) for s in combinations(range(len(q)), m))
    assert greedy_map(c, m, quality=q, theta=theta).objective <= best + 1e-8


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("theta", [0.0, 0.5, 0.9999, 1.0])
@pytest.mark.parametrize("size", [1e300, -1e300, 1e-300])
def test_extreme_qualities_do_not_overflow(name: str, theta: float, size: float) -> None:
    x = gaussian(1, 12, 20)
    q = size * np.arange(1, 13)
    with path(name), np.errstate(all="raise", under="ignore"):
        selection = greedy_map_features(x, 6, quality=q, theta=theta)
    assert len(set(selection.indices.tolist())) == selection.rank == 6
    assert np.isfinite(selection.objective)
    if theta > 0.0 and abs(size) > 1.0:
        assert selection.indices.tolist() == np.argsort(-q)[:6].tolist()


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_qualities_tie_within_the_rounding_of_their_type(name: str, theta: float) -> None:
    x = np.eye(3)
    rounded = np.array([2.3025849, 2.3025851, 2.0])
    with path(name):
        assert greedy_map_features(x, 2, quality=rounded, theta=theta).indices.tolist() == [1, 0]
        single = rounded.astype(np.float32)
        assert single[0] != single[1]
        assert greedy_map_features(x, 2, quality=single, theta=theta).indices.tolist() == [0, 1]


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_float32_finds_what_float64_finds(name: str, scale: float) -> None:
    x = (gaussian(8, 60, 25) * scale).astype(np.float32)
    q = np.random.default_rng(8).random(60)
    with path(name, pool=25 * 8):
        for theta in (0.0, 0.6):
            single = greedy_map_features(x, 20, quality=q, theta=theta)
            double = greedy_map_features(x.astype(np.float64), 20, quality=q, theta=theta)
            assert single.indices.tolist() == double.indices.tolist()


@pytest.mark.parametrize("name", PATHS)
def test_rank_is_that_of_the_given_rows(name: str) -> None:
    rng = np.random.default_rng(0)
    low_rank = rng.standard_normal((40, 7)) @ rng.standard_normal((7, 50))
    near = np.repeat(rng.standard_normal((10, 50)), 2, axis=0)
    near += 1e-5 * rng.standard_normal(near.shape)
    for dtype in (np.float32, np.float64):
        with path("one by one"):
            expected = greedy_map_features(low_rank.astype(dtype), 12)
        with path(name, pool=50 * 8):
            assert greedy_map_features(near.astype(dtype), 20).rank == 20
            selection = greedy_map_features(low_rank.astype(dtype), 12)
        assert selection.rank == 7
        assert selection.indices.tolist() == expected.indices.tolist()


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), theta=THETAS)
@example(seed=384, theta=1.0)
def test_rank_with_nearly_equal_rows(name: str, seed: int, theta: float) -> None:
    # Quality asks for two nearly equal rows first, which magnifies the rounding of the others.
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((4, 12))
    x = np.vstack([base[:1], base[:1] + 1e-3 * base[1:2], rng.integers(-3, 4, (8, 4)) @ base])
    x = np.where(x.any(axis=1, keepdims=True), x, base[:1])
    q = np.array([9.0, 9.0] + [0.0] * 8)
    with path(name, pool=12 * 8):
        for selection in (
            greedy_map(similarity(unit_rows(x)), 9, quality=q, theta=theta),
            greedy_map_features(x, 9, quality=q, theta=theta),
        ):
            assert selection.rank == np.linalg.matrix_rank(x[selection.indices], tol=1e-8)


@pytest.mark.parametrize("name", PATHS)
def test_norms_do_not_matter(name: str) -> None:
    x = gaussian(3, 15, 6)
    lengths = 10.0 ** np.linspace(-200, 200, 15)[:, None]
    with path(name):
        expected = greedy_map_features(x, 6).indices.tolist()
        assert greedy_map_features(x * lengths, 6).indices.tolist() == expected
        unit = unit_rows(x)
        assert greedy_map_features(unit, 6, unit=True).indices.tolist() == expected


@st.composite
def constrained(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float, int, Constraints]:
    x, q, theta, _ = draw(problems())
    n = x.shape[0]
    absent = draw(st.sets(st.integers(0, n - 1), max_size=min(3, n - 1)))
    candidates = [i for i in range(n) if i not in absent]
    groups = draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n))
    caps = draw(st.sampled_from([None, 1, 2, 3]))
    places = dict.fromkeys("abc", n if caps is None else caps)
    required = []
    for i in draw(st.permutations(candidates))[: draw(st.integers(0, 3))]:
        if places[groups[i]] > 0:
            places[groups[i]] -= 1
            required.append(i)
    held = {g: sum(groups[i] == g for i in candidates) for g in "abc"}
    most = sum(min(held[g], n if caps is None else caps) for g in "abc")
    m = max(1, len(required), most - draw(st.integers(0, 3)))
    return x, q, theta, m, Constraints(candidates, required, groups, caps)


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=80, deadline=None)
@given(problem=constrained())
def test_constraints_are_obeyed(name: str, problem: Any) -> None:
    x, q, theta, m, constraints = problem
    c = similarity(unit_rows(x))
    with path(name):
        found = [greedy_map(c, m, quality=q, theta=theta, constraints=constraints)]
        found.append(greedy_map_features(x, m, quality=q, theta=theta, constraints=constraints))
    assert found[0].indices.tolist() == found[1].indices.tolist()
    index = found[0].indices.tolist()
    required = list(constraints.required)
    assert len(set(index)) == m
    assert set(index) <= set(constraints.candidates)
    assert set(index[: len(required)]) == set(required)
    if constraints.caps is not None:
        labels = [constraints.groups[i] for i in index]
        assert max(map(labels.count, labels)) <= constraints.caps


@pytest.mark.parametrize("name", PATHS)
def test_required_rows_may_be_dependent(name: str) -> None:
    x = np.vstack([np.eye(4), np.eye(4)[:1] * 2.0, np.eye(4)[:1] * 3.0])
    with path(name):
        selection = greedy_map_features(x, 5, constraints=Constraints(required=[5, 4, 0]))
    assert selection.indices.tolist() == [0, 4, 5, 1, 2]
    assert selection.gains.tolist() == [0.0, -np.inf, -np.inf, 0.0, 0.0]
    assert selection.rank == 3


def test_the_restart_spreads_over_groups() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((10, 40)), 3, axis=0)
    selection = greedy_map_features(x, 25)
    assert np.bincount(selection.indices[:10] // 3).tolist() == [1] * 10
    assert np.bincount(selection.indices[10:20] // 3).tolist() == [1] * 10
    assert selection.rank == 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: greedy_map(np.eye(3), 4), "m must lie between 1 and"),
        (lambda: greedy_map(np.eye(3), 0), "m must lie between 1 and"),
        (lambda: greedy_map(np.eye(3), 1.5), "m must be a whole number"),
        (lambda: greedy_map(np.eye(3), 1, theta=1.1), "theta must lie in"),
        (lambda: greedy_map(np.eye(3), 1, theta=float("nan")), "theta must lie in"),
        (lambda: greedy_map(2 * np.eye(3), 1), "ones on its diagonal"),
        (lambda: greedy_map([[1.0, 0.5], [0.4, 1.0]], 1), "must be symmetric"),
        (lambda: greedy_map([[1.0, np.nan], [np.nan, 1.0]], 1), "similarity must be finite"),
        (lambda: greedy_map(np.ones((2, 3)), 1), "must be square"),
        (lambda: greedy_map(np.eye(3), 1, quality=[1.0]), "one number for each of the 3 rows"),
        (lambda: greedy_map(np.eye(2), 1, quality=[1.0, np.inf]), "quality must be finite"),
        (lambda: greedy_map_features(np.eye(3), 4), "m must lie between 1 and"),
        (lambda: greedy_map_features(np.eye(3), "2"), "m must be a whole number"),
        (lambda: greedy_map_features(np.eye(3), 1, theta=-0.1), "theta must lie in"),
        (lambda: greedy_map_features([1.0, 2.0], 1), "features must be a 2-d array"),
        (lambda: greedy_map_features([[1.0], [1.0, 2.0]], 1), "the same length"),
        (lambda: greedy_map_features([["a"]], 1), "features must be numbers"),
        (lambda: greedy_map_features(np.empty((0, 3)), 1), "at least one row"),
        (lambda: greedy_map_features(np.empty((3, 0)), 1), "at least one column"),
        (lambda: greedy_map_features([[1.0, 2.0], [0.0, 0.0]], 1), "row 1 is zero"),
        (lambda: greedy_map_features([[1.0], [np.nan]], 1), "features must be finite: row 1"),
        (lambda: greedy_map_features([[1.0], [-np.inf]], 1), "features must be finite: row 1"),
        (lambda: greedy_map_features([[1.0], [2.0]], 1, unit=True), "row 1 has norm 2"),
        (lambda: greedy_map_features(np.eye(2), 1, quality=["a", "b"]), "quality must be numbers"),
        (
            lambda: greedy_map(np.eye(2), 1, constraints=Constraints(candidates=[2])),
            "candidates must lie between 0 and 1",
        ),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_large_asymmetries_are_detected() -> None:
    c = similarity(unit_rows(gaussian(0, 50, 30)))
    for i, j in ((0, 1), (17, 40), (49, 3)):
        wrong = c.copy()
        wrong[i, j] += 1e-6
        with pytest.raises(ValueError, match="must be symmetric"):
            greedy_map(wrong, 5)


def test_a_trusted_kernel_is_not_validated() -> None:
    c = similarity(unit_rows(gaussian(0, 40, 6)))
    scorer = Scorer.of_kernel(c, None, theta=0.0)
    assert list(greedy_map_trusted(c, 5, scorer).indices) == list(greedy_map(c, 5).indices)
    picked = greedy_map(c, 2).indices
    unused = np.setdiff1d(np.arange(40), picked)[:2]
    c[unused[0], unused[1]] = 9.0
    with pytest.raises(ValueError, match="symmetric"):
        greedy_map(c, 2)
    with path("one by one"):
        assert list(greedy_map_trusted(c, 2, scorer).indices) == list(picked)


def test_longdouble_input_is_computed_in_float64():
    for seed in range(20):
        rows = np.random.default_rng(seed).normal(size=(12, 4))
        c = similarity(unit_rows(rows))
        assert greedy_map(c.astype(np.longdouble), 8).rank == 4


@pytest.mark.parametrize("seed", range(5))
def test_rank_at_theta_one_is_the_same_for_few_and_many_rows(seed):
    """Rows that repeat a direction add nothing, wherever between other directions they come."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(1.0, 9.0, (300, 1)) * np.repeat(rng.normal(size=(100, 4)), 3, axis=0)
    quality = np.ones(300)
    with np.errstate(divide="raise", invalid="raise"):
        many = greedy_map_features(rows, 60, quality=quality, theta=1.0)
        few = greedy_map(similarity(rows[:60]), 60, quality=quality[:60], theta=1.0)
    assert many.indices.tolist() == few.indices.tolist() == list(range(60))
    assert many.rank == few.rank == 4
