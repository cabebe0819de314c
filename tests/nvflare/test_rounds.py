"""Rounds with a fake communicator: probes, cohorts, weights, faults, records, resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adcs
from adcs import ClientReport, Cohort, Sketcher
from adcs.cli import main
from adcs.nvflare.replies import WEIGHT_KEY, FlareReply
from adcs.run_folder import RunFolder
from adcs.schedulers.base import Scheduler

LR = 0.5
SKETCH = Sketcher(size=64)


class Weighted(Scheduler):
    """Selects the first m, with weights."""

    def __init__(self, weights: tuple[float, ...] = (1.0, 1.0, 1.0), normalise: bool = True):
        super().__init__()
        self.weights, self.normalise = weights, normalise

    def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
        return Cohort(clients[:m], self.weights[: len(clients[:m])], self.normalise)


def test_nvflare_is_not_imported() -> None:
    code = "import sys, adcs.nvflare.rounds; print({'nvflare', 'flwr'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("is_diff", [False, True], ids=["whole", "difference"])
@pytest.mark.parametrize("sketch", [None, SKETCH], ids=["update", "sketch"])
def test_cohorts_are_those_of_a_loop_around_the_scheduler(
    federation: Any, sketch: Sketcher | None, is_diff: bool
) -> None:
    rounds, m = 7, 3
    fed = federation(adcs.ADCS(refresh_every=3, sketch=sketch, seed=4))
    fed.net.is_diff = is_diff
    scheduler = adcs.ADCS(refresh_every=3, sketch=sketch, seed=4)
    for server_round in range(rounds):
        w, sites = fed.net.w, tuple(fed.net.sites)
        expected = {site: fed.net.train(site) for site in sites}
        record = fed.round()
        reports = []
        request = scheduler.request(server_round, sites, m)
        for site in request.clients:
            step = expected[site].params["w"]
            update = w + step - w if is_diff else step - w
            signal = {"update": update} if sketch is None else {"sketch": sketch.sketch(update)}
            loss = expected[site].metrics["loss"]
            reports.append(ClientReport(site, server_round, loss=loss, **signal))
        scheduler.observe(server_round, reports, "probe")
        assert record.cohort.clients == scheduler.select(server_round, sites, m).clients
    costs, probes = fed.driver.recorder.costs, 3
    extra = (6 - m if sketch is None else 6) * probes
    assert (costs.updates, costs.extra_updates) == (m * rounds + extra, extra)


def test_a_probe_for_losses_is_an_evaluation(federation: Any) -> None:
    fed = federation(adcs.PowerOfChoice(), m=2)
    losses = {site: fed.net.loss(site) for site in fed.net.sites}
    assert set(fed.round().cohort.clients) == set(sorted(losses, key=losses.get)[-2:])
    assert [(task, wait) for task, _, wait in fed.net.sent] == [("validate", 20), ("train", 60)]


def test_without_the_filter_a_probe_is_a_training_reply(federation: Any) -> None:
    fed = federation(adcs.ADCS(sketch=SKETCH))
    fed.net.has_filter = False
    record = fed.round()
    assert record.without_mod == fed.net.sites
    assert [len(clients) for _, clients, _ in fed.net.sent] == [6], "nobody trains twice"
    assert len(record.trained) == 3


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("is_diff", [False, True], ids=["whole", "difference"])
def test_the_average_has_the_weights_of_the_cohort(
    federation: Any, normalise: bool, is_diff: bool
) -> None:
    weights = (0.5, 2.0, 1.5)
    fed = federation(Weighted(weights, normalise))
    fed.net.is_diff = is_diff
    fed.round()
    w, net = fed.net.w, fed.net
    steps = np.array([net.steps(site) for site in net.sites[:3]], dtype=float)
    updates = np.array([net.train(site).params["w"] for site in net.sites[:3]])
    updates -= 0 if is_diff else w
    scaled = steps * np.array(weights)
    if normalise:
        expected = w + scaled @ updates / scaled.sum()
    else:  # sites that have not reported count as average ones
        expected = w + scaled @ updates / (steps.sum() / 3 * 6)
    fed.round()
    np.testing.assert_allclose(fed.net.w, expected, rtol=1e-12)


def nan(task: str) -> FlareReply:
    return FlareReply({"w": np.full(6, np.nan)}, {"loss": 0.5}, {WEIGHT_KEY: 10})


def failed(task: str) -> FlareReply:
    return FlareReply(error="EXECUTION_EXCEPTION")


@pytest.mark.parametrize(
    ("fault", "where"),
    [(nan, "refused"), (failed, "failed"), (lambda task: None, "timed_out")],
    ids=["nan", "error", "silent"],
)
def test_a_failing_client_is_left_alone(federation: Any, fault: Any, where: str) -> None:
    fed = federation(Weighted(), patience=0.0)
    fed.net.faults["site-1"] = fault
    records = [fed.round() for _ in range(4)]
    assert all("site-1" not in record.trained for record in records)
    assert records[0].trained == ["site-2", "site-3"]
    assert "site-1" in json.dumps(getattr(records[0], where))
    assert any("site-1" in record.backing_off for record in records)
    assert np.isfinite(fed.net.w).all()


def test_a_late_reply_informs_the_scheduler_and_is_not_averaged(federation: Any) -> None:
    fed = federation(adcs.LiveADCS(), m=6)
    fed.net.faults["site-1"] = lambda task: None
    fed.round()
    assert fed.driver.scheduler.reports.get("site-1") is None
    (name,) = fed.rounds._registry.pending_messages()
    record = fed.round()
    assert record.pending == ["site-1"]
    assert "site-1" not in fed.net.sent[-1][1], "a busy client is not asked"
    del fed.net.faults["site-1"]
    far = FlareReply({"w": np.full(6, 1e6)}, {"loss": 0.5}, {WEIGHT_KEY: 10})
    fed.net.late_replies = [(name, far), ("unknown", fed.net.train("site-2"))]
    record = fed.round()
    assert [(entry["client"], entry["stage"]) for entry in record.late] == [("site-1", "probe")]
    assert fed.driver.scheduler.reports["site-1"].loss is not None
    assert record.pending == []
    assert np.abs(fed.net.w).max() < 10


def test_no_clients_and_only_failing_clients(federation: Any) -> None:
    fed = federation(Weighted(), stop_after=3)
    fed.net.sites = []
    assert fed.round().trained == []
    fed.net.sites = ["site-1"]
    fed.net.faults["site-1"] = failed
    before = fed.net.w.copy()
    fed.round()
    with pytest.raises(RuntimeError, match="no client has trained in the last 3 rounds"):
        fed.round()
    assert (fed.net.w == before).all()


def test_a_fraction_of_the_clients(federation: Any) -> None:
    assert len(federation(Weighted((1.0,) * 6), m=0.5).round().trained) == 3


def test_a_model_without_arrays(federation: Any) -> None:
    with pytest.raises(ValueError, match="give FedAvg a model, or a persistor"):
        federation(Weighted()).rounds.train(None, {})


def test_records_are_read_by_explain(
    federation: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = federation(adcs.ADCS(), folder=tmp_path / "run", evaluate_every=2)
    for _ in range(4):
        fed.round()
    lines = list(RunFolder.open(tmp_path / "run").records())
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4]
    assert ["worst" in line for line in lines] == [False, True, False, True]
    assert lines[1]["clients"] == fed.net.sites
    command = ["adcs", "explain", str(tmp_path / "run"), "--round", "1"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "site-" in capsys.readouterr().out


@pytest.mark.parametrize("scheduler", [adcs.ADCS, adcs.LiveADCS, adcs.Oort])
def test_a_restart_continues_as_if_there_was_none(
    federation: Any, tmp_path: Path, scheduler: Any
) -> None:
    whole = federation(scheduler(seed=3), folder=tmp_path / "whole", evaluate_every=1)
    for _ in range(6):
        whole.round()
    for _ in range(2):
        part = federation(scheduler(seed=3), folder=tmp_path / "part", evaluate_every=1)
        for _ in range(3):
            part.round()
    assert (part.net.w == whole.net.w).all()

    def lines(name: str) -> list[dict[str, Any]]:
        timed = ("seconds", "schedule_seconds")
        records = RunFolder.open(tmp_path / name).records()
        return [{k: v for k, v in each.items() if k not in timed} for each in records]

    assert lines("part") == lines("whole")
