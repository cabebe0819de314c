"""Rounds that end while clients are at work: over-selected, buffered, by learned deadlines."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs._serialization import pack, unpack
from adcs.observers import Observer
from adcs.rounds import Buffered
from adcs.simulation import (
    MLP,
    Federation,
    LocalTraining,
    Network,
    NetworkSettings,
    RoundSettings,
    Simulation,
    Training,
    load,
    make_partition,
)

N, M = 12, 4
DATA = load("synthetic:clusters=4,dimension=5")
BUFFERED = RoundSettings(mode="buffered", buffer_size=2, concurrency=5)
MODES = {
    "over-selected": (RoundSettings(over_select=1.5), None),
    "over-selected, deadline": (RoundSettings(over_select=1.5), 3.0),
    "over-selected, adaptive": (RoundSettings(over_select=1.5), "adaptive"),
    "adaptive": (None, "adaptive"),
    "buffered": (BUFFERED, None),
    "buffered, deadline": (BUFFERED, 3.0),
    "buffered, adaptive": (BUFFERED, "adaptive"),
    "buffered one by one": (replace(BUFFERED, buffer_size=1, staleness="inverse"), None),
}


def schedulers() -> dict[str, adcs.Scheduler]:
    return {
        "Uniform": adcs.Uniform(),
        "PowerOfChoice": adcs.PowerOfChoice(),
        "Oort": adcs.Oort(),
        "DivFL": adcs.DivFL(refresh_every=7),
        "HiCSFL": adcs.HiCSFL(),
        "ADCS": adcs.ADCS(refresh_every=5),
        "ADCS, sketches": adcs.ADCS(refresh_every=5, sketch=adcs.Sketcher(size=32)),
        "LiveADCS": adcs.LiveADCS(),
        "LiveADCS, sketches": adcs.LiveADCS(sketch=adcs.Sketcher(size=32)),
    }


class Watch(Observer):
    """Keeps selections and rounds of each run, and what schedulers observe."""

    def __init__(self) -> None:
        self.selections: dict[str, list[Any]] = {}
        self.rounds: dict[str, list[Any]] = {}

    def on_selection(self, event):
        self.selections.setdefault(event.run, []).append(event)

    def on_round(self, event):
        self.rounds.setdefault(event.run, []).append(event)


def simulation(
    rounds: RoundSettings | None = None,
    deadline: float | str | None = None,
    network: Network | None = None,
    made: dict[str, adcs.Scheduler] | None = None,
    seed: int = 0,
    **training: Any,
) -> Simulation:
    federation = Federation(DATA, make_partition(DATA, "by-class", N, seed=seed), seed=seed)
    speeds = NetworkSettings(spread=1.2, dropout=0.1, deadline=deadline, availability=0.9, spell=5)
    return Simulation(
        federation,
        MLP(5, DATA.classes),
        schedulers() if made is None else made,
        Training(**{"m": M, "lr": 0.1, **training}),
        network=network or Network(speeds, N, seed),
        seed=seed,
        observers=[Watch()],
        round_settings=rounds,
    )


def watch(sim: Simulation) -> Watch:
    found = sim.observers[0]
    assert isinstance(found, Watch)
    return found


class Speeds(Network):
    """Clients of given seconds; some never answer."""

    def __init__(self, seconds: Any, dead: Any = (), **more: Any) -> None:
        seconds = np.asarray(seconds, dtype=float)
        super().__init__(NetworkSettings(**more), seconds.size, seed=0)
        self.given, self.dead = seconds, dead

    @property
    def compute_seconds(self):
        return self.given

    def seconds(self, clients, *, down, work, up):
        return (work * self.given)[clients]

    def fails(self, server_round, clients):
        return np.isin(clients, list(self.dead))


class Seen(adcs.Uniform):
    """Uniform that keeps what it observes."""

    observed_sources = frozenset({"training"})
    training_signals = frozenset({"loss"})

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.seen: list[tuple[str, int, int, int]] = []

    def _observe(self, server_round, reports, source):
        super()._observe(server_round, reports, source)
        self.seen += [(source, server_round, r.client, r.server_round) for r in reports]


# With a deadline that nobody misses but those that drop out: others would still be at work.
@pytest.mark.parametrize("deadline", [None, 1000.0])
def test_over_selection_by_one_is_the_synchronous_round(deadline: float | None) -> None:
    plain, flying = simulation(None, deadline), simulation(RoundSettings(over_select=1.0), deadline)
    plain.run(25)
    flying.run(25)
    assert np.array_equal(plain.parameters, flying.parameters)
    for one, two in zip(plain.runs, flying.runs, strict=True):
        assert two.ledger.as_dict() == pytest.approx(one.ledger.as_dict(), rel=1e-12)


def test_a_round_takes_what_the_mth_fastest_takes() -> None:
    network = Speeds([1.0, 2.0, 3.0, 4.0, 30.0], spread=0.0)
    federation = Federation(DATA, make_partition(DATA, "iid", 5, seed=0))
    made = {"Seen": Seen()}
    sim = Simulation(
        federation,
        MLP(5, DATA.classes),
        made,
        Training(m=4, lr=0.1),
        network=network,
        observers=[Watch()],
        round_settings=RoundSettings(over_select=1.25),
    )
    sim.run(3)
    run = sim.runs[0]
    assert run.in_flight is not None
    assert run.ledger.seconds == 12.0  # the slow client is busy from the first round on
    assert run.in_flight.participations.tolist() == [3, 3, 3, 3, 0]
    sim.run(10)
    late = [seen for seen in made["Seen"].seen if seen[0] == "late"]
    assert late == [("late", 8, 4, 0)]  # 30 seconds are over when round 8 begins, at 32
    assert run.in_flight.participations[4] == 0
    assert run.ledger.extra_updates == 1
    assert run.ledger.updates == 4 * 10 + 1


def test_required_clients_are_waited_for() -> None:
    network = Speeds([1.0, 2.0, 3.0, 4.0, 30.0], spread=0.0)
    federation = Federation(DATA, make_partition(DATA, "iid", 5, seed=0))
    sim = Simulation(
        federation,
        MLP(5, DATA.classes),
        {"Uniform": adcs.Uniform(required=[4])},
        Training(m=3, lr=0.1),
        network=network,
        round_settings=RoundSettings(over_select=1.6),
    )
    sim.run(2)
    assert sim.runs[0].ledger.seconds == 60.0
    # It takes one of the m slots; what the others have computed beyond them is late.
    assert sim.runs[0].in_flight.participations.tolist() == [2, 2, 0, 0, 2]
    assert sim.runs[0].ledger.updates == 2 * 3 + 2
    assert sim.runs[0].ledger.extra_updates == 2


@pytest.mark.parametrize("mode", [RoundSettings(over_select=1.3), BUFFERED])
def test_cohorts_with_weights_that_do_not_sum_to_one_are_refused(mode: RoundSettings) -> None:
    sim = simulation(mode, made={"OCS": adcs.OCS(independent=True)})
    with pytest.raises(ValueError, match=r"OCS weights its cohorts otherwise \(normalise=False\)"):
        sim.run(1)


def test_live_adcs_keeps_its_waiting_bound_when_over_selected() -> None:
    """The slowest client would always be late; LiveADCS has the round wait for it."""
    seconds = np.exp(np.linspace(0.0, 4.0, N))
    made = {"LiveADCS": adcs.LiveADCS(), "Uniform": adcs.Uniform()}
    sim = simulation(RoundSettings(over_select=1.5), network=Speeds(seconds), made=made)
    rounds = 150
    sim.run(rounds)
    asked = 6
    longest = {}
    for run in sim.runs:
        last, most = dict.fromkeys(range(N), 0), 0
        for event in watch(sim).rounds[run.name]:
            most = max(most, *(event.server_round - at for at in last.values()))
            last.update(dict.fromkeys(event.trained, event.server_round))
        longest[run.name] = max(most, *(rounds - at for at in last.values()))
    assert longest["LiveADCS"] <= (2.0 + 2.0 + 0.5) * N / asked + 3
    assert longest["Uniform"] > 5 * longest["LiveADCS"]


@settings(max_examples=12, deadline=None)
@given(mode=st.sampled_from(sorted(MODES)), stop=st.integers(1, 18), seed=st.integers(0, 3))
def test_a_run_with_work_in_flight_resumes_bit_for_bit(mode: str, stop: int, seed: int) -> None:
    whole, stopped, resumed = (simulation(*MODES[mode], seed=seed) for _ in range(3))
    whole.run(20)
    stopped.run(stop)
    resumed.restore(unpack(pack(stopped.state())))
    resumed.run(20)
    assert np.array_equal(whole.parameters, resumed.parameters)
    one, two = whole.state(), resumed.state()
    assert pack(one) == pack(two)


@pytest.mark.parametrize("mode", MODES)
def test_costs_and_participations_agree(mode: str) -> None:
    """Every update was aggregated, computed for nothing, or is still to arrive."""
    sim = simulation(*MODES[mode])
    sim.run(40)
    for run in sim.runs:
        flight = run.in_flight
        assert flight is not None
        took_part = [len(event.trained) for event in watch(sim).rounds[run.name]]
        assert max(took_part) <= (M if sim._buffered is None else sim._buffered.size)
        trained = sum(took_part)
        assert flight.participations.sum() == trained
        assert run.ledger.updates - run.ledger.extra_updates == trained
        assert len({job.client for job in flight.jobs}) == len(flight.jobs)
        seconds = [event.costs.seconds for event in watch(sim).rounds[run.name]]
        assert min(seconds) >= 0.0
        assert sum(seconds) == pytest.approx(run.ledger.seconds)
        for event in watch(sim).selections[run.name]:
            assert not set(event.available) & set(event.pending)
            if sim._buffered is not None:
                assert len(event.pending) + len(event.cohort.clients) <= 5


def test_full_buffers_without_staleness_are_synchronous_rounds() -> None:
    """With K = C = m and no drop-outs nobody is at work when the model changes."""
    network = NetworkSettings(spread=1.0)
    mode = RoundSettings(mode="buffered", buffer_size=M, concurrency=M)
    made = [{"Uniform": adcs.Uniform(), "LiveADCS": adcs.LiveADCS()} for _ in range(2)]
    plain = simulation(None, network=Network(network, N, 0), made=made[0])
    flying = simulation(mode, network=Network(network, N, 0), made=made[1])
    plain.run(30)
    flying.run(30)
    np.testing.assert_allclose(flying.parameters, plain.parameters, rtol=2e-4, atol=2e-5)
    for one, two in zip(plain.runs, flying.runs, strict=True):
        assert one.ledger.updates == two.ledger.updates
        assert one.ledger.bytes_up == two.ledger.bytes_up
        assert one.ledger.bytes_down == two.ledger.bytes_down
        assert two.ledger.seconds == pytest.approx(one.ledger.seconds)


@pytest.mark.parametrize("staleness", ["sqrt", "inverse", "constant"])
def test_buffered_rounds_equal_a_loop_of_events(staleness: Any) -> None:
    """FedBuff written down as a heap of events, on the same batches and speeds."""
    rng = np.random.default_rng(4)
    seconds = np.exp(rng.normal(0.0, 1.2, N))
    rounds = RoundSettings(mode="buffered", buffer_size=3, concurrency=7, staleness=staleness)
    sim = simulation(rounds, network=Speeds(seconds), made={"Uniform": adcs.Uniform(seed=9)})
    sim.run(40)

    mode, lr = Buffered(3, 7, staleness), 0.1
    federation, model = sim.federation, sim.model
    w = model.initial(0).astype(np.float64)
    scheduler = adcs.Uniform(seed=9)
    heap: list[Any] = []
    clock, order, ages = 0.0, 0, []
    for version in range(40):
        pending = [client for _, _, client, *_ in heap]
        free = [client for client in range(N) if client not in pending]
        for client in scheduler.select(version, free, 7 - len(pending), pending).clients:
            x, y = federation.batches(version, np.array([client]))
            _, gradient = model.loss_and_gradient(w.astype(np.float32), x[0], y[0])
            entry = (clock + seconds[client], order, client, version, gradient)
            heapq.heappush(heap, entry)
            order += 1
        total = np.zeros_like(w)
        for _ in range(3):
            clock, _, _, sent, gradient = heapq.heappop(heap)
            ages.append(version - sent)
            total += mode.discount(version - sent) * gradient / 3
        w = w - lr * total
    assert max(ages) > 3
    assert sim.runs[0].ledger.seconds == pytest.approx(clock)
    np.testing.assert_allclose(sim.parameters[0], w, rtol=1e-3, atol=1e-4)


def test_replies_to_old_models_carry_their_version() -> None:
    seen = Seen()
    sim = simulation(BUFFERED, network=Speeds(np.exp(np.linspace(0, 3, N))), made={"Seen": seen})
    sim.run(60)
    assert {source for source, *_ in seen.seen} == {"training"}
    ages = [at - model for _, at, _, model in seen.seen]
    assert min(ages) == 0
    assert max(ages) > 5
    assert sim.runs[0].in_flight.participations.min() > 0  # the slowest take part, too


def test_a_dead_client_in_buffered_mode() -> None:
    """Its slot is filled again, it is left alone longer and longer, and the model goes on."""
    network = Speeds(np.ones(N), dead=[3], deadline=5.0)
    sim = simulation(BUFFERED, network=network, made={"Seen": Seen()})
    sim.run(120)
    events = watch(sim).rounds["Seen"]
    assert all(len(event.trained) == 2 for event in events)
    asked = [e.server_round for e in watch(sim).selections["Seen"] if 3 in e.cohort.clients]
    assert 2 <= len(asked) <= 7
    assert sim.runs[0].in_flight.participations[3] == 0
    assert sim.runs[0].backoff.total == len(asked)


def test_if_all_clients_are_dead_versions_pass() -> None:
    network = Speeds(np.ones(N), dead=range(N), deadline=5.0)
    sim = simulation(BUFFERED, network=network, made={"Seen": Seen()})
    before = sim.parameters.copy()
    sim.run(10)
    assert np.array_equal(sim.parameters, before)
    assert sim.runs[0].ledger.seconds > 0.0


@pytest.mark.parametrize("rounds", [None, RoundSettings(over_select=1.5)])
def test_dead_clients_do_not_stall_rounds_twice_in_a_row(rounds: RoundSettings | None) -> None:
    """Client 0 is slow and dies; the others take a second."""
    seconds = np.ones(N)
    seconds[0] = 20.0
    network = Speeds(seconds, deadline="adaptive")
    made = {"Uniform": adcs.Uniform(required=[0])}  # asked whenever it is not left alone
    sim = simulation(rounds, network=network, made=made)
    sim.run(30)
    network.dead = [0]
    watch(sim).rounds.clear()
    sim.run(150)
    took = [event.costs.seconds for event in watch(sim).rounds["Uniform"]]
    stalled = [second > 5.0 for second in took]
    assert any(stalled[:3])
    assert sum(stalled) == 1


def test_a_first_probe_with_drop_outs_has_an_end() -> None:
    """No times are known yet: a drop-out is noticed when its answer would have arrived."""
    network = Speeds(np.ones(N), dead=[3], deadline="adaptive")
    sim = simulation(None, network=network, made={"ADCS": adcs.ADCS()})
    sim.run(1)
    assert sim.runs[0].ledger.seconds <= 2.0


def test_clients_that_become_slower_get_more_time() -> None:
    seconds = np.ones(N)
    network = Speeds(seconds, deadline="adaptive")
    sim = simulation(None, network=network, made={"Uniform": adcs.Uniform(required=[0])})
    sim.run(20)
    network.given = np.where(np.arange(N) == 0, 6.0, 1.0)
    sim.run(60)
    flight = sim.runs[0].in_flight
    assert flight.deadlines["training"].of(0, longest=np.inf) > 6.0
    before = flight.participations[0]
    sim.run(80)
    assert flight.participations[0] - before >= 15


def test_settings_that_do_not_go_together_are_refused() -> None:
    class Own(LocalTraining):
        def train(self, work):
            raise NotImplementedError

    with pytest.raises(ValueError, match="concurrency must be at most 12"):
        simulation(RoundSettings(mode="buffered", concurrency=13))
    with pytest.raises(ValueError, match="paper_literal_weights needs rounds"):
        simulation(BUFFERED, paper_literal_weights=True)
    federation = Federation(DATA, make_partition(DATA, "iid", N, seed=0))
    with pytest.raises(ValueError, match="mode buffered needs local training by SGD, got Own"):
        Simulation(
            federation,
            MLP(5, DATA.classes),
            {"Uniform": adcs.Uniform()},
            Training(m=M),
            local_training=Own(),
            round_settings=BUFFERED,
        )
    with pytest.raises(ValueError, match="over_select is a setting of mode synchronous"):
        RoundSettings(mode="buffered", over_select=1.3)
    with pytest.raises(ValueError, match=r"buffer_size must be at most round\.concurrency \(3\)"):
        RoundSettings(mode="buffered", buffer_size=9, concurrency=3)
    with pytest.raises(ValueError, match=r"round\.buffer_size must be at most m \(4\), .* got 5"):
        simulation(RoundSettings(mode="buffered", buffer_size=5))
    with pytest.raises(ValueError, match=r"network\.deadline must be a number > 0 or adaptive"):
        NetworkSettings(deadline="soon")
    with pytest.raises(ValueError, match=r"network\.deadline must be a number > 0, got 0"):
        NetworkSettings(deadline=0)
