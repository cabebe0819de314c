"""What a sketch loses, costs and saves.

Part 1 measures the objective lost, in nats, when the cohort is chosen from sketches instead of
the updates themselves: objective(C, S_full) - objective(C, S_sketch), with C that of the full
updates and both sets found greedily. The updates are gradients of softmax regression at models
of several ages; 30 clients, three to a class. Part 2 measures time and bytes.

    python benchmarks/bench_sketch.py [--data fashion-mnist] [--draws 20] [--quick]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import objective, similarity, unit_rows
from adcs.reports.sketch import Sketcher
from adcs.simulation.datasets import load

M, BATCH, RATE = 18, 16, 0.001
SIZE = max(256, 8 * M)


def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return training images scaled to [0, 1] and their labels."""
    data = load(name)
    x = (data.x_train * data.scale).reshape(len(data.y_train), -1)
    return x.astype(np.float32), data.y_train.astype(np.intp)


class Clients:
    """Ten classes in three disjoint parts each, and a softmax regression over all of them."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y
        self.parts = [p for c in range(10) for p in np.array_split(np.flatnonzero(y == c), 3)]
        self.model = np.zeros((x.shape[1] + 1, 10), dtype=np.float32)

    def gradients(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return a gradient and a loss for each client, on a fresh batch."""
        chosen = np.stack([rng.choice(part, BATCH, replace=False) for part in self.parts])
        x = self.x[chosen]
        logits = x @ self.model[:-1] + self.model[-1]
        logits -= logits.max(axis=2, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(axis=2, keepdims=True)
        truth = np.eye(10, dtype=np.float32)[self.y[chosen]]
        losses = -np.log((p * truth).sum(axis=2)).mean(axis=1)
        error = (p - truth) / BATCH
        weights = x.transpose(0, 2, 1) @ error
        rows = np.concatenate([weights, error.sum(axis=1, keepdims=True)], axis=1)
        return rows.reshape(len(rows), -1), losses

    def train(self, rounds: int, rng: np.random.Generator) -> None:
        """Take plain SGD steps on the mean gradient of all clients."""
        for _ in range(rounds):
            rows, _ = self.gradients(rng)
            self.model -= RATE * rows.mean(axis=0).reshape(self.model.shape)


def lost(
    rows: np.ndarray, losses: np.ndarray, sketcher: Sketcher, thetas: tuple[float, ...]
) -> tuple[list[float], float]:
    """Return the objective lost at each theta, and the RMS error of the cosines."""
    full = similarity(unit_rows(rows.astype(np.float64)))
    small = similarity(unit_rows(sketcher.sketch_rows(rows)[0].astype(np.float64)))
    out = []
    for theta in thetas:
        best, found = (greedy_map(c, M, quality=losses, theta=theta).indices for c in (full, small))
        out.append(objective(full, best, losses, theta) - objective(full, found, losses, theta))
    upper = np.triu_indices(len(full), 1)
    return out, float(np.sqrt(np.mean((small - full)[upper] ** 2)))


def accuracy(data: str, ages: tuple[int, ...], draws: int) -> None:
    clients = Clients(*examples(data))
    rng = np.random.default_rng(0)
    d = clients.model.size
    thetas = (0.8, 0.0)
    kinds = [("count", "int8"), ("count", "float32"), ("sparse", "int8"), ("gaussian", "int8")]
    print(f"\nObjective lost, nats: N = 30, m = {M}, d = {d}, k = {SIZE}, {draws} draws")
    print(
        f"{'server_round':>6} {'sketch':>16} {'theta=0.8 median':>17} {'worst':>7}"
        f" {'theta=0 median':>15} {'worst':>7} {'RMS cosine error':>17}"
    )
    age = 0
    for target in ages:
        clients.train(target - age, rng)
        age = target
        drawn = [clients.gradients(rng) for _ in range(draws)]
        for kind, dtype in kinds:
            results = [
                lost(rows, losses, Sketcher(SIZE, kind, dtype, seed), thetas)
                for seed, (rows, losses) in enumerate(drawn)
            ]
            nats = np.array([r[0] for r in results])
            rms = np.sqrt(np.mean([r[1] ** 2 for r in results]))
            middle, worst = np.median(nats, axis=0), nats.max(axis=0)
            print(
                f"{age:>6} {kind + ' ' + dtype:>16} {middle[0]:>17.4f} {worst[0]:>7.3f}"
                f" {middle[1]:>15.4f} {worst[1]:>7.3f} {rms:>17.4f}"
            )


def best_ms(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def cost(lengths: tuple[int, ...]) -> None:
    print(f"\nTime for one client, float32 update, k = {SIZE}: best of 5 (gaussian: of 1)")
    print(f"{'d':>9} {'kind':>9} {'ms':>10} {'int8 B':>8} {'float32 B':>10} {'update B':>10}")
    rng = np.random.default_rng(0)
    for d in lengths:
        x = rng.standard_normal(d, dtype=np.float32)
        for kind in ("count", "sparse", "gaussian"):
            if kind == "gaussian" and d > 10**6:
                print(f"{d:>9} {kind:>9} {'not run':>10}")
                continue
            small, large = Sketcher(SIZE, kind), Sketcher(SIZE, kind, "float32")
            ms = best_ms(lambda s=small, x=x: s.sketch(x), 1 if kind == "gaussian" else 5)
            print(
                f"{d:>9} {kind:>9} {ms:>10.2f} {small.nbytes:>8} {large.nbytes:>10} {x.nbytes:>10}"
            )
    print(f"\nMany clients at once: sketch_rows against one by one, d = 7850, k = {SIZE}, ms")
    print(f"{'N':>6} {'kind':>9} {'rows':>9} {'one by one':>11}")
    for n in (30, 1000):
        rows = rng.standard_normal((n, 7850), dtype=np.float32)
        for kind in ("count", "sparse"):
            sketcher = Sketcher(SIZE, kind)
            together = best_ms(lambda s=sketcher, rows=rows: s.sketch_rows(rows), 3)
            single = best_ms(lambda s=sketcher, rows=rows: [s.sketch(x) for x in rows], 3)
            print(f"{n:>6} {kind:>9} {together:>9.2f} {single:>11.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="smaller ages and lengths")
    given = parser.parse_args()
    accuracy(given.data, (0, 100) if given.quick else (0, 100, 1000, 5000), given.draws)
    cost((7850, 10**6) if given.quick else (7850, 10**6, 10**7))


if __name__ == "__main__":
    main()
