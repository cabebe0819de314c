"""FedCor: the greedy against brute force, the likelihood against SciPy, the timetable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import adcs
from adcs.schedulers.fedcor import greedy_correlation
from adcs.schedulers.loss_correlation import LossCorrelation, _gradient, log_likelihood


def brute_force(sigma, weights, alpha, candidates, count, given=()):
    """The greedy on the whole matrix, as the paper writes it."""
    sigma, chosen, free = sigma.copy(), [], set(candidates)
    for row in given:
        sigma -= np.outer(sigma[:, row], sigma[row]) / sigma[row, row]
    for _ in range(count):
        scores = {k: alpha[k] * (weights @ sigma[:, k]) / np.sqrt(sigma[k, k]) for k in free}
        best = max(sorted(free), key=lambda k: scores[k])
        sigma -= np.outer(sigma[:, best], sigma[best]) / sigma[best, best]
        free.remove(best)
        chosen.append(best)
    return chosen


def test_scores_by_hand():
    """Sigma = [[2,1,0],[1,1,0],[0,0,1]]: 2.121, 2, 1, then .707 and 1: clients 1 and 3."""
    factors = np.linalg.cholesky(np.array([[2.0, 1, 0], [1, 1, 0], [0, 0, 1]])).T
    chosen = greedy_correlation(factors, 1e-9, np.ones(3) / 3, np.ones(3), [0, 1, 2], 3)
    assert chosen == [0, 2, 1]
    # Unavailable clients count in the sums: 2 of (2, 1) is still best represented by client 2.
    assert greedy_correlation(factors, 1e-9, np.ones(3), np.ones(3), [1, 2], 1) == [1]
    # alpha = 0.9 for client 1 lets client 2 pass: 1.909 < 2.
    alpha = np.array([0.9, 1, 1])
    assert greedy_correlation(factors, 1e-9, np.ones(3), alpha, [0, 1, 2], 1) == [1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 4))
def test_the_greedy_equals_brute_force(seed, n, dimension):
    rng = np.random.default_rng(seed)
    x, p, alpha = rng.standard_normal((dimension, n)), rng.random(n), rng.uniform(0.5, 1, n)
    sigma = x.T @ x + 0.1**2 * np.eye(n)
    candidates = sorted(rng.choice(n, rng.integers(1, n + 1), replace=False).tolist())
    given_rows = [i for i in range(n) if i not in candidates][:1]
    count = int(rng.integers(1, len(candidates) + 1))
    expected = brute_force(sigma, p, alpha, candidates, count, given_rows)
    assert greedy_correlation(x, 0.1, p, alpha, candidates, count, given_rows) == expected


def test_rows_without_variance_are_last():
    factors = np.array([[1.0, 1.0, 0.5]])
    chosen = greedy_correlation(factors, 1e-12, np.ones(3), np.ones(3), [0, 1, 2], 3)
    assert sorted(chosen) == [0, 1, 2]


def test_the_likelihood_is_that_of_scipy_and_its_gradient_that_of_differences():
    rng = np.random.default_rng(0)
    x, values, weights = rng.standard_normal((3, 5)), rng.standard_normal((4, 5)), rng.random(4)
    sigma = x.T @ x + 0.3**2 * np.eye(5)
    expected = weights @ multivariate_normal(np.zeros(5), sigma).logpdf(values)
    assert log_likelihood(x, 0.3, values, weights) == pytest.approx(expected, rel=1e-10)
    gradient = _gradient(x, 0.3, [0, 1, 2, 3, 4], values, weights)
    for i, j in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i, j] = 1e-6
        up, down = (log_likelihood(x + s, 0.3, values, weights) for s in (step, -step))
        assert gradient[i, j] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6)


def test_missing_losses_are_left_out_of_their_round():
    x = np.random.default_rng(0).standard_normal((2, 3))
    gradient = _gradient(x, 0.5, [0, 2], np.ones((1, 2)), np.ones(1))
    assert (gradient[:, 1] == 0.0).all()
    assert (gradient[:, [0, 2]] != 0.0).all()


def test_fits_equal_the_reference_optimiser(oracle):
    """Against torch's Adam and its multivariate normal, from the same start."""
    torch = oracle("torch")
    rng = np.random.default_rng(1)
    values = rng.standard_normal((6, 4))
    changes = {r: dict(enumerate(row)) for r, row in enumerate(values.tolist())}
    model = LossCorrelation(dimension=3)
    model.fit(changes, 1, 0.9, np.random.default_rng(7))
    start = np.random.default_rng(7).standard_normal((3, 4)) / np.sqrt(3)
    model.restore({"clients": [0, 1, 2, 3], "columns": start})
    model.fit(changes, 40, 0.9, rng)
    weights = 0.9 ** np.arange(5, -1, -1)
    mean = torch.tensor(weights @ values / weights.sum())
    x = torch.tensor(start, requires_grad=True)
    adam = torch.optim.Adam([x], lr=0.01)
    for _ in range(40):
        adam.zero_grad()
        sigma = x.T @ x + 0.01**2 * torch.eye(4, dtype=torch.float64)
        normal = torch.distributions.MultivariateNormal(mean, sigma)
        (-(torch.tensor(weights) * normal.log_prob(torch.tensor(values))).sum()).backward()
        adam.step()
    np.testing.assert_allclose(model.factors([0, 1, 2, 3]), x.detach().numpy(), rtol=1e-6)


def run(scheduler, rounds, losses, n=4, m=2):
    """Drive a scheduler; return the rounds in which losses were asked, and the cohorts."""
    asked, cohorts = [], []
    for r in range(rounds):
        request = scheduler.request(r, range(n), m)
        if request.clients:
            asked.append(r)
            reports = [adcs.ClientReport(c, r, loss=losses(r, c)) for c in request.clients]
            scheduler.observe(r, reports, "probe")
        cohorts.append(scheduler.select(r, range(n), m).clients)
    return asked, cohorts


def test_losses_are_asked_around_uniform_cohorts_only():
    scheduler = adcs.FedCor(warm_up=3, refit_every=5, fit_steps=5, refit_steps=5)
    asked, _ = run(scheduler, 15, lambda r, c: 10.0 - r * c)
    # Rounds 0-2 and 3 after them; 7 is uniform and 8 follows; so are 12 and 13.
    assert asked == [0, 1, 2, 3, 7, 8, 12, 13]


def test_correlated_clients_represent_each_other():
    """Losses of clients 0, 1 and 2 fall together, that of client 3 on its own."""
    steps = np.random.default_rng(0).standard_normal((12, 2))

    def losses(r, c):
        return 5.0 + float(steps[:r, int(c == 3)].sum()) * (1.0 + 0.1 * c)

    scheduler = adcs.FedCor(warm_up=10, refit_every=50, dimension=4)
    _, cohorts = run(scheduler, 11, losses)
    assert 3 in cohorts[10]


def test_selected_clients_lose_score_until_the_next_fit():
    scheduler = adcs.FedCor(warm_up=1, refit_every=20, annealing=0.5, fit_steps=2)
    _, cohorts = run(scheduler, 8, lambda r, c: 3.0 - r, n=3, m=1)
    assert len(set(cohorts[1:])) > 1


@pytest.mark.parametrize(
    "settings",
    [{"warm_up": 0}, {"refit_every": 1}, {"discount": 0.0}, {"annealing": 2}, {"noise": 0}],
)
def test_wrong_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        adcs.FedCor(**settings)
