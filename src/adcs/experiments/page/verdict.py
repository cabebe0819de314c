"""The first lines of the page: which scheduler to use here, and who is left behind."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from adcs._types import Float64Array
from adcs.experiments.statistics import FEWEST, LEVEL, Row, estimate, metrics_of
from adcs.experiments.tables import format_difference, format_number
from adcs.metrics import CLIENT_METRICS

WORSE_AVERAGE = 0.02
"""A scheduler is not proposed if its average is below the best one's by more than this share."""

COSTLY = 1.25
"""A cost is named if the proposed scheduler spends this many times as much as the baseline."""

DIGITS = 4
"""Schedulers whose worst 20 % and average agree in so many significant digits are tied."""

NAMED = 3
"""The number of clients that are named."""


def proposed(rows: Sequence[Row]) -> Row | None:
    """Return the row of the scheduler to propose, None where nothing is known.

    It has the best worst 20 % among those whose average is close to the best one. One that is
    surely better than the baseline goes before one whose lead may be chance. Of those that reach
    the same, it is the one of the best average, then of the least traffic, then of the least time.

    >>> from adcs.experiments.statistics import summarise
    >>> end = {"seed": 0, "server_round": 9}
    >>> values = {"A": (0.2, 0.90), "B": (0.5, 0.89), "C": (0.6, 0.70)}
    >>> lines = [{**end, "scheduler": s, "worst20": w, "average": a}
    ...          for s, (w, a) in values.items()]
    >>> proposed(summarise(lines, ["A", "B", "C"])).label
    'B'
    """
    known = [row for row in rows if row.cells["worst20"].n and row.cells["average"].n]
    if not known:
        return None
    sign = -1.0 if CLIENT_METRICS[known[0].metric].lower_is_better else 1.0
    best = max(sign * row.cells["average"].mean for row in known)
    close = [
        row for row in known if sign * row.cells["average"].mean >= best - WORSE_AVERAGE * abs(best)
    ]
    surely = [row for row in close if _is_better(row, "worst20")]

    def key(row: Row) -> tuple[float, ...]:
        worst, average = _rounded(row)
        costs = (row.cells["bytes"], row.cells["seconds"])
        return (sign * worst, sign * average, *(-c.mean if c.n else -math.inf for c in costs))

    return max(surely or close, key=key)


def _rounded(row: Row) -> tuple[float, float]:
    """Return the worst 20 % and the average to `DIGITS` digits; equal ones are a tie."""
    worst, average = (float(f"{row.cells[f].mean:.{DIGITS}g}") for f in ("worst20", "average"))
    return worst, average


class Advice(NamedTuple):
    """The scheduler to use, None where nothing is known, and the sentences that say so."""

    label: str | None
    sentences: list[str]


def which_scheduler(rows: Sequence[Row], baseline: str, diverged: Collection[str] = ()) -> Advice:
    """Return which scheduler to use.

    It is the proposed one, unless the seeds do not tell it from the baseline.

    Parameters
    ----------
    rows
        The rows of the table, with differences to the baseline.
    baseline
        The scheduler that others are compared with.
    diverged
        Schedulers whose training diverged; none of them is proposed.
    """
    known = [each for each in rows if each.cells["worst20"].n]
    if known and all(each.label in diverged for each in known):
        every = "every scheduler" if len(known) > 1 else known[0].label
        said = f"Training diverged with {every}: these accuracies say nothing about schedulers."
        return Advice(None, [said])
    known = [each for each in known if each.label not in diverged]
    row = proposed(known)
    if row is None:
        return Advice(None, ["No accuracy of clients is recorded yet."])
    base = next((each for each in known if each.label == baseline), None)
    if base is None and baseline in diverged:
        lost = f"Training diverged with {baseline}: nothing can be compared with it."
        return Advice(row.label, [lost, f"{_reached(row)}."])
    if len(known) == 1 or base is None:
        return Advice(row.label, [f"{_reached(row)}."])
    is_base = row.label == baseline
    reached = _reached(row) + ("" if is_base else f"; with {baseline} they reach {_both(base)}")
    costs = [] if is_base else _costs(row, base)
    ties = _ties(known, row)
    seeds = row.cells["worst20"].n if is_base else row.differences["worst20"].n
    if seeds < FEWEST:
        how_many = "one seed" if seeds == 1 else f"{seeds} seeds"
        return Advice(
            row.label,
            [
                f"Use {row.label}, as far as {how_many} can tell.",
                f"{reached}. The order may be chance: --seeds 5 gives intervals and tests.",
                *ties,
                *costs,
            ],
        )
    level = [*ties, *_level(known, row)]
    if is_base:
        first = (
            f"Use {baseline}: no scheduler is surely better for the worst-off clients at about the "
            "same average."
            if level
            else f"Use {baseline}: none of the others serves the worst-off clients better at about "
            "the same average."
        )
        return Advice(baseline, [first, f"{reached}.", *level])
    difference = row.differences["worst20"]
    said = f"{format_difference(difference, row.p['worst20'])} over {seeds} seeds"
    if _is_better(row, "worst20"):
        first = f"Use {row.label}: it serves the worst-off clients better than {baseline}."
    elif _is_better(row, "average"):
        first = f"Use {row.label}: its average is better than that of {baseline}."
    else:
        first, second = _unsure(row, baseline, said, seeds)
        return Advice(baseline, [first, f"{second} {reached}."])
    return Advice(
        row.label,
        [
            first,
            f"{reached}. The worst 20 % differ by {said}.",
            *costs,
            *_without_costs(known, row, base),
            *level,
        ],
    )


