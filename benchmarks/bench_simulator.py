"""The simulator beside PyTorch loops that do the same six methods' work.

    python benchmarks/bench_simulator.py [--rounds 1500] [--repeats 3]

The workload is the paper's: Fashion-MNIST by class, N = 30, m = 18, softmax regression, batch 16,
one step, an evaluation on the whole test set every 100 rounds, six schedulers.

- adcs: one shared pass for all six (`adcs compare --pass-width 6`), a process for each thread: on
  two threads two seeds at a time. Beside it one seed alone on two threads, as `adcs compare` runs
  it unless told otherwise: two processes with a pass of three each.
- plain: a PyTorch loop over clients, one method after the other: tensor indexing, the global model
  copied, one step of `torch.optim.SGD`, the difference sent back. Losses
  of all clients for PowerOfChoice, gradients of all clients for OCS, and every 20 rounds for
  DivFL and ADCS.
- lean: PyTorch without autograd, all clients of a method in one product, gradients by hand.
- bound: the two matrix products of a round alone, forward and backward, for all six methods.

PyTorch runs in one process with the same number of threads; the loop over clients, which gains
little from a second thread, is also shown as a process a seed with one thread each. The loops
alternate, and medians are compared. `--only scaling` measures the cost of a round from 30 to 30,000
clients, `--only large` that of Uniform and of ADCS with sketches at 100,000 clients, and
`--only memory` the peak memory of the comparison.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from statistics import median

import numpy as np

from adcs.dpp.facility_location import facility_location, pairwise_distances
from adcs.dpp.greedy import greedy_map_features
from adcs.experiments.config import Experiment
from adcs.simulation.datasets import from_arrays

METHODS = ("Uniform", "PowerOfChoice", "OCS", "DivFL", "StaticDPP", "ADCS")
PLAIN = "PyTorch, loop over clients"
BOUND = "bound: its two matrix products alone"
Loop = Callable[[int], float]  # from a number of rounds to the seconds they take
N, M, BATCH, RATE, REFRESH, EVALUATE = 30, 18, 16, 0.001, 20, 100


def run_adcs(simulation, rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        if simulation.server_round % EVALUATE == 0:
            simulation.evaluate()
        simulation.step()
    return time.perf_counter() - start


class TorchLoop:
    """Six methods, one after the other; `lean` batches all clients and writes gradients by hand."""

    def __init__(self, federation, lean: bool) -> None:
        import torch

        self.torch, self.lean = torch, lean
        data = federation.dataset
        self.x = torch.tensor(data.x_train.astype(np.float32) / 255)
        self.y = torch.tensor(data.y_train.astype(np.int64))
        self.x_test = torch.tensor(data.x_test.astype(np.float32) / 255)
        self.y_test = torch.tensor(data.y_test.astype(np.int64))
        self.parts = [torch.tensor(part) for part in federation.partition.train]
        self.generator = torch.Generator().manual_seed(0)
        self.models = {name: torch.nn.Linear(784, 10) for name in METHODS}
        self.local = torch.nn.Linear(784, 10)
        for model in self.models.values():
            torch.nn.init.zeros_(model.weight)
            torch.nn.init.zeros_(model.bias)
        self.cohorts: dict[str, list[int]] = {}
        self.server_round = 0

    def batch(self, client: int):
        part = self.parts[client]
        rows = part[self.torch.randint(len(part), (BATCH,), generator=self.generator)]
        return self.x[rows], self.y[rows]

    def batches(self, clients):
        x, y = zip(*(self.batch(client) for client in clients), strict=True)
        return self.torch.stack(x), self.torch.stack(y)

    def losses(self, model) -> np.ndarray:
        cross_entropy = self.torch.nn.functional.cross_entropy
        with self.torch.no_grad():
            if self.lean:
                x, y = self.batches(range(N))
                logits = x.reshape(-1, 784) @ model.weight.T + model.bias
                losses = cross_entropy(logits, y.reshape(-1), reduction="none")
                return losses.reshape(N, BATCH).mean(1).numpy()
            return np.array(
                [cross_entropy(model(x), y).item() for x, y in map(self.batch, range(N))]
            )

    def gradients(self, model, clients):
        torch = self.torch
        if self.lean:
            with torch.no_grad():
                x, y = self.batches(clients)
                delta = torch.softmax(x @ model.weight.T + model.bias, dim=2)
                delta.scatter_add_(
                    2, y[:, :, None], torch.full_like(y, -1.0, dtype=x.dtype)[:, :, None]
                )
                delta /= BATCH
                weight = torch.bmm(delta.transpose(1, 2), x)
                return torch.cat([weight.reshape(len(clients), -1), delta.sum(1)], dim=1)
        # What a loop over clients does: the global model copied, a step of SGD, the difference.
        rows = []
        local = self.local
        before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        for client in clients:
            x, y = self.batch(client)
            local.load_state_dict(model.state_dict())
            optimizer = torch.optim.SGD(local.parameters(), lr=RATE)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(local(x), y).backward()
            optimizer.step()
            after = torch.cat([p.detach().reshape(-1) for p in local.parameters()])
            rows.append((before - after) / RATE)
        return torch.stack(rows)

    def mean_gradient(self, model, clients):
        if not self.lean:
            return self.gradients(model, clients).mean(0)
        with self.torch.no_grad():
            torch = self.torch
            x, y = self.batches(clients)
            x, y = x.reshape(-1, 784), y.reshape(-1)
            delta = torch.softmax(x @ model.weight.T + model.bias, dim=1)
            delta[torch.arange(len(y)), y] -= 1
            delta /= len(y)
            return torch.cat([(delta.T @ x).reshape(-1), delta.sum(0)])

    def step(self, name: str) -> None:
        model, everyone = self.models[name], list(range(N))
        rows = None
        due = self.server_round % REFRESH == 0
        if name == "Uniform":
            chosen = np.random.default_rng(self.server_round).choice(N, M, replace=False).tolist()
        elif name == "PowerOfChoice":
            chosen = np.argsort(-self.losses(model))[:M].tolist()
        elif name == "OCS":
            rows = self.gradients(model, everyone)
            chosen = np.argsort(-rows.norm(dim=1).numpy())[:M].tolist()
        elif name not in self.cohorts or (due and name != "StaticDPP"):
            rows = self.gradients(model, everyone)
            array = rows.numpy().astype(np.float64)
            if name == "DivFL":
                picked = facility_location(pairwise_distances(array), M).indices
            else:
                theta = 0.8 if name == "ADCS" else 0.0
                quality = self.losses(model) if theta else None
                picked = greedy_map_features(array, M, quality=quality, theta=theta).indices
            chosen = self.cohorts[name] = picked.tolist()
        else:
            chosen = self.cohorts[name]
        update = self.mean_gradient(model, chosen) if rows is None else rows[chosen].mean(0)
        with self.torch.no_grad():
            model.weight -= RATE * update[:7840].reshape(10, 784)
            model.bias -= RATE * update[7840:]

    def evaluate(self, name: str) -> float:
        with self.torch.no_grad():
            right = self.models[name](self.x_test).argmax(1) == self.y_test
            return float(right.float().mean())

    def run(self, rounds: int) -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            for name in METHODS:
                if self.server_round % EVALUATE == 0:
                    self.evaluate(name)
                self.step(name)
            self.server_round += 1
        return time.perf_counter() - start


class Workers:
    """Processes that do their tasks at the same time; a task is what makes a loop, and its inputs.

    The loops do `runs` runs between them.
    """

    def __init__(self, runs: int, *tasks: tuple[Callable[..., Loop], tuple]) -> None:
        context = get_context("spawn")
        self.share, self.pipes = len(METHODS) / runs, []
        for task in tasks:
            here, there = context.Pipe()
            context.Process(target=serve, args=(there, *task), daemon=True).start()
            self.pipes.append(here)

    def run(self, rounds: int) -> float:
        """Return the seconds that the slowest took, for each six runs."""
        for pipe in self.pipes:
            pipe.send(rounds)
        return max(pipe.recv() for pipe in self.pipes) * self.share

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(0)


def serve(pipe, make: Callable[..., Loop], inputs: tuple) -> None:
    """Run as many rounds of a loop as the pipe asks for, and answer with the seconds."""
    loop = make(*inputs)
    while count := pipe.recv():
        pipe.send(loop(count))


def simulated(experiment: Experiment, seed: int, labels: tuple[str, ...]) -> Loop:
    return partial(run_adcs, experiment.simulation(seed, labels))


def products_loop(runs: int) -> Loop:
    """Return a loop over the products of a round: outputs, and gradients of the first layer."""
    rng = np.random.default_rng(0)
    x = rng.random((N * BATCH, 784), dtype=np.float32)
    w = rng.random((runs * 10, 784), dtype=np.float32)
    delta = rng.random((N * BATCH, runs * 10), dtype=np.float32)

    def loop(rounds: int) -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            x @ w.T
            delta.T @ x
        return time.perf_counter() - start

    return loop


def plain_loop(seed: int) -> Loop:
    import torch

    torch.set_num_threads(1)
    return TorchLoop(Experiment().simulation(seed).federation, lean=False).run


def compare(rounds: int, repeats: int, threads: int) -> None:
    import torch

    wide, split = (Experiment.of(pass_width=width) for width in (6, 3))
    federation = wide.simulation(0).federation
    torch.set_num_threads(threads)
    seeds, (six,) = range(threads), wide.passes()
    workers = {"adcs": Workers(6 * threads, *((simulated, (wide, seed, six)) for seed in seeds))}
    workers[BOUND] = Workers(6 * threads, *((products_loop, (6,)) for _ in seeds))
    if threads == 2:
        halves = [(simulated, (split, 0, labels)) for labels in split.passes()]
        workers["adcs, one seed in two passes"] = Workers(6, *halves)
        workers[f"{PLAIN}, a process a seed"] = Workers(12, (plain_loop, (0,)), (plain_loop, (1,)))
    loops = {name: each.run for name, each in workers.items()}
    loops["PyTorch, lean"] = TorchLoop(federation, lean=True).run
    loops[PLAIN] = TorchLoop(federation, lean=False).run
    slow = max(20, rounds // 10)
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(repeats + 1):
        for name, loop in loops.items():
            count = slow if name.startswith(PLAIN) else rounds
            rate = len(METHODS) * count / loop(count)
            if turn:  # the first is to warm up
                rates[name].append(rate)
    for each in workers.values():
        each.stop()
    middle = {name: median(values) for name, values in rates.items()}
    print(f"{f'{threads} thread(s)':45}{'run-rounds/s':>14}{'range':>14}{'adcs is faster by':>20}")
    for name, values in rates.items():
        spread = f"{min(values):.0f}-{max(values):.0f}"
        print(f"{name:45}{middle[name]:14.0f}{spread:>14}{middle['adcs'] / middle[name]:19.2f}x")


def scaling() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60000) % 10
    x = rng.integers(0, 256, (60000, 784), dtype=np.uint8)
    data = from_arrays(x, y, x[:2000], y[:2000], name="noise")
    print("\nmilliseconds per round at m = 18, evaluation excluded")
    print(f"{'N':>8}" + "".join(f"{name:>15}" for name in METHODS))
    for clients in (30, 300, 3000, 30000):
        cells = []
        for name in METHODS:
            sketch = "sketch=256, " if name in ("DivFL", "StaticDPP", "ADCS") else ""
            if name == "DivFL" and clients > 3000:
                cells.append("-")  # its distances alone are N x N
                continue
            experiment = Experiment.of(
                clients=clients, partition="iid", schedulers={name: f"{name}({sketch})"}
            )
            simulation = experiment.simulation(0, dataset=data)
            simulation.step()
            slow = clients > 300 and name not in ("Uniform", "StaticDPP")
            times = []
            for _ in range(1 if slow else 5):
                start = time.perf_counter()
                for _ in range(20):  # at least one probe of those that probe
                    simulation.step()
                times.append((time.perf_counter() - start) / 20)
            cells.append(f"{1e3 * median(times):.2f}")
        print(f"{clients:>8}" + "".join(f"{cell:>15}" for cell in cells))


def large(clients: int = 100_000, m: int = 100, refresh: int = 20) -> None:
    """Rounds of many clients: 64 features, 10 classes, d = 650; sketches of 256 numbers."""
    rng = np.random.default_rng(0)
    y = np.arange(2 * clients) % 10
    centres = rng.standard_normal((10, 64), dtype=np.float32)
    x = centres[y] + rng.standard_normal((y.size, 64), dtype=np.float32)
    data = from_arrays(x, y, x[:2000], y[:2000], name="clusters")
    print(f"\nmilliseconds per round at N = {clients:,}, m = {m}, evaluation excluded")
    print(f"{'':36}{'mean, wall':>12}{'mean, CPU':>12}{'other rounds':>14}{'peak MB':>10}")
    for spec in ("Uniform", f"ADCS(sketch=256, refresh_every={refresh})"):
        experiment = Experiment.of(
            clients=clients, m=m, lr=0.1, partition="iid", schedulers={"run": spec}
        )
        simulation = experiment.simulation(0, dataset=data)
        for _ in range(refresh):
            simulation.step()
        walls, cpus = [], []
        for _ in range(2 * refresh):  # two probes of those that probe
            wall, cpu = time.perf_counter(), time.process_time()
            simulation.step()
            walls.append(1e3 * (time.perf_counter() - wall))
            cpus.append(1e3 * (time.process_time() - cpu))
        print(
            f"{spec:36}{np.mean(walls):12.2f}{np.mean(cpus):12.2f}{median(cpus):14.2f}"
            f"{peak_memory():10.0f}"
        )


def peak_memory() -> float:
    """Return the peak memory of this process in MB."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


