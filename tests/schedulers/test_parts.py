"""The parts that schedulers are made of, each against what can be worked out by hand."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import warnings

import numpy as np
import pytest

import adcs.dpp
import adcs.reports
import adcs.schedulers
from adcs._serialization import pack
from adcs.dpp.constraints import Constraints
from adcs.dpp.greedy import greedy_map_features
from adcs.dpp.kernel import as_similarity, as_table, unit_rows
from adcs.dpp.sampling import _sample_projection, log_probability
from adcs.reports.majority import Majority
from adcs.reports.quality import qualities, read
from adcs.reports.report import ClientReport
from adcs.reports.store import ReportStore
from adcs.schedulers import Cohort, Scheduler
from adcs.schedulers.live_adcs import kernel as live_kernel
from adcs.schedulers.live_adcs.kernel import LiveKernel
from adcs.schedulers.live_adcs.loss_tracker import MEMORY, LossTracker
from adcs.schedulers.live_adcs.probe_budget import ProbeBudget
from adcs.schedulers.ocs import optimal_probabilities
from adcs.schedulers.sampling import example_counts


def heard(rounds=(0, 3)):
    """LossTracker of twelve clients, all heard in each of these rounds."""
    tracker, rng = LossTracker(), np.random.default_rng(0)
    for server_round in rounds:
        tracker.update(np.arange(12), 2.0 + rng.normal(size=12), server_round)
    return tracker


@pytest.mark.parametrize("later", [4, 7, 20])
def test_a_report_counts_by_how_old_the_belief_is(later):
    tracker = heard()
    clients, said = np.array([2, 5]), np.array([1.0, 4.0])
    loss, at_once = tracker.loss.copy(), tracker.variance(3)
    tracker.update(clients, said, later)
    noise, drift = tracker.noise
    before = at_once[clients] + drift * (later - 3)
    gain = before / (before + noise)
    np.testing.assert_allclose(tracker.loss[clients], loss[clients] + gain * (said - loss[clients]))
    np.testing.assert_allclose(tracker.variance(later)[clients], (1.0 - gain) * before)
    assert tracker.heard[clients].tolist() == [later, later]
    others = np.setdiff1d(np.arange(12), clients)
    np.testing.assert_array_equal(tracker.loss[others], loss[others])
    np.testing.assert_allclose(
        tracker.variance(later)[others], at_once[others] + drift * (later - 3)
    )


def test_an_overdrawn_budget_grants_nothing():
    budget = ProbeBudget(share=0.0)
    assert budget.grant(0, ["a", "b", "c"], seen=3) == ["a", "b", "c"]
    assert budget.grant(1, ["d", "e", "f"], seen=1) == []


def test_without_a_matrix_cosines_are_left_to_the_rows(monkeypatch):
    monkeypatch.setattr(live_kernel, "GRAM_LIMIT", 2)
    kernel = LiveKernel()
    kernel.put(np.arange(3), np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), np.ones(3))
    assert kernel.cosines(np.arange(3)) is None
    assert kernel.cosines(np.array([0, 2])) is None
    np.testing.assert_allclose(kernel.rows(np.array([1])), [[0.6, 1.0, 0.8]])


def test_norms_of_zero_share_what_the_others_leave():
    np.testing.assert_allclose(
        optimal_probabilities(np.array([0.0, 5.0, 0.0, 0.0]), 2), [1 / 3, 1, 1 / 3, 1 / 3]
    )


def test_every_new_cohort_is_checked():
    class Lapsing(Scheduler):
        def _select(self, server_round, clients, m):
            return Cohort.of(clients[:m] if server_round == 0 else [clients[0]] * m)

    scheduler, available = Lapsing(), ("a", "b", "c")
    assert scheduler.select(0, available, 2).clients == ("a", "b")
    with pytest.raises(ValueError, match="distinct clients"):
        scheduler.select(1, available, 2)


@pytest.mark.parametrize("rows", [[0.5], [[0, 1]], ["0"], [[0.5]]])
@pytest.mark.parametrize("name", ["required", "candidates"])
def test_rows_are_named_by_a_list_of_whole_numbers(name, rows):
    with pytest.raises(ValueError, match=f"{name} must be a list of row indices"):
        Constraints(**{name: rows}).resolve(3, 1)


def test_the_first_client_that_does_not_tell_is_named():
    reports = [ClientReport(c, 0, loss=1.0 if c == "a" else None) for c in "abc"]
    with pytest.raises(ValueError, match="client 'b' does not tell its loss"):
        qualities(reports)


def test_each_quality_is_read_off_its_own_field():
    report = ClientReport(1, 0, loss=2.0, norm=3.0, examples=40, communication_seconds=5.0)
    read_off = {name: read(report, name) for name in ("loss", "norm", "examples", "communication")}
    assert read_off == {"loss": 2.0, "norm": 3.0, "examples": 40.0, "communication": -5.0}


@pytest.mark.parametrize("wrong", [2.5, True, 0, -1])
def test_rounds_between_probes_are_a_whole_number(wrong):
    with pytest.raises(ValueError, match="refresh_every must be a whole number >= 1"):
        adcs.ADCS(refresh_every=wrong)


def test_a_round_goes_on_after_a_restore():
    rng, clients = np.random.default_rng(0), tuple(range(8))

    def told(server_round, names):
        return [
            ClientReport(c, server_round, loss=rng.random(), update=rng.normal(size=5))
            for c in names
        ]

    first, second = adcs.LiveADCS(), adcs.LiveADCS()
    first.request(0, clients, 3)
    first.observe(0, told(0, clients), "probe")
    cohort = first.select(0, clients, 3).clients
    second.restore(first.state())
    replies = told(0, cohort)
    for scheduler in (first, second):
        scheduler.observe(0, replies, "training")
    assert pack(second.state()) == pack(first.state())
    assert second.select(1, clients, 3) == first.select(1, clients, 3)


def test_the_row_furthest_from_length_one_is_named():
    with pytest.raises(ValueError, match=r"row 1 has norm 0\.5"):
        greedy_map_features([[1.0, 0.0], [0.5, 0.0]], 1, unit=True)


def test_who_told_no_size_counts_as_the_mean_of_those_with_examples():
    book = ReportStore()
    book.record([ClientReport(c, 0, examples=n) for c, n in (("a", 0), ("b", 10), ("c", 20))])
    assert example_counts(book, ["a", "b", "c", "d"]).tolist() == [0.0, 10.0, 20.0, 15.0]


def test_a_reply_dated_ahead_counts_as_one_of_this_round():
    rng, clients = np.random.default_rng(1), tuple(range(6))
    updates, losses = rng.normal(size=(3, 6, 4)), rng.random((3, 6))
    believed = []
    for ahead in (0, 7):
        scheduler = adcs.LiveADCS()
        for server_round in range(3):
            scheduler.observe(
                server_round,
                [
                    ClientReport(
                        c,
                        server_round + ahead,
                        loss=losses[server_round, c],
                        update=updates[server_round, c],
                    )
                    for c in clients
                ],
                "training",
            )
            scheduler.select(server_round, clients, 3)
        believed.append(scheduler.loss_tracker.state())
    for name, value in believed[0].items():
        np.testing.assert_array_equal(value, believed[1][name])
    assert believed[0]["_fallen"].any() or believed[0]["_slope"].any()


def test_training_moves_what_is_believed_of_everybody_and_a_probe_does_not():
    rng, clients = np.random.default_rng(2), tuple(range(6))

    def told(server_round, names):
        return [
            ClientReport(c, server_round, loss=rng.random(), update=rng.normal(size=4))
            for c in names
        ]

    scheduler = adcs.LiveADCS()
    scheduler.observe(0, told(0, clients), "probe")
    cohort = scheduler.select(0, clients, 3)
    assert not scheduler.loss_tracker.state()["_fallen"].any()
    scheduler.observe(1, told(1, cohort.clients), "probe")
    assert not scheduler.loss_tracker.state()["_fallen"].any()
    scheduler.observe(1, told(1, cohort.clients), "training")
    weights = np.array(cohort.weights) / sum(cohort.weights)
    products = scheduler.live.products(np.array(cohort.clients))
    np.testing.assert_allclose(scheduler.loss_tracker.state()["_fallen"], weights @ products)


def test_norms_that_are_all_zero_share_the_places():
    assert optimal_probabilities(np.zeros(4), 2).tolist() == [0.5] * 4


def test_where_nobody_is_known_all_count_the_same():
    cohort = adcs.ADCS().select(0, range(5), 2)
    assert cohort.weights == (1.0, 1.0)


def test_weights_whose_squares_leave_the_range_are_refused():
    with pytest.raises(ValueError, match="quality is too large"):
        log_probability(np.eye(2), [0], quality=[1.2e308, 0.0], theta=2 / 3)


def test_losses_have_no_unit():
    def run(unit):
        rng, clients = np.random.default_rng(5), tuple(range(12))
        losses, updates = np.linspace(1.0, 2.0, 12), rng.normal(size=(12, 20))
        scheduler = adcs.LiveADCS(probe_share=0.2, refresh_every=None, patience=None)
        seen = []
        for server_round in range(60):
            losses = np.abs(losses + rng.normal(0.0, 0.3, 12))
            told = [
                ClientReport(c, server_round, unit * losses[c], update=updates[c]) for c in clients
            ]
            asked = scheduler.request(server_round, clients, 3).clients
            scheduler.observe(server_round, [told[c] for c in asked], "probe")
            chosen = scheduler.select(server_round, clients, 3).clients
            scheduler.observe(server_round, [told[c] for c in chosen], "training")
            seen.append((asked, chosen))
        return seen

    usual = run(1.0)
    assert sum(len(asked) for asked, _ in usual) > 15  # some are asked again
    assert run(2.0**-8) == usual
    assert run(2.0**8) == usual


@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_a_similarity_is_square(shape):
    with pytest.raises(
        ValueError, match=re.escape(f"similarity must be square, got shape {shape}")
    ):
        as_similarity(np.ones(shape))


@pytest.mark.parametrize("wrong", [None, 3.0, object()])
def test_what_has_no_rows_is_no_table(wrong):
    with pytest.raises(ValueError, match="updates must be"):
        as_table(wrong)


def test_who_changes_its_mind_counts_once():
    length = Majority[int]()
    assert length.settle({"a": 3, "b": 3}) == 3
    assert length.settle({"a": 50}) == 3
    assert length.settle({"b": 50}) == 50


def test_a_row_that_was_drawn_is_not_drawn_again():
    class Recording:
        """Takes the likeliest row, and keeps what each was offered with."""

        def __init__(self):
            self.offers = []

        def choice(self, n, p):
            self.offers.append(p)
            return int(p.argmax())

    for seed in range(5):
        rng = Recording()
        vectors = np.linalg.qr(np.random.default_rng(seed).normal(size=(9, 6)))[0]
        picks = _sample_projection(vectors, rng)
        drawn = [int(p.argmax()) for p in rng.offers]
        assert sorted(drawn) == picks.tolist()
        for step, p in enumerate(rng.offers):
            assert (p[drawn[:step]] == 0.0).all()
            assert p.sum() == pytest.approx(1.0)


def test_what_was_learned_fades():
    seen = heard(rounds=(0, 1, 2, 3)).state()["_surprise"]
    assert seen[0] == pytest.approx(12 * (1 + MEMORY + MEMORY**2))
    assert 0.99 < MEMORY < 1.0


def test_a_row_named_twice_is_the_one_in_the_message():
    with pytest.raises(ValueError, match="required must be distinct, got 2 more than once"):
        Constraints(required=[1, 2, 2]).resolve(4, 3)


def test_divfl_probes_every_twenty_rounds():
    scheduler = adcs.DivFL()
    scheduler.observe(0, [ClientReport(c, 0, update=[1.0, c]) for c in range(3)], "probe")
    asked = [
        server_round
        for server_round in range(1, 61)
        if scheduler.request(server_round, range(3), 2).clients
    ]
    assert asked == [20, 40, 60]


@pytest.mark.parametrize("package", [adcs.dpp, adcs.schedulers, adcs.reports])
def test_values_cannot_be_changed_once_made(package):
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for kind in vars(importlib.import_module(found.name)).values():
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                assert kind.__dataclass_params__.frozen, kind


def test_rows_too_short_for_an_inverse_keep_their_direction():
    unit = unit_rows([[3e-310, 4e-310], [3.0, 4.0]])
    np.testing.assert_allclose(unit, [[0.6, 0.8], [0.6, 0.8]], rtol=1e-12)


def test_a_similarity_is_checked_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_similarity(np.eye(37))
