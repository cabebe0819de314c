"""Clients that have waited too long."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import adcs
from adcs import ClientReport
from adcs.testing import FakeClients


def longest_wait(patience: float | None, n: int, m: int, rounds: int) -> int:
    """Return the longest wait of any client where the same few have the largest losses."""
    fake = FakeClients(range(n))
    scheduler = adcs.LiveADCS(patience=patience, probe_share=0.0)
    last = dict.fromkeys(range(n), 0)
    longest = 0
    for server_round in range(rounds):
        reports = {
            c: replace(fake.report(0, c), server_round=server_round, loss=5.0 if c < m else 1.0)
            for c in range(n)
        }
        request = scheduler.request(server_round, range(n), m)
        scheduler.observe(server_round, [reports[c] for c in request.clients], "probe")
        cohort = scheduler.select(server_round, range(n), m)
        scheduler.observe(server_round, [reports[c] for c in cohort.clients], "training")
        longest = max([longest, *[server_round - last[c] for c in range(n)]])
        last.update(dict.fromkeys(cohort.clients, server_round))
    return longest


@pytest.mark.parametrize(("n", "m"), [(12, 3), (20, 1), (9, 8), (30, 7)])
def test_no_client_waits_longer_than_patience_allows(n: int, m: int) -> None:
    patience = 3.0
    # Overdue clients get half of the slots, so all n are served within 2 n / m rounds.
    assert (
        longest_wait(patience, n, m, rounds=int(12 * n / m) + 20) <= (patience + 2.0) * n / m + 1.0
    )


def test_without_patience_clients_wait_longer() -> None:
    assert longest_wait(None, 30, 7, rounds=60) > 5.0 * 30 / 7 + 1.0


def longest_over_selected_wait(*, waits: bool, n: int, m: int, rounds: int) -> float:
    """Return the longest time without taking part, of clients that are slower the larger their id.

    Of 1.3 m clients that are asked, m take part: with `waits` the awaited ones and the first
    others, else the first. The others reply a round later.
    """
    fake = FakeClients(range(n))
    scheduler = adcs.LiveADCS(patience=2.0, probe_share=0.0)
    asked = math.ceil(1.3 * m)
    last, longest = dict.fromkeys(range(n), 0), 0
    late: list[ClientReport] = []
    for server_round in range(rounds):
        request = scheduler.request(server_round, range(n), asked)
        scheduler.observe(server_round, fake.answer(server_round, request), "probe")
        cohort = scheduler.select(server_round, range(n), asked)
        scheduler.observe(server_round, late, "late")
        awaited = cohort.awaited if waits else ()
        order = sorted(cohort.clients, key=lambda c: (c not in awaited, c))
        replies = [fake.report(server_round, c) for c in order]
        scheduler.observe(server_round, replies[:m], "training")
        late = replies[m:]
        longest = max([longest, *[server_round - last[c] for c in range(n)]])
        last.update(dict.fromkeys(order[:m], server_round))
    return longest * asked / n


@pytest.mark.parametrize(("n", "m"), [(12, 3), (20, 2), (30, 7)])
def test_over_selected_rounds_keep_the_bound_by_waiting_for_overdue_clients(n: int, m: int) -> None:
    # Patience, the queue for half of the slots, and a turn beyond the limit of its share.
    assert longest_over_selected_wait(waits=True, n=n, m=m, rounds=200) <= 2.0 + 2.0 + 0.5 + 0.5
    assert longest_over_selected_wait(waits=False, n=n, m=m, rounds=200) > 10.0


def test_a_late_client_goes_on_waiting() -> None:
    fake = FakeClients(range(6))
    scheduler = adcs.LiveADCS(patience=2.0)
    scheduler.observe(0, [fake.report(0, c) for c in range(6)], "probe")
    late = scheduler.select(0, range(6), 3).clients[-1]
    scheduler.observe(1, [fake.report(0, late)], "late")
    resumed = adcs.LiveADCS(patience=2.0)
    resumed.from_bytes(scheduler.to_bytes())
    for each in (scheduler, resumed):  # N / m is 2
        cohort = each.select(4, range(6), 3)
        assert late in cohort.awaited
        assert list(cohort.awaited) == cohort.diagnostics["waited"]


def overdue(server_round: int, m: int, **settings: Any) -> list[int]:
    """Return the overdue clients of six that reported in round 0 and were never chosen."""
    scheduler = adcs.LiveADCS(patience=2.0, **settings)
    rows = np.random.default_rng(0).normal(size=(6, 9))
    reports = [ClientReport(c, 0, loss=1.0, update=rows[c]) for c in range(6)]
    scheduler.observe(0, reports, "probe")
    return list(scheduler.select(server_round, range(6), m).diagnostics["waited"])


def test_clients_are_overdue_after_patience_n_over_m_rounds() -> None:
    assert overdue(5, m=2) == []  # patience N / m = 6
    assert overdue(6, m=2) == [0]
    assert overdue(7, m=2) == [0]


def test_overdue_clients_get_half_of_the_slots() -> None:
    for m, slots in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3)):
        assert overdue(100, m) == list(range(slots))
    assert overdue(100, 4, required=[0, 5]) == [1, 2]
    assert overdue(100, 4, required=[0, 4, 5]) == [1]
    assert overdue(100, 2, required=[4, 5]) == []


def test_caps_hold_for_overdue_clients() -> None:
    fake = FakeClients(range(12))
    scheduler = adcs.LiveADCS(
        patience=1.0, groups={c: c % 3 for c in range(12)}, caps=1, required=[0]
    )
    for server_round in range(30):
        chosen = fake.run_round(scheduler, server_round, 3).clients
        assert sorted(c % 3 for c in chosen) == [0, 1, 2]
        assert 0 in chosen
