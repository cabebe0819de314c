"""The DPP over clients."""

from __future__ import annotations

import numpy as np
import pytest

import adcs


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.8])
@pytest.mark.parametrize("make", [adcs.ADCS, adcs.LiveADCS, adcs.StaticDPP])
@pytest.mark.parametrize("seed", range(4))
def test_copies_of_updates_add_no_direction_in_any_precision(make, theta, seed) -> None:
    """Ten directions three times over, of any lengths, in float64, float32 and as sketches."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.standard_normal((10, 300)), 3, axis=0)
    rows *= rng.uniform(0.1, 9.0, (30, 1)) if seed % 2 else 1.0
    losses = rng.uniform(0.5, 2.5, 30)
    sketcher = adcs.Sketcher(size=256, dtype="float32")
    cohorts = []
    for kind in ("float64", "float32", "sketch"):
        scheduler = make(theta=theta, sketch=sketcher if kind == "sketch" else None)
        reports = [
            adcs.ClientReport(
                client,
                0,
                loss=float(losses[client]),
                update=None if kind == "sketch" else row.astype(kind),
                sketch=sketcher.sketch(row) if kind == "sketch" else None,
            )
            for client, row in enumerate(rows)
        ]
        scheduler.observe(0, reports, "probe")
        cohorts.append(scheduler.select(0, range(30), 18))
    assert [cohort.diagnostics["rank"] for cohort in cohorts] == [10, 10, 10]
    assert set(cohorts[0].clients) == set(cohorts[1].clients)
    if make is not adcs.LiveADCS:  # whose quality is not the loss itself
        chosen = adcs.select(rows, m=18, quality=losses, theta=theta)
        assert set(cohorts[0].clients) == set(chosen.tolist())


@pytest.mark.parametrize("make", [adcs.ADCS, adcs.LiveADCS])
def test_sketches_of_updates_of_another_size_are_refused(make) -> None:
    sketcher, rng = adcs.Sketcher(size=64), np.random.default_rng(0)
    scheduler = make(sketch=sketcher)
    lengths = [1000] * 8 + [700] * 2
    reports = [
        adcs.ClientReport(c, 0, loss=1.0, sketch=sketcher.sketch(rng.standard_normal(d)))
        for c, d in enumerate(lengths)
    ]
    raw = adcs.ClientReport(10, 0, loss=1.0, update=rng.standard_normal(64))
    scheduler.observe(0, [*reports, raw], "probe")
    refused = scheduler.select(0, range(11), 5).diagnostics["refused"]
    assert {entry["client"] for entry in refused} == {8, 9, 10}
