"""Quality scores: what makes one client worth more than another, besides being different.

A quality is read off a client's report (`loss`, `norm`, `examples`, `communication`, or any
function of a `ClientReport`), put on a scale, and mixed: q = (1 - gamma) q_learn + gamma q_comm.

Scales
------
raw
    As reported (the paper). One claim of a huge loss outweighs any diversity.
standard
    Mean 0 and standard deviation 1 over the clients compared; no client is above sqrt(N - 1).
rank
    Position among the clients compared, from 0 (lowest) to 1 (highest), ties sharing the mean.

Bounded scales are what keeps liars in check. On the raw scale a client that claims a huge loss is
always chosen, and so are all copies of it that claim the same. On `rank` the best it can get is
what the truly worst-off client would get: quality at most 1, so that once one liar is in, its
copies add nothing new and lose to clients that do. `standard` is bounded too, by sqrt(N - 1), which
holds back one liar among many but not a gang. A first place is all that a lie can buy by `rank`;
what keeps many from being bought under different names is a cap per group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from adcs._types import Float64Array
from adcs._validation import brief, real
from adcs.dpp.tolerances import tie_groups, tie_width
from adcs.reports.report import ClientReport

QualityName = Literal["loss", "norm", "examples", "communication"]
Quality = QualityName | Callable[[ClientReport], float | None]
Scale = Literal["raw", "standard", "rank"]


def check_quality(quality: Quality) -> Quality:
    """Return quality, or raise unless it is a known name or a function."""
    if not callable(quality) and quality not in get_args(QualityName):
        names = ", ".join(get_args(QualityName))
        raise ValueError(f"quality must be one of {names} or a function, got {quality!r}")
    return quality


def check_scale(scale: Scale | None) -> Scale | None:
    """Return scale, or raise unless it is a known name or None."""
    if scale is not None and scale not in get_args(Scale):
        raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")
    return scale


def check_gamma(gamma: float) -> float:
    """Return gamma as a float, or raise if it is outside [0, 1]."""
    value = real(gamma)
    if value is None or not 0.0 <= value <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {brief(gamma)}")
    return value


def read(report: ClientReport, quality: Quality) -> float | None:
    """Return a report's raw quality, or None if it does not tell.

    >>> read(ClientReport(1, 0, loss=2.5), "loss")
    2.5
    >>> read(ClientReport(1, 0, communication_seconds=4.0), "communication")
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
    number = float(value) if isinstance(value, (bool, np.bool_)) else real(value)
    if number is None and value is not None:
        raise ValueError(f"quality must return a number or None, got {brief(value)}")
    return None if number is None or not math.isfinite(number) else number


def rescale(values: Float64Array, scale: Scale) -> Float64Array:
    """Return qualities on a scale (see the module's text).

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
    """Return q = (1 - gamma) q_learn + gamma q_comm of clients that all tell what it needs.

    Parameters
    ----------
    reports
        One report for each client compared. A missing value raises: see `tells`.
    quality
        The learning part, q_learn.
    gamma
        Share of the communication part, in [0, 1]; faster clients are worth more.
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
    parts = [(1.0 - gamma, quality), (gamma, "communication")]
    total = np.zeros(len(reports))
    for share, part in parts:
        if share > 0.0:
            values = [read(report, part) for report in reports]
            missing = [r.client for r, v in zip(reports, values, strict=True) if v is None]
            if missing:
                raise ValueError(f"client {missing[0]!r} does not tell its {part}")
            total += share * rescale(np.array(values, dtype=np.float64), scale)
    return total


def effective_scale(gamma: float, scale: Scale | None) -> Scale:
    """Return the scale to use: see `qualities`."""
    scale = check_scale(scale)
    if scale is None:
        return "raw" if gamma == 0.0 else "standard"
    if scale == "raw" and gamma > 0.0:
        raise ValueError("gamma > 0 mixes seconds with losses: scale must be standard or rank")
    return scale


def has_quality(report: ClientReport, quality: Quality, gamma: float) -> bool:
    """Return whether a report tells all that this quality needs."""
    learn = gamma >= 1.0 or read(report, quality) is not None
    return learn and (gamma <= 0.0 or read(report, "communication") is not None)
