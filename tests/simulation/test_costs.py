"""The ledger and the virtual network, against a plain loop written from docs/simulator.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adcs.experiments.config import Experiment
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


class Clerk:
    """Writes down what a run's scheduler asks and chooses, and what that costs."""

    def __init__(self, simulation: Simulation, run: int, steps: int) -> None:
        self.network, self.steps = simulation.network, steps
        self.model = 4 * simulation.model.size
        self.ledger = Ledger()
        self.server_round = 0
        self.asked: Request = Request()
        scheduler = simulation.runs[run].scheduler
        request, select = scheduler.request, scheduler.select

        def asking(*words: Any) -> Request:
            self.asked = request(*words)
            return self.asked

        def choosing(*words: Any) -> Cohort:
            cohort = select(*words)
            self.charge(cohort)
            return cohort

        scheduler.request, scheduler.select = asking, choosing

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

    def charge(self, cohort: Cohort) -> None:
        ledger, asked, size = self.ledger, self.asked, self.model
        whole, full = asked.signals & {"norm", "update"}, "update" in asked.signals
        body = (size if asked.sketch is None else asked.sketch.nbytes) if full else 0
        answer = body + 4 * len(asked.signals & {"loss", "norm"})
        work = 1.0 if whole else 1 / 3 / self.steps
        told = self.wait(dict.fromkeys(asked.clients, (size, work, answer)))
        ledger.bytes_down += size * len(asked.clients)
        ledger.bytes_up += answer * len(told)
        computed = told if whole else set()
        sent = told if full and asked.sketch is None else set()
        ledger.updates += len(computed)
        ledger.loss_evaluations += len(told - computed)
        tasks = {
            c: (0 if c in asked.clients else size, c not in computed, 0 if c in sent else size)
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
    clerks = [Clerk(simulation, run, steps) for run in range(len(simulation.runs))]
    for _ in range(25):
        simulation.step()
    for run, clerk in zip(simulation.runs, clerks, strict=True):
        found, expected = run.ledger.as_dict(), clerk.ledger.as_dict()
        assert found.pop("seconds") == pytest.approx(expected.pop("seconds"))
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
