"""The ledger and the virtual network, against a plain loop written from docs/howto/simulator.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adcs.experiments.config import Experiment
from adcs.observers import Observer, RoundEvent, SelectionEvent
from adcs.run_folder import Ledger
from adcs.schedulers.base import Cohort, Request
from adcs.simulation.engine import Simulation
from adcs.simulation.network import Network, NetworkSettings

SCHEDULERS = {
    "uniform": "Uniform",
    "losses of some": "PowerOfChoice(candidates=9)",
    "norms": "OCS",
    "updates": "ADCS(refresh_every=4)",
    "sketches": "ADCS(refresh_every=4, sketch=16)",
    "live": "LiveADCS",
    "of any size": "OCS(independent=True)",
}
NETWORKS: list[dict[str, Any]] = [
    {},
    {"spread": 0.9},
    {"spread": 0.9, "dropout": 0.2},
    {"spread": 0.9, "dropout": 0.2, "deadline": 1.2},
    {"spread": 0.9, "availability": 0.6, "spell": 3, "dropout": 0.2, "deadline": 1.2},
]


class CostObserver(Observer):
    """Charges what the scheduler of a run requests and selects."""

    def __init__(self, simulation: Simulation, run: str, steps: int) -> None:
        self.network, self.steps = simulation.network, steps
        self.model = 4 * simulation.model.size
        self.run = run
        self.ledger = Ledger()
        self.rounds: list[Ledger] = []
        self.server_round = 0

    def on_selection(self, event: SelectionEvent) -> None:
        if event.run == self.run:
            self.charge(event.request, event.cohort)

    def on_round(self, event: RoundEvent) -> None:
        if event.run == self.run:
            self.rounds.append(event.costs)

    def wait(self, tasks: dict[int, tuple[float, float, float]]) -> set[int]:
        """Wait for clients to receive, work and send; return those that answered."""
        net, deadline = self.network, self.network.settings.deadline
        answered, longest = set(), 0.0
        for c, (down, work, up) in tasks.items():
            seconds = down / net.down[c] + work * net.compute_seconds[c] + up / net.up[c]
            if not net.fails(self.server_round, np.array([c]))[0] and seconds <= (
                deadline or np.inf
            ):
                answered.add(c)
            longest = max(longest, seconds)
        if tasks and deadline is not None:
            longest = deadline if len(answered) < len(tasks) else min(longest, deadline)
        self.ledger.seconds += longest
        return answered

    def charge(self, request: Request, cohort: Cohort) -> None:
        ledger, size = self.ledger, self.model
        whole, full = request.signals & {"norm", "update"}, "update" in request.signals
        body = (size if request.sketch is None else request.sketch.nbytes) if full else 0
        answer = body + 4 * len(request.signals & {"loss", "norm"})
        work = 1.0 if whole else 1 / 3 / self.steps
        answered = self.wait(dict.fromkeys(request.clients, (size, work, answer)))
        ledger.bytes_down += size * len(request.clients)
        ledger.bytes_up += answer * len(answered)
        computed = answered if whole else set()
        sent = answered if full and request.sketch is None else set()
        ledger.updates += len(computed)
        ledger.loss_evaluations += len(answered - computed)
        tasks = {
            c: (0 if c in request.clients else size, c not in computed, 0 if c in sent else size)
            for c in cohort.clients
        }
        arrived = self.wait(tasks)
        ledger.bytes_down += sum(tasks[c][0] for c in tasks)
        ledger.bytes_up += size * len(arrived - sent)
        ledger.updates += len(arrived - computed)
        ledger.extra_updates += len(computed - arrived)
        self.server_round += 1


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: " ".join(network))
def test_everything_is_charged_once(network: dict[str, Any], steps: int) -> None:
    settings = {"data": "synthetic", "clients": 20, "m": 6, "steps": steps, "pass_width": 9}
    experiment = Experiment.of(**settings, schedulers=SCHEDULERS, network=network)
    simulation = experiment.simulation(0)
    observers = [CostObserver(simulation, run.name, steps) for run in simulation.runs]
    simulation.observers += observers
    for _ in range(25):
        simulation.step()
    for run, observer in zip(simulation.runs, observers, strict=True):
        found, expected = run.ledger.as_dict(), observer.ledger.as_dict()
        assert found["seconds"] == pytest.approx(expected.pop("seconds"))
        summed = {name: sum(getattr(costs, name) for costs in observer.rounds) for name in found}
        assert summed == pytest.approx(found)
        del found["seconds"]
        assert found == expected, run.name


def test_drop_outs_are_their_share() -> None:
    network = Network(NetworkSettings(dropout=0.3), clients=2000, seed=0)
    share = np.mean(
        [network.fails(server_round, np.arange(2000)).mean() for server_round in range(20)]
    )
    assert share == pytest.approx(0.3, abs=0.01)


def test_speeds_have_nothing_to_do_with_each_other() -> None:
    network = Network(NetworkSettings(spread=0.5), clients=4000, seed=0)
    logs = np.log([network.compute_seconds, network.up, network.down])
    assert np.abs(np.corrcoef(logs) - np.eye(3)).max() < 0.06
    assert logs.std(axis=1) == pytest.approx([0.5] * 3, abs=0.02)
    assert np.exp(np.median(logs, axis=1)) == pytest.approx([1.0, 1e6, 8e6], rel=0.04)
