"""Client ids, and which clients are pending."""

from __future__ import annotations

from typing import Any

import pytest

from adcs.federated import ClientRegistry, Purpose, key_id

TRAINING = Purpose("training", 0)


@pytest.mark.parametrize("claim", [-1, True, 2**60, "3", 2.0, None])
def test_only_a_small_integer_is_a_partition_id(claim: Any) -> None:
    registry = ClientRegistry()
    registry.identify(77, claim)
    assert registry.resolve({77: b""}) == {"node:77": 77}
    assert registry.unidentified([77]) == []


def test_a_claim_cannot_collide_with_the_id_of_another_node() -> None:
    registry = ClientRegistry()
    registry.identify(5, 6)
    assert registry.resolve({5: b"", 6: b""}) == {6: 5, "node:6": 6}


def test_the_first_node_keeps_a_partition_id_while_it_is_connected() -> None:
    registry = ClientRegistry()
    assert registry.unidentified([9]) == [9]
    registry.identify(9, 3)
    assert registry.unidentified([9, 4]) == [4]
    registry.identify(4, 3)
    assert registry.resolve({4: b"", 9: b""}) == {3: 9, "node:4": 4}
    assert registry.id_conflicts == {
        "node:4": "partition-id 3 is that of node 9, so this node goes by its node id"
    }
    assert registry.resolve({4: b""}) == {3: 4}
    assert registry.id_conflicts == {}
    assert registry.client_of(9) == "node:9"


def test_keys_are_identities_of_authenticated_nodes_only() -> None:
    keys = {7: b"key 7", 8: b""}
    assert ClientRegistry(authenticated=True).resolve(keys) == {key_id(b"key 7"): 7, "node:8": 8}
    assert ClientRegistry().resolve(keys) == {"node:7": 7, "node:8": 8}
    assert ClientRegistry(authenticated=True).unidentified(keys) == []


def test_a_client_is_pending_until_it_answers_or_patience_ends() -> None:
    registry = ClientRegistry(patience=60.0)
    registry.add_pending("first", 7, TRAINING, now=100.0)
    registry.add_pending("second", 8, TRAINING, now=110.0)
    nodes = {0: 7, 1: 8, 2: 9}
    assert registry.split(nodes) == ((2,), (0, 1))
    assert registry.pop_pending("first").node == 7
    assert registry.pop_pending("first") is None
    assert registry.split(nodes) == ((0, 2), (1,))
    registry.expire(now=169.0)
    assert registry.pending_messages() == ["second"]
    registry.expire(now=170.0)
    assert registry.split(nodes) == ((0, 1, 2), ())


def test_a_pending_node_is_not_asked_who_it_is() -> None:
    registry = ClientRegistry()
    registry.add_pending("question", 7, Purpose("identity", 0), now=0.0)
    assert registry.unidentified([7, 8]) == [8]


def test_all_are_available_if_all_are_pending() -> None:
    registry = ClientRegistry()
    registry.add_pending("message", 7, TRAINING, now=0.0)
    assert registry.split({0: 7}) == ((0,), ())
