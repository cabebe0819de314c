"""PyTorch networks as models: against the NumPy models, against torch.optim, and in simulations."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adcs.schedulers import ADCS, Scheduler, Uniform
from adcs.simulation import (
    MLP,
    ClientWork,
    Dataset,
    Federation,
    LocalSGD,
    Model,
    Simulation,
    Training,
    from_arrays,
    make_partition,
)
from adcs.simulation.models import NonFiniteLoss

torch = pytest.importorskip("torch")
nn = torch.nn

from adcs.simulation.networks import CNN, CharGRU, ResNet8  # noqa: E402
from adcs.simulation.torch_models import TorchModel  # noqa: E402

FEATURES, CLASSES = 6, 4


def flat_data(examples: int = 80, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    y = np.arange(examples) % CLASSES
    x = rng.standard_normal((examples, FEATURES)) + y[:, None]
    return from_arrays(x, y, x[::2], y[::2], name="flat")


def images(shape: tuple[int, ...], examples: int = 40) -> Dataset:
    rng = np.random.default_rng(1)
    y = np.arange(examples) % CLASSES
    x = rng.random((examples, *shape)) + y.reshape(-1, *[1] * len(shape)) / CLASSES
    return from_arrays(x.astype(np.float32), y, x[::2].astype(np.float32), y[::2], name="images")


def tokens(length: int = 8, vocabulary: int = 7, examples: int = 120) -> Dataset:
    """Sequences of which the class is the last token but one, modulo the classes."""
    x = np.random.default_rng(2).integers(0, vocabulary, (examples, length))
    y = x[:, -2] % CLASSES
    data = from_arrays(x.astype(np.float32), y, x[::2].astype(np.float32), y[::2], name="tokens")
    return dataclasses.replace(data, vocabulary=vocabulary)


def regression() -> Dataset:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((60, FEATURES)).astype(np.float32)
    y = x @ rng.standard_normal(FEATURES)
    held = flat_data(60)
    data = dataclasses.replace(held, x_train=x, y_train=y, x_test=x, y_test=y, classes=1)
    object.__setattr__(data, "task", "regression")
    return data


def dense(features: int, classes: int, hidden: tuple[int, ...] = (), dropout: float = 0.0) -> Any:
    layers: list[Any] = [nn.Flatten()]
    for a, b in itertools.pairwise((features, *hidden, classes)):
        layers += [nn.Linear(a, b), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers[: -2 if dropout else -1])


def normalised(features: int, classes: int, momentum: float | None = 0.1) -> Any:
    return nn.Sequential(
        nn.Linear(features, 5),
        nn.BatchNorm1d(5, momentum=momentum),
        nn.ReLU(),
        nn.Linear(5, classes),
    )


def batches(data: Dataset, steps: int, size: int = 8, dtype: Any = np.float32) -> list[Any]:
    return [
        (
            data.x_train[i * size : (i + 1) * size].astype(dtype),
            data.y_train[i * size : (i + 1) * size],
        )
        for i in range(steps)
    ]


TERMS = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"prox": 0.5},
    {"clip": 0.05},
    {"clip": 1e9},
    {"momentum": 0.5, "weight_decay": 0.01, "prox": 0.2, "clip": 0.5},
]


@pytest.mark.parametrize("hidden", [(), (5,), (7, 3)])
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_gradients_are_those_of_the_numpy_model(hidden: Any, dtype: Any, close: float) -> None:
    data = flat_data()
    ours = TorchModel(dense, data, settings={"hidden": hidden})
    reference = MLP(FEATURES, CLASSES, hidden)
    assert ours.size == reference.size
    w = np.random.default_rng(0).standard_normal(ours.size).astype(dtype)
    x, y = data.x_train.astype(dtype), data.y_train
    loss, gradient = ours.loss_and_gradient(w, x, y)
    expected_loss, expected = reference.loss_and_gradient(w, x, y)
    assert gradient.dtype == dtype
    assert loss == pytest.approx(expected_loss, rel=close)
    np.testing.assert_allclose(gradient, expected, rtol=close, atol=close)
    np.testing.assert_allclose(
        ours.predict(w, x), reference.predict(w, x), rtol=close, atol=10 * close
    )


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("hidden", [(), (5,)])
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_local_steps_are_those_of_the_numpy_model(
    terms: dict[str, float], hidden: Any, dtype: Any, close: float
) -> None:
    data = flat_data()
    ours = TorchModel(dense, data, settings={"hidden": hidden})
    reference = MLP(FEATURES, CLASSES, hidden)
    w = np.random.default_rng(1).standard_normal(ours.size).astype(dtype)
    sgd = LocalSGD(0.1, **terms)
    own = batches(data, steps=5, dtype=dtype)
    loss, update = ours.local_update(w, own, sgd, key=3)
    result = sgd.train(ClientWork(0, 0, w, own, 0.1, reference.loss_and_gradient))
    assert loss == pytest.approx(result.loss, rel=close)
    np.testing.assert_allclose(update, result.update, rtol=close, atol=10 * close)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_local_steps_are_those_of_torch_optim(terms: dict[str, float]) -> None:
    data = images((6, 6))
    ours = TorchModel(CNN, data, settings={"channels": (3, 5)})
    w = ours.initial(0).astype(np.float64)
    lr = 0.1
    _, update = ours.local_update(
        w, batches(data, 4, dtype=np.float64), LocalSGD(lr, **terms), key=0
    )
    plain = ours.network(w).train()
    start = [p.detach().clone() for p in plain.parameters()]
    optimiser = torch.optim.SGD(
        plain.parameters(),
        lr=lr,
        momentum=terms.get("momentum", 0.0),
        weight_decay=terms.get("weight_decay", 0.0),
    )
    for x, y in batches(data, 4, dtype=np.float64):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(
            plain(torch.from_numpy(x).reshape(-1, 6, 6)), torch.from_numpy(y)
        )
        far = sum(((p - q) ** 2).sum() for p, q in zip(plain.parameters(), start, strict=True))
        (loss + terms.get("prox", 0.0) / 2 * far).backward()
        if "clip" in terms:
            nn.utils.clip_grad_norm_(plain.parameters(), terms["clip"])
        optimiser.step()
    trained = ours.network(w - lr * update)
    for a, b in zip(trained.parameters(), plain.parameters(), strict=True):
        # clip_grad_norm_ divides by the norm plus 1e-6.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7 if "clip" in terms else 1e-12)


@pytest.mark.parametrize(
    ("factory", "shape"),
    [(CNN, (28, 28)), (CNN, (3, 8, 8)), (CNN, (8, 8, 3)), (ResNet8, (8, 8)), (ResNet8, (3, 9, 9))],
)
def test_shipped_networks_for_images(factory: Any, shape: tuple[int, ...]) -> None:
    data = images(shape)
    model = TorchModel(factory, data)
    w = model.initial(0)
    assert model.output_bias == slice(model.size - CLASSES, model.size)
    x = data.x_train.astype(np.float32)
    direct = model.network(w)(torch.from_numpy(x).reshape(-1, *shape))
    np.testing.assert_allclose(model.predict(w, x), direct.detach().numpy(), rtol=1e-4, atol=1e-5)
    first, update = model.local_update(w, [(x, data.y_train)] * 20, LocalSGD(0.02), key=0)
    assert model.loss_and_gradient(w - np.float32(0.02) * update, x, data.y_train)[0] < first


def test_a_network_that_uses_view_computes_in_the_usual_layout() -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.output = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3 * 36, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.output(self.conv(x[:, None]).view(len(x), -1))

    data = images((6, 6))
    model = TorchModel(Viewed, data)
    w = model.initial(0)
    x = data.x_train.astype(np.float32)
    direct = model.network(w)(torch.from_numpy(x).reshape(-1, 6, 6))
    np.testing.assert_allclose(model.predict(w, x), direct.detach().numpy(), rtol=1e-5, atol=1e-6)
    model.local_update(w, batches(data, 2), LocalSGD(0.1), key=0)


def test_initial_parameters_follow_from_the_seed() -> None:
    data = flat_data()
    state = torch.random.get_rng_state()
    model, again = TorchModel(dense, data), TorchModel(dense, data)
    torch.manual_seed(5)
    assert (model.initial(3) == again.initial(3)).all()
    assert not (model.initial(3) == model.initial(4)).any()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model.initial(0)
    assert torch.equal(torch.rand(3), expected)  # The user's random numbers are left alone.
    torch.random.set_rng_state(state)


def test_threads_are_one_inside_and_as_before_outside() -> None:
    seen = []

    class Counts(nn.Linear):
        def forward(self, x: Any) -> Any:
            seen.append(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = TorchModel(lambda features, classes: Counts(features, classes), flat_data())
        model.local_update(model.initial(0), batches(flat_data(), 2), LocalSGD(0.1), key=0)
        model.predict(model.initial(0), flat_data().x_test)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


# Random numbers in training


def test_dropout_follows_from_the_key() -> None:
    data = flat_data()
    model = TorchModel(dense, data, settings={"hidden": (16,), "dropout": 0.5})
    assert model.keyed
    assert not model.sums_gradients
    w, own = model.initial(0), batches(data, 3)
    updates = [model.local_update(w, own, LocalSGD(0.1), key=key)[1] for key in (1, 1, 2)]
    assert (updates[0] == updates[1]).all()
    assert not (updates[0] == updates[2]).all()
    assert (model.predict(w, data.x_test) == model.predict(w, data.x_test)).all()
    state = torch.random.get_rng_state()
    model.local_update(w, own, LocalSGD(0.1), key=2**64 - 1)
    assert torch.equal(torch.random.get_rng_state(), state)


class Noisy(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Augmentation: a layer that is active in training mode."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(features, classes)

    def forward(self, x: Any) -> Any:
        return self.output(x + 0.1 * torch.randn_like(x) if self.training else x)


def test_augmentation_follows_from_the_key() -> None:
    data = flat_data()
    model = TorchModel(Noisy, data)
    w = model.initial(0)
    assert model.keyed
    pairs = [model.loss_and_gradient(w, *batches(data, 1)[0], key=key) for key in (1, 1, 2)]
    assert pairs[0][0] == pairs[1][0] != pairs[2][0]


PROGRAM = """
import hashlib, sys
sys.path.insert(0, {folder!r})
import numpy as np
from adcs.simulation import LocalSGD, TorchModel
from test_torch_models import batches, dense, flat_data, images, CNN
data = flat_data()
model = TorchModel(dense, data, settings={{"hidden": (16,), "dropout": 0.5}})
w = model.initial(7)
update = model.local_update(w, batches(data, 3), LocalSGD(0.1, momentum=0.5), key=11)[1]
data = images((12, 12))
cnn = TorchModel(CNN, data)
other = cnn.local_update(cnn.initial(7), batches(data, 3), LocalSGD(0.1), key=0)[1]
digest = hashlib.sha256(w.tobytes() + update.tobytes() + other.tobytes()).hexdigest()
print(digest)
"""


def test_bits_are_the_same_in_another_process_with_more_threads(tmp_path: Path) -> None:
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**__import__("os").environ, "OMP_NUM_THREADS": threads},
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == len(hashlib.sha256().hexdigest())


# Statistics


def test_statistics_follow_the_parameters_in_the_vector() -> None:
    data = flat_data()
    model = TorchModel(normalised, data)
    kept = TorchModel(normalised, data, buffers="keep")
    assert (model.buffers, kept.buffers) == (10, 0)
    assert model.size == kept.size + 10
    assert not model.sums_gradients
    w, own = model.initial(0), batches(data, 3)
    np.testing.assert_array_equal(w[-10:], [0] * 5 + [1] * 5)
    _, update = model.local_update(w, own, LocalSGD(0.1), key=0)
    plain = model.network(w).train()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x, y in own:
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    expected = np.concatenate([plain[1].running_mean, plain[1].running_var])
    np.testing.assert_allclose(update[-10:], expected, rtol=1e-5)
    # Predictions use the vector's statistics, and "keep" those of the factory.
    moved = w.copy()
    moved[-10:] = expected
    assert not np.allclose(model.predict(moved, data.x_test), model.predict(w, data.x_test))
    before = kept.predict(w[:-10], data.x_test)
    np.testing.assert_array_equal(
        kept.local_update(w[:-10], own, LocalSGD(0.1), key=0)[1], update[:-10]
    )
    np.testing.assert_array_equal(kept.predict(w[:-10], data.x_test), before)


def test_counters_start_anew_with_every_client() -> None:
    data = flat_data()
    # Without momentum, BatchNorm's averages depend on the number of batches so far.
    model = TorchModel(normalised, data, settings={"momentum": None})
    w = model.initial(0)
    updates = [
        model.local_update(w, batches(data, steps), LocalSGD(0.1), key=0)[1] for steps in (3, 5, 3)
    ]
    assert (updates[0] == updates[2]).all()
    assert (updates[0] != updates[1]).any()


def test_constants_and_frozen_parameters_are_not_in_the_vector() -> None:
    class Frozen(nn.Module):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__()
            self.random = nn.Linear(features, 8)
            self.random.requires_grad_(False)
            self.register_buffer("scale", torch.full((8,), 0.5))
            self.register_buffer("table", torch.arange(3))
            self.output = nn.Linear(8, classes)

        def forward(self, x: Any) -> Any:
            return self.output(self.scale * torch.relu(self.random(x)))

    data = flat_data()
    model, again = TorchModel(Frozen, data), TorchModel(Frozen, data)
    assert (model.size, model.buffers) == (8 * CLASSES + CLASSES, 0)
    w = model.initial(1)
    assert (model.predict(w, data.x_test) == again.predict(again.initial(1), data.x_test)).all()


def run(model: Model, data: Dataset, *names: str, **settings: Any) -> Simulation:
    kinds: dict[str, type[Scheduler]] = {"Uniform": Uniform, "ADCS": ADCS}
    federation = Federation(data, make_partition(data, "iid", 4, seed=0), batch_size=8)
    schedulers = {name: kinds[name.partition("-")[0]](seed=3) for name in names}
    return Simulation(federation, model, schedulers, Training(**{"m": 2, "lr": 0.1, **settings}))


def test_statistics_are_averaged_and_no_part_of_updates() -> None:
    data = flat_data()
    model = TorchModel(normalised, data)
    simulation = run(model, data, "Uniform", m=4, steps=2, server_lr=0.7)
    w = simulation.parameters[0].copy()
    seen = []
    reports = simulation.runs[0].scheduler
    assert isinstance(reports, Uniform)
    original: Callable[..., Any] = model.local_update

    def local_update(*args: Any) -> Any:
        seen.append(original(*args)[1])
        return original(*args)

    model.local_update = local_update  # type: ignore[method-assign]
    simulation = run(model, data, "Uniform", m=4, steps=2, server_lr=0.7)
    simulation.step()
    rows = np.array(seen)
    np.testing.assert_allclose(simulation.parameters[0, -10:], rows[:, -10:].mean(0), rtol=1e-6)
    expected = w[:-10] - np.float32(0.7) * rows[:, :-10].mean(0)
    np.testing.assert_allclose(simulation.parameters[0, :-10], expected, rtol=1e-5, atol=1e-6)
    assert (simulation.parameters[0, -5:] > 0).all()


def test_reports_have_the_norm_of_parameters_alone() -> None:
    data = flat_data()
    model = TorchModel(normalised, data)
    simulation = run(model, data, "ADCS")
    simulation.step()
    kernel_rows = simulation.state()["runs"][0]["scheduler"]
    assert f"{model.size}" not in {str(v) for v in np.shape(kernel_rows)}
    local = simulation._start_round(simulation.parameters, 1)
    assert local.updates(0, np.arange(4)).shape == (4, model.size - model.buffers)


# In a simulation


def test_runs_that_are_compared_share_masks() -> None:
    data = flat_data()
    model = TorchModel(dense, data, settings={"hidden": (8,), "dropout": 0.5})
    simulation = run(model, data, "Uniform-a", "Uniform-b", "ADCS", steps=3)
    simulation.run(6, eval_every=3)
    assert (simulation.parameters[0] == simulation.parameters[1]).all()
    assert (simulation.parameters[0] != simulation.parameters[2]).any()
    alone = run(model, data, "ADCS", steps=3)
    alone.run(6, eval_every=3)
    assert (alone.parameters[0] == simulation.parameters[2]).all()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("factory", [dense, normalised, Noisy])
def test_restored_is_uninterrupted(factory: Any, steps: int) -> None:
    data = flat_data()
    model = TorchModel(factory, data)
    whole = run(model, data, "Uniform", "ADCS", steps=steps)
    whole.run(9, eval_every=4)
    begun = run(model, data, "Uniform", "ADCS", steps=steps)
    for _ in range(4):
        begun.step()
    resumed = run(TorchModel(factory, data), data, "Uniform", "ADCS", steps=steps)
    resumed.restore(begun.state())
    resumed.run(9, eval_every=4)
    assert (resumed.parameters == whole.parameters).all()
    assert str(resumed.evaluate()) == str(whole.evaluate())


@pytest.mark.parametrize("steps", [1, 4])
def test_a_run_is_that_of_the_numpy_model(steps: int) -> None:
    data = flat_data()
    torch_run = run(TorchModel(dense, data), data, "Uniform", "ADCS", steps=steps)
    numpy_run = run(MLP(FEATURES, CLASSES), data, "Uniform", "ADCS", steps=steps)
    torch_run.parameters = numpy_run.parameters.copy()
    for simulation in (torch_run, numpy_run):
        simulation.run(10, eval_every=5)
    np.testing.assert_allclose(torch_run.parameters, numpy_run.parameters, rtol=1e-4, atol=1e-5)


def test_the_sum_of_gradients_is_that_of_single_ones() -> None:
    data = images((6, 6), examples=200)
    model = TorchModel(CNN, data)
    assert model.sums_gradients
    w = model.initial(0)
    own = [*batches(data, 3, size=30), *batches(data, 3, size=17), *batches(data, 1, size=150)]
    weights = np.random.default_rng(0).random(len(own))
    losses, total = model.weighted_gradient(w, own, weights)
    singles = [model.loss_and_gradient(w, x, y) for x, y in own]
    np.testing.assert_allclose(losses, [loss for loss, _ in singles], rtol=1e-5)
    expected = weights @ np.array([gradient for _, gradient in singles], dtype=np.float64)
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)


def test_evaluations_do_not_change_a_run() -> None:
    data = flat_data()
    model = TorchModel(dense, data)
    runs = [run(model, data, "Uniform", "ADCS") for _ in range(2)]
    for simulation, eval_every in zip(runs, (1, 6), strict=True):
        simulation.run(6, eval_every=eval_every)
    assert (runs[0].parameters == runs[1].parameters).all()


def test_networks_whose_examples_depend_on_each_other_are_not_summed() -> None:
    class Centred(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x - x.mean(0))

    model = TorchModel(lambda features, classes: Centred(features, classes), flat_data())
    assert not model.sums_gradients
    assert (model.buffers, model.keyed) == (0, False)


# Tokens, regression and losses of examples


class TokenLSTM(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, 16, num_layers=2, dropout=0.1, batch_first=True)
        self.output = nn.Linear(16, classes)

    def forward(self, x: Any) -> Any:
        return self.output(self.lstm(self.embedding(x))[0][:, -1])


class TokenTransformer(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, vocabulary: int, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.position = nn.Parameter(0.1 * torch.randn(*input_shape, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.output = nn.Linear(16, classes)

    def forward(self, x: Any) -> Any:
        return self.output(self.encoder(self.embedding(x) + self.position)[:, -1])


@pytest.mark.parametrize("factory", [CharGRU, TokenLSTM, TokenTransformer])
def test_networks_on_tokens_train(factory: Any) -> None:
    data = tokens()
    model = TorchModel(factory, data)
    simulation = run(model, data, "Uniform", m=4, steps=5, lr=0.5)
    before = simulation.evaluate()[0]["test_loss"]
    simulation.run(25, eval_every=25)
    after = simulation.evaluate()[0]
    assert after["test_loss"] < 0.8 * before
    assert after["average"] > 1.3 / CLASSES


def test_regression() -> None:
    data = regression()
    for factory in (dense, lambda features: nn.Sequential(nn.Linear(features, 1), nn.Flatten(0))):
        model = TorchModel(factory, data)
        w = model.initial(0)
        x, y = data.x_train.astype(np.float32), data.y_train
        predicted = model.predict(w, x)
        assert predicted.shape == (60, 1)
        loss, gradient = model.loss_and_gradient(w, x, y)
        assert loss == pytest.approx(float(((predicted[:, 0] - y) ** 2).mean()), rel=1e-5)
        residual = 2 * (predicted[:, 0] - y) / len(y)
        np.testing.assert_allclose(
            gradient, [*(residual @ x), residual.sum()], rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(model.example_losses(w, x, y).mean(), loss, rtol=1e-5)


def test_losses_of_examples() -> None:
    data = flat_data(1200)
    model = TorchModel(dense, data, settings={"hidden": (5,)})
    w = model.initial(0)
    x, y = data.x_train.astype(np.float32), data.y_train
    losses = model.example_losses(w, x, y)
    singles = [model.loss_and_gradient(w, x[i : i + 1], y[i : i + 1])[0] for i in (0, 499, 1100)]
    np.testing.assert_allclose(losses[[0, 499, 1100]], singles, rtol=1e-5)
    assert losses.mean() == pytest.approx(model.loss_and_gradient(w, x, y)[0], rel=1e-5)
    assert model.predict(w, x[:0]).shape == (0, CLASSES)


@pytest.mark.parametrize(
    ("factory", "found"),
    [
        (dense, slice(24, 28)),
        (lambda features, classes: nn.Linear(features, classes, bias=False), None),
        (
            lambda features, classes: nn.Sequential(nn.Linear(features, classes), nn.ReLU()),
            None,
        ),
    ],
)
def test_output_bias(factory: Any, found: slice | None) -> None:
    assert TorchModel(factory, flat_data()).output_bias == found


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler")
def test_compiled_steps_are_those_of_the_network() -> None:
    data = flat_data()
    plain = TorchModel(dense, data)
    compiled = TorchModel(dense, data, compile=True)
    w = plain.initial(0)
    for sgd in (LocalSGD(0.1), LocalSGD(0.1, momentum=0.9)):
        results = [
            model.local_update(w, batches(data, 3), sgd, key=0) for model in (plain, compiled)
        ]
        assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
        np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-4, atol=1e-6)


# Bad input


class Shifting(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    made = 0

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        Shifting.made += 1
        self.first = nn.Linear(features, 3 + Shifting.made)
        self.second = nn.Linear(3 + Shifting.made, classes)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


class Broken(nn.Linear):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        with torch.no_grad():
            self.weight.fill_(torch.inf)


class Doubles(nn.Linear):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes, dtype=torch.float64)

    def forward(self, x: Any) -> Any:
        return super().forward(x.double())


class Overwriting(nn.Linear):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)

    def forward(self, x: Any) -> Any:
        outputs = super().forward(x)
        if self.training:
            x.zero_()
        return outputs


ONE = nn.Linear(FEATURES, CLASSES)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (lambda features: nn.Linear(features, 3), r"shape \(2, 4\), got \(2, 3\)$"),
        (lambda: nn.LSTM(FEATURES, CLASSES), "must return a score for each class: .* got "),
        (lambda: 1 / 0, "cannot be made: ZeroDivisionError: division by zero$"),
        (lambda: "net", "must be a torch.nn.Module, got 'net'$"),
        (lambda: nn.ConstantPad1d((0, CLASSES - FEATURES), 0.0), "no parameters to train$"),
        (lambda classes: nn.Linear(5, classes), r"fails on a batch of shape \(2, 6\): RuntimeErr"),
        (lambda bits: None, "cannot be made: TypeError: .*missing 1 required positional argument"),
        (Doubles, r"network Doubles fails on a batch of shape \(2, 6\): .* dtype"),
        (Broken, "network Broken returns values that are not finite$"),
        (ONE, "a network must be a class or function that returns a new torch.nn.Module, got Lin"),
        (5, "a network must be a class or function .* got 5$"),
    ],
)
def test_unusable_networks(factory: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        TorchModel(factory, flat_data())
    assert "\n" not in str(caught.value)


def test_factories_that_change_their_mind() -> None:
    model = TorchModel(Shifting, flat_data())
    with pytest.raises(ValueError, match=r"Shifting differs from call to call .* first.weight has"):
        model.initial(0)
    same = TorchModel(lambda: ONE, flat_data())
    with pytest.raises(ValueError, match="must be made anew at each call of its factory"):
        same.initial(0)


def test_other_unusable_settings() -> None:
    data = flat_data()
    with pytest.raises(ValueError, match="buffers must be one of average, keep, got 'drop'"):
        TorchModel(dense, data, buffers="drop")  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device cuda is not available"):
            TorchModel(dense, data, device="cuda")
    with pytest.raises(ValueError, match="cannot be compiled: it draws random numbers"):
        TorchModel(Noisy, data, compile=True)
    with pytest.raises(ValueError, match="it takes token ids, and the data has no vocabulary"):
        TorchModel(CharGRU, data)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("scheduler", ["Uniform", "ADCS"])
def test_losses_that_are_not_finite_name_client_and_round(steps: int, scheduler: str) -> None:
    data = flat_data()
    model = TorchModel(dense, data)
    simulation = run(model, data, scheduler, steps=steps)
    simulation.step()
    simulation.parameters[:] = np.nan
    with pytest.raises(ValueError, match=r"the loss of network dense is nan for client \d in rou"):
        simulation.step()
    with pytest.raises(NonFiniteLoss):
        model.loss_and_gradient(simulation.parameters[0], *batches(data, 1)[0])


def test_a_batch_that_the_network_cannot_take_is_one_sentence() -> None:
    data = flat_data()
    model = TorchModel(normalised, data)
    with pytest.raises(
        ValueError, match=r"fails on a batch of shape \(1, 6\): ValueError|Expected"
    ):
        model.local_update(model.initial(0), batches(data, 1, size=1), LocalSGD(0.1), key=0)


def test_a_network_without_a_gradient_is_one_sentence() -> None:
    data = flat_data()
    model = TorchModel(Overwriting, data)
    w = model.initial(0)
    sentence = "network Overwriting has no gradient on a batch of 8 examples: RuntimeError: one of"
    with pytest.raises(ValueError, match=sentence):
        model.local_update(w, batches(data, 1), LocalSGD(0.1), key=0)
    with pytest.raises(ValueError, match=sentence):
        model.weighted_gradient(w, batches(data, 1), np.ones(1, dtype=np.float32))


def test_parameters_of_another_format_are_converted() -> None:
    model = TorchModel(lambda: nn.Linear(FEATURES, CLASSES, dtype=torch.float64), flat_data())
    assert model.initial(0).dtype == np.float32
