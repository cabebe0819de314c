"""Kernels of label histograms: ADCS and LiveADCS without updates."""

from __future__ import annotations

import numpy as np
import pytest

import adcs
from adcs.schedulers.choice import explain_choice
from adcs.testing import FakeClients

CLIENTS = tuple(range(9))
HISTOGRAMS = np.repeat(np.eye(3), 3, axis=0) * 20 + 1  # three clients of each label
KINDS = [adcs.ADCS, adcs.LiveADCS]


def enrolled(scheduler, histograms=HISTOGRAMS, losses=None, source="enrolment"):
    """Report the histograms, and losses if there are any, of clients 0, 1, ..."""
    losses = [None] * len(histograms) if losses is None else losses
    reports = [
        adcs.ClientReport(c, 0, label_counts=row, loss=loss)
        for c, (row, loss) in enumerate(zip(histograms, losses, strict=True))
    ]
    scheduler.observe(0, reports, source)
    return scheduler


@pytest.mark.parametrize("kind", KINDS)
def test_no_update_is_ever_asked_for(kind):
    fake, scheduler = FakeClients(CLIENTS), kind(kernel="labels")
    asked = []
    for server_round in range(45):
        request = scheduler.request(server_round, CLIENTS, 3)
        asked.append(request.signals if request.clients else frozenset())
        fake.run_round(scheduler, server_round, 3)
    assert asked[0] == {"label_counts", "loss"}
    assert all(signals <= {"loss"} for signals in asked[1:])
    assert "update" not in scheduler.training_signals or kind is adcs.ADCS
    assert kind is adcs.LiveADCS or "training" not in scheduler.observed_sources


@pytest.mark.parametrize("kind", KINDS)
def test_with_theta_0_only_histograms_are_asked_for(kind):
    scheduler = kind(kernel="labels", theta=0.0)
    assert scheduler.request(0, CLIENTS, 3).signals == {"label_counts"}
    enrolled(scheduler, source="probe")
    cohorts = [scheduler.select(r, CLIENTS, 3).clients for r in range(25)]
    assert all(not scheduler.request(r, CLIENTS, 3).clients for r in range(1, 60))
    assert all(sorted(c // 3 for c in cohort) == [0, 1, 2] for cohort in cohorts)


@pytest.mark.parametrize("kind", KINDS)
def test_histograms_sent_at_enrolment_are_not_asked_for_again(kind):
    scheduler = enrolled(kind(kernel="labels", theta=0.0))
    assert not scheduler.request(0, CLIENTS, 3).clients
    assert scheduler.request(0, (*CLIENTS, 9), 3).clients == (9,)


def test_adcs_equals_select_on_the_histograms():
    rng = np.random.default_rng(0)
    rows, losses = rng.integers(0, 50, (12, 6)), rng.uniform(1, 3, 12)
    scheduler = enrolled(adcs.ADCS(kernel="labels", theta=0.6), rows, losses)
    expected = adcs.select(rows.astype(float), 5, quality=losses, theta=0.6)
    assert list(scheduler.select(0, range(12), 5).clients) == list(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_without_losses_theta_is_0(kind):
    one = enrolled(kind(kernel="labels")).select(0, CLIENTS, 3)
    none = enrolled(kind(kernel="labels", theta=0.0)).select(0, CLIENTS, 3)
    assert one.clients == none.clients


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_the_quality(kind):
    """Clients 2, 4 and 6 have the largest loss of their label."""
    losses = [1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0]
    cohort = enrolled(kind(kernel="labels"), losses=losses).select(0, CLIENTS, 3)
    assert sorted(cohort.clients) == [2, 4, 6]


def test_a_client_without_a_loss_has_the_mean_quality():
    losses = [None, 3.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]
    scheduler = enrolled(adcs.ADCS(kernel="labels", theta=0.5), losses=losses)
    scheduler.select(0, CLIENTS, 3)
    assert scheduler.dpp.quality[0] == pytest.approx(np.mean(losses[1:]))
    live = enrolled(adcs.LiveADCS(kernel="labels"), losses=losses)
    assert live.loss_tracker.estimate(0)[0] == pytest.approx(np.mean(losses[1:]))


@pytest.mark.parametrize("kind", KINDS)
def test_histograms_that_cannot_be_used_make_an_unknown_client(kind):
    """Client 9 has no positive count, client 10 another number of classes."""
    rows = [*HISTOGRAMS, [-1.0, 0.0, -2.0], [1.0, 2.0]]
    scheduler = enrolled(kind(kernel="labels"), rows)
    assert scheduler.known_clients(tuple(range(11))) == list(CLIENTS)
    assert len(scheduler.select(0, range(11), 5).clients) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_is_explained(kind):
    scheduler = enrolled(kind(kernel="labels"), losses=[1.0] * 9)
    choice = explain_choice(scheduler, CLIENTS, scheduler.select(0, CLIENTS, 3))
    # Of LiveADCS's three slots one is balanced.
    assert len(choice.balancing) == (1 if kind is adcs.LiveADCS else 0)
    assert len(choice.explanation.picks) + len(choice.balancing) == 3
    assert len(choice.explanation.left_out) == 6


def test_live_losses_follow_their_trend():
    """Reported losses fall by .1 a round, and with no products so do the others."""
    scheduler = enrolled(adcs.LiveADCS(kernel="labels", patience=None), losses=[2.0] * 9)
    for r in range(6):
        replies = [adcs.ClientReport(c, r, loss=2.0 - 0.1 * r) for c in (0, 3, 6)]
        scheduler.observe(r, replies, "training")
    eta, trend = scheduler.loss_tracker.slopes
    assert (eta, trend) == (0.0, pytest.approx(0.1))
    assert scheduler.loss_tracker.estimate(5)[1] == pytest.approx(1.5)
    assert scheduler.kernel.persistence == 1.0
    assert scheduler.kernel.norms.tolist() == [1.0] * 9


def test_a_first_loss_does_not_count_as_a_fall():
    scheduler = enrolled(adcs.LiveADCS(kernel="labels"))
    scheduler.observe(0, [adcs.ClientReport(4, 0, loss=1.5)], "training")
    assert scheduler.loss_tracker.slopes == (0.0, 0.0)
    assert scheduler.loss_tracker.estimate(0).tolist() == [1.5] * 9


def test_live_cohorts_have_all_labels():
    """Of labels with 6, 1 and 1 clients, each has a slot."""
    rows = np.array([[9.0, 0, 0]] * 6 + [[0, 9.0, 0], [0, 0, 9.0]])
    scheduler = enrolled(adcs.LiveADCS(kernel="labels", theta=0.0), rows)
    assert set(scheduler.select(0, range(8), 3).clients) == {0, 6, 7}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: adcs.ADCS(kernel="label"), "kernel must be"),
        (lambda: adcs.LiveADCS(kernel="label"), "kernel must be"),
        (lambda: adcs.ADCS(kernel="labels", quality="norm"), "quality must not be 'norm'"),
        (lambda: adcs.ADCS(kernel="labels", sketch=adcs.Sketcher(size=8)), "sketch must be None"),
        (
            lambda: adcs.LiveADCS(kernel="labels", sketch=adcs.Sketcher(size=8)),
            "sketch must be None",
        ),
    ],
)
def test_wrong_settings_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()
