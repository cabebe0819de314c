"""Greedy MAP against pyversity and the plain loop, side by side on one thread.

    python benchmarks/bench_map.py            # all sizes, a few minutes
    python benchmarks/bench_map.py --quick    # without the million rows, fewer repeats

Every figure is a median over repeats in which the contenders take turns, so that a busy machine
slows all of them. Features are float32, which is what pyversity works in: "gaussian" rows are
independent normals, "clustered" rows lie around 200 centres with noise of 0.7 per coordinate.
Relevance is normal. Both contenders maximise log det of the same kernel, at three settings:
theta = 0.8, our default; theta = 0.5, which is pyversity's default, diversity = 0.5 (relevance is
standardised here as it does); and theta = 0, diversity alone, where hardly a row can be dismissed
early. The last column says how many of the picks are the same. At theta = 0 the second pick is a
row orthogonal to the first up to float32's rounding, of which there are many: pyversity takes the
first of them, adcs the best, and from there the two go different ways.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adcs.dpp import (
    Constraints,
    Scorer,
    Selection,
    greedy,
    greedy_map,
    greedy_map_features,
    greedy_map_trusted,
    similarity,
    unit_rows,
)
from adcs.dpp.greedy_lazy import FeatureRowSource, KernelRowSource, LazySearch

SIZES = [
    (5_000, 500, 1024, 4.0),
    (20_000, 200, 256, 6.0),
    (100_000, 100, 128, 8.0),
    (1_000_000, 100, 128, 12.0),
]
KERNELS = [(30, 18), (1_000, 100), (5_000, 500)]
# Sizes at which the searches behind greedy MAP are compared with each other.
PIVOTED = [(10, 3), (30, 18), (64, 10), (64, 32), (128, 32)]
LAZY_KERNEL = [(1_000, 18), (1_500, 100), (3_000, 18), (3_000, 300), (5_000, 500), (10_000, 200)]
LAZY = [
    (30, 18, 7850),
    (64, 10, 256),
    (128, 18, 256),
    (200, 18, 7850),
    (600, 300, 256),
    (1_000, 18, 256),
    (1_000, 100, 256),
    (1_000, 500, 256),
    (2_000, 1_000, 256),
    (3_000, 18, 256),
]
# Theta, and the diversity and scale by which pyversity's weights are the same:
# exp((1 - diversity) scale q) is exp(alpha q).
SETTINGS = [(0.8, 0.5, 4.0), (0.5, 0.5, 1.0), (0.0, 1.0, 1.0)]
BOUND = 2.0  # Times the matrix product of all rows and the picks.
MEMORY_LIMIT = 200  # MB beyond the features, a million rows
SMALL_LIMIT = 1.0  # ms, 30 updates of length 7850, kernel included


def features(kind: str, n: int, d: int) -> np.ndarray:
    """Rows made in place and in parts, so that making them needs no memory beyond them."""
    rng = np.random.default_rng(0)
    x = np.empty((n, d), dtype=np.float32)
    centres = rng.standard_normal((200, d), dtype=np.float32)
    for i in range(0, n, 10_000):
        part = x[i : i + 10_000]
        rng.standard_normal(out=part, dtype=np.float32)
        if kind == "clustered":
            part *= 0.7
            part += centres[rng.integers(0, 200, len(part))]
    return x


def relevance(n: int) -> np.ndarray:
    scores = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    return (scores - scores.mean()) / scores.std()


def plain_loop(kernel: np.ndarray, m: int, epsilon: float = 1e-10) -> list[int]:
    """The greedy loop as published with Chen et al. 2018 (fast-map-dpp)."""
    rows = np.zeros((m, kernel.shape[0]))
    residual = np.copy(np.diag(kernel))
    picks = [int(np.argmax(residual))]
    while len(picks) < m:
        k, last = len(picks) - 1, picks[-1]
        new = (kernel[last, :] - np.dot(rows[:k, last], rows[:k, :])) / math.sqrt(residual[last])
        rows[k, :] = new
        residual -= np.square(new)
        residual[last] = -np.inf
        best = int(np.argmax(residual))
        if residual[best] < epsilon:
            break
        picks.append(best)
    return picks


def alternate(repeats: int, *calls: Callable[[], Any]) -> list[float]:
    """Median milliseconds of each call, taking turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, spent in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            spent.append(1e3 * (time.perf_counter() - start))
    return [float(np.median(spent)) for spent in times]


def verdict(reached: bool) -> str:
    return "PASS" if reached else "miss"


