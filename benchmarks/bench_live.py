"""What LiveADCS costs the server: beside the paper's ADCS, and its kernel against rebuilding it.

    python benchmarks/bench_live.py

Selection: milliseconds a round for everything a scheduler does (request, observe, select, observe),
on made-up clients whose updates have 7,850 numbers (N = 30) or are sketches of 256 (beyond).
Kernel: taking in m new rows against multiplying all N anew, medians. The contenders take turns; one
thread.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import time

import numpy as np

import adcs
from adcs.dpp.kernel import unit_rows
from adcs.reports.report import ClientReport
from adcs.schedulers.live_adcs import LiveKernel

SIZES = [(30, 18, 7850), (1000, 18, 256), (10_000, 18, 256)]


class Rounds:
    """A scheduler and made-up clients, round after round."""

    def __init__(self, scheduler: adcs.Scheduler, n: int, m: int, d: int) -> None:
        rng = np.random.default_rng(0)
        self.scheduler, self.m = scheduler, m
        self.clients = tuple(range(n))
        self.rows = rng.standard_normal((n, d), dtype=np.float32)
        self.rows += 2.0 * rng.standard_normal((10, d), dtype=np.float32)[np.arange(n) % 10]
        self.losses = rng.uniform(1.0, 2.0, n)
        self.server_round = 0

    def play(self) -> float:
        """Return the scheduler's milliseconds in one round."""
        spent = 0.0
        rng = np.random.default_rng(self.server_round)

        def reports(clients: tuple[int, ...]) -> list[ClientReport]:
            noise = rng.uniform(0.9, 1.1, len(clients))
            return [
                ClientReport(c, self.server_round, loss=self.losses[c] * x, update=self.rows[c] * x)
                for c, x in zip(clients, noise, strict=True)
            ]

        start = time.perf_counter()
        request = self.scheduler.request(self.server_round, self.clients, self.m)
        spent += time.perf_counter() - start
        told = reports(request.clients)
        start = time.perf_counter()
        self.scheduler.observe(self.server_round, told, "probe")
        cohort = self.scheduler.select(self.server_round, self.clients, self.m)
        spent += time.perf_counter() - start
        told = reports(cohort.clients)
        start = time.perf_counter()
        self.scheduler.observe(self.server_round, told, "training")
        spent += time.perf_counter() - start
        self.server_round += 1
        return 1e3 * spent


def bench_rounds() -> None:
    print("ms a round, mean over 40 rounds after the first")
    print(f"{'N, m, d':>18} {'LiveADCS':>9} {'ADCS R=20':>10} {'ADCS R=1':>9}")
    for n, m, d in SIZES:
        runs = [
            Rounds(scheduler, n, m, d)
            for scheduler in (
                adcs.LiveADCS(),
                adcs.ADCS(refresh_every=20),
                adcs.ADCS(refresh_every=1),
            )
        ]
        times = np.array([[run.play() for run in runs] for _ in range(41)])[1:]
        live, twenty, one = times.mean(axis=0)
        print(f"{f'{n}, {m}, {d}':>18} {live:>9.2f} {twenty:>10.2f} {one:>9.2f}")


def bench_kernel() -> None:
    print("\nms to take in m new rows, and to compute the similarity anew")
    print(f"{'N, m, d':>18} {'row by row':>11} {'rebuilt':>9} {'ratio':>7}")
    for n, m, d in SIZES:
        rng = np.random.default_rng(1)
        unit = unit_rows(rng.standard_normal((n, d), dtype=np.float32))
        kernel = LiveKernel(gram_limit=10_000)  # the matrix is kept at every size here
        kernel.update(np.arange(n), unit, np.ones(n))
        fresh = unit_rows(rng.standard_normal((m, d), dtype=np.float32))
        times: list[tuple[float, float]] = []
        for repeat in range(3 if n == 10_000 else 31):
            clients = np.sort(np.random.default_rng(repeat).permutation(n)[:m])
            start = time.perf_counter()
            kernel.update(clients, fresh, np.ones(m))
            middle = time.perf_counter()
            np.asarray(kernel.unit @ kernel.unit.T, dtype=np.float64)
            times.append((middle - start, time.perf_counter() - middle))
        ours, anew = 1e3 * np.median(times, axis=0)
        print(f"{f'{n}, {m}, {d}':>18} {ours:>11.3f} {anew:>9.3f} {anew / ours:>7.1f}")


if __name__ == "__main__":
    bench_rounds()
    bench_kernel()
