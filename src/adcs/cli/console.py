"""Terminal output: tables, status lines, warnings."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

WIDTH = 160
"""Width of the output in columns where it is not a terminal."""

EDGES = 3
"""Width of borders and padding of a table column."""


def console(*, stderr: bool = False) -> Console:
    """Return the console for results (stdout), or for status and warnings (stderr)."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH
    # Labels and names of files are text, whatever they have in brackets or between colons.
    return Console(file=stream, width=width, soft_wrap=stderr, markup=False, emoji=False)


def show_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, text: bool = False
) -> None:
    """Print a table; the first column is text, the others are numbers, or text as well.

    If it is too wide, text wraps. In tables of numbers, headers wrap between words, and columns
    that still do not fit go into further tables. The first column is repeated in each of them, and
    wraps only beyond half of the width. A table without rows is not printed.
    """
    if not rows:
        return
    out = console()
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if sum(widths) + EDGES * len(widths) + 1 > out.width:
        widths = [max(map(len, [*head.split(), *cells])) for head, *cells in columns]
        widths[0] = min(max(map(len, columns[0])), out.width // 2)
    rest = list(range(1, len(columns)))
    for part in [rest] if text else _parts(widths, out.width):
        table = Table(title=title, title_justify="left", header_style="bold")
        table.add_column(heads[0], overflow="fold", width=widths[0])
        for i in part:
            if text:
                table.add_column(heads[i], overflow="fold")
            else:
                table.add_column(heads[i], overflow="fold", justify="right", width=widths[i])
        for row in rows:
            table.add_row(row[0], *[row[i] for i in part])
        out.print(table)


def _parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns, besides the first, of each table.

    >>> _parts([6, 10, 10, 10], width=40)
    [[1, 2], [3]]
    """
    parts: list[list[int]] = [[]]
    start = used = widths[0] + EDGES + 1
    for i, column in enumerate(widths[1:], start=1):
        if parts[-1] and used + column + EDGES > width:
            parts.append([])
            used = start
        parts[-1].append(i)
        used += column + EDGES
    return parts


def show_status(text: str) -> None:
    """Print a status line to stderr; control characters, which labels may have, are escaped."""
    print(printable(text), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Return text whose control characters, but for line ends and tabs, are escaped.

    >>> printable("classes: \\x1b[31mred")
    'classes: \\\\x1b[31mred'
    """
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def show_warning(text: str) -> None:
    """Print a warning to stderr, highlighted."""
    console(stderr=True).print(f" {text} ", style="bold white on red")
