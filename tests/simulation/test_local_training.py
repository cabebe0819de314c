"""Local training: SGD against torch.optim, SCAFFOLD by hand, state, keys, statistics, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adcs
from adcs._serialization import pack, unpack
from adcs.observers import Observer
from adcs.simulation import (
    MLP,
    ClientResult,
    Federation,
    LocalSGD,
    LocalTraining,
    Network,
    NetworkSettings,
    Simulation,
    Training,
    load,
    local_rounds,
    make_partition,
)
from adcs.simulation.batches import Batches
from adcs.simulation.local_rounds import MultiStep, PerClient, SingleStep

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from scaffold import Scaffold

N = 8
DATA = load("synthetic:clusters=3,dimension=4,per_cluster=40")


def simulation(
    scheduler: Any = None,
    *,
    model: Any = None,
    network: dict[str, Any] | None = None,
    objects: dict[str, Any] | None = None,
    dtype: Any = np.float64,
    **training: Any,
) -> Simulation:
    partition = make_partition(DATA, "dirichlet", N, seed=0, alpha=1.0, sizes="skewed")
    federation = Federation(DATA, partition, batch_size=5, dtype=dtype)
    return Simulation(
        federation,
        model or MLP(4, DATA.classes, (6,)),
        scheduler or {"Uniform": adcs.Uniform()},
        Training(**{"m": 4, "lr": 0.1, **training}),
        network=None if network is None else Network(NetworkSettings(**network), N, 0),
        **(objects or {}),
    )


class Plain:
    """A model with the required methods alone."""

    def __init__(self, model: MLP) -> None:
        self.size, self.initial, self.predict = model.size, model.initial, model.predict
        self.loss_and_gradient = model.loss_and_gradient


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"steps": 4},
    "momentum": {"steps": 4, "momentum": 0.9},
    "weight decay": {"steps": 4, "weight_decay": 0.1},
    "prox": {"steps": 4, "prox": 0.5},
    "clip": {"steps": 4, "clip": 0.3},
    "one step": {"steps": 1, "clip": 0.3, "weight_decay": 0.1},
    "epochs": {"epochs": 2, "momentum": 0.5, "prox": 0.1},
    "full": {"local": "full", "weight_decay": 0.1},
    "all": {"epochs": 1, "momentum": 0.9, "weight_decay": 0.05, "prox": 0.2, "clip": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_sgd_against_torch_optim(kind: str) -> None:
    """Each client's model is that of torch.optim.SGD with PyTorch's clipping and momentum."""
    torch = pytest.importorskip("torch")
    settings = KINDS[kind]
    sim = simulation(**settings)
    start, model = sim.parameters[0], sim.model
    local = sim._start_round(sim.parameters, 0)
    updates = local.updates(0, np.arange(N))
    batches = Batches(sim.federation, sim.training, 0)
    for client in range(N):
        w = torch.tensor(start, requires_grad=True)
        t = sim.training
        optimizer = torch.optim.SGD([w], lr=t.lr, momentum=t.momentum, weight_decay=t.weight_decay)
        for x, y in batches.of(0, client):
            _, gradient = model.loss_and_gradient(w.detach().numpy(), x, y)
            w.grad = torch.tensor(gradient) + t.prox * (w.detach() - torch.tensor(start))
            if t.clip is not None:
                torch.nn.utils.clip_grad_norm_([w], t.clip)
            optimizer.step()
        np.testing.assert_allclose(start - t.lr * updates[client], w.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_to_compute_agree(kind: str) -> None:
    """Many clients at once and client by client are the same numbers."""
    wide, plain = (
        simulation(**KINDS[kind]),
        simulation(model=Plain(MLP(4, DATA.classes, (6,))), **KINDS[kind]),
    )
    clients = np.array([5, 0, 7, 2])
    one, other = (sim._start_round(sim.parameters, 3) for sim in (wide, plain))
    assert isinstance(one, PerClient if kind == "full" else MultiStep)
    assert isinstance(other, PerClient)
    for local in (one, other):
        local.prepare(clients)
    np.testing.assert_allclose(one.losses(0, clients), other.losses(0, clients), atol=1e-12)
    np.testing.assert_allclose(one.updates(0, clients), other.updates(0, clients), atol=1e-12)
    np.testing.assert_allclose(one.losses(0, clients), other.losses(0, clients), atol=1e-12)
    weights = [(clients, np.array([0.1, 0.2, 0.3, 0.4]))]
    np.testing.assert_allclose(one.aggregate(weights), other.aggregate(weights), atol=1e-12)


def test_the_fast_path_is_taken_for_one_plain_step() -> None:
    sim = simulation()
    assert isinstance(sim._start_round(sim.parameters, 0), SingleStep)


def test_an_epoch_is_a_permutation() -> None:
    sim = simulation(epochs=2)
    batches = Batches(sim.federation, sim.training, seed=0)
    for client in range(N):
        x, _ = sim.federation.all_of(client)
        size = len(x)
        for server_round in (0, 1):
            seen = np.concatenate([part for part, _ in batches.of(server_round, client)])
            for epoch in (seen[:size], seen[size:]):
                np.testing.assert_array_equal(np.sort(epoch, axis=0), np.sort(x, axis=0))
            assert size < 2 or not np.array_equal(seen[:size], seen[size:])
        again = np.concatenate([part for part, _ in batches.of(1, client)])
        np.testing.assert_array_equal(seen, again)
        lengths = [len(y) for _, y in batches.of(0, client)]
        assert len(lengths) == batches.steps[client]
        assert all(length <= 5 for length in lengths)


def test_epochs_take_time_by_steps() -> None:
    network = {"spread": 0.0, "up_bytes_per_second": 1e12, "down_bytes_per_second": 1e12}
    sim = simulation(network=network, epochs=1, m=1)
    steps = Batches(sim.federation, sim.training, 0).steps
    assert len(set(steps.tolist())) > 2
    for _ in range(12):
        before = sim.runs[0].ledger.seconds
        sim.step()
        (client,) = sim.runs[0].cohort.clients
        seconds = sim.runs[0].ledger.seconds - before
        assert seconds == pytest.approx(steps[client] / np.median(steps), abs=1e-6)


class TestScaffold:
    def by_hand(self, rounds: int, cohorts: list[tuple[int, ...]]) -> np.ndarray[Any, Any]:
        """Algorithm 1 of the paper with option II and a global step of 1."""
        sim = simulation(steps=3)
        model, lr = sim.model, 0.1
        x = model.initial(0)
        c, own = np.zeros_like(x), [np.zeros_like(x) for _ in range(N)]
        for server_round in range(rounds):
            delta_y, delta_c = [], []
            for client in cohorts[server_round]:
                y = x.copy()
                features, labels = sim.federation.batches(server_round, np.array([client]), 3)
                for k in range(3):
                    part = slice(5 * k, 5 * k + 5)
                    _, g = model.loss_and_gradient(y, features[0, part], labels[0, part])
                    y = y - lr * (g - own[client] + c)
                plus = own[client] - c + (x - y) / (3 * lr)
                delta_y.append(y - x)
                delta_c.append(plus - own[client])
                own[client] = plus
            x = x + np.mean(delta_y, axis=0)
            c = c + len(delta_c) / N * np.mean(delta_c, axis=0)
        return x

    def test_against_the_algorithm(self) -> None:
        sim = simulation(steps=3, objects={"local_training": Scaffold()})
        cohorts = []
        for _ in range(6):
            sim.step()
            cohorts.append(sim.runs[0].cohort.clients)
        np.testing.assert_allclose(sim.parameters[0], self.by_hand(6, cohorts), atol=1e-12)

    def test_control_variates_are_charged(self) -> None:
        sim = simulation(
            {
                "Uniform": adcs.Uniform(),
                "all": adcs.ADCS(refresh_every=100),
                "loss": adcs.PowerOfChoice(),
            },
            steps=3,
            objects={"local_training": Scaffold()},
        )
        size = 4 * sim.model.size
        for _ in range(5):
            sim.step()
        uniform, updates, losses = (run.ledger for run in sim.runs)
        assert uniform.bytes_down == uniform.bytes_up == 5 * 4 * 2 * size
        # One probe for updates: model and c to all clients, to nobody again in that round.
        assert updates.bytes_down == N * 2 * size + 4 * 4 * 2 * size
        assert updates.bytes_up == N * (size + 4) + 5 * 4 * size + 4 * 4 * size
        # Losses need the model alone; those that train get c in addition.
        assert losses.bytes_down == 5 * (N * size + 4 * size)
        assert losses.bytes_up == 5 * (N * 4 + 4 * 2 * size)

    def test_a_client_that_fails_keeps_its_state(self) -> None:
        network = {"dropout": 0.5, "spread": 0.5, "deadline": 2.0}
        sim = simulation(steps=3, network=network, objects={"local_training": Scaffold()})

        class Arrivals(Observer):
            trained: tuple[int, ...] = ()

            def on_round(self, event: Any) -> None:
                self.trained = event.trained

        arrivals = Arrivals()
        sim.observers.append(arrivals)
        failed = 0
        for _ in range(15):
            before = dict(sim.runs[0].states.clients)
            sim.step()
            after = sim.runs[0].states.clients
            changed = {c for c in after if after[c] is not before.get(c)}
            assert changed == set(arrivals.trained)
            failed += 4 - len(arrivals.trained)
        assert failed > 5

    def test_resume_bit_for_bit(self) -> None:
        def new() -> Simulation:
            return simulation(
                {"Uniform": adcs.Uniform(), "ADCS": adcs.ADCS(refresh_every=3)},
                steps=3,
                network={"dropout": 0.2},
                server_optimizer="adam",
                objects={"local_training": Scaffold()},
            )

        whole, first = new(), new()
        for _ in range(9):
            whole.step()
        for _ in range(4):
            first.step()
        resumed = new()
        resumed.restore(unpack(pack(first.state())))
        for _ in range(5):
            resumed.step()
        assert pack(resumed.state()) == pack(whole.state())
        assert resumed.runs[0].states.clients


class Network3:
    """A NumPy model with statistics and random numbers: noise on the features, a running mean."""

    buffers, keyed = 4, True

    def __init__(self, *, local_update: bool = False) -> None:
        self._inner = MLP(4, DATA.classes)
        self.size = self._inner.size + 4
        self.keys: list[int] = []
        if local_update:
            self.local_update = self._local_update

    def initial(self, seed: int) -> Any:
        return np.concatenate([self._inner.initial(seed), np.full(4, 10.0)])

    def loss_and_gradient(self, w: Any, x: Any, y: Any, key: int) -> Any:
        self.keys.append(key)
        noise = np.random.default_rng(key).normal(size=x.shape)
        loss, gradient = self._inner.loss_and_gradient(w[:-4], x + 0.1 * noise, y)
        return loss, np.concatenate([gradient, 0.5 * w[-4:] + 0.5 * x.mean(axis=0)])

    def _local_update(self, w: Any, batches: Any, sgd: LocalSGD, key: int) -> Any:
        self.keys.append(key)
        total, local, first = 0.0, w.copy(), None
        for x, y in batches:
            loss, vector = self.loss_and_gradient(local, x, y, key)
            first = loss if first is None else first
            total = total + vector[:-4]
            local = np.concatenate([local[:-4] - sgd.lr * vector[:-4], vector[-4:]])
        return first, np.concatenate([total, local[-4:]])

    def predict(self, w: Any, x: Any) -> Any:
        return self._inner.predict(w[:-4], x)


@pytest.mark.parametrize("local_update", [False, True])
@pytest.mark.parametrize("server_lr", [None, 0.5])
def test_statistics_are_averaged_and_are_no_part_of_updates(
    local_update: bool, server_lr: float | None
) -> None:
    model = Network3(local_update=local_update)
    sim = simulation(
        {"all": adcs.ADCS()},
        model=model,
        m=N,
        steps=2,
        weights="size",
        server_lr=server_lr,
        server_optimizer="momentum",
    )
    expected = []
    for client in range(N):
        x, _ = sim.federation.batches(0, np.array([client]), 2)
        mean = np.full(4, 10.0)
        for part in (slice(0, 5), slice(5, 10)):
            mean = 0.5 * mean + 0.5 * x[0, part].mean(axis=0)
        expected.append(mean)
    local = sim._start_round(sim.parameters, 0)
    assert local.updates(0, np.arange(N)).shape == (N, model.size - 4)
    sim.step()
    sizes = sim.federation.sizes
    np.testing.assert_allclose(
        sim.parameters[0, -4:], sizes @ np.array(expected) / sizes.sum(), rtol=1e-12
    )
    report = sim.runs[0].scheduler.reports[0]
    assert report.update is not None
    assert len(report.update) == model.size - 4
    assert sim.runs[0].ledger.bytes_down == 4 * model.size * N


def test_keys_are_of_seed_round_and_client_and_shared_by_runs() -> None:
    model = Network3(local_update=True)
    model.keyed = True
    sim = simulation({"a": adcs.Uniform(), "b": adcs.Uniform()}, model=model, m=N)
    rounds = []
    for _ in range(2):
        model.keys.clear()
        sim.step()
        rounds.append(list(model.keys))
        assert len(set(model.keys)) == N
    assert not set(rounds[0]) & set(rounds[1])
    np.testing.assert_array_equal(sim.parameters[0], sim.parameters[1])


def test_chunks_change_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not fit are computed again, with the same bits."""

    def run() -> Simulation:
        sim = simulation(
            {
                "sketch": adcs.ADCS(sketch=adcs.Sketcher(size=8), refresh_every=2),
                "norm": adcs.OCS(),
            },
            steps=2,
            dtype=np.float32,
        )
        sim.run(6, eval_every=3)
        return sim

    whole = run()
    calls = []
    compute = MultiStep._compute
    monkeypatch.setattr(
        MultiStep, "_compute", lambda *args: calls.append(args[2].size) or compute(*args)
    )
    monkeypatch.setattr(local_rounds, "CHUNK_NUMBERS", 2 * whole.model.size)
    monkeypatch.setattr(local_rounds, "KEPT_NUMBERS", 0)
    chunked = run()
    assert max(calls) == 2
    np.testing.assert_allclose(whole.parameters, chunked.parameters, rtol=1e-5, atol=1e-7)
    for one, other in zip(whole.runs, chunked.runs, strict=True):
        assert one.cohort.clients == other.cohort.clients
        assert one.ledger == other.ledger


