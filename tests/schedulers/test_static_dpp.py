"""StaticDPP."""

from __future__ import annotations

import numpy as np
import pytest

import adcs
from adcs.testing import FakeClients


def test_the_cohort_never_changes():
    fake = FakeClients(range(15))
    scheduler = adcs.StaticDPP()
    cohorts = {fake.run_round(scheduler, r, 5).clients for r in range(30)}
    assert len(cohorts) == 1


def test_samples_vary_and_repeat_by_seed():
    fake = FakeClients(range(15))
    one, two = adcs.StaticDPP(sample=True), adcs.StaticDPP(sample=True)
    first = [fake.run_round(one, r, 5).clients for r in range(10)]
    assert len(set(map(frozenset, first))) > 3
    assert first == [fake.run_round(two, r, 5).clients for r in range(10)]


def test_the_mode_is_taken_if_m_is_above_the_rank(probed):
    scheduler = adcs.StaticDPP(sample=True)
    probed(scheduler, 0, np.repeat(np.eye(3), 2, axis=0))
    assert len(scheduler.select(0, range(6), 5).clients) == 5


def test_sample_refuses_caps_and_theta_one():
    with pytest.raises(ValueError, match="caps"):
        adcs.StaticDPP(sample=True, required=[1])
    with pytest.raises(ValueError, match="theta"):
        adcs.StaticDPP(sample=True, theta=1.0)


def test_the_mode_is_taken_if_no_sample_can_be_computed() -> None:
    rows = np.random.default_rng(0).standard_normal((30, 40))
    cohorts = []
    for sample in (True, False):
        scheduler = adcs.StaticDPP(sample=sample, theta=0.8)
        reports = [adcs.ClientReport(c, 0, loss=7.0 * c, update=rows[c]) for c in range(30)]
        scheduler.observe(0, reports, "probe")
        cohorts.append(scheduler.select(0, range(30), 10).clients)
    assert cohorts[0] == cohorts[1]
