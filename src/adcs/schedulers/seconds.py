"""How long clients take for a round, by their reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs.reports.store import ReportStore


def round_seconds(reports: ReportStore, clients: Sequence[ClientId]) -> Float64Array:
    """Return each client's time for computation and traffic; NaN if it reported neither.

    >>> from adcs.reports import ClientReport
    >>> reports = ReportStore()
    >>> one = ClientReport(1, 0, compute_seconds=3.0, communication_seconds=1.0)
    >>> refused = reports.record([one, ClientReport(2, 0, compute_seconds=2.0)])
    >>> round_seconds(reports, (1, 2, 3))
    array([ 4.,  2., nan])
    """
    compute = reports.last_values("compute_seconds", clients)
    traffic = reports.last_values("communication_seconds", clients)
    unknown = np.isnan(compute) & np.isnan(traffic)
    return np.where(unknown, np.nan, np.nan_to_num(compute) + np.nan_to_num(traffic))


def slowness_penalty(seconds: Float64Array, preferred: float, exponent: float) -> Float64Array:
    """Return (preferred / seconds)^exponent for clients slower than preferred, 1 for the others.

    A client of unknown time is not penalised.

    >>> slowness_penalty(np.array([5.0, 20.0, np.nan]), preferred=10.0, exponent=2.0)
    array([1.  , 0.25, 1.  ])
    """
    slow = seconds > preferred  # False for NaN
    return np.where(slow, preferred / np.where(slow, seconds, 1.0), 1.0) ** exponent
