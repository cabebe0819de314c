"""Jobs on NVFlare's simulator: the example, its restart, and sites that fail."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs adcs[nvflare]")

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.job_config.api import FedJob

import adcs
from adcs.federated import Recorder
from adcs.nvflare import ScheduledFedAvg
from adcs.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "nvflare-digits" / "job.py"
LIMIT = 400.0
"""Seconds until a job is given up."""
LOST = re.compile("Communication error with client|Subprocess died for client")
"""What the simulator logs if a client's process does not start: two may have drawn one port."""
ATTEMPTS = 3
"""How often a job is run if the simulator loses a client's process."""


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def source_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's processes import this library from where the test does."""
    paths = [str(Path(adcs.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def run_example(folder: Path, rounds: Sequence[int]) -> list[str]:
    """Run the example one time after the other; return what each has printed and logged."""
    printed = []
    for number in rounds:
        done = subprocess.run(
            [sys.executable, EXAMPLE, "--folder", folder, "--rounds", str(number)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=folder.parent,
        )
        printed.append(done.stdout + done.stderr)
    return printed


def test_the_example_runs_and_continues(tmp_path: Path) -> None:
    for attempt in range(ATTEMPTS):
        folder = tmp_path / f"run-{attempt}"
        try:
            printed = run_example(folder, (3, 2))
            break
        except subprocess.TimeoutExpired as error:
            if attempt + 1 == ATTEMPTS or not LOST.search(f"{error.stdout!r}{error.stderr!r}"):
                raise
    assert "\nround 3: site-" in printed[0], printed[0][-6000:]
    assert "\nround 5: site-" in printed[1], printed[1][-6000:]
    lines = list(RunFolder.open(folder).records())
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4, 5]
    assert [len(line["probed"]) for line in lines] == [5, 0, 5, 0, 5]
    for line in lines:
        assert len(line["trained"]) == 3
        for name in ("refused", "failed", "timed_out", "without_mod"):
            assert not line[name]
        assert len(line["accuracy"]) == 5
    # A probe for sketches makes all five train, and then the cohort.
    assert lines[-1]["updates"] == 3 * 5 + 5 * 3
    sketch, whole = 64, 4 * 650
    assert lines[0]["bytes_up"] < 3 * (whole + 100) + 5 * (sketch + 200)
    assert "new best validation metric" in printed[1]
    assert lines[-1]["average"] > lines[0]["average"]
    explained = subprocess.run(
        [sys.executable, "-m", "adcs", "explain", folder, "--round", "3"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "site-" in explained.stdout


def run_failing_sites(folder: Path, width: int) -> None:
    executor = load(Path(__file__).with_name("site_executor.py")).SiteExecutor()
    job = FedJob(name="faults", min_clients=2)
    job.to_server(
        ScheduledFedAvg(
            scheduler="Uniform", num_clients=5, num_rounds=9, timeout=20, folder=str(folder)
        )
    )
    job.to_server(NPModelPersistor(model=[0.0] * width), id="persistor")
    job.to_clients(executor, tasks=["train"])
    job.simulator_run(str(folder.with_name(f"{folder.name}-workspace")), n_clients=5, threads=5)


def test_failing_sites_are_survived(tmp_path: Path, capfd: Any) -> None:
    width = 3
    for attempt in range(ATTEMPTS):
        folder = tmp_path / f"run-{attempt}"
        run_failing_sites(folder, width)
        if not LOST.search("".join(capfd.readouterr())):
            break
    lines = list(RunFolder.open(folder).records())
    assert len(lines) == 9
    first = lines[0]
    assert first["trained"] == ["site-1", "site-5"]
    assert [(each["client"], each["reason"]) for each in first["failed"]] == [
        ("site-2", "EXECUTION_EXCEPTION")
    ]
    assert [each["client"] for each in first["refused"]] == ["site-3"]
    assert first["timed_out"] == {"training": ["site-4"]}
    assert "site-4" in lines[1]["pending"]
    late = [(each["client"], each["server_round"]) for line in lines for each in line["late"]]
    assert late == [("site-4", 1)]
    w = np.zeros(width, dtype=np.float32)
    for line in lines:
        sites = [int(site.rpartition("-")[2]) for site in line["trained"]]
        w = w + np.float32(0.5) * (np.float32(np.mean(sites)) - w)
    saved = Recorder(folder, adcs.Uniform(), "nvflare", {}).model
    assert saved is not None
    np.testing.assert_allclose(saved["numpy_key"], w, rtol=1e-5)