def bench_features(quick: bool) -> None:
    from pyversity.strategies.dpp import dpp

    print("features given, float32; ms")
    print(
        f"{'N, m, d':>20} {'rows':>10} {'theta':>5} {'pyversity':>10} {'adcs':>8} {'ratio':>6}"
        f"{'same picks':>31}"
    )
    for n, m, d, target in SIZES[:-1] if quick else SIZES:
        for kind in ("gaussian", "clustered"):
            x, scores = features(kind, n, d), relevance(n)
            for theta, diversity, scale in SETTINGS:
                calls = (
                    partial(dpp, x, scores, m, diversity=diversity, scale=scale),
                    partial(greedy_map_features, x, m, quality=scores, theta=theta),
                )
                same = np.intersect1d(*(call().indices for call in calls)).size / m
                theirs, ours = alternate(3 if quick or n >= 1_000_000 else 7, *calls)
                ratio = theirs / ours
                print(
                    f"{f'{n}, {m}, {d}':>20} {kind:>10} {theta:>5} {theirs:>10.1f} {ours:>8.1f} "
                    f"{ratio:>6.1f}  at least {target:>2g}: {verdict(ratio >= target)}{same:>11.0%}"
                )


def bench_kernels(quick: bool) -> None:
    """The plain loop checks nothing, so a kernel known to be right is what it compares with."""
    print("\nkernel given, float64, theta = 0; ms")
    print(f"{'N, m':>20} {'plain loop':>10} {'adcs':>8} {'ratio':>6} {'checking C too':>26}")
    for n, m in KERNELS:
        c = similarity(unit_rows(features("gaussian", n, 1024)))
        repeats = 500 if n < 100 else 100 if n < 2_000 else 9
        plain, ours, checking = alternate(
            max(3, repeats // 3) if quick else repeats,
            lambda c=c, m=m: plain_loop(c, m),
            lambda c=c, m=m: greedy_map_trusted(c, m, Scorer.of_kernel(c, None, theta=0.0)),
            lambda c=c, m=m: greedy_map(c, m),
        )
        print(
            f"{f'{n}, {m}':>20} {plain:>10.3f} {ours:>8.3f} {plain / ours:>6.2f}"
            f"  at least 1: {verdict(plain >= ours)}  {checking:>8.3f} {plain / checking:>6.2f}"
        )


def dense(c: np.ndarray, m: int, q: np.ndarray, scorer: Scorer) -> Selection:
    """Greedy MAP by the dense search, whatever the size."""
    resolved = Constraints().resolve(len(c), m)
    return greedy._run(lambda: greedy._DenseSearch(c, scorer, q, m), q, scorer, resolved, m)


def pivoted(c: np.ndarray, m: int, q: np.ndarray, scorer: Scorer) -> Selection:
    """Greedy MAP by pivoted Cholesky, and by the dense search where that gives no answer."""
    picks = greedy._pivoted_cholesky(c, scorer, q, m)
    return dense(c, m, q, scorer) if picks is None else greedy._selection(picks, q, scorer)


def lazy_kernel(c: np.ndarray, m: int, q: np.ndarray, scorer: Scorer) -> Selection:
    """Greedy MAP by the lazy search over a kernel, whatever the size."""
    rows, resolved = KernelRowSource(c), Constraints().resolve(len(c), m)
    return greedy._run(lambda: LazySearch(rows, scorer, q, m), q, scorer, resolved, m)


def lazy(x: np.ndarray, m: int, q: np.ndarray, scorer: Scorer) -> Selection:
    """Greedy MAP by the lazy search, whatever the size."""
    rows, resolved = FeatureRowSource(x), Constraints().resolve(len(x), m)
    return greedy._run(lambda: LazySearch(rows, scorer, q, m), q, scorer, resolved, m)


def bench_paths(quick: bool) -> None:
    """The searches behind greedy MAP against each other: a path stays if it is faster somewhere."""
    print("\nkernel given: time of pivoted Cholesky over that of the dense search")
    for n, m in PIVOTED:
        c, q = similarity(unit_rows(features("gaussian", n, 256))), relevance(n).astype(float)
        for theta in (0.0, 0.8):
            scorer = Scorer.of_kernel(c, q, theta=theta)
            calls = (partial(pivoted, c, m, q, scorer), partial(dense, c, m, q, scorer))
            assert (calls[0]().indices == calls[1]().indices).all()
            one, other = alternate(100 if quick else 400, *calls)
            print(f"{f'{n}, {m}':>20} {theta:>5} {one:>8.3f} {other:>8.3f} ms {one / other:>6.2f}")
    print("\nkernel given: time of the lazy search over that of the dense search")
    for n, m in LAZY_KERNEL[:-1] if quick else LAZY_KERNEL:
        c, q = similarity(unit_rows(features("gaussian", n, 1024))), relevance(n).astype(float)
        for theta in (0.0, 0.8):
            scorer = Scorer.of_kernel(c, q, theta=theta)
            calls = (partial(lazy_kernel, c, m, q, scorer), partial(dense, c, m, q, scorer))
            assert (calls[0]().indices == calls[1]().indices).all()
            one, other = alternate(5 if quick else 15, *calls)
            used = "lazy" if n > greedy._LARGE and (theta or m >= greedy._MANY) else "dense"
            print(
                f"{f'{n}, {m}':>20} {theta:>5} {one:>8.2f} {other:>8.2f} ms "
                f"{one / other:>6.2f}  used: {used}"
            )
    print("\nfeatures given: time with the kernel formed over that of the lazy search")
    for n, m, d in LAZY:
        x, q = features("gaussian", n, d), relevance(n).astype(float)
        for theta in (0.0, 0.8):
            scorer = Scorer.of_features(x, q, theta=theta)
            formed = lambda x=x, m=m, q=q, s=scorer: greedy_map_trusted(  # noqa: E731
                FeatureRowSource(x).gram(), m, s, quality=q
            )
            calls = (formed, partial(lazy, x, m, q, scorer))
            assert (calls[0]().indices == calls[1]().indices).all()
            one, other = alternate(3 if quick or n > 500 else 30, *calls)
            used = "kernel" if n <= max(greedy._SMALL, min(2 * m, greedy._LARGE)) else "lazy"
            print(
                f"{f'{n}, {m}, {d}':>20} {theta:>5} {one:>8.2f} {other:>8.2f} ms "
                f"{one / other:>6.2f}  used: {used}"
            )


def bench_small() -> None:
    x, losses = features("gaussian", 30, 7850).astype(np.float64), np.linspace(0.5, 2.5, 30)
    print("\n30 updates of length 7850, m = 18, kernel included; ms")
    for theta in (0.0, 0.8):
        spent = alternate(
            200, lambda theta=theta: greedy_map_features(x, 18, quality=losses, theta=theta)
        )[0]
        print(f"{'theta':>15} {theta:>4} {spent:>10.3f}  below 1: {verdict(spent < SMALL_LIMIT)}")


def bench_bound(quick: bool) -> None:
    """Where nothing is dismissed early, all rows have to be multiplied by all picks."""
    print("\nfeatures given, theta = 0, against the matrix product of all rows and the picks; ms")
    print(f"{'N, m, d':>20} {'rows':>10} {'product':>10} {'adcs':>8} {'ratio':>6}")
    for n, m, d, _ in SIZES[:-1] if quick else SIZES:
        for kind in ("gaussian", "clustered"):
            x = features(kind, n, d)
            search = partial(greedy_map_features, x, m)
            picked = np.ascontiguousarray(x[search().indices].T)
            out = np.empty((n, m), dtype=np.float32)
            bound, ours = alternate(3 if quick else 7, partial(np.matmul, x, picked, out), search)
            print(
                f"{f'{n}, {m}, {d}':>20} {kind:>10} {bound:>10.1f} {ours:>8.1f} "
                f"{ours / bound:>6.1f}  at most {BOUND:g}: {verdict(ours <= BOUND * bound)}"
            )


def bench_memory() -> None:
    print("\nmemory beyond the features, 1000000 x 128 in float32, m = 100; MB")
    for kind in ("gaussian", "clustered"):
        for theta in ("0.5", "0.0"):
            command = [sys.executable, __file__, "--memory", kind, theta]
            used = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(
                f"{kind:>12} {theta:>7} {used:>10.0f}  "
                f"at most {MEMORY_LIMIT}: {verdict(used <= MEMORY_LIMIT)}"
            )


def peak() -> float:
    """Peak memory in MB, from Linux's /proc: getrusage would count the parent process too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def memory_used(kind: str, theta: float) -> float:
    """Peak memory of this process beyond what it needs to hold the features."""
    x, scores = features(kind, 1_000_000, 128), relevance(1_000_000)
    before = peak()
    greedy_map_features(x, 100, quality=scores, theta=theta)
    return peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument("--paths", action="store_true", help="only the searches among themselves")
    parser.add_argument("--bound", action="store_true", help="only theta = 0 and its bound")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(memory_used(options.memory[0], float(options.memory[1])))
        return
    if options.bound:
        bench_bound(options.quick)
        return
    if options.paths:
        bench_kernels(options.quick)
        bench_paths(options.quick)
        return
    bench_features(options.quick)
    bench_bound(options.quick)
    bench_kernels(options.quick)
    bench_paths(options.quick)
    bench_small()
    if not options.quick:
        bench_memory()


if __name__ == "__main__":
    main()
