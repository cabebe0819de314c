"""LiveADCS: ADCS kept current by training replies; docs/evidence/beyond.md has the method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import filterfalse
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array, IndexArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.kernel import alpha, check_theta, unit_rows
from adcs.dpp.tolerances import Scorer
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketcher
from adcs.reports.store import ReportStore
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.schedulers.client_dpp import ClientDPP
from adcs.schedulers.directions import Kernel, make_directions
from adcs.schedulers.live_adcs.balance import (
    balancing_clients,
    scaled_norms,
    target_shares,
    waiting_bonus,
)
from adcs.schedulers.live_adcs.batches import Batch, in_batches
from adcs.schedulers.live_adcs.kernel import LiveKernel
from adcs.schedulers.live_adcs.loss_tracker import LossTracker, clip_outliers
from adcs.schedulers.live_adcs.participation import Participation
from adcs.schedulers.live_adcs.probe_budget import ProbeBudget
from adcs.schedulers.live_adcs.quality import discounted, standardised_loss
from adcs.schedulers.live_adcs.share_limit import ShareLimit
from adcs.schedulers.live_adcs.waiting import WaitingRule
from adcs.schedulers.snapshot import check_refresh_every, check_sketch
from adcs.schedulers.unknown_clients import select_with_unknown

MAX_STEP_NORM_RATIO = 1000.0
"""In predictions no update counts as longer than this many times the median."""

DRAW = 1
"""The random stream of draws from the estimates of losses; unknown clients have stream 0."""

EMPHASIS_POWER = 2
"""Losses count as the persistence of updates to this power."""

LABEL_SHARE = 0.5
"""The DPP's part of the slots with label histograms, which do not change.

