"""The engine: the paper's counts, steps by hand, pairing, resume, the virtual network."""

from __future__ import annotations

import math

import numpy as np
import pytest

import adcs
from adcs._hashing import hashes, uniforms
from adcs._serialization import pack, unpack
from adcs.schedulers.base import Scheduler
from adcs.simulation.datasets import from_arrays
from adcs.simulation.engine import Simulation
from adcs.simulation.federation import Federation
from adcs.simulation.models import MLP
from adcs.simulation.network import Network, NetworkSettings
from adcs.simulation.partition import make_partition
from adcs.simulation.training import Training


def small_data(seed: int = 0, classes: int = 4, features: int = 6):
    rng = np.random.default_rng(seed)
    centres = 2 * rng.standard_normal((classes, features))
    y = np.repeat(np.arange(classes), 60)
    x = centres[y] + rng.standard_normal((y.size, features))
    return from_arrays(x.astype(np.float32), y, x[::3].astype(np.float32), y[::3], name="small")


def simulation(schedulers, *, clients=12, m=5, network=None, seed=0, batch_size=4, **training):
    data = small_data()
    partition = make_partition(data, "by-class", clients, seed=seed)
    federation = Federation(data, partition, batch_size=batch_size, seed=seed, dtype=np.float64)
    if network is not None:
        network = Network(network, clients, seed)
    settings = Training(m=m, **{"lr": 0.1, **training})
    hidden = ()
    return Simulation(
        federation, MLP(6, 4, hidden), schedulers, settings, network=network, seed=seed
    )


def six() -> dict[str, Scheduler]:
    return {
        "Uniform": adcs.Uniform(),
        "PowerOfChoice": adcs.PowerOfChoice(),
        "OCS": adcs.OCS(),
        "DivFL": adcs.DivFL(refresh_every=3),
        "StaticDPP": adcs.StaticDPP(),
        "ADCS": adcs.ADCS(refresh_every=4),
    }


def run_rounds(sim: Simulation, rounds: int) -> Simulation:
    for _ in range(rounds):
        sim.step()
    return sim


def ledgers(sim):
    return {run.name: run.ledger for run in sim.runs}


class Everyone(adcs.Scheduler):
    """Selects all clients up to m."""

    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(self.take(clients, m))


class Rising(adcs.Scheduler):
    """All clients, the first with weight one, the second with two, and so on."""

    def _select(self, server_round, clients, m):
        return adcs.Cohort(clients, tuple(1.0 + client for client in clients))


class TrainingObserver(Everyone):
    """Keeps the rounds of its training reports, and their number."""

    def __init__(self):
        super().__init__()
        self.observed = []

    def _observe(self, server_round, reports, source):
        if source == "training":
            self.observed.append((server_round, len(reports)))


class TestLedger:
    @pytest.mark.parametrize("refresh", [1, 4, 7])
    def test_the_papers_count(self, refresh):
        rounds, n, m = 21, 12, 5
        sim = run_rounds(simulation({"ADCS": adcs.ADCS(refresh_every=refresh)}), rounds)
        expected = m * rounds + (n - m) * math.ceil(rounds / refresh)
        assert ledgers(sim)["ADCS"].updates == expected
        assert ledgers(sim)["ADCS"].extra_updates == (n - m) * math.ceil(rounds / refresh)

    def test_each_run_is_charged_for_its_requests(self):
        rounds, n, m, size = 6, 12, 5, 4 * 28
        costs = ledgers(run_rounds(simulation(six()), rounds))
        assert costs["Uniform"].updates == m * rounds
        assert costs["Uniform"].bytes_up == costs["Uniform"].bytes_down == m * rounds * size
        assert costs["PowerOfChoice"].loss_evaluations == n * rounds
        assert costs["PowerOfChoice"].updates == m * rounds
        assert costs["PowerOfChoice"].bytes_down == n * rounds * size
        assert costs["PowerOfChoice"].bytes_up == rounds * (4 * n + m * size)
        assert costs["OCS"].updates == n * rounds
        assert costs["OCS"].bytes_up == rounds * (4 * n + m * size)
        # An update sent for the probe is not sent again for training.
        assert costs["StaticDPP"].bytes_up == n * size + (rounds - 1) * m * size

    def test_a_sketch_is_charged_at_its_size(self):
        sketch = adcs.Sketcher(size=16)
        sim = run_rounds(simulation({"ADCS": adcs.ADCS(sketch=sketch, refresh_every=10)}), 10)
        cost = ledgers(sim)["ADCS"]
        assert cost.bytes_up == 12 * (sketch.nbytes + 4) + 10 * 5 * 4 * 28
        assert cost.updates == 5 * 10 + 7

    def test_seconds_are_those_of_the_slowest_client(self):
        network = NetworkSettings(
            compute_seconds=2.0, spread=0.0, up_bytes_per_second=28.0, down_bytes_per_second=112.0
        )
        sim = run_rounds(simulation({"Uniform": adcs.Uniform()}, network=network), 3)
        assert ledgers(sim)["Uniform"].seconds == pytest.approx(3 * (1.0 + 2.0 + 4.0))


