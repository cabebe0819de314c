"""The first lines of the page: which scheduler to use here, and who is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adcs._types import Float64Array
from adcs.experiments.statistics import FEWEST, LEVEL, Row, metrics_of
from adcs.experiments.tables import format_difference, format_number
from adcs.metrics import CLIENT_METRICS

WORSE_AVERAGE = 0.02
"""A scheduler is not proposed if its average is below the best one's by more than this share."""

NAMED = 3
"""The number of clients that are named."""


def proposed(rows: Sequence[Row]) -> Row | None:
    """Return the row of the scheduler to propose, None where nothing is known.

    It has the best worst 20 % among those whose average is close to the best one.

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
    return max(close, key=lambda row: sign * row.cells["worst20"].mean)


def which_scheduler(rows: Sequence[Row], baseline: str, seeds: int) -> list[str]:
    """Return the sentences about which scheduler to use.

    Parameters
    ----------
    rows
        The rows of the table, with differences to the baseline.
    baseline
        The scheduler that others are compared with.
    seeds
        The number of seeds of the run.
    """
    row = proposed(rows)
    if row is None:
        return ["No accuracy of clients is recorded yet."]
    metric = CLIENT_METRICS[row.metric].label
    reached = (
        f"With {row.label}, the worst-off fifth of the clients reaches {metric} "
        f"{format_number(row.cells['worst20'].mean, 'worst20')} and all clients on average "
        f"{format_number(row.cells['average'].mean, 'average')}"
    )
    base = next((each for each in rows if each.label == baseline), None)
    if len(rows) == 1 or base is None:
        return [f"{reached}."]
    if row.label == baseline:
        return [
            f"Use {baseline}: none of the others serves the worst-off clients better at about the "
            "same average.",
            f"{reached}.",
        ]
    against = (
        f"with {baseline} they reach {format_number(base.cells['worst20'].mean, 'worst20')} and "
        f"{format_number(base.cells['average'].mean, 'average')}"
    )
    if seeds < FEWEST:
        how_many = "one seed" if seeds == 1 else f"{seeds} seeds"
        return [
            f"Use {row.label}, as far as {how_many} can tell.",
            f"{reached}; {against}. The order may be chance: --seeds 5 gives intervals and tests.",
        ]
    difference, p = row.differences["worst20"], row.p.get("worst20")
    said = f"{format_difference(difference, p)} for the worst 20 % over {seeds} seeds"
    if p is None or p >= LEVEL:
        return [
            f"{baseline} is enough, as far as {seeds} seeds can tell.",
            f"The best of the others, {row.label}, is not surely better: {said}. {reached}; "
            f"{against}.",
        ]
    return [f"Use {row.label}.", f"{reached}; {against}. The difference is {said}."]


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