It does not take two clients of equal histograms, however large their losses are. The balanced part
does, so losses count there; without losses, at theta = 0, the DPP fills all slots.
"""

QualityScore = Callable[[Float64Array, Float64Array, IndexArray, Float64Array], Float64Array]
SIGNALS = frozenset({"update", "loss"})


class LiveADCS(Scheduler):
    """DPP scheduling with unit-free quality and, after a first probe, hardly any probes.

    Training replies refresh their clients' rows of the kernel, and the kernel predicts how the
    other losses fall. Quality is a draw from the estimate of each loss, standardised over clients.
    A cohort has two parts. The first is the greedy MAP of L = Q C Q with Q = diag(exp(alpha q)); it
    has the more slots, the more of an update persists from one selection of a client to the next.
    The second balances the cohort: with it, the cohort's mean update is close to the mean of all,
    and who has waited longer goes first. All clients of a cohort have the same weight.
    Participation is bounded on both sides, by `patience` and by `max_share`.

    Parameters
    ----------
    theta
        Weight of quality against diversity, in [0, 1); quality has no unit.
    patience
        A client that has not been chosen for patience N / m rounds gets a slot before others, and
        over-selected rounds wait for its reply; None sets no limit. A client whose reply was late
        has not been chosen.
    max_share
        In any rounds that follow each other, a client gets at most 1 + max_share * (their sum of
        m / number of available clients) slots, whatever it reports; None sets no limit. Slots of
        required clients, and slots that nobody else could fill, are not counted.
    refresh_every
        A client without a report for this many rounds is probed, within the budget; None sets no
        limit.
    probe_share
        The budget: probes so far are at most this share of the training updates so far, or one
        for each client if that is more. Clients without any report are probed first, then those
        whose loss has become as uncertain as if nothing were known of it.
    sketch
        A `Sketcher` if updates are to be kept, and probes answered, as sketches.
    kernel
        "updates", or "labels": C holds the cosines between label histograms, which clients send
        once, with noise if they like (`adcs.reports.count_labels`). No update is asked for; half of
        the slots are balanced. Losses follow their trend between reports; with theta = 0 they are
        not asked for, and the DPP fills all slots.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Attributes
    ----------
    kernel : LiveKernel
        Directions and norms of the last updates, and their cosines.
    loss_tracker : LossTracker
        Estimates of the losses between reports.
    quality : function
        q from losses, their variances and unanswered selections: `standardised_loss`.
    probe_budget : ProbeBudget
        How many probes may be sent.
    waiting_rule : WaitingRule
        Which clients have waited too long.
    share_limit : ShareLimit
        Which clients have been chosen too often.
    waiting_bonus : function
        What waiting counts for in the slots that balance: `waiting_bonus`.

    Formula
    -------
    With rho the cosine between consecutive updates of the median client, rho^2 m slots are filled
    as in ADCS: (1 - theta) log det C_S + theta (sum of qualities) by the greedy algorithm. C is
    made of each client's latest update, whichever round it is of, and qualities of loss estimates.
    Each other slot goes to the client that maximises 2 <u_i, m g - sum_S u_j> - |u_i|^2 + b_i: g is
    the mean update of all clients, those with large losses counting more, and b_i the standardised
    time since i was selected.

    Examples
    --------
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = LiveADCS()
    >>> scheduler.request(0, ["a", "b", "c"], 2).clients
    ('a', 'b', 'c')
    >>> updates = {"a": [1.0, 0.1], "b": [1.0, 0.0], "c": [0.0, 1.0]}
    >>> replies = [ClientReport(c, 0, loss=1.0, update=updates[c]) for c in updates]
    >>> scheduler.observe(0, replies, "probe")
    >>> scheduler.select(0, ["a", "b", "c"], 2).clients
    ('a', 'c')
    >>> scheduler.request(1, ["a", "b", "c"], 2).clients
    ()
    """

    family = "mixed"

    def __init__(
        self,
        *,
        theta: float = 0.6,
        patience: float | None = 2.0,
        max_share: float | None = 2.0,
        refresh_every: int | None = 500,
        probe_share: float = 0.005,
        sketch: Sketcher | None = None,
        kernel: Kernel = "updates",
        **common: Any,
    ) -> None:
        if unknown := sorted({"quality", "gamma", "scale"} & set(common)):
            raise ValueError(f"{unknown[0]} is no setting of LiveADCS, whose quality is the loss")
        super().__init__(**common)
        self.theta = check_theta(theta)
        if self.theta == 1.0:
            raise ValueError("theta must be below 1, got 1: for quality alone take PowerOfChoice")
        self.refresh_every = check_refresh_every(refresh_every)
        self.sketch = check_sketch(sketch)
        self.directions = make_directions(kernel)
        self.signals = SIGNALS
        if self.directions.sent_once:
            if sketch is not None:
                raise ValueError("sketch must be None with kernel='labels', which has no updates")
            losses = frozenset({"loss"} if self.theta > 0.0 else ())
            self.signals = losses | {self.directions.signal}
            self.training_signals = losses
            self.needed_signals = frozenset({self.directions.signal})
        self.kernel = LiveKernel()
        self.loss_tracker = LossTracker()
        self.quality: QualityScore = standardised_loss
        self.probe_budget = ProbeBudget(probe_share)
        self.waiting_rule = WaitingRule(patience)
        self.share_limit = ShareLimit(max_share)
        self.waiting_bonus = waiting_bonus
        self.dpp: ClientDPP | None = None
        self._participation = Participation()
        self.reports = ReportStore(self.sketch)
        self._generation = 0  # of the reports that the kernel was made from
        self._silent_clients: tuple[tuple[int, ...], Set[ClientId]] = ((), frozenset())

    def known_clients(self, clients: tuple[ClientId, ...]) -> list[ClientId]:
        """Return those of the clients that have reported an update and a loss, or a histogram."""
        return self._participation.known(clients)

    # request

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Probe clients without a report, and those whose loss is outdated, within the budget."""
        self.probe_budget.open(server_round)
        reported = self._participation.clients
        known = self.known_clients(clients)
        unknown = [c for c in clients if c not in reported] if len(known) < len(clients) else []
        silent = self._silent()
        # Clients that never answered a probe come last.
        new = [client for client in unknown if client not in silent]
        seen = len(reported) + len(silent) + len(new)
        if self.probe_budget.is_spent(seen):
            return Request()
        outdated = self._outdated(server_round, known)
        if new and self.directions.sent_once:
            outdated = []  # they are not asked for what they have sent
        wanted = new + outdated + [c for c in unknown if c in silent]
        granted = self.probe_budget.grant(server_round, wanted, seen)
        if not granted:
            return Request()
        signals = self.signals
        if self.directions.sent_once and all(client in reported for client in granted):
            signals = signals - {self.directions.signal}
        return Request(tuple(granted), signals, self.sketch)

    def _silent(self) -> Set[ClientId]:
        """Return the clients that were probed in earlier rounds and have not reported."""
        probed, reported = self.probe_budget.probed, self._participation.clients
        # Both only grow, but when they are dropped.
        key = (len(probed), len(reported), self._generation)
        if self._silent_clients[0] != key:
            self._silent_clients = (key, probed - reported)
        return self._silent_clients[1]

    def _outdated(self, server_round: int, known: list[ClientId]) -> list[ClientId]:
        """Return clients whose loss must be asked for, the oldest report first."""
        if not known or "loss" not in self.signals:
            return []
        rows = self._participation.rows(known)
        variance = self.loss_tracker.variance(server_round)[rows]
        age = server_round - self.loss_tracker.reported_at[rows]
        spread = float(clip_outliers(self.loss_tracker.estimate(server_round, rows)).var())
        outdated = np.isfinite(variance) & (variance > spread) & (spread > 0.0)
        if self.refresh_every is not None:
            outdated |= age >= self.refresh_every
        found = outdated.nonzero()[0]
        return [known[i] for i in found[np.argsort(-age[found], kind="stable")]]

    # observe

    def _observe(self, server_round: int, reports: Sequence[ClientReport], source: Source) -> None:
        """Update the kernel and the losses of those that report, and predict the other losses."""
        # The store keeps no updates: the kernel has them.
        super()._observe(server_round, _without_updates(reports), source)
        if self.reports.generation != self._generation and not self.directions.sent_once:
            self._start_over()  # most updates now have another form
        usable = self._usable(reports)
        # By the round of their model, then by id, whatever the order in which they came.
        clients: list[ClientId] = []
        for batch in in_batches(usable, server_round, self.directions) if usable else ():
            self._update(batch)
            clients += batch.clients
        if source == "late":
            self._participation.mark_late(report.client for report in reports)
        elif source == "training":
            rounds = {r.client: min(int(r.server_round), server_round) for r in reports}
            self._participation.mark_aggregated(rounds)
            if not self.directions.sent_once:
                self._predict(clients)

    def _usable(self, reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
        """Return reports with a loss and an update; with histograms, one of the two suffices."""
        if isinstance(reports, ReportTable) and not self.directions.sent_once:
            has_both = reports.sketches is not None and reports.column("loss") is not None
            return reports if has_both else []
        if not self.directions.sent_once:
            return [r for r in reports if r.loss is not None and r.vector is not None]
        # Histograms have as many classes as those held, or as most of the first ones.
        sizes = Counter(v.size for r in reports if (v := self.directions.vector(r)) is not None)
        classes = max(sizes, key=lambda size: (sizes[size], -size), default=0)
        if len(self._participation):
            classes = self.kernel.unit.shape[1]
        usable = []
        for report in reports:
            vector = self.directions.vector(report)
            if vector is not None and vector.size == classes:
                usable.append(report)
            elif report.loss is not None and report.client in self._participation:
                usable.append(replace(report, label_counts=None))
        return usable

    def _expire(self, clients: tuple[ClientId, ...]) -> None:
        """Leave clients out of the DPP until they report again."""
        super()._expire(clients)
        self._participation.expire(clients)

    def _start_over(self) -> None:
        """Drop everything that was learned from updates and losses."""
        self._generation = self.reports.generation
        self.kernel.clear()
        self.loss_tracker.clear()
        self._participation.clear()

    def _update(self, batch: Batch) -> None:
        """Take reports on the model of a round; those older than the client's last are ignored."""
        latest = self._reported_at(batch.clients)
        batch, latest = (
            batch.take(latest <= batch.server_round),
            latest[latest <= batch.server_round],
        )
        if not batch.clients:
            return
        # A second report on the same model, a probe and then training, is no second observation.
        new = latest < batch.server_round
        rows = self._participation.report(batch.clients, batch.server_round)
        sent, vectors = batch.stacked()
        if vectors is not None:
            # A list of vectors was stacked into an array of its own.
            directions = unit_rows(vectors, overwrite=isinstance(batch.vectors, list))
            if not self.directions.sent_once:
                self.kernel.compare(rows, directions, new)
            self.kernel.update(rows[sent], directions, batch.norms[sent])
        new &= np.isfinite(batch.losses) | (rows >= self.loss_tracker.loss.size)
        if new.any():
            self.loss_tracker.update(rows[new], batch.losses[new], batch.server_round)

    def _reported_at(self, clients: Sequence[ClientId]) -> IndexArray:
        """Return the round of each client's last report of a loss, -1 for none."""
        rows, tracker = self._participation.find(clients), self.loss_tracker
        if not tracker.loss.size:
            return np.full(rows.size, -1)
        none = (rows < 0) | np.isnan(tracker.loss[rows])
        return np.where(none, -1, tracker.reported_at[rows])

    def _predict(self, clients: Sequence[ClientId]) -> None:
        """Predict how the global step of the replies of clients, stale ones too, changes losses."""
        if not clients:
            return
        rows = self._participation.rows(clients)
        norms = self.kernel.norms[rows]
        longest = MAX_STEP_NORM_RATIO * np.median(self.kernel.norms)
        counts = np.divide(longest, norms, out=np.ones(norms.size), where=norms > longest)
        if counts.sum() > 0.0:
            self.loss_tracker.predict(self.kernel.sum_products(rows, counts / counts.sum()))

    # select

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Take the greedy MAP among the known clients, and draw among the unknown."""
        everyone = self.known_clients(self._with_pending(clients))
        quality = self._quality(server_round, everyone)
        self.share_limit.open(server_round, m, len(clients))
        barred = self.share_limit.barred
        left_out = self._left_out(clients, m, barred)
        known, position = everyone, np.arange(len(everyone))
        if left_out:
            known, position = self._participation.without(everyone, left_out)
            clients = tuple(filterfalse(left_out.__contains__, clients))

        def select_known(count: int, constraints: Constraints) -> Cohort:
            return self._select_known(
                server_round, known, everyone, position, quality, count, constraints
            )

        cohort = select_with_unknown(self, server_round, clients, m, known, select_known)
        self._participation.mark_selected(cohort.clients, server_round)
        required = self.constraints.required
        self.share_limit.charge(
            [c for c in cohort.clients if c not in barred and c not in required]
        )
        self.probe_budget.updates += len(cohort.clients)
        return cohort

    def _quality(self, server_round: int, known: list[ClientId]) -> Float64Array:
        rows, tracker = self._participation.rows(known), self.loss_tracker
        if not known:
            return np.empty(0)
        losses = clip_outliers(tracker.estimate(server_round, rows))
        return self.quality(
            discounted(losses, tracker.response(server_round, rows)),
            tracker.variance(server_round)[rows],
            self._participation.unanswered[rows],
            self.rng(server_round, DRAW).standard_normal(rows.size),
        )

    @property
    def emphasis(self) -> float:
        """How much losses count, from 0 to 1: less where updates do not persist."""
        return self.kernel.persistence**EMPHASIS_POWER

    def dpp_slots(self, m: int) -> int:
        """Return how many of m slots the DPP fills; the others balance the cohort."""
        if not self.directions.sent_once:
            return int(self.emphasis * m + 0.5)
        return int(LABEL_SHARE * m + 0.5) if self.theta > 0.0 else m

    def _left_out(
        self, clients: tuple[ClientId, ...], m: int, barred: Set[ClientId]
    ) -> Set[ClientId]:
        """Return the clients beyond their limit, but those without whom a slot would stay empty."""
        left_out = barred
        if self.pending or self.constraints.required:
            left_out = barred - {*self.pending, *self.constraints.required}
        if not left_out or (not self.constraints and len(clients) - len(left_out) >= m):
            return left_out
        within = filterfalse(left_out.__contains__, clients)
        beyond = [client for client in self.share_limit.beyond(clients) if client in left_out]
        return left_out - set(self.take((*within, *beyond), m))

    def _select_known(
        self,
        server_round: int,
        known: list[ClientId],
        everyone: list[ClientId],
        position: IndexArray,
        quality: Float64Array,
        m: int,
        constraints: Constraints,
    ) -> Cohort:
        """Take the greedy MAP, overdue clients first, and balance it."""
        all_rows, kernel = self._participation.rows(everyone), self.kernel
        rows, q = all_rows[position], quality[position]
        # The kernel's entries are rounded as the updates are.
        scorer = Scorer.of_kernel(kernel.unit, q, theta=self.theta)
        dpp = self.dpp = ClientDPP(
            known, kernel.unit, kernel.similarity(rows), q, scorer, rows, kernel.squares
        )
        waits = server_round - self._participation.last_selected[rows]
        overdue = self.waiting_rule.overdue(waits, m, constraints)
        first = replace(constraints, required=[*constraints.required, *overdue])
        slots = max(self.dpp_slots(m), len(first.required))
        selection = dpp.greedy(slots, first) if slots else None
        picks = () if selection is None else selection.indices
        # Pending clients represent others too: the cohort is balanced together with them.
        together = np.array([*constraints.given, *picks], dtype=np.intp)
        balancing: list[int] = []
        if slots < m:
            norms = scaled_norms(kernel.norms[all_rows])
            shares = target_shares(self.emphasis * alpha(self.theta) * quality)
            noise = (1.0 - kernel.persistence) * norms**2
            targets = norms * kernel.cosine_sums(all_rows, norms * shares) - noise * shares
            balancing = balancing_clients(
                kernel,
                rows,
                norms[position],
                targets[position],
                self.waiting_bonus(waits, self._participation.unanswered[rows]),
                together,
                m - slots,
                constraints.resolve(rows.size, m),
            )
        clients = tuple(known[i] for i in (*picks, *balancing))
        limited = len(everyone) - len(known)
        return Cohort(
            clients=clients,
            weights=(1.0,) * len(clients),
            diagnostics={
                **({} if selection is None else dpp.diagnostics(selection)),
                "balancing": [known[i] for i in balancing],
                "oldest_report": int(self.loss_tracker.reported_at[rows].min()),
                "waited": [known[i] for i in overdue],
                **({"limited": limited} if limited else {}),
            },
            awaited=tuple(known[i] for i in overdue),
        )

    # state and restore

    def state(self) -> dict[str, Any]:
        """Return all that was learned."""
        return {
            **super().state(),
            "kernel": self.kernel.state(),
            "loss_tracker": self.loss_tracker.state(),
            "participation": self._participation.state(),
            "probe_budget": self.probe_budget.state(),
            "share_limit": self.share_limit.state(),
            "generation": self._generation,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self.kernel.restore(state["kernel"])
        self.loss_tracker.restore(state["loss_tracker"])
        self._participation.restore(state["participation"])
        self.probe_budget.restore(state["probe_budget"])
        self.share_limit.restore(state["share_limit"])
        self._generation = int(state["generation"])
        self._silent_clients = ((), frozenset())
        self.dpp = None


def _without_updates(reports: Sequence[ClientReport]) -> Sequence[ClientReport]:
    if isinstance(reports, ReportTable):
        return reports.without("update", "sketch")
    return [replace(report, update=None, sketch=None) for report in reports]
