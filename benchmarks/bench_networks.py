"""Local training of networks beside a plain PyTorch loop, pfl-research and Flower's simulation.

    python benchmarks/bench_networks.py [--repeats 5] [--only cnn mlp] [--compiled] [--flower]

All train the same networks on the same examples: 10 clients of 100 examples, one epoch in 5 steps
of 20, from one global model, on one thread; updates are averaged. The table has client-local-epochs
per CPU second, and the ratio to pfl-research (to the plain loop where pfl is not installed: it is
`pip install pfl==0.6.0`, which needs attrs < 24). The loops alternate, and medians are compared.

- adcs: `local_update` of `TorchModel`, or for the MLP the NumPy model, all clients at once.
- adcs compiled: `TorchModel(compile=True)`.
- adcs E = 1: aggregates of single steps by `weighted_gradient`; 5 rounds make an epoch.
- plain: the global model copied, `DataLoader`, `torch.optim.SGD`.
- pfl: `FederatedAveraging` of pfl-research 0.6 with its `PyTorchModel`, user after user.
- Flower: `flwr.simulation` on Ray with one actor; wall time of its rounds, after the first.

`--only memory` prints the peak memory of a comparison of six schedulers with the CNN, m = 50, and
`--only processes` the speed of two processes against one.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import copy
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from adcs.schedulers import ADCS, OCS, DivFL, PowerOfChoice, StaticDPP, Uniform
from adcs.simulation import (
    MLP,
    Dataset,
    Federation,
    LocalSGD,
    Simulation,
    TorchModel,
    Training,
    from_arrays,
    make_partition,
)
from adcs.simulation.networks import ResNet8

CLIENTS, STEPS, BATCH, RATE = 10, 5, 20, 0.01
OWN = STEPS * BATCH  # examples of a client


class LargeCNN(nn.Module):
    """The CNN of McMahan et al. (2017): 1.66 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.reshape(-1, 1, 28, 28))


class CharLSTM(nn.Module):
    """LEAF's LSTM for Shakespeare: 0.8 million parameters, on 20 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.lstm(self.embedding(x))[0][:, -1])


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def resnet() -> nn.Module:
    return ResNet8((3, 32, 32), 10)


def data_of(shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(CLIENTS * OWN) % classes
    x = rng.random((y.size, *shape), dtype=np.float32)
    if vocabulary is not None:
        x = rng.integers(0, vocabulary, x.shape).astype(np.float32)
    made = from_arrays(x, y, x[:classes], y[:classes])
    return copy.copy(made) if vocabulary is None else _with(made, vocabulary)


def _with(data: Dataset, vocabulary: int) -> Dataset:
    object.__setattr__(data, "vocabulary", vocabulary)
    return data


CASES: dict[str, tuple[Callable[[], nn.Module], Dataset]] = {
    "cnn": (LargeCNN, data_of((28, 28), 10)),
    "lstm": (CharLSTM, data_of((20,), 80, 80)),
    "mlp": (Dense, data_of((28, 28), 10)),
    "resnet8": (resnet, data_of((3, 32, 32), 10)),
}


def batches(data: Dataset, client: int) -> list[Any]:
    starts = range(client * OWN, (client + 1) * OWN, BATCH)
    return [(data.x_train[i : i + BATCH], data.y_train[i : i + BATCH]) for i in starts]


def tensors(data: Dataset, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    part = slice(client * OWN, (client + 1) * OWN)
    x = torch.from_numpy(data.x_train[part]).reshape(OWN, *data.input_shape)
    return x if data.vocabulary is None else x.long(), torch.from_numpy(data.y_train[part])


def adcs(net: Callable[[], nn.Module], data: Dataset, **more: Any) -> Callable[[], None]:
    model = TorchModel(net, data, **more)
    w = model.initial(0)

    def epoch() -> None:
        total = np.zeros_like(w)
        for client in range(CLIENTS):
            total += model.local_update(w, batches(data, client), LocalSGD(RATE), 0)[1]

    return epoch


def adcs_numpy(data: Dataset) -> Callable[[], None]:
    model = MLP(784, 10, (64,))
    w = model.initial(0).astype(np.float32)
    own = [batches(data, client) for client in range(CLIENTS)]
    x = [np.stack([steps[i][0] for steps in own]) for i in range(STEPS)]
    y = [np.stack([steps[i][1] for steps in own]) for i in range(STEPS)]

    def epoch() -> None:
        local = np.repeat(w[None], CLIENTS, axis=0)
        for step in range(STEPS):
            local -= np.float32(RATE) * model.stacked(local, x[step], y[step])[1]
        local.sum(0)

    return epoch


def adcs_single(net: Callable[[], nn.Module], data: Dataset) -> Callable[[], None]:
    model = TorchModel(net, data)
    w = model.initial(0)
    weights = np.full(CLIENTS, 1 / CLIENTS)

    def epoch() -> None:
        for step in range(STEPS):
            own = [batches(data, client)[step] for client in range(CLIENTS)]
            model.weighted_gradient(w, own, weights)

    return epoch


def plain(net: Callable[[], nn.Module], data: Dataset) -> Callable[[], None]:
    whole = net()
    sets = [torch.utils.data.TensorDataset(*tensors(data, c)) for c in range(CLIENTS)]

    def epoch() -> None:
        total = [torch.zeros_like(p) for p in whole.parameters()]
        for own in sets:
            local = copy.deepcopy(whole)
            optimiser = torch.optim.SGD(local.parameters(), lr=RATE)
            for x, y in torch.utils.data.DataLoader(own, batch_size=BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(local(x), y).backward()
                optimiser.step()
            with torch.no_grad():
                for t, p, q in zip(total, whole.parameters(), local.parameters(), strict=True):
                    t += p - q

    return epoch


def pfl(net: Callable[[], nn.Module], data: Dataset) -> Callable[[], None]:
    from pfl.data.dataset import Dataset as UserDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.bridge import FrameworkBridgeFactory as bridges
    from pfl.model.pytorch import PyTorchModel

    module: Any = net()
    module.loss = lambda x, y: nn.functional.cross_entropy(module(x), y)
    module.metrics = lambda x, y: {}
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    settings = NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE
    )
    users = [UserDataset(tensors(data, c)) for c in range(CLIENTS)]

    def epoch() -> None:
        # The loop of `FederatedAveraging.train_one_user` and of its simulated backend.
        start = model.get_parameters()
        total = None
        for user in users:
            bridges.sgd_bridge().do_sgd(model, user, settings)
            difference = model.get_model_difference(start)
            total = difference if total is None else total + difference
            model.set_parameters(start)

    return epoch


def flower(name: str, rounds: int) -> float:
    """Return client-local-epochs per second of wall time in Flower's simulation, one actor."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    net, client_app, server_app, ends = CASES[name][0], ClientApp(), ServerApp(), []

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        local = net()
        local.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(local.parameters(), lr=RATE)
        own = tensors(CASES[name][1], int(context.node_config["partition-id"]))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*own), batch_size=BATCH)
        for x, y in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(local(x), y).backward()
            optimiser.step()
        metrics = MetricRecord({"num-examples": OWN})
        content = {"arrays": ArrayRecord(local.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found = super().aggregate_train(server_round, replies)
            ends.append(time.perf_counter())
            return found

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds + 1)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": resources, "init_args": {"num_cpus": 1}},
    )
    return CLIENTS * rounds / (ends[-1] - ends[0])


