"""Server optimisers, aggregations and FedProx of the simulator against Flower's strategies.

Each of Flower's strategies trains on a grid whose clients run the simulation's own SGD on the same
mini-batches. After several rounds both have the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Strategy,
)

import adcs
from adcs.flower import LocalGrid
from adcs.simulation import MLP, Federation, Simulation, Training, load, make_partition

N, ROUNDS, LR, STEPS = 11, 6, 0.05, 3
DATA = load("digits")

CASES: dict[str, tuple[Callable[[], Strategy], dict[str, Any]]] = {
    "FedAvg": (lambda: FedAvg(), {}),
    "FedAvg by size": (lambda: FedAvg(), {"weights": "size"}),
    "FedProx": (lambda: FedProx(proximal_mu=2.0), {"prox": 2.0}),
    "FedAvgM": (
        lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.7),
        {"server_optimizer": "momentum", "server_momentum": 0.7, "server_lr": 0.5 * LR},
    ),
    "FedAdam": (
        lambda: FedAdam(eta=0.02, beta_1=0.8, beta_2=0.95, tau=1e-2),
        {
            "server_optimizer": "adam",
            "server_lr": 0.02,
            "beta_1": 0.8,
            "beta_2": 0.95,
            "tau": 1e-2,
        },
    ),
    "FedAdam by default": (lambda: FedAdam(), {"server_optimizer": "adam"}),
    "FedYogi": (lambda: FedYogi(), {"server_optimizer": "yogi"}),
    "FedYogi with settings": (
        lambda: FedYogi(eta=0.05, beta_1=0.7, beta_2=0.9, tau=0.1),
        {
            "server_optimizer": "yogi",
            "server_lr": 0.05,
            "beta_1": 0.7,
            "beta_2": 0.9,
            "tau": 0.1,
        },
    ),
    "FedAdagrad": (lambda: FedAdagrad(), {"server_optimizer": "adagrad"}),
    "FedMedian": (lambda: FedMedian(), {"aggregation": "median"}),
    "FedTrimmedAvg": (
        lambda: FedTrimmedAvg(beta=0.3),
        {"aggregation": "trimmed-mean", "trim": 0.3},
    ),
    "fixed clipping": (
        lambda: DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), noise_multiplier=0.0, clipping_norm=2.0 * LR, num_sampled_clients=N
        ),
        {"aggregation": "clipped-mean", "clip_norm": 2.0},
    ),
}


def by_flower(strategy: Strategy, sim: Simulation, by_size: bool) -> Any:
    """Return the model of a Flower strategy; clients run SGD as FedProx's paper has it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        client = context.node_config["partition-id"]
        config = message.content["config"]
        w = message.content["arrays"]["w"].numpy().astype(np.float32)
        x, y = sim.federation.batches(config["server-round"] - 1, np.array([client]), STEPS)
        local = w.copy()
        for step in range(STEPS):
            part = slice(8 * step, 8 * step + 8)
            _, gradient = sim.model.loss_and_gradient(local, x[0, part], y[0, part])
            local = local - LR * (gradient + config.get("proximal-mu", 0.0) * (local - w))
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(local)}),
                "metrics": MetricRecord(
                    {"num-examples": int(sim.federation.sizes[client]) if by_size else 1}
                ),
            }
        )
        return Message(content, reply_to=message)

    strategies = [strategy, getattr(strategy, "strategy", None)]
    for each in filter(None, strategies):
        each.fraction_evaluate = 0.0
    initial = ArrayRecord({"w": Array(sim.model.initial(0).astype(np.float32))})
    result = strategy.start(grid=LocalGrid(app, nodes=N), initial_arrays=initial, num_rounds=ROUNDS)
    return result.arrays["w"].numpy()


@pytest.mark.parametrize("name", CASES)
def test_same_model_as_flower(name: str) -> None:
    make, settings = CASES[name]
    partition = make_partition(DATA, "dirichlet", N, seed=0, alpha=0.5, sizes="skewed")
    federation = Federation(DATA, partition, batch_size=8)
    training = Training(m=N, lr=LR, steps=STEPS, **settings)
    sim = Simulation(federation, MLP(64, 10), {"all": adcs.Uniform()}, training)
    expected = by_flower(make(), sim, by_size="weights" in settings)
    plain = Training(m=N, lr=LR, steps=STEPS)
    other = Simulation(federation, MLP(64, 10), {"all": adcs.Uniform()}, plain)
    for each in (sim, other):
        each.run(ROUNDS)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(sim.parameters[0], expected, atol=2e-5 * scale)
    if settings:  # The setting matters: another model than FedAvg's.
        assert np.abs(other.parameters[0] - expected).max() > 1e-3 * scale
