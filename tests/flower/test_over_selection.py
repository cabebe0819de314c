"""Over-selected rounds: they end with the first m usable replies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    QFedAvg,
    Result,
)

import adcs
from adcs.flower import Scheduled
from adcs.rounds import Buffered
from adcs.schedulers.base import SOURCES, Cohort


class Listening(adcs.Uniform):
    """Keeps what it is told, from which source."""

    observed_sources = frozenset(SOURCES)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.told: list[tuple[int, str, list[int]]] = []

    def _observe(self, server_round: int, reports: Sequence[Any], source: Any) -> None:
        super()._observe(server_round, reports, source)
        if source != "enrolment" and reports:
            self.told.append((server_round, source, sorted(r.client for r in reports)))


class Awaiting(adcs.Uniform):
    """Selects all clients in order, and wants a round to wait for some of them."""

    awaited: tuple[int, ...] = ()

    def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
        chosen = clients[:m]
        awaited = tuple(client for client in self.awaited if client in chosen)
        return Cohort(chosen, (1.0,) * len(chosen), awaited=awaited)


def scheduled(scheduler: Any = None, base: Any = None, **options: Any) -> Scheduled:
    settings = {"clients_per_round": 3, "over_select": 1.6, **options}
    base = FedAvg(fraction_evaluate=0.0) if base is None else base
    return Scheduled(base, scheduler or adcs.Uniform(), **settings)


def mean_step(toy: Any, w: np.ndarray, clients: Sequence[int]) -> np.ndarray:
    """Return the federated average of these clients' models, in closed form."""
    n = np.array([toy.examples(client) for client in clients], dtype=float)
    models = np.stack([w - 0.5 * toy.gradient(w, client) for client in clients])
    return np.asarray((n[:, None] * models).sum(axis=0) / n.sum())


def test_a_round_takes_what_the_mth_fastest_takes(toy: Any) -> None:
    strategy = scheduled(stop_after=None)
    delays = [1.0, 1.1, 1.2, 1.3, 30.0]
    grid = toy.known_grid(strategy, delays)
    run = toy.start(strategy, grid, 6)
    w = np.zeros(6)
    for record in run.records:
        asked = sorted(delays[client] for client in record.cohort.clients)
        assert len(record.trained) == 3
        assert record.costs.seconds == pytest.approx(asked[2])
        assert record.costs.seconds < 2.0
        assert sorted({*record.trained, *record.outrun}) == sorted(record.cohort.clients)
        assert not record.timed_out
        assert not record.backing_off
        w = mean_step(toy, w, record.trained)
    np.testing.assert_allclose(run.w, w, rtol=1e-12)
    # The straggler was asked once, and not again while it was busy.
    assert grid.nodes[4].calls == 1
    assert grid.clock() < 6 * 2.0

    plain = scheduled(over_select=None)
    waits = toy.known_grid(plain, delays)
    slow = toy.start(plain, waits, 6)
    assert max(record.costs.seconds for record in slow.records) == 30.0


def test_a_late_reply_informs_the_scheduler_and_is_charged_and_never_aggregated(toy: Any) -> None:
    scheduler = Listening()
    strategy = scheduled(scheduler, clients_per_round=4, over_select=1.25)
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 4.5])
    run = toy.start(strategy, grid, 3)
    first, second, third = run.records
    assert first.outrun == [4]
    assert first.trained == second.trained == third.trained == [0, 1, 2, 3]
    assert (first.pending, second.pending, third.pending) == ([], [4], [4])
    assert not first.late
    assert not third.late
    grid.advance(5.0)
    grid.nodes[4].delay = 0.5
    again = toy.start(strategy, grid, 1)
    [record] = again.records
    assert record.late == [{"client": 4, "stage": "training", "server_round": 1}]
    assert (3, "late", [4]) in scheduler.told
    assert [told for told in scheduler.told if told[1] == "late"] == [(3, "late", [4])]
    # Four aggregated updates and the late one; it is an update beyond those aggregated.
    assert record.costs.updates == 5
    assert record.costs.extra_updates == 1
    # Its node is free again, and now one of the fastest.
    assert record.trained == [0, 1, 2, 4]
    assert record.outrun == [3]
    assert first.costs.updates == 4
    w = np.zeros(6)
    for each in run.records:
        w = mean_step(toy, w, each.trained)
    np.testing.assert_allclose(run.w, w, rtol=1e-12)


def test_replies_of_one_poll_beyond_m_are_late(toy: Any) -> None:
    """All five replies arrive together: three are aggregated, two are late at once."""
    scheduler = Listening()
    strategy = scheduled(scheduler)
    grid = toy.known_grid(strategy, [1.0] * 5)
    run = toy.start(strategy, grid, 2)
    for number, record in enumerate(run.records):
        assert len(record.trained) == 3
        assert len(record.late) == 2
        assert all(one["server_round"] == number + 1 for one in record.late)
        assert record.pending == []
        assert record.costs.updates == 5
        assert record.costs.extra_updates == 2
    assert [source for _, source, _ in scheduler.told] == ["training", "late", "late"] * 2
    assert strategy.recorder.backoff.total == 0


