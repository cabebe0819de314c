"""Errors of commands: one sentence on stderr, and an exit code."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

from adcs.cli.console import show_status
from adcs.cli.stopping import exit_code
from adcs.run_folder import InUse
from adcs.simulation.datasets import DataUnavailable
from adcs.simulation.scheduler_errors import SchedulerFailed, TrainingFailed

USER_ERROR = 2
WORKER_DIED = "a worker process ended early, perhaps out of memory"

P = ParamSpec("P")
T = TypeVar("T")


class Stopped(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, sentence: str, code: int = USER_ERROR) -> None:
        super().__init__(sentence)
        self.code = code


def guarded(command: Callable[P, T]) -> Callable[P, T]:
    """Print errors that a user can act on as one sentence, without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except Stopped as stop:
            show_status(f"adcs: {stop}")
            raise typer.Exit(stop.code) from None
        except KeyboardInterrupt as stop:
            show_status("adcs: stopped")
            raise typer.Exit(exit_code(stop)) from None
        except OSError as error:
            show_status(f"adcs: {describe(error)}")
            raise typer.Exit(USER_ERROR) from None
        except (ValueError, DataUnavailable, SchedulerFailed) as error:
            show_status(f"adcs: {error}")
            raise typer.Exit(USER_ERROR) from None
        except (BrokenProcessPool, MemoryError):
            show_status(f"adcs: {WORKER_DIED}")
            raise typer.Exit(USER_ERROR) from None

    return run


def describe(error: OSError, where: Path | None = None) -> str:
    """Return an error of the file system as a sentence.

    >>> describe(OSError(28, "No space left on device"), Path("runs/a"))
    'the disk is full, writing into runs/a'
    >>> describe(FileNotFoundError("x is not a run folder"))
    'x is not a run folder'
    """
    if error.errno is None:
        return str(error)
    place = error.filename or where
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full" + (f", writing into {place}" if place else "")
    return f"{place}: {error.strerror}" if place else str(error.strerror)


@contextmanager
def resumable(folder: Path, command: str) -> Iterator[None]:
    """Add the command that resumes a run to errors that interrupt it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        sentence = f"stopped; nothing is lost, resume with: {command}"
        raise Stopped(sentence, exit_code(stop)) from None
    except InUse as error:
        raise Stopped(f"{error}; wait for it, or stop it first") from error
    except OSError as error:
        sentence = describe(error, folder)
        raise Stopped(f"{sentence}; no records are lost, resume with: {command}") from error
    except (SchedulerFailed, TrainingFailed) as error:
        raise Stopped(f"{error}; no records are lost, fix it and resume with: {command}") from error
    except (BrokenProcessPool, MemoryError) as error:
        raise Stopped(
            f"{WORKER_DIED}; no records are lost, resume with fewer processes: {command} --jobs 1"
        ) from error
