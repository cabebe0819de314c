"""Whole updates in reports turned into sketches, where a scheduler keeps nothing longer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from adcs._types import ClientId
from adcs.reports.majority import Majority
from adcs.reports.report import ClientReport, flatten
from adcs.reports.sketch import Sketch, Sketcher
from adcs.reports.store import screen


@dataclass(frozen=True)
class SketchedReports:
    """Reports with sketches in place of updates.

    Attributes
    ----------
    reports
        The reports.
    refused
        Client and reason of each that cannot be used, whose update has no sketch, or has another
        length than most.
    turned
        Whether most updates have another length now than before: older sketches are worth nothing.
    """

    reports: list[ClientReport]
    refused: list[tuple[ClientId, str]]
    turned: bool


class ReportSketcher:
    """Sketches updates that are as long as most clients' last ones.

    Updates of other lengths are refused, and so are sketches of them. What is left has one length,
    and sketches need not name it any more.

    Examples
    --------
    >>> report = ClientReport("a", 0, update=[3.0, 4.0])
    >>> made = ReportSketcher(Sketcher(size=8)).of([report]).reports[0]
    >>> made.update, made.sketch.norm
    (None, 5.0)
    """

    def __init__(self, sketcher: Sketcher) -> None:
        self._sketcher = sketcher
        self._length: Majority[int] = Majority()

    def of(self, reports: Iterable[ClientReport]) -> SketchedReports:
        """Return reports with their updates sketched."""
        usable, refused = screen(reports)
        lengths = {
            report.client: length for report in usable if (length := _length(report)) is not None
        }
        before, length = self._length.value, self._length.settle(lengths)
        made: list[ClientReport] = []
        for report in usable:
            try:
                made.append(self._sketched(report, length))
            except ValueError as error:
                refused.append((report.client, str(error)))
        return SketchedReports(made, refused, before not in (None, length))

    def _sketched(self, report: ClientReport, length: int | None) -> ClientReport:
        own, sketch = _length(report), report.sketch
        if own not in (None, length):
            raise ValueError(f"update must have {length} numbers, got {own}")
        if report.update is not None:
            sketch = self._sketcher.sketch(flatten(report.update))
        if sketch is None:
            return report
        return replace(report, update=None, sketch=Sketch(sketch.values, sketch.norm))

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return self._length.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self._length.restore(state)


def _length(report: ClientReport) -> int | None:
    """Return the length of an update, or of the update that a sketch is of."""
    if report.update is not None:
        return flatten(report.update).size
    return None if report.sketch is None else report.sketch.update_size