def test_refused_replies_do_not_count(toy: Any, changed: Any) -> None:
    """The two fastest return NaN: the round goes on with the next three."""
    strategy = scheduled(clients_per_round=3, over_select=2.0)
    grid = toy.known_grid(strategy, [1.0, 1.1, 2.0, 2.1, 2.2, 50.0])
    for node in grid.nodes[:2]:
        node.tamper = lambda reply: changed(reply, w=np.full(6, np.nan))
    run = toy.start(strategy, grid, 1)
    [record] = run.records
    assert record.trained == [2, 3, 4]
    assert sorted(one["client"] for one in record.refused) == [0, 1]
    assert record.outrun == [5]
    assert record.costs.seconds == pytest.approx(2.2)
    # Refused replies are failures, and to be slower than others is none.
    assert sorted(strategy.recorder.backoff.waiting(1)) == [0, 1]
    assert np.isfinite(run.w).all()


def test_an_error_does_not_count_either(toy: Any) -> None:
    strategy = scheduled(clients_per_round=2, over_select=1.5)
    grid = toy.known_grid(strategy, [1.0, 2.0, 3.0])

    def broken(w: np.ndarray, client: int) -> float:
        if client == 0:
            raise RuntimeError("out of memory")
        return 1.0

    toy.loss = broken
    run = toy.start(strategy, grid, 1)
    assert run.records[0].trained == [1, 2]
    assert run.records[0].failed[0]["client"] == 0
    assert run.records[0].costs.seconds == pytest.approx(3.0)


def test_a_late_reply_that_is_refused_is_a_failure(toy: Any, changed: Any) -> None:
    strategy = scheduled(clients_per_round=4, over_select=1.25)
    grid = toy.known_grid(strategy, [1.0, 1.0, 1.0, 1.0, 3.0])
    grid.nodes[4].tamper = lambda reply: changed(reply, w=np.full(6, np.nan))
    toy.start(strategy, grid, 1)
    assert strategy.recorder.backoff.total == 0
    grid.advance(10.0)
    run = toy.start(strategy, grid, 1)
    assert run.records[0].refused[0]["client"] == 4
    assert strategy.recorder.backoff.waiting(2) == [4]


def test_a_node_that_never_answers_fails_when_patience_ends(toy: Any) -> None:
    strategy = scheduled(clients_per_round=4, over_select=1.25, patience=60.0)
    grid = toy.known_grid(strategy, [1.0, 1.0, 1.0, 1.0, math.inf])
    toy.start(strategy, grid, 1)
    assert strategy.recorder.backoff.total == 0
    grid.advance(60.0)
    toy.start(strategy, grid, 1)
    assert strategy.recorder.backoff.waiting(2) == [4]


def test_awaited_clients_are_waited_for_and_have_a_slot(toy: Any) -> None:
    scheduler = Awaiting()
    scheduler.awaited = (4,)
    strategy = scheduled(scheduler)
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 9.0])
    run = toy.start(strategy, grid, 1)
    [record] = run.records
    assert sorted(record.trained) == [0, 1, 4]
    assert record.costs.seconds == pytest.approx(9.0)
    assert [one["client"] for one in record.late] == [2, 3]


def test_awaited_clients_are_waited_for_up_to_the_deadline(toy: Any) -> None:
    scheduler = Awaiting()
    scheduler.awaited = (4,)
    strategy = scheduled(scheduler, deadline=5.0)
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 9.0])
    run = toy.start(strategy, grid, 1)
    [record] = run.records
    assert record.trained == [0, 1, 2]
    assert record.costs.seconds == pytest.approx(5.0)
    assert record.timed_out == {"training": [4]}
    assert strategy.recorder.backoff.waiting(1) == [4]


def test_nobody_complements_a_client_whose_reply_will_be_late(toy: Any) -> None:
    """Client 4 is much like the straggler, client 3: it is selected while that is busy."""
    seen: list[tuple[int, ...]] = []

    class Watching(adcs.ADCS):
        def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
            seen.append(self.pending)
            return super()._select(server_round, clients, m)

    toy.points[:5] = np.eye(5, 6)
    toy.points[1, :2] = 0.9, 0.4
    toy.points[4, 3:5] = 0.99, 0.1
    scheduler = Watching(theta=0.0, refresh_every=100)
    strategy = scheduled(scheduler, clients_per_round=2, over_select=1.5)
    grid = toy.known_grid(strategy, [1.0] * 5)
    toy.start(strategy, grid, 1)  # the probe
    grid.nodes[3].delay = 90.0
    first, *later = toy.start(strategy, grid, 5).records
    assert 3 in first.cohort.clients
    assert all(record.pending == [3] and 4 in record.cohort.clients for record in later)
    assert seen == [()] * 6


