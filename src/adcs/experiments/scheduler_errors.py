"""Errors that come out of a scheduler of one's own: which one, when, and where in its file."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adcs.schedulers.base import Scheduler


class SchedulerFailed(Exception):
    """A scheduler of the user's own raised an error, or broke the contract."""


@contextmanager
def blaming() -> Iterator[None]:
    """Turn errors that went through a scheduler of the user's own into a sentence about it."""
    try:
        yield
    except Exception as error:
        # The outermost frame of the scheduler is where its driver called it.
        for frame, _ in traceback.walk_tb(error.__traceback__):
            scheduler = frame.f_locals.get("self")
            if isinstance(scheduler, Scheduler) and not _ours(scheduler):
                server_round = frame.f_locals.get("server_round")
                when = "" if server_round is None else f" in round {server_round}"
                raise SchedulerFailed(
                    f"scheduler {type(scheduler).__name__} failed{when}: {words(error)}"
                    f"{_place(error, scheduler)}"
                ) from error
        raise


def words(error: Exception) -> str:
    """Return an error in words; those that were written to be read need no name.

    >>> words(ValueError("m must be positive")), words(KeyError("loss"))
    ('m must be positive', "KeyError: 'loss'")
    """
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _ours(scheduler: Scheduler) -> bool:
    return type(scheduler).__module__.startswith("adcs.")


def _place(error: Exception, scheduler: Scheduler) -> str:
    """Return the last line of the scheduler's file that the error went through."""
    file = inspect.getsourcefile(type(scheduler))
    lines = [line for line in traceback.extract_tb(error.__traceback__) if line.filename == file]
    if not lines:
        return ""
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno}, in {lines[-1].name})"
