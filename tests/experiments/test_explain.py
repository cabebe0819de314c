"""Why a greedy search chose what it chose, and how that is told."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from adcs._types import ClientId
from adcs.dpp.constraints import Constraints
from adcs.dpp.explain import explain
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import similarity, unit_rows
from adcs.experiments.replay import Choice, look
from adcs.experiments.why import at_random, sentence, tables
from adcs.reports.report import ClientReport
from adcs.schedulers import ADCS, DivFL, LiveADCS, PowerOfChoice, Uniform
from adcs.schedulers.base import Cohort, Scheduler
from adcs.schedulers.live_adcs import standardised_loss


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
    assert miss.lacked == "quality"


def test_places_that_were_given_measure_nobody() -> None:
    quality = [0.0, 3.0, 2.0]  # row 0 was let in whatever its score, then row 1 won
    (miss,) = explain(np.eye(3), [0, 1], quality, theta=0.5).left_out
    assert (miss.step, miss.lacked) == (0, "nothing")
    (miss,) = explain(np.eye(3), [0, 1], quality, theta=0.5, given=[0]).left_out
    assert (miss.step, miss.winner, miss.lacked) == (1, 1, "quality")


def test_a_near_copy_lacks_diversity() -> None:
    c = [[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 1.0]]
    (miss,) = explain(c, [0, 2], quality=[1.0, 0.9, 0.5], theta=0.5).left_out
    assert (miss.row, miss.nearest, miss.similarity) == (1, 0, 0.99)
    assert miss.step == 0  # only 0.05 behind there, for its quality
    assert miss.lacked == "quality"
    (miss,) = explain(c, [0, 2], quality=[1.0, 1.0, 0.5], theta=0.5).left_out
    assert miss.step == 1  # pick 0 was a tie
    assert miss.lacked == "diversity"


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
    (miss,) = explain(np.eye(3), selection.indices, [3.0, 2.0, 1.0], 0.5).left_out
    assert (miss.row, miss.lacked) == (1, "nothing")


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

    def quality(losses: np.ndarray, variances: np.ndarray, unanswered: np.ndarray) -> np.ndarray:
        q = standardised_loss(losses, variances, unanswered)
        seen.append(dict(zip(clients, q.tolist(), strict=True)))
        return q

    scheduler.quality = quality
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
        found.append((look(scheduler, clients, cohort), seen[-1]))
        scheduler.observe(now, reports(c for c in cohort.clients if c != 0), "training")
    return found


def test_a_live_choice_is_explained_by_what_was_known_before_it() -> None:
    for choice, q in live_rounds(LiveADCS(patience=None), rounds=12):
        why = choice.explanation
        assert why is not None
        parts = [*why.picks, *why.left_out]
        assert {choice.known[part.row]: part.quality for part in parts} == q
        gains = [gain for _, gain in choice.cohort.diagnostics["gains"]]
        np.testing.assert_allclose([pick.gain for pick in why.picks], gains, atol=1e-9)
        for miss in why.left_out:
            assert miss.score.total <= miss.winning.total + 1e-9


def test_a_place_for_waiting_is_not_said_to_be_won() -> None:
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
            if row[3].endswith(", waited") and row[7] == "nothing":
                assert "that place went to" in told
                assert "a cap" not in told


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
    assert (row["in score"], row["lacked"]) == ("0.248 ahead", "nothing")
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
    choice = look(scheduler, range(4), scheduler.select(0, range(4), 3))
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
    choice = look(scheduler, range(3), scheduler.select(0, range(3), 2))
    assert choice.explanation is not None
    assert [pick.row for pick in choice.explanation.picks] == [2, 0]
    assert choice.explanation.left_out[0].winner == 0


def test_nobody_is_its_own_nearest() -> None:
    scheduler = DivFL()
    rows = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]
    reports = [ClientReport(c, 0, update=row) for c, row in enumerate(rows)]
    scheduler.observe(0, reports, "probe")
    choice = look(scheduler, range(4), scheduler.select(0, range(4), 2))
    assert all(client != other for client, (other, _) in choice.nearest.items())
    first, second = choice.cohort.clients
    assert choice.nearest[first][0] == second


@pytest.mark.parametrize("kind", [ADCS, LiveADCS, DivFL, PowerOfChoice])
def test_without_a_report_it_is_a_draw(kind: type[Scheduler]) -> None:
    scheduler = kind()
    choice = look(scheduler, range(6), scheduler.select(0, range(6), 2))
    assert tables(choice) == []
    assert at_random(choice).startswith("It had no usable report of anybody")
    for client in range(6):
        how = "got its place by a seeded draw" if client in choice.cohort.clients else "not drawn"
        assert how in sentence(choice, client)
        assert "this scheduler chooses at random" not in sentence(choice, client)


def test_places_may_all_go_to_strangers() -> None:
    scheduler = ADCS()
    scheduler.observe(0, [ClientReport(0, 0, loss=1.0, update=[1.0, 0.0])], "probe")
    choice = look(scheduler, range(6), scheduler.select(0, range(6), 1))
    assert choice.cohort.clients != (0,)
    assert "All places went to clients without a usable report" in at_random(choice)
    uniform = Uniform()
    choice = look(uniform, range(6), uniform.select(0, range(6), 1))
    assert at_random(choice).startswith("This scheduler chooses at random")


def test_who_was_not_asked_and_who_is_required() -> None:
    scheduler = PowerOfChoice(candidates=2)
    request = scheduler.request(0, range(6), 1)
    reports = [ClientReport(c, 0, loss=1.0 + c) for c in request.clients]
    scheduler.observe(0, reports, "probe")
    choice = look(scheduler, range(6), scheduler.select(0, range(6), 1))
    stranger = next(c for c in range(6) if c not in request.clients)
    assert "it was not asked, or it did not answer" in sentence(choice, stranger)
    sure = Uniform(required=[4])
    choice = look(sure, range(6), sure.select(0, range(6), 2))
    assert "because it is required" in sentence(choice, 4)
