"""A Ray cluster of several nodes: same bytes as in one process, whatever node is lost."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from adcs.cli.app import app
from adcs.experiments import cluster as cluster_module
from adcs.experiments import ray_connection, runner
from adcs.experiments.config import Experiment
from adcs.experiments.own_files import own_files
from adcs.experiments.runner import create_run, run_experiment, tasks, unfinished
from adcs.run_folder import RunFolder

MINE = """
import os
import time
from adcs import Uniform

class Mine(Uniform):
    def __init__(self, *, fails=None, dies=None, shows=None, **more):
        super().__init__(**more)
        self.fails, self.dies, self.shows = fails, dies, shows

    def _select(self, server_round, available, m):
        if server_round == 0 and self.shows is not None:
            with open(self.shows, "w") as file:
                file.write(str(os.getppid()))  # the raylet of the worker's node
        while server_round == 1500 and os.path.exists(f"{self.shows}.hold"):
            time.sleep(0.05)
        if server_round == self.fails:
            raise KeyError("battery")
        if server_round == self.dies:
            os._exit(9)
        return super()._select(server_round, available, m)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head without CPUs and two nodes with one each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's files, among them the address for "auto"; paths of sockets must be short.
        folder = tempfile.mkdtemp(prefix="adcs-")
        patch.setenv("RAY_TMPDIR", folder)
        health = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 1000,
            "health_check_failure_threshold": 5,
        }
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": health}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The user's own data and scheduler."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 60)
    x = (2 * rng.standard_normal((5, 8)))[y] + rng.standard_normal((300, 8))
    np.savez(tmp_path / "blobs.npz", x_train=x, y_train=y, x_test=x[::3], y_test=y[::3])
    (tmp_path / "mine.py").write_text(MINE)
    return {"data": tmp_path / "blobs.npz", "scheduler": tmp_path / "mine.py"}


def settings(files: dict[str, Path], mine: str = "Mine", **more: Any) -> Experiment:
    values = {"data": str(files["data"]), "clients": 15, "m": 6, "eval_every": 20, "lr": 0.05}
    schedulers = {"Uniform": "Uniform", "ADCS": "ADCS(refresh_every=7)", "OCS": "OCS"}
    schedulers["Mine"] = f"{files['scheduler']}:{mine}"
    return Experiment.of(**{**values, "rounds": 40, "schedulers": schedulers, **more})


def content(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder.path / "records").iterdir()}


def whole(path: Path, experiment: Experiment) -> dict[str, bytes]:
    """The records of a run in one process."""
    folder = create_run(path, experiment)
    run_experiment(folder, experiment, jobs=1)
    return content(folder)


def interrupt(done: int, total: int) -> None:
    """End a run in the middle, as Ctrl-C does."""
    if done >= total / 3:
        raise KeyboardInterrupt


