"""LiveADCS as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import adcs
from adcs import ClientReport
from adcs._serialization import pack
from adcs.testing import FakeClients


def run_rounds(scheduler: adcs.LiveADCS, fake: FakeClients, rounds: int, m: int) -> list[Any]:
    return [fake.run_round(scheduler, server_round, m) for server_round in range(rounds)]


def test_a_client_that_does_not_answer_is_chosen_less_often() -> None:
    """The client with the largest loss fails: it is chosen again now and then."""
    fake = FakeClients(range(12))
    scheduler = adcs.LiveADCS(patience=None)
    chosen = 0
    for server_round in range(60):
        reports = {
            c: replace(fake.report(server_round, c), loss=3.0 if c == 5 else 1.0 + 0.01 * c)
            for c in range(12)
        }
        request = scheduler.request(server_round, range(12), 3)
        scheduler.observe(server_round, [reports[c] for c in request.clients], "probe")
        cohort = scheduler.select(server_round, range(12), 3)
        chosen += 5 in cohort.clients
        replies = [reports[c] for c in cohort.clients if c != 5]
        scheduler.observe(server_round, replies, "training")
    assert 1 <= chosen < 20


def test_a_late_reply_does_not_replace_a_newer_one() -> None:
    fake = FakeClients(range(8))
    scheduler = adcs.LiveADCS()
    run_rounds(scheduler, fake, 6, 3)
    client = int(np.argmax(scheduler.loss_tracker.reported_at))
    reported_at = scheduler.loss_tracker.reported_at.copy()
    losses = scheduler.loss_tracker.loss.copy()
    late = replace(fake.report(1, client), loss=77.0)
    scheduler.observe(7, [late], "training")
    np.testing.assert_array_equal(scheduler.loss_tracker.reported_at, reported_at)
    np.testing.assert_array_equal(scheduler.loss_tracker.loss, losses)


def test_clients_are_probed_again_if_losses_drift() -> None:
    """Constant losses need no second probe; drifting losses do."""

    def probes(drift: float) -> int:
        rng = np.random.default_rng(5)
        fake = FakeClients(range(20))
        losses = np.linspace(1.0, 2.0, 20)
        scheduler = adcs.LiveADCS(probe_share=0.2, refresh_every=10**6, patience=None)
        probed = 0
        for server_round in range(120):
            losses = np.abs(losses + rng.normal(0.0, drift, 20))
            reports = {
                c: replace(fake.report(0, c), server_round=server_round, loss=losses[c], norm=None)
                for c in range(20)
            }
            request = scheduler.request(server_round, range(20), 4)
            probed += len(request.clients)
            scheduler.observe(server_round, [reports[c] for c in request.clients], "probe")
            cohort = scheduler.select(server_round, range(20), 4)
            scheduler.observe(server_round, [reports[c] for c in cohort.clients], "training")
        return probed

    assert probes(0.0) == 20
    assert probes(0.3) > 25


def test_the_unit_of_losses_and_updates_does_not_matter() -> None:
    fake = FakeClients(range(15))

    def cohorts(unit: float, scale: float) -> list[Any]:
        scheduler = adcs.LiveADCS()
        found = []
        for server_round in range(25):
            reports = {
                c: replace(
                    r := fake.report(server_round, c),
                    loss=unit * r.loss,  # type: ignore[operator]
                    update=scale * np.asarray(r.update),
                    norm=None,
                )
                for c in range(15)
            }
            request = scheduler.request(server_round, range(15), 5)
            scheduler.observe(server_round, [reports[c] for c in request.clients], "probe")
            cohort = scheduler.select(server_round, range(15), 5)
            scheduler.observe(server_round, [reports[c] for c in cohort.clients], "training")
            found.append(cohort)
        return found

    # Powers of two, so that rounding is the same.
    for one, other in zip(cohorts(1.0, 1.0), cohorts(1024.0, -0.25), strict=True):
        assert one.clients == other.clients


@pytest.mark.parametrize("lie", [{"loss": 1e29}, {"loss": 50.0}, {"norm": 1e29}])
def test_one_liar_does_not_hide_the_differences_of_others(lie: dict[str, float]) -> None:
    """One client makes false claims from the first round on."""
    fake = FakeClients(range(12))
    rng = np.random.default_rng(3)
    losses = np.linspace(1.0, 2.0, 12)
    scheduler = adcs.LiveADCS(max_share=None)
    for server_round in range(60):
        reports = {
            c: replace(
                fake.report(0, c),
                server_round=server_round,
                loss=losses[c] + rng.normal(0.0, 0.05),
            )
            for c in range(12)
        }
        reports[7] = replace(reports[7], **lie)
        request = scheduler.request(server_round, range(12), 4)
        scheduler.observe(server_round, [reports[c] for c in request.clients], "probe")
        cohort = scheduler.select(server_round, range(12), 4)
        scheduler.observe(server_round, [reports[c] for c in cohort.clients], "training")
    scheduler.select(60, range(12), 4)
    assert scheduler.dpp is not None
    scores = scheduler.dpp.quality
    assert np.isfinite(scores).all()
    honest = np.delete(scores, 7)
    assert honest.std() > 0.3
    # No loss falls here, whatever norm the liar claims.
    assert np.corrcoef(honest, np.delete(losses, 7))[0, 1] > 0.8


def test_updates_of_any_norm_leave_losses_finite() -> None:
    for size in (1e-100, 1e25):
        fake = FakeClients(range(8))
        scheduler = adcs.LiveADCS()
        for server_round in range(15):
            reports = {
                c: replace(r := fake.report(server_round, c), update=size * np.asarray(r.update))
                for c in range(8)
            }
            reports = {c: replace(r, norm=None) for c, r in reports.items()}
            request = scheduler.request(server_round, range(8), 3)
            scheduler.observe(server_round, [reports[c] for c in request.clients], "probe")
            cohort = scheduler.select(server_round, range(8), 3)
            scheduler.observe(server_round, [reports[c] for c in cohort.clients], "training")
        assert np.isfinite(scheduler.loss_tracker.loss).all()


def test_replies_without_a_loss_change_nothing() -> None:
    fake = FakeClients(range(8))
    scheduler = adcs.LiveADCS()
    run_rounds(scheduler, fake, 3, 3)
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
def test_invalid_settings_raise(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        adcs.LiveADCS(**setting)


@pytest.mark.parametrize("sketch", [None, adcs.Sketcher(size=16)])
def test_a_liar_that_reports_first_is_outvoted(sketch):
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


def test_a_report_without_an_id_is_refused():
    scheduler = adcs.LiveADCS(sketch=adcs.Sketcher(size=8))
    reports = [adcs.ClientReport(c, 0, loss=1.0, update=np.ones(4)) for c in ([], 1)]
    scheduler.observe(0, reports, "training")
    assert scheduler.known_clients((1,)) == [1]
    assert len(scheduler.select(0, (1,), 1).diagnostics["refused"]) == 1


@pytest.mark.parametrize("norm", [1.0, 999.0, 1001.0, 1e6, 1e29])
def test_predictions_clip_norms_at_a_thousand_medians(norm: float) -> None:
    scheduler = adcs.LiveADCS(patience=None)
    row = np.array([0.6, 0.8])
    norms = {c: norm if c == 7 else 1.0 for c in range(8)}
    reports = {c: ClientReport(c, 0, loss=1.0, norm=norms[c], update=row) for c in range(8)}
    scheduler.observe(0, list(reports.values()), "probe")
    scheduler.select(0, range(8), 8)
    scheduler.observe(0, [reports[0], reports[7]], "training")
    products = scheduler.loss_tracker.state()["products"]
    other = min(1.0, 1000.0 / norm)
    expected = (1.0 + other * norm) / (1.0 + other)
    assert products[:7] == pytest.approx(np.full(7, expected))


def random_reports(rng, server_round, clients):
    return [
        ClientReport(c, server_round, loss=rng.random(), update=rng.normal(size=4)) for c in clients
    ]


def test_a_round_continues_after_a_restore():
    rng, clients = np.random.default_rng(0), tuple(range(8))
    first, second = adcs.LiveADCS(), adcs.LiveADCS()
    first.request(0, clients, 3)
    first.observe(0, random_reports(rng, 0, clients), "probe")
    cohort = first.select(0, clients, 3).clients
    second.restore(first.state())
    replies = random_reports(rng, 0, cohort)
    for scheduler in (first, second):
        scheduler.observe(0, replies, "training")
    assert pack(second.state()) == pack(first.state())
    assert second.select(1, clients, 3) == first.select(1, clients, 3)


def test_a_report_of_a_later_round_counts_as_one_of_this_round():
    rng, clients = np.random.default_rng(1), tuple(range(6))
    updates, losses = rng.normal(size=(3, 6, 4)), rng.random((3, 6))
    states = []
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
        states.append(scheduler.loss_tracker.state())
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name])
    assert states[0]["products"].any() or states[0]["slope_sums"].any()


def test_training_replies_move_all_losses_and_probes_do_not():
    rng, clients = np.random.default_rng(2), tuple(range(6))
    scheduler = adcs.LiveADCS()
    scheduler.observe(0, random_reports(rng, 0, clients), "probe")
    cohort = scheduler.select(0, clients, 3)
    assert not scheduler.loss_tracker.state()["products"].any()
    scheduler.observe(1, random_reports(rng, 1, cohort.clients), "probe")
    assert not scheduler.loss_tracker.state()["products"].any()
    scheduler.observe(1, random_reports(rng, 1, cohort.clients), "training")
    products = scheduler.kernel.inner_products(np.array(cohort.clients)).mean(axis=0)
    np.testing.assert_allclose(scheduler.loss_tracker.state()["products"], products)


def test_the_clients_of_a_cohort_have_equal_weights() -> None:
    """So the aggregation stays as it is; clients that are picked, balance and are drawn alike."""
    fake, scheduler = FakeClients(range(24)), adcs.LiveADCS()
    drawn, balancing = 0, 0
    for server_round in range(12):
        # Nobody answers a probe, so that new clients are drawn.
        scheduler.request(server_round, range(24), 8)
        cohort = scheduler.select(server_round, range(12 + server_round), 8)
        assert cohort.weights == (1.0,) * 8
        assert cohort.normalise
        drawn += len(cohort.diagnostics["drawn"])
        balancing += len(cohort.diagnostics.get("balancing", ()))
        replies = [fake.report(server_round, client) for client in cohort.clients]
        scheduler.observe(server_round, replies, "training")
    assert drawn
    assert balancing


def test_the_unit_of_losses_does_not_matter_for_probes():
    def run(unit):
        rng, clients = np.random.default_rng(5), tuple(range(12))
        losses, updates = np.linspace(1.0, 2.0, 12), rng.normal(size=(12, 20))
        scheduler = adcs.LiveADCS(probe_share=0.2, refresh_every=None, patience=None)
        seen = []
        for server_round in range(60):
            losses = np.abs(losses + rng.normal(0.0, 0.3, 12))
            reports = [
                ClientReport(c, server_round, unit * losses[c], update=updates[c]) for c in clients
            ]
            asked = scheduler.request(server_round, clients, 3).clients
            scheduler.observe(server_round, [reports[c] for c in asked], "probe")
            chosen = scheduler.select(server_round, clients, 3).clients
            scheduler.observe(server_round, [reports[c] for c in chosen], "training")
            seen.append((asked, chosen))
        return seen

    rounds = run(1.0)
    assert sum(len(asked) for asked, _ in rounds) > 12  # some are probed again
    assert run(2.0**-8) == rounds
    assert run(2.0**8) == rounds


def test_each_update_is_stored_once(probed) -> None:
    rows = np.random.default_rng(0).normal(size=(6, 5000))
    sizes = [len(pack(probed(make(), 0, rows).state())) for make in (adcs.ADCS, adcs.LiveADCS)]
    assert sizes[1] < 1.1 * sizes[0]


def test_losses_count_less_where_updates_do_not_persist() -> None:
    """The largest loss of twelve wins a slot in all rounds, or in about its fair share of them."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(12, 40))
    counts = {}
    for noise in (0.0, 20.0):
        scheduler = adcs.LiveADCS(max_share=None)
        counts[noise] = np.zeros(12, dtype=int)
        for server_round in range(90):
            updates = directions + noise * rng.normal(size=directions.shape)
            reports = [
                ClientReport(c, server_round, loss=0.05 * c + (2.0 if c == 5 else 0.0), update=row)
                for c, row in enumerate(updates)
            ]
            asked = scheduler.request(server_round, range(12), 4).clients
            scheduler.observe(server_round, [reports[c] for c in asked], "probe")
            cohort = scheduler.select(server_round, range(12), 4).clients
            counts[noise][list(cohort)] += server_round >= 30
            scheduler.observe(server_round, [reports[c] for c in cohort], "training")
        assert (scheduler.kernel.persistence > 0.9) == (noise == 0.0)
    assert counts[0.0][5] > 40
    assert 10 < counts[20.0][5] < 32


def test_a_probe_and_training_on_the_same_model_are_compared_once() -> None:
    """They differ by a mini-batch at most: that would say that updates persist."""
    scheduler = adcs.LiveADCS()
    for source in ("probe", "training"):
        reports = [ClientReport(c, 0, loss=1.0, update=np.eye(6)[c]) for c in range(6)]
        scheduler.observe(0, reports, source)
    others = [ClientReport(c, 1, loss=1.0, update=np.eye(6)[c - 1]) for c in range(6)]
    scheduler.observe(1, others, "training")
    assert scheduler.kernel.persistence == 0.0
