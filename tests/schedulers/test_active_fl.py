"""ActiveFL: valuations and draw probabilities by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest

import adcs


def trained(scheduler, sizes, losses):
    """Report sizes and losses of clients 1, 2, ... after training."""
    reports = [
        adcs.ClientReport(c, 0, loss=loss, examples=n)
        for c, (n, loss) in enumerate(zip(sizes, losses, strict=True), start=1)
    ]
    scheduler.observe(0, reports, "training")
    return scheduler


def test_the_largest_valuation_and_one_of_the_others():
    """v = (10, 15, 20, 4): 3 of 4 are dropped, client 3 is drawn, and one other uniformly."""
    scheduler = trained(adcs.ActiveFL(), (100, 25, 400, 4), (1.0, 3.0, 1.0, 2.0))
    seconds = Counter()
    for server_round in range(300):
        cohort = scheduler.select(server_round, [1, 2, 3, 4], 2)
        assert cohort.clients[0] == 3
        assert cohort.diagnostics["valuations"][0] == [3, 20.0]
        seconds[cohort.clients[1]] += 1
    assert set(seconds) == {1, 2, 4}
    assert min(seconds.values()) > 70


def test_draws_are_proportional_to_the_exponential():
    """v = (0, 100 ln 3): exp(.01 v) = (1, 3), so that the second is drawn 3 times out of 4."""
    scheduler = adcs.ActiveFL(dropped=0.0, uniform=0.0)
    trained(scheduler, (1, 1), (0.0, 100 * math.log(3)))
    first = [scheduler.select(r, [1, 2], 1).clients[0] for r in range(2000)]
    assert first.count(2) / 2000 == pytest.approx(0.75, abs=0.05)


def test_large_valuations_do_not_overflow():
    scheduler = trained(adcs.ActiveFL(temperature=1.0, dropped=0.5), (1, 1), (1e9, 2e9))
    assert scheduler.select(0, [1, 2], 1).clients in {(1,), (2,)}


def test_if_too_few_are_left_the_largest_of_the_dropped_follow():
    """int(.75 * 4) = 3 dropped, int(1 * 3) = 3 to draw: v = 20, then 15 and 10."""
    scheduler = trained(adcs.ActiveFL(uniform=0.0), (100, 25, 400, 4), (1.0, 3.0, 1.0, 2.0))
    assert scheduler.select(0, [1, 2, 3, 4], 3).clients == (3, 2, 1)


def test_the_valuation_is_kept_until_the_next_report():
    scheduler = trained(adcs.ActiveFL(uniform=0.0), (1, 1), (5.0, 1.0))
    assert scheduler.select(7, [1, 2], 1).clients == (1,)
    scheduler.observe(7, [adcs.ClientReport(1, 7, loss=0.1)], "training")
    assert scheduler.select(8, [1, 2], 1).clients == (2,)


def test_clients_without_a_valuation_get_their_share():
    scheduler = trained(adcs.ActiveFL(), (1, 1), (5.0, 1.0))
    cohort = scheduler.select(1, list(range(1, 9)), 4)
    assert len(set(cohort.clients) & {3, 4, 5, 6, 7, 8}) == 3  # 4 * 6 / 8


@pytest.mark.parametrize("settings", [{"dropped": 1.1}, {"temperature": -1}, {"uniform": "x"}])
def test_wrong_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        adcs.ActiveFL(**settings)
