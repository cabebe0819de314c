"""Why a greedy search chose what it chose, and how that is told."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adcs._types import ClientId
from adcs.dpp.constraints import Constraints
from adcs.dpp.explain import explain
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import similarity, unit_rows
from adcs.experiments.explain import at_random, sentence, tables
from adcs.reports.report import ClientReport
from adcs.run_folder import plain
from adcs.schedulers import ADCS, DivFL, LiveADCS, PowerOfChoice, Uniform
from adcs.schedulers.base import Cohort, Scheduler
from adcs.schedulers.choice import Choice, as_record, explain_choice, from_record


def kernel(n: int, d: int, seed: int) -> np.ndarray:
    return similarity(unit_rows(np.random.default_rng(seed).normal(size=(n, d))))


def test_three_rows_by_hand() -> None:
    # Row 1 is best; row 0 is like it (0.6), row 2 at right angles but poor.
    c = [[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]]
    why = explain(c, [1, 0], quality=[2.0, 3.0, 0.5], theta=0.5)
    first, second = why.picks
    assert (first.row, first.quality, first.gain) == (1, 3.0, 1.5)
    assert second.score.quality == 1.0
    assert second.score.diversity == pytest.approx(0.5 * math.log(1 - 0.36))
    assert second.gain == pytest.approx(1.0 + 0.5 * math.log(0.64))
    assert (second.nearest, second.similarity) == (1, 0.6)
    (miss,) = why.left_out
    # At pick 0 it is 1.5 - 0.25 behind, at pick 1 only 0.777 - 0.25.
    assert (miss.row, miss.step, miss.winner) == (2, 1, 0)
    assert miss.score.total == pytest.approx(0.25)
    assert miss.winning.total == pytest.approx(second.gain)
    assert (miss.reason, miss.with_quality) == ("quality", True)


def test_places_that_were_given_measure_nobody() -> None:
    quality = [0.0, 3.0, 2.0]  # row 0 was let in whatever its score, then row 1 won
    rules = Constraints(required=[0])
    (miss,) = explain(np.eye(3), [0, 1], quality, theta=0.5, constraints=rules).left_out
    assert (miss.step, miss.winner, miss.reason) == (1, 1, "rules")


@pytest.mark.parametrize("quality", [0.9, 1.0])
def test_a_near_copy_is_redundant(quality: float) -> None:
    c = [[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 1.0]]
    (miss,) = explain(c, [0, 2], quality=[1.0, quality, 0.5], theta=0.5).left_out
    assert (miss.row, miss.nearest, miss.similarity) == (1, 0, 0.99)
    # It is only 0.05 behind at pick 0, for its quality; but that is not what keeps it out.
    assert miss.step == (0 if quality < 1.0 else 1)
    assert miss.reason == "redundant"


def test_the_next_best_is_not_redundant() -> None:
    """It would be let in without any of the chosen, for the place that leaves."""
    left_out = explain(np.eye(4), [0, 1], quality=[3.0, 2.0, 1.0, 0.5], theta=0.5).left_out
    assert [miss.reason for miss in left_out] == ["quality", "quality"]


def test_a_tie_and_too_many_alike() -> None:
    assert [miss.reason for miss in explain(np.eye(4), [0, 1]).left_out] == ["tie", "tie"]
    # Row 2 is in the plane of rows 0 and 1: leaving out one of them does not help.
    c = similarity(unit_rows([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.01, 0.0], [0.0, 0.0, 1.0]]))
    (miss,) = explain(c, [0, 1, 3], quality=[1.0, 1.0, 0.9, 0.8], theta=0.1).left_out
    assert (miss.nearest, miss.reason, miss.with_quality) == (1, "several", False)
    # Even with a direction of its own it would come after those three.
    (miss,) = explain(c, [0, 1, 3], quality=[1.0, 1.0, 0.9, 1.0], theta=0.1).left_out
    assert (miss.nearest, miss.reason, miss.with_quality) == (1, "quality", False)
    # One place: a quality that ties does not win it, but quality is all that was compared.
    left_out = explain(np.eye(3), [0], quality=[2.0, 1.0, 1.0], theta=0.5).left_out
    assert [miss.reason for miss in left_out] == ["quality", "quality"]


@st.composite
def searches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float, int, Constraints]:
    """Return a small problem, with copies, opposite rows and ties more often than not."""
    n = draw(st.integers(3, 8))
    d = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.normal(size=(n, d))
    if draw(st.booleans()):
        rows = rows[rng.integers(0, n, size=n)] * rng.choice([-1.0, 1.0], size=(n, 1))
        rows = rows + draw(st.sampled_from([0.0, 0.1])) * rng.normal(size=(n, d))
    coarse = rng.integers(0, 4, size=n).astype(float)
    quality = coarse if draw(st.booleans()) else rng.gamma(1.0, size=n)
    theta = draw(st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]))
    m = draw(st.integers(1, n - 1))
    kind = draw(st.sampled_from(["none", "required", "caps", "candidates", "all"]))
    required = rng.permutation(n)[: rng.integers(0, m + 1)].tolist()
    candidates = np.union1d(required, rng.permutation(n)[: rng.integers(m, n + 1)]).astype(int)
    groups = rng.integers(0, 3, size=n).tolist()
    caps: int | dict = {0: int(rng.integers(0, n)), 1: int(rng.integers(1, n))}
    caps = int(rng.integers(1, n)) if draw(st.booleans()) else caps
    everything = {"required": required, "candidates": candidates, "groups": groups, "caps": caps}
    parts = {
        "none": [],
        "required": ["required"],
        "caps": ["groups", "caps"],
        "candidates": ["candidates"],
        "all": list(everything),
    }[kind]
    constraints = Constraints(**{part: everything[part] for part in parts})
    try:
        constraints.resolve(n, m)
    except ValueError:
        assume(False)
    return similarity(unit_rows(rows)), quality, theta, m, constraints


def really(c, m, q, theta, constraints) -> set[int]:
    """Run the search; nobody is chosen where the constraints cannot be met."""
    try:
        return set(
            greedy_map(c, m, quality=q, theta=theta, constraints=constraints).indices.tolist()
        )
    except ValueError:
        return set()


@given(searches())
@settings(max_examples=600, deadline=None)
def test_reasons_are_what_the_search_would_do(problem) -> None:
    c, q, theta, m, constraints = problem
    n = len(c)
    indices = greedy_map(c, m, quality=q, theta=theta, constraints=constraints).indices
    chosen = set(indices.tolist())
    why = explain(c, indices, q, theta, constraints=constraints)
    assert {miss.row for miss in why.left_out} == set(range(n)) - chosen
    allowed = set(range(n) if constraints.candidates is None else constraints.candidates.tolist())
    for miss in why.left_out:
        row, near = miss.row, miss.nearest
        assert abs(c[row, near]) >= np.abs(c[row, indices]).max() - 1e-12
        others = [i for i in range(n) if i != row]

        def reordered(order: list[int], row: int = row) -> tuple[np.ndarray, Constraints]:
            place = {old: new for new, old in enumerate(order)}
            return c[np.ix_(order, order)], Constraints(
                None if constraints.candidates is None else [place[i] for i in allowed],
                [place[i] for i in constraints.required],
                None if constraints.groups is None else [constraints.groups[i] for i in order],
                constraints.caps,
            )

        # With the best quality, and last, so that it loses ties.
        last, rules = reordered([*others, row])
        better = q[[*others, row]]
        better[-1] = q[indices].max()
        lifted = n - 1 in really(last, m, better, theta, rules)
        assert miss.with_quality == (lifted and better[-1] > q[row] and theta > 0.0)
        # First, so that ties go to it; then at right angles to all others.
        first, rules = reordered([row, *others])
        tied = 0 in really(first, m, q[[row, *others]], theta, rules)
        first[0] = first[:, 0] = 0.0
        first[0, 0] = 1.0
        apart = 0 in really(first, m, q[[row, *others]], theta, rules)
        free = row in really(c, m, q, theta, Constraints()) or row not in allowed
        free |= len(constraints.required) == m
        caps = constraints.caps
        if caps is not None:
            caps = {
                g: caps.get(g, n) if isinstance(caps, dict) else caps for g in constraints.groups
            }
            taken = [constraints.groups[i] for i in constraints.required]
            free |= taken.count(constraints.groups[row]) >= caps[constraints.groups[row]]
            caps[constraints.groups[near]] -= 1
        absent = replace(
            constraints,
            candidates=sorted(allowed - {near}),
            required=[i for i in constraints.required if i != near],
            caps=caps,
        )
        same = really(c, m, q, theta, absent)
        fewer = really(c, m - 1, q, theta, absent) if m > 1 else set()
        more = really(c, m + 1, q, theta, constraints)
        redundant = row in fewer or (row in same and row not in more)
        if constraints and free:
            assert miss.reason == "rules"
        elif redundant:
            assert miss.reason == "redundant"
        elif miss.with_quality:
            assert miss.reason == "quality"
        elif miss.reason == "tie":
            assert tied
        else:
            assert miss.reason == ("several" if apart else "quality")


@pytest.mark.parametrize("theta", [0.0, 0.3, 0.8, 0.99, 1.0])
def test_agrees_with_the_search(theta: float) -> None:
    c = kernel(30, 50, seed=1)
    q = np.random.default_rng(2).exponential(size=30)
    selection = greedy_map(c, 18, quality=q, theta=theta)
    why = explain(c, selection.indices, q, theta)
    assert [pick.row for pick in why.picks] == selection.indices.tolist()
    np.testing.assert_allclose([p.gain for p in why.picks], selection.gains, rtol=1e-8, atol=1e-12)
    assert len(why.left_out) == 12
    for miss in why.left_out:
        assert miss.score.total <= miss.winning.total + 1e-9
        assert miss.winner == selection.indices[miss.step]


def test_picks_without_a_direction_of_their_own() -> None:
    c = similarity(unit_rows(np.repeat(np.eye(3), 2, axis=0)))
    selection = greedy_map(c, 5)
    why = explain(c, selection.indices)
    assert selection.rank == 3
    gains = [pick.gain for pick in why.picks]
    np.testing.assert_array_equal(gains, selection.gains)
    assert gains[3:] == [-math.inf, -math.inf]
    assert [pick.similarity for pick in why.picks] == [1.0, 1.0, 0.0, 1.0, 1.0]


def test_a_cap_keeps_a_better_row_out() -> None:
    rules = Constraints(groups=["a", "a", "b"], caps={"a": 1})
    selection = greedy_map(np.eye(3), 2, quality=[3.0, 2.0, 1.0], theta=0.5, constraints=rules)
    why = explain(np.eye(3), selection.indices, [3.0, 2.0, 1.0], 0.5, constraints=rules)
    (miss,) = why.left_out
    assert (miss.row, miss.reason) == (1, "rules")


def test_the_other_way_round_counts_as_alike() -> None:
    c = similarity(unit_rows([[1.0, 0.0], [-1.0, 0.1], [0.3, 1.0]]))
    (miss,) = explain(c, [0, 2]).left_out
    assert miss.nearest == 0
    assert miss.similarity < -0.99


@pytest.mark.parametrize("indices", [[], [0, 0], [3], [-1], [0.5]])
def test_indices_are_checked(indices: list[int]) -> None:
    with pytest.raises(ValueError, match="indices must be"):
        explain(np.eye(3), indices)


def live_rounds(scheduler: LiveADCS, rounds: int) -> list[tuple[Choice, dict[ClientId, float]]]:
    """Choices of a scheduler whose first client never answers, each with the q it was made by."""
    rng = np.random.default_rng(0)
    clients = tuple(range(10))
    updates = unit_rows(rng.normal(size=(10, 6)))
    seen: list[dict[ClientId, float]] = []

    made = scheduler._quality

    def quality(server_round: int, known: list[ClientId]) -> np.ndarray:
        q = made(server_round, known)
        seen.append(dict(zip(known, q.tolist(), strict=True)))
        return q

    scheduler._quality = quality  # type: ignore[method-assign]
    found = []
    for now in range(rounds):

        def reports(who: Iterable[ClientId], now: int = now) -> list[ClientReport]:
            return [
                ClientReport(c, now, loss=float(rng.uniform(1, 2)), update=updates[int(c)])
                for c in who
            ]

        asked = scheduler.request(now, clients, 4).clients
        scheduler.observe(now, reports(asked), "probe")
        cohort = scheduler.select(now, clients, 4)
        found.append((explain_choice(scheduler, clients, cohort), seen[-1]))
        scheduler.observe(now, reports(c for c in cohort.clients if c != 0), "training")
    return found


def test_a_live_choice_is_explained_by_what_was_known_before_it() -> None:
    for choice, q in live_rounds(LiveADCS(patience=None, max_share=None), rounds=12):
        why = choice.explanation
        assert why is not None
        parts = [*why.picks, *why.left_out]
        assert {choice.known[part.row]: part.quality for part in parts} == q
        gains = [gain for _, gain in choice.cohort.diagnostics["gains"]]
        np.testing.assert_allclose([pick.gain for pick in why.picks], gains, atol=1e-9)
        for miss in why.left_out:
            assert miss.score.total <= miss.winning.total + 1e-9


def test_a_client_at_its_limit_is_said_to_be() -> None:
    found = [c for c, _ in live_rounds(LiveADCS(max_share=1.0), rounds=12) if c.limited]
    assert found
    for choice in found:
        assert not set(choice.limited) & set(choice.cohort.clients)
        for client in choice.available:
            said = "its share of slots" in sentence(choice, client)
            assert said == (client in choice.limited)


def test_a_place_for_waiting_is_not_said_to_be_won() -> None:
    words: set[str] = set()
    found = [c for c, _ in live_rounds(LiveADCS(patience=1.0), rounds=12) if c.waited]
    assert found
    for choice in found:
        chosen, left_out = tables(choice)
        marked = {row[0] for row in chosen[2] if row[1].endswith(", waited")}
        assert marked == {str(client) for client in choice.waited}
        for client in choice.cohort.clients:
            said = "for having waited too long" in sentence(choice, client)
            assert said == (client in choice.waited)
        for row in left_out[2]:
            told = sentence(choice, int(row[0]))
            assert row[7] != "rules"  # The page says "waiting", too.
            if row[7] == "waiting":
                words.add(row[7])
                assert "left out by a client that had waited too long" in told
                assert "a cap" not in told
    assert words


def test_who_is_behind_is_said_in_words() -> None:
    c = np.eye(3)
    c[0, 1] = c[1, 0] = 0.6
    quality = [1.0, 0.9, 0.95]
    choice = Choice(
        Cohort.of([0, 1]), (0, 1, 2), 0.5, (0, 1, 2), explain(c, [0, 1], quality, theta=0.5)
    )
    _, (_, heads, ((*cells,),)) = tables(choice)
    row = dict(zip(heads, cells, strict=True))
    # At pick 1 it is ahead in both: somebody else has decided there.
    assert (row["in θ q"], row["in (1-θ) log r²"]) == ("0.025 ahead", "0.223 ahead")
    assert row["in score"] == "0.248 ahead"
    assert not any(text.startswith("-0.000") for text in cells)


def test_no_minus_zero_in_a_table() -> None:
    c = np.eye(3)
    c[0, 1] = c[1, 0] = -1e-5
    why_not = explain(c, [0, 1], [1.0, 1.0, 0.5], theta=0.5)
    choice = Choice(Cohort.of([0, 1]), (0, 1, 2), 0.5, (0, 1, 2), why_not)
    cells = [cell for _, _, rows in tables(choice) for row in rows for cell in row]
    assert "-0.000" not in cells
    assert "-0.000" not in sentence(choice, 1)


def test_a_client_ranked_high_but_capped_lacks_nothing() -> None:
    scores = {0: 3.0, 1: 2.0, 2: 1.0}
    choice = Choice(Cohort.of([0, 2]), (0, 1, 2), scores=scores, ranked_by="loss")
    assert "a cap, a required client or a tie decided" in sentence(choice, 1)
    choice = Choice(Cohort.of([0, 1]), (0, 1, 2), scores=scores, ranked_by="loss")
    assert sentence(choice, 2).endswith("so it lacked 1.0000.")


def test_a_search_that_caps_made_start_afresh() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    scheduler = ADCS(theta=0.5, groups={0: "a", 1: "a", 2: "b", 3: "b"}, caps={"a": 1})
    reports = [ClientReport(c, 0, loss=1.0, update=row) for c, row in enumerate(rows)]
    scheduler.observe(0, reports, "probe")
    choice = explain_choice(scheduler, range(4), scheduler.select(0, range(4), 3))
    assert choice.explanation is not None
    picks = choice.explanation.picks
    assert [pick.row for pick in picks] == [0, 2, 3]
    assert picks[1].score.diversity == 0.0
    assert picks[1].gain == -math.inf


def test_required_clients_measure_nobody() -> None:
    scheduler = ADCS(theta=0.5, required=[2])
    losses = [3.0, 2.0, 0.1]
    reports = [ClientReport(c, 0, loss=x, update=np.eye(3)[c]) for c, x in enumerate(losses)]
    scheduler.observe(0, reports, "probe")
    choice = explain_choice(scheduler, range(3), scheduler.select(0, range(3), 2))
    assert choice.explanation is not None
    assert [pick.row for pick in choice.explanation.picks] == [2, 0]
    assert choice.explanation.left_out[0].winner == 0


def test_nobody_is_its_own_nearest() -> None:
    scheduler = DivFL()
    rows = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]
    reports = [ClientReport(c, 0, update=row) for c, row in enumerate(rows)]
    scheduler.observe(0, reports, "probe")
    choice = explain_choice(scheduler, range(4), scheduler.select(0, range(4), 2))
    assert all(client != other for client, (other, _) in choice.nearest.items())
    first, second = choice.cohort.clients
    assert choice.nearest[first][0] == second


@pytest.mark.parametrize("kind", [ADCS, LiveADCS, DivFL, PowerOfChoice])
def test_without_a_report_it_is_a_draw(kind: type[Scheduler]) -> None:
    scheduler = kind()
    choice = explain_choice(scheduler, range(6), scheduler.select(0, range(6), 2))
    assert tables(choice) == []
    assert at_random(choice).startswith("It had no usable report of anybody")
    for client in range(6):
        how = "got its slot at random" if client in choice.cohort.clients else "not drawn"
        assert how in sentence(choice, client)
        assert "this scheduler selects at random" not in sentence(choice, client)


def test_slots_may_all_go_to_unknown_clients() -> None:
    scheduler = ADCS()
    scheduler.observe(0, [ClientReport(0, 0, loss=1.0, update=[1.0, 0.0])], "probe")
    choice = explain_choice(scheduler, range(6), scheduler.select(0, range(6), 1))
    assert choice.cohort.clients != (0,)
    assert "All slots went to clients without a usable report" in at_random(choice)
    uniform = Uniform()
    choice = explain_choice(uniform, range(6), uniform.select(0, range(6), 1))
    assert at_random(choice).startswith("This scheduler selects at random")


def test_who_was_not_asked_and_who_is_required() -> None:
    scheduler = PowerOfChoice(candidates=2)
    request = scheduler.request(0, range(6), 1)
    reports = [ClientReport(c, 0, loss=1.0 + c) for c in request.clients]
    scheduler.observe(0, reports, "probe")
    choice = explain_choice(scheduler, range(6), scheduler.select(0, range(6), 1))
    stranger = next(c for c in range(6) if c not in request.clients)
    assert "it was not asked, or it did not answer" in sentence(choice, stranger)
    sure = Uniform(required=[4])
    choice = explain_choice(sure, range(6), sure.select(0, range(6), 2))
    assert "because it is required" in sentence(choice, 4)


def test_signs_of_similarities_are_said() -> None:
    scheduler = ADCS(theta=0.1)
    rows = np.eye(5)[[0, 0, 1, 1, 2]] * np.array([[1.0], [-1.0], [1.0], [1.0], [1.0]])
    rows[[1, 3], [3, 4]] = 0.2
    losses = [1.0, 1.0, 1.0, 1.0, 0.5]
    reports = [ClientReport(c, 0, loss=losses[c], update=rows[c]) for c in range(5)]
    scheduler.observe(0, reports, "probe")
    choice = explain_choice(scheduler, range(5), scheduler.select(0, range(5), 3))
    assert choice.cohort.clients == (0, 2, 4)
    assert "as redundant with 0 (similarity -0.981, opposite)" in sentence(choice, 1)
    assert "as redundant with 2 (similarity 0.981, similar)" in sentence(choice, 3)
    assert "the nearest selected client is 2 (similarity 0.000, unrelated)" in sentence(choice, 0)
    _, (_, heads, cells) = tables(choice)
    cells = dict(zip(heads, cells[0], strict=True))
    assert (cells["reason"], cells["similarity"]) == ("redundant with 0", "-0.981, opposite")


def test_a_small_cosine_is_neither_similar_nor_opposite() -> None:
    scheduler = ADCS(theta=0.1)
    rows = np.eye(3)[[0, 1, 0]]
    rows[1, 0] = -0.05
    reports = [ClientReport(c, 0, loss=1.0, update=rows[c]) for c in range(3)]
    scheduler.observe(0, reports, "probe")
    choice = explain_choice(scheduler, range(3), scheduler.select(0, range(3), 2))
    assert choice.cohort.clients == (0, 1)
    assert "(similarity -0.050, hardly alike)" in sentence(choice, 1)
    assert "(similarity 1.000, similar)" in sentence(choice, 2)


def choices() -> list[tuple[Choice, str, ClientId]]:
    """Return a choice for each reason there is, the reason in the table, and of whom."""
    found = []

    def choose(
        scheduler: ADCS,
        rows: np.ndarray,
        losses: list[float],
        m: int,
        reason: str,
        client: ClientId,
    ) -> None:
        n = len(rows)
        reports = [ClientReport(c, 0, loss=losses[c], update=rows[c]) for c in range(n)]
        scheduler.observe(0, reports, "probe")
        found.append(
            (explain_choice(scheduler, range(n), scheduler.select(0, range(n), m)), reason, client)
        )

    alike = np.array([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    choose(ADCS(theta=0.5), alike, [1.0, 0.9, 0.8, 0.1], 2, "redundant with 0", 1)
    choose(ADCS(theta=0.5), alike, [1.0, 0.9, 0.8, 0.1], 2, "quality", 3)
    choose(ADCS(theta=0.0), np.eye(4), [1.0] * 4, 2, "tie", 2)
    plane = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.01, 0.0], [0.0, 0.0, 1.0]])
    choose(ADCS(theta=0.1), plane, [1.0, 1.0, 0.9, 0.8], 3, "redundant with several", 2)
    choose(ADCS(theta=0.1), plane, [1.0, 1.0, 0.9, 1.0], 3, "quality", 2)
    groups = dict.fromkeys(range(3), "a")
    capped = ADCS(theta=0.5, groups=groups, caps={"a": 1})
    choose(capped, np.eye(4), [3.0, 2.0, 1.0, 0.5], 2, "rules", 1)
    choose(ADCS(theta=0.5, required=[3]), np.eye(4), [3.0, 2.0, 1.0, 0.5], 2, "rules", 1)
    return found


@pytest.mark.parametrize(("choice", "reason", "client"), choices())
def test_every_reason_has_its_words(choice: Choice, reason: str, client: ClientId) -> None:
    _, (_, heads, rows) = tables(choice)
    row = next(row for row in rows if row[0] == str(client))
    assert row[heads.index("reason")] == reason
    words = {"quality": "for its quality", "tie": "by a tie", "rules": "by a"}.get(reason, reason)
    told = sentence(choice, client)
    assert words in told
    if reason == "rules":
        assert ("a cap" in told) == choice.capped
        assert ("a required client" in told) == bool(choice.required)


def test_places_that_were_drawn_for_count_in_caps() -> None:
    """Group a has two places; one was drawn for, so the search had one."""
    scheduler = ADCS(theta=0.5, groups=dict.fromkeys(range(8), "a"), caps={"a": 2})
    losses = [4.0, 3.0, 2.0, 1.0]
    reports = [ClientReport(c, 0, loss=losses[c], update=np.eye(4)[c]) for c in range(4)]
    scheduler.observe(0, reports, "probe")
    for now in range(20):
        cohort = scheduler.select(now, range(8), 2)
        if len(cohort.diagnostics["drawn"]) == 1:
            break
    choice = explain_choice(scheduler, range(8), cohort)
    assert choice.explanation is not None
    assert [pick.row for pick in choice.explanation.picks] == [0]
    assert [miss.reason for miss in choice.explanation.left_out] == ["quality"] * 3


def some_choices() -> list[Choice]:
    live = [choice for choice, _ in live_rounds(LiveADCS(patience=1.0), rounds=8)]
    divfl, power = DivFL(), PowerOfChoice()
    rows = np.random.default_rng(0).normal(size=(6, 3))
    found = [*live, *[choice for choice, *_ in choices()]]
    for scheduler in (divfl, power, Uniform(), ADCS()):
        if not isinstance(scheduler, (Uniform, ADCS)):
            reports = [ClientReport(c, 0, loss=1.0 + c, update=rows[c]) for c in range(6)]
            scheduler.observe(0, reports, "probe")
        found.append(explain_choice(scheduler, range(6), scheduler.select(0, range(6), 2)))
    return found


def test_a_choice_survives_its_record() -> None:
    for choice in some_choices():
        record = json.loads(json.dumps(plain(as_record(choice)), allow_nan=False))
        again = from_record(record, choice.cohort)
        assert again == choice
        assert tables(again) == tables(choice)
        for client in choice.available:
            assert sentence(again, client) == sentence(choice, client)
