"""What private signals leave of diversity: sketches with client-level noise, histograms with noise.

    python benchmarks/bench_private_kernels.py            # seconds

100 clients in 10 groups; `adcs.select` takes m = 10 of them, with no quality. One client of each
group covers 10 groups; uniform draws are the reference. Sketches are of size 64, scaled to
norm one, with Gaussian noise for local (client-level) differential privacy: replacing the client's
whole data changes the sketch by 2 at most; sigma = 2 / sqrt(2 rho) with
rho = (sqrt(epsilon + ln 1/delta) - sqrt(ln 1/delta))^2 (Bun and Steinke, 2016), delta = 1e-5.
Histograms have one label a group and `count_labels`'s noise (example-level).
"""

from __future__ import annotations

import argparse
import math

import numpy as np

import adcs
from adcs.reports import count_labels

N, GROUPS, M, SIZE, DELTA = 100, 10, 10, 64, 1e-5
GROUP = np.arange(N) % GROUPS


def covered(rows: np.ndarray) -> int:
    """Return how many groups the cohort covers."""
    return len({int(GROUP[i]) for i in adcs.select(rows, M)})


def noisy_sketches(rng: np.random.Generator, epsilon: float | None) -> np.ndarray:
    """Return unit sketches around ten centres, with client-level noise."""
    rows = rng.standard_normal((GROUPS, SIZE))[GROUP] + 0.1 * rng.standard_normal((N, SIZE))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if epsilon is None:
        return rows
    log = math.log(1.0 / DELTA)
    sigma = 2.0 / math.sqrt(2.0) / (math.sqrt(epsilon + log) - math.sqrt(log))
    return np.asarray(rows + sigma * rng.standard_normal(rows.shape))


def noisy_histograms(rng: np.random.Generator, epsilon: float | None, size: int) -> np.ndarray:
    """Return histograms of clients with `size` examples of one label."""
    rows = [count_labels(np.full(size, group), GROUPS, epsilon=epsilon, rng=rng) for group in GROUP]
    table = np.maximum(np.array(rows, dtype=float), 0.0)
    table[~table.any(axis=1)] = 1.0  # a histogram without a positive count says nothing
    return table


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    uniform = [len(set(GROUP[rng.permutation(N)[:M]].tolist())) for _ in range(repeats)]
    print(f"groups covered of {GROUPS}, mean over {repeats}; uniform {np.mean(uniform):.1f}")
    print("| signal | epsilon | groups covered |\n|---|---|---|")
    for epsilon in (None, 32.0, 8.0, 1.0):
        found = np.mean([covered(noisy_sketches(rng, epsilon)) for _ in range(repeats)])
        print(f"| sketch, client-level | {epsilon or 'none'} | {found:.1f} |")
    for size in (600, 60):
        for epsilon in (None, 3.0, 1.0, 0.3, 0.1):
            found = np.mean([covered(noisy_histograms(rng, epsilon, size)) for _ in range(repeats)])
            print(f"| histogram of {size} examples | {epsilon or 'none'} | {found:.1f} |")


if __name__ == "__main__":
    main()
