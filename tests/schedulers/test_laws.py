"""Laws of all selectors, for random federations."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs._serialization import pack, unpack
from adcs.testing import FakeClients, MakeScheduler

SELECTORS: dict[str, MakeScheduler] = {
    "Oort": adcs.Oort,
    "ActiveFL": adcs.ActiveFL,
    "ClusteredSampling": adcs.ClusteredSampling,
    "FedCor": partial(adcs.FedCor, warm_up=1, refit_every=2, fit_steps=3, refit_steps=2),
    "HiCSFL": adcs.HiCSFL,
    "FedCBS": adcs.FedCBS,
    "FLIPS": adcs.FLIPS,
    "TiFL": partial(adcs.TiFL, tiers=3, interval=2, rounds=4),
    "FedCS": partial(adcs.FedCS, deadline=4.0),
    "REFL": adcs.REFL,
    "OCS independent": partial(adcs.OCS, independent=True),
    "ADCS of labels": partial(adcs.ADCS, kernel="labels", refresh_every=2),
    "LiveADCS of labels": partial(adcs.LiveADCS, kernel="labels"),
}

federations = st.fixed_dictionaries(
    {
        "n": st.integers(1, 9),
        "m": st.integers(1, 10),
        "away": st.lists(st.sets(st.integers(0, 8)), min_size=4, max_size=4),
        "busy": st.lists(st.sets(st.integers(0, 8)), min_size=4, max_size=4),
        "strings": st.booleans(),
        "seed": st.integers(0, 10**6),
    }
)


def run(make: MakeScheduler, federation: dict[str, Any], order: Any, stop: int | None = None):
    """Run four rounds; with `stop`, restore a new scheduler from the state before that round."""
    names = [f"c{i}" if federation["strings"] else i for i in range(federation["n"])]
    fake = FakeClients(names)
    scheduler = make()
    cohorts = []
    for r in range(4):
        if r == stop:
            state = unpack(pack(scheduler.state()))
            scheduler = make()
            scheduler.restore(state)
        here = [c for i, c in enumerate(names) if i not in federation["away"][r]]
        pending = [c for i, c in enumerate(names) if i in federation["busy"][r]]
        cohort = fake.run_round(scheduler, r, federation["m"], order(here), order(pending))
        cohorts.append((here, pending, cohort))
    return scheduler, cohorts


@pytest.mark.parametrize("name", SELECTORS)
@settings(max_examples=25, deadline=None)
@given(federation=federations)
def test_cohorts_are_m_distinct_available_clients_that_are_not_pending(name, federation):
    scheduler, cohorts = run(SELECTORS[name], federation, list)
    for here, pending, cohort in cohorts:
        free = set(here) - set(pending)
        assert set(cohort.clients) <= free
        assert len(set(cohort.clients)) == len(cohort.clients)
        assert all(0 < weight < np.inf for weight in cohort.weights)
        if scheduler.fixed_size:
            assert len(cohort.clients) == min(federation["m"], len(free))
        elif not name.startswith(("OCS", "REFL")):
            assert len(cohort.clients) <= federation["m"] or federation["m"] >= len(free)


@pytest.mark.parametrize("name", SELECTORS)
@settings(max_examples=15, deadline=None)
@given(federation=federations)
def test_the_order_of_clients_does_not_matter(name, federation):
    shuffled = np.random.default_rng(federation["seed"])
    _, one = run(SELECTORS[name], federation, list)
    _, two = run(
        SELECTORS[name], federation, lambda c: [c[i] for i in shuffled.permutation(len(c))]
    )
    assert [cohort for *_, cohort in one] == [cohort for *_, cohort in two]


@pytest.mark.parametrize("name", SELECTORS)
@settings(max_examples=15, deadline=None)
@given(federation=federations, stop=st.integers(1, 3))
def test_a_resumed_run_is_the_same_bit_for_bit(name, federation, stop):
    whole, one = run(SELECTORS[name], federation, list)
    resumed, two = run(SELECTORS[name], federation, list, stop)
    assert [cohort for *_, cohort in one] == [cohort for *_, cohort in two]
    assert whole.to_bytes() == resumed.to_bytes()


@pytest.mark.parametrize("name", SELECTORS)
def test_one_client(name):
    scheduler, fake = SELECTORS[name](), FakeClients(["only"])
    for server_round in range(5):
        cohort = fake.run_round(scheduler, server_round, 3)
        assert set(cohort.clients) <= {"only"}
        if scheduler.fixed_size:
            assert cohort.clients == ("only",)


@pytest.mark.parametrize("name", SELECTORS)
def test_the_seed_is_the_only_source_of_randomness(name):
    fake = FakeClients(range(20))
    cohorts = []
    for seed in (0, 0, 1, 2, 3):
        scheduler = SELECTORS[name](seed=seed)
        cohorts.append([fake.run_round(scheduler, r, 4).clients for r in range(3)])
    assert cohorts[0] == cohorts[1]


@pytest.mark.parametrize("name", SELECTORS)
def test_settings_are_in_the_repr_and_the_family_is_known(name):
    scheduler = SELECTORS[name]()
    assert eval(repr(scheduler), vars(adcs)).seed == scheduler.seed
    assert scheduler.family in {"random", "loss", "norm", "time", "diversity", "mixed"}
