"""Signals that end a command. All of them end it as Ctrl-C does."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = ("SIGTERM", "SIGHUP")


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C's ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal ended: 128 and the signal's number.

    >>> exit_code(KeyboardInterrupt()), exit_code(Terminated(signal.SIGTERM))
    (130, 143)
    """
    return 128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)


def end_like_ctrl_c() -> None:
    """Turn the first signal to end into an exception, so that what was begun is cleaned up.

    Signals that the caller has set to be ignored, as nohup does, stay ignored.
    """
    for name in SIGNALS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, lambda *_: None)  # Another one must not interrupt the cleaning up.
    raise Terminated(number)