def test_a_node_killed_in_the_middle_costs_no_line(
    nodes: Any,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shows = tmp_path / "raylet"
    experiment = settings(files, f"Mine(shows={str(shows)!r})", rounds=2500, seeds=2)
    expected = whole(tmp_path / "whole", experiment)
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", 0.05)
    monkeypatch.setattr(cluster_module, "STEP_SECONDS", 0.02)
    folder = create_run(tmp_path / "run", experiment)
    hold = shows.with_suffix(".hold")
    hold.touch()
    shown = []

    def progress(done: int, total: int) -> None:
        """Kill the node that runs the first task with Mine, once it has a checkpoint."""
        shown.append(done / total)
        task = next(task for task in tasks(experiment) if "Mine" in task.labels)
        if len(nodes.worker_nodes) == 2 and folder.read_checkpoint(task.name) is not None:
            raylets = {raylet(node): node for node in nodes.worker_nodes}
            nodes.remove_node(raylets[int(shows.read_text())], allow_graceful=False)
            hold.unlink()

    with caplog.at_level(logging.WARNING):
        run_experiment(folder, experiment, progress=progress, cluster=nodes.address)
    nodes.add_node(num_cpus=1)
    assert content(folder) == expected
    assert unfinished(folder, experiment) == []
    assert shown[-1] == 1.0
    losses = [record.args for record in caplog.records if "lost its worker" in record.message]
    assert losses
    for _, done, saved in losses:
        assert 0 < saved <= done


def raylet(node: Any) -> int:
    """The process id of a node's raylet."""
    (found,) = node.all_processes["raylet"]
    return int(found.process.pid)


def test_runs_move_between_machine_and_cluster(
    nodes: Any, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = settings(files, rounds=2000)
    expected = whole(tmp_path / "whole", experiment)
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", 0.1)
    monkeypatch.setattr(cluster_module, "STEP_SECONDS", 0.05)
    begun = create_run(tmp_path / "begun", experiment)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(begun, experiment, progress=interrupt, cluster=nodes.address)
    task = tasks(experiment)[0]
    other = create_run(tmp_path / "other", experiment)
    with pytest.raises(KeyboardInterrupt):
        runner.run_task(other, experiment, task, lambda rounds: interrupt(rounds, 2000))
    for folder, where in ((begun, None), (other, "auto")):
        assert folder.read_checkpoint(task.name) is not None
        assert unfinished(folder, experiment)
        run_experiment(folder, experiment, jobs=1, cluster=where)
        assert content(folder) == expected


def command(files: dict[str, Path], out: Path, mine: str, *more: object) -> Result:
    words = ["compare", "--data", files["data"], "--clients", 15, "--m", 6, "--rounds", 40]
    words += ["-s", f"{files['scheduler']}:{mine}", "--out", out, "--jobs", 1, *more]
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("adcs: ")]
    return line


def test_an_error_of_a_scheduler_is_the_same_sentence(
    nodes: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    sentence = refused(command(files, here, "Mine(fails=7)"))
    assert "scheduler Mine failed in round 7: KeyError: 'battery' (mine.py, line " in sentence
    far = refused(command(files, there, "Mine(fails=7)", "--cluster", nodes.address))
    assert far.removesuffix(f" --cluster {nodes.address}") == sentence.replace(
        str(here), str(there)
    )
    assert content(RunFolder.open(here)) == content(RunFolder.open(there))


def test_a_task_that_always_ends_its_worker_ends_the_run(
    nodes: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sentence = refused(command(files, out, "Mine(dies=7)", "--cluster", nodes.address))
    assert "seed0-pass0 lost its worker 3 times without reaching a checkpoint" in sentence
    assert f"resume with: adcs compare --resume {out} --cluster {nodes.address}" in sentence


def test_other_versions_are_refused(
    nodes: Any, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = cluster_module.all_versions()
    monkeypatch.setattr(cluster_module, "all_versions", lambda: {**held, "scipy": "1.0"})
    sentence = refused(command(files, tmp_path / "run", "Mine", "--cluster", nodes.address))
    assert f"has scipy {held['scipy']}, the driver 1.0; results could differ" in sentence


def test_an_unreachable_cluster_is_one_sentence(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(ray_connection, "CONNECT_SECONDS", 3.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        sentence = refused(command(files, tmp_path / "a", "Mine", "--cluster", address))
        assert f"the Ray cluster at {address} cannot be reached: connection refused" in sentence
        server.listen()
        sentence = refused(command(files, tmp_path / "b", "Mine", "--cluster", address))
        assert f"the Ray cluster at {address} cannot be reached: no answer in 3 s" in sentence
    assert f"resume with: adcs compare --resume {tmp_path / 'b'}" in sentence


def test_missing_ray_is_one_sentence(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = refused(command(files, tmp_path / "run", "Mine", "--cluster", "auto"))
    assert "pip install 'adcs[cluster]'" in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "", "local"])
def test_other_addresses_are_refused(address: str, files: dict[str, Path], tmp_path: Path) -> None:
    sentence = refused(command(files, tmp_path / "run", "Mine", "--cluster", address))
    assert f"cluster must be auto or HOST:PORT, got {address!r}" in sentence
    assert not (tmp_path / "run").exists()


def test_files_that_settings_name_are_shipped(files: dict[str, Path], tmp_path: Path) -> None:
    table = tmp_path / "speeds.csv"
    table.write_text("client,speed\n")
    config = {**settings(files).as_dict(), "network": {"trace": str(table), "dropout": 0.1}}
    assert own_files(config) == {
        str(table): table.read_bytes(),
        str(files["scheduler"]): MINE.encode(),
    }


def test_page_runs(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "cluster.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(page), "exec", dont_inherit=True), names)
    assert unfinished(names["folder"], names["experiment"]) == []
