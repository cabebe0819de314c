"""PowerOfChoice: the clients with the largest losses (Cho, Wang, Joshi, AISTATS 2022)."""

from __future__ import annotations

from typing import Any

from adcs._types import ClientId
from adcs._validation import check_int
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.schedulers.ranking import ranked_cohort
from adcs.schedulers.sampling import example_counts, weighted_permutation


class PowerOfChoice(Scheduler):
    """The m largest losses among this round's candidates.

    Only clients that answered this round's probe are ranked. If fewer than m did, the other slots
    go to clients drawn at random.

    Parameters
    ----------
    candidates
        How many clients are asked for their loss. They are drawn without replacement, with
        probabilities proportional to their number of examples (the original method). None asks
        all clients (the paper's benchmark).
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    d candidates are drawn without replacement in proportion to their examples. The m of them with
    the largest losses on the current model are selected; ties go to the smaller client id.

    References
    ----------
    Cho, Wang, Joshi: Towards understanding biased client selection in federated learning.
    AISTATS 2022.

    Examples
    --------
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = PowerOfChoice()
    >>> asked = scheduler.request(0, ["a", "b", "c"], 2).clients
    >>> losses = {"a": 0.3, "b": 1.9, "c": 1.1}
    >>> scheduler.observe(0, [ClientReport(c, 0, loss=losses[c]) for c in asked], "probe")
    >>> scheduler.select(0, ["a", "b", "c"], 2).clients
    ('b', 'c')
    """

    family = "loss"
    observed_sources = frozenset[Source]({"enrolment", "probe"})

    def __init__(self, *, candidates: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        if candidates is not None:
            candidates = check_int("candidates", candidates, minimum=1)
        self.candidates = candidates

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask the candidates for their loss."""
        if self.candidates is not None and self.candidates < len(clients):
            # At least m, because clients that are not asked cannot be ranked.
            count = max(self.candidates, min(m, len(clients)))
            order = weighted_permutation(
                self.rng(server_round, purpose=1), example_counts(self.reports, clients)
            )
            clients = tuple(clients[i] for i in sorted(order[:count]))
        return Request(clients, frozenset({"loss"}))

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Rank clients by the losses of this round."""
        return ranked_cohort(self, server_round, clients, m, "loss")
