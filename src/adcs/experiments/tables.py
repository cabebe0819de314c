"""Tables of a comparison as text: numbers, intervals, differences, p-values, Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from adcs.experiments.statistics import (
    COMPARED,
    FEWEST,
    LEVEL,
    METRICS,
    Estimate,
    Row,
    metrics_of,
)
from adcs.metrics import CLIENT_METRICS


def format_number(value: float, field: str) -> str:
    """Return a number as text, in the form of its metric.

    >>> format_number(0.59449, "worst"), format_number(371988, "updates")
    ('0.594', '371,988')
    >>> format_number(7384.2, "seconds"), format_number(float("nan"), "tv")
    ('7,384 s', '–')
    """
    if math.isnan(value):
        return "–"
    if field in METRICS:
        return METRICS[field].text(value)
    return f"{value:.4f}" if field == "ratio" else f"{value:.3f}"


def format_estimate(found: Estimate, field: str) -> str:
    """Return an estimate as mean ± half the interval's width.

    Both ends are given where the interval is cut off at a bound; with fewer than three seeds, which
    have no interval, the value of each seed.

    >>> format_estimate(Estimate(0.5944, 0.0123, 5), "worst")
    '0.594 ± 0.012'
    >>> format_estimate(Estimate(2.0, None, 1), "seconds")
    '2.0 s'
    >>> from adcs.experiments.statistics import SHARE, estimate
    >>> format_estimate(estimate([0.0, 0.1, 0.2], SHARE), "worst")
    '0.100 [0.000, 0.348]'
    >>> format_estimate(estimate([0.5, 0.75]), "worst")
    '0.500 / 0.750'
    """
    if found.half is None:
        return _each(found, lambda value: format_number(value, field))
    if field in METRICS and METRICS[field].cost and found.half == 0.0:
        return format_number(found.mean, field)
    if found.is_cut:
        ends = f"{format_number(found.low, field)}, {format_number(found.high, field)}"
        return f"{format_number(found.mean, field)} [{ends}]"
    return f"{format_number(found.mean, field)} ± {format_number(found.half, field)}"


def _each(found: Estimate, form: Callable[[float], str]) -> str:
    """Return the value of each seed, once if they read the same.

    >>> from adcs.experiments.statistics import estimate
    >>> _each(estimate([0.5, 0.5]), str), _each(estimate([]), str)
    ('0.5', '–')
    """
    texts = [form(value) for value in found.values or [found.mean] * found.n]
    return " / ".join(texts[:1] if len(set(texts)) == 1 else texts) or "–"


def format_difference(found: Estimate, p: float | None = None) -> str:
    """Return a difference with its sign, its interval, and its p-value where one is given.

    >>> format_difference(Estimate(0.1, 0.02, 5))
    '+0.100 [+0.080, +0.120]'
    >>> format_difference(Estimate(-0.01, 0.02, 5), 0.4321)
    '-0.010 [-0.030, +0.010], p = 0.432'
    >>> from adcs.experiments.statistics import estimate
    >>> format_difference(estimate([0.25, -0.5]))
    '+0.250 / -0.500'
    """
    return _with_interval(found, p, "+z.3f")


def format_margin(found: Estimate, p: float | None = None) -> str:
    """Return by how much something is so, with its interval; below zero it is not so.

    >>> format_margin(Estimate(0.1, 0.02, 5), 0.0001), format_margin(Estimate(-0.01, 0.02, 5))
    ('0.100 [0.080, 0.120], p < 0.001', '-0.010 [-0.030, 0.010]')
    """
    return _with_interval(found, p, "z.3f")


def _with_interval(found: Estimate, p: float | None, form: str) -> str:
    if found.half is None:
        return _each(found, lambda value: format(value, form))
    text = f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"
    return text if p is None else f"{text}, {format_p_value(p)}"


def format_p_value(p: float) -> str:
    """Return a p-value in words; rounding never takes it across 0.05.

    >>> [format_p_value(p) for p in (0.0204, 0.0001, 0.9999, 0.0497)]
    ['p = 0.020', 'p < 0.001', 'p = 1.000', 'p = 0.0497']
    """
    if p < 0.001:
        return "p < 0.001"
    digits = next((d for d in range(3, 12) if (round(p, d) < LEVEL) == (p < LEVEL)), 12)
    return f"p = {p:.{digits}f}"


def summary_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of a comparison's table; columns without numbers are left out.

    >>> from adcs.experiments import summarise
    >>> end = {"scheduler": "ADCS", "seed": 0, "server_round": 9, "worst": 0.6}
    >>> summary_table(summarise([end], ["ADCS"]))
    (['scheduler', 'worst'], [['ADCS', '0.600']])
    """
    shown = [f for f in METRICS if any(row.cells[f].n for row in rows)]
    heads = ["scheduler", *_headings(rows, shown)]
    return heads, [[row.label, *[format_estimate(row.cells[f], f) for f in shown]] for row in rows]


