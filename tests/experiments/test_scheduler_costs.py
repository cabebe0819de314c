"""What schedulers ask of clients, and its cost, by hand."""

from __future__ import annotations

import pytest

import adcs
from adcs.experiments.scheduler_costs import scheduler_costs


def test_a_probe_of_everyone_every_round():
    """N = 50: 50 evaluations; the 5 selected clients download the model anyway."""
    costs = scheduler_costs(adcs.PowerOfChoice(), clients=50, m=5, size=1000)
    assert (costs.evaluations, costs.updates) == (50.0, 0.0)
    assert (costs.bytes_down, costs.bytes_up) == (45 * 4000, 50 * 4)


def test_updates_every_twenty_rounds():
    """The paper's count: (N - m) / R updates in a round, whole updates up and models down."""
    costs = scheduler_costs(adcs.DivFL(), clients=100, m=10, size=1000)
    assert costs.updates == pytest.approx(90 / 20)
    assert costs.bytes_up == costs.bytes_down == pytest.approx(90 * 4000 / 20)


def test_histograms_once_and_without_a_model():
    costs = scheduler_costs(adcs.FedCBS(), clients=100, m=10, size=1000, classes=62, rounds=10)
    assert (costs.probed, costs.bytes_down) == (("label_counts",), 0.0)
    assert costs.bytes_up == pytest.approx(100 * 4 * 62 / 10)


def test_numbers_with_training_replies():
    assert scheduler_costs(adcs.Oort(), m=10).bytes_up == 40
    assert scheduler_costs(adcs.HiCSFL(), m=10).bytes_up == 0


def test_facts_are_named():
    assert scheduler_costs(adcs.FedCS()).facts == ("communication_seconds", "compute_seconds")


def test_many_clients_are_scaled():
    small = scheduler_costs(adcs.TiFL(), clients=200, m=10, size=100)
    large = scheduler_costs(adcs.TiFL(), clients=20_000, m=1000, size=100)
    assert small.evaluations == 20.0
    assert large.evaluations == 2000.0
