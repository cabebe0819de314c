"""Recorded selections: cohorts of every round, reasons at evaluated rounds, resumed and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

from adcs.cli.app import app
from adcs.experiments import runner
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.explain import replay, sentence
from adcs.experiments.merge import merge_parts
from adcs.experiments.page.simulation import client_runs
from adcs.experiments.page.source import RunSource
from adcs.experiments.runner import (
    create_run,
    layout,
    recorded_choice,
    run_experiment,
    run_task,
    tasks,
)
from adcs.experiments.selections import (
    CohortLayout,
    choice_of,
    cosines_of,
    plane,
    read_cohorts,
    selection_lines,
)
from adcs.observers import Observer, SelectionEvent
from adcs.run_folder import RunFolder
from adcs.schedulers.choice import pack_cosines, unpack_cosines


def small(**changes: object) -> Experiment:
    values = {
        "data": "synthetic:per_cluster=40",
        "clients": 10,
        "m": 4,
        "rounds": 20,
        "eval_every": 5,
        "lr": 0.05,
    }
    values |= {"schedulers": ["Uniform", "ADCS", "LiveADCS"], "pass_width": 3}
    return Experiment.of(**{**values, **changes})


def files(folder: RunFolder) -> dict[str, bytes]:
    found = {}
    for part in ("records", "selections"):
        found |= {f"{part}/{p.name}": p.read_bytes() for p in (folder.path / part).iterdir()}
    return found


@given(st.data())
def test_cohorts_come_back_as_sets(data: st.DataObject) -> None:
    clients = data.draw(st.sampled_from([1, 7, 8, 9, 300, 70000]))
    m = data.draw(st.integers(1, min(clients, 5)))
    cohort = st.lists(st.integers(0, clients - 1), max_size=m, unique=True)
    rounds = data.draw(st.integers(0, 3))
    runs = [data.draw(st.lists(cohort, min_size=rounds, max_size=rounds)) for _ in range(2)]
    layout = CohortLayout(2, clients, m)
    packed = layout.pack(runs)
    assert len(packed) == rounds * layout.stride
    found = layout.unpack(packed + b"\0" * (layout.stride - 1))  # a round that a crash cut short
    assert [[c.tolist() for c in run] for run in found] == [
        [sorted(c) for c in run] for run in runs
    ]


def cohorts_of(folder: RunFolder, experiment: Experiment) -> list[list[NDArray[np.intp]]]:
    (task,) = tasks(experiment)
    form = layout(experiment, task, folder.config.get("cohort_slots"))
    return read_cohorts(folder, task.name, form)


class Cohorts(Observer):
    def __init__(self) -> None:
        self.found: dict[str, list[list[int]]] = {}

    def on_selection(self, event: SelectionEvent) -> None:
        self.found.setdefault(event.run, []).append(sorted(event.cohort.clients))


def test_every_round_is_recorded(tmp_path: Path) -> None:
    experiment = small(network={"availability": 0.7, "dropout": 0.3})
    folder = create_run(tmp_path / "run", experiment)
    run_experiment(folder, experiment, jobs=1)
    (task,) = tasks(experiment)
    observer = Cohorts()
    simulation = experiment.simulation(task.seed, task.labels, experiment.dataset())
    simulation.observers.append(observer)
    simulation.run(20, eval_every=5)
    held = cohorts_of(folder, experiment)
    for label, cohorts in zip(task.labels, held, strict=True):
        assert [cohort.tolist() for cohort in cohorts] == observer.found[label]
    lines = list(selection_lines(folder, task.name))
    assert [line["server_round"] for line in lines] == [r for r in (0, 5, 10, 15) for _ in range(3)]
    for line in lines:
        chosen = observer.found[line["scheduler"]][line["server_round"]]
        assert sorted(line["chosen"]) == chosen
        choice = choice_of(line, 10)
        assert choice is not None
        offered = set(choice.available)
        assert not offered & set(line.get("backing_off", ()))
        if choice.explanation is not None:
            missed = {choice.known[miss.row] for miss in choice.explanation.left_out}
            assert missed | set(chosen) >= offered & set(choice.known)
    assert any(line.get("backing_off") for line in lines)


@pytest.mark.parametrize("at", [1, 5, 6, 13, 20])
def test_a_resumed_run_has_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    experiment = small()
    whole = create_run(tmp_path / "whole", experiment)
    run_experiment(whole, experiment, jobs=1)
    folder = create_run(tmp_path / "run", experiment)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)

        def stop(rounds: int) -> None:
            if rounds >= at:
                raise KeyboardInterrupt

        (task,) = tasks(experiment)
        with pytest.raises(KeyboardInterrupt):
            run_task(folder, experiment, task, stop)
    run_experiment(folder, experiment, jobs=1)
    assert files(folder) == files(whole)
    assert len(files(whole)) == 3


OWN = """
from adcs.schedulers import Cohort, Scheduler

