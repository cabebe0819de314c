"""What scheduling adds to a Flower federation.

Part 1, at the server: 1,000 nodes on a LocalGrid, sketches of 256 numbers, a probe of everyone in
every round. Kernel and selection are the scheduler's own `observe` and `select`; reading 1,000
answers is timed beside them. Part 2, at the client: a local epoch over 6,000 examples of a network
with 1,000,000 parameters, alone and as a probe; the mod's share is what sketching adds. Part 3
(`--sizes`): the memory of the process and CPU seconds a round for many nodes and for large models,
beside FedAvg alone, each in a process of its own. The seconds leave out the time inside the grid,
where clients work in this process; the memory includes clients, one at a time. Part 4 (`--memory`):
by how much the memory grows for each reply in hand, and over 2,000 rounds.

    OPENBLAS_NUM_THREADS=1 python benchmarks/bench_flower.py [--nodes 1000] [--rounds 5]
    OPENBLAS_NUM_THREADS=1 python benchmarks/bench_flower.py --sizes
    OPENBLAS_NUM_THREADS=1 python benchmarks/bench_flower.py --memory
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import resource
import statistics
import time
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs.federated import ReplyChecks, SentModel, plan_probe
from adcs.flower import LocalGrid, Scheduled, probe_mod
from adcs.flower.transport import probe_messages
from adcs.observers import Observer
from adcs.schedulers.base import Request

K = 256
KINDS = ("FedAvg", "ADCS", "LiveADCS")


class Timed(adcs.ADCS):
    """ADCS with a stopwatch around the kernel's evidence and the selection."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seconds: list[float] = []

    def observe(self, server_round: int, reports: Any, source: Any) -> None:
        started = time.perf_counter()
        super().observe(server_round, reports, source)
        if source == "probe":
            self.seconds.append(time.perf_counter() - started)

    def select(self, server_round: int, available: Any, m: int, pending: Any = ()) -> adcs.Cohort:
        started = time.perf_counter()
        cohort = super().select(server_round, available, m, pending)
        self.seconds[-1] += time.perf_counter() - started
        return cohort


