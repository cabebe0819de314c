"""PowerOfChoice."""

from __future__ import annotations

import adcs


def test_all_clients_are_asked_for_losses():
    request = adcs.PowerOfChoice().request(3, range(6), 2)
    assert request.clients == tuple(range(6))
    assert request.signals == {"loss"}


def test_candidates_are_drawn_by_size_without_replacement():
    scheduler = adcs.PowerOfChoice(candidates=4)
    sizes = [adcs.ClientReport(c, 0, examples=1 if c < 8 else 1000) for c in range(10)]
    scheduler.observe(0, sizes, "enrolment")
    asked = [scheduler.request(r, range(10), 2).clients for r in range(50)]
    assert all(len(set(a)) == 4 for a in asked)
    assert sum(8 in a and 9 in a for a in asked) > 45


def test_only_answers_of_this_round_are_ranked():
    scheduler = adcs.PowerOfChoice()
    scheduler.observe(0, [adcs.ClientReport(9, 0, loss=99.0)], "probe")
    scheduler.observe(1, [adcs.ClientReport(c, 1, loss=c) for c in (1, 2, 3)], "probe")
    assert scheduler.select(1, [1, 2, 3, 9], 2).clients == (3, 2)


def test_training_losses_are_not_ranked():
    scheduler = adcs.PowerOfChoice()
    scheduler.observe(0, [adcs.ClientReport(1, 0, loss=99.0)], "training")
    scheduler.observe(0, [adcs.ClientReport(c, 0, loss=1.0) for c in (2, 3)], "probe")
    assert set(scheduler.select(0, [1, 2, 3], 2).clients) == {2, 3}