def _unsure(row: Row, baseline: str, said: str, seeds: int) -> list[str]:
    """Return the sentences about a scheduler that is first, but not surely better."""
    difference = row.differences["worst20"]
    is_level = difference.low <= 0.0 <= difference.high
    if not is_level and _lead(row, "worst20") > 0.0:
        return [
            f"{baseline} is enough as far as {seeds} seeds can tell: the lead of {row.label} may "
            "be chance.",
            f"{row.label} comes first: its worst 20 % differ by {said}. The interval of this "
            f"difference alone leaves out 0, but p, corrected for all comparisons with {baseline}, "
            f"is not below {LEVEL:g}; more seeds may settle it.",
        ]
    level = f", level with {baseline}" if is_level else ""
    return [
        f"{baseline} is enough: over {seeds} seeds, no scheduler is surely better for the "
        "worst-off clients at about the same average.",
        f"{row.label} comes first{level}: its worst 20 % differ by {said}.",
    ]


def _both(row: Row) -> str:
    worst, average = (format_number(row.cells[f].mean, f) for f in ("worst20", "average"))
    return f"{worst} and {average}"


def _reached(row: Row) -> str:
    worst, average = (format_number(row.cells[f].mean, f) for f in ("worst20", "average"))
    return (
        f"With {row.label}, the worst-off fifth of the clients reaches "
        f"{CLIENT_METRICS[row.metric].label} {worst} and all clients on average {average}"
    )


def _costs(row: Row, base: Row) -> list[str]:
    """Return a sentence that names what a scheduler spends much more of than the baseline."""
    dear = []
    for field, words in (
        ("updates", "client updates"),
        ("bytes", "traffic"),
        ("seconds", "virtual time"),
    ):
        ours, theirs = row.cells[field], base.cells[field]
        if ours.n and theirs.n and theirs.mean > 0 and ours.mean >= COSTLY * theirs.mean:
            dear.append(f"{ours.mean / theirs.mean:.1f} times the {words}")
    if not dear:
        return []
    return [f"It costs more than {base.label}: {_listed(dear)}."]


def _without_costs(rows: Sequence[Row], row: Row, base: Row) -> list[str]:
    """Return a sentence that names schedulers which are better at about the baseline's costs."""
    if not _costs(row, base):
        return []
    free = [r.label for r in rows if _is_better(r, "worst20") and not _costs(r, base)]
    if not free:
        return []
    verb = "serve" if len(free) > 1 else "serves"
    return [
        f"At about the costs of {base.label}, {_listed(free)} {verb} the worst-off clients better, "
        "too."
    ]


def _is_better(row: Row, field: str) -> bool:
    """Return whether a row differs from the baseline for the better, by the corrected test."""
    return row.p.get(field, 1.0) < LEVEL and _lead(row, field) > 0.0


