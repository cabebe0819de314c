"""Errors as people want them: one clear sentence, an exit code, nothing lost."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

from adcs.cli.stopping import exit_code
from adcs.experiments.console import say
from adcs.run_folder import InUse
from adcs.simulation.datasets import DataUnavailable
from adcs.simulation.scheduler_errors import SchedulerFailed

WRONG = 2
ENDED = "a process ended before its work, perhaps for want of memory"

P = ParamSpec("P")
T = TypeVar("T")


class Stopped(Exception):
    """The end of a command: a sentence to print, and the exit code."""

    def __init__(self, sentence: str, code: int = WRONG) -> None:
        super().__init__(sentence)
        self.code = code


def guarded(command: Callable[P, T]) -> Callable[P, T]:
    """Turn the errors that users can do something about into a sentence on stderr."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except Stopped as stop:
            say(f"adcs: {stop}")
            raise typer.Exit(stop.code) from None
        except KeyboardInterrupt as stop:
            say("adcs: stopped")
            raise typer.Exit(exit_code(stop)) from None
        except OSError as error:
            say(f"adcs: {describe(error)}")
            raise typer.Exit(WRONG) from None
        except (ValueError, DataUnavailable, SchedulerFailed) as error:
            say(f"adcs: {error}")
            raise typer.Exit(WRONG) from None
        except (BrokenProcessPool, MemoryError):
            say(f"adcs: {ENDED}")
            raise typer.Exit(WRONG) from None

    return run


def describe(error: OSError, where: Path | None = None) -> str:
    """Return a sentence about an error of files and disks.

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
    """Say how to go on if what happens inside is interrupted or fails for lack of something."""
    try:
        yield
    except KeyboardInterrupt as stop:
        sentence = f"stopped; nothing is lost, go on with: {command}"
        raise Stopped(sentence, exit_code(stop)) from None
    except InUse as error:
        raise Stopped(f"{error}; let it end, or stop it first") from error
    except OSError as error:
        sentence = describe(error, folder)
        raise Stopped(f"{sentence}; nothing written is lost, go on with: {command}") from error
    except SchedulerFailed as error:
        raise Stopped(
            f"{error}; nothing written is lost, mend it and go on with: {command}"
        ) from error
    except (BrokenProcessPool, MemoryError) as error:
        raise Stopped(
            f"{ENDED}; nothing written is lost, go on with fewer processes: {command} --jobs 1"
        ) from error
