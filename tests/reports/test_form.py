"""The form of updates, and the vote on it."""

from __future__ import annotations

import numpy as np
import pytest

from adcs._serialization import pack, unpack
from adcs.reports.form import Form, FormVote, check_compatible
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketch, Sketcher


def whole(size: int) -> Form:
    return Form(False, size, size)


def test_a_client_has_one_vote() -> None:
    vote = FormVote()
    assert vote.update({"a": whole(3), "b": whole(3)}) == whole(3)
    assert vote.update({"a": whole(50)}) == whole(3)
    assert vote.update({"b": whole(50)}) == whole(50)


def test_the_smallest_form_wins_a_tie_of_first_votes() -> None:
    for order in ([("a", 5), ("b", 7)], [("b", 7), ("a", 5)]):
        assert FormVote().update({c: whole(n) for c, n in order}) == whole(5)


def test_a_vote_is_restored() -> None:
    vote, restored = FormVote(), FormVote()
    vote.update({"a": whole(3), "b": whole(50), 7: whole(50)})
    restored.restore(unpack(pack(vote.state())))
    assert restored.form == whole(50)
    for each in (vote, restored):
        assert each.update({"b": whole(3)}) == whole(3)


def test_sketches_of_unknown_updates_agree_with_any() -> None:
    unknown, known = Form(True, 8, 0), Form(True, 8, 100)
    assert unknown.agrees(known)
    assert known.agrees(unknown)
    assert not known.agrees(Form(True, 8, 101))
    assert not known.agrees(Form(False, 8, 8))


@pytest.mark.parametrize(
    ("report", "form", "sketcher", "reason"),
    [
        ({"update": np.ones(5)}, whole(5), None, None),
        ({"update": np.ones(5)}, whole(6), None, "update must have 6 numbers, got 5"),
        ({"loss": 1.0}, whole(6), None, None),
        ({"update": np.ones(8)}, Form(True, 8, 8), None, "must be a sketch of one, got a whole"),
        ({"update": np.ones(5)}, Form(True, 8, 5), Sketcher(size=8), None),
        ({"update": np.ones(5)}, Form(True, 8, 6), Sketcher(size=8), "update must have 6"),
        ({"sketch": Sketch(np.ones(8), 1.0, 5)}, Form(True, 8, 6), None, "of an update of 6"),
        ({"sketch": Sketch(np.ones(9), 1.0, 5)}, Form(True, 8, 5), None, "sketch must have 8"),
    ],
)
def test_reasons_for_updates_of_another_form(report, form, sketcher, reason) -> None:
    found = check_compatible(ClientReport(1, 0, **report), form, sketcher)
    assert found is None if reason is None else reason in found
