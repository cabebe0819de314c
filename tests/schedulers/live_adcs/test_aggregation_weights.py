"""Weights of cohorts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adcs
from adcs import ClientReport
from adcs.dpp.kernel import alpha
from adcs.schedulers.live_adcs import fitted_weights
from adcs.schedulers.live_adcs.aggregation_weights import target_shares
from adcs.testing import FakeClients


def test_weights_turn_the_step_towards_that_of_all_clients() -> None:
    fake = FakeClients(range(18))
    scheduler = adcs.LiveADCS(max_share=None)
    # As if updates were free of noise, which pulls weights towards equal ones.
    scheduler.weighting = lambda *given: fitted_weights(*given[:4])
    nearer = 0
    for server_round in range(20):
        request = scheduler.request(server_round, range(18), 6)
        scheduler.observe(server_round, fake.answer(server_round, request), "probe")
        cohort = scheduler.select(server_round, range(18), 6)
        assert scheduler.dpp is not None
        share = np.exp(scheduler.emphasis * alpha(scheduler.theta) * scheduler.dpp.quality)
        gram = scheduler.kernel.inner_products(np.arange(18))
        target = share / share.sum()

        def cosine(weights: Any, gram: Any = gram, target: Any = target) -> float:
            squares = (weights @ gram @ weights) * (target @ gram @ target)
            return float(weights @ gram @ target / squares**0.5)

        ours, equal = np.zeros(18), np.zeros(18)
        ours[list(cohort.clients)] = np.array(cohort.weights) / sum(cohort.weights)
        equal[list(cohort.clients)] = 1 / 6
        nearer += cosine(ours) > cosine(equal)
        scheduler.observe(
            server_round, [fake.report(server_round, c) for c in cohort.clients], "training"
        )
    assert nearer >= 18


def test_clients_that_resemble_nobody_have_equal_weights_whatever_their_norms() -> None:
    # Their updates represent 8 of 80 clients; the norms say nothing about who stands for the rest.
    norms = np.geomspace(0.2, 5.0, 80)
    chosen = np.arange(0, 80, 10)
    for persistence in (0.0, 0.4, 1.0):
        weights = fitted_weights(np.eye(80)[chosen], norms, np.zeros(80), chosen, persistence)
        assert weights == pytest.approx(np.full(8, 1 / 8), abs=0.02)


def test_a_cohort_that_represents_everyone_has_the_shares_of_its_groups() -> None:
    groups = np.repeat(np.arange(4), [1, 2, 3, 6])
    cosines = (groups[:, None] == groups).astype(float)
    chosen = np.array([0, 1, 3, 6])
    weights = fitted_weights(cosines[chosen], np.ones(12), np.zeros(12), chosen)
    assert weights == pytest.approx(np.array([1, 2, 3, 6]) / 12, abs=0.02)


def test_new_clients_have_the_mean_weight_of_the_others() -> None:
    fake = FakeClients(range(20))
    scheduler = adcs.LiveADCS(probe_share=0.0)
    for server_round in range(4):
        fake.run_round(scheduler, server_round, 5, range(10))
    # No client answers a probe, so the new ones are drawn.
    cohort = scheduler.select(4, range(20), 8)
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    drawn = cohort.diagnostics["drawn"]
    assert drawn
    known = [weight for client, weight in weights.items() if client not in drawn]
    assert all(weights[client] == pytest.approx(np.mean(known)) for client in drawn)


def test_unknown_clients_have_the_mean_weight_of_the_others() -> None:
    scheduler = adcs.LiveADCS()
    rows = np.random.default_rng(0).normal(size=(6, 9))
    reports = [ClientReport(c, 0, loss=1.0 + c, update=rows[c]) for c in range(6)]
    scheduler.observe(0, reports, "probe")
    cohort = scheduler.select(0, range(12), 8)
    drawn = cohort.diagnostics["drawn"]
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    assert set(drawn) == {c for c in cohort.clients if c >= 6}
    assert 3 <= len(drawn) <= 5
    mean = np.mean([weights[c] for c in cohort.clients if c < 6])
    assert mean < 0.5  # weights of known clients add up to about one
    assert [weights[c] for c in drawn] == pytest.approx([mean] * len(drawn))


def test_weights_of_tiny_updates_are_finite() -> None:
    scheduler = adcs.LiveADCS()
    rows = 1e-200 * np.random.default_rng(0).normal(size=(6, 4))
    reports = [ClientReport(c, 0, loss=1.0 + c, update=rows[c]) for c in range(6)]
    scheduler.observe(0, reports, "probe")
    assert np.isfinite(scheduler.select(0, range(6), 3).weights).all()


def test_weights_are_finite_at_any_theta(probed) -> None:
    rng = np.random.default_rng(0)
    for theta in (0.99, 0.999, 0.9999, 1.0 - 1e-9):
        scheduler = probed(
            adcs.LiveADCS(theta=theta), 0, rng.normal(size=(20, 8)), [1.0] * 19 + [50]
        )
        cohort = scheduler.select(0, range(20), 5)
        assert 19 in cohort.clients
        assert np.isfinite(cohort.weights).all()


def test_shares_at_a_large_theta_are_numbers() -> None:
    """At theta = 0.999 alpha is 500; q is -3 for all clients if none has answered for long."""
    for q in (3.0, 0.0, -3.0):
        np.testing.assert_allclose(target_shares(np.full(4, 499.5 * q)), 0.25)
    assert target_shares(np.array([-1500.0, -750.0])).tolist() == [0.0, 1.0]
