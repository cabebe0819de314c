"""Every scheduler of the package keeps the contract, and the checks find faults."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import adcs
from adcs.testing import CHECKS, FakeClients, MakeScheduler, check_scheduler

SKETCH = adcs.Sketcher(size=64)

SCHEDULERS: dict[str, MakeScheduler] = {
    "Uniform": adcs.Uniform,
    "Uniform by size": partial(adcs.Uniform, by_size=True, seed=3),
    "Uniform independent": partial(adcs.Uniform, independent=True),
    "PowerOfChoice": adcs.PowerOfChoice,
    "PowerOfChoice of 7": partial(adcs.PowerOfChoice, candidates=7),
    "OCS": adcs.OCS,
    "OCS independent": partial(adcs.OCS, independent=True),
    "DivFL": adcs.DivFL,
    "DivFL by cluster": partial(adcs.DivFL, by_cluster=True, refresh_every=2),
    "StaticDPP": adcs.StaticDPP,
    "StaticDPP sampled": partial(adcs.StaticDPP, sample=True),
    "StaticDPP with quality": partial(adcs.StaticDPP, theta=0.5),
    "ADCS": adcs.ADCS,
    "ADCS every round": partial(adcs.ADCS, refresh_every=1),
    "ADCS of norms": partial(adcs.ADCS, quality="norm", refresh_every=2),
    "ADCS with communication": partial(adcs.ADCS, gamma=0.5),
    "ADCS by rank": partial(adcs.ADCS, scale="rank"),
    "ADCS sketched": partial(adcs.ADCS, sketch=SKETCH, refresh_every=3),
    "ADCS diverse": partial(adcs.ADCS, theta=0.0),
    "ADCS greedy for quality": partial(adcs.ADCS, theta=1.0),
    "ADCS of a function": partial(adcs.ADCS, quality=lambda report: report.loss**2),
    "ADCS of labels": partial(adcs.ADCS, kernel="labels", refresh_every=2),
    "ADCS of labels alone": partial(adcs.ADCS, kernel="labels", theta=0.0),
    "LiveADCS": adcs.LiveADCS,
    "LiveADCS of labels": partial(adcs.LiveADCS, kernel="labels"),
    "LiveADCS of labels alone": partial(adcs.LiveADCS, kernel="labels", theta=0.0),
    "LiveADCS sketched": partial(adcs.LiveADCS, sketch=SKETCH),
    "LiveADCS probing": partial(adcs.LiveADCS, refresh_every=2, probe_share=0.5),
    "LiveADCS impatient": partial(adcs.LiveADCS, patience=1.0),
    "ActiveFL": adcs.ActiveFL,
    "ActiveFL of all": partial(adcs.ActiveFL, dropped=0.0, uniform=0.5),
    "ClusteredSampling": adcs.ClusteredSampling,
    "ClusteredSampling sketched": partial(adcs.ClusteredSampling, sketch=SKETCH),
    "FedCor": partial(adcs.FedCor, fit_steps=20),
    "FedCor soon": partial(adcs.FedCor, warm_up=1, refit_every=2, fit_steps=10, refit_steps=5),
    "HiCSFL": adcs.HiCSFL,
    "HiCSFL of two clusters": partial(adcs.HiCSFL, clusters=2, temperature=1.0),
    "FedCBS": adcs.FedCBS,
    "FLIPS": adcs.FLIPS,
    "TiFL": adcs.TiFL,
    "TiFL of two tiers": partial(adcs.TiFL, tiers=2, interval=2, rounds=3),
    "FedCS": adcs.FedCS,
    "FedCS in a hurry": partial(adcs.FedCS, deadline=3.0, candidates=7),
    "REFL": adcs.REFL,
    "REFL adaptive": partial(adcs.REFL, rest=2, adaptive=True),
    "Oort": adcs.Oort,
    "Oort of few picks": partial(adcs.Oort, max_picks=1, exploration=0.5),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_contract(name: str, check: Callable[[MakeScheduler], None]) -> None:
    check(SCHEDULERS[name])


def test_one_call_runs_all_checks() -> None:
    check_scheduler(adcs.ADCS)


class Valid(adcs.Scheduler):
    """Keeps the contract; each class below breaks it in one way."""

    def _request(self, server_round, clients, m):
        return adcs.Request(clients, frozenset({"loss", "update"}))

    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(self.take(clients, m))


class NegativeWeights(Valid):
    def _select(self, server_round, clients, m):
        chosen = tuple(self.take(clients, m))
        return adcs.Cohort(chosen, (-1.0,) * len(chosen))


class ReturnsTooMany(Valid):
    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(self.take([clients[i] for i in range(m)], m))


class DependsOnOrder(Valid):
    first = 0

    def _observe(self, server_round, reports, source):
        self.first = reports[0].client if reports else self.first

    def _select(self, server_round, clients, m):
        order = sorted(clients, key=lambda client: (client != self.first, client))
        return adcs.Cohort.of(self.take(order, m))


class NeedsNumericIds(Valid):
    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(self.take(sorted(clients, key=lambda client: client % 7), m))


class CountsRequests(Valid):
    asked = 0

    def _request(self, server_round, clients, m):
        self.asked += 1
        return super()._request(server_round, clients, m)

    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(self.take(clients[:: -1 if self.asked % 2 else 1], m))


class Unseeded(Valid):
    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(np.random.default_rng().permutation(clients)[:m].tolist())


class UsesGlobalGenerator(Valid):
    def _select(self, server_round, clients, m):
        np.random.random()  # noqa: NPY002 - changes the generator's position, and seldom its key
        return super()._select(server_round, clients, m)


class SeedsGlobalGenerator(Valid):
    def _select(self, server_round, clients, m):
        random.seed(server_round)
        return adcs.Cohort.of(random.sample(clients, min(m, len(clients))))


class KeepsUnsavedState(Valid):
    turn = 0

    def _select(self, server_round, clients, m):
        self.turn += 1
        return adcs.Cohort.of([clients[(self.turn + i) % len(clients)] for i in range(m)])


class KeepsFirstClients(Valid):
    first_clients = ()

    def _select(self, server_round, clients, m):
        self.first_clients = self.first_clients or clients
        return adcs.Cohort.of(self.take(self.first_clients, m))


class AssumesReports(Valid):
    def _select(self, server_round, clients, m):
        order = sorted(clients, key=lambda client: self.reports[client].loss)
        return adcs.Cohort.of(self.take(order, m))


class SkipsReportChecks(Valid):
    def observe(self, server_round, reports, source):
        self._observe(server_round, [r for r in reports if r.loss != "high"], source)


class ExpectsLists(Valid):
    kind = list

    def _request(self, server_round, clients, m):
        return adcs.Request(clients, frozenset({"loss"}))

    def _observe(self, server_round, reports, source):
        self.kind = type(reports)

    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(clients[:m] if self.kind is list else clients[-m:])


class KeepsArrays(Valid):
    def _observe(self, server_round, reports, source):
        self.kept = {report.client: report.update for report in reports}

    def _select(self, server_round, clients, m):
        order = sorted(clients, key=lambda client: float(np.sum(self.kept.get(client, 0.0))))
        return adcs.Cohort.of(self.take(order, m))


class IgnoresConstraints(Valid):
    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(clients[:m])


class IgnoresPending(Valid):
    def select(self, server_round, available, m, pending=()):
        return super().select(server_round, available, m)


class SkipsArgumentChecks(Valid):
    def select(self, server_round, available, m, pending=()):
        return self._select(server_round, tuple(available), m)


class KeepsExpiredReports(Valid):
    def _expire(self, clients):
        pass


class IgnoresLateReplies(Valid):
    def _request(self, server_round, clients, m):
        return adcs.Request()

    def observe(self, server_round, reports, source):
        if source != "late":
            super().observe(server_round, reports, source)

    def _select(self, server_round, clients, m):
        start = server_round % len(clients)
        return adcs.Cohort.of(self.take(clients[start:] + clients[:start], m))


class AwaitsOthers(Valid):
    def _select(self, server_round, clients, m):
        return replace(super()._select(server_round, clients, m), awaited=clients[-1:])


FAULTS = [
    (NegativeWeights, "cohort_has_m_distinct_clients"),
    (ReturnsTooMany, "cohort_has_all_clients_if_fewer_than_m"),
    (DependsOnOrder, "order_of_clients_does_not_matter"),
    (NeedsNumericIds, "client_ids_are_opaque"),
    (CountsRequests, "request_changes_nothing"),
    (Unseeded, "same_seed_same_cohorts"),
    (UsesGlobalGenerator, "same_seed_same_cohorts"),
    (SeedsGlobalGenerator, "same_seed_same_cohorts"),
    (KeepsUnsavedState, "resume_equals_uninterrupted"),
    (KeepsFirstClients, "clients_come_and_go"),
    (AssumesReports, "cohort_without_answers"),
    (KeepsExpiredReports, "expired_clients_can_be_chosen"),
    (SkipsReportChecks, "bad_reports_are_refused"),
    (ExpectsLists, "table_equals_list_of_reports"),
    (KeepsArrays, "reports_are_copied"),
    (IgnoresPending, "pending_clients_are_not_chosen"),
    (IgnoresLateReplies, "late_replies_are_evidence"),
    (AwaitsOthers, "late_replies_are_evidence"),
    (IgnoresConstraints, "constraints_are_kept"),
    (SkipsArgumentChecks, "invalid_arguments_raise"),
]


@pytest.mark.parametrize(("faulty", "check"), FAULTS, ids=lambda value: str(value))
def test_checks_find_faults(faulty: MakeScheduler, check: str) -> None:
    by_name = {c.__name__: c for c in CHECKS}
    with pytest.raises((AssertionError, ValueError, LookupError, TypeError)):
        by_name[check](faulty)


def test_every_check_has_a_fault_to_find() -> None:
    check_scheduler(Valid)
    assert {check for _, check in FAULTS} == {check.__name__ for check in CHECKS}


PLAY = """
import json, sys
sys.path.insert(0, {here!r})
from test_testing import SCHEDULERS
from adcs.testing import FakeClients
fake = FakeClients(["c%d" % i for i in range(12)])
out = {{}}
for name, make in SCHEDULERS.items():
    scheduler = make()
    out[name] = [fake.run_round(scheduler, r, 5).clients for r in range(4)]
print(json.dumps(out))
"""


def test_same_cohorts_in_another_process_with_other_hashes() -> None:
    here = os.path.dirname(__file__)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PLAY.format(here=here)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": salt},
        ).stdout
        for salt in ("1", "2")
    ]
    assert json.loads(outputs[0]) == json.loads(outputs[1])


def test_another_seed_gives_other_cohorts() -> None:
    fake = FakeClients(range(30))
    cohorts = {frozenset(fake.run_round(adcs.Uniform(seed=s), 0, 10).clients) for s in range(5)}
    assert len(cohorts) == 5
