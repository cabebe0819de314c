"""Signals of simulated clients, by hand, and every selector in the simulator."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import adcs
from adcs.simulation import MLP, Federation, Simulation, Training, load, make_partition
from adcs.simulation.client_signals import evaluated_signals, output_bias_updates

N, CLASSES = 8, 2


@pytest.fixture(scope="module")
def federation() -> Federation:
    data = load("synthetic:clusters=3,dimension=4")
    return Federation(data, make_partition(data, "iid", N, seed=0))


def simulation(federation, **schedulers):
    return Simulation(federation, MLP(4, CLASSES), schedulers, Training(m=3, lr=0.1))


def test_signals_by_hand(federation):
    model = MLP(4, CLASSES)
    w = np.random.default_rng(0).standard_normal(model.size)
    names = ["rms_loss", "held_out_accuracy", "label_counts"]
    found = evaluated_signals(federation, model, w, np.array([5, 2]), names)
    for row, client in enumerate((5, 2)):
        x, y = federation.all_of(client)
        losses = [model.loss_and_gradient(w, x[i : i + 1], y[i : i + 1])[0] for i in range(len(y))]
        assert found["rms_loss"][row] == pytest.approx(
            np.sqrt(np.mean(np.square(losses))), rel=1e-6
        )
        assert found["label_counts"][row].tolist() == [(y == k).sum() for k in range(CLASSES)]
    accuracy, _ = federation.test(model, w[None])[0]
    assert found["held_out_accuracy"].tolist() == [accuracy[5], accuracy[2]]


def test_the_loss_of_a_regression_is_the_squared_error():
    rng = np.random.default_rng(0)
    held = {
        client: ((rng.normal(size=(6, 2)), rng.normal(size=6)), (np.zeros((1, 2)), np.zeros(1)))
        for client in range(3)
    }
    federation = Federation.from_clients(held, task="regression", dtype=np.float64)
    model = MLP(2, 1, task="regression")
    w = rng.standard_normal(model.size)
    found = evaluated_signals(federation, model, w, np.array([2]), ["rms_loss"])
    x, y = federation.all_of(2)
    losses = [model.loss_and_gradient(w, x[i : i + 1], y[i : i + 1])[0] for i in range(len(y))]
    assert found["rms_loss"] == pytest.approx([np.sqrt(np.mean(np.square(losses)))], rel=1e-6)


def test_the_output_bias_is_the_end_of_the_vector():
    model = MLP(2, 3, (4,))
    updates = np.arange(2.0 * model.size).reshape(2, -1)
    expected = -0.5 * updates[:, -3:]
    np.testing.assert_array_equal(output_bias_updates(model, updates, 0.5), expected)
    assert output_bias_updates(object(), updates, 0.5) is None


SELECTORS = {
    "Oort": adcs.Oort,
    "ActiveFL": adcs.ActiveFL,
    "ClusteredSampling": adcs.ClusteredSampling,
    "FedCor": partial(adcs.FedCor, warm_up=1, refit_every=2, fit_steps=5, refit_steps=5),
    "HiCSFL": adcs.HiCSFL,
    "FedCBS": adcs.FedCBS,
    "FLIPS": adcs.FLIPS,
    "TiFL": partial(adcs.TiFL, tiers=2, interval=2),
    "FedCS": adcs.FedCS,
    "REFL": adcs.REFL,
}


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_gets_its_signals(federation, name):
    scheduler = SELECTORS[name]()
    run = simulation(federation, one=scheduler)
    run.run(6)
    assert scheduler.missing_signals() == []
    assert run.runs[0].cohort.diagnostics["refused"] == []
    assert run.runs[0].counts.sum() >= 6


def test_histograms_are_charged_once_and_need_no_model(federation):
    run = simulation(federation, one=adcs.FedCBS(), plain=adcs.Uniform())
    for _ in range(3):
        run.step()
    one, plain = (each.ledger for each in run.runs)
    assert one.bytes_up - plain.bytes_up == 4 * CLASSES * N
    assert (one.bytes_down, one.updates) == (plain.bytes_down, plain.updates)


def test_the_rms_loss_is_charged_with_training(federation):
    run = simulation(federation, one=adcs.Oort(), plain=adcs.Uniform())
    for _ in range(3):
        run.step()
    one, plain = (each.ledger for each in run.runs)
    assert one.bytes_up - plain.bytes_up == 3 * 3 * 4


def test_the_bias_reported_is_that_of_training(federation):
    scheduler = adcs.HiCSFL()
    run = simulation(federation, one=scheduler)
    before = run.parameters[0].copy()
    run.step()
    change = (run.parameters[0] - before)[-CLASSES:]
    sizes = federation.sizes
    trained = [c for c in range(N) if scheduler.reports[c].output_bias_update is not None]
    rows = np.array([scheduler.reports[c].output_bias_update for c in trained])
    weights = np.ones(len(trained)) if run.training.weights != "size" else sizes[trained]
    mean = weights @ rows / weights.sum()
    np.testing.assert_allclose(mean, change, atol=1e-5)


def test_clients_add_the_same_noise_to_their_histogram_each_time(federation):
    data, partition = federation.dataset, federation.partition
    model, clients = MLP(4, CLASSES), np.arange(N)
    noised = [
        evaluated_signals(made, model, model.initial(0), clients[order], ["label_counts"])
        for made in [Federation(data, partition, histogram_epsilon=0.1, seed=s) for s in (0, 0, 1)]
        for order in (slice(None), slice(None, None, -1))
    ]
    tables = [each["label_counts"] for each in noised]
    plain = evaluated_signals(federation, model, model.initial(0), clients, ["label_counts"])
    np.testing.assert_array_equal(tables[0], tables[1][::-1])
    np.testing.assert_array_equal(tables[0], tables[2])
    assert (tables[0] != tables[4]).any()
    assert 1.0 < np.abs(tables[0] - plain["label_counts"]).mean() < 40.0  # scale 10


def test_a_wrong_epsilon_is_named(federation):
    with pytest.raises(ValueError, match="histogram_epsilon must be a number > 0"):
        Federation(federation.dataset, federation.partition, histogram_epsilon=0.0)


@pytest.mark.parametrize("kind", [adcs.ADCS, adcs.LiveADCS])
def test_a_kernel_of_labels_computes_no_update_beyond_training(federation, kind):
    run = simulation(federation, labels=kind(kernel="labels"))
    for _ in run.iter_rounds(6):
        pass
    ledger = run.runs[0].ledger
    assert (ledger.updates, ledger.extra_updates) == (18, 0)
