"""What the kernel of a DPP over clients is made of: their updates, or their label histograms."""

from __future__ import annotations

from typing import Literal, Protocol, cast, get_args

import numpy as np

from adcs._types import FloatArray
from adcs._validation import check_choice
from adcs.reports.report import ClientReport

Kernel = Literal["updates", "labels"]
"""Settings of a scheduler's kernel."""


class Directions(Protocol):
    """Where the direction of a client comes from.

    Attributes
    ----------
    signal
        The signal that clients are asked for.
    sent_once
        Whether a client sends it once, so that it stays the same for all rounds.
    """

    signal: str
    sent_once: bool

    def vector(self, report: ClientReport) -> FloatArray | None:
        """Return the vector of a report, None if it has none."""
        ...


class UpdateDirections:
    """Directions of clients' updates, or of sketches of them.

    Examples
    --------
    >>> UpdateDirections().vector(ClientReport("a", 0, update=[3.0, 4.0]))
    array([3., 4.])
    """

    signal = "update"
    sent_once = False

    def vector(self, report: ClientReport) -> FloatArray | None:
        """Return the update as one vector, or the sketch."""
        return report.vector


class LabelDirections:
    """Directions of label histograms. No update is needed.

    Negative counts, which noise makes, are read as 0. A histogram without a positive count has no
    direction.

    Examples
    --------
    >>> LabelDirections().vector(ClientReport("a", 0, label_counts=[3, -1]))
    array([3., 0.])
    """

    signal = "label_counts"
    sent_once = True

    def vector(self, report: ClientReport) -> FloatArray | None:
        """Return the histogram."""
        if report.label_counts is None:
            return None
        counts = np.maximum(np.asarray(report.label_counts, dtype=np.float64), 0.0)
        return counts if counts.any() else None


def make_directions(kernel: Kernel) -> Directions:
    """Return the directions of a setting, or raise unless it is "updates" or "labels".

    >>> make_directions("labels").signal
    'label_counts'
    """
    known = cast(Kernel, check_choice("kernel", kernel, get_args(Kernel)))
    return LabelDirections() if known == "labels" else UpdateDirections()
