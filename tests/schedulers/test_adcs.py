"""ADCS."""

from __future__ import annotations

import numpy as np
import pytest

import adcs


def test_all_clients_are_probed_every_r_rounds(clustered, probed):
    scheduler = adcs.ADCS(refresh_every=20)
    probed(scheduler, 0, clustered())
    asked = [r for r in range(100) if scheduler.request(r, range(15), 5).clients]
    assert asked == [0, 20, 40, 60, 80]
    assert scheduler.request(20, range(15), 5).signals == {"update", "loss"}


def test_equals_select_on_the_same_updates(clustered, probed):
    updates = clustered()
    losses = np.random.default_rng(2).uniform(1, 3, 15)
    scheduler = probed(adcs.ADCS(theta=0.7), 0, updates, losses)
    cohort = scheduler.select(0, range(15), 6)
    assert list(cohort.clients) == list(adcs.select(updates, 6, quality=losses, theta=0.7))


def test_training_replies_are_not_used(clustered, probed):
    scheduler = probed(adcs.ADCS(), 0, clustered())
    before = scheduler.select(0, range(15), 5).clients
    rng = np.random.default_rng(1)
    replies = [adcs.ClientReport(c, 0, loss=50.0, update=rng.random(40)) for c in before]
    scheduler.observe(0, replies, "training")
    assert scheduler.select(1, range(15), 5).clients == before


def test_diversity_takes_one_of_each_group(clustered, probed):
    scheduler = probed(adcs.ADCS(theta=0.2), 0, clustered())
    assert sorted(c // 3 for c in scheduler.select(0, range(15), 5).clients) == [0, 1, 2, 3, 4]


def test_the_last_kernel_is_used_if_no_client_answers(clustered, probed):
    scheduler = probed(adcs.ADCS(refresh_every=2), 0, clustered())
    first = scheduler.select(0, range(15), 5).clients
    assert scheduler.request(2, range(15), 5).clients
    assert scheduler.select(2, range(15), 5).clients == first


def test_unknown_clients_get_their_share_of_slots(clustered, probed):
    scheduler = probed(adcs.ADCS(), 0, clustered())
    available = tuple(range(20))
    taken = [sum(c >= 15 for c in scheduler.select(r, available, 8).clients) for r in range(1, 400)]
    assert np.mean(taken) == pytest.approx(8 * 5 / 20, abs=0.1)
    assert set(taken) == {2}


def test_the_share_of_one_unknown_client_is_right_on_average(clustered, probed):
    scheduler = probed(adcs.ADCS(), 0, clustered())
    available = tuple(range(16))
    taken = [15 in scheduler.select(r, available, 5).clients for r in range(1, 1000)]
    assert np.mean(taken) == pytest.approx(5 / 16, abs=0.05)


def test_a_client_without_what_the_quality_needs_is_unknown(clustered):
    scheduler = adcs.ADCS(gamma=0.5)
    reports = [
        adcs.ClientReport(
            c, 0, loss=1.0, update=u, communication_seconds=None if c == 3 else float(c)
        )
        for c, u in enumerate(clustered())
    ]
    scheduler.observe(0, reports, "probe")
    picked = [scheduler.select(r, range(15), 14).clients for r in range(30)]
    assert all(len(p) == 14 for p in picked)
    assert any(3 in p for p in picked)


def test_communication_quality_prefers_fast_clients():
    updates = np.eye(6)
    scheduler = adcs.ADCS(theta=0.8, gamma=1.0)
    reports = [
        adcs.ClientReport(c, 0, loss=9.0, update=u, communication_seconds=10.0 - c)
        for c, u in enumerate(updates)
    ]
    scheduler.observe(0, reports, "probe")
    assert scheduler.select(0, range(6), 2).clients == (5, 4)


def test_many_clients_are_chosen_without_a_similarity_matrix(probed):
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((2500, 16)).astype(np.float32)
    losses = rng.random(2500)
    scheduler = probed(adcs.ADCS(theta=0.6), 0, updates, losses)
    chosen = scheduler.select(0, range(2500), 10).clients
    assert list(chosen) == list(adcs.select(updates, 10, quality=losses, theta=0.6))


def test_first_round_losses_that_differ_by_float32_rounding_tie(probed):
    updates = np.eye(8)
    near = np.nextafter(np.float32(2.3025851), np.float32(3), dtype=np.float32)
    losses = [2.3025851, float(near)] * 4
    losses = [float(np.float32(x)) for x in losses]
    assert probed(adcs.ADCS(), 0, updates, losses).select(0, range(8), 3).clients == (0, 1, 2)


def test_a_late_report_does_not_replace_a_newer_one(probed) -> None:
    scheduler = adcs.ADCS(theta=1.0)
    rows = np.eye(3)
    probed(scheduler, 20, rows, [1.0, 2.0, 3.0])
    late = adcs.ClientReport(0, 0, loss=9.0, update=rows[0], examples=7)
    scheduler.observe(20, [late], "probe")
    assert scheduler.select(20, range(3), 1).clients == (2,)
    assert scheduler.reports[0].examples == 7
    # Rounds that begin anew are no late evidence.
    probed(scheduler, 0, rows, [5.0, 2.0, 3.0])
    assert scheduler.select(0, range(3), 1).clients == (0,)
