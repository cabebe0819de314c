"""What LiveADCS costs the server: beside ADCS and Uniform, and its kernel against rebuilding it.

    python benchmarks/bench_live.py
    python benchmarks/bench_live.py --large          # N = 100,000 and 1,000,000

Selection: milliseconds a round for everything a scheduler does (request, observe, select, observe),
on made-up clients whose updates have 7,850 numbers (N = 30) or are sketches of 256 (beyond), and
half persist from round to round, as on networks.
Kernel: taking in m new rows against multiplying all N anew, medians. The contenders take turns; one
thread. Large: sketches of 256 in a `ReportTable`, and the first observation also as a list of
reports at N = 100,000; each scheduler in a process of its own, whose largest memory includes the
rows that are reported (1.0 GB at a million).
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

import adcs
from adcs._types import FloatArray
from adcs.dpp.kernel import unit_rows
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketch, Sketches
from adcs.reports.table import ReportTable
from adcs.schedulers.live_adcs import LiveKernel

SCHEDULERS = {
    "LiveADCS": lambda: adcs.LiveADCS(),
    "ADCS": lambda: adcs.ADCS(refresh_every=1000),
    "Uniform": lambda: adcs.Uniform(),
}
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

    def update(self, client: int) -> FloatArray:
        """Return a client's update, half of which is another one in each round."""
        other = (client + 7 * self.server_round + 1) % len(self.rows)
        return np.asarray(self.rows[client] + self.rows[other])

    def play(self) -> float:
        """Return the scheduler's milliseconds in one round."""
        spent = 0.0
        rng = np.random.default_rng(self.server_round)

        def reports(clients: tuple[int, ...]) -> list[ClientReport]:
            noise = rng.uniform(0.9, 1.1, len(clients))
            return [
                ClientReport(c, self.server_round, loss=self.losses[c] * x, update=self.update(c))
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
    print(f"{'N, m, d':>18} {'LiveADCS':>9} {'ADCS R=20':>10} {'ADCS R=1':>9} {'Uniform':>8}")
    for n, m, d in SIZES:
        runs = [
            Rounds(scheduler, n, m, d)
            for scheduler in (
                adcs.LiveADCS(),
                adcs.ADCS(refresh_every=20),
                adcs.ADCS(refresh_every=1),
                adcs.Uniform(),
            )
        ]
        times = np.array([[run.play() for run in runs] for _ in range(41)])[1:]
        live, twenty, one, uniform = times.mean(axis=0)
        print(f"{f'{n}, {m}, {d}':>18} {live:>9.2f} {twenty:>10.2f} {one:>9.2f} {uniform:>8.2f}")


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


def bench_large() -> None:
    print("m = 100, sketches of 256; a round is request, select and observe, mean of 20")
    print(f"{'N':>9} {'':>10} {'first, s':>9} {'of a list':>9} {'ms a round':>10} {'GB':>6}")
    for n in (100_000, 1_000_000):
        for name in SCHEDULERS:
            command = [sys.executable, __file__, "--one", name, str(n)]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            print(f"{n:>9} {name:>10} {found.stdout.strip()}", flush=True)


def bench_one(name: str, n: int, m: int = 100, d: int = 256) -> None:
    """Print the seconds of the first observation, the time of a round, and the memory."""
    rng = np.random.default_rng(0)
    rows = np.empty((n, d), dtype=np.float32)
    centres = 2.0 * rng.standard_normal((10, d), dtype=np.float32)
    for start in range(0, n, 10_000):
        rows[start : start + 10_000] = rng.standard_normal((10_000, d), dtype=np.float32)
        rows[start : start + 10_000] += centres[np.arange(10_000) % 10]
    norms, losses = np.full(n, 3.0), rng.uniform(1.0, 2.0, n)
    clients = tuple(range(n))

    def reports(server_round: int, chosen: tuple[int, ...]) -> list[ClientReport]:
        return [
            ClientReport(
                c,
                server_round,
                loss=float(losses[c]),
                sketch=Sketch(rows[c] + rows[(c + 7 * server_round + 1) % n], 3.0, 7850),
            )
            for c in chosen
        ]

    scheduler = SCHEDULERS[name]()
    scheduler.request(0, clients, m)
    table = ReportTable(clients, 0, loss=losses, sketch=Sketches(rows, norms, 7850))
    start = time.perf_counter()
    scheduler.observe(0, table, "probe")
    first = time.perf_counter() - start
    times = []
    for server_round in range(21):
        start = time.perf_counter()
        scheduler.request(server_round, clients, m)
        cohort = scheduler.select(server_round, clients, m)
        spent = time.perf_counter() - start
        replies = reports(server_round, cohort.clients)
        start = time.perf_counter()
        scheduler.observe(server_round, replies, "training")
        times.append(1e3 * (spent + time.perf_counter() - start))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    listed = ""
    if n <= 100_000:
        told, twin = reports(0, clients), SCHEDULERS[name]()
        start = time.perf_counter()
        twin.observe(0, told, "probe")
        listed = f"{time.perf_counter() - start:.2f}"
    print(f"{first:>9.2f} {listed:>9} {np.mean(times[1:]):>10.1f} {memory:>6.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("SCHEDULER", "N"))
    chosen = parser.parse_args()
    if chosen.one:
        bench_one(chosen.one[0], int(chosen.one[1]))
    elif chosen.large:
        bench_large()
    else:
        bench_rounds()
        bench_kernel()
