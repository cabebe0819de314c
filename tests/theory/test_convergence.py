"""Theorem 2: its four terms, its inverses, and the bound on problems with known constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from adcs.dpp.greedy import greedy_map_features
from adcs.simulation.models import MLP
from adcs.theory import (
    Constants,
    batch_noise,
    best_lr,
    convergence_bound,
    largest_norm,
    lr_for,
    rounds_for,
    secant_smoothness,
    softmax_moments,
    softmax_smoothness,
    uniform_selection_variance,
)

M, SEEDS = 4, 3


class Quadratics:
    """f_i(w) = (w - a_i)' A_i (w - a_i) / 2, gradients with Gaussian noise of variance sigma^2."""

    def __init__(self, seed: int, clients: int = 10, d: int = 4, sigma: float = 0.5) -> None:
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(clients, d, d)) / np.sqrt(d)
        self.a = roots @ roots.transpose(0, 2, 1) + 0.2 * np.eye(d)
        self.centre = rng.normal(size=(clients, d)) + 2.0 * rng.normal(size=d)
        self.n, self.d, self.sigma = clients, d, sigma
        self.smoothness = float(np.linalg.eigvalsh(self.a)[:, -1].max())
        total = np.einsum("nij,nj->i", self.a, self.centre)
        best = np.linalg.solve(self.a.sum(axis=0), total)
        self.start = np.zeros(d)
        self.gap = float((self.losses(self.start) - self.losses(best)).mean())

    def losses(self, w: np.ndarray) -> np.ndarray:
        off = w - self.centre
        return 0.5 * np.einsum("ni,nij,nj->n", off, self.a, off)

    def gradients(self, w: np.ndarray) -> np.ndarray:
        """Return full gradients; w is one model or one for each client."""
        return np.einsum("nij,nj->ni", self.a, w - self.centre)

    def noisy(self, w: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        noise = rng.normal(size=(self.n, self.d)) * (self.sigma / np.sqrt(self.d))
        return self.gradients(w) + noise


class Softmax:
    """Softmax regression on clients that hold mostly one of three classes."""

    def __init__(self, seed: int, clients: int = 9, batch: int = 4) -> None:
        rng = np.random.default_rng(seed)
        main = np.arange(clients) % 3
        y = np.where(
            rng.random((clients, 40)) < 0.9, main[:, None], rng.integers(0, 3, (clients, 40))
        )
        self.x = rng.normal(size=(clients, 40, 4)) + 1.5 * np.eye(3, 4)[y]
        self.y, self.n, self.batch = y, clients, batch
        self.model = MLP(features=4, classes=3)
        self.start = self.model.initial(0)
        self.smoothness = max(softmax_smoothness(x) for x in self.x)
        self.second_moment, self.sigma = softmax_moments(self.x.reshape(-1, 4), batch)
        self.gap = float(self.losses(self.start).mean())  # f* >= 0

    def _stack(self, w: np.ndarray) -> np.ndarray:
        return np.broadcast_to(w, (self.n, self.model.size)).copy()

    def losses(self, w: np.ndarray) -> np.ndarray:
        return self.model.stacked(self._stack(w), self.x, self.y)[0]

    def gradients(self, w: np.ndarray) -> np.ndarray:
        return self.model.stacked(self._stack(w), self.x, self.y)[1]

    def noisy(self, w: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        rows = np.arange(self.n)[:, None]
        pick = rng.integers(0, self.x.shape[1], size=(self.n, self.batch))
        return self.model.stacked(self._stack(w), self.x[rows, pick], self.y[rows, pick])[1]


Selector = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def adcs(m: int, theta: float = 0.6) -> Selector:
    """Return ADCS with a kernel of its own every round (R = 1)."""
    return lambda updates, losses, rng: (
        greedy_map_features(updates, m, quality=losses, theta=theta).indices
    )


def uniform(m: int) -> Selector:
    return lambda updates, losses, rng: rng.choice(len(updates), m, replace=False)


@dataclass
class Trace:
    """What a run showed: squared gradient norms, the largest bias, the largest squared norm."""

    squares: list[float]
    epsilon: float = 0.0
    moment: float = 0.0


def train(
    problem: Quadratics | Softmax,
    select: Selector,
    *,
    lr: float,
    steps: int,
    rounds: int,
    seed: int,
    batches: str,
) -> tuple[Trace, list[np.ndarray]]:
    """Run local SGD; batches are "full" (no noise), "fresh" (probe apart) or "reused"."""
    rng = np.random.default_rng(seed)
    w, trace, seen = problem.start.copy(), Trace([]), []
    for _ in range(rounds):
        full = problem.gradients(w)
        mean = full.mean(axis=0)
        trace.squares.append(float(mean @ mean))
        seen.append(full)
        probe = full if batches == "full" else problem.noisy(w, rng)
        chosen = select(probe, problem.losses(w), rng)
        trace.epsilon = max(trace.epsilon, float(np.linalg.norm(full[chosen].mean(axis=0) - mean)))
        local = np.repeat(w[None], problem.n, axis=0)
        for step in range(steps):
            exact = problem.gradients(local)
            trace.moment = max(trace.moment, float((exact[chosen] ** 2).sum(axis=1).max()))
            if batches == "full":
                g = exact
            elif batches == "reused" and step == 0:
                g = probe
            else:
                g = problem.noisy(local, rng)
            local = local - lr * g
        w = local[chosen].mean(axis=0)
    return trace, seen


def measured_and_bound(problem, kind: str, *, steps: int, batches: str, rounds: int, share: float):
    """Return the mean squared gradient norm over runs, and Theorem 2's bound for them."""
    lr = share / (8 * problem.smoothness * steps)
    select = uniform(M) if kind == "uniform" else adcs(M)
    deterministic = kind == "adcs" and batches == "full"
    runs = [
        train(problem, select, lr=lr, steps=steps, rounds=rounds, seed=s, batches=batches)
        for s in range(1 if deterministic else SEEDS)
    ]
    sigma = 0.0 if batches == "full" else problem.sigma
    # On quadratics no G holds everywhere: this one holds along the runs.
    along = max(trace.moment for trace, _ in runs) + sigma**2
    random = kind == "uniform"
    constants = Constants(
        gap=problem.gap,
        smoothness=problem.smoothness,
        m=M,
        epsilon=0.0 if random else max(trace.epsilon for trace, _ in runs),
        selection_variance=max(
            (uniform_selection_variance(g, m=M) for _, seen in runs for g in seen), default=0.0
        )
        if random
        else 0.0,
        sigma=sigma,
        second_moment=getattr(problem, "second_moment", along**0.5),
    )
    bound = convergence_bound(constants, lr=lr, steps=steps, rounds=rounds)
    return float(np.mean([trace.squares for trace, _ in runs])), bound


@pytest.mark.parametrize("batches", ["full", "fresh"])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("kind", ["adcs", "uniform"])
@pytest.mark.parametrize("make", [Quadratics, Softmax])
def test_measured_stays_under_the_bound(make, kind: str, steps: int, batches: str) -> None:
    problem = make(1)
    for share in (1.0, 0.1):
        measured, bound = measured_and_bound(
            problem, kind, steps=steps, batches=batches, rounds=40, share=share
        )
        assert measured <= bound.total
        assert (bound.drift > 0.0) == (steps > 1)
        assert (bound.bias > 0.0) == (kind == "adcs")


def test_the_bias_term_is_needed() -> None:
    """Where selection is biased, gradients stop shrinking above what the other terms allow."""
    problem, rounds = Quadratics(1), 6000
    lr = 1 / (8 * problem.smoothness)
    trace, _ = train(
        problem,
        lambda updates, losses, rng: np.arange(M),
        lr=lr,
        steps=1,
        rounds=rounds,
        seed=0,
        batches="full",
    )
    known = Constants(problem.gap, problem.smoothness, M, epsilon=trace.epsilon)
    bound = convergence_bound(known, lr=lr, rounds=rounds)
    assert bound.total - bound.bias < np.mean(trace.squares) <= bound.total


@pytest.mark.parametrize(
    "problem", [Quadratics(2, sigma=3.0), Softmax(2)], ids=["quadratics", "softmax"]
)
def test_reused_batches_are_not_independent_of_selection(problem) -> None:
    """Train on the probe's own gradients, and the noise of the chosen no longer averages out."""
    draws = 1500
    rng = np.random.default_rng(0)
    w = problem.start
    full, select = problem.gradients(w), adcs(M, theta=0.8)
    reused, fresh = np.zeros((2, draws, w.size))
    for i in range(draws):
        probe = problem.noisy(w, rng)
        chosen = select(probe, np.linalg.norm(probe, axis=1), rng)
        reused[i] = (probe - full)[chosen].mean(axis=0)
        fresh[i] = (problem.noisy(w, rng) - full)[chosen].mean(axis=0)

    def gap(noise: np.ndarray) -> float:
        """Return the mean noise in units of its standard error."""
        error = np.sqrt(noise.var(axis=0).sum() / draws)
        return float(np.linalg.norm(noise.mean(axis=0)) / error)

    assert gap(reused) > 5
    assert gap(fresh) < 2.5


def constants(**changes: float) -> Constants:
    base = {
        "gap": 2.0,
        "smoothness": 4.0,
        "m": 5,
        "epsilon": 0.1,
        "selection_variance": 0.3,
        "sigma": 0.7,
        "second_moment": 1.5,
    }
    return Constants(**{**base, **changes})


def test_the_four_terms() -> None:
    bound = convergence_bound(constants(), lr=0.005, steps=3, rounds=100)
    assert bound.optimisation == pytest.approx(4 * 2.0 / (0.015 * 100))
    assert bound.bias == pytest.approx(5 * 0.01)
    assert bound.variance == pytest.approx(16 * 4.0 * 0.015 * (0.3 + 0.49 / 15))
    assert bound.drift == pytest.approx(5 / 6 * 16.0 * 0.005**2 * 2.25 * 2 * 5)
    parts = bound.optimisation + bound.bias + bound.variance + bound.drift
    assert bound.total == pytest.approx(parts)


def test_one_step_has_no_drift() -> None:
    assert convergence_bound(constants(), lr=0.01, rounds=10).drift == 0.0


def test_step_size_condition() -> None:
    limit = 1 / (8 * 4.0)
    assert constants().max_lr(5) == pytest.approx(limit / 5)
    convergence_bound(constants(), lr=limit / 5, steps=5, rounds=1)
    with pytest.raises(ValueError, match=r"at most 1/\(8 L\) = 0.03125, got 0.032"):
        convergence_bound(constants(), lr=0.0064, steps=5, rounds=1)


@pytest.mark.parametrize("steps", [1, 5])
def test_rounds_for_a_target(steps: int) -> None:
    c, lr = constants(), 0.001
    target = 2.0
    rounds = rounds_for(c, target, lr=lr, steps=steps)
    assert convergence_bound(c, lr=lr, steps=steps, rounds=rounds).total <= target
    assert convergence_bound(c, lr=lr, steps=steps, rounds=rounds - 1).total > target


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("rounds", [300, 10_000, 1_000_000])
def test_learning_rate_for_a_target(steps: int, rounds: int) -> None:
    c = constants()

    def total(lr: float) -> float:
        return convergence_bound(c, lr=lr, steps=steps, rounds=rounds).total

    best, limit = best_lr(c, rounds=rounds, steps=steps), c.max_lr(steps)
    grid = np.geomspace(limit * 1e-4, limit, 400)
    assert total(best) <= min(total(lr) for lr in grid) * (1 + 1e-9)
    target = 0.5 * (total(best) + total(limit)) + 1e-6
    lr = lr_for(c, target, rounds=rounds, steps=steps)
    assert total(lr) <= target * (1 + 1e-9)
    assert lr == limit or total(min(1.001 * lr, limit)) > target * (1 - 1e-9)
    with pytest.raises(ValueError, match="no learning rate brings the bound to"):
        lr_for(c, total(best) * 0.999, rounds=rounds, steps=steps)


def test_the_rate_is_one_over_root_t() -> None:
    """With the best step size, what is left above the bias falls as 1 / sqrt(T)."""
    c = constants(selection_variance=3.0)
    left = []
    for rounds in (10**6, 10**8):
        lr = best_lr(c, rounds=rounds)
        bound = convergence_bound(c, lr=lr, rounds=rounds)
        left.append(bound.total - bound.bias)
    assert left[0] / left[1] == pytest.approx(10.0, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma": -1.0}, "sigma must be finite and not negative, got -1"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"smoothness": 0.0}, "must be positive"),
    ],
)
def test_constants_are_checked(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        constants(**changes)


def test_softmax_smoothness_bounds_every_secant() -> None:
    problem = Softmax(3)
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.3, 1.0):
        points = rng.normal(size=(60, problem.start.size)) * scale
        for client in range(3):
            gradients = [problem.gradients(w)[client] for w in points]
            largest = secant_smoothness(points, gradients)
            assert largest <= softmax_smoothness(problem.x[client])
    # Two classes at probability 1/2 reach it.
    x = np.ones((5, 1))
    two = problem.model.__class__(1, 2)
    ends = np.array([[0.0, 0.0, 0.0, 0.0], [1e-4, -1e-4, 1e-4, -1e-4]])
    slopes = [two.loss_and_gradient(w, x, np.array([0, 1, 0, 1, 0]))[1] for w in ends]
    assert secant_smoothness(ends, slopes) == pytest.approx(softmax_smoothness(x), rel=1e-6)


def test_softmax_moments_bound_what_happens() -> None:
    problem = Softmax(4)
    rng = np.random.default_rng(1)
    for scale in (0.0, 1.0, 5.0):
        w = problem.start + scale * rng.normal(size=problem.start.size)
        draws = np.array([problem.noisy(w, rng) for _ in range(300)])
        noise = draws - problem.gradients(w)
        assert (draws**2).sum(axis=2).mean(axis=0).max() <= problem.second_moment**2
        assert (noise**2).sum(axis=2).mean(axis=0).max() <= problem.sigma**2
    assert softmax_moments(problem.x[0], 1)[0] == softmax_moments(problem.x[0], 1)[1]


def test_uniform_selection_variance_is_the_mean_over_cohorts() -> None:
    updates = np.random.default_rng(5).normal(size=(6, 3))
    mean = updates.mean(axis=0)
    for m in (1, 3, 6):
        all_of_them = [
            ((updates[list(s)].mean(axis=0) - mean) ** 2).sum() for s in combinations(range(6), m)
        ]
        assert uniform_selection_variance(updates, m=m) == pytest.approx(np.mean(all_of_them))


def test_noise_and_norm_from_a_gram_matrix() -> None:
    rng = np.random.default_rng(6)
    centres = rng.normal(size=(2, 200)) * 5
    updates = np.repeat(centres, 50, axis=0) + 0.3 * rng.normal(size=(100, 200))
    gram = updates @ updates.T
    expected = 0.3 * np.sqrt(200)
    assert batch_noise(gram, np.repeat([0, 1], 50)) == pytest.approx(expected, rel=0.05)
    assert np.isnan(batch_noise(gram, range(100)))
    noisier = gram.copy()
    noisier[50:] *= 3.0
    noisier[:, 50:] *= 3.0
    largest = batch_noise(noisier, np.repeat([0, 1], 50))
    assert largest == pytest.approx(3.0 * expected, rel=0.05)
    assert largest_norm(gram=gram) == pytest.approx(np.linalg.norm(updates, axis=1).max())
