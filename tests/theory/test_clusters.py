"""Theorem 1 on thousands of instances, each condition broken, Corollary 1 with equality."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest

from adcs.theory import (
    bias,
    check_clusters,
    find_clusters,
    general_bound,
    strong_cluster_bounds,
)

INSTANCES = 3000


@lru_cache
def subsets(n: int, m: int) -> np.ndarray:
    return np.array(list(combinations(range(n), m)))


def map_sets(updates: np.ndarray, quality: np.ndarray, theta: float, m: int) -> np.ndarray:
    """Return every set of m clients that maximises the objective, by looking at all of them."""
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    c = unit @ unit.T
    sets = subsets(len(updates), m)
    dets = np.linalg.det(c[sets[:, :, None], sets[:, None, :]])
    with np.errstate(divide="ignore"):
        value = (1 - theta) * np.log(np.maximum(dets, 0.0)) + theta * quality[sets].sum(axis=1)
    return sets[value >= value.max() - 1e-12]


def draw(rng: np.random.Generator, closeness: float) -> dict:
    """Return a federation whose r is a given part of r_star."""
    k = int(rng.integers(1, 6))
    m = int(rng.integers(1, k + 1))
    sizes = rng.integers(1, 3, size=k)
    labels = np.repeat(np.arange(k), sizes)
    d = k + 2
    lean = rng.uniform(0.0, 0.6 / max(m, 2))
    directions = np.eye(k, d) + lean * rng.normal(size=(k, d)) / math.sqrt(d)
    centres = directions * rng.uniform(0.5, 3.0, size=(k, 1))
    quality, theta = rng.gamma(2.0, 0.5, size=labels.size), float(rng.choice([0.0, 0.3, 0.6]))
    instance = {
        "labels": labels,
        "representatives": centres,
        "quality": quality,
        "theta": theta,
        "m": m,
        "weights": rng.gamma(2.0, size=labels.size) + 0.1 if rng.random() < 0.5 else None,
    }
    still = check_clusters(centres[labels], **instance, chosen=np.arange(m))
    noise = rng.normal(size=(labels.size, d))
    noise /= np.linalg.norm(noise, axis=1).max()
    instance["updates"] = centres[labels] + closeness * still.r_star * noise
    return instance


def test_theorem_1_on_random_instances() -> None:
    rng = np.random.default_rng(5)
    count, ratio = 0, []
    while count < INSTANCES:
        instance = draw(rng, rng.uniform(0.5, 0.999))
        if math.isnan(instance["updates"].sum()):  # mu too large for an r_star
            continue
        best = map_sets(instance["updates"], instance["quality"], instance["theta"], instance["m"])
        for chosen in best:
            check = check_clusters(**instance, chosen=chosen)
            assert check.holds, check.verdict
            assert check.distinct
            assert check.bias <= check.bound + 1e-12
            assert check.bias <= check.mass_bound + 1e-12 <= check.bound + 1e-11
        ratio.append(check.bias / check.bound)
        count += 1
    assert np.max(ratio) > 0.9  # the bound is not met by being far away


def test_far_from_the_assumption_duplicates_win() -> None:
    """The condition matters: with r many times r_star, MAP does take a cluster twice."""
    rng = np.random.default_rng(6)
    duplicates = 0
    for _ in range(300):
        instance = draw(rng, 30.0)
        if instance["m"] == 1 or math.isnan(instance["updates"].sum()):
            continue
        best = map_sets(instance["updates"], instance["quality"], instance["theta"], instance["m"])
        check = check_clusters(**instance, chosen=best[0])
        assert not check.holds
        duplicates += not check.distinct
    assert duplicates > 5


def test_cohort_defaults_to_exact_map() -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        instance = draw(rng, 0.9)
        if math.isnan(instance["updates"].sum()):
            continue
        check = check_clusters(**instance)
        best = map_sets(instance["updates"], instance["quality"], instance["theta"], instance["m"])
        assert sorted(check.chosen) in [list(s) for s in best]


def two_ways(**changes) -> dict:
    """Return a federation of three orthogonal clusters, two clients each, that is all right."""
    centres = np.eye(3, 6)
    updates = np.repeat(centres, 2, axis=0)
    updates[::2, 3:] += 0.005 * np.eye(3)
    base = {"updates": updates, "labels": [0, 0, 1, 1, 2, 2], "representatives": centres, "m": 2}
    return {**base, **changes}


def spread(r: float) -> np.ndarray:
    updates = np.repeat(np.eye(3, 6), 2, axis=0)
    updates[::2, 3:] += r * np.eye(3)
    return updates


def test_nothing_broken() -> None:
    check = check_clusters(**two_ways())
    assert check.failed == ()
    assert check.verdict.startswith("Theorem 1 applies")
    assert all(c.margin > 0 or c.name == "m <= K" for c in check.conditions)


def test_m_above_k_is_named() -> None:
    check = check_clusters(**two_ways(m=4))
    assert check.failed == ("m <= K",)
    assert "m <= K fails by 1 (4 against 3)" in check.verdict
    assert math.isnan(check.r_star)
    assert math.isnan(check.log_q_m)
    assert check.bias <= check.mass_bound


def test_mu_is_named() -> None:
    lean = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]])
    check = check_clusters(
        np.repeat(lean, 2, axis=0),
        labels=[0, 0, 1, 1, 2, 2],
        representatives=lean,
        m=3,
        chosen=[0, 2, 4],
    )
    assert check.failed == ("mu < 1/(m-1)",)
    assert "mu < 1/(m-1) fails by 0.3 (0.8 against 0.5)" in check.verdict
    assert math.isnan(check.rho)


def test_r_star_is_named() -> None:
    limits = check_clusters(**two_ways())
    third = next(c.limit for c in limits.conditions if "sqrt" in c.name)
    assert limits.r_star < third < limits.kappa
    check = check_clusters(**two_ways(updates=spread(0.5 * (limits.r_star + third))))
    assert check.failed == ("r < r_star",)
    failed = next(c for c in check.conditions if not c.holds)
    assert -failed.margin == pytest.approx(0.5 * (third - limits.r_star))


def test_r_beyond_the_root_is_named() -> None:
    limits = check_clusters(**two_ways())
    third = next(c.limit for c in limits.conditions if "sqrt" in c.name)
    check = check_clusters(**two_ways(updates=spread(0.5 * (third + limits.kappa))))
    # r_star lies below this limit always, so it fails too.
    assert check.failed == ("r < kappa/2 sqrt((1-(m-1)mu)/m)", "r < r_star")
    assert check.rho < 0


def test_kappa_is_named() -> None:
    check = check_clusters(**two_ways(updates=spread(1.2)))
    assert check.failed[0] == "r < kappa"
    assert "r < kappa fails by 0.2 (1.2 against 1)" in check.verdict


def test_a_representative_without_direction() -> None:
    centres = np.eye(3, 6)
    centres[2] = 0.0
    check = check_clusters(**two_ways(representatives=centres))
    assert check.kappa == 0.0
    assert "r < kappa" in check.failed


def test_one_client_or_one_cluster_has_no_condition_on_mu() -> None:
    close = np.array([[1.0, 0.0], [0.99, 0.1], [0.9, 0.3]])
    alone = check_clusters(close, labels=[0, 1, 2], m=1, representatives=close)
    assert not any(c.name.startswith("mu") for c in alone.conditions)
    assert alone.holds
    assert alone.r_star == pytest.approx(alone.kappa / 6)  # 1 - 2x = 4x
    single = check_clusters(close, labels=[0, 0, 0], m=1)
    assert single.mu == 0.0
    assert not any(c.name.startswith("mu") for c in single.conditions)
    crowd = check_clusters(close, labels=[0, 0, 0], m=2)
    assert crowd.failed[0] == "m <= K"


@pytest.mark.parametrize("seed", range(10))
def test_r_star_is_the_smallest_root(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, m = 4, int(rng.integers(1, 5))
    centres = np.eye(k) + 0.02 * rng.normal(size=(k, k))
    quality = rng.normal(size=k)
    check = check_clusters(
        centres, labels=range(k), representatives=centres, m=m, quality=quality, theta=0.5
    )
    log_w = check.log_w.max()

    def f(r: float) -> float:
        rho = math.sqrt(1 - (m - 1) * check.mu) - 2 * r * math.sqrt(m) / check.kappa
        return (
            math.exp(check.log_q_m) * rho ** (2 * m)
            - 16 * r**2 * math.exp(m * log_w) / check.kappa**2
        )

    assert f(check.r_star) == pytest.approx(0.0, abs=1e-9)
    assert all(f(x * check.r_star) > 0 for x in np.linspace(0.0, 0.999, 50))
    best = sorted(quality, reverse=True)[:m]
    assert check.log_q_m == pytest.approx(sum(best))  # 2 alpha = 1 at theta = 1/2


def test_qualities_beyond_exp() -> None:
    check = check_clusters(**two_ways(quality=[900.0, 0, 0, 0, 0, 0], theta=0.9))
    assert 0.0 <= check.r_star < 1e-300
    assert check.failed == ("r < r_star",)


@pytest.mark.parametrize("seed", range(30))
def test_mass_bound_holds_for_every_cohort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = 7, int(rng.integers(1, 7))
    updates = rng.normal(size=(n, 4))
    labels = rng.integers(0, 3, size=n)
    p = None if seed % 2 else rng.gamma(1.0, size=n) + 0.05
    for chosen in combinations(range(n), m):
        check = check_clusters(updates, labels=labels, m=m, chosen=chosen, weights=p)
        assert check.bias <= check.mass_bound + 1e-9


def test_gram_says_the_same_as_updates() -> None:
    rng = np.random.default_rng(3)
    updates = rng.normal(size=(8, 20))
    labels = [0, 0, 1, 1, 2, 2, 2, 3]
    mixing = rng.normal(size=(4, 8))
    common = {"m": 3, "quality": rng.gamma(1.0, size=8), "theta": 0.4, "chosen": [0, 2, 7]}
    for rows, coefficients in [(None, None), (mixing @ updates, mixing)]:
        one = check_clusters(updates, labels=labels, representatives=rows, **common)
        gram = updates @ updates.T
        two = check_clusters(gram=gram, labels=labels, representatives=coefficients, **common)
        for name in ("r", "mu", "kappa", "bound", "mass_bound", "bias"):
            assert getattr(one, name) == pytest.approx(getattr(two, name)), name
    centroid = updates[4:7].mean(axis=0)
    plain = check_clusters(updates, labels=labels, **common)
    assert plain.r >= np.linalg.norm(updates[5] - centroid) - 1e-12


@pytest.mark.parametrize(("n", "k", "m"), [(6, 3, 1), (6, 3, 2), (6, 3, 3), (8, 4, 3), (10, 5, 4)])
def test_corollary_1_is_met_with_equality(n: int, k: int, m: int) -> None:
    labels = np.arange(n) % k
    updates = np.eye(k)[labels]
    quality = np.random.default_rng(n).gamma(1.0, size=n)
    check = check_clusters(updates, labels=labels, m=m, quality=quality, theta=0.5)
    both = strong_cluster_bounds(n, k, m)
    assert check.holds
    assert check.bias == pytest.approx(both.cluster, abs=1e-12)
    assert check.bound == pytest.approx(both.cluster, abs=1e-12)
    assert general_bound(updates, m=m) == pytest.approx(both.general)
    assert both.cluster < both.general
    for chosen in combinations(range(n), m):
        if np.unique(labels[list(chosen)]).size == m:
            assert bias(updates, chosen=chosen) == pytest.approx(both.cluster, abs=1e-12)


def test_corollary_needs_its_setting() -> None:
    with pytest.raises(ValueError, match="K that divides N"):
        strong_cluster_bounds(10, 3, 2)
    with pytest.raises(ValueError, match="between 1 and K = 5, got 6"):
        strong_cluster_bounds(10, 5, 6)


def test_clusters_are_found() -> None:
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(5), 3)
    updates = 3.0 * np.eye(5, 40)[labels] + 0.1 * rng.normal(size=(15, 40))
    scale = rng.gamma(1.0, size=(15, 1))
    assert find_clusters(updates * scale).tolist() == labels.tolist()
    assert np.unique(find_clusters(updates, k=3)).size == 3
    assert find_clusters(np.ones((4, 2))).tolist() == [0, 0, 0, 0]
    check = check_clusters(updates, m=4)
    assert check.labels.tolist() == labels.tolist()
    assert check.distinct


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"theta": 1.0}, "theta below 1"),
        ({"labels": [0, 1]}, "got 2"),
        ({"chosen": [0]}, "m = 2 clients, got 1"),
        ({"representatives": np.eye(2, 6)}, r"shape \(3, 6\), got \(2, 6\)"),
    ],
)
def test_errors_name_the_value(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_clusters(**two_ways(**changes))
