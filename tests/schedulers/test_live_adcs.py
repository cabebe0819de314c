"""LiveADCS: tracker, the kernel kept row by row, the budget, patience, units and lies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs._serialization import pack, unpack
from adcs.dpp.kernel import alpha, similarity, unit_rows
from adcs.reports.report import ClientReport
from adcs.schedulers.live_adcs import kernel as live_kernel
from adcs.schedulers.live_adcs.kernel import LiveKernel
from adcs.schedulers.live_adcs.loss_tracker import LossTracker
from adcs.testing import Crowd

# LossTracker.


def test_noise_and_drift_are_found_from_surprises() -> None:
    """Random walks seen through noise, every client now and then."""
    rng = np.random.default_rng(0)
    n, noise, drift = 40, 0.04, 0.001
    losses = rng.uniform(1.0, 2.0, n)
    tracker = LossTracker()
    errors, raw = [], []
    for server_round in range(1500):
        seen = (
            np.arange(n)
            if server_round == 0
            else np.sort(rng.permutation(n)[: rng.integers(2, 12)])
        )
        said = losses[seen] + rng.normal(0.0, noise**0.5, seen.size)
        tracker.update(seen, said, server_round)
        if server_round > 500:
            errors.append(float(((tracker.loss[seen] - losses[seen]) ** 2).mean()))
            raw.append(float(((said - losses[seen]) ** 2).mean()))
        losses += rng.normal(0.0, drift**0.5, n)
    found_noise, found_drift = tracker.noise
    # A surprise holds the variance of the belief too, which a filter at rest keeps well below.
    assert noise < found_noise < 1.7 * noise
    assert 0.3 * drift < found_drift < 2.0 * drift
    assert np.mean(errors) < 0.5 * np.mean(raw)


def test_losses_of_silent_clients_are_predicted() -> None:
    """Where losses are linear in the model, one scale makes the prediction exact."""
    rng = np.random.default_rng(1)
    n, d, rate = 8, 20, 0.05
    gradients = rng.normal(size=(n, d)) + 1.0
    model = np.zeros(d)
    tracker = LossTracker()
    tracker.update(np.arange(n), 100.0 + gradients @ model, 0)
    for server_round in range(1, 40):
        step = gradients[:3].mean(axis=0)
        model -= rate * step
        tracker.predict(gradients @ step)
        tracker.update(np.arange(3), 100.0 + gradients[:3] @ model, server_round)
    truth = 100.0 + gradients @ model
    # The very first step was taken before anything was known of the scale.
    missed = rate * (gradients[3:] @ gradients[:3].mean(axis=0))
    np.testing.assert_allclose(tracker.loss[3:] - missed, truth[3:], rtol=1e-9)


def test_a_lie_does_not_spoil_what_is_known_of_noise() -> None:
    rng = np.random.default_rng(2)
    tracker = LossTracker()
    tracker.update(np.arange(10), np.ones(10), 0)
    for server_round in range(1, 50):
        tracker.update(np.arange(10), 1.0 + rng.normal(0.0, 0.1, 10), server_round)
    before = tracker.noise
    tracker.update(np.arange(1), np.array([1e29]), 50)
    assert tracker.noise[0] < 1.2 * before[0]
    assert tracker.noise[1] < 2.0 * before[1]


# The kernel.


@settings(max_examples=30, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True), min_size=1, max_size=8
    ),
    limit=st.sampled_from([3, 2000]),
)
def test_row_by_row_is_the_kernel_rebuilt(batches: list[list[int]], limit: int) -> None:
    kept = live_kernel.GRAM_LIMIT
    live_kernel.GRAM_LIMIT = limit
    try:
        rng = np.random.default_rng(len(batches))
        kernel = LiveKernel()
        latest: dict[int, Any] = {}
        place: dict[int, int] = {}
        for batch in batches:
            clients = [place.setdefault(client, len(place)) for client in batch]
            rows = rng.normal(size=(len(clients), 9))
            norms = np.linalg.norm(rows, axis=1)
            kernel.put(np.array(clients), unit_rows(rows), norms)
            latest.update(zip(clients, rows, strict=True))
        table = np.array([latest[c] for c in range(len(latest))])
        everyone = np.arange(len(latest))
        np.testing.assert_allclose(kernel.products(everyone), table @ table.T, atol=1e-12)
        found = kernel.cosines(everyone)
        if len(latest) > limit:
            assert found is None
        else:
            assert found is not None
            np.testing.assert_allclose(found, similarity(unit_rows(table)), atol=1e-12)
            assert (found == found.T).all()
            assert (found.diagonal() == 1.0).all()
    finally:
        live_kernel.GRAM_LIMIT = kept


# The scheduler.


def rounds_of(scheduler: adcs.LiveADCS, crowd: Crowd, rounds: int, m: int) -> list[Any]:
    return [crowd.play(scheduler, server_round, m) for server_round in range(rounds)]


@settings(max_examples=40, deadline=None)
@given(
    share=st.sampled_from([0.0, 0.005, 0.05, 0.3]),
    refresh=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_the_budget_is_never_passed(share: float, refresh: int, seed: int) -> None:
    """Clients come, go and keep silent, rounds fall through, states are restored in between."""
    rng = np.random.default_rng(seed)
    crowd = Crowd(range(14))
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
        answers = [r for r in crowd.answer(server_round, request) if rng.random() < 0.7]
        scheduler.observe(server_round, answers, "probe")
        cohort = scheduler.select(server_round, [] if rng.random() < 0.1 else here, 4)
        trained += len(cohort.clients)
        replies = [crowd.report(server_round, c) for c in cohort.clients if rng.random() < 0.8]
        scheduler.observe(server_round, replies, "training")
    assert asked >= len(met)


def test_a_stranger_who_never_answers_does_not_eat_the_budget() -> None:
    crowd = Crowd(range(10))
    scheduler = adcs.LiveADCS(probe_share=0.2, refresh_every=10, patience=None)
    asked: Counter[Any] = Counter()
    for server_round in range(100):
        request = scheduler.request(server_round, [*range(10), 99], 3)
        asked.update(request.clients)
        alive = replace(request, clients=tuple(c for c in request.clients if c != 99))
        scheduler.observe(server_round, crowd.answer(server_round, alive), "probe")
        cohort = scheduler.select(server_round, range(10), 3)
        replies = [crowd.report(server_round, c) for c in cohort.clients]
        scheduler.observe(server_round, replies, "training")
    assert sum(n for client, n in asked.items() if client != 99) > 10 + 10


def test_one_who_does_not_answer_loses_its_place() -> None:
    """The client with the largest loss dies: it is tried again, not for ever."""
    crowd = Crowd(range(12))
    scheduler = adcs.LiveADCS(patience=None)
    chosen = 0
    for server_round in range(60):
        told = {
            c: replace(crowd.report(server_round, c), loss=3.0 if c == 5 else 1.0 + 0.01 * c)
            for c in range(12)
        }
        request = scheduler.request(server_round, range(12), 3)
        scheduler.observe(server_round, [told[c] for c in request.clients], "probe")
        cohort = scheduler.select(server_round, range(12), 3)
        chosen += 5 in cohort.clients
        replies = [told[c] for c in cohort.clients if c != 5]
        scheduler.observe(server_round, replies, "training")
    assert 1 <= chosen < 20


def test_a_late_reply_does_not_replace_a_newer_one() -> None:
    crowd = Crowd(range(8))
    scheduler = adcs.LiveADCS()
    rounds_of(scheduler, crowd, 6, 3)
    client = int(np.argmax(scheduler.loss_tracker.heard))
    heard, losses = scheduler.loss_tracker.heard.copy(), scheduler.loss_tracker.loss.copy()
    late = replace(crowd.report(1, client), loss=77.0)
    scheduler.observe(7, [late], "training")
    np.testing.assert_array_equal(scheduler.loss_tracker.heard, heard)
    np.testing.assert_array_equal(scheduler.loss_tracker.loss, losses)


def test_drift_is_what_makes_it_probe() -> None:
    """Where losses stand still nobody is asked again; where they wander, the silent are."""

    def probes(wander: float) -> int:
        rng = np.random.default_rng(5)
        crowd = Crowd(range(20))
        losses = np.linspace(1.0, 2.0, 20)
        scheduler = adcs.LiveADCS(probe_share=0.2, refresh_every=10**6, patience=None)
        asked = 0
        for server_round in range(120):
            losses = np.abs(losses + rng.normal(0.0, wander, 20))
            telling = {
                c: replace(crowd.report(0, c), server_round=server_round, loss=losses[c], norm=None)
                for c in range(20)
            }
            request = scheduler.request(server_round, range(20), 4)
            asked += len(request.clients)
            scheduler.observe(server_round, [telling[c] for c in request.clients], "probe")
            cohort = scheduler.select(server_round, range(20), 4)
            scheduler.observe(server_round, [telling[c] for c in cohort.clients], "training")
        return asked

    assert probes(0.0) == 20
    assert probes(0.3) > 25


def waits(patience: float | None, n: int, m: int, rounds: int) -> int:
    """Return the longest wait of any client where the same few have the largest losses."""
    crowd = Crowd(range(n))
    scheduler = adcs.LiveADCS(patience=patience, probe_share=0.0)
    last = dict.fromkeys(range(n), 0)
    longest = 0
    for server_round in range(rounds):
        told = {
            c: replace(crowd.report(0, c), server_round=server_round, loss=5.0 if c < m else 1.0)
            for c in range(n)
        }
        request = scheduler.request(server_round, range(n), m)
        scheduler.observe(server_round, [told[c] for c in request.clients], "probe")
        cohort = scheduler.select(server_round, range(n), m)
        scheduler.observe(server_round, [told[c] for c in cohort.clients], "training")
        longest = max([longest, *[server_round - last[c] for c in range(n)]])
        last.update(dict.fromkeys(cohort.clients, server_round))
    return longest


@pytest.mark.parametrize(("n", "m"), [(12, 3), (20, 1), (9, 8), (30, 7)])
def test_nobody_starves(n: int, m: int) -> None:
    patience = 3.0
    # Half of the places go to those who are late, so a queue of all n is through after 2 n / m.
    assert waits(patience, n, m, rounds=int(12 * n / m) + 20) <= (patience + 2.0) * n / m + 1.0


def test_without_patience_they_do() -> None:
    assert waits(None, 30, 7, rounds=60) > 5.0 * 30 / 7 + 1.0


def test_the_unit_of_losses_and_updates_does_not_matter() -> None:
    crowd = Crowd(range(15))

    def cohorts(unit: float, length: float) -> list[Any]:
        scheduler = adcs.LiveADCS()
        found = []
        for server_round in range(25):
            told = {
                c: replace(
                    r := crowd.report(server_round, c),
                    loss=unit * r.loss,  # type: ignore[operator]
                    update=length * np.asarray(r.update),
                    norm=None,
                )
                for c in range(15)
            }
            request = scheduler.request(server_round, range(15), 5)
            scheduler.observe(server_round, [told[c] for c in request.clients], "probe")
            cohort = scheduler.select(server_round, range(15), 5)
            scheduler.observe(server_round, [told[c] for c in cohort.clients], "training")
            found.append(cohort)
        return found

    # Powers of two, so that rounding is the same.
    for one, other in zip(cohorts(1.0, 1.0), cohorts(1024.0, -0.25), strict=True):
        assert one.clients == other.clients
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-9)


def test_weights_turn_the_step_towards_everybodys() -> None:
    crowd = Crowd(range(18))
    scheduler = adcs.LiveADCS()
    nearer = 0
    for server_round in range(20):
        request = scheduler.request(server_round, range(18), 6)
        scheduler.observe(server_round, crowd.answer(server_round, request), "probe")
        cohort = scheduler.select(server_round, range(18), 6)
        known = list(range(18))
        share = np.exp(alpha(scheduler.theta) * scheduler.scores(known))
        gram = scheduler.live.products(np.arange(18))
        target = share / share.sum()

        def cosine(weights: Any, gram: Any = gram, target: Any = target) -> float:
            lengths = (weights @ gram @ weights) * (target @ gram @ target)
            return float(weights @ gram @ target / lengths**0.5)

        ours, equal = np.zeros(18), np.zeros(18)
        ours[list(cohort.clients)] = np.array(cohort.weights) / sum(cohort.weights)
        equal[list(cohort.clients)] = 1 / 6
        nearer += cosine(ours) > cosine(equal)
        scheduler.observe(
            server_round, [crowd.report(server_round, c) for c in cohort.clients], "training"
        )
    assert nearer >= 18


def test_newcomers_count_as_much_as_others_do_on_average() -> None:
    crowd = Crowd(range(20))
    scheduler = adcs.LiveADCS(probe_share=0.0)
    for server_round in range(4):
        crowd.play(scheduler, server_round, 5, range(10))
    # Nobody answers a probe, so the newcomers among these are drawn.
    cohort = scheduler.select(4, range(20), 8)
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    drawn = cohort.diagnostics["drawn"]
    assert drawn
    known = [weight for client, weight in weights.items() if client not in drawn]
    assert all(weights[client] == pytest.approx(np.mean(known)) for client in drawn)


def test_tiny_updates_have_weights_all_the_same() -> None:
    scheduler = adcs.LiveADCS()
    rows = 1e-200 * np.random.default_rng(0).normal(size=(6, 4))
    told = [ClientReport(c, 0, loss=1.0 + c, update=rows[c]) for c in range(6)]
    scheduler.observe(0, told, "probe")
    assert np.isfinite(scheduler.select(0, range(6), 3).weights).all()


def test_caps_hold_for_those_who_waited() -> None:
    crowd = Crowd(range(12))
    scheduler = adcs.LiveADCS(
        patience=1.0, groups={c: c % 3 for c in range(12)}, caps=1, required=[0]
    )
    for server_round in range(30):
        chosen = crowd.play(scheduler, server_round, 3).clients
        assert sorted(c % 3 for c in chosen) == [0, 1, 2]
        assert 0 in chosen


@pytest.mark.parametrize("lie", [{"loss": 1e29}, {"loss": 50.0}, {"norm": 1e29}])
def test_one_liar_does_not_blind_it(lie: dict[str, float]) -> None:
    """From the first round on it claims the absurd; the others stay as far apart as they are."""
    crowd = Crowd(range(12))
    rng = np.random.default_rng(3)
    losses = np.linspace(1.0, 2.0, 12)
    scheduler = adcs.LiveADCS()
    for server_round in range(60):
        told = {
            c: replace(
                crowd.report(0, c),
                server_round=server_round,
                loss=losses[c] + rng.normal(0.0, 0.05),
            )
            for c in range(12)
        }
        told[7] = replace(told[7], **lie)
        request = scheduler.request(server_round, range(12), 4)
        scheduler.observe(server_round, [told[c] for c in request.clients], "probe")
        cohort = scheduler.select(server_round, range(12), 4)
        scheduler.observe(server_round, [told[c] for c in cohort.clients], "training")
    scores = scheduler.scores(list(range(12)))
    assert np.isfinite(scores).all()
    honest = np.delete(scores, 7)
    assert honest.std() > 0.3
    # Nobody's loss falls here, whatever the liar's update is said to be.
    assert np.corrcoef(honest, np.delete(losses, 7))[0, 1] > 0.8
    assert max(cohort.weights) < 0.9 * sum(cohort.weights)


def test_updates_of_any_size_are_borne_for_many_rounds() -> None:
    for size in (1e-100, 1e25):
        crowd = Crowd(range(8))
        scheduler = adcs.LiveADCS()
        for server_round in range(15):
            told = {
                c: replace(r := crowd.report(server_round, c), update=size * np.asarray(r.update))
                for c in range(8)
            }
            told = {c: replace(r, norm=None) for c, r in told.items()}
            request = scheduler.request(server_round, range(8), 3)
            scheduler.observe(server_round, [told[c] for c in request.clients], "probe")
            cohort = scheduler.select(server_round, range(8), 3)
            scheduler.observe(server_round, [told[c] for c in cohort.clients], "training")
        assert np.isfinite(scheduler.loss_tracker.loss).all()


def test_replies_without_a_loss_are_no_news() -> None:
    crowd = Crowd(range(8))
    scheduler = adcs.LiveADCS()
    rounds_of(scheduler, crowd, 3, 3)
    before = scheduler.loss_tracker.loss.copy()
    scheduler.observe(3, [ClientReport(2, 3, update=np.ones(12))], "training")
    np.testing.assert_array_equal(scheduler.loss_tracker.loss, before)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"theta": 1.0}, "theta must be below 1"),
        ({"theta": -0.1}, "-0.1"),
        ({"patience": 0.5}, "0.5"),
        ({"probe_share": -1.0}, "-1.0"),
        ({"refresh_every": 0}, "refresh_every"),
        ({"probe_share": float("nan")}, "nan"),
        ({"probe_share": float("inf")}, "inf"),
        ({"quality": "norm"}, "quality is no setting"),
    ],
)
def test_wrong_settings(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        adcs.LiveADCS(**setting)


@pytest.mark.parametrize("sketch", [None, adcs.Sketcher(size=16)])
def test_a_liar_who_comes_first_is_outvoted(sketch):
    rows = np.random.default_rng(0).standard_normal((8, 40))
    scheduler = adcs.LiveADCS(sketch=sketch)
    scheduler.observe(0, [adcs.ClientReport(99, 0, loss=9.0, update=np.ones(7))], "training")
    for client, row in enumerate(rows):
        report = adcs.ClientReport(client, 0, loss=1.0, update=row)
        scheduler.observe(0, [report], "training")
    cohort = scheduler.select(1, (*range(8), 99), 5)
    assert len(cohort.clients) == 5
    assert len(scheduler.known_clients(tuple(range(1, 8)))) == 7
    assert scheduler.known_clients((99,)) == []


def test_a_client_without_a_name_is_refused_before_it_is_sketched():
    scheduler = adcs.LiveADCS(sketch=adcs.Sketcher(size=8))
    reports = [adcs.ClientReport(c, 0, loss=1.0, update=np.ones(4)) for c in ([], 1)]
    scheduler.observe(0, reports, "training")
    assert scheduler.known_clients((1,)) == [1]
    assert len(scheduler.select(0, (1,), 1).diagnostics["refused"]) == 1


# Numbers that decide who counts for how much.


def test_strangers_weigh_what_the_others_weigh_on_average() -> None:
    scheduler = adcs.LiveADCS()
    rows = np.random.default_rng(0).normal(size=(6, 9))
    told = [ClientReport(c, 0, loss=1.0 + c, update=rows[c]) for c in range(6)]
    scheduler.observe(0, told, "probe")
    cohort = scheduler.select(0, range(12), 8)
    drawn = cohort.diagnostics["drawn"]
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    assert set(drawn) == {c for c in cohort.clients if c >= 6}
    assert 3 <= len(drawn) <= 5
    usual = np.mean([weights[c] for c in cohort.clients if c < 6])
    assert usual < 0.5  # the weights of the known add up to one, nearly
    assert [weights[c] for c in drawn] == pytest.approx([usual] * len(drawn))


@pytest.mark.parametrize(("times", "believed"), [(0.9e2, True), (1.1e2, False), (1e5, False)])
def test_of_the_first_surprises_only_the_absurd_are_left_out(times: float, believed: bool) -> None:
    """Squares of more than 1e4 times their median: deviations of more than 100 times."""
    tracker = LossTracker()
    tracker.update(np.arange(13), np.ones(13), 0)
    off = np.full(13, 0.1)
    off[12] *= times
    tracker.update(np.arange(13), 1.0 + off, 1)
    noise, drift = tracker.noise
    mean = float((off**2).mean()) if believed else 0.01
    assert noise + drift == pytest.approx(mean, rel=0.01)


def due(server_round: int, m: int, **settings: Any) -> list[int]:
    """Who gets a place for having waited, of six clients heard of in round 0 and never chosen."""
    scheduler = adcs.LiveADCS(patience=2.0, **settings)
    rows = np.random.default_rng(0).normal(size=(6, 9))
    told = [ClientReport(c, 0, loss=1.0, update=rows[c]) for c in range(6)]
    scheduler.observe(0, told, "probe")
    return list(scheduler.select(server_round, range(6), m).diagnostics["waited"])


def test_patience_ends_after_as_many_rounds_as_it_says() -> None:
    assert due(5, m=2) == []  # patience N / m = 6
    assert due(6, m=2) == [0]
    assert due(7, m=2) == [0]


def test_those_who_waited_get_half_of_the_places() -> None:
    for m, places in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3)):
        assert due(100, m) == list(range(places))
    assert due(100, 4, required=[0, 5]) == [1, 2]
    assert due(100, 4, required=[0, 4, 5]) == [1]
    assert due(100, 2, required=[4, 5]) == []


@pytest.mark.parametrize("length", [1.0, 999.0, 1001.0, 1e6, 1e29])
def test_in_predictions_no_update_is_longer_than_a_thousand_median_ones(length: float) -> None:
    scheduler = adcs.LiveADCS(patience=None)
    row = np.array([0.6, 0.8])
    lengths = {c: length if c == 7 else 1.0 for c in range(8)}
    told = {c: ClientReport(c, 0, loss=1.0, norm=lengths[c], update=row) for c in range(8)}
    scheduler.observe(0, list(told.values()), "probe")
    cohort = scheduler.select(0, range(8), 8)
    weights = dict(zip(cohort.clients, cohort.weights, strict=True))
    products: list[np.ndarray] = []
    scheduler.loss_tracker.predict = products.append  # type: ignore[method-assign]
    scheduler.observe(0, [told[0], told[7]], "training")
    own, other = weights[0], weights[7] * min(1.0, 1000.0 / length)
    expected = (own + other * length) / (own + other)
    assert products[0][:7] == pytest.approx(np.full(7, expected))
