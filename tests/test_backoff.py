"""The rule for failing clients, beside a model of it that stores the waits of every client."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from adcs.backoff import EXPIRES_AFTER, MAX_WAIT, Backoff, without_unanswered

CLIENTS = (0, 1, 2, "a", "b")


class Reference:
    """The rule, client by client and round by round."""

    def __init__(self) -> None:
        self.count = dict.fromkeys(CLIENTS, 0)
        self.wait = dict.fromkeys(CLIENTS, 0)  # rounds still to wait

    def next_round(self, outcomes) -> list:
        """Take the outcome of each client that was asked: "ok", "probe" or "training" failed."""
        expired = []
        for client in CLIENTS:
            self.wait[client] = max(self.wait[client] - 1, 0)
            if (ok := outcomes.get(client)) is None:
                continue
            self.count[client] = 0 if ok else self.count[client] + 1
            self.wait[client] = 0 if ok else min(2 ** (self.count[client] - 1), MAX_WAIT)
            if self.count[client] >= EXPIRES_AFTER:
                expired.append(client)
        return expired

    def offered(self, m: int) -> set:
        free = {client for client in CLIENTS if not self.wait[client]}
        held = [client for client in CLIENTS if self.wait[client]]
        held.sort(key=lambda client: (self.wait[client], CLIENTS.index(client)))
        return free | set(held[: max(m - len(free), 0)])


@given(
    st.integers(1, 5),
    st.lists(st.dictionaries(st.sampled_from(CLIENTS), st.booleans()), max_size=40),
)
def test_the_rule_is_that_of_the_reference(m, rounds):
    backoff, reference = Backoff(), Reference()
    for server_round, outcomes in enumerate(rounds):
        offered = backoff.offered(server_round, CLIENTS, m)
        assert set(offered) == reference.offered(m)
        assert list(offered) == [client for client in CLIENTS if client in offered]
        asked = {client: ok for client, ok in outcomes.items() if client in offered}
        usable = [client for client, ok in asked.items() if ok]
        expired = backoff.record(server_round, "training", list(asked), usable)
        assert set(expired) == set(reference.next_round(asked))
        resumed = Backoff()
        resumed.restore(json.loads(json.dumps(backoff.state())))
        assert resumed.state() == backoff.state()
        assert resumed.offered(server_round + 1, CLIENTS, m) == backoff.offered(
            server_round + 1, CLIENTS, m
        )


def test_a_client_that_always_fails_is_asked_in_rounds_that_double_up_to_a_limit():
    backoff, asked = Backoff(), []
    for server_round in range(400):
        if "a" in backoff.offered(server_round, ("a", "b"), 1):
            asked.append(server_round)
            backoff.record(server_round, "training", ["a"], [])
    gaps = [after - before - 1 for before, after in itertools.pairwise(asked)]
    assert gaps[:9] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert backoff.total == len(asked)


def test_available_is_returned_as_it_is_while_no_client_waits():
    backoff, available = Backoff(), (1, 2, 3)
    assert backoff.offered(0, available, 2) is available
    backoff.record(0, "training", [9], [])
    assert backoff.offered(1, available, 2) is available
    backoff.record(1, "training", [1], [])
    assert backoff.offered(2, available, 2) is backoff.offered(2, available, 2)


def test_a_client_fails_once_in_a_round():
    backoff = Backoff()
    backoff.record(3, "probe", [1], [])
    assert backoff.record(3, "training", [1], []) == []
    assert backoff.total == 1
    assert backoff.waiting(4) == [1]
    assert backoff.waiting(5) == []


def test_an_answer_to_a_probe_does_not_end_failures_in_training():
    backoff = Backoff()
    backoff.record(0, "training", [1, 2], [])
    backoff.record(0, "probe", [3], [])
    backoff.record(2, "probe", [1, 2, 3], [1, 2, 3])
    assert len(backoff) == 2
    backoff.record(2, "training", [1, 2], [2])
    assert backoff.waiting(4) == [1]
    assert len(backoff) == 1


def test_failures_follow_a_client_to_its_new_id():
    backoff = Backoff()
    backoff.record(0, "training", ["node:7"], [])
    backoff.rename("node:7", 3)
    backoff.rename("node:8", 4)
    assert backoff.waiting(1) == [3]


def test_clients_that_failed_in_the_probe_are_left_out_unless_all_did():
    offered = (1, 2, 3)
    assert without_unanswered(offered, [1, 2], [2]) == (2, 3)
    assert without_unanswered(offered, offered, []) == offered
