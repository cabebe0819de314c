"""Uniform."""

from __future__ import annotations

from collections import Counter

import numpy as np

import adcs


def test_all_clients_equally_often():
    counts = Counter()
    scheduler = adcs.Uniform(seed=5)
    for server_round in range(3000):
        counts.update(scheduler.select(server_round, range(10), 3).clients)
    share = np.array([counts[c] for c in range(10)]) / 3000
    assert np.abs(share - 0.3).max() < 0.04


def test_by_size_follows_sizes():
    scheduler = adcs.Uniform(by_size=True)
    sizes = [adcs.ClientReport(c, 0, examples=n) for c, n in enumerate([100, 300, 600])]
    scheduler.observe(0, sizes, "enrolment")
    firsts = Counter(scheduler.select(r, range(3), 1).clients[0] for r in range(4000))
    assert abs(firsts[2] / 4000 - 0.6) < 0.03
    assert abs(firsts[0] / 4000 - 0.1) < 0.03


def test_independent_is_unbiased():
    scheduler = adcs.Uniform(independent=True)
    cohorts = [scheduler.select(r, range(6), 2) for r in range(5000)]
    estimate = np.mean([sum(c.weights) for c in cohorts])
    assert abs(estimate - 6.0) < 0.15
    assert any(not c.clients for c in cohorts)
    assert not scheduler.fixed_size


def test_no_client_is_probed():
    assert adcs.Uniform().request(0, range(5), 2) == adcs.Request()
