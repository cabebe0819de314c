"""The simulator, LocalGrid and Flower's simulation engine select the same cohorts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs adcs[flower]")

from flwr.app import Array, ArrayRecord

from adcs.experiments.config import Experiment
from adcs.experiments.specs import make_scheduler
from adcs.flower import LocalGrid, Scheduled
from adcs.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "flower-fashion-mnist"))

from fashion.client_app import app
from fashion.strategy import EvaluateEvery
from fashion.table import table
from fashion.task import workload
from loopback import Loopback, tail

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flower-fashion-mnist"

SPEC = "ADCS(theta=0.8, refresh_every=5)"
ROUNDS, CLIENTS, M, LR, SEED = 24, 30, 18, 0.1, 3
CONFIG: dict[str, Any] = {
    "data": "digits",
    "num-clients": CLIENTS,
    "batch-size": 16,
    "learning-rate": LR,
    "dtype": "float64",
    "seed": SEED,
    "clients-per-round": M,
    "num-server-rounds": ROUNDS,
    "evaluate-every": ROUNDS,
}


def in_process(spec: str) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    """Return the simulator's cohorts and its last evaluation."""
    experiment = Experiment.of(
        data="digits",
        clients=CLIENTS,
        m=M,
        rounds=ROUNDS,
        lr=LR,
        dtype="float64",
        schedulers={"it": spec},
    )
    simulation = experiment.simulation(SEED)
    cohorts = []
    for _ in range(ROUNDS):
        simulation.step()
        cohorts.append(simulation.runs[0].cohort.clients)
    return cohorts, simulation.evaluate()[0]


def on_local_grid(spec: str, folder: Path) -> list[dict[str, Any]]:
    strategy = Scheduled(
        EvaluateEvery(ROUNDS, last=ROUNDS),
        make_scheduler(spec, seed=SEED),
        clients_per_round=M,
        folder=folder,
    )
    strategy.start(
        LocalGrid(app, nodes=CLIENTS, run_config=CONFIG),
        ArrayRecord({"w": Array(workload(CONFIG).initial())}),
        num_rounds=ROUNDS,
    )
    return list(RunFolder.open(folder).records())


def cohorts_of(lines: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [tuple(line["chosen"]) for line in lines]


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        "ADCS(refresh_every=5, sketch=256)",
        "DivFL(refresh_every=5)",
        "OCS",
        "Uniform",
        "LiveADCS",
        "LiveADCS(sketch=256)",
    ],
)
def test_local_grid_selects_the_simulators_cohorts(spec: str, tmp_path: Path) -> None:
    cohorts, evaluation = in_process(spec)
    lines = on_local_grid(spec, tmp_path / "run")
    assert cohorts_of(lines) == cohorts
    assert len(set(cohorts)) >= 4  # the kernel changed on the way
    assert lines[-1]["counts"] == evaluation["counts"].tolist()
    assert lines[-1]["accuracy"] == pytest.approx(evaluation["accuracy"].tolist(), abs=1e-12)
    assert lines[-1]["test_loss"] == pytest.approx(evaluation["test_loss"], rel=1e-9)


def test_simulation_engine_selects_the_simulators_cohorts(tmp_path: Path) -> None:
    cohorts, evaluation = in_process(SPEC)
    folder = tmp_path / "run"
    config = {**CONFIG, "scheduler": SPEC, "folder": str(folder), "wait-for-nodes": CLIENTS}
    with Loopback(tmp_path / "home", simulation=True) as federation:
        federation.start_superlink()
        federation.run(EXAMPLE, config, simulated_nodes=CLIENTS).wait(timeout=300)
        log = tail(federation.log("run"), 60)
    assert (folder / "clients.txt").exists(), log
    lines = list(RunFolder.open(folder).records())
    assert cohorts_of(lines) == cohorts
    assert lines[-1]["clients"] == list(range(CLIENTS))
    assert lines[-1]["counts"] == evaluation["counts"].tolist()
    assert lines[-1]["accuracy"] == pytest.approx(evaluation["accuracy"].tolist(), abs=1e-12)
    # The paper's count, m T + (N - m) ceil(T / R), with whole updates.
    assert lines[-1]["updates"] == M * ROUNDS + (CLIENTS - M) * 5
    assert table(folder) + "\n" == (folder / "clients.txt").read_text()
