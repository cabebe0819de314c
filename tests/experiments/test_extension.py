"""One place for each change: what is declared once is shown, checked and run everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adcs.experiments import (
    Experiment,
    checked_records,
    create_run,
    summarise,
    summary_table,
)
from adcs.experiments.runner import run_task, tasks
from adcs.experiments.statistics import METRICS, Metric
from adcs.experiments.tables import number_table
from adcs.run_folder import RunFolder
from adcs.simulation.partition import KINDS, Partition

SETTINGS: dict[str, Any] = {
    "data": "synthetic:clusters=2,per_cluster=30,dimension=3",
    "clients": 4,
    "m": 2,
    "rounds": 6,
    "eval_every": 2,
    "schedulers": ["Uniform", "ADCS"],
}


def run(path: Path, **settings: Any) -> RunFolder:
    experiment = Experiment.of(**{**SETTINGS, **settings})
    folder = create_run(path, experiment)
    for task in tasks(experiment):
        run_task(folder, experiment, task, lambda rounds: None)
    return folder


def test_a_metric_is_declared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def median(record: Any) -> float:
        return float(np.median(record["accuracy"]))

    monkeypatch.setitem(METRICS, "median", Metric("median", value=median, text="{:.2f}".format))
    folder = run(tmp_path / "run")
    records = checked_records(folder, Experiment.of(**SETTINGS))
    rows = summarise(records, ["Uniform", "ADCS"])
    heads, cells = summary_table(rows)
    assert heads[-1] == "median"
    last = [r for r in records if r["scheduler"] == "Uniform"][-1]
    assert cells[0][-1] == f"{np.median(last['accuracy']):.2f}"
    assert ["Uniform", "median"] in [line[:2] for line in number_table(rows)[1]]


def test_a_metric_of_records_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "gini", Metric("Gini"))
    folder = run(tmp_path / "run")
    (path,) = (folder.path / "records").iterdir()
    text = path.read_text().replace('"jain":', '"gini":"x","jain":')
    path.write_text(text)
    with pytest.raises(ValueError, match=r"line 1 is broken .gini must be"):
        checked_records(folder, Experiment.of(**SETTINGS))


CLIPPED = """
import numpy as np
from adcs.simulation import Aggregation, ClientResult, LocalTraining

class Clipped(LocalTraining):
    def __init__(self, norm=0.01):
        self.norm = norm
    def train(self, work):
        loss, gradient = work.loss_and_gradient(work.w, *work.batches[0])
        return ClientResult(loss, gradient * min(1.0, self.norm / np.linalg.norm(gradient)))

class Halved(Aggregation):
    def aggregate(self, updates, weights):
        return weights @ updates / 2
"""


def test_local_training_and_aggregation_are_one_class_each(tmp_path: Path) -> None:
    path = tmp_path / "clipped.py"
    path.write_text(CLIPPED)
    experiment = Experiment.of(
        **{**SETTINGS, "schedulers": ["Uniform"]},
        local=f"{path}:Clipped(norm=0.02)",
        aggregation=f"{path}:Halved",
    )
    simulation = experiment.simulation(0)
    simulation.run(3)
    assert 0.0 < np.linalg.norm(simulation.parameters) <= 3 * 0.001 * 0.01 * (1 + 1e-6)


def test_a_partition_is_declared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def striped(dataset: Any, clients: int, *, width: int = 1, seed: int) -> Partition:
        def parts(size: int) -> tuple[Any, ...]:
            owner = np.arange(size) // width % clients
            return tuple(np.flatnonzero(owner == client) for client in range(clients))

        return Partition(parts(dataset.y_train.size), parts(dataset.y_test.size))

    monkeypatch.setitem(KINDS, "striped", striped)
    folder = run(tmp_path / "run", partition="striped", partition_settings={"width": 2})
    assert len(list(folder.records())) == 2 * 4
    with pytest.raises(ValueError, match="'wdth' is no setting of striped"):
        Experiment.of(**{**SETTINGS, "partition": "striped", "partition_settings": {"wdth": 2}})
