"""Whole updates in reports turned into sketches, where a scheduler keeps nothing longer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from adcs.signals.majority import Majority
from adcs.signals.report import ClientId, ClientReport, flatten, refusal
from adcs.signals.sketch import Sketcher


@dataclass(frozen=True)
class Sketched:
    """Reports with sketches in place of updates.

    Attributes
    ----------
    reports
        The reports.
    refused
        Client and reason of each whose update has no sketch.
    turned
        Whether most updates have another length now than before: older sketches are worth nothing.
    """

    reports: list[ClientReport]
    refused: list[tuple[ClientId, str]]
    turned: bool


class Sketching:
    """Sketches updates that are as long as most clients' last ones; leaves others as they are.

    Examples
    --------
    >>> report = ClientReport("a", 0, update=[3.0, 4.0])
    >>> made = Sketching(Sketcher(size=8)).of([report]).reports[0]
    >>> made.update, made.sketch.norm
    (None, 5.0)
    """

    def __init__(self, sketcher: Sketcher) -> None:
        self._sketcher = sketcher
        self._length = Majority()

    def of(self, reports: Iterable[ClientReport]) -> Sketched:
        """Return reports with their updates sketched."""
        batch = list(reports)
        usable = [r for r in batch if isinstance(r, ClientReport) and refusal(r) is None]
        lengths = {
            report.client: length
            for report in usable
            if isinstance(report.client, Hashable) and (length := _length(report)) is not None
        }
        before, length = self._length.value, self._length.settle(lengths)
        fit = {id(report) for report in usable if _length(report) == length}
        made: list[ClientReport] = []
        refused: list[tuple[ClientId, str]] = []
        for report in batch:
            if id(report) in fit and report.update is not None:
                try:
                    sketch = self._sketcher.sketch(flatten(report.update))
                    made.append(replace(report, update=None, sketch=sketch))
                except ValueError as error:
                    refused.append((report.client, str(error)))
            else:
                made.append(report)
        return Sketched(made, refused, before not in (None, length))

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return self._length.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self._length.restore(state)


def _length(report: ClientReport) -> int | None:
    """Return the length of an update, or of the update that a sketch is of."""
    if report.sketch is not None:
        return report.sketch.length
    return None if report.update is None else flatten(report.update).size
