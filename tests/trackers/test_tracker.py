"""What every tracker does, whichever library it logs to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import adcs
from adcs.experiments import Experiment
from adcs.experiments.tracking import check_trackers
from adcs.observers import EvaluationEvent, Observer
from adcs.run_folder import RunFolder
from adcs.trackers import Tracker
from adcs.trackers.tracker import Point, safe_name


class Sometimes(Tracker):
    """Cannot log while `down`."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.points: list[Point] = []

    def _log(self, point: Point) -> None:
        if self.down:
            raise ConnectionError("no route to host")
        self.points.append(point)


def event(step: int) -> EvaluationEvent:
    return EvaluationEvent("A", 0, step, {"server_round": step, "worst": step / 10})


def test_points_wait_for_a_server_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Sometimes()
    for step in range(6):
        tracker.down = step in (2, 3)
        tracker.on_evaluation(event(step))
    assert [point.step for point in tracker.points] == [0, 1, 2, 3, 4, 5]
    (warning,) = caplog.records  # once
    assert "Sometimes cannot log (no route to host); the run continues" in warning.message


def test_what_was_never_logged_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Sometimes()
    tracker.down = True
    for step in range(3):
        tracker.on_evaluation(event(step))
    tracker.on_end()
    assert caplog.records[-1].message == "Sometimes: 3 records were not logged"
    assert caplog.records[-1].levelno == logging.WARNING


def test_observers_of_a_comparison_get_every_record_once(tmp_path: Path) -> None:
    class Kept(Observer):
        def __init__(self) -> None:
            self.records: list[Any] = []
            self.ended = 0

        def on_evaluation(self, event: EvaluationEvent) -> None:
            self.records.append(dict(event.record))

        def on_end(self) -> None:
            self.ended += 1

    kept, tracker = Kept(), Sometimes()
    found = adcs.compare(
        ["Uniform", "ADCS"],
        data="synthetic",
        clients=10,
        m=4,
        rounds=20,
        eval_every=5,
        seeds=2,
        out=tmp_path / "run",
        progress=False,
        observers=[kept, tracker],
    )

    def key(record: dict[str, Any]) -> tuple[str, int, int]:
        return record["scheduler"], record["seed"], record["server_round"]

    written = list(RunFolder.open(found.folder).records())
    assert sorted(kept.records, key=key) == sorted(written, key=key)
    assert (len(written), kept.ended) == (20, 1)
    assert tracker.config == found.experiment.as_dict()
    assert len(tracker.points) == 20


def test_an_error_of_a_task_still_ends_the_observers(tmp_path: Path) -> None:
    from adcs.experiments import create_run, run_experiment

    tracker = Sometimes()
    closed = []
    tracker._close = lambda: closed.append(True)  # type: ignore[method-assign]
    experiment = Experiment.of(data="synthetic", clients=10, m=4, schedulers=["Uniform"], rounds=5)
    folder = create_run(tmp_path / "run", experiment)
    (folder.path / "checkpoints" / "seed0-pass0").write_bytes(b"broken")
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        run_experiment(folder, experiment, observers=[tracker])
    assert closed


def test_a_tracker_without_its_library_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adcs.experiments.tracking.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"mlflow is not installed; pip install 'adcs\[trackers\]'"
    ):
        check_trackers(["mlflow"])


def test_safe_names_stay_apart() -> None:
    names = [safe_name(text) for text in ("a/b", "a:b", "a_b", "..", "", "x" * 300, "x" * 301)]
    assert len(set(names)) == len(names)
    assert not any("/" in name or name.startswith(".") for name in names)
