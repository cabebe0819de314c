"""Selection cost of every scheduler: milliseconds in a round, and the most memory.

    python benchmarks/bench_schedulers.py            # N = 1,000 and 10,000, m = 50
    python benchmarks/bench_schedulers.py 1000 Oort  # one size, some schedulers

A round is request, observe of the answers, select, and observe of the cohort's replies. Clients'
answers are made up before the clock starts. The first rounds, with fits and first probes, are
listed apart from the others.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np

import adcs
from adcs.reports import SIGNALS, ReportTable

M, WIDTH, CLASSES, ROUNDS = 50, 64, 10, 8
SETTINGS = {
    # The first fit comes after the warm-up; with one round of it, the benchmark sees it.
    "FedCor": {"warm_up": 1, "refit_every": 4},
}
NAMES = [
    "Uniform",
    "PowerOfChoice",
    "ActiveFL",
    "OCS",
    "TiFL",
    "FedCS",
    "REFL",
    "DivFL",
    "StaticDPP",
    "ClusteredSampling",
    "FedCor",
    "HiCSFL",
    "FedCBS",
    "FLIPS",
    "ADCS",
    "LiveADCS",
    "Oort",
]


def answers(clients, server_round, signals, facts, rng):
    """Made-up answers, by the declarations of the signals, with the facts of all clients."""
    n = len(clients)
    columns = {name: column[list(clients)] for name, column in facts.items()}
    for name in sorted(signals):
        kind = SIGNALS[name].kind
        width = {"vector": WIDTH, "per_class": CLASSES}.get(kind)
        shape = n if width is None else (n, width)
        columns[name] = rng.uniform(0.1, min(2.0, SIGNALS[name].maximum), shape)
    return ReportTable(tuple(clients), server_round, **columns)


def measure(name: str, n: int) -> None:
    """Print the times of one scheduler."""
    rng = np.random.default_rng(0)
    scheduler = getattr(adcs, name)(**SETTINGS.get(name, {}))
    clients = tuple(range(n))
    facts = {
        "examples": rng.integers(10, 100, n),
        "compute_seconds": rng.uniform(0.1, 2.0, n),
        "communication_seconds": rng.uniform(0.1, 2.0, n),
    }
    scheduler.observe(0, ReportTable(clients, 0, **facts), "enrolment")
    # Everyone has trained once, as after many rounds.
    everyone = answers(clients, 0, scheduler.training_signals, facts, rng)
    if scheduler.training_signals and "training" in scheduler.observed_sources:
        scheduler.observe(0, everyone, "training")
    times = []
    for server_round in range(ROUNDS):
        spent = -time.perf_counter()
        request = scheduler.request(server_round, clients, M)
        spent += time.perf_counter()
        probe = answers(request.clients, server_round, request.signals, facts, rng)
        spent -= time.perf_counter()
        if request.clients:
            scheduler.observe(server_round, probe, "probe")
        cohort = scheduler.select(server_round, clients, M)
        spent += time.perf_counter()
        replies = answers(cohort.clients, server_round, scheduler.training_signals, facts, rng)
        spent -= time.perf_counter()
        if scheduler.training_signals and cohort.clients:
            scheduler.observe(server_round, replies, "training")
        times.append(1000 * (spent + time.perf_counter()))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    first, later = max(times[:3]), float(np.median(times[3:]))
    print(f"{name:18} {n:7,} {first:12,.1f} {later:12,.1f} {memory:8,.0f}", flush=True)


def main() -> None:
    """Measure each scheduler in a process of its own."""
    given = sys.argv[1:]
    if given[:1] == ["--one"]:
        measure(given[1], int(given[2]))
        return
    sizes = [int(word) for word in given if word.isdigit()] or [1_000, 10_000]
    names = [word for word in given if not word.isdigit()] or NAMES
    print(f"{'scheduler':18} {'N':>7} {'first, ms':>12} {'a round, ms':>12} {'MiB':>8}")
    for n in sizes:
        for name in names:
            subprocess.run([sys.executable, __file__, "--one", name, str(n)], check=True)


if __name__ == "__main__":
    main()
