"""Logs runs for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adcs.run_folder import plain
from adcs.trackers.tracker import Point, Tracker, load_library, safe_name


class TensorBoard(Tracker):
    """Writes event files for TensorBoard: `tensorboard --logdir FOLDER` shows them.

    The run of a scheduler and a seed is in FOLDER/SCHEDULER/seedN. If a run is there already, the
    steps from its first new one on are replaced, which is what TensorBoard shows of a resumed run.

    Parameters
    ----------
    folder
        Where the event files go.
    config
        Settings to show with each run; see `Tracker`.

    Examples
    --------
    >>> import tempfile
    >>> from adcs.observers import EvaluationEvent
    >>> folder = Path(tempfile.mkdtemp())
    >>> tracker = TensorBoard(folder)
    >>> record = {"scheduler": "ADCS", "seed": 0, "server_round": 10, "worst": 0.6}
    >>> tracker.on_evaluation(EvaluationEvent("ADCS", 0, 10, record))
    >>> tracker.on_end()
    >>> [path.relative_to(folder).as_posix() for path in folder.glob("*/*")]
    ['ADCS/seed0']
    """

    def __init__(self, folder: str | Path, *, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config=config)
        self._folder = Path(folder)
        self._writers: dict[str, Any] = {}
        load_library("tensorboard")

    def _log(self, point: Point) -> None:
        summary = load_library("tensorboard.compat.proto.summary_pb2").Summary
        writer = self._writers.get(point.name) or self._open(point)
        values = [
            summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
        ]
        self._write(writer, point.step, summary=summary(value=values))
        writer.flush()

    def _open(self, point: Point) -> Any:
        events = load_library("tensorboard.summary.writer.event_file_writer")
        folder = self._folder / safe_name(point.run) / f"seed{point.seed}"
        continued = folder.is_dir() and any(folder.iterdir())
        writer = self._writers[point.name] = events.EventFileWriter(str(folder))
        if continued:
            session = load_library("tensorboard.compat.proto.event_pb2").SessionLog
            start = session(status=session.START)  # replaces the steps from this one on
            self._write(writer, point.step, session_log=start)
        else:
            self._write(writer, 0, summary=_as_text("config", self._settings(point)))
        return writer

    def _write(self, writer: Any, step: int, **content: Any) -> None:
        event = load_library("tensorboard.compat.proto.event_pb2").Event
        writer.add_event(event(wall_time=time.time(), step=step, **content))

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _as_text(tag: str, settings: Mapping[str, Any]) -> Any:
    """Return settings as the summary that TensorBoard's tab Text shows."""
    protos = "tensorboard.compat.proto"
    summary = load_library(f"{protos}.summary_pb2")
    tensors = load_library(f"{protos}.tensor_pb2")
    shapes = load_library(f"{protos}.tensor_shape_pb2").TensorShapeProto
    lines = json.dumps(plain(settings), indent=2).splitlines()
    text = "\n".join(f"    {line}" for line in lines)  # a code block in Markdown
    tensor = tensors.TensorProto(
        dtype="DT_STRING",
        string_val=[text.encode()],
        tensor_shape=shapes(dim=[shapes.Dim(size=1)]),
    )
    plugin = summary.SummaryMetadata.PluginData(plugin_name="text")
    metadata = summary.SummaryMetadata(plugin_data=plugin)
    return summary.Summary(
        value=[summary.Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)]
    )
