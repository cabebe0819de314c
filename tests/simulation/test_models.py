"""Models: gradients against finite differences, wide and stacked passes against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from adcs.simulation.models import MLP, Looped, widened

HIDDEN = [(), (7,), (6, 5)]


def problem(hidden, runs=3, clients=5, batch=4, seed=0):
    rng = np.random.default_rng(seed)
    model = MLP(6, 4, hidden)
    ws = rng.standard_normal((runs, model.size))
    x = rng.standard_normal((clients, batch, 6))
    return model, ws, x, rng.integers(0, 4, (clients, batch))


@pytest.mark.parametrize("hidden", HIDDEN)
def test_gradient_against_finite_differences(hidden):
    model, ws, x, y = problem(hidden)
    w, x, y = ws[0], x[0], y[0]
    _, gradient = model.loss_and_gradient(w, x, y)
    steps = 1e-6 * np.eye(model.size)
    numeric = [
        (model.loss_and_gradient(w + e, x, y)[0] - model.loss_and_gradient(w - e, x, y)[0]) / 2e-6
        for e in steps
    ]
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_wide_pass_equals_a_loop(hidden):
    model, ws, x, y = problem(hidden)
    wide = model.wide(ws, x, y)
    loop = [[model.loss_and_gradient(w, *batch) for batch in zip(x, y, strict=True)] for w in ws]
    gradients = np.array([[gradient for _, gradient in row] for row in loop])
    np.testing.assert_allclose(wide.losses, [[loss for loss, _ in row] for row in loop])
    weights = np.random.default_rng(1).random((3, 5))
    np.testing.assert_allclose(
        wide.aggregate(weights), np.einsum("rc,rcp->rp", weights, gradients), atol=1e-12
    )
    for some in ([4, 0, 2], [0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        index = np.array(some)
        np.testing.assert_allclose(wide.gradients(1, index), gradients[1, index], atol=1e-12)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_stacked_equals_one_by_one(hidden):
    model, ws, x, y = problem(hidden, runs=5)
    losses, gradients = model.stacked(ws, x, y)
    for i in range(5):
        loss, gradient = model.loss_and_gradient(ws[i], x[i], y[i])
        assert losses[i] == pytest.approx(loss)
        np.testing.assert_allclose(gradients[i], gradient)


def test_a_model_that_can_serve_many_runs_is_left_alone():
    model, ws, x, _ = problem(())
    assert widened(model) is model
    looped = widened(Plain(model))
    assert isinstance(looped, Looped)
    for one, other in zip(looped.wide_predict(ws, x[0]), model.wide_predict(ws, x[0]), strict=True):
        np.testing.assert_allclose(one, other)


class Plain:
    """What a user has to write, and no more."""

    def __init__(self, model):
        self.size, self.initial, self.predict = model.size, model.initial, model.predict
        self.loss_and_gradient = model.loss_and_gradient


def test_softmax_loss_by_hand():
    model = MLP(1, 2)
    w = np.array([1.0, -1.0, 0.5, 0.0])  # weights of two classes, then biases
    loss, gradient = model.loss_and_gradient(w, np.array([[2.0]]), np.array([0]))
    p = 1 / (1 + np.exp(-2.0 - 2.5))
    assert loss == pytest.approx(-np.log(p))
    np.testing.assert_allclose(gradient, [2 * (p - 1), 2 * (1 - p), p - 1, 1 - p])


def test_huge_logits_do_not_overflow():
    model = MLP(1, 3)
    w = np.array([1e4, -1e4, 0.0, 0.0, 0.0, 0.0], dtype=np.float32)
    loss, gradient = model.loss_and_gradient(w, np.ones((1, 1), np.float32), np.array([1]))
    assert loss == pytest.approx(2e4)
    assert np.isfinite(gradient).all()


def test_initial_parameters():
    assert not MLP(5, 3).initial(0).any()
    one, two = MLP(5, 3, (4,)).initial(0), MLP(5, 3, (4,)).initial(1)
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(one, MLP(5, 3, (4,)).initial(0))
