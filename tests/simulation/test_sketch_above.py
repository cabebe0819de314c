"""Updates of large models are sketched by default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adcs import ADCS, OCS, DivFL, LiveADCS, PowerOfChoice, Sketcher, Uniform
from adcs.experiments import Comparison
from adcs.experiments.config import Experiment
from adcs.simulation import MLP, Federation, Simulation, Training, load, make_partition
from adcs.simulation.local_rounds import PerClient

ROUNDS = 6


def simulate(*schedulers: Any, **settings: Any) -> Simulation:
    data = load("synthetic:clusters=3,dimension=4")
    federation = Federation(data, make_partition(data, "iid", 12, seed=0))
    model = MLP(4, 2)
    named = {type(scheduler).__name__: scheduler for scheduler in schedulers}
    simulation = Simulation(federation, model, named, Training(m=4, lr=0.1), **settings)
    simulation.run(ROUNDS)
    return simulation


@pytest.mark.parametrize("make", [ADCS, DivFL, LiveADCS])
def test_updates_above_the_limit_are_sketched(make: Any, caplog: Any) -> None:
    caplog.set_level("INFO")
    scheduler = make(seed=1)
    run = simulate(scheduler, sketch_above=MLP(4, 2).size - 1)
    assert scheduler.reports.width == 256
    assert caplog.text.count("Updates have 10 numbers, more than sketch_above = 9") == 1
    # The same model and costs as with that sketch given.
    given = simulate(make(seed=1, sketch=Sketcher(size=256)))
    np.testing.assert_array_equal(given.parameters, run.parameters)
    assert given.runs[0].ledger == run.runs[0].ledger


@pytest.mark.parametrize("above", [MLP(4, 2).size, 0, None])
def test_updates_up_to_the_limit_and_given_sketches_stay(above: int | None, caplog: Any) -> None:
    caplog.set_level("INFO")
    whole = ADCS()
    simulate(whole, sketch_above=above)
    assert whole.reports.width == 10
    assert "sketch_above" not in caplog.text
    own = ADCS(sketch=Sketcher(size=64))
    simulate(own, sketch_above=1)
    assert own.reports.width == 64


def test_schedulers_without_updates_are_not_concerned() -> None:
    runs = [simulate(Uniform(), PowerOfChoice(), OCS(), sketch_above=above) for above in (0, 1)]
    np.testing.assert_array_equal(runs[0].parameters, runs[1].parameters)
    assert [run.ledger for run in runs[0].runs] == [run.ledger for run in runs[1].runs]


def test_the_report_says_that_updates_are_sketched(tmp_path: Any) -> None:
    settings = {
        "data": "synthetic:clusters=3,dimension=4",
        "partition": "iid",
        "clients": 6,
        "m": 2,
    }
    for above, count in ((1, 1), (0, 0)):
        experiment = Experiment.of(**settings, rounds=2, sketch_above=above)
        comparison = Comparison.create(experiment, tmp_path / str(above))
        found = [note for note in comparison.notes if "sketch_above = 1:" in note]
        assert len(found) == count


def test_statistics_do_not_keep_the_vectors_of_clients() -> None:
    class OneByOne:
        """A model that returns its vectors client by client, as networks do."""

        size = 10
        initial = staticmethod(MLP(4, 2).initial)
        predict = staticmethod(MLP(4, 2).predict)
        loss_and_gradient = staticmethod(MLP(4, 2).loss_and_gradient)

        def local_update(self, w: Any, batches: Any, sgd: Any, key: int) -> tuple[float, Any]:
            return MLP(4, 2).loss_and_gradient(w, *batches[0])

    data = load("synthetic:clusters=3,dimension=4")
    federation = Federation(data, make_partition(data, "iid", 12, seed=0))
    model: Any = OneByOne()
    simulation = Simulation(federation, model, {"Uniform": Uniform()}, Training(m=4, lr=0.1))
    local = simulation._start_round(simulation.parameters, 0)
    assert isinstance(local, PerClient)
    local.updates(0, np.arange(12))
    assert all(kept.base is None for kept in local._statistics[0].values())
