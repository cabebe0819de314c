"""Comparisons: same bytes on one process or two, killed and resumed or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from adcs.experiments.config import Experiment
from adcs.experiments.runner import create_run, experiment_of, run_experiment, run_task, tasks
from adcs.run_folder import RunFolder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 60)
    x = (2 * rng.standard_normal((5, 8)))[y] + rng.standard_normal((300, 8))
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[::3], y_test=y[::3])
    return str(path)


def settings(data: str, **more):
    return Experiment.of(
        **{
            "data": data,
            "clients": 15,
            "m": 6,
            "rounds": 60,
            "eval_every": 10,
            "lr": 0.05,
            "seeds": 2,
            "schedulers": ["Uniform", "PowerOfChoice", "OCS", "ADCS(refresh_every=7)"],
            **more,
        }
    )


def run(path: Path, experiment: Experiment, jobs: int) -> dict[str, bytes]:
    folder = RunFolder.create(path, experiment.as_dict())
    run_experiment(folder, experiment, jobs=jobs)
    return lines(path)


def lines(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((path / "records").glob("*.jsonl"))}


def test_one_process_or_two_same_bytes(data, tmp_path):
    experiment = settings(data)
    one = run(tmp_path / "one", experiment, jobs=1)
    two = run(tmp_path / "two", experiment, jobs=2)
    assert one == two
    assert len(one) == len(tasks(experiment)) == 4
    records = list(RunFolder.open(tmp_path / "one").records())
    assert len(records) == 2 * 4 * 7
    assert {r["server_round"] for r in records} == set(range(0, 61, 10))


def test_pass_width_changes_rounding_only(data, tmp_path):
    shared = run(tmp_path / "shared", settings(data, seeds=1, dtype="float64"), jobs=2)
    alone = run(tmp_path / "alone", settings(data, seeds=1, dtype="float64", pass_width=1), jobs=2)
    assert len(alone) == 4
    by_run = {}
    for folder in (shared, alone):
        for content in folder.values():
            for line in content.splitlines():
                record = json.loads(line)
                key = (record["scheduler"], record["server_round"])
                by_run.setdefault(key, []).append(record)
    for one, other in by_run.values():
        assert one["average"] == pytest.approx(other["average"])
        assert one["updates"] == other["updates"]


KILLED = """
import sys
from adcs.experiments import runner as compare
from adcs.experiments.config import from_dict
from adcs.run_folder import RunFolder
import json
compare.CHECKPOINT_SECONDS = 0.0
experiment = from_dict(json.loads(sys.argv[2]))
folder = RunFolder.open(sys.argv[1])
for task in compare.tasks(experiment):
    compare.run_task(folder, experiment, task, lambda rounds: None)
"""


def test_killed_and_resumed_ends_with_the_same_bytes(data, tmp_path):
    experiment = settings(data, seeds=1, rounds=1500, eval_every=5)
    config = json.dumps(experiment.as_dict())
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}

    def start(path):
        return subprocess.Popen([sys.executable, "-c", KILLED, str(path), config], env=environment)

    whole = RunFolder.create(tmp_path / "whole", experiment.as_dict())
    assert start(whole.path).wait() == 0
    broken = RunFolder.create(tmp_path / "broken", experiment.as_dict())
    first = broken.path / "records" / "seed0-pass0.jsonl"
    kills = 0
    for target in (2_000, 40_000, 100_000):
        process = start(broken.path)
        while process.poll() is None:
            if first.exists() and first.stat().st_size > target:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        process.wait()
    with first.open("ab") as file:
        file.write(b'{"half a line')
    assert kills >= 2
    assert start(broken.path).wait() == 0
    assert lines(broken.path) == lines(whole.path)


def test_a_finished_run_is_left_as_it_is(data, tmp_path):
    experiment = settings(data, seeds=1)
    before = run(tmp_path / "run", experiment, jobs=1)
    run_experiment(RunFolder.open(tmp_path / "run"), experiment, jobs=1)
    assert lines(tmp_path / "run") == before


OWN = """
import numpy as np
from adcs.schedulers import Cohort, Scheduler

class First(Scheduler):
    def _select(self, server_round, clients, m):
        np.float64(1e300) * np.array([1e300])
        return Cohort.of(clients[:m])
"""


def test_a_diverging_run_shows_only_the_warnings_of_a_users_own_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = 1e30 * rng.standard_normal((40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "big.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (tmp_path / "first.py").write_text(OWN)
    experiment = Experiment.of(
        data=str(tmp_path / "big.npz"),
        schedulers=["LiveADCS", f"{tmp_path}/first.py:First"],
        partition="iid",
        clients=10,
        m=4,
        rounds=10,
        eval_every=5,
    )
    folder = create_run(tmp_path / "run", experiment)
    (task,) = tasks(experiment)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        run_task(folder, experiment, task, lambda rounds: None)
    assert {Path(each.filename).name for each in shown} == {"first.py"}


def test_seeds_differ_and_schedulers_share_their_partition(data):
    experiment = settings(data)
    one, again, other = (experiment.simulation(seed) for seed in (0, 0, 1))
    first = one.federation.partition.train[0]
    np.testing.assert_array_equal(first, again.federation.partition.train[0])
    assert not np.array_equal(first, other.federation.partition.train[0])


def test_a_run_folder_may_lack_a_setting_that_is_off_by_default(tmp_path: Path, data: str) -> None:
    folder = create_run(tmp_path / "run", settings(data))
    file = folder.path / "config.json"
    config = json.loads(file.read_text())
    del config["data"]["histogram_epsilon"]
    file.write_text(json.dumps(config))
    assert experiment_of(RunFolder.open(folder.path)) == settings(data)
    del config["data"]["label"]
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"data\.label is missing"):
        experiment_of(RunFolder.open(folder.path))
