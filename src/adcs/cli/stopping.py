"""Termination signals: each ends a command as Ctrl-C does."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = ("SIGTERM", "SIGHUP")


class Terminated(KeyboardInterrupt):
    """A termination signal other than SIGINT."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal ended: 128 + the signal's number.

    >>> exit_code(KeyboardInterrupt()), exit_code(Terminated(signal.SIGTERM))
    (130, 143)
    """
    return 128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)


def end_like_ctrl_c() -> None:
    """Raise `Terminated` at the first termination signal, so that clean-up code runs.

    Signals that are ignored, as by nohup, stay ignored.
    """
    for name in SIGNALS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, lambda *_: None)  # Another signal must not interrupt clean-up.
    raise Terminated(number)
