"""Numbers as people read them, in tables of the terminal and of Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adcs.experiments.statistics import Estimate, Row

COLUMNS = {
    "worst": "worst",
    "worst20": "worst 20 %",
    "average": "average",
    "std": "std",
    "tv": "TV",
    "jain": "Jain",
    "updates": "updates",
    "bytes": "traffic",
    "seconds": "virtual time",
}
"""Fields of the table and their headings."""


def number(value: float, field: str) -> str:
    """Return a number in the form that its field is read in.

    >>> number(0.59449, "worst"), number(371988, "updates"), number(2.5e9, "bytes")
    ('0.594', '371,988', '2.50 GB')
    >>> number(7384.2, "seconds"), number(float("nan"), "tv")
    ('7,384 s', '–')
    """
    if math.isnan(value):
        return "–"
    if field == "updates":
        return f"{value:,.0f}"
    if field == "bytes":
        for unit in ("B", "kB", "MB", "GB"):
            if abs(value) < 1000:
                return f"{value:.3g} {unit}" if unit == "B" else f"{value:.2f} {unit}"
            value /= 1000
        return f"{value:.2f} TB"
    if field == "seconds":
        return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:.1f} s"
    return f"{value:.4f}" if field in ("tv", "ratio") else f"{value:.3f}"


def spread(found: Estimate, field: str) -> str:
    """Return an estimate as mean ± half the interval's width.

    >>> spread(Estimate(0.5944, 0.0123, 5), "worst"), spread(Estimate(2.0, None, 1), "seconds")
    ('0.594 ± 0.012', '2.0 s')
    """
    if found.half is None or (field in ("updates", "bytes", "seconds") and found.half == 0.0):
        return number(found.mean, field)
    return f"{number(found.mean, field)} ± {number(found.half, field)}"


def difference(found: Estimate) -> str:
    """Return a difference with its sign and interval, and say whether it excludes zero.

    >>> difference(Estimate(0.1, 0.02, 5)), difference(Estimate(-0.01, 0.02, 5))
    ('+0.100 [+0.080, +0.120]', '-0.010 [-0.030, +0.010]')
    """
    return _with_interval(found, "+z.3f")


def margin(found: Estimate) -> str:
    """Return by how much something is so, with its interval; below zero it is not so.

    >>> margin(Estimate(0.1, 0.02, 5)), margin(Estimate(-0.01, 0.02, 5))
    ('0.100 [0.080, 0.120]', '-0.010 [-0.030, 0.010]')
    """
    return _with_interval(found, "z.3f")


def _with_interval(found: Estimate, form: str) -> str:
    mean = format(found.mean, form)
    if found.half is None:
        return mean
    return f"{mean} [{format(found.low, form)}, {format(found.high, form)}]"


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of a comparison's table; columns without numbers are left out."""
    shown = [f for f in COLUMNS if any(row.cells[f].n for row in rows)]
    heads = ["scheduler", *[COLUMNS[f] for f in shown]]
    return heads, [[row.label, *[spread(row.cells[f], f) for f in shown]] for row in rows]


def difference_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the differences to the baseline."""
    fields = ("worst", "worst20", "average")
    lines = [row for row in rows if row.differences]
    heads = ["scheduler", *[COLUMNS[f] for f in fields]]
    return heads, [[row.label, *[difference(row.differences[f]) for f in fields]] for row in lines]


def numbers(rows: Sequence[Row]) -> tuple[list[str], list[list[str | float | int | None]]]:
    """Return headings and cells of a comparison's table as numbers, a line for each measure.

    >>> heads, _ = numbers([])
    >>> heads[:5]
    ['scheduler', 'measure', 'mean', 'low', 'high']
    """
    heads = ["scheduler", "measure", "mean", "low", "high", "seeds"]
    heads += ["difference", "difference_low", "difference_high"]
    lines: list[list[str | float | int | None]] = []
    for row in rows:
        for field in COLUMNS:
            cell, gap = row.cells[field], row.differences.get(field)
            if cell.n:
                against = _ends(gap) if gap is not None else [None] * 3
                lines.append([row.label, field, *_ends(cell), cell.n, *against])
    return heads, lines


def _ends(found: Estimate) -> list[float | None]:
    return [found.mean, *([None, None] if found.half is None else [found.low, found.high])]


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
