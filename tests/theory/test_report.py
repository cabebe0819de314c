"""The theory beside runs of the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adcs.experiments.config import Experiment
from adcs.experiments.theory import draw, policies
from adcs.run_folder import RunFolder
from adcs.schedulers import ADCS, Uniform
from adcs.simulation.datasets import from_arrays
from adcs.simulation.engine import Simulation
from adcs.simulation.federation import Federation
from adcs.simulation.models import MLP
from adcs.simulation.partition import make_partition
from adcs.simulation.training import Training
from adcs.theory import bias, check_clusters, report, softmax_smoothness
from adcs.theory.report import Policy, analyse

ROUNDS, M, LR = 12, 4, 0.02
SPECS = {"Uniform": "Uniform", "ADCS": "ADCS(theta=0.5, refresh_every=1)"}
POLICIES = {"Uniform": Policy(unbiased=True), "ADCS": Policy(theta=0.5)}


@pytest.fixture(scope="module", params=["sgd", "full"])
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


def hand_made(path: Path, weights: list[float], steps: int = 1, **more) -> RunFolder:
    """Two rounds of three clients with orthogonal updates of lengths 1, 2 and 3."""
    config = {"m": 2, "lr": 0.01, "rounds": 2, "steps": steps, "schedulers": {"own": "own"}}
    folder = RunFolder.create(path, {**config, **more})
    gram = np.diag([1.0, 4.0, 9.0])
    gap = np.array(weights) - 1 / 3
    with folder.writer("task") as lines:
        for server_round in range(2):
            lines.append(
                {
                    "scheduler": "own",
                    "seed": 0,
                    "server_round": server_round,
                    "bias": float(np.sqrt(gap @ gram @ gap)),
                    "gradient_norm": float(np.sqrt(14.0) / 3.0),
                    "cohort_weights": weights,
                    "gram": gram[np.triu_indices(3)].tolist(),
                    "batch_losses": [2.0, 1.0, 3.0],
                }
            )
    return folder


def test_an_unfinished_run_has_the_rounds_that_are_done(tmp_path: Path) -> None:
    given = {"groups": [0, 0, 1], "smoothness": 2.0}
    whole = analyse(hand_made(tmp_path / "whole", [0.5, 0.5, 0.0]), **given)
    assert not any("unfinished" in note for note in whole.notes)
    schedulers = {"own": "own", "other": "other"}
    folder = hand_made(
        tmp_path / "part", [0.5, 0.5, 0.0], rounds=50, seeds=2, schedulers=schedulers
    )
    part = analyse(folder, **given)
    assert part.convergence == whole.convergence  # T is 2 in both.
    assert part.notes[0].startswith(
        "This run is unfinished. Rounds done, of 50: own 2, other none, seed 1 none."
    )


def test_no_sigma_without_groups(tmp_path: Path) -> None:
    folder = hand_made(tmp_path / "run", [0.5, 0.5, 0.0])
    without = "Theorem 2 has no terms here"
    for groups, why in ((None, "the run names no groups"), ([0, 1, 2], "no group has two")):
        found = analyse(folder, groups=groups)
        assert found.convergence[0]["total"] is None
        assert why in next(note for note in found.notes if note.startswith(without))
    found = analyse(folder, groups=[0, 0, 1])
    assert not any(note.startswith(without) for note in found.notes)


def test_several_steps_have_two_scales(tmp_path: Path) -> None:
    notes = analyse(hand_made(tmp_path / "run", [0.5, 0.5, 0.0], steps=5)).notes
    assert any("sums of E = 5 gradients" in note for note in notes)


def test_rounds_that_diverged_are_left_out(tmp_path: Path) -> None:
    folder = hand_made(tmp_path / "run", [0.5, 0.5, 0.0], rounds=4)
    records = list(folder.records())
    with folder.writer("task") as lines:
        for server_round in (2, 3):
            lines.append(
                {**records[-1], "server_round": server_round, "gram": [None] * 6, "bias": None}
            )
    found = analyse(folder, groups=[0, 0, 1])
    assert len(found.rounds) == 2
    note = "Rounds whose updates are not finite are left out: own, seed 0, from round 2 on."
    assert note in found.notes
    lost = hand_made(tmp_path / "lost", [0.5, 0.5, 0.0])
    with lost.writer("task", offset=0) as lines:
        lines.append({**records[0], "batch_losses": [None] * 3})
    with pytest.raises(ValueError, match="no round whose updates are finite: its training"):
        analyse(lost)


def test_an_error_names_the_record(tmp_path: Path) -> None:
    folder = hand_made(tmp_path / "run", [0.5, 0.5, 0.0])
    with pytest.raises(ValueError, match=r"^own, seed 0, round 0: labels must name a cluster"):
        analyse(folder, groups=[0, 1])


def test_an_update_of_zero_has_no_cluster(tmp_path: Path) -> None:
    folder = hand_made(tmp_path / "run", [0.5, 0.5, 0.0])
    record = next(folder.records())
    with folder.writer("task", offset=0) as lines:
        lines.append({**record, "gram": [0.0, 0.0, 0.0, 4.0, 0.0, 9.0]})
    (row,) = analyse(folder).rounds
    assert row["theorem1"] is None
    assert row["general"] > 0.0
    assert analyse(folder, groups=[0, 0, 1]).rounds[0]["theorem1"] is not None


def test_rounds_have_the_theorem_s_quantities(tmp_path: Path) -> None:
    row = analyse(hand_made(tmp_path / "run", [0.5, 0.5, 0.0]), groups=[0, 0, 1]).rounds[0]
    # Clients 0 and 1, at right angles and of lengths 1 and 2, have their mean between them.
    assert row["mu"] == pytest.approx(0.0)
    assert row["r"] == row["kappa"] == pytest.approx(np.sqrt(5) / 2)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("weights", [[0.5, 0.5, 0.0], [0.75, 0.25, 0.0]])
@pytest.mark.parametrize("unbiased", [True, False])
def test_theorem_2_by_hand(tmp_path: Path, steps: int, weights: list[float], unbiased) -> None:
    folder = hand_made(tmp_path / "run", weights, steps)
    policies = {"own": Policy(unbiased=unbiased)}
    # Clients 0 and 1 are of one kind: their mean noise is half of |g_0 - g_1|^2 = 5.
    row = analyse(folder, policies=policies, groups=[0, 0, 1], smoothness=2.0).convergence[0]
    gap = np.array(weights) - 1 / 3
    eta, m = 0.01 * steps, 1.0 / np.square(weights).sum()
    epsilon = 0.0 if unbiased else np.sqrt(gap**2 @ [1.0, 4.0, 9.0]) / steps
    variance = (14.0 / 3.0 - 14.0 / 9.0) / 4.0 / steps**2 if unbiased else 0.0
    noise = 2.5 / steps
    terms = {
        "optimisation": 4 * 2.0 / (eta * 2),
        "bias": 5 * epsilon**2,
        "variance": 16 * 2.0 * eta * (variance + noise / (m * steps)),
        "drift": 5 / 6 * 4.0 * 1e-4 * (3.0 / steps) ** 2 * (steps - 1) * (2 * steps - 1),
    }
    for name, value in terms.items():
        assert row[name] == pytest.approx(value), name
    assert row["measured"] == pytest.approx(14.0 / 9.0 / steps**2)


def test_theorem_1_asks_how_the_scheduler_chooses(tmp_path: Path, monkeypatch) -> None:
    folder = hand_made(tmp_path / "run", [0.5, 0.5, 0.0])
    seen, thetas = [], []

    def watched(**given):
        thetas.append(given["theta"])
        return check_clusters(**given)

    monkeypatch.setattr(report, "check_clusters", watched)

    def quality(losses, norms):
        seen.append((losses.tolist(), norms.tolist()))
        return norms

    analyse(folder, policies={"own": Policy(theta=0.5, quality=quality)}, groups=[0, 1, 2])
    assert seen == [([2.0, 1.0, 3.0], [1.0, 2.0, 3.0])] * 2
    assert thetas == [0.5, 0.5]
    unknown = analyse(folder, policies={"own": Policy(theta=None)}, groups=[0, 1, 2])
    assert unknown.schedulers[0]["failed"] is None
    assert unknown.schedulers[0]["theorem1"] is None


@pytest.mark.parametrize(
    ("spec", "network", "theta", "unbiased"),
    [
        ("Uniform", {}, 0.0, True),
        ("Uniform", {"spread": 0.5}, 0.0, True),
        ("Uniform", {"availability": 0.4}, 0.0, False),
        ("Uniform(by_size=True)", {}, 0.0, False),
        ("Uniform(independent=True)", {}, 0.0, False),
        ("Uniform(required=[0])", {}, 0.0, False),
        ("ADCS", {}, 0.8, False),
        ("ADCS(quality='norm', scale='rank')", {}, 0.8, False),
        ("ADCS(gamma=0.5)", {}, None, False),
        ("StaticDPP", {}, 0.0, False),
        ("LiveADCS", {}, None, False),
    ],
)
def test_policies(spec: str, network: dict, theta: float | None, unbiased: bool) -> None:
    experiment = Experiment.of(schedulers={"one": spec}, network=network)
    policy = policies(experiment)["one"]
    assert (policy.theta, policy.unbiased) == (theta, unbiased)
    if "norm" in spec:
        ranks = policy.quality(np.zeros(3), np.array([3.0, 1.0, 2.0]))
        assert ranks.tolist() == [1.0, 0.0, 0.5]


def test_clusters_are_found_when_no_groups_are_named(run) -> None:
    folder, *_ = run
    analysis = analyse(folder)
    assert all(row["masses"] is not None for row in analysis.rounds)
    assert all(row["structured"] for row in analysis.rounds)
    assert any("found in 24 of 24 rounds" in note for note in analysis.notes)
    assert analyse(folder, groups=[0] * 9).schedulers[0]["structured"] is None  # not sought


def test_clusters_of_one_each_are_not_violated_by_rounding(run) -> None:
    folder, *_ = run
    analysis = analyse(folder, groups=range(9))
    # Then r = 0 and the theorem's right-hand side is the bias itself, from rounded numbers.
    gaps = [row["bias"] - row["theorem1"] for row in analysis.rounds]
    assert max(map(abs, gaps)) < 1e-4
    assert max(gaps) > 0.0
    assert [row["above_theorem1"] for row in analysis.schedulers] == [0.0, 0.0]


def noise_run(folder: Path, structured: int, rounds: int = 10) -> RunFolder:
    """Write a run of 12 clients whose updates are noise, but for some rounds with clusters."""
    rng = np.random.default_rng(0)
    config = {"m": 3, "lr": 0.1, "rounds": rounds, "schedulers": {"Uniform": "Uniform"}}
    run = RunFolder.create(folder, config)
    with run.writer("task") as lines:
        for now in range(rounds):
            updates = rng.normal(size=(12, 200)) + 0.3
            if now < structured:
                updates += 5.0 * rng.normal(size=(4, 200))[np.arange(12) % 4]
            gram = updates @ updates.T
            chosen = np.isin(np.arange(12), rng.permutation(12)[:3]) / 3.0
            lines.append(
                {
                    "scheduler": "Uniform",
                    "seed": 0,
                    "server_round": now,
                    "bias": bias(updates, chosen=np.flatnonzero(chosen)),
                    "gradient_norm": float(np.linalg.norm(updates.mean(axis=0))),
                    "cohort_weights": chosen,
                    "gram": [float(f"{x:.6g}") for x in gram[np.triu_indices(12)]],
                    "batch_losses": [1.0] * 12,
                }
            )
    return run


@pytest.mark.parametrize(("structured", "shown"), [(0, False), (5, False), (6, True), (10, True)])
def test_without_clusters_there_is_no_theorem_1(tmp_path, structured: int, shown: bool) -> None:
    analysis = analyse(noise_run(tmp_path / "run", structured))
    assert [row["structured"] for row in analysis.rounds] == [t < structured for t in range(10)]
    (row,) = analysis.schedulers
    assert row["structured"] == structured / 10
    for key in ("theorem1", "masses", "clusters", "above_theorem1", "failed"):
        assert (row[key] is not None) == shown
    assert row["general"] is not None
    assert any(f"found in {structured} of 10 rounds" in note for note in analysis.notes)
    assert not any("general bound only" in note for note in analysis.notes)


def test_figure(run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder, groups, _ = run
    target = draw(analyse(folder, groups=groups), tmp_path / "theory.png")
    assert target.read_bytes()[:4] == b"\x89PNG"
    assert target.stat().st_size > 20_000


def test_titles_and_legend_have_room(run, tmp_path: Path, monkeypatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    folder, groups, _ = run
    kept = []
    save = figures.Figure.savefig

    def keep(figure, *args, **more):
        kept.append(figure)
        save(figure, *args, **more)

    monkeypatch.setattr(figures.Figure, "savefig", keep)
    found = analyse(folder, groups=groups)
    names = ["ADCS(theta=0.2,refresh_every=10,quality='norm')", "a" * 80, "b" * 30]
    rows = [{**row, "scheduler": name} for name in names for row in found.rounds[:4]]
    for count in (1, 3):
        shown = [{"scheduler": name} for name in names[:count]]
        draw(replace(found, rounds=rows, schedulers=shown), tmp_path / "theory.png")
        figure = kept.pop()
        figure.draw_without_rendering()
        titles = [axes.title.get_window_extent() for axes in figure.axes]
        for box in [*titles, figure.legends[0].get_window_extent()]:
            assert 0.0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])


def test_runs_that_cannot_be_analysed(tmp_path: Path) -> None:
    by_size = RunFolder.create(tmp_path / "a", {"m": 1, "lr": 0.1, "weights": "size"})
    with pytest.raises(ValueError, match="uniform client weights"):
        analyse(by_size)
    empty = RunFolder.create(tmp_path / "b", {"m": 1, "lr": 0.1})
    with pytest.raises(ValueError, match="no inner products"):
        analyse(empty)
    with pytest.raises(ValueError, match="smoothness must be above 0"):
        analyse(empty, smoothness=0.0)


def test_weighted_cohorts_have_the_general_bound_only(tmp_path: Path) -> None:
    config = {"m": 1, "lr": 0.1, "rounds": 1, "schedulers": {"OCS": "OCS"}}
    folder = RunFolder.create(tmp_path / "run", config)
    with folder.writer("task") as lines:
        lines.append(
            {
                "scheduler": "OCS",
                "seed": 0,
                "server_round": 0,
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
