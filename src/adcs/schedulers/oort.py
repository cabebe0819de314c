"""Oort: clients with large losses that are fast enough (Lai et al., OSDI 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs._validation import check_int, check_number
from adcs.dpp.tolerances import descending
from adcs.schedulers.base import Cohort, Scheduler, Source
from adcs.schedulers.sampling import example_counts, weighted_permutation
from adcs.schedulers.seconds import round_seconds, slowness_penalty
from adcs.schedulers.selection_history import SelectionHistory

MAX_PASSED_OVER = 0.3
"""The largest fraction of clients that `max_picks` may pass over."""


class Oort(Scheduler):
    """Clients of large statistical utility that are fast enough, and clients not tried yet.

    Parameters
    ----------
    exploration, exploration_decay, exploration_min
        The share of slots for clients that have not reported yet, from 0 to 1: it starts at
        `exploration`, is multiplied by the decay in every round, and stays above the minimum.
    cutoff
        c, from 0 to 1: clients of at least c times the k-th best utility are candidates.
    clip
        Utilities above this quantile, from 0 to 1, are taken to be equal to it.
    penalty
        alpha >= 0: clients slower than the preferred duration lose a factor (T / s)^alpha.
    percentile, pacer_step, pacer_window
        The preferred duration is this percentile, from 0 to 100, of clients' times; 100 is no
        limit. Every `pacer_window` rounds the pacer moves it by `pacer_step` points.
    max_picks
        Clients that were selected more often are passed over while others are there, at most 30 %
        of all; None (the reference code's default) passes nobody over.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    Utility of a client that has reported, in round R counted from 1:

        U = n sqrt(mean of squared losses)
        u = (min(U, clip) - 0.999 min U) / max(max U - 0.999 min U, 1e-4) + sqrt(0.1 ln R / L)
        u *= (T / s)^alpha  if s > T

    with L the last round in which it was selected and s its time. k = (1 - exploration) m clients
    are drawn with probabilities proportional to u out of those with u >= c times the k-th best.
    The other slots go to clients without a report: of the 5 times as many with the largest
    n (T / s)^alpha, they are drawn in proportion to it.

    Reading
    -------
    The pacer is the authors' code: with a and b the sums of mean exploited utility over the
    last but one and the last window, |b - a| <= 0.1 a raises the percentile, |b - a| >= 5 a
    lowers it. The paper's text (and Plato) raises T by a number of seconds if a > b. Cut-off,
    decay and minimum are the paper's; the authors' code has 0.7 and 0.95, FedScale 0.05 and
    0.98. The cut-off is at the k-th best utility (the code takes the next one, and fails if
    there is none), unexplored clients do not enter minimum, maximum and clip, and slots for
    which nobody is left to explore are exploited (the code fills them at random once, and then
    exploits). Clients that fail keep their last utility. A client that reports the mean loss
    alone is taken to have that RMS.

    References
    ----------
    Lai, Zhu, Madhyastha, Chowdhury: Oort: Efficient federated learning via guided participant
    selection. OSDI 2021.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = Oort(exploration=0.0, exploration_min=0.0)
    >>> losses = {"a": 0.1, "b": 2.0, "c": 1.0}
    >>> reports = [ClientReport(c, 0, rms_loss=losses[c], examples=100) for c in losses]
    >>> scheduler.observe(0, reports, "training")
    >>> scheduler.select(1, ["a", "b", "c"], 1).clients
    ('b',)
    """

    family = "mixed"
    observed_sources = frozenset[Source]({"enrolment", "training"})
    training_signals = frozenset({"rms_loss"})
    needed_signals = frozenset({"rms_loss"})

    def __init__(
        self,
        *,
        exploration: float = 0.9,
        exploration_decay: float = 0.98,
        exploration_min: float = 0.2,
        cutoff: float = 0.95,
        clip: float = 0.95,
        penalty: float = 2.0,
        percentile: float = 30.0,
        pacer_step: float = 5.0,
        pacer_window: int = 20,
        max_picks: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.exploration = check_number("exploration", exploration, minimum=0, maximum=1)
        self.exploration_decay = check_number(
            "exploration_decay", exploration_decay, above=0, maximum=1
        )
        self.exploration_min = check_number(
            "exploration_min", exploration_min, minimum=0, maximum=1
        )
        self.cutoff = check_number("cutoff", cutoff, minimum=0, maximum=1)
        self.clip = check_number("clip", clip, minimum=0, maximum=1)
        self.penalty = check_number("penalty", penalty, minimum=0)
        self.percentile = check_number("percentile", percentile, minimum=0, maximum=100)
        self.pacer_step = check_number("pacer_step", pacer_step, above=0, maximum=100)
        self.pacer_window = check_int("pacer_window", pacer_window, minimum=1)
        if max_picks is not None:
            max_picks = check_int("max_picks", max_picks, minimum=1)
        self.max_picks = max_picks
        self._percentile = self.percentile  # as the pacer has moved it
        self._history = SelectionHistory()
        self._exploited: list[ClientId] = []  # of the last cohort
        self._utilities: list[float] = []  # mean exploited utility of the last 2 W rounds

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Exploit clients of large utility, and explore others."""
        current = server_round + 1
        self._pace(current)
        preferred = self._preferred_seconds()
        utility = self._statistical_utility(clients)
        explored = np.flatnonzero(~np.isnan(utility))
        unexplored = np.flatnonzero(np.isnan(utility))
        seconds = round_seconds(self.reports, clients)
        slowness = slowness_penalty(seconds, preferred, self.penalty)
        last = np.array([self._history.last.get(clients[i], 0) + 1 for i in explored])
        scores = oort_scores(utility[explored], last, current, self.clip) * slowness[explored]
        share = max(self.exploration * self.exploration_decay**current, self.exploration_min)
        # Slots for which nobody is left to explore are exploited too.
        k = min(max(int((1.0 - share) * m + 1e-9), m - unexplored.size), explored.size)
        rng = self.rng(server_round)
        best = explored[descending(scores)]
        exploited = _draw(rng, explored, scores, k, self.cutoff)
        sizes = example_counts(self.reports, clients)[unexplored] * slowness[unexplored]
        window = unexplored[descending(sizes)][: 5 * (min(m, len(clients)) - k)]
        wanted = window[weighted_permutation(rng, sizes[np.searchsorted(unexplored, window)])]
        order = [*exploited, *wanted, *best, *unexplored]
        ranked = self._demote([clients[i] for i in dict.fromkeys(order)])
        chosen = self.take(ranked, m)
        known = {clients[i] for i in explored}
        self._exploited = [client for client in chosen if client in known]
        self._history.add(chosen, server_round)
        score_of = {clients[i]: float(s) for i, s in zip(explored, scores, strict=True)}
        return Cohort.of(
            chosen,
            scores=[[client, score_of[client]] for client in self._exploited],
            explored=[client for client in chosen if client not in known],
            exploration=share,
            preferred_seconds=preferred if math.isfinite(preferred) else None,
        )

    def _statistical_utility(self, clients: tuple[ClientId, ...]) -> Float64Array:
        """Return n times the RMS loss of each client, NaN for clients without a report."""
        rms = self.reports.last_values("rms_loss", clients)
        mean = np.maximum(self.reports.last_values("loss", clients), 0.0)
        loss = np.where(np.isnan(rms), mean, rms)
        return example_counts(self.reports, clients) * loss

    def _pace(self, current: int) -> None:
        """Move the percentile of the preferred duration, if it is time."""
        reported = tuple(
            client
            for client in self._exploited
            if (report := self.reports.get(client)) is not None
            and report.server_round == self._history.last[client]
        )
        utility = self._statistical_utility(reported)
        utility = utility[~np.isnan(utility)]  # A report may have expired, or have no loss.
        window = self.pacer_window
        self._utilities.append(float(utility.mean()) if utility.size else 0.0)
        self._utilities = self._utilities[-2 * window :]
        if current >= 2 * window and current % window == 0:
            before, now = sum(self._utilities[:-window]), sum(self._utilities[-window:])
            if abs(now - before) <= 0.1 * before:
                self._percentile = min(100.0, self._percentile + self.pacer_step)
            elif abs(now - before) >= 5.0 * before:
                self._percentile = max(self.pacer_step, self._percentile - self.pacer_step)

    def _preferred_seconds(self) -> float:
        """Return T: the percentile of all known times."""
        seconds = np.sort(round_seconds(self.reports, tuple(self.reports)))
        known = seconds[~np.isnan(seconds)]
        if self._percentile >= 100.0 or known.size == 0:
            return math.inf
        return float(known[min(int(known.size * self._percentile / 100.0), known.size - 1)])

    def _demote(self, ranked: list[ClientId]) -> list[ClientId]:
        """Put clients that were selected too often last."""
        if self.max_picks is None:
            return ranked
        counts = self._history.counts
        often = sorted(ranked, key=lambda client: -counts.get(client, 0))
        limit = int(MAX_PASSED_OVER * len(ranked))
        passed = {c for c in often[:limit] if counts.get(c, 0) > self.max_picks}
        return [c for c in ranked if c not in passed] + [c for c in ranked if c in passed]

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        return {
            **super().state(),
            "history": self._history.state(),
            "percentile": self._percentile,
            "exploited": list(self._exploited),
            "utilities": list(self._utilities),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._history.restore(state["history"])
        self._percentile = float(state["percentile"])
        self._exploited = list(state["exploited"])
        self._utilities = list(state["utilities"])


def oort_scores(
    utility: Float64Array, last: Float64Array, current: int, clip: float = 1.0
) -> Float64Array:
    """Return the utilities, clipped and scaled, with the bonus for clients selected long ago.

    Parameters
    ----------
    utility
        U of each client.
    last, current
        The round in which each was last selected, and the present one, both counted from 1.
    clip
        The quantile above which utilities are clipped.

    Examples
    --------
    >>> oort_scores(np.array([8.0, 4.0, 2.0]), np.array([9, 5, 1]), current=10).round(3)
    array([1.16 , 0.548, 0.48 ])
    """
    if utility.size == 0:
        return np.empty(0)
    ordered = np.sort(utility)
    ceiling = ordered[min(int(utility.size * clip), utility.size - 1)]
    least = 0.999 * ordered[0]
    scale = max(float(ordered[-1] - least), 1e-4)
    bonus = np.sqrt(0.1 * math.log(current) / last)
    return np.asarray((np.minimum(utility, ceiling) - least) / scale + bonus)


def _draw(
    rng: np.random.Generator, rows: Any, scores: Float64Array, k: int, cutoff: float
) -> list[int]:
    """Return k of the rows, drawn by score among those near the k-th best."""
    if k == 0:
        return []
    admitted = np.flatnonzero(scores >= cutoff * np.sort(scores)[-k])
    drawn = admitted[weighted_permutation(rng, scores[admitted])[:k]]
    return [int(rows[i]) for i in drawn]
