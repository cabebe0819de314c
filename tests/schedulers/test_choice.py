"""What a scheduler knew when it chose a cohort."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import adcs
from adcs.schedulers.base import Cohort
from adcs.schedulers.choice import Choice, as_record, explain_choice, from_record
from adcs.testing import FakeClients


@pytest.mark.parametrize(
    "make",
    [partial(adcs.ADCS, theta=0.6), adcs.StaticDPP, partial(adcs.LiveADCS, patience=None)],
)
@pytest.mark.parametrize("settings", [{}, {"groups": {c: c % 3 for c in range(12)}, "caps": 3}])
def test_a_choice_beside_pending_clients_is_explained(make, settings, probed) -> None:
    rng = np.random.default_rng(0)
    scheduler = probed(
        make(required=[5], **settings), 0, rng.normal(size=(12, 14)), rng.uniform(1, 2, 12)
    )
    cohort = scheduler.select(0, range(12), 4, pending=[2, 5, 9])
    assert cohort.diagnostics["pending"] == [2, 5, 9]
    choice = explain_choice(scheduler, range(12), cohort)
    found = choice.explanation
    assert found is not None
    assert tuple(choice.known[pick.row] for pick in found.picks) == cohort.clients
    gains = [gain for _, gain in cohort.diagnostics["gains"]]
    np.testing.assert_allclose([pick.gain for pick in found.picks], gains, atol=1e-9)
    left_out = {choice.known[miss.row] for miss in found.left_out}
    assert left_out == set(range(12)) - set(cohort.clients) - {2, 5, 9}
    assert all(0 <= miss.step < 4 for miss in found.left_out)
    assert from_record(as_record(choice), cohort) == choice


def test_the_signal_of_a_ranking_is_named() -> None:
    for scheduler, name in ((adcs.PowerOfChoice(), "loss"), (adcs.OCS(), "norm")):
        reports = [adcs.ClientReport(c, 0, loss=1.0 + c, norm=9.0 - c) for c in range(4)]
        scheduler.observe(0, reports, "probe")
        choice = explain_choice(scheduler, range(4), scheduler.select(0, range(4), 2))
        assert choice.ranked_by == name
        assert choice.scores == {c: getattr(reports[c], name) for c in range(4)}


def test_more_pending_clients_than_their_group_may_have_are_no_obstacle() -> None:
    groups = {c: c % 2 for c in range(12)}
    scheduler = adcs.LiveADCS(groups=groups, caps={0: 2})
    fake = FakeClients(range(12))
    request = scheduler.request(0, range(12), 4)
    scheduler.observe(0, fake.answer(0, request), "probe")
    cohort = scheduler.select(0, range(12), 4, pending=[0, 2, 4])
    choice = explain_choice(scheduler, [1, 3, 5, 6, 7, 8, 9, 10, 11], cohort)
    assert choice.explanation is not None
    assert all(client % 2 for client in cohort.clients)


def test_a_choice_among_nobody_goes_through_its_record() -> None:
    choice = Choice(Cohort((), ()), ())
    assert from_record(as_record(choice), choice.cohort) == choice
