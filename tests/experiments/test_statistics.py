"""From records to statistics, by numbers a person can check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from adcs.experiments.statistics import (
    curves,
    diverged,
    estimate,
    final_ratios,
    paired,
    running_mean,
    summarise,
)


def record(scheduler: str, seed: int, server_round: int, **values: Any) -> dict[str, Any]:
    return {"scheduler": scheduler, "seed": seed, "server_round": server_round, **values}


def test_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.302653.
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.low == pytest.approx(2.0 - found.half)


def test_missing_seeds_are_left_out_of_pairs() -> None:
    found = paired([0.5, 0.6, math.nan], [0.4, 0.4, 0.1])
    assert (found.mean, found.n) == (0.15, 2)
    assert estimate([math.nan]).n == 0


def test_pairs_are_narrower_than_the_groups() -> None:
    a, b = [0.50, 0.60, 0.70], [0.40, 0.51, 0.59]
    assert paired(a, b).half < 0.2 * estimate(a).half


def test_last_tenth_of_evaluations() -> None:
    lines = [record("U", 0, 10 * i, worst=float(i), updates=i) for i in range(20)]
    assert curves(lines, "worst").last()["U"].tolist() == [18.5]
    assert curves(lines, "updates").last()["U"].tolist() == [19.0]


def test_a_run_cut_short_has_gaps() -> None:
    lines = [
        record("U", 0, 0, worst=0.1),
        record("U", 0, 5, worst=0.2),
        record("A", 0, 0, worst=0.3),
    ]
    found = curves(lines, "worst")
    assert found.rounds.tolist() == [0, 5]
    np.testing.assert_array_equal(found.values["A"], [[0.3, np.nan]])


def test_summary_with_differences() -> None:
    lines = []
    for seed, (u, a) in enumerate([(0.4, 0.6), (0.5, 0.7)]):
        costs = {"updates": 10, "bytes_up": 1, "bytes_down": 2, "seconds": 3.0, "jain": 1.0}
        scores = {"worst20": 0.5, "average": 0.8, "std": 0.1, "tv": None}
        lines += [record("U", seed, 0, worst=u, **scores, **costs)]
        lines += [record("A", seed, 0, worst=a, **scores, **costs)]
    uniform, ours = summarise(lines, ["U", "A"], baseline="U")
    assert uniform.differences == {}
    assert uniform.cells["worst"].mean == pytest.approx(0.45)
    assert uniform.cells["bytes"].mean == 3.0
    assert uniform.cells["tv"].n == 0
    assert ours.differences["worst"].mean == pytest.approx(0.2)
    assert ours.differences["worst"].half == pytest.approx(0.0, abs=1e-12)
    assert ours.differences["average"].mean == 0.0


def test_ratios_are_those_of_the_last_record() -> None:
    lines = [
        record("A", 1, 0, group_ratios=[0.0, 0.0]),
        record("A", 1, 9, group_ratios=[0.3, 0.7]),
        record("A", 0, 9, group_ratios=[0.4, 0.6]),
        record("B", 0, 9, group_ratios=[0.9, 0.1]),
    ]
    assert final_ratios(lines, "A").tolist() == [[0.4, 0.6], [0.3, 0.7]]


def test_band_and_smoothing() -> None:
    lines = [record("A", s, r, worst=0.1 * s + 0.01 * r) for s in range(3) for r in range(3)]
    found = curves(lines, "worst")
    mean, low, high = found.band("A")
    np.testing.assert_allclose(mean, [0.1, 0.11, 0.12])
    np.testing.assert_allclose(high - low, 2 * 4.302653 * 0.1 / math.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(found.smooth(3).values["A"][0], [0.0, 0.01, 0.02])


def test_a_running_mean_begins_and_ends_with_the_values_themselves() -> None:
    values = np.array([0.1, 0.5, 0.6, 0.4, 0.9, 0.7, 0.2])
    found = running_mean(values, 5)
    assert (found[0], found[-1]) == (0.1, 0.2)
    np.testing.assert_allclose(found[1:3], [0.4, 0.5])
    np.testing.assert_array_equal(running_mean(values, 1), values)
    with pytest.raises(ValueError, match="window must be odd, got 4"):
        running_mean(values, 4)


@pytest.mark.parametrize(
    ("losses", "wrong"),
    [([2.3, 9.0, 1.0], []), ([2.3, 1.0, 4.7], [0]), ([2.3, None, None], [0]), ([2.3], [])],
)
def test_divergence(losses: list[float | None], wrong: list[int]) -> None:
    records = [record("A", 0, r, test_loss=loss) for r, loss in enumerate(losses)]
    assert diverged(records).get("A", []) == wrong
