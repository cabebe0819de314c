"""From records to statistics, by numbers a person can check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from adcs.experiments import tables
from adcs.experiments.statistics import (
    FEWEST,
    LEVEL,
    SHARE,
    Curves,
    corrected,
    curves,
    diverged,
    estimate,
    final_ratios,
    holm,
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


@pytest.mark.parametrize("values", [[0.118, 0.694], [0.3]])
def test_fewer_than_three_seeds_have_no_interval(values: list[float]) -> None:
    # The 95 % interval of 0.118 and 0.694 would be 0.406 ± 3.664.
    found = estimate(values, SHARE)
    assert (found.half, found.p) == (None, None)
    assert (found.low, found.high) == (found.mean, found.mean)
    assert found.values == tuple(values)
    assert tables.format_estimate(found, "worst") == " / ".join(f"{value:.3f}" for value in values)
    assert tables.format_difference(found) == " / ".join(f"+{value:.3f}" for value in values)


def test_an_interval_ends_at_the_bounds_of_its_quantity() -> None:
    # Mean 0.294, and t(0.975, 4) = 2.776445 times the standard error is 0.308.
    found = estimate([0.02, 0.05, 0.25, 0.55, 0.6], SHARE)
    assert found.mean - found.half < 0.0 < found.mean
    assert (found.low, found.is_cut) == (0.0, True)
    assert found.high == pytest.approx(found.mean + found.half)
    assert tables.format_estimate(found, "worst").startswith("0.294 [0.000, 0.6")
    inside = estimate([0.5, 0.51, 0.52], SHARE)
    assert not inside.is_cut
    assert tables.format_estimate(inside, "worst") == "0.510 ± 0.025"


SHARES = st.lists(st.floats(0.0, 1.0), max_size=12)


@given(SHARES)
def test_an_interval_of_shares_is_a_part_of_zero_to_one(values: list[float]) -> None:
    found, free = estimate(values, SHARE), estimate(values)
    if not values:
        assert found.n == 0
        assert tables.format_estimate(found, "worst") == "–"
        return
    mean = float(np.mean(values))
    assert found.low <= mean <= found.high
    # The mean of equal numbers may differ from them in the last bit.
    assert -1e-15 <= found.low <= found.high <= 1.0 + 1e-15
    assert (found.half is None) == (len(values) < 3)
    # Nothing that the quantity can be is taken away.
    assert found.low == pytest.approx(max(free.low, 0.0), abs=1e-15)
    assert found.high == pytest.approx(min(free.high, 1.0), abs=1e-15)


@given(st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=12))
def test_p_is_that_of_the_t_test(values: list[float]) -> None:
    x = np.round(values, 6)
    found = estimate(x)
    if x.std() < 1e-9:
        return
    assert found.p == pytest.approx(stats.ttest_1samp(x, 0.0).pvalue, rel=1e-6, abs=1e-12)
    if abs(found.p - LEVEL) > 1e-9:
        assert (found.p < LEVEL) == (found.low > 0.0 or found.high < 0.0)


def test_p_of_differences_without_spread() -> None:
    assert paired([0.5, 0.6, 0.7], [0.5, 0.6, 0.7]).p == 1.0
    assert paired([0.1 + 0.2, 0.1 + 0.2, 0.3], [0.3, 0.3, 0.3]).p == 1.0
    assert paired([0.75, 0.75, 0.75], [0.5, 0.5, 0.5]).p == 0.0


def test_holm_by_an_oracle() -> None:
    # statsmodels 0.14, multipletests(p, method="holm").
    found = holm([0.011, 0.04, 0.0004, 0.03, 0.2, 0.0301])
    assert found == pytest.approx([0.055, 0.12, 0.0024, 0.12, 0.2, 0.12])
    assert holm([]) == []


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=15), st.floats(0.001, 0.5))
def test_holm_calls_what_its_steps_call(p: list[float], level: float) -> None:
    # Step by step: the smallest against level / k, the next against level / (k - 1), ...
    called = set()
    for step, i in enumerate(np.argsort(p, kind="stable")):
        if not p[i] * (len(p) - step) < level:
            break
        called.add(int(i))
    found = holm(p)
    assert {i for i, value in enumerate(found) if value < level} == called
    assert all(one >= before for one, before in zip(found, p, strict=True))
    assert max(found) <= 1.0


def test_several_schedulers_are_corrected_together() -> None:
    rng = np.random.default_rng(1)
    lines = [
        record(f"S{k}", seed, 0, worst=0.5 + 0.02 * k + 0.02 * rng.random(), average=0.8)
        for seed in range(5)
        for k in range(4)
    ]
    labels = [f"S{k}" for k in range(4)]
    rows = summarise(lines, labels, baseline="S0")
    alone = [row.differences["worst"].p for row in rows[1:]]
    assert [row.p["worst"] for row in rows[1:]] == pytest.approx(holm(alone))
    pair = summarise(lines, labels[:2], baseline="S0")
    assert pair[1].p["worst"] == pytest.approx(alone[0])
    assert f"p = {rows[1].p['worst']:.3f}" in tables.difference_table(rows)[1][0][1]
    note = tables.difference_note(rows)
    assert "Holm's method for the 3 schedulers" in note
    assert "each for its difference alone" in note
    # Holm's method bounds false rejections; it says nothing about the p-values of differences.
    assert "p < 0.05 for any scheduler without a difference is at most 0.05" in note
    assert "Holm" not in tables.difference_note(pair)
    assert corrected({}) == {}


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_seeds_that_do_not_count_are_named(bad: float | None) -> None:
    lines = [
        record(label, seed, 0, worst=0.5 + 0.01 * seed, average=0.8, tv=None)
        for label in ("A", "B")
        for seed in (3, 4, 5, 6)
    ]
    lines[1]["worst"] = bad  # A at seed 4.
    first, second = summarise(lines, ["A", "B"], baseline="B")
    assert first.cells["worst"].n == 3
    assert first.left_out == {"worst": (4,)}
    assert second.left_out == {}
    assert first.differences["worst"].n == 3
    note = "Left out, for their values are no finite numbers: A at seed 4 (worst)."
    assert tables.left_out_note([first, second]) == note
    assert tables.left_out_note([second]) == ""
    by_measure = {row[1]: row for row in tables.number_table([first])[1]}
    assert by_measure["worst"][-1] == "4"


def test_no_line_is_lost_when_no_seed_counts() -> None:
    lines = [record(label, seed, 0, worst=None) for label in ("A", "B") for seed in range(3)]
    rows = summarise(lines, ["A", "B"], baseline="A")
    assert [row.left_out for row in rows] == [{"worst": (0, 1, 2)}] * 2
    assert tables.difference_table(rows)[1] == []
    lines += [record("A", 7, 0, worst=0.5)]
    heads, cells = tables.summary_table(summarise(lines, ["A", "B"], baseline="A"))
    assert heads == ["scheduler", "worst"]
    assert cells == [["A", "0.500"], ["B", "–"]]


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
    for seed, (u, a) in enumerate([(0.4, 0.6), (0.5, 0.7), (0.45, 0.65)]):
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
    lines = [record("A", s, r, worst=0.4 + 0.1 * s + 0.01 * r) for s in range(3) for r in range(3)]
    found = curves(lines, "worst")
    mean, low, high = found.band("A")
    np.testing.assert_allclose(mean, [0.5, 0.51, 0.52])
    np.testing.assert_allclose(high - low, 2 * 4.302653 * 0.1 / math.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(found.smooth(3).values["A"][0], [0.4, 0.41, 0.42])
    low_ones = [{**line, "worst": line["worst"] - 0.4} for line in lines]
    _, low, high = curves(low_ones, "worst").band("A")
    np.testing.assert_array_equal(low, 0.0)  # No accuracy is below.
    mean, low, high = curves([line for line in lines if line["seed"] < 2], "worst").band("A")
    np.testing.assert_allclose([low, high], [[0.4, 0.41, 0.42], [0.5, 0.51, 0.52]])


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 6), st.integers(1, 8)),
        elements=st.floats(0, 1) | st.just(float("nan")),
    )
)
def test_a_band_is_the_estimate_of_each_round(table: Any) -> None:
    found = Curves("worst", np.arange(table.shape[1]), tuple(range(len(table))), {"U": table})
    for column, *ends in zip(table.T, *found.band("U"), strict=True):
        e = estimate(column, SHARE)
        low, high = (min(e.values), max(e.values)) if 0 < e.n < FEWEST else (e.low, e.high)
        np.testing.assert_allclose(ends, [e.mean, low, high], atol=1e-12)


@given(
    arrays(np.float64, st.integers(0, 30), elements=st.floats(-1, 1)),
    st.integers(0, 20).map(lambda half: 2 * half + 1),
)
def test_a_running_mean_is_the_mean_of_each_window(values: Any, window: int) -> None:
    last = values.size - 1
    sides = [min(window // 2, i, last - i) for i in range(values.size)]
    expected = [values[i - k : i + k + 1].mean() for i, k in enumerate(sides)]
    np.testing.assert_allclose(running_mean(values, window), expected, atol=1e-12)


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
