"""The comparison of all schedulers, and kernels of labels with noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import adcs
from adcs.experiments import Experiment
from reproduction import schedulers
from reproduction.benchmark.results import cost_to_reach
from reproduction.folder import read_toml


def record(scheduler, seed, server_round, average, seconds):
    place = {"scheduler": scheduler, "seed": seed, "server_round": server_round}
    return {**place, "average": average, "seconds": seconds}


def test_seconds_to_reach_by_hand():
    """Uniform ends at .4 and .5; A reaches .4 at its second evaluation, and .5 never."""
    curves = {
        ("Uniform", 0): ([0.1, 0.3, 0.4], [0, 10, 20]),
        ("Uniform", 1): ([0.1, 0.6, 0.5], [0, 11, 22]),
        ("A", 0): ([0.1, 0.4, 0.2], [0, 3, 6]),
        ("A", 1): ([0.1, 0.4, 0.49], [0, 4, 8]),
    }
    records = [
        record(name, seed, 5 * i, values[i], seconds[i])
        for (name, seed), (values, seconds) in curves.items()
        for i in range(3)
    ]
    times = cost_to_reach(records, "seconds")
    np.testing.assert_array_equal(times["Uniform"], [20, 11])
    np.testing.assert_array_equal(times["A"], [3, np.inf])


def test_every_scheduler_is_in_the_comparison():
    declared = read_toml(schedulers.FOLDER / "speeds.toml")
    everyone = {
        name
        for name in adcs.__all__
        if isinstance(kind := getattr(adcs, name), type)
        and issubclass(kind, adcs.Scheduler)
        and kind is not adcs.Scheduler
    }
    assert set(declared["schedulers"]) == everyone


def test_runs_of_labels_differ_in_epsilon_alone():
    runs = [schedulers.label_run("labels-by-class", e, {}) for e in (0.1, 3.0, None)]
    assert [run.settings.get("histogram_epsilon") for run in runs] == [0.1, 3.0, None]
    assert len({run.name for run in runs}) == 3
    for spec in schedulers.protocol()["schedulers"].values():
        assert Experiment.of(schedulers=[spec])


@pytest.mark.parametrize("outputs", [["labels"]])
def test_a_small_run_makes_table_and_figure(tmp_path: Path, monkeypatch, outputs) -> None:
    settings = {"data": "digits", "clients": 10, "m": 4, "seeds": 1, "rounds": 4}

    def run(case, epsilon, overrides):
        made = declared(case, epsilon, {})
        more = {"histogram_epsilon": epsilon} if epsilon else {}
        return type(made)(made.name, made.config, {**settings, **more}, made.schedulers)

    declared = schedulers.label_run
    monkeypatch.setattr(schedulers, "label_run", run)
    protocol = {**schedulers.protocol(), "epsilons": [1.0], "case": {"labels-by-class": "digits"}}
    monkeypatch.setattr(schedulers, "protocol", lambda: protocol)
    schedulers.main([*outputs, "--jobs", "1", "--out", str(tmp_path / "out")])
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "| ADCS, labels | 1 |" in summary
    assert "| Uniform | no histogram |" in summary
    assert (tmp_path / "out" / "figures" / "labels.png").is_file()
    held = json.loads((tmp_path / "out" / "reproduce.json").read_text())
    assert held["outputs"] == outputs
