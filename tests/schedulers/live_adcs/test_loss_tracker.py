"""Estimates of losses between reports."""

from __future__ import annotations

import numpy as np
import pytest

from adcs.schedulers.live_adcs import LossTracker
from adcs.schedulers.live_adcs.loss_tracker import MEMORY


def test_noise_and_drift_are_estimated_from_falls() -> None:
    """Losses are random walks, observed with noise at random times."""
    rng = np.random.default_rng(0)
    n, noise, drift = 40, 0.04, 0.001
    losses = rng.uniform(1.0, 2.0, n)
    tracker = LossTracker()
    errors, raw = [], []
    for server_round in range(1500):
        seen = (
            np.arange(n)
            if server_round == 0
            else np.sort(rng.permutation(n)[: rng.integers(2, 12)])
        )
        reported = losses[seen] + rng.normal(0.0, noise**0.5, seen.size)
        tracker.update(seen, reported, server_round)
        if server_round > 500:
            errors.append(float(((tracker.loss[seen] - losses[seen]) ** 2).mean()))
            raw.append(float(((reported - losses[seen]) ** 2).mean()))
        losses += rng.normal(0.0, drift**0.5, n)
    found_noise, found_drift = tracker.noise
    assert 0.8 * noise < found_noise < 1.2 * noise
    assert 0.3 * drift < found_drift < 2.0 * drift
    assert np.mean(errors) < 0.5 * np.mean(raw)


def test_losses_of_clients_without_reports_are_predicted() -> None:
    """Where losses are linear in the model, one scale makes the prediction exact."""
    rng = np.random.default_rng(1)
    n, d, rate = 8, 20, 0.05
    gradients = rng.normal(size=(n, d)) + 1.0
    model = np.zeros(d)
    tracker = LossTracker()
    tracker.update(np.arange(n), 100.0 + gradients @ model, 0)
    for server_round in range(1, 40):
        step = gradients[:3].mean(axis=0)
        model -= rate * step
        tracker.predict(gradients @ step)
        tracker.update(np.arange(3), 100.0 + gradients[:3] @ model, server_round)
    np.testing.assert_allclose(tracker.estimate(39), 100.0 + gradients @ model, rtol=1e-9)
    assert tracker.slopes == pytest.approx((rate, 0.0), abs=1e-9)


def test_a_common_trend_is_no_first_order_fall() -> None:
    """Losses fall by half of what the first order says: the trend takes back the other half."""
    rng = np.random.default_rng(3)
    n, rate, trend = 30, 0.05, -0.02
    losses = np.full(n, 50.0)
    tracker = LossTracker()
    tracker.update(np.arange(n), losses, 0)
    for server_round in range(1, 200):
        products = rng.uniform(0.2, 1.0, n)
        losses = losses - rate * products - trend
        tracker.predict(products)
        heard = np.sort(rng.permutation(n)[:6])
        tracker.update(heard, losses[heard], server_round)
    assert tracker.slopes == pytest.approx((rate, trend), rel=1e-6)
    np.testing.assert_allclose(tracker.estimate(199), losses, rtol=1e-9)


def test_losses_that_rise_along_the_step_have_no_first_order_fall() -> None:
    rng = np.random.default_rng(4)
    tracker, losses = LossTracker(), np.full(10, 5.0)
    tracker.update(np.arange(10), losses, 0)
    for server_round in range(1, 30):
        products = rng.uniform(0.0, 1.0, 10)
        losses = losses + 0.1 * products
        tracker.predict(products)
        tracker.update(np.arange(10), losses, server_round)
    assert tracker.slopes[0] == 0.0


def test_one_false_report_hardly_changes_noise_and_drift() -> None:
    rng = np.random.default_rng(2)
    tracker = LossTracker()
    tracker.update(np.arange(10), np.ones(10), 0)
    for server_round in range(1, 50):
        tracker.update(np.arange(10), 1.0 + rng.normal(0.0, 0.1, 10), server_round)
    before = tracker.noise
    tracker.update(np.arange(1), np.array([1e29]), 50)
    assert tracker.noise[0] < 1.2 * before[0]
    assert tracker.noise[1] < 2.0 * before[1]


@pytest.mark.parametrize(("times", "kept"), [(0.9e2, True), (1.1e2, False), (1e5, False)])
def test_only_gross_errors_among_the_first_falls_are_left_out(times: float, kept: bool) -> None:
    """Squares of more than 1e4 times their median: deviations of more than 100 times."""
    tracker = LossTracker()
    tracker.update(np.arange(13), np.ones(13), 0)
    off = np.full(13, 0.1)
    off[12] *= times
    tracker.update(np.arange(13), 1.0 + off, 1)
    noise, drift = tracker.noise
    mean = float((off**2).mean()) if kept else 0.01
    assert 2.0 * noise + drift == pytest.approx(mean, rel=0.01)


