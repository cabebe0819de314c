"""Re-based replies, and for whom a round waits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs.federated import PlainReply, Purpose, SentModel
from adcs.federated.buffer import Buffer, Work, rebase, relative_weights
from adcs.federated.waiting import Deadline, Wait
from adcs.rounds import Buffered
from adcs.schedulers.base import Cohort

NUMBERS = st.floats(-100, 100)


def model(w: Any, var: float = 1.0, dtype: Any = np.float64) -> SentModel:
    return SentModel(
        {
            "w": np.array(w, dtype=dtype),
            "bn.running_var": np.array([var], dtype=dtype),
            "bn.num_batches_tracked": np.array(3),
        }
    )


@given(
    sent=st.tuples(NUMBERS, NUMBERS),
    now=st.tuples(NUMBERS, NUMBERS),
    trained=st.tuples(NUMBERS, NUMBERS),
    variances=st.tuples(*[st.floats(1e-3, 100)] * 3),
    stale=st.integers(0, 50),
)
def test_a_rebased_reply_is_the_current_model_and_a_part_of_the_update(
    sent: Any, now: Any, trained: Any, variances: Any, stale: int
) -> None:
    discount = Buffered(size=1, concurrency=1).discount(stale)
    old, current = model(sent, variances[0]), model(now, variances[1])
    reply = PlainReply({**model(trained, variances[2]).arrays})
    rebase(reply, old, current, discount)
    arrays = reply.arrays(current)
    expected = np.array(now) + discount * (np.array(trained) - np.array(sent))
    np.testing.assert_allclose(arrays["w"], expected, atol=1e-9)
    # A variance stays between the current one and the reply's.
    low, high = sorted(variances[1:])
    assert low - 1e-9 <= arrays["bn.running_var"][0] <= high + 1e-9
    assert arrays["bn.num_batches_tracked"] == 3


def test_a_reply_to_the_current_model_is_left_as_it_is() -> None:
    current = model([0.1, 0.2])
    reply = PlainReply({"w": np.array([0.3, 0.7])})
    before = reply.arrays(current)["w"]
    rebase(reply, current, current, 1.0)
    assert reply.arrays(current)["w"] is before


def test_float32_stays_float32() -> None:
    old, current = model([1.0], dtype=np.float32), model([2.0], dtype=np.float32)
    reply = PlainReply({"w": np.array([1.5], dtype=np.float32)})
    rebase(reply, old, current, Buffered(size=1, concurrency=1).discount(2))
    assert reply.arrays(current)["w"].dtype == np.float32


def test_weights_of_several_cohorts_compare() -> None:
    cohorts = [Cohort(("a", "b"), (2.0, 6.0)), Cohort(("c",), (40.0,))]
    buffer = Buffer(Buffered(size=2, concurrency=3))
    for cohort in cohorts:
        for client, weight in relative_weights(cohort).items():
            buffer.works[client] = Work(client, Purpose("training", 0), weight)
    assert buffer.cohort(["c", "b"]) == Cohort(("c", "b"), (1.0, 1.5))
    assert relative_weights(Cohort((), ())) == {}


def answered(wait: Wait, clients: str, usable: str) -> float:
    for client in clients:
        wait.answer(client)
    return wait.seconds(len(usable))


def test_a_round_ends_with_enough_usable_replies() -> None:
    wait = Wait(tuple("abcd"), 2, (), Deadline(None), 60.0)
    assert answered(wait, "a", "") == 60.0  # a's reply is refused
    assert answered(wait, "b", "b") == 60.0
    assert answered(wait, "c", "bc") == 0.0
    assert (wait.outrun(2), wait.timed_out(2)) == (["d"], [])
    assert (wait.outrun(1), wait.timed_out(1)) == ([], ["d"])
    assert wait.first("cb") == ["c", "b"]


def test_a_round_ends_when_all_have_answered() -> None:
    wait = Wait(tuple("ab"), 2, (), Deadline(None), math.inf)
    assert answered(wait, "a", "") == math.inf
    assert answered(wait, "b", "") == 0.0


def test_awaited_clients_take_slots_of_the_first() -> None:
    wait = Wait(tuple("abcd"), 2, ("d",), Deadline(10.0), 60.0)
    assert answered(wait, "abc", "abc") == 10.0
    assert (wait.outrun(3), wait.timed_out(3)) == ([], ["d"])
    assert answered(wait, "d", "abcd") == 0.0
    assert wait.first("abcd") == ["d", "a"]


def test_learned_deadlines_shrink_to_those_that_are_still_waited_for() -> None:
    deadline = Deadline("adaptive")
    for client, seconds in (("fast", 1.0), ("slow", 20.0)):
        for _ in range(5):
            deadline.record(client, seconds)

    def wait(asked: str, unanswered: str) -> float:
        round_wait = Wait(asked.split(), 9, (), deadline, 3600.0)
        for client in set(asked.split()) - set(unanswered.split()):
            round_wait.answer(client)
        return round_wait.seconds(usable=0)

    both, fast = wait("fast slow", "fast slow"), wait("fast slow", "fast")
    assert 20.0 < both < 60.0
    assert 1.0 < fast < 3.0
    deadline.miss(["slow"])
    assert wait("fast slow", "fast slow") == fast
    assert wait("fast slow", "slow") == fast
    assert wait("slow", "slow") == both
    deadline.record("slow", 20.0)
    assert wait("fast slow", "slow") == pytest.approx(both, rel=0.2)


def test_times_of_a_round_do_not_shorten_it() -> None:
    deadline = Deadline("adaptive")
    wait = Wait(["fast", "slow"], 2, (), deadline, 60.0)
    wait.answer("fast")
    deadline.record("fast", 1.0)
    assert wait.seconds(usable=1) == 60.0


@pytest.mark.parametrize("setting", [0.0, -1, math.inf, "soon", True])
def test_wrong_deadlines_are_named(setting: Any) -> None:
    with pytest.raises(ValueError, match="deadline must be"):
        Deadline(setting)