class TestTraining:
    def test_one_step_by_hand(self):
        sim = simulation({"all": Everyone()}, m=12)
        x, y = sim.federation.batches(0, np.arange(12))
        gradients = [
            sim.model.loss_and_gradient(sim.parameters[0], x[i], y[i])[1] for i in range(12)
        ]
        expected = sim.parameters[0] - 0.1 * np.mean(gradients, axis=0)
        sim.step()
        np.testing.assert_allclose(sim.parameters[0], expected, atol=1e-15)

    def test_many_steps_by_hand(self):
        sim = simulation({"all": Everyone()}, m=12, steps=3)
        x, y = sim.federation.batches(0, np.arange(12), steps=3)
        ends = []
        for i in range(12):
            w = sim.parameters[0].copy()
            for e in range(3):
                part = slice(4 * e, 4 * e + 4)
                w = w - 0.1 * sim.model.loss_and_gradient(w, x[i, part], y[i, part])[1]
            ends.append(w)
        sim.step()
        # With server_lr = lr the new model is the mean of the clients' models.
        np.testing.assert_allclose(sim.parameters[0], np.mean(ends, axis=0))

    def test_full_batch_by_hand(self):
        sim = simulation({"all": Everyone()}, m=12, local="full", weights="size", server_lr=0.5)
        sizes = sim.federation.sizes
        total = sum(
            sizes[i] * sim.model.loss_and_gradient(sim.parameters[0], *sim.federation.all_of(i))[1]
            for i in range(12)
        )
        expected = sim.parameters[0] - 0.5 * total / sizes.sum()
        sim.step()
        np.testing.assert_allclose(sim.parameters[0], expected, atol=1e-15)

    def test_full_batch_training_has_one_step(self):
        with pytest.raises(ValueError, match="steps must be 1 where local is full, got 3"):
            Training(m=5, local="full", steps=3)

    def test_unnormalised_weights_and_an_empty_cohort(self):
        class Nobody(adcs.Scheduler):
            fixed_size = False

            def _select(self, server_round, clients, m):
                return adcs.Cohort((), (), normalise=False)

        sim = simulation({"none": Nobody(), "OCS": adcs.OCS(independent=True)})
        before = sim.parameters[0].copy()
        run_rounds(sim, 3)
        np.testing.assert_array_equal(sim.parameters[0], before)
        assert np.isfinite(sim.parameters[1]).all()

    def test_paper_literal_weights_divide_twice(self):
        plain = simulation({"all": Everyone()}, m=12)
        literal = simulation({"all": Everyone()}, m=12, paper_literal_weights=True)
        plain.step()
        literal.step()
        np.testing.assert_allclose(literal.parameters[0], plain.parameters[0] / 12, atol=1e-12)


class TestPairing:
    def test_a_run_does_not_depend_on_the_other_runs(self):
        company = run_rounds(simulation(six()), 15)
        for i, (name, scheduler) in enumerate(six().items()):
            alone = run_rounds(simulation({name: scheduler}), 15)
            np.testing.assert_allclose(
                alone.parameters[0], company.parameters[i], rtol=1e-9, atol=1e-12
            )
            np.testing.assert_array_equal(alone.runs[0].counts, company.runs[i].counts)

    def test_batches_depend_on_seed_round_and_client_only(self):
        fed = simulation({"u": adcs.Uniform()}).federation
        whole = fed.examples(3, np.arange(12))
        np.testing.assert_array_equal(fed.examples(3, np.array([7, 2])), whole[[7, 2]])
        assert not np.array_equal(fed.examples(4, np.arange(12)), whole)
        longer = fed.examples(3, np.arange(12), steps=2)
        np.testing.assert_array_equal(longer[:, :4], whole)

    def test_batches_sampled_ahead_are_those_of_the_round(self, monkeypatch):
        fed = simulation({"u": adcs.Uniform()}).federation
        wanted = [(0, 1), (31, 1), (32, 1), (32, 3), (5, 1), (100, 3), (33, 1)]
        clients = np.array([7, 2])
        ahead = [fed.examples(server_round, clients, steps) for server_round, steps in wanted]
        monkeypatch.setattr("adcs.simulation.federation.FEW_EXAMPLES", 0)
        for drawn, (server_round, steps) in zip(ahead, wanted, strict=True):
            np.testing.assert_array_equal(drawn, fed.examples(server_round, clients, steps))

    def test_batches_hold_the_clients_own_examples(self):
        fed = simulation({"u": adcs.Uniform()}).federation
        for client in range(12):
            own = set(fed.partition.train[client].tolist())
            drawn = np.concatenate([fed.examples(r, np.array([client]))[0] for r in range(200)])
            assert set(drawn.tolist()) <= own
            assert len(set(drawn.tolist())) == len(own)

    def test_hashes_are_uniform(self):
        values = uniforms(3, np.arange(200)[:, None], np.arange(200))
        counts = np.histogram(values, bins=20)[0]
        assert np.abs(counts / 2000 - 1).max() < 0.1
        assert np.unique(hashes(0, np.arange(1000))).size == 1000


