"""Observers of a comparison: its records, announced as the tasks write them, and its trackers.

The tasks of a comparison run in processes of their own. Observers stay in the process that started
them, and follow the record files of the run folder there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from adcs._validation import check_choice
from adcs.observers import EvaluationEvent, Observer, announce
from adcs.run_folder import Line, RunFolder
from adcs.trackers import MLflow, TensorBoard, Tracker, WandB
from adcs.trackers.tracker import identifier

TRACKERS: Mapping[str, str] = {
    "tensorboard": "tensorboard --logdir {folder}/tensorboard",
    "mlflow": "mlflow ui",
    "wandb": "wandb sync {folder}/wandb/offline-run-*",
}
"""The names of trackers, and the command that shows what each has logged."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise ValueError for an unknown tracker, or for one whose library is missing.

    >>> check_trackers(["tensorbord"])
    Traceback (most recent call last):
    ...
    ValueError: track must be one of tensorboard, mlflow, wandb, got 'tensorbord'; did you mean...
    """
    for name in names:
        check_choice("track", name, TRACKERS)
        if find_spec(name) is None:
            raise ValueError(f"{name} is not installed; pip install 'adcs[trackers]' brings it")


def make_tracker(name: str, folder: Path) -> Tracker:
    """Return a tracker of a run folder by name; a resumed run continues in it."""
    path = folder.resolve()
    group = f"{path.name}-{identifier(str(path))[:6]}"  # the same name may be elsewhere
    if name == "tensorboard":
        return TensorBoard(folder / "tensorboard")
    return MLflow(group=group) if name == "mlflow" else WandB(folder, group=group)


@contextmanager
def following(folder: RunFolder, observers: Sequence[Observer]) -> Iterator[Callable[[], None]]:
    """Yield a function that announces the records written since its last call.

    The rest is announced at the end, with `on_end`, also after an error.
    """
    if not observers:
        yield lambda: None
        return
    follower = RecordFollower(folder, observers)
    try:
        yield follower.announce
    finally:
        follower.announce()
        announce(observers, "on_end")


class RecordFollower:
    """Announces records of a run folder to observers, each once.

    A task that resumes cuts off its file and writes the same bytes again, so that positions in a
    file stay valid.

    Examples
    --------
    >>> import tempfile
    >>> folder = RunFolder.create(Path(tempfile.mkdtemp()) / "run", {})
    >>> class Printed(Observer):
    ...     def on_evaluation(self, event):
    ...         print(event.run, event.record["worst"])
    >>> follower = RecordFollower(folder, [Printed()])
    >>> with folder.writer("task") as lines:
    ...     lines.append({"scheduler": "ADCS", "seed": 0, "server_round": 0, "worst": 0.5})
    >>> follower.announce()
    ADCS 0.5
    >>> follower.announce()
    """

    def __init__(self, folder: RunFolder, observers: Sequence[Observer]) -> None:
        self._folder = folder
        self._observers = observers
        self._read: dict[Path, tuple[int, int]] = {}

    def announce(self) -> None:
        """Announce the records that were written since the last call."""
        for path in sorted((self._folder.path / "records").glob("*.jsonl")):
            offset, number = self._read.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(offset)
                for text in file:
                    if not text.endswith(b"\n"):  # being written
                        break
                    offset, number = offset + len(text), number + 1
                    self._announce(Line.read(path, number, text))
            self._read[path] = offset, number

    def _announce(self, line: Line) -> None:
        record = line.record
        event = EvaluationEvent(record["scheduler"], record["seed"], record["server_round"], record)
        announce(self._observers, "on_evaluation", event)
