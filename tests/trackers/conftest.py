"""What each tracker's library has logged, read back with that library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adcs.trackers import MLflow, TensorBoard, Tracker, WandB


class Logged(NamedTuple):
    """One run: its settings, and (step, value) of each metric in the order logged."""

    config: dict[str, Any]
    metrics: dict[str, list[tuple[int, float]]]


class Backend(NamedTuple):
    """How to make a tracker in a folder, and how to read what it has logged, by run."""

    library: str
    make: Callable[..., Tracker]
    read: Callable[[Path], dict[str, Logged]]


def read_tensorboard(folder: Path) -> dict[str, Logged]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in sorted(path for path in (folder / "tb").glob("*/*") if path.is_dir()):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        metrics = {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
        (text,) = events.Tensors("config/text_summary")  # once
        config = json.loads(text.tensor_proto.string_val[0])
        found[path.relative_to(folder / "tb").as_posix()] = Logged(config, metrics)
    return found


def read_mlflow(folder: Path) -> dict[str, Logged]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("adcs")
    assert experiment is not None
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        metrics = {
            key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
            for key in run.data.metrics
        }
        assert run.info.run_name not in found
        assert run.info.status == "FINISHED"
        found[run.info.run_name] = Logged(dict(run.data.params), metrics)
    return found


def finished_records(path: Path) -> list[Any]:
    """Return the records of a file of Weights & Biases, which another process finishes."""
    from wandb.proto.wandb_internal_pb2 import Record

    for _ in range(600):
        records = [Record.FromString(data) for data in leveldb_records(path.read_bytes()[7:])]
        if records and records[-1].HasField("exit"):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def read_wandb(folder: Path) -> dict[str, Logged]:
    found: dict[str, Logged] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):  # in the order of time
        name = ""
        for record in finished_records(path):
            if record.HasField("run"):
                name = record.run.display_name
                config = {
                    item.key: json.loads(item.value_json) for item in record.run.config.update
                }
                found.setdefault(name, Logged(config, {}))
            elif record.HasField("history"):
                items = record.history.item
                values = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
                step = record.history.step.num
                for key, value in values.items():
                    if not key.startswith("_"):
                        found[name].metrics.setdefault(key, []).append((step, value))
    return found


def leveldb_records(data: bytes, block: int = 32768, header: int = 7) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, whose first block lacks 7 bytes."""
    position, record = header, b""  # positions count the file's own header
    data = bytes(header) + data
    while position + header <= len(data):
        if block - position % block < header:  # padding at the end of a block
            position += block - position % block
            continue
        size = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]
        if position + header + size > len(data):  # being written
            return
        record += data[position + header : position + header + size]
        position += header + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


BACKENDS = [
    Backend(
        "tensorboard",
        lambda folder, *, config=None, group=None: TensorBoard(folder / "tb", config=config),
        read_tensorboard,
    ),
    Backend(
        "mlflow",
        lambda folder, **more: MLflow(f"sqlite:///{folder}/mlflow.db", **more),
        read_mlflow,
    ),
    Backend("wandb", lambda folder, **more: WandB(folder, **more), read_wandb),
]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.library)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Return each tracker's library in turn; one that is not installed is skipped."""
    found: Backend = request.param
    pytest.importorskip(found.library, reason="needs adcs[trackers]")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return found