class TestResume:
    @pytest.mark.parametrize("at", [1, 4, 9])
    def test_resumed_equals_uninterrupted_to_the_bit(self, at):
        network = NetworkSettings(availability=0.7, spell=3, dropout=0.1, deadline=9.0)
        whole = run_rounds(simulation(six(), network=network), 12)
        first = run_rounds(simulation(six(), network=network), at)
        second = simulation(six(), network=network)
        second.restore(unpack(pack(first.state())))
        run_rounds(second, 12 - at)
        np.testing.assert_array_equal(second.parameters, whole.parameters)
        for one, two in zip(whole.runs, second.runs, strict=True):
            assert one.ledger == two.ledger
            np.testing.assert_array_equal(one.counts, two.counts)


class TestNetwork:
    def test_unavailable_clients_are_not_selected(self):
        settings = NetworkSettings(availability=0.5, spell=2)
        sim = simulation(six(), network=settings)
        for server_round in range(10):
            there = set(sim.network.available(server_round))
            sim.step()
            for run in sim.runs:
                assert set(run.cohort.clients) <= there

    def test_availability_is_its_fraction_and_comes_in_spells(self):
        network = Network(NetworkSettings(availability=0.3, spell=10), clients=300, seed=1)
        there = np.array([[c in set(network.available(r)) for c in range(300)] for r in range(100)])
        assert there.mean() == pytest.approx(0.3, abs=0.03)
        assert (there[1:] == there[:-1]).mean() > 0.9

    def test_deadline_drops_the_slow(self):
        settings = NetworkSettings(
            spread=1.5, deadline=1.5, up_bytes_per_second=1e9, down_bytes_per_second=1e9
        )
        sim = simulation({"all": Everyone()}, m=12, network=settings)
        sim.step()
        fast = int((sim.network.compute_seconds <= 1.5).sum())
        assert 0 < fast < 12
        assert sim.runs[0].ledger.updates == fast
        assert sim.runs[0].ledger.seconds == pytest.approx(1.5)

    def test_arrived_updates_have_their_own_weights(self):
        sim = simulation({"rising": Rising()}, m=12, network=NetworkSettings(dropout=0.5))
        arrived = np.flatnonzero(~sim.network.fails(0, np.arange(12)))
        assert 0 < arrived.size < 12
        x, y = sim.federation.batches(0, arrived)
        pairs = zip(x, y, strict=True)
        gradients = [sim.model.loss_and_gradient(sim.parameters[0], *pair)[1] for pair in pairs]
        expected = sim.parameters[0] - 0.1 * np.average(gradients, axis=0, weights=arrived + 1.0)
        sim.step()
        np.testing.assert_allclose(sim.parameters[0], expected, atol=1e-15)

    def test_a_round_without_arrivals_is_observed_alone_or_beside_other_runs(self):
        calls = []
        for company in ({}, {"Uniform": adcs.Uniform()}):
            listener = TrainingObserver()
            network = NetworkSettings(dropout=0.9)
            run_rounds(simulation({"own": listener, **company}, m=2, network=network), 20)
            calls.append(listener.observed)
        assert calls[0] == calls[1]
        assert len(calls[0]) == 20

    def test_all_dropped_leaves_the_model(self):
        sim = simulation({"all": Everyone()}, network=NetworkSettings(deadline=1e-9))
        before = sim.parameters.copy()
        sim.step()
        np.testing.assert_array_equal(sim.parameters, before)

    def test_gamma_prefers_fast_clients(self):
        settings = NetworkSettings(spread=1.0, compute_seconds=1e-6, up_bytes_per_second=100.0)
        runs = {"slow": adcs.ADCS(gamma=0.0, scale="standard"), "fast": adcs.ADCS(gamma=1.0)}
        costs = ledgers(run_rounds(simulation(runs, network=settings), 20))
        assert costs["fast"].seconds < costs["slow"].seconds

    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            ({"availability": 0.0}, "0.0"),
            ({"dropout": 1.0}, "1.0"),
            ({"deadline": -1.0}, "-1.0"),
            ({"spread": -0.5}, "-0.5"),
            ({"spell": 0}, "0"),
            ({"compute_seconds": 0}, "0"),
        ],
    )
    def test_wrong_settings(self, wrong, named):
        with pytest.raises(ValueError, match=named):
            NetworkSettings(**wrong)