def _headings(rows: Sequence[Row], fields: Sequence[str]) -> list[str]:
    """Return the headings of columns; they name the metric of clients unless it is accuracy."""
    known = metrics_of(rows[0].metric) if rows else METRICS
    return [known[field].heading for field in fields]


def difference_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the differences to the baseline, with corrected p-values.

    Columns without numbers are left out, and so are all lines where there are none.
    """
    lines = [row for row in rows if row.differences]
    shown = [f for f in COMPARED if any(row.differences[f].n for row in lines)]
    heads = ["scheduler", *_headings(rows, shown)]
    cells = [
        [row.label, *[format_difference(row.differences[f], row.p.get(f)) for f in shown]]
        for row in lines
    ]
    return heads, cells if shown else []


def table_note(seeds: Sequence[int], metric: str = "accuracy") -> str:
    """Return what the cells of a comparison's table are; `metric` is that of clients.

    >>> table_note([0]), table_note([3, 4])
    ('One seed: there are no intervals (--seeds 5 gives them).', 'Cells give seed 3 / seed 4, and
    one value where both agree: two seeds give no interval (--seeds 5 does).')
    >>> table_note(range(5)).partition(". ")[0]
    '± is half the width of the 95 % Student interval of the mean over 5 seeds'
    """
    if len(seeds) == 1:
        return "One seed: there are no intervals (--seeds 5 gives them)."
    if len(seeds) < FEWEST:
        which = " / ".join(f"seed {seed}" for seed in seeds)
        return (
            f"Cells give {which}, and one value where both agree: two seeds give no interval "
            "(--seeds 5 does)."
        )
    bounds = "0 and 1 for accuracies, TV and Jain, 0 and 0.5 for std, 0 for costs"
    if metric != "accuracy":
        judged = CLIENT_METRICS[metric]
        own = "0 for" if judged.bounds[1] == math.inf else "0 and 1 for"
        bounds = f"{own} {judged.label}, 0 and 1 for TV and Jain, 0 for std and costs"
    return (
        f"± is half the width of the 95 % Student interval of the mean over {len(seeds)} seeds. An "
        f"interval that would pass a bound of its quantity ({bounds}) is cut off there; then both "
        "ends are given."
    )


def difference_note(rows: Sequence[Row]) -> str:
    """Return what the cells of the differences are."""
    judged = CLIENT_METRICS[rows[0].metric if rows else "accuracy"]
    lower = f" Less {judged.label} is better, so gains are negative." * judged.lower_is_better
    count = max((sum(f in row.p for row in rows) for f in COMPARED), default=0)
    if count == 0:
        return "Cells give the difference at each seed: two seeds give no interval." + lower
    text = (
        "Differences are taken seed by seed. Brackets are 95 % Student intervals, each for its "
        "difference alone. p is that of the paired, two-sided t-test"
    )
    if count == 1:
        return f"{text}.{lower}"
    return (
        f"{text}, corrected by Holm's method for the {count} schedulers that a column compares "
        f"with the baseline: the probability that a column has p < {LEVEL} for any scheduler "
        f"without a difference is at most {LEVEL}.{lower}"
    )


def left_out_note(rows: Sequence[Row]) -> str:
    """Return which seeds of which schedulers do not count, as one sentence; "" for none.

    >>> left_out_note([Row("A", {}, {}, {}, {"worst": (3,), "average": (3,), "std": (2, 3)})])
    'Left out, for their values are no finite numbers: A at seed 3 (worst, average), at seeds 2, 3
    (std).'
    """
    parts = []
    for row in rows:
        fields: dict[tuple[int, ...], list[str]] = {}
        for field, seeds in row.left_out.items():
            fields.setdefault(seeds, []).append(metrics_of(row.metric)[field].heading)
        found = [f"at {seed_names(seeds)} ({', '.join(names)})" for seeds, names in fields.items()]
        if found:
            parts.append(f"{row.label} {', '.join(found)}")
    if not parts:
        return ""
    return f"Left out, for their values are no finite numbers: {'; '.join(parts)}."


def seed_names(seeds: Sequence[int]) -> str:
    """Return seeds in words.

    >>> seed_names([3]), seed_names([0, 4])
    ('seed 3', 'seeds 0, 4')
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def number_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str | float | int | None]]]:
    """Return headings and cells of a comparison's table as numbers, a line for each measure.

    >>> heads, _ = number_table([])
    >>> heads[:5]
    ['scheduler', 'measure', 'mean', 'low', 'high']
    """
    heads = ["scheduler", "measure", "mean", "low", "high", "seeds"]
    heads += ["difference", "difference_low", "difference_high", "p_holm", "left_out_seeds"]
    lines: list[list[str | float | int | None]] = []
    for row in rows:
        for field in METRICS:
            cell, gap = row.cells[field], row.differences.get(field)
            if cell.n or field in row.left_out:
                against = _ends(gap) if gap is not None else [None] * 3
                seeds = " ".join(map(str, row.left_out.get(field, ())))
                ends = [*_ends(cell), cell.n, *against, row.p.get(field), seeds]
                lines.append([row.label, field, *ends])
    return heads, lines


