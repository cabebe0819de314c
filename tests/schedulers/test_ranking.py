"""Ranking of clients."""

from __future__ import annotations

import numpy as np

import adcs
from adcs.dpp.tolerances import descending
from adcs.reports.quality import rescale


def test_descending_ties_keep_their_order():
    values = np.array([1.0, 2.0, 2.0 + 4e-16, 2.0, 0.5])
    assert descending(values) == [1, 2, 3, 0, 4]


def test_many_close_losses_are_not_one_tie() -> None:
    losses = np.random.default_rng(0).uniform(2.302, 2.303, 10_000).astype(np.float32)
    scheduler = adcs.PowerOfChoice()
    reports = [adcs.ClientReport(c, 0, loss=loss) for c, loss in enumerate(losses)]
    scheduler.observe(0, reports, "probe")
    chosen = scheduler.select(0, range(10_000), 10).clients
    rounding = 8 * np.finfo(np.float32).eps * losses.max()
    assert losses[list(chosen)].min() >= np.sort(losses)[-10] - rounding
    assert np.unique(rescale(losses.astype(np.float64), "rank")).size > 100
