"""Logs runs to Weights & Biases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from adcs.run_folder import make_folder, plain, read_json, write_atomically
from adcs.trackers.tracker import Point, Tracker, identifier, load_library

STEPS = "adcs-steps.json"
"""The last step of each run, beside the files of Weights & Biases."""


class WandB(Tracker):
    """Logs to Weights & Biases, into files unless told otherwise.

    `wandb sync FOLDER/wandb/offline-run-*` uploads what was logged offline. A run that was resumed
    has one such folder for each start; `wandb sync --append` adds the later ones.

    Parameters
    ----------
    folder
        Where the folder `wandb` is made.
    project
        The name of the project.
    group
        The name of the comparison or federation. A run of the same group, scheduler and seed is
        continued: only steps after its last one are logged. None begins new runs.
    mode
        "offline" writes files and needs no account; "online" uploads.
    config
        Settings, logged with each run; see `Tracker`.

    Examples
    --------
    >>> import tempfile
    >>> from adcs.observers import EvaluationEvent
    >>> folder = Path(tempfile.mkdtemp())
    >>> tracker = WandB(folder, group="demo")
    >>> record = {"scheduler": "ADCS", "seed": 0, "server_round": 10, "worst": 0.6}
    >>> tracker.on_evaluation(EvaluationEvent("ADCS", 0, 10, record))
    >>> tracker.on_end()
    >>> len(list(folder.glob("wandb/offline-run-*/*.wandb")))
    1
    """

    def __init__(
        self,
        folder: str | Path = ".",
        *,
        project: str = "adcs",
        group: str | None = None,
        mode: Literal["offline", "online"] = "offline",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config=config)
        if mode not in ("offline", "online"):
            raise ValueError(f"mode must be 'offline' or 'online', got {mode!r}")
        load_library("wandb")
        self._folder = Path(folder)
        self._project = project
        self._group = group
        self._mode = mode
        self._runs: dict[str, Any] = {}
        self._last_steps: dict[str, int] = {}

    def _log(self, point: Point) -> None:
        run = self._runs.get(point.name) or self._open(point)
        if point.step <= self._last_steps.get(point.name, -1):
            return
        run.log(point.values, step=point.step)
        self._last_steps[point.name] = point.step
        if self._group is not None:
            self._save_steps()

    def _open(self, point: Point) -> Any:
        library = load_library("wandb")
        make_folder(self._folder)
        key = None if self._group is None else identifier(self._group, point.name)
        run = self._runs[point.name] = library.init(
            dir=str(self._folder),
            mode=self._mode,
            project=self._project,
            group=self._group,
            name=point.name,
            id=key,
            config=plain(self._settings(point)),
            resume="allow" if key is not None and self._mode == "online" else None,
            reinit="create_new",
            settings=library.Settings(silent=True, console="off"),
        )
        if key is not None:
            held = self._saved_steps().get(key, -1)
            self._last_steps[point.name] = max(held, run.step - 1)
        return run

    @property
    def _steps_file(self) -> Path:
        return self._folder / "wandb" / STEPS

    def _saved_steps(self) -> dict[str, int]:
        return read_json(self._steps_file, "delete it") if self._steps_file.exists() else {}

    def _save_steps(self) -> None:
        steps = {identifier(self._group, name): step for name, step in self._last_steps.items()}
        write_atomically(self._steps_file, json.dumps({**self._saved_steps(), **steps}).encode())

    def _close(self) -> None:
        for run in self._runs.values():
            run.finish()
        self._runs = {}
