"""The batch noise that selection lets through: docs/explanation/theory.md, Theorem 2.

    python benchmarks/bench_noise.py            # about a minute

ADCS with theta = 0.8 and R = 1 trains softmax regression on Fashion-MNIST. At some rounds the model
is held, and batches are drawn again and again: a cohort is chosen by the updates of a draw, and its
noise is the mean over it of update minus full gradient. Trained on the draw that it was chosen by
("reused") its mean is not zero; on another draw ("fresh") it is. Both are norms of a mean over
draws, which are above zero by chance alone; "by chance" says by how much.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse

import numpy as np

import adcs
from adcs.experiments.config import Experiment
from adcs.simulation.engine import Simulation

ROUNDS = (500, 4000)
FAR = 10**6  # rounds whose batches no run has seen


def gradients(simulation: Simulation, server_round: int) -> tuple[np.ndarray, np.ndarray]:
    """All clients' updates on the batches of a round, and their losses."""
    everyone = np.arange(len(simulation.federation.clients))
    x, y = simulation.federation.batches(server_round, everyone)
    ws = np.repeat(simulation.parameters[:1], everyone.size, axis=0)
    losses, rows = simulation.model.stacked(ws, x, y)
    return rows.astype(np.float64), losses.astype(np.float64)


def mean_noise(simulation: Simulation, draws: int) -> dict[str, float]:
    """Norms of the mean noise over draws, and that of the full gradient."""
    clients, m = range(len(simulation.federation.clients)), simulation.training.m
    full = np.array(
        [
            simulation.model.loss_and_gradient(
                simulation.parameters[0], *simulation.federation.all_of(client)
            )[1]
            for client in clients
        ]
    )
    sums = {"reused": np.zeros(full.shape[1]), "fresh": np.zeros(full.shape[1])}
    squares = 0.0
    for k in range(draws):
        probe, losses = gradients(simulation, FAR + 2 * k)
        cohort = adcs.select(probe, m, quality=losses, theta=0.8)
        fresh, _ = gradients(simulation, FAR + 2 * k + 1)
        sums["reused"] += (probe - full)[cohort].mean(axis=0)
        noise = (fresh - full)[cohort].mean(axis=0)
        sums["fresh"] += noise
        squares += float(noise @ noise)
    found = {name: float(np.linalg.norm(total)) / draws for name, total in sums.items()}
    found["by chance"] = float(np.sqrt(squares)) / draws
    found["gradient"] = float(np.linalg.norm(full.mean(axis=0)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1500, help="draws of the batches")
    options = parser.parse_args()
    simulation = Experiment.of(schedulers={"ADCS": "ADCS(refresh_every=1)"}).simulation(0)
    print(f"norm of the mean noise of a cohort over {options.draws} draws of the batches")
    print(f"{'after':>12} {'reused':>8} {'fresh':>8} {'by chance':>10} {'||g_N||':>8}")
    for rounds in ROUNDS:
        while simulation.server_round < rounds:
            simulation.step()
        found = mean_noise(simulation, options.draws)
        print(
            f"{rounds:>5} rounds {found['reused']:>8.3f} {found['fresh']:>8.3f} "
            f"{found['by chance']:>10.3f} {found['gradient']:>8.2f}"
        )


if __name__ == "__main__":
    main()
