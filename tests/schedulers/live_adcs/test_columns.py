"""Columns, lists and other containers of the same content have the same effect, at every size."""

from __future__ import annotations

import numpy as np
import pytest

from adcs import LiveADCS
from adcs.dpp.kernel import unit_rows
from adcs.reports import store as store_module
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketches
from adcs.reports.table import ReportTable
from adcs.schedulers.live_adcs import LiveKernel

D = 6


class Fleet:
    """Clients with scripted reports: the same ones, whatever they are held in."""

    def __init__(self, clients, seed=0):
        self.clients = tuple(clients)
        rng = np.random.default_rng(seed)
        self.rows = rng.standard_normal((len(self.clients), D), dtype=np.float32)
        self.losses = rng.uniform(1.0, 2.0, len(self.clients))
        self.number = {client: i for i, client in enumerate(self.clients)}

    def table(self, clients, server_round):
        """Their reports on the model of a round."""
        at = [self.number[client] for client in clients]
        rng = np.random.default_rng(server_round)
        values = self.rows[at] + 0.1 * rng.standard_normal((len(at), D), dtype=np.float32)
        norms = np.linalg.norm(values.astype(np.float64), axis=1)
        losses = self.losses[at] / (1.0 + 0.1 * server_round)
        return ReportTable(
            tuple(clients), server_round, loss=losses, sketch=Sketches(values, norms, 50)
        )


def play(scheduler, fleet, kind, rounds=12, m=5, container=tuple):
    """Return the cohorts of some rounds in which clients come, fail, are pending and expire."""
    cohorts, late = [], None
    for server_round in range(rounds):
        rng = np.random.default_rng([7, server_round])
        everyone = fleet.clients if server_round % 3 else fleet.clients[: -len(fleet.clients) // 4]
        request = scheduler.request(server_round, container(everyone), m)
        if request.clients:
            asked = [c for c in request.clients if rng.random() < 0.9]
            scheduler.observe(server_round, kind(fleet.table(asked, server_round)), "probe")
        pending = cohorts[-1].clients[:1] if server_round % 4 == 3 else ()
        cohort = scheduler.select(server_round, container(everyone), m, pending)
        cohorts.append(cohort)
        if server_round % 5 == 4:
            scheduler.expire(cohort.clients[:1])
        if late is not None:
            scheduler.observe(server_round, kind(late), "training")
        late = fleet.table(cohort.clients[:1], server_round)
        replies = fleet.table(cohort.clients[1:], server_round)
        scheduler.observe(server_round, kind(replies), "training")
    return cohorts


def as_list(table):
    """The reports of a table."""
    return list(table)


SETTINGS = {
    "defaults": lambda clients: LiveADCS(),
    "limits": lambda clients: LiveADCS(max_share=1.0, patience=1.0, refresh_every=3),
    "no limits": lambda clients: LiveADCS(max_share=None, patience=None),
    "constraints": lambda clients: LiveADCS(
        groups={c: i % 3 for i, c in enumerate(clients)}, caps=2, required=clients[:1]
    ),
}
IDS = {
    "ints": lambda n: range(n),
    "strings": lambda n: [f"client-{i}" for i in range(n)],
    "both, in no order": lambda n: [i if i % 2 else f"{i}" for i in range(n, 0, -1)],
}


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_table_has_the_effect_of_a_list(settings, ids, monkeypatch):
    fleet = Fleet(IDS[ids](80))
    one, two, three = (SETTINGS[settings](fleet.clients) for _ in range(3))
    from_tables = play(one, fleet, lambda table: table)
    from_lists = play(two, fleet, as_list, container=list)
    monkeypatch.setattr(store_module, "tabulate", lambda reports: None)
    from_reports = play(three, fleet, as_list)
    assert from_tables == from_lists == from_reports
    assert one.to_bytes() == two.to_bytes() == three.to_bytes()


@pytest.mark.parametrize("settings", SETTINGS)
def test_large_kernels_give_the_cohorts_of_small_ones(settings):
    """Above the limit neither cosines nor copies of rows are kept."""
    fleet = Fleet(range(80))
    kept, computed = SETTINGS[settings](fleet.clients), SETTINGS[settings](fleet.clients)
    computed.kernel = LiveKernel(gram_limit=10)
    for one, two in zip(
        play(kept, fleet, lambda t: t), play(computed, fleet, lambda t: t), strict=True
    ):
        assert one.clients == two.clients
    np.testing.assert_allclose(
        kept.loss_tracker.estimate(12), computed.loss_tracker.estimate(12), atol=1e-5
    )


@pytest.mark.parametrize("others", [np.arange(50), np.arange(1, 50, 2)])
def test_sums_of_directions_are_sums_of_cosines(others):
    rng = np.random.default_rng(3)
    unit, norms = unit_rows(rng.standard_normal((50, 9))), rng.uniform(1.0, 3.0, 50)
    kept, computed = LiveKernel(), LiveKernel(gram_limit=5)
    for kernel in (kept, computed):
        kernel.update(np.arange(50), unit.copy(), norms)
    rows, shares = np.array([7, 3, 41]), np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(
        kept.sum_products(rows, shares), computed.sum_products(rows, shares), atol=1e-12
    )
    weights = rng.uniform(size=others.size)
    np.testing.assert_allclose(
        kept.cosine_sums(others, weights), computed.cosine_sums(others, weights), atol=1e-10
    )


def test_reports_do_not_share_memory_with_the_scheduler():
    fleet, scheduler = Fleet(range(10)), LiveADCS()
    table = fleet.table(fleet.clients, 0)
    scheduler.observe(0, table, "probe")
    before = scheduler.to_bytes()
    table.sketches.values[:] = 0.0
    table.column("loss")[:] = 9.0
    assert scheduler.to_bytes() == before
    reports = [ClientReport(c, 1, loss=1.0, update=np.ones(4)) for c in range(10)]
    scheduler.observe(1, reports, "probe")
    before = scheduler.to_bytes()
    for report in reports:
        assert report.update.tolist() == [1.0] * 4
        report.update[:] = 0.0
    assert scheduler.to_bytes() == before


def test_equal_ids_of_other_types_are_refused_after_a_round():
    scheduler = LiveADCS()
    scheduler.select(0, (0, 1), 1)
    with pytest.raises(ValueError, match="must be ints or strings, got True"):
        scheduler.select(1, (0, True), 1)
