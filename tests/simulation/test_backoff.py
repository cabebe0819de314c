"""Failing clients in the simulator: left alone, with the same bits after a resume."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import adcs
from adcs._serialization import pack, unpack
from adcs.observers import Observer
from adcs.reports.sketch import Sketcher
from adcs.simulation import (
    MLP,
    Federation,
    Network,
    NetworkSettings,
    Simulation,
    Training,
    load,
    make_partition,
)

CLIENTS, M, ROUNDS = 20, 4, 60


def schedulers(**common):
    return {
        "Uniform": adcs.Uniform(**common),
        "PowerOfChoice": adcs.PowerOfChoice(**common),
        "OCS": adcs.OCS(**common),
        "DivFL": adcs.DivFL(**common),
        "StaticDPP": adcs.StaticDPP(**common),
        "ADCS": adcs.ADCS(**common),
        "ADCS, sketches": adcs.ADCS(refresh_every=3, sketch=Sketcher(size=64), **common),
        "LiveADCS": adcs.LiveADCS(**common),
    }


class OneFails(Network):
    """A network on which client 0 never answers from a round on."""

    def __init__(self, first: int, settings: NetworkSettings) -> None:
        super().__init__(settings, CLIENTS, seed=0)
        self.first = first

    def fails(self, server_round, clients):
        return (clients == 0) & (server_round >= self.first)


class Watch(Observer):
    """Keeps who could be selected, who was and who trained, in each round of each run."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[dict]] = {}

    def on_selection(self, event):
        selected = {"available": event.available, "probed": event.request.clients}
        self.rounds.setdefault(event.run, []).append({**selected, "selected": event.cohort.clients})

    def on_round(self, event):
        self.rounds[event.run][-1]["trained"] = event.trained


def simulation(network, *, m=M, **common):
    data = load("synthetic:clusters=5,dimension=8")
    federation = Federation(data, make_partition(data, "iid", CLIENTS, seed=0))
    watch = Watch()
    return watch, Simulation(
        federation,
        MLP(8, data.classes),
        schedulers(**common),
        Training(m=m, lr=0.1),
        network=network,
        observers=[watch],
    )


def test_a_failing_client_is_not_preferred():
    # `dropout` makes the engine ask the network who fails.
    watch, sim = simulation(OneFails(2, NetworkSettings(spread=0.0, dropout=0.5)))
    sim.run(ROUNDS)
    for record, rounds in zip(sim.evaluate(), watch.rounds.values(), strict=True):
        asked = [i for i, r in enumerate(rounds) if 0 in {*r["probed"], *r["selected"]}]
        assert sum(0 in r["selected"] for r in rounds) <= 12
        assert sum(len(r["trained"]) for r in rounds) >= 230
        failures = [i for i in asked if i >= 2]
        assert record["failures"] == len(failures) <= 6
        for k, (before, after) in enumerate(itertools.pairwise(failures)):
            assert after - before - 1 >= 2**k
        assert record["backing_off"] in (0, 1)
        assert all(len(r["selected"]) == M for r in rounds)


def test_clients_that_miss_the_deadline_are_left_alone():
    settings = NetworkSettings(spread=0.0, deadline=10.0)
    network = Network(settings, CLIENTS, seed=0)
    seconds = np.ones(CLIENTS)
    seconds[[0, 3]] = 100.0
    network.__dict__["compute_seconds"] = seconds
    watch, sim = simulation(network)
    sim.run(ROUNDS)
    for rounds in watch.rounds.values():
        assert sum(len(r["trained"]) for r in rounds) >= 220
        for slow in (0, 3):
            assert sum(slow in r["selected"] for r in rounds) <= 8


def test_probed_clients_that_fail_are_not_selected():
    watch, sim = simulation(OneFails(0, NetworkSettings(spread=0.0, dropout=0.5)))
    sim.run(1)
    for rounds in watch.rounds.values():
        [only] = rounds
        if only["probed"]:
            assert 0 in only["probed"]
            assert 0 not in only["available"]
            assert len(only["trained"]) == M


def test_failing_clients_fill_the_cohort_if_too_few_others_are_there():
    watch, sim = simulation(OneFails(0, NetworkSettings(spread=0.0, dropout=0.5)), m=CLIENTS)
    sim.run(4)
    assert all(len(r["selected"]) == CLIENTS for r in watch.rounds["Uniform"])


def test_a_required_client_that_fails_is_left_alone_as_well():
    network = OneFails(2, NetworkSettings(spread=0.0, dropout=0.5))
    watch, sim = simulation(network, required=[0])
    sim.run(14)
    for rounds in watch.rounds.values():
        assert {i for i, r in enumerate(rounds) if 0 in r["selected"]} <= {0, 1, 2, 4, 7, 12}
        assert all(len(r["selected"]) == M for r in rounds)


@pytest.mark.parametrize("rounds", [3, 9])
def test_resume_equals_uninterrupted(rounds):
    settings = NetworkSettings(dropout=0.3, deadline=4.0)
    expected_watch, whole = simulation(Network(settings, CLIENTS, seed=0))
    watch, half = simulation(Network(settings, CLIENTS, seed=0))
    whole.run(20)
    half.run(rounds)
    resumed_watch, resumed = simulation(Network(settings, CLIENTS, seed=0))
    resumed.restore(unpack(pack(half.state())))
    resumed.run(20)
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    assert pack(resumed.state()) == pack(whole.state())
    for name, expected in expected_watch.rounds.items():
        assert watch.rounds[name] + resumed_watch.rounds[name] == expected


def test_records_of_runs_without_failures_do_not_mention_them():
    _, sim = simulation(None)
    sim.run(3)
    assert all("failures" not in record for record in sim.evaluate())
    assert all(not run.backoff and run.backoff.total == 0 for run in sim.runs)
