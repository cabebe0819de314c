"""Over-selection, buffers and learned deadlines."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs.rounds import Buffered, Deadlines, over_selected


@given(m=st.integers(1, 10_000), tenths=st.integers(10, 50))
def test_the_factor_is_rounded_up_as_its_decimal_digits_say(m, tenths):
    exact = m * Fraction(tenths, 10)
    assert over_selected(m, tenths / 10) == math.ceil(exact)


@pytest.mark.parametrize(
    ("staleness", "expected"), [("sqrt", 1 / 3), ("inverse", 1 / 9), ("constant", 1.0)]
)
def test_a_reply_counts_by_its_staleness(staleness, expected):
    mode = Buffered(size=2, concurrency=4, staleness=staleness)
    assert mode.discount(0) == 1.0
    assert mode.discount(8) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 0, "concurrency": 4}, "size"),
        ({"size": 5, "concurrency": 4}, "concurrency must be at least size"),
        ({"size": 2, "concurrency": 4, "staleness": "linear"}, "staleness"),
        ({"size": True, "concurrency": 4}, "size"),
    ],
)
def test_wrong_settings_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        Buffered(**settings)


class TestDeadlines:
    @given(seconds=st.floats(0.01, 1e4), times=st.integers(1, 30))
    def test_a_steady_client_is_in_time_and_not_waited_for_much_longer(self, seconds, times):
        deadlines = Deadlines()
        for _ in range(times):
            deadlines.record("a", seconds)
        assert seconds < deadlines.of("a", math.inf) < 3 * seconds

    def test_a_client_that_becomes_slower_gets_more_time_by_its_late_replies(self):
        deadlines = Deadlines()
        for _ in range(5):
            deadlines.record("a", 1.0)
        before = deadlines.of("a", 1e3)
        deadlines.miss(["a"])
        for _ in range(10):
            deadlines.record("a", 10.0)
        assert before < 10.0 < deadlines.of("a", 1e3)

    def test_a_dead_client_prolongs_one_round_only(self):
        deadlines = Deadlines()
        for client, seconds in (("fast", 1.0), ("slow", 50.0)):
            for _ in range(3):
                deadlines.record(client, seconds)
        assert deadlines.wait(["fast", "slow"], 600.0) > 50.0
        deadlines.miss(["slow"])
        assert deadlines.wait(["fast", "slow"], 600.0) < 3.0
        assert deadlines.wait(["slow"], 600.0) > 50.0  # alone, it is waited for
        deadlines.record("slow", 55.0)
        assert deadlines.wait(["fast", "slow"], 600.0) > 50.0

    def test_nobody_is_waited_for_longer_than_the_longest_wait(self):
        deadlines = Deadlines()
        assert deadlines.wait(["a"], 7.0) == 7.0
        deadlines.record("a", 1e300)
        assert deadlines.of("a", 7.0) == 7.0
        assert deadlines.wait([], 7.0) == 0.0

    def test_without_any_times_or_a_longest_wait_the_wait_is_endless(self):
        deadlines = Deadlines()
        assert deadlines.of("a", math.inf) == math.inf
        deadlines.record("a", 1.0)
        assert deadlines.of("a", math.inf) < 3.0

    @given(
        st.lists(
            st.tuples(st.sampled_from([0, 1, "a"]), st.floats(0.0, 1e6) | st.none()), max_size=30
        )
    )
    def test_restored_is_uninterrupted(self, events):
        whole, part = Deadlines(), Deadlines()
        for i, (client, seconds) in enumerate(events):
            for deadlines in (whole, part):
                if seconds is None:
                    deadlines.miss([client])
                else:
                    deadlines.record(client, seconds)
            if i == len(events) // 2:
                saved = json.loads(json.dumps(part.state()))
                part = Deadlines()
                part.restore(saved)
        assert part.state() == whole.state()
        assert part.wait([0, 1, "a", "b"], 9e9) == whole.wait([0, 1, "a", "b"], 9e9)
