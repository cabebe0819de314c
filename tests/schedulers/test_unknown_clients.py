"""Clients without a usable report."""

from __future__ import annotations

import numpy as np
import pytest

import adcs
from adcs.dpp.constraints import Constraints
from adcs.schedulers.unknown_clients import take_rows
from adcs.testing import FakeClients


def test_weights_are_equal_if_no_client_is_known():
    cohort = adcs.ADCS().select(0, range(5), 2)
    assert cohort.weights == (1.0, 1.0)


def test_unknown_clients_have_the_mean_weight_of_the_others() -> None:
    """DivFL's weights count the clients that each stands for; those drawn stand for as many."""
    scheduler = adcs.DivFL(by_cluster=True)
    groups = [0, 0, 0, 0, 1, 2]
    reports = [adcs.ClientReport(c, 0, update=np.eye(3)[g] * (g + 1)) for c, g in enumerate(groups)]
    scheduler.observe(0, reports, "probe")
    cohort = scheduler.select(0, range(12), 6)
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    drawn = cohort.diagnostics["drawn"]
    assert set(drawn) == {client for client in weights if client >= 6}
    assert drawn
    known = [weight for client, weight in weights.items() if client < 6]
    assert len(set(known)) > 1
    assert [weights[client] for client in drawn] == pytest.approx([np.mean(known)] * len(drawn))


@pytest.mark.parametrize("make", [adcs.ADCS, adcs.StaticDPP, adcs.DivFL, adcs.LiveADCS])
def test_a_client_with_expired_reports_gets_a_fair_share(make):
    """Client 0 has by far the largest loss and an update of its own direction."""
    clients = range(20)
    fake = FakeClients(clients)
    reports = [fake.report(0, client) for client in clients]
    update = [1e3, *[0.0] * (fake.width - 1)]
    reports[0] = adcs.ClientReport(0, 0, loss=50.0, update=update, norm=1e3, examples=10)
    chosen = {}
    for expired in (False, True):
        scheduler = make()
        scheduler.observe(0, reports, "probe")
        if expired:
            scheduler.expire([0])
        cohorts = [scheduler.select(server_round, clients, 4) for server_round in range(1, 101)]
        chosen[expired] = sum(0 in cohort.clients for cohort in cohorts)
    if make is not adcs.LiveADCS:  # which lowers the quality of clients that do not reply
        assert chosen[False] == 100
    # 20 on average, by a seeded draw.
    assert 8 <= chosen[True] <= 35


def test_rows_in_order_keep_caps_given_and_required_rows() -> None:
    constraints = Constraints(required=[4], groups="aabbc", caps={"a": 1, "b": 2}, given=[2])
    assert take_rows([0, 1, 2, 3, 4], 3, constraints) == [4, 0, 3]
    assert take_rows([2, 0], 5, Constraints(given=[2])) == [0]
