"""Quality scores and their scales."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adcs
from adcs.reports.quality import qualities, raw_quality, rescale
from adcs.reports.report import ClientReport


def test_communication_is_mixed_in_by_gamma():
    reports = [
        ClientReport(c, 0, loss=loss, communication_seconds=s)
        for c, (loss, s) in enumerate([(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)])
    ]
    learn = qualities(reports, scale="standard")
    comm = qualities(reports, gamma=1.0)
    mixed = qualities(reports, gamma=0.25)
    np.testing.assert_allclose(mixed, 0.75 * learn + 0.25 * comm)


def test_the_first_client_without_the_value_is_named():
    reports = [ClientReport(c, 0, loss=1.0 if c == "a" else None) for c in "abc"]
    with pytest.raises(ValueError, match="client 'b' does not report its loss"):
        qualities(reports)


def test_each_quality_is_read_from_its_own_field():
    report = ClientReport(1, 0, loss=2.0, norm=3.0, examples=40, communication_seconds=5.0)
    names = ("loss", "norm", "examples", "communication")
    found = {name: raw_quality(report, name) for name in names}
    assert found == {"loss": 2.0, "norm": 3.0, "examples": 40.0, "communication": -5.0}


def test_a_function_may_return_any_number():
    updates = np.eye(4)
    for values, first in (([1, 10**25, 3, 2], 1), ([True, False, None, False], 0)):
        for scale in ("raw", "standard", "rank"):
            scheduler = adcs.ADCS(quality=lambda r, v=values: v[r.client], scale=scale, theta=0.9)
            reports = [ClientReport(c, 0, loss=1.0, update=updates[c]) for c in range(4)]
            scheduler.observe(0, reports, "probe")
            assert scheduler.select(0, range(2), 1).clients == (first,)
    scheduler = adcs.ADCS(quality=lambda report: "high")
    scheduler.observe(0, [ClientReport(0, 0, loss=1.0, update=updates[0])], "probe")
    with pytest.raises(ValueError, match="quality must return a number or None, got 'high'"):
        scheduler.select(0, range(2), 1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_rank_is_bounded_and_monotone(values):
    v = np.array(values)
    ranks = rescale(v, "rank")
    assert ((ranks >= 0) & (ranks <= 1)).all()
    assert (np.diff(ranks[np.argsort(v)]) >= 0).all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_standard_is_bounded(values):
    z = rescale(np.array(values), "standard")
    assert np.abs(z).max() <= np.sqrt(len(values) - 1) + 1e-9


def test_rounding_is_no_quality():
    equal = np.float32(2.3025851) * (1 + np.float32(1e-7) * np.arange(3, dtype=np.float32))
    values = equal.astype(np.float64)
    assert np.ptp(rescale(values, "rank")) == 0
    assert np.ptp(rescale(values, "standard")) == 0


def test_many_close_losses_are_not_one_tie():
    losses = np.random.default_rng(0).uniform(2.302, 2.303, 10_000).astype(np.float32)
    assert np.unique(rescale(losses.astype(np.float64), "rank")).size > 100


class TestFalseReports:
    """Six clients of one direction claim huge losses; the other reports are true."""

    def cohort(self, scale):
        rng = np.random.default_rng(0)
        honest = rng.standard_normal((14, 60))
        liars = rng.standard_normal(60) + 0.05 * rng.standard_normal((6, 60))
        updates = np.vstack([honest, liars])
        losses = [*rng.uniform(1.0, 2.5, 14), *[1e6] * 6]
        scheduler = adcs.ADCS(theta=0.8, scale=scale)
        reports = [
            ClientReport(c, 0, loss=loss, update=u)
            for c, (loss, u) in enumerate(zip(losses, updates, strict=True))
        ]
        scheduler.observe(0, reports, "probe")
        return scheduler.select(0, range(20), 6).clients

    def test_raw_losses_gain_every_slot(self):
        assert sum(c >= 14 for c in self.cohort("raw")) == 6

    def test_ranks_do_not(self):
        assert sum(c >= 14 for c in self.cohort("rank")) <= 2

    def test_on_a_bounded_scale_one_liar_gains_no_more_than_the_largest_loss(self):
        honest = np.array([1.0, 1.2, 1.4, 2.5])
        lying = np.array([1e6, 1.2, 1.4, 2.5])
        assert rescale(lying, "rank").max() == rescale(honest, "rank").max()
        assert rescale(lying, "standard").max() <= np.sqrt(3) + 1e-12
