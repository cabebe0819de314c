"""The form of updates: whole or sketched, and of which size. Only one form can be compared.

Clients may lie about it, and nobody else knows it, so the form that counts is that of most
clients' last updates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adcs._types import ClientId
from adcs.reports.report import ClientReport, flatten
from adcs.reports.sketch import Sketcher


class Form(NamedTuple):
    """What has to agree between updates, or sketches, that are compared.

    Attributes
    ----------
    sketched
        Whether they are sketches.
    size
        How many numbers they have.
    update_size
        How many numbers the updates themselves have; 0 where it is not known.

    Examples
    --------
    >>> Form.of(ClientReport("a", 0, update=[1.0, 2.0]))
    Form(sketched=False, size=2, update_size=2)
    """

    sketched: bool
    size: int
    update_size: int

    @classmethod
    def of(cls, report: ClientReport, sketcher: Sketcher | None = None) -> Form | None:
        """Return the form of a usable report's update, or None if it has none.

        With a sketcher, a whole update has the form of its sketch.
        """
        if report.update is not None:
            size = flatten(report.update).size
            return cls(False, size, size) if sketcher is None else cls(True, sketcher.size, size)
        if report.sketch is None:
            return None
        return cls(True, report.sketch.values.size, int(report.sketch.update_size or 0))

    def agrees(self, other: Form) -> bool:
        """Return whether vectors of the two forms can be compared."""
        unknown = self.update_size == 0 or other.update_size == 0
        return self[:2] == other[:2] and (unknown or self.update_size == other.update_size)


def check_compatible(
    report: ClientReport, form: Form | None, sketcher: Sketcher | None = None
) -> str | None:
    """Return why a usable report cannot be compared with others of this form, or None if it can.

    >>> check_compatible(ClientReport(3, server_round=0, update=[1.0, 0.0]), Form(False, 3, 3))
    'update must have 3 numbers, got 2'
    """
    own = Form.of(report, sketcher)
    if form is None or own is None or own.agrees(form):
        return None
    if own.sketched != form.sketched:
        kinds = ("a whole update", "a sketch of one")
        return f"evidence must be {kinds[form.sketched]}, got {kinds[own.sketched]}"
    if own.size != form.size:
        name = "sketch" if own.sketched else "update"
        return f"{name} must have {form.size} numbers, got {own.size}"
    if report.update is not None:
        return f"update must have {form.update_size} numbers, got {own.update_size}"
    return f"sketch must be of an update of {form.update_size} numbers, got {own.update_size}"


class FormVote:
    """The form of most clients' last updates, one vote for each client.

    The present form keeps a tie. Among others the smallest wins, so that the order in which
    clients report does not matter.

    Examples
    --------
    >>> vote, wrong, right = FormVote(), Form(False, 3, 3), Form(False, 50, 50)
    >>> [vote.update({"liar": wrong}).size, vote.update({"a": right}).size]
    [3, 3]
    >>> vote.update({"b": right}).size
    50
    """

    def __init__(self) -> None:
        self.form: Form | None = None
        self._votes: dict[ClientId, Form] = {}
        self._counts: Counter[Form] = Counter()

    def update(self, forms: Mapping[ClientId, Form]) -> Form | None:
        """Count the votes of some clients, in place of their earlier ones; return the form."""
        for client, form in forms.items():
            before = self._votes.get(client)
            if before is not form and before != form:
                if before is not None:
                    self._counts[before] -= 1
                self._votes[client] = form
                self._counts[form] += 1
        return self._count()

    def update_all(self, clients: Sequence[ClientId], form: Form) -> Form | None:
        """Count the same vote of distinct clients, in place of their earlier ones.

        >>> FormVote().update_all(("a", "b"), Form(True, 64, 0)).size
        64
        """
        if self._votes:
            return self.update(dict.fromkeys(clients, form))
        self._votes = dict.fromkeys(clients, form)
        self._counts[form] += len(self._votes)
        return self._count()

    def _count(self) -> Form | None:
        """Return the form of most votes."""
        most = max(self._counts.values(), default=0)
        if most and (self.form is None or self._counts[self.form] < most):
            self.form = min(form for form, count in self._counts.items() if count == most)
        return self.form

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "form": None if self.form is None else list(self.form),
            "votes": [[client, list(form)] for client, form in self._votes.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.form = None if state["form"] is None else Form(*state["form"])
        self._votes = {client: Form(*form) for client, form in state["votes"]}
        self._counts = Counter(self._votes.values())