def toy_app(points: np.ndarray) -> ClientApp:
    app = ClientApp(mods=[probe_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy()
        step = points[int(context.node_config["partition-id"])] - w
        metrics = MetricRecord({"train_loss": float(step @ step), "num-examples": 10})
        arrays = ArrayRecord({"w": Array(w + 0.1 * step)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def server(nodes: int, m: int, rounds: int) -> None:
    points = np.random.default_rng(0).normal(size=(nodes, 1000))
    grid = LocalGrid(toy_app(points), nodes)
    scheduler = Timed(refresh_every=1, sketch=adcs.Sketcher(size=K))
    strategy = Scheduled(FedAvg(fraction_evaluate=0.0), scheduler, clients_per_round=m)
    started = time.perf_counter()
    initial = ArrayRecord({"w": Array(np.zeros(1000))})
    result = strategy.start(grid, initial, num_rounds=rounds)
    whole = (time.perf_counter() - started) / rounds
    schedule = [r["adcs-schedule-seconds"] for r in result.train_metrics_clientapp.values()]
    kernel = 1e3 * statistics.median(scheduler.seconds)
    reading = 1e3 * statistics.median(schedule) - kernel
    print(f"server: {nodes} nodes, k = {K}, m = {m}, everyone probed in each of {rounds} rounds")
    print(f"  kernel and selection {kernel:8.1f} ms a round (limit 50)")
    print(f"  reading the answers  {reading:8.1f} ms a round")
    print(f"  whole round          {1e3 * whole:8.1f} ms, clients' own work on one core included")


def epoch(x: np.ndarray, y: np.ndarray, weights: list[np.ndarray], batch: int) -> float:
    """One epoch of SGD on a two-layer network, in place; return the mean loss."""
    a, b = weights
    total = 0.0
    for start in range(0, len(x), batch):
        rows, labels = x[start : start + batch], y[start : start + batch]
        hidden = np.maximum(rows @ a, 0.0)
        scores = hidden @ b
        scores -= scores.max(axis=1, keepdims=True)
        p = np.exp(scores)
        p /= p.sum(axis=1, keepdims=True)
        total -= float(np.log(p[np.arange(len(rows)), labels] + 1e-12).sum())
        p[np.arange(len(rows)), labels] -= 1.0
        p /= len(rows)
        back = (p @ b.T) * (hidden > 0)
        b -= 0.05 * (hidden.T @ p)
        a -= 0.05 * (rows.T @ back)
    return total / len(x)


def client(repeats: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.random((6000, 784), dtype=np.float32)
    y = rng.integers(0, 10, size=6000)
    hidden = 1_000_000 // 794 + 1
    weights = {
        "a": rng.normal(scale=0.03, size=(784, hidden)).astype(np.float32),
        "b": rng.normal(scale=0.03, size=(hidden, 10)).astype(np.float32),
    }
    d = sum(array.size for array in weights.values())
    spent: list[float] = []
    app = ClientApp(mods=[probe_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        started = time.perf_counter()
        arrays = message.content["arrays"].to_numpy_ndarrays()
        loss = epoch(x, y, arrays, batch=32)
        new = ArrayRecord(dict(zip("ab", map(Array, arrays), strict=True)))
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
        spent.append(time.perf_counter() - started)
        return Message(RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)

    grid = LocalGrid(app, 1)
    model = ArrayRecord({key: Array(array) for key, array in weights.items()})
    content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 1})})
    training = Message(content, grid.nodes[0].node_id, "train")
    probe = plan_probe(
        Request((0,), frozenset({"update", "loss"}), adcs.Sketcher(size=K)),
        0,
        SentModel(weights),
        ReplyChecks("num-examples", "train_loss"),
    )
    extra = []
    for _ in range(repeats):
        [message] = probe_messages(probe, [training], ConfigRecord())
        started = time.perf_counter()
        [reply] = grid.send_and_receive([message])
        extra.append(time.perf_counter() - started - spent[-1])
        assert "sketch" in reply.content["adcs-answer"]
    share = 100 * statistics.median(extra) / statistics.median(spent)
    print(f"client: d = {d:,}, an epoch over {len(x):,} examples in batches of 32")
    print(f"  epoch                {1e3 * statistics.median(spent):8.1f} ms")
    print(
        f"  added by the probe   {1e3 * statistics.median(extra):8.1f} ms = {share:.2f} % (limit 5)"
    )


class ClientTime(LocalGrid):
    """A grid with a stopwatch around the work of the clients.

    It counts CPU time, which on a busy machine changes less than the time that passes.
    """

    seconds = 0.0

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)  # Flower's strategies make them on demand.
        started = time.process_time()
        try:
            return super().push_messages(messages)
        finally:
            self.seconds += time.process_time() - started


class RoundTimes(Observer):
    """Times each round without the time inside the grid."""

    def __init__(self, grid: ClientTime) -> None:
        self.grid = grid
        self.last = time.process_time() - grid.seconds
        self.seconds: list[float] = []

    def on_round(self, event: Any) -> None:
        now = time.process_time() - self.grid.seconds
        self.seconds.append(now - self.last)
        self.last = now


def large_app(nodes: int) -> ClientApp:
    """Return an app whose clients move the model in different directions."""
    app = ClientApp(mods=[probe_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"].pop("w").numpy()
        client = int(context.node_config["partition-id"])
        w[client::nodes] += 1.0
        metrics = MetricRecord({"train_loss": 1.0 + client / nodes, "num-examples": 10})
        arrays = ArrayRecord({"w": Array(w)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def measure(kind: str, nodes: int, d: int, m: int, rounds: int) -> tuple[float, float, float]:
    """Return seconds of the first round and of a later one, and the largest memory in GB."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    grid = ClientTime(large_app(nodes), nodes)
    initial = ArrayRecord({"w": Array(np.zeros(d, np.float32))})
    sketch = adcs.Sketcher(size=K)
    times = RoundTimes(grid)
    if kind == "FedAvg":
        base = FedAvg(fraction_train=m / nodes, fraction_evaluate=0.0)
        started = time.process_time()
        base.start(grid, initial, num_rounds=rounds)
        times.seconds = [(time.process_time() - started - grid.seconds) / rounds] * rounds
    else:
        scheduler: Any = adcs.LiveADCS(sketch=sketch)
        if kind == "ADCS":
            scheduler = adcs.ADCS(refresh_every=1, sketch=sketch)
        base = FedAvg(fraction_evaluate=0.0)
        strategy = Scheduled(base, scheduler, clients_per_round=m, observers=[times])
        strategy.start(grid, initial, num_rounds=rounds)
    return times.seconds[0], statistics.median(times.seconds[1:]), peak_gb()


def peak_gb() -> float:
    """Return the largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def sizes() -> None:
    print("sizes: CPU seconds a round at the server (the first, a later one) and memory in GB")
    print("   nodes  parameters     m  scheduler    first    later   memory")
    cases = [(n, 1000, 100) for n in (1000, 5000, 20_000)]
    cases += [(20, d, 10) for d in (1_000_000, 10_000_000)]
    cases += [(100, 10_000_000, 10), (20, 50_000_000, 10)]
    for nodes, d, m in cases:
        for kind in KINDS:
            first, later, peak = apart(measure, kind, nodes, d, m, 3)
            print(
                f"{nodes:8,} {d:11,} {m:5}  {kind:9} {first:8.2f} {later:8.2f} {peak:8.2f}",
                flush=True,
            )


def apart(function: Any, *arguments: Any) -> Any:
    """Return the result of a function, called in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


class Growth(Observer):
    """Notes the memory of the process after each round."""

    def __init__(self) -> None:
        self.mb: list[float] = []

    def on_round(self, event: Any) -> None:
        with open("/proc/self/statm") as file:
            self.mb.append(int(file.read().split()[1]) * resource.getpagesize() / 1e6)


def grow(kind: str, rounds: int) -> float:
    """Return by how many MB the memory grows from a tenth of the rounds to the end."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    points = np.random.default_rng(0).normal(size=(30, 100))
    growth = Growth()
    scheduler = getattr(adcs, kind)()
    strategy = Scheduled(
        FedAvg(fraction_evaluate=0.0), scheduler, clients_per_round=10, observers=[growth]
    )
    grid = LocalGrid(toy_app(points), 30)
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(100))}), num_rounds=rounds)
    return growth.mb[-1] - growth.mb[rounds // 10]


def memory() -> None:
    d, few, many = 9_000_000, 4, 16
    print(f"memory: in models of {d:,} parameters, for a cohort of {few}, of {many}, a reply")
    for kind in KINDS:
        peaks = [apart(measure, kind, 20, d, m, 3)[2] for m in (few, many)]
        models = [1e9 * (peak - apart(peak_gb)) / (4 * d) for peak in peaks]
        slope = (models[1] - models[0]) / (many - few)
        print(f"  {kind:9} {models[0]:8.1f} {models[1]:8.1f} {slope:8.2f}", flush=True)
    rounds = 2000
    for kind in ("Uniform", *KINDS[1:]):
        grown = apart(grow, kind, rounds)
        print(f"  {kind:9} {rounds} rounds of 30 clients: {grown:+.1f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", action="store_true", help="part 3 alone")
    parser.add_argument("--memory", action="store_true", help="part 4 alone")
    arguments = parser.parse_args()
    if arguments.sizes or arguments.memory:
        for wanted, part in ((arguments.sizes, sizes), (arguments.memory, memory)):
            if wanted:
                part()
        return
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server(arguments.nodes, arguments.cohort, arguments.rounds)
    client(repeats=3)
    sizes()
    memory()


if __name__ == "__main__":
    main()
