"""The theory beside runs of the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adcs.runs import RunFolder
from adcs.schedulers import ADCS, Uniform
from adcs.simulation.data import from_arrays
from adcs.simulation.engine import Simulation
from adcs.simulation.federation import Federation
from adcs.simulation.models import MLP
from adcs.simulation.partition import make_partition
from adcs.simulation.training import Training
from adcs.theory import bias, softmax_smoothness
from adcs.theory.figure import draw
from adcs.theory.report import Policy, analyse

ROUNDS, M, LR = 12, 4, 0.02
SPECS = {"Uniform": "Uniform", "ADCS": "ADCS(theta=0.5, refresh_every=1)"}
POLICIES = {"Uniform": Policy(unbiased=True), "ADCS": Policy(theta=0.5)}


@pytest.fixture(scope="module", params=["steps", "full"])
def run(request, tmp_path_factory) -> tuple[RunFolder, list[int], float]:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 60)
    x = rng.normal(size=(180, 6)).astype(np.float32) + 2.0 * np.eye(3, 6)[y]
    dataset = from_arrays(x, y, x, y)
    federation = Federation(dataset, make_partition(dataset, "by-class", 9, seed=0), batch_size=4)
    simulation = Simulation(
        federation,
        MLP(6, 3),
        {"Uniform": Uniform(seed=0), "ADCS": ADCS(theta=0.5, refresh_every=1)},
        Training(m=M, lr=LR, local=request.param),
    )
    config = {"m": M, "lr": LR, "rounds": ROUNDS, "schedulers": SPECS, "local": request.param}
    folder = RunFolder.create(tmp_path_factory.mktemp("runs") / request.param, config)
    with folder.writer("seed0") as lines:
        for _ in range(ROUNDS):
            records = simulation.evaluate()
            for record, measures in zip(records, simulation.step(measured=True), strict=True):
                lines.append({**record, **measures})
        for record in simulation.evaluate(final=True):
            lines.append(record)
    groups = [int(g) for g in np.asarray(federation.groups)]
    smoothness = max(softmax_smoothness(federation.all_of(c)[0]) for c in federation.clients)
    return folder, groups, smoothness


def test_bias_stays_under_what_always_holds(run) -> None:
    folder, groups, _ = run
    analysis = analyse(folder, groups=groups)
    assert len(analysis.rounds) == 2 * ROUNDS  # the last record has no step after it
    for row in analysis.rounds:
        slack = 1e-3 * row["general"]  # records keep six digits of inner products
        assert row["bias"] <= row["centred"] + slack <= row["general"] + 2 * slack
        assert row["bias"] <= row["masses"] + slack
        assert row["failed"][0] == "m <= K"
        assert 1 <= row["clusters"] <= 3
    assert any("m = 4 exceeds K = 3" in note for note in analysis.notes)


def test_summaries_are_means_over_rounds(run) -> None:
    folder, groups, _ = run
    analysis = analyse(folder, groups=groups)
    for summary in analysis.schedulers:
        rows = [r for r in analysis.rounds if r["scheduler"] == summary["scheduler"]]
        assert summary["bias"] == pytest.approx(np.mean([r["bias"] for r in rows]))
        assert summary["epsilon"] == max(r["bias"] for r in rows)
        assert summary["failed"]["m <= K"] == 1.0


def test_recorded_bias_is_recomputed(run) -> None:
    folder, *_ = run
    record = next(folder.records())
    n = len(record["cohort_weights"])
    gram = np.zeros((n, n))
    gram[np.triu_indices(n)] = record["gram"]
    gram += np.triu(gram, 1).T
    chosen = np.flatnonzero(record["cohort_weights"])
    assert bias(gram=gram, chosen=chosen) == pytest.approx(record["bias"], rel=1e-3)


def test_theorem_2_beside_the_run(run) -> None:
    folder, groups, smoothness = run
    assert smoothness <= 1 / (8 * LR)
    analysis = analyse(folder, policies=POLICIES, groups=groups, smoothness=smoothness)
    uniform, adcs = analysis.convergence
    assert uniform["bias"] == 0.0 < uniform["nu_sel"]
    assert adcs["nu_sel"] == 0.0 < adcs["bias"]
    assert (adcs["sigma"] == 0.0) == (folder.config["local"] == "full")
    loose = analyse(folder, policies=POLICIES, groups=groups).convergence
    for row, wider in zip(analysis.convergence, loose, strict=True):
        assert row["total"] == pytest.approx(
            row["optimisation"] + row["bias"] + row["variance"] + row["drift"]
        )
        assert row["measured"] <= row["total"] <= wider["total"]
    too_large = analyse(folder, groups=groups, smoothness=1.01 / (8 * LR))
    assert too_large.convergence == []
    assert any("Theorem 2 does not apply" in note for note in too_large.notes)


def test_clusters_are_found_when_no_groups_are_named(run) -> None:
    folder, *_ = run
    analysis = analyse(folder)
    assert all(row["masses"] is not None for row in analysis.rounds)
    assert any("Clusters were found" in note for note in analysis.notes)


def test_figure(run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder, groups, _ = run
    target = draw(analyse(folder, groups=groups), tmp_path / "theory.png")
    assert target.read_bytes()[:4] == b"\x89PNG"
    assert target.stat().st_size > 20_000


def test_runs_that_cannot_be_analysed(tmp_path: Path) -> None:
    by_size = RunFolder.create(tmp_path / "a", {"m": 1, "lr": 0.1, "weights": "size"})
    with pytest.raises(ValueError, match="uniform client weights"):
        analyse(by_size)
    empty = RunFolder.create(tmp_path / "b", {"m": 1, "lr": 0.1})
    with pytest.raises(ValueError, match="no inner products"):
        analyse(empty)


def test_weighted_cohorts_have_the_general_bound_only(tmp_path: Path) -> None:
    config = {"m": 1, "lr": 0.1, "rounds": 1, "schedulers": {"OCS": "OCS"}}
    folder = RunFolder.create(tmp_path / "run", config)
    with folder.writer("task") as lines:
        lines.append(
            {
                "scheduler": "OCS",
                "seed": 0,
                "round": 0,
                "bias": 1.0,
                "gradient_norm": 0.5,
                "cohort_weights": [2.0, 0.0],
                "gram": [1.0, 0.0, 1.0],
                "batch_losses": [1.0, 2.0],
            }
        )
    row = analyse(folder, groups=[0, 1]).rounds[0]
    assert row["general"] == pytest.approx(np.hypot(1.5, 0.5))
    assert row["theorem1"] is row["masses"] is row["centred"] is None
