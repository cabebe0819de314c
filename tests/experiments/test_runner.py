"""Comparisons: same bytes on one process or two, killed and resumed or not; configs and specs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from adcs.cli.options import schedulers
from adcs.experiments.config import Experiment, from_dict, from_toml
from adcs.experiments.runner import run_experiment, tasks
from adcs.experiments.specs import make_scheduler
from adcs.run_folder import RunFolder
from adcs.simulation.network import NetworkSettings


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 60)
    x = (2 * rng.standard_normal((5, 8)))[y] + rng.standard_normal((300, 8))
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[::3], y_test=y[::3])
    return str(path)


def settings(data: str, **more):
    return from_dict(
        {
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
    experiment = settings(data, seeds=1, rounds=3000, eval_every=5)
    config = json.dumps(experiment.as_dict())
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}

    def start(path):
        return subprocess.Popen([sys.executable, "-c", KILLED, str(path), config], env=environment)

    whole = RunFolder.create(tmp_path / "whole", experiment.as_dict())
    assert start(whole.path).wait() == 0
    broken = RunFolder.create(tmp_path / "broken", experiment.as_dict())
    first = broken.path / "records" / "seed0-pass0.jsonl"
    kills = 0
    for target in (2_000, 60_000, 200_000):
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


def test_seeds_differ_and_schedulers_share_their_partition(data):
    experiment = settings(data)
    one, again, other = (experiment.simulation(seed) for seed in (0, 0, 1))
    first = one.federation.partition.train[0]
    np.testing.assert_array_equal(first, again.federation.partition.train[0])
    assert not np.array_equal(first, other.federation.partition.train[0])


class TestConfig:
    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"m": 31}, "got 31"),
            ({"m": 0}, "got 0"),
            ({"rouns": 5}, "rounds"),
            ({"rounds": 1.5}, "1.5"),
            ({"rounds": True}, "True"),
            ({"lr": 0.0}, "0.0"),
            ({"lr": "fast"}, "fast"),
            ({"local": "some"}, "steps, full"),
            ({"local": "full", "steps": 3}, "steps must be 1 where local is full, got 3"),
            ({"schedulers": []}, "at least one"),
            ({"schedulers": ["Unifrom"]}, "Uniform"),
            ({"schedulers": ["ADCS", "ADCS"]}, "distinct"),
            ({"schedulers": ["ADCS(theta=2)"]}, "theta"),
            ({"schedulers": ["ADCS(teta=1)"]}, "teta"),
            ({"schedulers": ["ADCS("]}, "must look like"),
            ({"baseline": "OSC"}, "OSC"),
            ({"network": {"speed": 1}}, "speed"),
            ({"network": {"dropout": 2}}, "dropout"),
            ({"hidden": [0]}, "hidden"),
            ({"hidden": 5}, "hidden must be a list of whole numbers, got 5"),
            ({"hidden": "8,8"}, "hidden must be a list of whole numbers, got '8,8'"),
            ({"hidden": [True]}, "hidden must be a list of whole numbers"),
            ({"server_lr": "x"}, "server_lr must be a finite number, got 'x'"),
            ({"lr": float("inf")}, "lr must be a finite number, got inf"),
            ({"lr": float("nan")}, "lr must be a finite number, got nan"),
            ({"lr": 10**400}, "lr must be a finite number"),
            ({"paper_literal_weights": "no"}, "paper_literal_weights must be true or false"),
            ({"data_folder": 3}, "data_folder must be a text, got 3"),
            ({"baseline": ["a"]}, "baseline must be a text"),
            ({"schedulers": "ADCS"}, "a list of texts or a table of texts, got 'ADCS'"),
            ({"schedulers": 3}, "schedulers must be a list of texts or"),
            ({"schedulers": [3]}, "schedulers must be a list of texts or"),
            ({"schedulers": {"a": 1}}, "got {'a': 1}"),
            ({"partition_settings": 3}, "partition_settings must be a table of values, got 3"),
            ({"partition_settings": {"copies": "maybe"}}, "by-class copies must be true or false"),
            ({"partition": "shards", "partition_settings": {"per_client": 1.5}}, "a whole number"),
            ({"network": 3}, "network must be a table of values, got 3"),
            ({"network": {"deadline": "x"}}, "network deadline must be a finite number, got 'x'"),
            ({"network": {"availability": "x"}}, "network availability must be a finite number"),
            ({"network": {"spell": 2.5}}, "network spell must be a whole number, got 2.5"),
        ],
    )
    def test_wrong_values_are_named(self, values, named):
        with pytest.raises(ValueError, match=named):
            from_dict(values)

    def test_toml_round_trip(self, tmp_path):
        path = tmp_path / "case.toml"
        path.write_text(
            'm = 6\neval-every = 10\n[schedulers]\n"theta = 0.2" = "ADCS(theta=0.2)"\n'
            "[network]\navailability = 0.5\n"
        )
        experiment = from_dict(from_toml(path))
        assert (experiment.m, experiment.eval_every) == (6, 10)
        assert experiment.schedulers == {"theta = 0.2": "ADCS(theta=0.2)"}
        assert from_dict(json.loads(json.dumps(experiment.as_dict()))) == experiment

    def test_broken_toml(self, tmp_path):
        path = tmp_path / "case.toml"
        path.write_text("m = = 6")
        with pytest.raises(ValueError, match="not valid TOML"):
            from_toml(path)
        with pytest.raises(ValueError, match="cannot be read"):
            from_toml(tmp_path / "none.toml")
        path.write_bytes(b'data = "\xff"')
        with pytest.raises(ValueError, match=r"case\.toml is not UTF-8"):
            from_toml(path)

    def test_infinite_rates_are_refused_without_a_file(self):
        with pytest.raises(ValueError, match="lr must be finite and above 0, got inf"):
            Experiment(lr=float("inf"))
        with pytest.raises(ValueError, match="server_lr must be finite and above 0, got nan"):
            Experiment(server_lr=float("nan"))

    def test_half_a_spell_is_refused(self):
        with pytest.raises(
            ValueError, match=r"spell must be a whole number from 1 to .*, got 2\.5"
        ):
            NetworkSettings(spell=2.5)  # type: ignore[arg-type]


class TestSpecs:
    def test_own_file(self, tmp_path):
        path = tmp_path / "mine.py"
        path.write_text(
            "import adcs\n"
            "class First(adcs.Scheduler):\n"
            "    def __init__(self, *, skip=0, **common):\n"
            "        super().__init__(**common)\n"
            "        self.skip = skip\n"
            "    def _select(self, server_round, clients, m):\n"
            "        return adcs.Cohort.of(self.take(clients[self.skip:], m))\n"
        )
        scheduler = make_scheduler(f"{path}:First(skip=2)", seed=4)
        assert scheduler.seed == 4
        assert scheduler.select(0, range(9), 3).clients == (2, 3, 4)

    def test_settings_may_be_tables(self):
        made = make_scheduler("Uniform(groups={0: 'a:b', 1: 'a:b'}, caps={'a:b': 1})", seed=0)
        assert made.constraints.groups == {0: "a:b", 1: "a:b"}
        assert schedulers(["site=ADCS(groups={0: 'a'}, caps=1)"])["site"].startswith("ADCS(")

    @pytest.mark.parametrize(
        ("spec", "named"),
        [
            ("nowhere.py:Thing", "there is no file nowhere.py"),
            ("json:JSONDecoder", "not a subclass"),
            ("ADCS(0.5)", "must look like"),
            ("ADCS(theta=open('x'))", "must look like"),
            ("Foo", "unknown scheduler 'Foo'; there are ADCS, DivFL"),
            ("patient.py", "file.py:Class"),
            ("ADCS(thet=0.1)", "ADCS has no setting 'thet'; did you mean theta?"),
            (
                "PowerOfChoice(d=3)",
                "PowerOfChoice has no setting 'd'; there are candidates, seed, ",
            ),
            (
                "LiveADCS(d=3)",
                "there are theta, patience, refresh_every, probe_share, sketch, seed",
            ),
            ("ADCS(theta='a')", "theta must be a finite number, got 'a'"),
            ("Uniform(by_size='no')", "by_size must be true or false, got 'no'"),
            ("ADCS(caps=1.5)", "caps must be a whole number or a table of whole numbers, got 1.5"),
        ],
    )
    def test_wrong_specs(self, spec, named):
        with pytest.raises(ValueError, match=re.escape(named)):
            make_scheduler(spec, seed=0)

    def test_a_class_of_ones_own_decides_what_it_takes(self, tmp_path):
        path = tmp_path / "loose.py"
        path.write_text(
            "from __future__ import annotations\n"
            "import adcs\n"
            "class Loose(adcs.ADCS):\n"
            "    def __init__(self, *, pair: tuple[int, str] = (), odd: Unseen = 0, **more):\n"
            "        self.hidden = more.pop('hidden', None)\n"
            "        super().__init__(**more)\n"
        )
        made = make_scheduler(
            f"{path}:Loose(hidden='x', theta=0.5, odd='y', pair=(1, 'a'))", seed=0
        )
        assert (made.hidden, made.theta) == ("x", 0.5)
        with pytest.raises(ValueError, match="Loose has no setting 'teta'; did you mean theta"):
            make_scheduler(f"{path}:Loose(teta=0.5)", seed=0)