class TestRecords:
    def test_measures_agree_with_brute_force(self):
        sim = simulation(six())
        run_rounds(sim, 2)
        work = sim._start_round(sim.parameters, sim.server_round)
        everyone = np.arange(12)
        work.prepare(everyone)
        rows = [work.updates(i, everyone) for i in range(6)]
        measures = sim.step(measured=True)
        for run, updates, entry in zip(sim.runs, rows, measures, strict=True):
            chosen = list(run.cohort.clients)
            expected = np.linalg.norm(updates[chosen].mean(axis=0) - updates.mean(axis=0))
            assert entry["bias"] == pytest.approx(expected)
            assert entry["gradient_norm"] == pytest.approx(np.linalg.norm(updates.mean(axis=0)))
            gram = (updates @ updates.T)[np.triu_indices(12)]
            np.testing.assert_allclose(entry["gram"], gram, rtol=1e-5)

    def test_measuring_changes_nothing(self):
        quiet, loud = simulation(six()), simulation(six())
        for _ in range(6):
            quiet.step()
            loud.evaluate()
            loud.step(measured=True)
        np.testing.assert_allclose(loud.parameters, quiet.parameters, rtol=1e-12, atol=1e-14)
        assert ledgers(quiet) == ledgers(loud)

    def test_accuracy_is_on_the_clients_own_test_examples(self):
        sim = run_rounds(simulation({"u": adcs.Uniform()}), 30)
        record = sim.evaluate()[0]
        data, test = sim.federation.dataset, sim.federation.partition.test
        for client in range(12):
            x, y = data.x_test[test[client]].astype(float), data.y_test[test[client]]
            right = (sim.model.predict(sim.parameters[0], x).argmax(axis=1) == y).mean()
            assert record["accuracy"][client] == pytest.approx(right)
        assert record["worst"] == min(record["accuracy"])

    def test_a_zero_model_has_the_accuracy_of_chance(self):
        record = simulation({"u": adcs.Uniform()}).evaluate()[0]
        assert record["average"] == pytest.approx(1 / 4)
        assert max(record["accuracy"]) <= 1.0

    def test_m_above_the_clients(self):
        with pytest.raises(ValueError, match="13"):
            simulation({"u": adcs.Uniform()}, m=13)


class NoBias:
    """Least squares through the origin: where x is zero, so is the gradient."""

    size = 24

    def initial(self, seed):
        return np.ones(24)

    def loss_and_gradient(self, w, x, y):
        error = x @ w.reshape(6, 4) - np.eye(4)[y]
        return float((error**2).mean()), (x.T @ error).ravel()

    def predict(self, w, x):
        return x @ w.reshape(6, 4)


def test_a_zero_update_has_no_sketch_and_the_run_continues():
    data = small_data()
    data.x_train[data.y_train == 0] = 0.0
    federation = Federation(data, make_partition(data, "by-class", 12, seed=0), dtype=np.float64)
    sketch = adcs.Sketcher(size=32)
    schedulers = {
        "ADCS": adcs.ADCS(sketch=sketch, refresh_every=2),
        "DivFL": adcs.DivFL(sketch=sketch, refresh_every=2),
        "LiveADCS": adcs.LiveADCS(sketch=sketch),
    }
    run = Simulation(federation, NoBias(), schedulers, Training(m=5, lr=0.01))
    for _ in range(5):
        run.step()
    assert all(len(each.selected) == 5 for each in run.runs)
    assert schedulers["ADCS"].reports[0].sketch is None
    assert schedulers["ADCS"].reports[11].sketch is not None