class Twice(Scheduler):
    fixed_size = False
    supports_constraints = False

    def _select(self, server_round, clients, m):
        return Cohort.of(clients[: 2 * m])
"""


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({"round": {"over_select": 1.3}}, 6),
        ({"round": {"mode": "buffered", "concurrency": 12}}, 12),
        ({"schedulers": ["Uniform(independent=True)", "OCS(independent=True)"]}, 100),
        ({"schedulers": ["Uniform", "{folder}/twice.py:Twice"]}, 100),
    ],
)
def test_cohorts_may_be_larger_than_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], slots: int
) -> None:
    (tmp_path / "twice.py").write_text(OWN)
    changes = {"schedulers": ["Uniform"], **changes}
    changes["schedulers"] = [spec.format(folder=tmp_path) for spec in changes["schedulers"]]
    experiment = from_dict(small(clients=100, partition="iid").as_dict() | changes)
    folder = create_run(tmp_path / "run", experiment)
    assert folder.config["cohort_slots"] == slots
    run_experiment(folder, experiment, jobs=1)
    (task,) = tasks(experiment)
    observer = Cohorts()
    simulation = experiment.simulation(task.seed, task.labels, experiment.dataset())
    simulation.observers.append(observer)
    simulation.run(20, eval_every=5)
    for label, cohorts in zip(task.labels, cohorts_of(folder, experiment), strict=True):
        assert [cohort.tolist() for cohort in cohorts] == observer.found[label]
    assert max(len(cohort) for cohort in observer.found[task.labels[-1]]) > 4
    stopped = create_run(tmp_path / "stopped", experiment)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)

        def stop(rounds: int) -> None:
            if rounds >= 13:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_task(stopped, experiment, task, stop)
    run_experiment(stopped, experiment, jobs=1)
    assert files(stopped) == files(folder)
    for run in client_runs(RunSource(folder), experiment, 0):
        assert [cohort.tolist() for cohort in run.cohorts] == observer.found[run.label]


@pytest.mark.parametrize("name", ["ClusteredSampling", "FedCS", "REFL(adaptive=True)", "TiFL"])
def test_files_of_smaller_cohorts_stay_as_they_were(tmp_path: Path, name: str) -> None:
    experiment = small(
        clients=100, partition="iid", schedulers=[name], network={"availability": 0.9}
    )
    folder = create_run(tmp_path / "run", experiment)
    assert "cohort_slots" not in folder.config
    run_experiment(folder, experiment, jobs=1)
    (task,) = tasks(experiment)
    assert (folder.path / "selections" / f"{task.name}.cohorts").stat().st_size == 20 * 4 * 2


def test_a_cohort_that_does_not_fit_is_refused_in_a_sentence() -> None:
    layout = CohortLayout(runs=1, clients=100, m=4)
    with pytest.raises(ValueError, match="room for 4 clients of a cohort, got 5"):
        layout.pack([[range(5)]])


def test_a_run_of_an_earlier_version_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small()
    folder = create_run(tmp_path / "run", experiment)
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)
    (task,) = tasks(experiment)

    def stop(rounds: int) -> None:
        if rounds >= 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_task(folder, experiment, task, stop)
    for path in (folder.path / "selections").iterdir():
        path.unlink()
    (folder.path / "selections").rmdir()
    run_experiment(folder, experiment, jobs=1)
    cohorts = cohorts_of(folder, experiment)[0]
    assert [len(cohort) for cohort in cohorts] == [0] * 10 + [4] * 10
    assert {line["server_round"] for line in selection_lines(folder, task.name)} == {10, 15}


def test_parts_are_merged_with_their_selections(tmp_path: Path) -> None:
    experiment = small(seeds=2)
    whole = create_run(tmp_path / "whole", experiment)
    run_experiment(whole, experiment, jobs=1)
    for i in (1, 2):
        part = create_run(tmp_path / f"part{i}", experiment, part=(i, 2))
        run_experiment(part, experiment, jobs=1)
    merge_parts(tmp_path / "all", [tmp_path / "part1", tmp_path / "part2"])
    assert files(RunFolder.open(tmp_path / "all")) == files(whole)


def test_a_recorded_choice_is_that_of_a_replay(tmp_path: Path) -> None:
    experiment = small()
    folder = create_run(tmp_path / "run", experiment)
    run_experiment(folder, experiment, jobs=1)
    recorded = recorded_choice(folder, experiment, 0, "ADCS", 10)
    replayed, _, _ = replay(experiment, 0, "ADCS", 10)
    assert recorded is not None
    for client in range(10):
        assert sentence(recorded, client) == sentence(replayed, client)
    assert recorded_choice(folder, experiment, 0, "ADCS", 11) is None


def test_explain_replays_only_between_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small()
    folder = create_run(tmp_path / "run", experiment)
    run_experiment(folder, experiment, jobs=1)
    words = ["explain", str(folder.path), "--scheduler", "ADCS", "--round"]
    replayed = CliRunner().invoke(app, [*words, "11"])
    assert replayed.exit_code == 0

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a replay")

    monkeypatch.setattr("adcs.experiments.explain.replay", refuse)
    found = CliRunner().invoke(app, [*words, "10"])
    assert found.exit_code == 0
    assert "Left out" in found.output
    assert isinstance(CliRunner().invoke(app, [*words, "11"]).exception, AssertionError)


def test_a_scheduler_that_cannot_be_explained_is_recorded_without_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no reports of this kind")

    monkeypatch.setattr("adcs.experiments.selections.explain_choice", fail)
    experiment = small()
    folder = create_run(tmp_path / "run", experiment)
    (task,) = tasks(experiment)
    run_task(folder, experiment, task, lambda rounds: None)
    lines = list(selection_lines(folder, task.name))
    assert len(lines) == 12
    assert all("choice" not in line and len(line["chosen"]) == 4 for line in lines)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    experiment = small()
    folder = create_run(tmp_path / "run", experiment)
    (folder.path / "selections" / "seed0-pass0.jsonl").write_text('{"server_round": 0}\n')
    with pytest.raises(ValueError, match=r"seed0-pass0\.jsonl, line 1 is broken"):
        list(selection_lines(folder, "seed0-pass0"))


def test_many_clients_have_a_plane_and_cosines_of_a_sample(tmp_path: Path) -> None:
    experiment = small(
        data="synthetic:per_cluster=400", clients=260, m=10, rounds=2, eval_every=1, partition="iid"
    )
    folder = create_run(tmp_path / "run", experiment)
    run_experiment(folder, experiment, jobs=1)
    (task,) = tasks(experiment)
    line = next(selection_lines(folder, task.name))
    assert np.array(line["plane"]).shape == (260, 2)
    cosines = unpack_cosines(line["cosines"], 200)
    assert np.linalg.eigvalsh(cosines).min() > -0.1


def test_the_plane_is_that_of_principal_components() -> None:
    rng = np.random.default_rng(0)
    for n in (20, 250):  # above 200 by another routine
        x = rng.standard_normal((n, 6)) * [5, 3, 1, 1, 0.5, 0.1]
        x /= np.linalg.norm(x, axis=1)[:, None]
        found = plane(x @ x.T)
        centred = x - x.mean(axis=0)
        u, s, _ = np.linalg.svd(centred, full_matrices=False)
        expected = u[:, :2] * s[:2]
        signs = np.sign((expected * found).sum(axis=0))
        np.testing.assert_allclose(found, expected * signs, atol=1e-3)


def test_cosines_are_packed_to_half_a_step() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((15, 4))
    c = cosines_of(x @ x.T)
    assert np.abs(unpack_cosines(pack_cosines(c), 15) - c).max() <= 0.5 / 127 + 1e-12
    x[3] = 0.0
    assert not cosines_of(x @ x.T)[3].any()
