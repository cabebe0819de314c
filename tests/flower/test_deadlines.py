"""Deadlines: seconds, or learned from each client's own times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs import Sketcher
from adcs.flower import Scheduled

DELAYS = [1.0, 2.0, 3.0, 4.0, 20.0]


def adaptive(scheduler: Any = None, **options: Any) -> Scheduled:
    settings = {"clients_per_round": 1.0, "deadline": "adaptive", **options}
    return Scheduled(FedAvg(fraction_evaluate=0.0), scheduler or adcs.Uniform(), **settings)


def test_a_deadline_in_seconds_ends_the_wait_for_training(toy: Any) -> None:
    strategy = adaptive(deadline=5.0)
    grid = toy.known_grid(strategy, DELAYS)
    [record] = toy.start(strategy, grid, 1, timeout=100.0).records
    assert record.trained == [0, 1, 2, 3]
    assert record.timed_out == {"training": [4]}
    assert record.costs.seconds == 5.0
    strategy = adaptive(deadline=50.0)
    [record] = toy.start(strategy, toy.known_grid(strategy, DELAYS), 1, timeout=3.5).records
    assert record.trained == [0, 1, 2]
    assert record.costs.seconds == 3.5


def test_clients_of_any_steady_speed_are_waited_for(toy: Any) -> None:
    strategy = adaptive()
    grid = toy.known_grid(strategy, DELAYS)
    run = toy.start(strategy, grid, 6)
    assert [record.trained for record in run.records] == [[0, 1, 2, 3, 4]] * 6
    assert [record.costs.seconds for record in run.records] == [20.0] * 6


@pytest.mark.parametrize("victim", [0, 4])
def test_a_dead_node_never_stalls_a_round_twice_in_a_row(toy: Any, victim: int) -> None:
    strategy = adaptive(patience=0.0)  # Its messages are forgotten at once, so it is asked again.
    grid = toy.known_grid(strategy, DELAYS)
    toy.start(strategy, grid, 3)
    grid.nodes[victim].delay = math.inf
    run = toy.start(strategy, grid, 12)
    rest = [client for client in range(5) if client != victim]
    usual = max(DELAYS[client] for client in rest)
    longest = strategy.recorder.deadlines.of(victim, 3600.0)
    assert longest < 3 * DELAYS[victim]
    assert [record.trained for record in run.records] == [rest] * 12
    assert run.records[0].costs.seconds == pytest.approx(max(usual, longest))
    # It is asked in each round, and no round waits for it longer than for others.
    assert all(record.timed_out == {"training": [victim]} for record in run.records)
    others = max(strategy.recorder.deadlines.of(client, 3600.0) for client in rest)
    later = [record.costs.seconds for record in run.records[1:]]
    assert max(later) == pytest.approx(max(usual, min(longest, others)))


def test_without_times_the_timeout_holds_for_the_first_round(toy: Any) -> None:
    strategy = adaptive(patience=0.0)
    grid = toy.known_grid(strategy, [1.0, 2.0, math.inf])
    run = toy.start(strategy, grid, 3, timeout=60.0)
    first, *later = [record.costs.seconds for record in run.records]
    assert first == 60.0
    assert max(later) < 6.0


def test_a_client_that_has_become_slower_is_waited_for_again(toy: Any) -> None:
    strategy = adaptive()
    grid = toy.known_grid(strategy, [1.0, 1.0, 1.0, 1.0])
    toy.start(strategy, grid, 4)
    grid.nodes[0].delay = 60.0
    run = toy.start(strategy, grid, 2)
    assert run.records[0].timed_out == {"training": [0]}
    assert run.records[0].costs.seconds < 3.0
    assert run.records[1].pending == [0]
    grid.advance(60.0)
    run = toy.start(strategy, grid, 1)
    assert [one["client"] for one in run.records[0].late] == [0]
    run = toy.start(strategy, grid, 20)
    in_time = [i for i, record in enumerate(run.records) if 0 in record.trained]
    assert in_time
    assert run.records[in_time[0]].costs.seconds == 60.0


def test_probes_that_train_have_the_deadlines_of_training(toy: Any) -> None:
    scheduler = adcs.ADCS(refresh_every=1, sketch=Sketcher(size=32))
    strategy = adaptive(scheduler, clients_per_round=3, patience=0.0)
    grid = toy.known_grid(strategy, [1.0, 1.0, 1.0, 1.0, 1.0])
    toy.start(strategy, grid, 3, timeout=100.0)
    grid.nodes[4].delay = math.inf
    run = toy.start(strategy, grid, 4, timeout=100.0)
    # A probe and the training of three clients; the probe waited for a client's own deadline.
    assert all(record.costs.seconds < 5.0 for record in run.records)
    assert run.records[0].timed_out == {"probe": [4]}


def test_times_are_saved_in_checkpoints(toy: Any, tmp_path: Path) -> None:
    first = adaptive(folder=tmp_path / "run")
    toy.start(first, toy.known_grid(first, DELAYS), 3)
    second = adaptive(folder=tmp_path / "run")
    assert second.recorder.deadlines.state() == first.recorder.deadlines.state()
    grid = toy.known_grid(second, DELAYS)
    grid.nodes[4].delay = math.inf
    [record] = toy.start(second, grid, 1).records
    assert 20.0 < record.costs.seconds < 60.0


def test_evaluation_leaves_out_nodes_that_owe_an_answer(toy: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=1.0, deadline=3.0)
    grid = toy.known_grid(strategy, [1.0, 1.0, 30.0])
    toy.start(strategy, grid, 2)
    assert set(toy.evaluated) == {0, 1}
