"""Server optimisers: runs without arrivals, state. The models are compared with Flower's in
tests/flower/test_same_model.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adcs._serialization import pack, unpack
from adcs.simulation.server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from adcs.simulation.training import USED_BY, Training

NAMES = list(SERVER_OPTIMIZERS)


def optimizer(name: str) -> ServerOptimizer:
    return Training(server_optimizer=name).make_server_optimizer()  # type: ignore[arg-type]


def updates(rounds: int) -> Any:
    return np.random.default_rng(0).standard_normal((rounds, 2, 5))


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_arrivals_stays_as_it_is(name: str) -> None:
    """Its model and its momenta are those of a run that never had the round."""
    both, alone = optimizer(name), optimizer(name)
    w, single = np.ones((2, 5)), np.ones((1, 5))
    for server_round, update in enumerate(updates(6)):
        arrived = server_round != 2
        w = both.step(w, update, np.array([True, arrived]), server_round)
        if arrived:
            single = alone.step(single, update[1:], np.array([True]), server_round)
        np.testing.assert_array_equal(w[1:], single)


@pytest.mark.parametrize("name", NAMES)
def test_state_goes_on(name: str) -> None:
    first, second = optimizer(name), optimizer(name)
    w = np.ones((2, 5))
    active = np.array([True, True])
    for server_round, update in enumerate(updates(3)):
        w = first.step(w, update, active, server_round)
    second.restore(unpack(pack(first.state())), w)
    for server_round, update in enumerate(updates(3)):
        np.testing.assert_array_equal(
            first.step(w, update, active, server_round),
            second.step(w, update, active, server_round),
        )


def test_a_state_of_another_shape_is_refused() -> None:
    adam = optimizer("adam")
    with pytest.raises(ValueError, match="the server's optimiser has an unusable 'm'"):
        adam.restore({"m": np.zeros((2, 4))}, np.zeros((2, 5)))
    with pytest.raises(ValueError, match="unusable 'velocity'"):
        adam.restore({"velocity": np.zeros((2, 5))}, np.zeros((2, 5)))


def test_settings_name_those_that_use_them() -> None:
    users = {
        name for owner, names in USED_BY.values() if owner == "server_optimizer" for name in names
    }
    assert users == set(NAMES) - {"mean"}