def measured(loops: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Return client-local-epochs per CPU second, by loop; the loops alternate."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for run in loops.values():
        run()
    for _ in range(repeats):
        for name, run in loops.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: CLIENTS / median(values) for name, values in seconds.items()}


def speeds(names: list[str], repeats: int, compiled: bool, with_flower: bool) -> None:
    print("client-local-epochs per CPU second, one thread (ratio to pfl)\n")
    for name in names:
        net, data = CASES[name]
        loops: dict[str, Callable[[], None]] = {"plain": plain(net, data)}
        try:
            loops["pfl"] = pfl(net, data)
        except ImportError as error:
            print(f"pfl is left out: {error}")
        loops["adcs"] = adcs(net, data)
        if name == "mlp":
            loops["adcs (NumPy)"] = adcs_numpy(data)
        if name != "lstm":
            loops["adcs E = 1"] = adcs_single(net, data)
        if compiled and name in ("cnn", "mlp"):
            loops["adcs compiled"] = adcs(net, data, compile=True)
        found = measured(loops, repeats)
        if with_flower and name in ("cnn", "mlp"):
            found["Flower (wall)"] = flower(name, rounds=10)
        base = found.get("pfl", found["plain"])
        size = sum(p.numel() for p in net().parameters())
        words = [f"{key} {value:.1f} ({value / base:.2f})" for key, value in found.items()]
        print(f"{name} ({size:,} parameters): {', '.join(words)}", flush=True)


def simulation(schedulers: dict[str, Any], m: int) -> Simulation:
    data = CASES["cnn"][1]
    federation = Federation(data, make_partition(data, "iid", 100, seed=0), batch_size=10)
    return Simulation(
        federation, TorchModel(LargeCNN, data), schedulers, Training(m=m, lr=RATE, steps=2)
    )


def memory() -> None:
    kinds = (Uniform, PowerOfChoice, OCS, DivFL, StaticDPP, ADCS)
    run = simulation({kind.__name__: kind(seed=0) for kind in kinds}, m=50)
    run.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory, six schedulers, m = 50, N = 100, CNN: {peak:.2f} GB")


def _rounds(seed: int) -> None:
    run = simulation({"Uniform": Uniform(seed=seed)}, m=10)
    for _ in range(10):
        run.step()


def processes() -> None:
    seconds = []
    for count in (1, 2):
        with get_context("spawn").Pool(count) as pool:
            pool.map(_rounds, range(count))  # Imports and first rounds are not counted.
            start = time.perf_counter()
            pool.map(_rounds, range(count))
            seconds.append(time.perf_counter() - start)
    print(f"two processes do {2 * seconds[0] / seconds[1]:.2f} times the work of one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[*CASES])
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--flower", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in given.only if name in CASES]
    if names:
        speeds(names, given.repeats, given.compiled, given.flower)
    if "memory" in given.only:
        memory()
    elif given.only == [*CASES]:
        subprocess.run([sys.executable, __file__, "--only", "memory"], check=True)
    if "processes" in given.only or given.only == [*CASES]:
        processes()


if __name__ == "__main__":
    main()