def _lead(row: Row, field: str) -> float:
    """Return by how much a row differs from the baseline for the better."""
    sign = -1.0 if CLIENT_METRICS[row.metric].lower_is_better else 1.0
    return sign * row.differences[field].mean


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in words.

    >>> _listed(["A"]), _listed(["A", "B", "C"])
    ('A', 'A, B and C')
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _ties(rows: Sequence[Row], row: Row) -> list[str]:
    """Return a sentence that names the schedulers which reach the same as this one."""
    tied = [r.label for r in rows if r.label != row.label and _rounded(r) == _rounded(row)]
    if not tied:
        return []
    verb = "reach" if len(tied) > 1 else "reaches"
    return [f"{_listed(tied)} {verb} the same."]


def _level(rows: Sequence[Row], row: Row) -> list[str]:
    """Return a sentence that names the schedulers which the seeds do not tell from this one."""
    ours = row.cells["worst20"].values
    level = []
    for other in rows:
        theirs = other.cells["worst20"].values
        if other.label == row.label or len(theirs) != len(ours) or len(ours) < FEWEST:
            continue
        if _rounded(other) == _rounded(row):
            continue
        difference = estimate([a - b for a, b in zip(ours, theirs, strict=True)])
        if difference.low <= 0.0 <= difference.high:
            level.append(other.label)
    if not level:
        return []
    verb = "are" if len(level) > 1 else "is"
    return [
        f"{_listed(level)} {verb} level with it: the 95 % interval of the difference in the worst "
        "20 % contains 0; more seeds may tell them apart."
    ]


def who_is_left_behind(
    label: str,
    served: Float64Array,
    names: Sequence[str],
    counts: Float64Array | None,
    rounds: int,
    metric: str = "accuracy",
    counted: str = "selected",
) -> list[str]:
    """Return the sentences about the clients that a scheduler leaves behind.

    Parameters
    ----------
    label
        The scheduler.
    served
        How well each client is served at the end, larger is better, NaN where it is not known.
    names
        The clients' names, with their group.
    counts
        How often each was selected, or has trained; None where that is not known.
    rounds
        The number of rounds done.
    metric
        The metric of clients; any other name than those of `CLIENT_METRICS` is a federation's own.
    counted
        What the counts are of: "selected" or "trained".

    Examples
    --------
    >>> served = np.array([0.9, 0.5, 0.8, 0.9])
    >>> who_is_left_behind("ADCS", served, ["client 0", "client 1", "client 2", "client 3"],
    ...                    np.array([5.0, 1.0, 3.0, 5.0]), rounds=10)
    ['Left behind with ADCS: client 1 with accuracy 0.500, selected in 10 % of rounds. The average
    is 0.775.']
    """
    known = np.flatnonzero(np.isfinite(served))
    if not known.size:
        return []
    order = known[np.argsort(served[known], kind="stable")]
    average = float(served[known].mean())
    spread = float(served[known].std())
    behind = [i for i in order[: max(1, known.size // 5)] if served[i] < average - spread]
    if not behind:  # as where most clients are as badly off as the worst
        behind = [i for i in order if _is_far_below(float(served[i]), average)]
    if not behind:
        return [
            f"Nobody is far behind with {label}: the worst-off, {names[order[0]]}, has {metric} "
            f"{abs(served[order[0]]):.3f}, the average is {abs(average):.3f}."
        ]
    parts = []
    for i in behind[:NAMED]:
        part = f"{names[i]} with {metric} {abs(served[i]):.3f}"
        if counts is not None and rounds:
            part += f", {counted} in {100 * counts[i] / rounds:.0f} % of rounds"
        parts.append(part)
    more = f"; and {len(behind) - NAMED} more" if len(behind) > NAMED else ""
    return [
        f"Left behind with {label}: {'; '.join(parts)}{more}. The average is {abs(average):.3f}."
    ]


def _is_far_below(value: float, average: float) -> bool:
    """Return whether a client is served less than half as well as all are on average.

    A metric of which less is better is negative here.

    >>> _is_far_below(0.2, 0.5), _is_far_below(-0.9, -0.5), _is_far_below(-1.1, -0.5)
    (True, False, True)
    """
    return value < (average / 2.0 if average > 0.0 else 2.0 * average)


def headings(metric: str) -> dict[str, str]:
    """Return what curves show, by field.

    >>> headings("accuracy")["worst"]
    'worst test accuracy'
    """
    if metric in CLIENT_METRICS:
        known = metrics_of(metric)
        return {field: known[field].label for field in ("worst", "worst20", "average")}
    return {
        "worst": f"worst {metric}",
        "worst20": f"mean {metric} of the worst 20 %",
        "average": f"average {metric}",
    }
