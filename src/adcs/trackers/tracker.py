"""The base class of trackers: which numbers are logged, and what happens if that fails."""

from __future__ import annotations

import hashlib
import importlib
import logging
import math
import re
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from adcs.observers import EvaluationEvent, Observer

COUNTED = ("probed", "answered", "chosen", "trained", "refused", "failed", "backing_off", "late")
"""Lists of a federation's records, of which the number of entries is logged."""

NOT_LOGGED = {"scheduler", "seed", "server_round", "choice"}
"""Entries of records that are names, steps or explanations."""

log = logging.getLogger(__name__)


class Point(NamedTuple):
    """The numbers of one record.

    Attributes
    ----------
    run, seed
        The label of the scheduler, and the seed.
    step
        The number of rounds done.
    values
        The numbers by name.
    """

    run: str
    seed: int
    step: int
    values: dict[str, float]

    @property
    def name(self) -> str:
        """The name of the run that the point belongs to."""
        return f"{self.run}/seed{self.seed}"


class Tracker(Observer):
    """Base class of trackers: hands the numbers of each record to `_log`.

    If `_log` raises, the run continues. The points are kept and tried again with the next record.

    Parameters
    ----------
    config
        Settings to log with each run. `adcs.compare` fills in its own if this is None.

    Examples
    --------
    >>> class Printed(Tracker):
    ...     def _log(self, point):
    ...         print(point.name, point.step, point.values)
    >>> record = {"scheduler": "Uniform", "seed": 3, "server_round": 10, "worst": 0.5, "tv": None}
    >>> Printed().on_evaluation(EvaluationEvent("Uniform", 3, 10, record))
    Uniform/seed3 10 {'worst': 0.5}
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None) -> None:
        self.config = config
        self._waiting: list[Point] = []
        self._warned = False

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Log the numbers of a record."""
        step = int(event.record["server_round"])
        self._waiting.append(Point(event.run, event.seed, step, scalars(event.record)))
        self._send()

    def on_end(self) -> None:
        """Log what is left, and close the runs."""
        self._send()
        if self._waiting:
            log.warning("%s: %d records were not logged", type(self).__name__, len(self._waiting))
            self._waiting = []
        try:
            self._close()
        except Exception as error:
            self._warn(error)

    def _send(self) -> None:
        while self._waiting:
            try:
                self._log(self._waiting[0])
            except Exception as error:  # of a server or a disk, which must not end the run
                self._warn(error)
                return
            del self._waiting[0]
            self._warned = False

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            name = type(self).__name__
            log.warning("%s cannot log (%s); the run continues", name, error or type(error))
        self._warned = True

    def _log(self, point: Point) -> None:
        """Log a point; a step that its run has already is not logged twice."""
        raise NotImplementedError

    def _close(self) -> None:
        """Close the runs; a later point opens its run again."""

    def _settings(self, point: Point) -> dict[str, Any]:
        """Return the settings of a point's run."""
        return {**(self.config or {}), "scheduler": point.run, "seed": point.seed}


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record by name, and the sizes of the lists in `COUNTED`.

    >>> scalars({"worst": 0.5, "tv": None, "trained": [3, 7], "evaluation": {"acc": {"std": 0.1}}})
    {'worst': 0.5, 'trained': 2, 'evaluation/acc/std': 0.1}
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        if key in NOT_LOGGED or isinstance(value, bool):
            continue
        if isinstance(value, Mapping):
            found |= {f"{key}/{name}": number for name, number in scalars(value).items()}
        elif isinstance(value, Integral):
            found[key] = int(value)
        elif isinstance(value, Real):
            if math.isfinite(value):
                found[key] = float(value)
        elif key in COUNTED:
            found[key] = len(value)
    return found


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings of nested sections under one name each.

    >>> dict(flat({"training": {"m": 18}, "seed": 0}))
    {'training.m': 18, 'seed': 0}
    """
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def safe_name(text: str, forbidden: str = r"[^\w .,=()-]") -> str:
    """Return a name for a file or a metric, with "_" for each match of `forbidden`.

    Names that differ stay different.

    >>> safe_name("ADCS(theta=0.5)"), safe_name("../a/b.py:Mine()")
    ('ADCS(theta=0.5)', '_a_b.py_Mine()-1040c7')
    """
    name = re.sub(forbidden, "_", text).lstrip(".")[:100]
    if name == text:
        return name
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def identifier(*parts: object) -> str:
    """Return an identifier that follows from the parts.

    >>> identifier("compare-1", "ADCS", 0)
    'b50f97cf8aa0'
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def load_library(name: str, package: str | None = None) -> Any:
    """Import a library of the extra `trackers`; ImportError says how to get it.

    >>> load_library("no_such_library")
    Traceback (most recent call last):
    ...
    ImportError: no_such_library is not installed; pip install 'adcs[trackers]' brings it
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{package or name} is not installed; pip install 'adcs[trackers]' brings it"
        ) from error
