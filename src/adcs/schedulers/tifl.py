"""TiFL: clients of similar speed together, by tier accuracy (Chai et al., HPDC 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId
from adcs._validation import check_int
from adcs.schedulers.base import Cohort, Request, Scheduler, Source, in_order
from adcs.schedulers.seconds import round_seconds


class TiFL(Scheduler):
    """m clients out of one tier of similar speed; the tier is drawn by its accuracy.

    A cohort has fewer than m clients if the tier has fewer.

    Parameters
    ----------
    tiers
        The number of tiers, >= 1.
    interval
        Rounds between two changes of the tiers' probabilities, >= 1.
    rounds
        The planned number of rounds, >= 1: each tier has ceil(rounds / tiers) credits.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    Clients are sorted by their time for a round and cut into tiers of equal size. A tier with
    credits is drawn and spends one, and m of its clients are drawn uniformly. Every `interval`
    rounds all clients report the accuracy on their held-out data. If the mean accuracy of the last
    tier has not risen since the last time, the n tiers with credits are sorted by accuracy, the
    worst first, and the i-th (from 0) gets the probability (n - i) / (n (n + 1) / 2). Before that
    all tiers have the same.

    Reading
    -------
    The probabilities are those of fltk. Flotilla divides by n (n - 1) / 2 and gives the best tier
    0. The condition on the last tier is the paper's; public code changes probabilities in any
    case. When all credits are spent, they are given again. Clients of unknown time are in the
    slowest tier. Tiers are made of all clients that have reported, and a tier of which nobody is
    available is not drawn.

    References
    ----------
    Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng: TiFL: A tier-based
    federated learning system. HPDC 2020.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = TiFL(tiers=2)
    >>> facts = [ClientReport(c, 0, compute_seconds=s) for c, s in enumerate((1, 2, 30, 40))]
    >>> scheduler.observe(0, facts, "enrolment")
    >>> sorted(scheduler.select(0, range(4), 2).clients) in ([0, 1], [2, 3])
    True
    """

    family = "time"
    fixed_size = False
    observed_sources = frozenset[Source]({"enrolment", "probe", "training"})
    training_signals = frozenset[str]()
    needed_signals = frozenset({"compute_seconds"})

    def __init__(
        self, *, tiers: int = 5, interval: int = 10, rounds: int = 500, **common: Any
    ) -> None:
        super().__init__(**common)
        self.tiers = check_int("tiers", tiers, minimum=1)
        self.interval = check_int("interval", interval, minimum=1)
        self.rounds = check_int("rounds", rounds, minimum=1)
        self._credits = [math.ceil(self.rounds / self.tiers)] * self.tiers
        self._p = [1.0 / self.tiers] * self.tiers
        self._accuracy: list[float | None] = [None] * self.tiers
        self._last: int | None = None  # the tier of the last cohort

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask everyone's accuracy at each interval."""
        if server_round % self.interval == 0:
            return Request(clients, frozenset({"held_out_accuracy"}))
        return Request()

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Draw a tier, and clients of it."""
        tiers = self._make_tiers(clients)
        if server_round % self.interval == 0:
            self._change_probabilities(server_round, tiers)
        present = set(clients)
        groups = [[client for client in tier if client in present] for tier in tiers]
        filled = [i for i, group in enumerate(groups) if group]
        if not any(self._credits[i] for i in filled):
            for i in filled:
                self._credits[i] = math.ceil(self.rounds / self.tiers)
        p = np.array([p if self._credits[i] and groups[i] else 0.0 for i, p in enumerate(self._p)])
        if not p.any():  # tiers that were ranked are away
            p = np.array([float(i in filled and self._credits[i] > 0) for i in range(self.tiers)])
        rng = self.rng(server_round)
        tier = int(rng.choice(self.tiers, p=p / p.sum()))
        self._credits[tier] -= 1
        self._last = tier
        builder = self.constraints.builder(clients, m, self.pending)
        order = [groups[tier][i] for i in rng.permutation(len(groups[tier]))]
        chosen = builder.fill([*builder.required, *order])
        return Cohort.of(chosen, tier=tier, probabilities=p.tolist(), credits=list(self._credits))

    def _make_tiers(self, clients: tuple[ClientId, ...]) -> list[list[ClientId]]:
        """Return the clients of each tier, the fastest first."""
        everyone = in_order({*self.reports, *clients})
        seconds = np.nan_to_num(round_seconds(self.reports, everyone), nan=np.inf)
        order = np.argsort(seconds, kind="stable")
        known = order[np.isfinite(seconds[order])]
        tiers = [[everyone[i] for i in chunk] for chunk in np.array_split(known, self.tiers)]
        tiers[-1] += [everyone[i] for i in order[known.size :]]
        return tiers

    def _change_probabilities(self, server_round: int, tiers: Sequence[Sequence[ClientId]]) -> None:
        """Rank tiers by accuracy, unless that of the last tier has risen."""
        accuracy = [self._mean_accuracy(server_round, tier) for tier in tiers]
        old, self._accuracy = self._accuracy, accuracy
        last = self._last
        if last is not None:
            before, now = old[last], accuracy[last]
            if before is not None and now is not None and now > before:
                return
        ranked = [i for i in range(self.tiers) if self._credits[i] and accuracy[i] is not None]
        if ranked:
            self._p = tier_probabilities(accuracy, ranked)

    def _mean_accuracy(self, server_round: int, tier: Sequence[ClientId]) -> float | None:
        _, values = self.reports.fresh_values("held_out_accuracy", server_round, tuple(tier))
        return float(values.mean()) if values.size else None

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        return {
            **super().state(),
            "credits": list(self._credits),
            "p": list(self._p),
            "accuracy": list(self._accuracy),
            "last": self._last,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self._credits, self._p = list(state["credits"]), list(state["p"])
        self._accuracy, self._last = list(state["accuracy"]), state["last"]


def tier_probabilities(accuracy: Sequence[float | None], ranked: Sequence[int]) -> list[float]:
    """Return the probability of each tier; those that are not ranked get 0.

    >>> [round(p, 3) for p in tier_probabilities([0.8, 0.6, 0.1], ranked=[0, 1])]
    [0.333, 0.667, 0.0]
    """
    n = len(ranked)
    p = [0.0] * len(accuracy)
    worst_first = sorted(ranked, key=lambda tier: (accuracy[tier], tier))
    for i, tier in enumerate(worst_first):
        p[tier] = (n - i) / (n * (n + 1) / 2)
    return p
