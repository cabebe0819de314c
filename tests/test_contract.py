"""Every scheduler here keeps the contract, in all its variants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

import adcs
from adcs.testing import CHECKS, Crowd, Make, check_scheduler

SKETCH = adcs.Sketcher(size=64)
GROUPS = {client: client % 3 for client in range(20)}

SCHEDULERS: dict[str, Make] = {
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
    "LiveADCS": adcs.LiveADCS,
    "LiveADCS sketched": partial(adcs.LiveADCS, sketch=SKETCH),
    "LiveADCS probing": partial(adcs.LiveADCS, refresh_every=2, probe_share=0.5),
    "LiveADCS impatient": partial(adcs.LiveADCS, patience=1.0),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_contract(name: str, check: Callable[[Make], None]) -> None:
    check(SCHEDULERS[name])


def test_one_line_is_enough() -> None:
    check_scheduler(adcs.ADCS)


class Forgetful(adcs.Scheduler):
    """A scheduler with a different fault for each check that is to notice it."""

    fault = ""
    told = list

    def ask(self, round, clients, m):
        return adcs.Request(clients, frozenset({"loss"}))

    def learn(self, round, reports, source):
        self.told = type(reports)

    def choose(self, round, clients, m):
        import numpy as np

        if self.fault == "repeats":
            return adcs.Cohort.of([clients[0]] * m)
        if self.fault == "unseeded":
            return adcs.Cohort.of(np.random.default_rng().permutation(clients)[:m].tolist())
        if self.fault == "global":
            return adcs.Cohort.of(np.random.permutation(len(clients))[:m].tolist())  # noqa: NPY002
        if self.fault == "one by one":
            return adcs.Cohort.of(clients[:m] if self.told is list else clients[-m:])
        if self.fault == "stateful":
            self.turn = getattr(self, "turn", 0) + 1
            return adcs.Cohort.of([clients[(self.turn + i) % len(clients)] for i in range(m)])
        return adcs.Cohort.of(clients[: m - 1])


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("repeats", "exactly_m_distinct"),
        ("one short", "exactly_m_distinct"),
        ("unseeded", "same_seed_same_cohorts"),
        ("global", "same_seed_same_cohorts"),
        ("stateful", "resume_equals_uninterrupted"),
        ("one by one", "tables_are_reports"),
    ],
)
def test_checks_notice_faults(fault: str, check: str) -> None:
    faulty = type("Faulty", (Forgetful,), {"fault": fault})
    by_name = {c.__name__: c for c in CHECKS}
    with pytest.raises((AssertionError, ValueError)):
        by_name[check](faulty)


PLAY = """
import json, sys
sys.path.insert(0, {here!r})
from test_contract import SCHEDULERS
from adcs.testing import Crowd
crowd = Crowd(["c%d" % i for i in range(12)])
out = {{}}
for name, make in SCHEDULERS.items():
    scheduler = make()
    out[name] = [crowd.play(scheduler, r, 5).clients for r in range(4)]
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
    crowd = Crowd(range(30))
    cohorts = {frozenset(crowd.play(adcs.Uniform(seed=s), 0, 10).clients) for s in range(5)}
    assert len(cohorts) == 5