def _ends(found: Estimate) -> list[float | None]:
    mean = found.mean if found.n else None
    return [mean, *([None, None] if found.half is None else [found.low, found.high])]


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text; the first column is text, the others are numbers.

    >>> print(text_table(["scheduler", "worst"], [["Uniform", "0.5"], ["ADCS", "0.75"]]))
    scheduler  worst
    Uniform      0.5
    ADCS        0.75
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for first, *others in [heads, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; texts are escaped.

    >>> html_table("a & b", ["x"], [["<1>"]])
    '<table><caption>a &amp; b</caption><tr><th>x</th></tr><tr><td>&lt;1&gt;</td></tr></table>'
    """
    lines = [("th", heads), *(("td", row) for row in rows)]
    cells = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in lines
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


def table_title(seeds: Sequence[int]) -> str:
    """Return the title of a comparison's table.

    >>> table_title(range(5))
    'Mean of the last tenth of evaluations, ± 95 % interval over 5 seeds'
    """
    title = "Mean of the last tenth of evaluations"
    if len(seeds) >= FEWEST:
        return f"{title}, ± 95 % interval over {len(seeds)} seeds"
    if len(seeds) > 1:
        return f"{title} of {' / '.join(f'seed {seed}' for seed in seeds)}"
    return title


def difference_title(baseline: str, rows: Sequence[Row]) -> str:
    """Return the title of the table of differences.

    >>> difference_title("Uniform", [])
    'Paired differences to Uniform'
    """
    title = f"Paired differences to {baseline}"
    if any(row.p for row in rows):
        title += ", 95 % interval of each alone, p by Holm's method"
    return title