class Own(LocalTraining):
    """Returns what it is told to."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def train(self, work: Any) -> Any:
        loss, gradient = work.loss_and_gradient(work.w, *work.batches[0])
        return self.change(work, loss, gradient)


def broken(work: Any, loss: float, gradient: Any) -> Any:
    work.w[0] = 3.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w, v, g: ClientResult(v, g * np.nan), "the update must be finite numbers"),
        (lambda w, v, g: ClientResult(v, g[:-1]), r"must have shape \(44,\), got \(43,\)"),
        (lambda w, v, g: ClientResult(np.nan, g), "the loss must be a finite number, got nan"),
        (lambda w, v, g: (v, g), r"train must return a ClientResult, got \("),
        (lambda w, v, g: ClientResult(v, g, state={"c": [1]}), r"state\['c'\] must be an array"),
        (lambda w, v, g: ClientResult(v, g, sent=[g]), "sent must be a table of arrays by name"),
        (lambda w, v, g: w.state["c"], r"KeyError: 'c' \(test_local_training.py, line \d+, in"),
        (broken, "read-only"),
    ],
)
def test_results_of_ones_own_are_checked(change: Any, sentence: str) -> None:
    sim = simulation(objects={"local_training": Own(change)})
    where = r"local training Own failed in round 0, client \d: "
    with pytest.raises(ValueError, match=f"{where}.*{sentence}"):
        sim.step()


def test_a_spec_needs_its_object() -> None:
    with pytest.raises(ValueError, match=r"mine.py:Mine must be given to Simulation as an object"):
        simulation(local="mine.py:Mine")