def memory() -> None:
    code = (
        "from adcs.experiments.config import Experiment\n"
        "s = Experiment().simulation(0)\n"
        "for _ in range(250):\n"
        "    (s.evaluate(), s.step(measured=True)) if s.server_round % 100 == 0 else s.step()\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    print(f"\npeak memory of one of its processes: {int(output.stdout.split()[1]) / 1e3:.0f} MB")


def gradients() -> None:
    """Our gradients beside autograd's."""
    import torch

    from adcs.simulation.models import MLP

    worst = 0.0
    for hidden in ((), (32,), (20, 10)):
        model = MLP(40, 7, hidden)
        rng = np.random.default_rng(0)
        w = rng.standard_normal(model.size)
        x, y = rng.standard_normal((9, 40)), rng.integers(0, 7, 9)
        _, gradient = model.loss_and_gradient(w, x, y)
        t = torch.tensor(w, requires_grad=True)
        z, start, widths = torch.tensor(x), 0, model.widths
        for i, (a, b) in enumerate(pairwise(widths)):
            weight = t[start : start + a * b].reshape(b, a)
            z = z @ weight.T + t[start + a * b : start + a * b + b]
            z = torch.relu(z) if i < len(widths) - 2 else z
            start += a * b + b
        torch.nn.functional.cross_entropy(z, torch.tensor(y)).backward()
        worst = max(worst, float(np.abs(t.grad.numpy() - gradient).max()))
    print(f"\nlargest difference to autograd's gradients: {worst:.1e}")
    assert worst < 1e-12


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["compare", "scaling", "large", "memory", "gradients"])
    arguments = parser.parse_args()
    if arguments.only in (None, "compare"):
        for threads in (1, 2):
            compare(arguments.rounds, arguments.repeats, threads)
    if arguments.only in (None, "gradients"):
        gradients()
    if arguments.only in (None, "scaling"):
        scaling()
    if arguments.only in (None, "large"):
        large()
    if arguments.only in (None, "memory"):
        memory()
