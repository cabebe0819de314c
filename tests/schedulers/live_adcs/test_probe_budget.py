"""The limit on probes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs._serialization import pack, unpack
from adcs.schedulers.live_adcs import ProbeBudget
from adcs.testing import FakeClients


@settings(max_examples=40, deadline=None)
@given(
    share=st.sampled_from([0.0, 0.005, 0.05, 0.3]),
    refresh=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_probes_never_exceed_the_budget(share: float, refresh: int, seed: int) -> None:
    """Clients come, go and keep silent, rounds fall through, states are restored in between."""
    rng = np.random.default_rng(seed)
    fake = FakeClients(range(14))
    make = partial(adcs.LiveADCS, probe_share=share, refresh_every=refresh)
    scheduler = make()
    asked = trained = 0
    met: set[int] = set()
    for server_round in range(30):
        here = [c for c in range(14) if rng.random() < 0.7]
        met |= set(here)
        request = scheduler.request(server_round, here, 4)
        assert scheduler.request(server_round, here, 4) == request
        asked += len(request.clients)
        assert asked <= max(len(met), share * trained)
        if rng.random() < 0.2:
            saved = scheduler.state()
            scheduler = make()
            scheduler.restore(unpack(pack(saved)))
        answers = [r for r in fake.answer(server_round, request) if rng.random() < 0.7]
        scheduler.observe(server_round, answers, "probe")
        cohort = scheduler.select(server_round, [] if rng.random() < 0.1 else here, 4)
        trained += len(cohort.clients)
        replies = [fake.report(server_round, c) for c in cohort.clients if rng.random() < 0.8]
        scheduler.observe(server_round, replies, "training")
    assert asked >= len(met)


def test_a_client_that_never_answers_does_not_use_up_the_budget() -> None:
    fake = FakeClients(range(10))
    scheduler = adcs.LiveADCS(probe_share=0.2, refresh_every=10, patience=None)
    asked: Counter[Any] = Counter()
    for server_round in range(100):
        request = scheduler.request(server_round, [*range(10), 99], 3)
        asked.update(request.clients)
        alive = replace(request, clients=tuple(c for c in request.clients if c != 99))
        scheduler.observe(server_round, fake.answer(server_round, alive), "probe")
        cohort = scheduler.select(server_round, range(10), 3)
        replies = [fake.report(server_round, c) for c in cohort.clients]
        scheduler.observe(server_round, replies, "training")
    assert sum(n for client, n in asked.items() if client != 99) > 10 + 10


def test_a_budget_that_is_spent_grants_nothing():
    budget = ProbeBudget(share=0.0)
    assert budget.grant(0, ["a", "b", "c"], clients=3) == ["a", "b", "c"]
    assert budget.grant(1, ["d", "e", "f"], clients=1) == []