def tracker_after(rounds=(0, 3)):
    """Return a tracker of twelve clients that all report in each of these rounds."""
    tracker, rng = LossTracker(), np.random.default_rng(0)
    for server_round in rounds:
        tracker.update(np.arange(12), 2.0 + rng.normal(size=12), server_round)
    return tracker


@pytest.mark.parametrize("later", [4, 7, 20])
def test_the_gain_grows_with_the_age_of_the_estimate(later):
    tracker = tracker_after()
    clients, reported = np.array([2, 5]), np.array([1.0, 4.0])
    loss, variance = tracker.loss.copy(), tracker.variance(3)
    tracker.update(clients, reported, later)
    noise, drift = tracker.noise
    expected = loss[clients] - tracker.slopes[1] * (later - 3)
    before = variance[clients] + drift * (later - 3)
    gain = before / (before + noise)
    np.testing.assert_allclose(tracker.loss[clients], expected + gain * (reported - expected))
    np.testing.assert_allclose(tracker.variance(later)[clients], (1.0 - gain) * before)
    assert tracker.reported_at[clients].tolist() == [later, later]
    others = np.setdiff1d(np.arange(12), clients)
    np.testing.assert_array_equal(tracker.loss[others], loss[others])
    np.testing.assert_allclose(
        tracker.variance(later)[others], variance[others] + drift * (later - 3)
    )


def test_old_falls_are_forgotten_by_the_number_of_reports():
    sums = tracker_after(rounds=(0, 1, 2, 3)).state()["rest_sums"]
    keep = np.exp(-12 / MEMORY)
    assert sums[0] == pytest.approx(12 * (1 + keep + keep**2))
    assert sums[3] == pytest.approx(12 * (1 + keep))


def test_an_estimate_that_lags_behind_is_no_noise():
    """Losses fall fast, then stand still: estimates have followed them after a few reports."""
    rng = np.random.default_rng(5)
    tracker, n = LossTracker(), 10
    for server_round in range(300):
        losses = 2.0 * np.exp(-server_round / 20.0) + np.linspace(0.05, 0.15, n)
        heard = np.arange(n) if server_round == 0 else np.sort(rng.permutation(n)[:4])
        reported = losses[heard] + rng.normal(0.0, 0.03, heard.size)
        tracker.update(heard, reported, server_round)
    off = tracker.estimate(299) - losses
    assert np.sqrt((off**2).mean()) < 0.03
    assert np.corrcoef(tracker.estimate(299), losses)[0, 1] > 0.7


def responses(losses_of, rounds=100):
    """Return the responses of eight clients that report in every other round."""
    tracker, rng = LossTracker(), np.random.default_rng(6)
    for server_round in range(rounds):
        heard = np.arange(8) if server_round == 0 else np.arange(server_round % 2, 8, 2)
        losses = losses_of(server_round)[heard] + rng.normal(0.0, 0.01, heard.size)
        tracker.update(heard, losses, server_round)
    return tracker.response(rounds, np.arange(8))


def fall(server_round):
    """Return losses that fall from 2.3 to about 0.5, in hard clients more slowly."""
    return 2.3 - np.linspace(1.2, 2.0, 8) * (1.0 - np.exp(-server_round / 30.0))


def test_losses_that_fall_respond_to_training():
    np.testing.assert_allclose(responses(fall), 1.0)


def test_a_loss_that_never_falls_does_not_respond_to_training():
    def losses(server_round):
        return np.append(fall(server_round)[:7], 2.3)

    found = responses(losses)
    np.testing.assert_allclose(found[:7], 1.0)
    assert found[7] < 0.4
    assert found[7] > responses(losses, rounds=400)[7]


def test_nothing_is_held_against_clients_of_a_model_that_no_longer_learns():
    np.testing.assert_allclose(responses(lambda server_round: np.linspace(0.5, 1.5, 8)), 1.0)


def test_a_client_that_joins_late_is_compared_with_falls_since_then():
    tracker = LossTracker()
    for server_round in range(100):
        count = 8 if server_round < 60 else 9
        losses = np.append(fall(server_round), fall(server_round)[0])[:count]
        tracker.update(np.arange(count), losses, server_round)
    np.testing.assert_allclose(tracker.response(100, np.arange(9)), 1.0)
