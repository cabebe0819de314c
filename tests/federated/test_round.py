"""Rounds without a framework: what the scheduler observes, what is recorded and announced."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adcs
from adcs import ClientReport, Cohort, Sketcher
from adcs.federated import Exchange, Purpose, ReplyChecks, plan_probe
from adcs.observers import Observer
from adcs.run_folder import RunFolder
from adcs.schedulers.base import Scheduler

LR = 0.5
CHECKS = ReplyChecks("num-examples", "train_loss")
SKETCH = Sketcher(size=64)


class FirstClients(Scheduler):
    """Selects the first m, with weights, and keeps what it observes."""

    def __init__(self, weights: tuple[float, ...], normalise: bool = True) -> None:
        super().__init__()
        self.weights, self.normalise = weights, normalise
        self.observed: list[tuple[str, list[ClientReport]]] = []

    def _observe(self, server_round: int, reports: Any, source: Any) -> None:
        self.observed.append((source, list(reports)))
        super()._observe(server_round, reports, source)

    def _select(self, server_round: int, clients: Any, m: int) -> Cohort:
        return Cohort(clients[:m], self.weights, self.normalise)


def test_no_framework_is_imported() -> None:
    code = "import sys, adcs.federated; print({'flwr', 'ray', 'torch'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("sketch", [None, SKETCH], ids=["whole", "sketch"])
def test_cohorts_are_those_of_a_loop_around_the_scheduler(
    quadratic: Any, sketch: Sketcher | None
) -> None:
    rounds, m = 7, 3
    federation = quadratic(adcs.ADCS(refresh_every=3, sketch=sketch, seed=4))
    scheduler = adcs.ADCS(refresh_every=3, sketch=sketch, seed=4)
    for server_round in range(rounds):
        w = federation.w
        cohort = federation.round(m)
        request = scheduler.request(server_round, federation.clients, m)
        reports = []
        for client in request.clients:
            step = federation.points[client] - w
            update = w + LR * step - w
            signal = {"update": update} if sketch is None else {"sketch": sketch.sketch(update)}
            loss = float(0.5 * step @ step)
            reports.append(ClientReport(client, server_round, loss=loss, **signal))
        scheduler.observe(server_round, reports, "probe")
        assert cohort.clients == scheduler.select(server_round, federation.clients, m).clients
    costs = federation.driver.recorder.costs
    probes = 3  # rounds 0, 3 and 6
    if sketch is None:  # m T + (N - m) ceil(T / R)
        assert (costs.updates, costs.extra_updates) == (m * rounds + 3 * probes, 3 * probes)
    else:
        assert (costs.updates, costs.extra_updates) == (m * rounds + 6 * probes, 6 * probes)


def test_a_loss_is_requested_from_the_evaluation(quadratic: Any) -> None:
    federation = quadratic(adcs.PowerOfChoice())
    losses = 0.5 * np.square(federation.points).sum(axis=1)
    assert federation.round(2).clients == tuple(np.argsort(losses)[::-1][:2])
    assert federation.driver.recorder.costs.loss_evaluations == 6


def test_the_scheduler_observes_enrolment_then_training(quadratic: Any) -> None:
    scheduler = FirstClients((1.0, 1.0))
    federation = quadratic(scheduler)
    federation.round(2)
    federation.round(2)
    # Numbers of examples are new in the first round only.
    assert [source for source, _ in scheduler.observed] == ["enrolment", "training", "training"]
    assert [report.examples for report in scheduler.observed[0][1]] == [10, 11]
    update = scheduler.observed[1][1][1].update
    np.testing.assert_allclose(update, LR * federation.points[1])


def test_weights_multiply_the_number_of_examples(quadratic: Any) -> None:
    federation = quadratic(FirstClients((3.0, 1.0)))
    federation.round(2)
    n = np.array([3.0 * 10, 11])
    np.testing.assert_allclose(federation.w, n / n.sum() @ (LR * federation.points[:2]))


def test_unnormalised_weights_give_the_unnormalised_sum(quadratic: Any) -> None:
    federation = quadratic(FirstClients((2.0, 5.0), normalise=False))
    federation.round(2)
    n = np.array([10.0, 11.0])
    p = n / (n.sum() + 4 * n.mean())  # clients of unknown size count as average
    np.testing.assert_allclose(federation.w, (p * [2.0, 5.0]) @ (LR * federation.points[:2]))


def test_a_strategy_without_weights_is_named_once(quadratic: Any, caplog: Any) -> None:
    federation = quadratic(FirstClients((3.0, 1.0)), unweighted="FedMedian")
    federation.round(2)
    federation.round(2)
    text = "FedMedian aggregates without client weights: those of FirstClients are not used"
    assert caplog.text.count(text) == 1


def test_late_answers_are_observed_and_charged(quadratic: Any) -> None:
    scheduler = FirstClients((1.0,))
    federation = quadratic(scheduler)
    federation.round(1)
    driver = federation.driver
    current = driver.begin()
    driver.set_model({"w": federation.w})
    purpose = Purpose("training", 0, current.model)
    driver.observe_late(purpose, 5, federation.train(5))
    driver.observe_late(Purpose("evaluation", 0), 4, federation.evaluate(4))
    assert current.record.late == [
        {"client": 5, "stage": "training", "server_round": 1},
        {"client": 4, "stage": "evaluation", "server_round": 1},
    ]
    assert scheduler.reports[5].server_round == 0
    assert (current.record.costs.updates, current.record.costs.extra_updates) == (1, 1)


def test_clients_that_did_not_answer_the_probe_are_left_out(quadratic: Any) -> None:
    class Losing(quadratic):  # type: ignore[misc, valid-type]
        def exchange(self, clients: Any, reply: Any) -> Exchange[Any]:
            whole = super().exchange(clients, reply)
            whole.replies = {c: one for c, one in whole.replies.items() if c != 2}
            return whole

    federation = Losing(adcs.ADCS(refresh_every=1))
    federation.driver.observers.append(kept := Kept())
    cohort = federation.round(5)
    assert 2 not in cohort.clients
    assert len(cohort.clients) == 5
    assert kept.records[0].timed_out == {"probe": [2]}


class Kept(Observer):
    def __init__(self) -> None:
        self.records: list[Any] = []

    def on_round(self, event: Any) -> None:
        self.records.append(event.record)


def test_observers_see_selection_round_and_record(quadratic: Any, events: Any) -> None:
    federation = quadratic(adcs.ADCS(refresh_every=2, seed=7), observers=[events])
    cohorts = [federation.round(3), federation.round(3)]
    federation.driver.end()
    assert [name for name, _ in events.events] == [
        *["selection", "round", "evaluation"] * 2,
        "end",
    ]
    for number, cohort in enumerate(cohorts):
        selection, finished, written = (event for _, event in events.events[3 * number :][:3])
        assert {e.server_round for e in (selection, finished, written)} == {number}
        assert {(e.run, e.seed) for e in (selection, finished, written)} == {("ADCS", 7)}
        assert selection.cohort == cohort
        assert selection.available == federation.clients
        assert len(selection.request.clients) == (6 if number == 0 else 0)
        assert sorted(finished.trained) == sorted(cohort.clients)
        assert finished.costs.updates == (6 if number == 0 else 3)
        assert written.record["server_round"] == number + 1
        assert written.record["chosen"] == cohort.clients
        assert written.record["evaluation"]["eval_loss"]["worst"] > 0


def test_pending_clients_are_not_selected_and_others_complement_them(quadratic: Any) -> None:
    def cohort(pending: tuple[int, ...]) -> tuple[Any, ...]:
        federation = quadratic(adcs.ADCS(theta=0.0, refresh_every=5))
        federation.points[1] = federation.points[0] + 1e-3  # similar clients
        federation.round(2)
        federation.pending = pending
        return federation.round(4).clients

    assert {0, 1}.intersection(cohort(()))
    assert not {0, 1}.intersection(cohort((0,)))


def test_a_round_that_was_broken_off_is_not_counted(quadratic: Any, events: Any) -> None:
    federation = quadratic(adcs.Uniform(), observers=[events])
    federation.driver.begin()
    federation.round(2)
    assert federation.driver.recorder.rounds_done == 1
    assert [name for name, _ in events.events] == ["selection", "round", "evaluation"]


def test_a_call_without_a_round_is_an_error(quadratic: Any) -> None:
    with pytest.raises(RuntimeError, match=r"call begin\(\) first"):
        quadratic(adcs.Uniform()).driver.select((1, 2), (), 1)


def test_a_restarted_run_continues_with_its_scheduler(quadratic: Any, tmp_path: Path) -> None:
    def scheduler() -> Scheduler:
        return adcs.ADCS(refresh_every=4, sketch=SKETCH, seed=1)

    whole = quadratic(scheduler(), folder=tmp_path / "whole")
    expected = [whole.round(2).clients for _ in range(6)]
    w, cohorts = np.zeros(6), []
    for _ in range(3):
        part = quadratic(scheduler(), folder=tmp_path / "parts")
        part.w = w
        cohorts += [part.round(2).clients for _ in range(2)]
        w = part.w
    assert cohorts == expected
    np.testing.assert_array_equal(w, whole.w)
    one, other = (
        [
            {key: value for key, value in line.items() if key != "schedule_seconds"}
            for line in RunFolder.open(tmp_path / name).records()
        ]
        for name in ("whole", "parts")
    )
    assert one == other
    assert part.driver.recorder.examples == whole.driver.recorder.examples


def test_answers_read_as_they_arrive_give_the_same_round(quadratic: Any) -> None:
    class AsTheyArrive(quadratic):  # type: ignore[misc]
        def exchange(self, clients: Any, reply: Any) -> Any:
            asked = list(clients)
            if reply == self.train:
                return super().exchange(asked, reply)
            current = self.driver.round
            probe = plan_probe(current.request, current.server_round, current.model, CHECKS)
            for client in reversed(asked):
                self.driver.read_answer(probe, client, reply(client))
            return Exchange(asked, {}, 8 * len(asked), 1.0)

    for scheduler in (
        adcs.ADCS(refresh_every=1),
        adcs.ADCS(refresh_every=1, sketch=SKETCH),
    ):
        together, one_by_one = quadratic(scheduler, 8), AsTheyArrive(copy.deepcopy(scheduler), 8)
        for _ in range(3):
            assert together.round(3) == one_by_one.round(3)
            records = [each.driver.recorder.costs for each in (together, one_by_one)]
            assert records[0].as_dict() == records[1].as_dict()
        np.testing.assert_array_equal(together.w, one_by_one.w)


def test_replies_that_are_not_selected_are_let_go(quadratic: Any) -> None:
    federation = quadratic(adcs.ADCS(refresh_every=1), 8)
    driver, seen = federation.driver, []
    select = driver.select

    def spy(*args: Any) -> Any:
        seen.append(len(driver.round.early_replies))
        cohort = select(*args)
        assert set(driver.round.early_replies) == set(cohort.clients)
        assert len(driver.round.early_clients) == 8
        return cohort

    driver.select = spy
    federation.round(3)
    assert seen == [8]
