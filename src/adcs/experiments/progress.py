"""Progress of a run with the remaining time: in a notebook, on a terminal or as lines of a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LOG_SECONDS = 5.0
"""Seconds between lines of the plain progress log, and of progress before a time left is shown."""

Report = Callable[[int, int], None]
"""Takes the amount done and the total."""


@contextmanager
def progress(what: str, unit: str = "run-rounds") -> Iterator[Report]:
    """Show progress: a bar in a notebook or terminal, else a line on stderr every few seconds.

    Yields a function that takes the amount done and the total.
    """
    if in_notebook():
        yield notebook_bar(what)
    elif sys.stderr.isatty():
        with _bar(what) as report:
            yield report
    else:
        yield plain_log(what, unit)


@contextmanager
def _bar(what: str) -> Iterator[Report]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=False),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(file=sys.stderr, soft_wrap=True)) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


class TimeLeft:
    """Estimates the time left from the pace since the first progress, once that is long enough.

    What was done before a resume, the start of processes and compilation do not count.

    >>> time_left = TimeLeft()
    >>> [time_left(now, done, 100) for now, done in ((0.0, 40), (60.0, 41), (61.0, 42), (70.0, 51))]
    [None, None, None, 49.0]
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._began: tuple[float, int] | None = None

    def __call__(self, now: float, done: int, total: int) -> float | None:
        """Return the seconds left at a time; None if they are not known yet, or at the end."""
        if self._first is None:
            self._first = done
        if self._began is None and done > self._first:
            self._began = (now, done)
        if self._began is None or done >= total:
            return None
        began, first = self._began
        if now - began < LOG_SECONDS or done <= first:
            return None
        return (now - began) * (total - done) / (done - first)


def in_words(left: float | None) -> str:
    """Return the time left in words; "" where it is not known.

    >>> in_words(49.2), in_words(None)
    (', 49 s left', '')
    """
    return "" if left is None else f", {left:.0f} s left"


def plain_log(
    what: str, unit: str, clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int], None]:
    """Return a function that writes progress to stderr every few seconds, and at the end."""
    start = clock()
    state = {"written": start, "ended": 0.0}
    time_left = TimeLeft()

    def report(done: int, total: int) -> None:
        now = clock()
        left = in_words(time_left(now, done, total))
        ended = done >= total
        if state["ended"] or (now - state["written"] < LOG_SECONDS and not ended):
            return
        state["written"], state["ended"] = now, float(ended)
        percent = 100 * done // max(total, 1)
        line = f"{what}: {percent} % ({done:,} of {total:,} {unit}), {now - start:.0f} s{left}"
        print(line, file=sys.stderr, flush=True)

    return report


def in_notebook() -> bool:
    """Return whether this is a Jupyter notebook, whose kernel shows HTML.

    >>> in_notebook()
    False
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def notebook_bar(what: str, clock: Callable[[], float] = time.monotonic) -> Report:
    """Return a function that shows progress in the output of a notebook's cell."""
    from IPython.display import HTML, display

    start = clock()
    time_left = TimeLeft()
    shown = display(HTML(bar_html(what, 0, 1, 0.0)), display_id=True)

    def report(done: int, total: int) -> None:
        now = clock()
        left = time_left(now, done, total)
        shown.update(HTML(bar_html(what, done, total, now - start, left)))

    return report


def bar_html(what: str, done: int, total: int, seconds: float, left: float | None = None) -> str:
    """Return a progress bar as HTML, with the seconds spent and those left.

    >>> bar_html("a < b", 1, 4, 10.0, left=30.0)
    '<progress value="1" max="4"></progress> a &lt; b: 25 %, 10 s, 30 s left'
    """
    percent = 100 * done // max(total, 1)
    return (
        f'<progress value="{done}" max="{max(total, 1)}"></progress> {escape(what)}: {percent} %, '
        f"{seconds:.0f} s{in_words(left)}"
    )
