"""The general bound: valid for every subset, attained, and the same from updates and their Gram."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from adcs.theory import bias, general_bound, share_bound
from adcs.theory.gram import cohort_shares


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("weighted", [False, True])
def test_holds_for_every_subset(seed: int, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 9)), int(rng.integers(1, 6))
    updates = rng.normal(size=(n, d)) * rng.gamma(1.0, size=(n, 1)) + rng.normal(size=d)
    p = rng.gamma(1.0, size=n) + 0.01 if weighted else None
    for m in range(1, n + 1):
        everyone = general_bound(updates, m=m, weights=p)
        sharper = general_bound(updates, m=m, weights=p, centred=True)
        assert sharper <= everyone * (1 + 1e-9)
        for chosen in combinations(range(n), m):
            actual = bias(updates, chosen=chosen, weights=p)
            own = share_bound(updates @ updates.T, cohort_shares(chosen, n, p), p)
            assert actual <= sharper + 1e-7
            assert actual <= own + 1e-7
            assert own <= everyone * (1 + 1e-9) + 1e-12


def test_uniform_case_is_the_papers_formula() -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(7, 4))
    top = np.linalg.eigvalsh(updates @ updates.T)[-1]
    assert general_bound(updates, m=3) == pytest.approx(np.sqrt(top * (1 / 3 - 1 / 7)))
    shares = cohort_shares([0, 4, 5], 7)
    assert share_bound(updates @ updates.T, shares) == pytest.approx(general_bound(updates, m=3))


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 0.5, 1.5]])
def test_is_attained(weights: list[float] | None) -> None:
    """Updates along one line, g_i in proportion to v_i / p_i, make v the top eigenvector."""
    n, chosen = 5, [3, 4]
    p = np.full(n, 0.2) if weights is None else np.array(weights) / sum(weights)
    a = cohort_shares(chosen, n, weights)
    updates = ((a - p) / p)[:, None]
    assert share_bound(updates @ updates.T, a, weights) == pytest.approx(
        bias(updates, chosen=chosen, weights=weights)
    )
    if weights is None:
        assert general_bound(updates, m=2) == pytest.approx(bias(updates, chosen=chosen))


def test_updates_and_gram_agree() -> None:
    updates = np.random.default_rng(2).normal(size=(6, 50))
    gram = updates @ updates.T
    assert general_bound(updates, m=2) == pytest.approx(general_bound(gram=gram, m=2))
    assert bias(updates, chosen=[1, 3]) == pytest.approx(bias(gram=gram, chosen=[1, 3]))
    direct = np.linalg.norm(updates[[1, 3]].mean(axis=0) - updates.mean(axis=0))
    assert bias(updates, chosen=[1, 3]) == pytest.approx(direct)


def test_all_clients_have_no_bias() -> None:
    updates = np.random.default_rng(3).normal(size=(4, 3))
    assert general_bound(updates, m=4) == 0.0
    assert general_bound(updates, m=4, weights=[1, 2, 3, 4]) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: general_bound(m=1), "either updates or gram"),
        (lambda: general_bound(np.eye(2), m=3), "m must lie between 1"),
        (lambda: general_bound(np.eye(2), m=1, weights=[1.0, 0.0]), "entry 1 is 0"),
        (lambda: general_bound(gram=np.ones((2, 3)), m=1), "must be square"),
        (lambda: bias(np.eye(2), chosen=[0, 0]), "distinct"),
        (lambda: bias(np.eye(2), chosen=[2]), "between 0 and 1"),
        (lambda: share_bound(np.eye(2), [1.0, 1.0], centred=True), "sum to one, got 2"),
    ],
)
def test_errors_name_the_value(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
