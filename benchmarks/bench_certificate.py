"""How tight the certificate is: upper bound minus true optimum, in nats, and its cost.

The optimum is found by branch and bound. The set certified is greedy's. "Updates" are gradients of
softmax regression after some rounds of training, 30 clients, three to a class.

    python benchmarks/bench_certificate.py [--draws 10] [--data fashion-mnist]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from adcs.dpp.exact import exact_map
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import similarity, unit_rows
from adcs.schedulers import Uniform
from adcs.simulation.datasets import load
from adcs.simulation.engine import Simulation
from adcs.simulation.federation import Federation
from adcs.simulation.models import MLP
from adcs.simulation.partition import make_partition
from adcs.simulation.training import Training
from adcs.theory import certify

Instance = tuple[np.ndarray, np.ndarray]
THETAS = (0.0, 0.5, 0.8)


def plain(rng: np.random.Generator, n: int) -> Instance:
    return rng.normal(size=(n, 2 * n)) + 0.5, rng.gamma(2.0, 0.5, size=n)


def groups(rng: np.random.Generator, n: int) -> Instance:
    centres = rng.normal(size=(n // 3, 2 * n))
    return centres[np.arange(n) % (n // 3)] + 0.5 * rng.normal(size=(n, 2 * n)), rng.gamma(
        2.0, 0.5, size=n
    )


class Updates:
    """Gradients and losses of 30 clients along a run of Uniform."""

    def __init__(self, name: str) -> None:
        dataset = load(name)
        self.federation = Federation(dataset, make_partition(dataset, "by-class", 30, seed=0))
        self.model = MLP(dataset.x_train.shape[1], dataset.classes)
        self.simulation = Simulation(
            self.federation, self.model, {"Uniform": Uniform(seed=0)}, Training(m=18)
        )

    def __call__(self, rng: np.random.Generator, n: int) -> Instance:
        for _ in range(100):
            self.simulation.step()
        x, y = self.federation.batches(10**6 + self.simulation.server_round, np.arange(30))
        ws = np.repeat(self.simulation.parameters[:1], 30, axis=0)
        losses, rows = self.model.stacked(ws, x, y)
        return rows.astype(np.float64), losses.astype(np.float64)


def measure(make: Callable[..., Instance], n: int, m: int, theta: float, draws: int) -> str:
    rng = np.random.default_rng([n, m, int(10 * theta)])
    missing, slack, seconds, winner = [], [], [], Counter[str]()
    singles, eigen = [], []
    for _ in range(draws):
        rows, quality = make(rng, n)
        c = similarity(unit_rows(rows))
        best = exact_map(c, m, quality=quality, theta=theta).objective
        chosen = greedy_map(c, m, quality=quality, theta=theta)
        start = time.perf_counter()
        certificate = certify(c, chosen.indices, quality=quality, theta=theta)
        seconds.append(time.perf_counter() - start)
        assert certificate.upper >= best, "the certificate is below the optimum"
        missing.append(best - chosen.objective)
        slack.append(certificate.upper - best)
        singles.append(certificate.bounds["singletons"] - best)
        eigen.append(certificate.bounds["eigenvalues"] - best)
        winner[certificate.tightest] += 1
    won = ", ".join(f"{name} {count}" for name, count in winner.most_common())
    return (
        f"{np.mean(missing):.4f} | {np.mean(slack):.4f} | {np.max(slack):.4f} | "
        f"{np.mean(singles):.3f} | {np.mean(eigen):.3f} | {won} | {1e3 * np.median(seconds):.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--data", default="fashion-mnist")
    options = parser.parse_args()
    print(
        "| kernel | N | m | theta | greedy misses | certificate above optimum, mean | max", end=""
    )
    print(" | singletons alone | eigenvalues alone | tightest | ms |")
    print("|" + "---|" * 11)
    settings = [(plain, 20, 6), (plain, 20, 12), (groups, 20, 6), (groups, 20, 12)]
    settings += [(groups, 30, 18), (Updates(options.data), 30, 10), (Updates(options.data), 30, 18)]
    for make, n, m in settings:
        name = getattr(make, "__name__", f"updates, {options.data}")
        for theta in THETAS:
            print(f"| {name} | {n} | {m} | {theta} | {measure(make, n, m, theta, options.draws)} |")


if __name__ == "__main__":
    main()