def test_busy_nodes_are_never_asked(toy: Any) -> None:
    """All nodes are busy at some time: the round waits for the first of them to answer."""
    strategy = scheduled(clients_per_round=2, over_select=1.5, deadline=5.0)
    grid = toy.known_grid(strategy, [8.0, 9.0, 10.0])
    sent: list[tuple[float, int]] = []
    push = grid.push_messages

    def watched(messages: Any) -> Any:
        messages = list(messages)
        for message in messages:
            index = [node.node_id for node in grid.nodes].index(message.metadata.dst_node_id)
            assert grid.nodes[index]._busy_until <= grid.clock(), "the node is busy"
            sent.append((grid.clock(), index))
        return push(messages)

    grid.push_messages = watched
    run = toy.start(strategy, grid, 4)
    assert [record.trained for record in run.records] == [[]] * 4
    assert len(sent) > 4
    assert all(record.late for record in run.records[1:])


def test_a_probe_for_whole_updates_is_the_training(toy: Any) -> None:
    """All clients have trained for the probe; the first m of the cohort's order are used."""
    scheduler = adcs.ADCS(refresh_every=1)
    strategy = scheduled(scheduler)
    run = toy.start(strategy, toy.known_grid(strategy, [1.0] * 6), 2)
    for record in run.records:
        assert len(record.cohort.clients) == 5
        assert set(record.trained) == set(record.cohort.clients[:3])
        assert record.costs.updates == 6
    assert len(toy.trained) == 12
    assert strategy.recorder.backoff.total == 0


class OwnStart(FedAdam):
    """Has a `start` of its own."""

    def start(self, grid: Any, initial_arrays: ArrayRecord, rounds: int = 2) -> Result:
        result = Result()
        result.arrays = initial_arrays
        for server_round in range(1, rounds + 1):
            messages = self.configure_train(server_round, result.arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages, timeout=100.0)
            arrays, metrics = self.aggregate_train(server_round, replies)
            self.aggregate_evaluate(server_round, [])
            result.arrays = arrays
            result.train_metrics_clientapp[server_round] = metrics
        return result


@pytest.mark.parametrize("options", [{}, {"mode": Buffered(size=3, concurrency=5)}])
def test_a_strategys_own_start(toy: Any, options: Any) -> None:
    settings = {"clients_per_round": None, "over_select": None, **options} if options else {}
    strategy = scheduled(base=OwnStart(), **settings)
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 30.0])
    result = strategy.start(grid, toy.initial(), rounds=3)
    assert [m["adcs-trained"] for m in result.train_metrics_clientapp.values()] == [3, 3, 3]
    assert grid.clock() < 10.0


def test_weights_of_the_first_replies_are_applied(toy: Any) -> None:
    class Weighted(adcs.Uniform):
        def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
            return Cohort(clients[:m], tuple(1.0 + client for client in clients[:m]))

    strategy = scheduled(Weighted())
    grid = toy.known_grid(strategy, [1.0, 5.0, 1.1, 6.0, 1.2])
    run = toy.start(strategy, grid, 1)
    assert run.records[0].trained == [0, 2, 4]
    n = np.array([toy.examples(client) * (1.0 + client) for client in (0, 2, 4)])
    expected = (n[:, None] * 0.5 * toy.points[[0, 2, 4]]).sum(axis=0) / n.sum()
    np.testing.assert_allclose(run.w, expected, rtol=1e-12)


def private() -> Any:
    return DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over_select": 0.9}, "over_select must be a number >= 1, got 0.9"),
        ({"base": private()}, "over_select does not work with DifferentialPrivacy"),
        ({"clients_per_round": None}, "clients_per_round must be given, got None"),
        ({"deadline": "soon"}, 'deadline must be seconds, "adaptive" or None'),
        ({"deadline": -1.0}, "deadline must be a number > 0"),
        ({"mode": Buffered(size=2, concurrency=2)}, "clients_per_round has no meaning"),
        (
            {"mode": Buffered(size=2, concurrency=2), "clients_per_round": None},
            "over_select has no meaning",
        ),
        ({"mode": "buffered"}, "mode must be adcs.rounds.Buffered"),
    ],
)
def test_settings_that_do_not_work_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheduled(**options)


@pytest.mark.parametrize("scheduler", [adcs.Uniform(independent=True), adcs.ClusteredSampling()])
def test_unnormalised_cohorts_are_refused(toy: Any, scheduler: Any) -> None:
    with pytest.raises(ValueError, match="over_select needs cohorts whose weights are normalised"):
        toy.start(scheduled(scheduler), toy.grid(), 3)


def test_a_strategy_without_weights_can_be_over_selected(toy: Any) -> None:
    strategy = scheduled(base=QFedAvg(client_learning_rate=0.5, fraction_evaluate=0.0))
    grid = toy.known_grid(strategy, [1.0, 1.1, 1.2, 1.3, 30.0])
    run = toy.start(strategy, grid, 2)
    assert [len(record.trained) for record in run.records] == [3, 3]
