"""Quality scores: how much a client is worth choosing, apart from diversity.

A quality is read from a client's report (`loss`, `norm`, `examples`, `communication`, or any
function of a `ClientReport`), put on a scale, and mixed: q = (1 - gamma) q_learn + gamma q_comm.

Scales
------
raw
    As reported (the paper). One claim of a huge loss outweighs any diversity.
standard
    Mean 0 and standard deviation 1 over the clients compared; no client is above sqrt(N - 1).
rank
    Position among the clients compared, from 0 (lowest) to 1 (highest), ties sharing the mean.

Bounded scales limit what a false report can gain. On the raw scale a client that claims a huge loss
is always chosen, and so are all copies of it that claim the same. On `rank` its quality is at most
1, that of the client with the largest true loss, and once it is chosen its copies add no diversity
and lose to clients that do. `standard` is bounded by sqrt(N - 1), which limits one false report
among many but not a coordinated group. By `rank`, a false report can gain the first slot; a cap per
group limits how many slots one operator can gain under different ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, cast, get_args

import numpy as np

from adcs._types import Float64Array
from adcs._validation import brief, check_choice, real
from adcs.dpp.tolerances import tie_groups, tie_width
from adcs.reports.report import ClientReport
from adcs.reports.table import ReportTable

QualityName = Literal["loss", "norm", "examples", "communication"]
Quality = QualityName | Callable[[ClientReport], float | None]
Scale = Literal["raw", "standard", "rank"]

_COLUMNS = {"loss": "loss", "examples": "examples", "communication": "communication_seconds"}


def check_quality(quality: Quality) -> Quality:
    """Return quality, or raise unless it is a known name or a function.

    >>> check_quality("loss")
    'loss'
    """
    known = isinstance(quality, str) and quality in get_args(QualityName)
    if not callable(quality) and not known:
        names = ", ".join(get_args(QualityName))
        raise ValueError(f"quality must be one of {names} or a function, got {brief(quality)}")
    return quality


def check_scale(scale: Scale | None) -> Scale | None:
    """Return scale, or raise unless it is a known name or None.

    >>> check_scale("rank")
    'rank'
    """
    return None if scale is None else cast(Scale, check_choice("scale", scale, get_args(Scale)))


def check_gamma(gamma: float) -> float:
    """Return gamma as a float, or raise unless it is in [0, 1].

    >>> check_gamma(0.25)
    0.25
    """
    value = real(gamma)
    if value is None or not 0.0 <= value <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {brief(gamma)}")
    return value


def raw_quality(report: ClientReport, quality: Quality) -> float | None:
    """Return a report's quality as reported, or None if the report does not have it.

    >>> raw_quality(ClientReport(1, 0, loss=2.5), "loss")
    2.5
    >>> raw_quality(ClientReport(1, 0, communication_seconds=4.0), "communication")
    -4.0
    """
    if callable(quality):
        value = quality(report)
    elif quality == "loss":
        value = report.loss
    elif quality == "norm":
        value = report.update_norm
    elif quality == "examples":
        value = report.examples
    else:
        seconds = report.communication_seconds
        value = None if seconds is None else -seconds
    if type(value) is float and math.isfinite(value):
        return value
    number = float(value) if isinstance(value, (bool, np.bool_)) else real(value)
    if number is None and value is not None:
        raise ValueError(f"quality must return a number or None, got {brief(value)}")
    return None if number is None or not math.isfinite(number) else number


def quality_column(table: ReportTable, quality: Quality) -> Float64Array | None:
    """Return `raw_quality` of all reports of a table if it is a column of numbers, else None.

    >>> quality_column(ReportTable((1, 2), 0, loss=np.array([0.5, 1.5])), "loss")
    array([0.5, 1.5])
    """
    name = None if callable(quality) else _COLUMNS.get(quality)
    column = None if name is None else table.column(name)
    if column is None or not isinstance(column, np.ndarray) or column.dtype.kind not in "fiu":
        return None
    if column.ndim != 1 or np.ma.is_masked(column) or not np.isfinite(column).all():
        return None
    numbers: Float64Array = column.astype(np.float64)
    return -numbers if quality == "communication" else numbers


def rescale(values: Float64Array, scale: Scale) -> Float64Array:
    """Return qualities on a scale (see the text of the module).

    >>> rescale(np.array([3.0, 1e6, 1.0]), "rank")
    array([0.5, 1. , 0. ])
    >>> rescale(np.array([2.0, 2.0]), "standard")
    array([0., 0.])
    """
    if scale == "raw" or values.size == 0:
        return values
    # Equal losses differ by rounding; neither scale may turn that into a quality.
    rounding = tie_width(values)
    if scale == "standard":
        # The scale has no unit, so a power of two may keep squares in range.
        top = float(np.abs(values).max())
        if not 1e-140 < top < 1e140:
            values = np.ldexp(values, -np.frexp(top)[1])
        centred = values - values.mean()
        spread = float(np.sqrt(np.mean(centred**2)))
        negligible = rounding * float(np.abs(values).max())
        return np.zeros_like(values) if spread <= negligible else centred / spread
    if values.size == 1:
        return np.zeros(1)
    order = np.argsort(values, kind="stable")
    tied = tie_groups(values[order], rounding)
    mean_position = np.bincount(tied, weights=np.arange(values.size)) / np.bincount(tied)
    ranks = np.empty_like(values)
    ranks[order] = mean_position[tied] / (values.size - 1)
    return ranks


def qualities(
    reports: Sequence[ClientReport],
    quality: Quality = "loss",
    *,
    gamma: float = 0.0,
    scale: Scale | None = None,
) -> Float64Array:
    """Return q = (1 - gamma) q_learn + gamma q_comm of clients whose reports have what it needs.

    Parameters
    ----------
    reports
        One report for each client compared. A missing value raises: see `has_quality`.
    quality
        The learning part, q_learn.
    gamma
        Weight of the communication part, in [0, 1]; faster clients are worth more.
    scale
        None means raw when gamma is 0 and standard otherwise, because seconds and losses have
        no common unit: raw with gamma above 0 is an error.

    Examples
    --------
    >>> slow = ClientReport("slow", 0, loss=2.0, communication_seconds=9.0)
    >>> fast = ClientReport("fast", 0, loss=1.0, communication_seconds=1.0)
    >>> qualities([slow, fast])
    array([2., 1.])
    >>> qualities([slow, fast], gamma=0.75)
    array([-0.5,  0.5])
    """
    gamma = check_gamma(gamma)
    scale = effective_scale(gamma, scale)
    parts: list[tuple[float, Quality]] = [(1.0 - gamma, quality), (gamma, "communication")]
    total = np.zeros(len(reports))
    for weight, part in parts:
        if weight > 0.0:
            column = quality_column(reports, part) if isinstance(reports, ReportTable) else None
            if column is None:
                values = [raw_quality(report, part) for report in reports]
                missing = [r.client for r, v in zip(reports, values, strict=True) if v is None]
                if missing:
                    raise ValueError(f"client {brief(missing[0])} does not report its {part}")
                column = np.array(values, dtype=np.float64)
            total += weight * rescale(column, scale)
    return total


def effective_scale(gamma: float, scale: Scale | None) -> Scale:
    """Return the scale to use: see `qualities`.

    >>> effective_scale(0.0, None), effective_scale(0.5, None)
    ('raw', 'standard')
    """
    scale = check_scale(scale)
    if scale is None:
        return "raw" if gamma == 0.0 else "standard"
    if scale == "raw" and gamma > 0.0:
        raise ValueError("gamma > 0 mixes seconds with losses: scale must be standard or rank")
    return scale


def has_quality(report: ClientReport, quality: Quality, gamma: float) -> bool:
    """Return whether a report has all that this quality needs.

    >>> has_quality(ClientReport(1, 0, loss=2.5), "loss", gamma=0.0)
    True
    """
    learn = gamma >= 1.0 or raw_quality(report, quality) is not None
    return learn and (gamma <= 0.0 or raw_quality(report, "communication") is not None)


def has_quality_columns(table: ReportTable, quality: Quality, gamma: float) -> bool:
    """Return whether the columns of a table show that `has_quality` holds for all its reports.

    >>> has_quality_columns(ReportTable((1, 2), 0, loss=np.array([0.5, 1.5])), "loss", gamma=0.0)
    True
    """
    learn = gamma >= 1.0 or quality_column(table, quality) is not None
    return learn and (gamma <= 0.0 or quality_column(table, "communication") is not None)
