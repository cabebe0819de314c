"""Logs runs to MLflow."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from adcs.run_folder import plain
from adcs.trackers.tracker import Point, Tracker, flat, identifier, load_library, safe_name

KEY = "adcs.key"
"""The tag by which a run is found again."""

BATCH = 100
"""The largest number of parameters that MLflow takes in one call."""

LONGEST = 500
"""The largest number of characters of a parameter."""

NOT_A_NAME = r"[^\w ./:-]"
"""Characters that MLflow does not allow in names."""


class _Run(NamedTuple):
    id: str
    last_step: int


class MLflow(Tracker):
    """Logs to an MLflow server or database.

    Parameters
    ----------
    uri
        The tracking URI, such as "http://host:5000" or "sqlite:///mlflow.db". None takes MLflow's
        own: the environment variable MLFLOW_TRACKING_URI, or its default.
    experiment
        The name of the experiment; it is made if there is none.
    group
        The name of the comparison or federation. A run of the same group, scheduler and seed is
        continued: only steps after its last one are logged. None begins new runs.
    config
        Settings, logged as parameters; see `Tracker`.

    Examples
    --------
    >>> import tempfile
    >>> from adcs.observers import EvaluationEvent
    >>> tracker = MLflow(f"sqlite:///{tempfile.mkdtemp()}/mlflow.db", group="demo")
    >>> record = {"scheduler": "ADCS", "seed": 0, "server_round": 10, "worst": 0.6}
    >>> tracker.on_evaluation(EvaluationEvent("ADCS", 0, 10, record))
    >>> tracker.on_end()
    """

    def __init__(
        self,
        uri: str | None = None,
        *,
        experiment: str = "adcs",
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config=config)
        self._client = load_library("mlflow").MlflowClient(tracking_uri=uri)
        self._experiment = experiment
        self._group = group
        self._runs: dict[str, _Run] = {}

    def _log(self, point: Point) -> None:
        run = self._runs.get(point.name) or self._open(point)
        if point.step <= run.last_step:
            return
        now = int(time.time() * 1000)
        entities = load_library("mlflow.entities")
        metrics = [
            entities.Metric(safe_name(name, NOT_A_NAME), value, now, point.step)
            for name, value in point.values.items()
        ]
        self._client.log_batch(run.id, metrics=metrics)
        self._runs[point.name] = run._replace(last_step=point.step)

    def _open(self, point: Point) -> _Run:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            self._client.create_experiment(self._experiment)
            if found is None
            else found.experiment_id
        )
        key = identifier(self._group, point.name)
        run = None
        if self._group is not None:
            same = self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
            run = self._continued(same[0]) if same else None
        if run is None:
            run = self._created(experiment, key, point)
        self._runs[point.name] = run
        return run

    def _continued(self, run: Any) -> _Run:
        name = run.info.run_id
        self._client.update_run(name, status="RUNNING")
        steps = [
            metric.step
            for key in run.data.metrics
            for metric in self._client.get_metric_history(name, key)
        ]
        return _Run(name, max(steps, default=-1))

    def _created(self, experiment: str, key: str, point: Point) -> _Run:
        tags = {
            KEY: key,
            "adcs.group": self._group or "",
            "adcs.scheduler": point.run,
            "adcs.seed": str(point.seed),
        }
        made = self._client.create_run(experiment, run_name=point.name, tags=tags)
        name = made.info.run_id
        param = load_library("mlflow.entities").Param
        params = [
            param(safe_name(key, NOT_A_NAME), _as_text(value))
            for key, value in flat(self._settings(point))
        ]
        for start in range(0, len(params), BATCH):
            self._client.log_batch(name, params=params[start : start + BATCH])
        return _Run(name, -1)

    def _close(self) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run.id)
        self._runs = {}


def _as_text(value: Any) -> str:
    """Return a parameter as text, shortened if it is long."""
    text = value if isinstance(value, str) else json.dumps(plain(value))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
