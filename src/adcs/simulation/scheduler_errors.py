"""Errors raised by a user's own object: which object, in which round, at which line."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

from adcs.schedulers.base import Scheduler

OWN_ERRORS = (Exception, SystemExit)
"""What a user's code may raise: sys.exit() in it is an error of it, too, and no end of a run."""


class SchedulerFailed(Exception):
    """A user's scheduler raised an error, or broke the contract.

    >>> raise SchedulerFailed("scheduler Mine failed in round 3: KeyError: 'loss'")
    Traceback (most recent call last):
    ...
    adcs.simulation.scheduler_errors.SchedulerFailed: scheduler Mine failed in round 3: ...
    """


class TrainingFailed(ValueError):
    """A user's local training or aggregation raised an error, or returned what is unusable.

    >>> raise TrainingFailed("aggregation Mine failed in round 3: KeyError: 'loss'")
    Traceback (most recent call last):
    ...
    adcs.simulation.scheduler_errors.TrainingFailed: aggregation Mine failed in round 3: ...
    """


def scheduler_error(
    scheduler: Scheduler, error: BaseException, server_round: int | None = None
) -> BaseException:
    """Return the error to raise in place of one that a scheduler has raised.

    For a scheduler of this package it is the error itself.

    Parameters
    ----------
    scheduler
        The scheduler that was called.
    error
        What it has raised.
    server_round
        The round, counted from 0; None outside of rounds.

    Examples
    --------
    >>> from adcs.schedulers import Uniform
    >>> class Mine(Uniform):
    ...     __module__ = "my_file"
    >>> scheduler_error(Mine(), KeyError("loss"), 3)
    SchedulerFailed("scheduler Mine failed in round 3: KeyError: 'loss'")
    >>> scheduler_error(Uniform(), ValueError("m must be positive"))
    ValueError('m must be positive')
    """
    if type(scheduler).__module__.startswith("adcs."):
        return error
    when = "" if server_round is None else f" in round {server_round}"
    return SchedulerFailed(
        f"scheduler {type(scheduler).__name__} failed{when}: {describe_error(error)}"
        f"{_location(error, scheduler)}"
    )


def describe_error(error: BaseException) -> str:
    """Return an error as one line: the message of a ValueError, type and message of any other.

    >>> describe_error(ValueError("m must be positive")), describe_error(KeyError("loss"))
    ('m must be positive', "KeyError: 'loss'")
    >>> describe_error(RuntimeError("sizes differ:\\n  3 and 4")), describe_error(MemoryError())
    ('RuntimeError: sizes differ: 3 and 4', 'MemoryError')
    """
    text = " ".join(line for each in str(error).splitlines() if (line := each.strip()))
    if type(error) is ValueError and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def own_error(kind: str, own: object, error: BaseException, where: str) -> BaseException:
    """Return the error to raise in place of one that a user's own object has raised.

    For an object of this package it is the error itself.

    Parameters
    ----------
    kind
        What the object is, such as "aggregation".
    own
        The object that was called.
    error
        What it has raised.
    where
        The round, or the round and the client.

    Examples
    --------
    >>> class Mine:
    ...     __module__ = "my_file"
    >>> own_error("aggregation", Mine(), KeyError("loss"), "round 3")
    TrainingFailed("aggregation Mine failed in round 3: KeyError: 'loss'")
    """
    if type(own).__module__.startswith("adcs."):
        return error
    return TrainingFailed(
        f"{kind} {type(own).__name__} failed in {where}: {describe_error(error)}"
        f"{_location(error, own)}"
    )


def _location(error: BaseException, own: object) -> str:
    """Return the last line of the object's file that the error passed through."""
    try:
        file = inspect.getsourcefile(type(own))
    except (TypeError, OSError):  # a class without a file, as in an interactive session
        return ""
    lines = [line for line in traceback.extract_tb(error.__traceback__) if line.filename == file]
    if not lines:
        return ""
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno}, in {lines[-1].name})"
