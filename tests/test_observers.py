"""Events of a run: what the simulator announces, when, and to whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adcs
from adcs.experiments.config import Experiment
from adcs.observers import EvaluationEvent, Observer, RoundEvent, SelectionEvent, listeners
from adcs.simulation import SchedulerFailed, Simulation


def simulation(**settings: object) -> Simulation:
    return Experiment.of(
        **{
            "data": "synthetic",
            "clients": 20,
            "m": 4,
            "schedulers": ["Uniform", "ADCS(refresh_every=2)"],
            **settings,
        }
    ).simulation(3)


def test_the_order_of_events(events: Any) -> None:
    sim = simulation()
    sim.observers.append(events)
    sim.run(3, eval_every=2)
    evaluated = ["selection", "selection", "evaluation", "evaluation", "round", "round"]
    plain = ["selection", "selection", "round", "round"]
    last = ["evaluation", "evaluation", "end"]
    assert [kind for kind, _ in events.events] == [*evaluated, *plain, *evaluated, *last]
    rounds = [event.server_round for kind, event in events.events if kind == "round" and event]
    assert rounds == [0, 0, 1, 1, 2, 2]


def test_events_say_what_happened(events: Any) -> None:
    sim = simulation(network={"dropout": 0.4})
    sim.observers.append(events)
    before = [run.ledger.updates for run in sim.runs]
    sim.step()
    for run, updates in zip(sim.runs, before, strict=True):
        found = [event for _, event in events.events if event is not None and event.run == run.name]
        selection, trained = found
        assert isinstance(selection, SelectionEvent)
        assert isinstance(trained, RoundEvent)
        assert (selection.seed, selection.server_round, trained.server_round) == (3, 0, 0)
        assert selection.scheduler is run.scheduler
        assert selection.cohort is run.cohort
        # Clients that do not answer the probe cannot be selected.
        probed = bool(selection.request.clients)
        failed = sim.network.fails(0, np.arange(20)) & probed
        assert selection.available == tuple(np.flatnonzero(~failed).tolist())
        assert selection.pending == ()
        assert bool(selection.request.clients) == run.name.startswith("ADCS")
        assert set(trained.trained) <= set(run.cohort.clients)
        assert trained.costs.updates == run.ledger.updates - updates
        assert trained.costs.seconds == run.ledger.seconds


def test_records_are_those_of_evaluate_and_step(events: Any) -> None:
    by_hand = simulation()
    observed = simulation()
    observed.observers.append(events)
    observed.run(3, eval_every=2)
    expected = []
    for server_round in range(3):
        if server_round % 2:
            by_hand.step()
            continue
        records = by_hand.evaluate()
        measures = by_hand.step(measured=True)
        expected += [{**r, **m} for r, m in zip(records, measures, strict=True)]
    expected += by_hand.evaluate(final=True)
    found = [event.record for _, event in events.events if isinstance(event, EvaluationEvent)]
    assert len(found) == len(expected)
    for record, other in zip(found, expected, strict=True):
        assert list(record) == list(other)
        for key, value in record.items():
            np.testing.assert_array_equal(value, other[key])


def test_observers_change_nothing(events: Any) -> None:
    quiet, watched = simulation(), simulation()
    watched.observers.append(events)
    quiet.run(5)
    watched.run(5)
    np.testing.assert_array_equal(quiet.parameters, watched.parameters)


def test_listeners_implement_the_method_themselves_or_by_inheritance(events: Any) -> None:
    class Quiet(Observer):
        pass

    class Loud(type(events)):
        pass

    quiet, loud = Quiet(), Loud()
    assert listeners([quiet, loud], "on_selection") == [loud]


class Raises(Observer):
    """Fails in one of its methods, in the third round."""

    def __init__(self, method: str) -> None:
        self.method = method

    def fail(self, method: str, server_round: int = 2) -> None:
        if (method, server_round) == (self.method, 2):
            raise ConnectionError("no route to host")

    def on_selection(self, event: SelectionEvent) -> None:
        self.fail("on_selection", event.server_round)

    def on_round(self, event: RoundEvent) -> None:
        self.fail("on_round", event.server_round)

    def on_evaluation(self, event: EvaluationEvent) -> None:
        self.fail("on_evaluation", event.server_round)

    def on_end(self) -> None:
        self.fail("on_end")


@pytest.mark.parametrize("method", ["on_selection", "on_round", "on_evaluation", "on_end"])
def test_an_error_of_an_observer_names_it_when_all_have_the_event(events: Any, method: str) -> None:
    sim = simulation(schedulers=["Uniform"])
    sim.observers += [Raises(method), events, Raises(method)]
    with pytest.raises(ConnectionError) as caught:
        sim.run(4, eval_every=1)
    assert caught.value.__notes__ == [
        f"raised by {method} of the observer Raises",
        f"ConnectionError: no route to host, raised by {method} of the observer Raises",
    ]
    assert events.events[-1][0] == method.removeprefix("on_")


class Broken(adcs.Uniform):
    """Fails in round 2, in one of its methods."""

    observed_sources = frozenset({"training"})

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def fail(self, method: str, server_round: int) -> None:
        if (method, server_round) == (self.method, 2):
            raise KeyError("loss")

    def _request(self, server_round: int, *args: Any) -> adcs.Request:
        self.fail("_request", server_round)
        return super()._request(server_round, *args)

    def _observe(self, server_round: int, *args: Any) -> None:
        self.fail("_observe", server_round)

    def _select(self, server_round: int, *args: Any) -> adcs.Cohort:
        self.fail("_select", server_round)
        return super()._select(server_round, *args)


@pytest.mark.parametrize("method", ["_request", "_observe", "_select"])
def test_an_error_of_a_users_scheduler_names_it_its_round_and_its_line(method: str) -> None:
    sim = simulation()
    sim.runs[0].scheduler = Broken(method)
    sentence = r"scheduler Broken failed in round 2: KeyError: 'loss' \(test_observers.py, line \d+"
    with pytest.raises(SchedulerFailed, match=sentence) as caught:
        sim.run(5)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_our_own_scheduler_stays_what_it_is() -> None:
    sim = simulation()
    with pytest.raises((KeyError, ValueError)):
        sim.restore({**sim.state(), "runs": [{"name": run.name} for run in sim.runs]})
