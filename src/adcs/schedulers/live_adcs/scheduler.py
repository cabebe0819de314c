"""LiveADCS: ADCS kept current by what training brings in anyway; docs/beyond.md has the method."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray, IndexArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.kernel import alpha, unit_rows
from adcs.dpp.tolerances import Scoring
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Cohort, Request, Source
from adcs.schedulers.determinantal import DeterminantalScheduler
from adcs.schedulers.live_adcs.aggregation_weights import fitted_weights
from adcs.schedulers.live_adcs.kernel import LiveKernel
from adcs.schedulers.live_adcs.loss_tracker import OUTLIER_DEVIATIONS, LossTracker, clip_outliers
from adcs.schedulers.live_adcs.probe_budget import ProbeBudget
from adcs.schedulers.live_adcs.sketch_reports import ReportSketcher
from adcs.schedulers.snapshot import Picked

MAX_QUALITY = 3.0
"""No client's quality is further from the mean than this many deviations."""

MAX_EXPONENT = 500.0
"""Of weights exp(x) no x is above this: exp overflows at 709."""

MAX_NORM_RATIO = 1000.0
"""In predictions no update counts as longer than this many times the median."""


class LiveADCS(DeterminantalScheduler):
    """Determinantal scheduling by unit-free quality and, after a first probe, hardly any probes.

    Training replies refresh their clients' rows of the kernel; the kernel predicts how the other
    losses fall. Quality is the loss in deviations from the mean over clients. The cohort is the
    greedy MAP of L = Q C Q, Q = diag(exp(alpha q)), and its weights make its step resemble
    the Q-weighted mean of all clients' updates.

    Parameters
    ----------
    theta
        Weight of quality against diversity, in [0, 1); quality has no unit.
    patience
        A client that has not been chosen for patience N / m rounds gets a place before others
        do; None lets clients wait for ever.
    refresh_every
        A client not heard of for so many rounds is probed, as far as the budget goes; None sets
        no such limit.
    probe_share
        The budget: probes so far are at most this share of the training updates so far, or one
        for each client if that is more. Clients never heard of are asked first, then those whose
        loss has become as uncertain as if nothing were known of it.
    sketch
        A `Sketcher` if updates are to be kept, and probes sent, as sketches.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

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

    observed_sources = frozenset[Source]({"enrolment", "probe", "training"})
    repeats = False

    def __init__(
        self,
        *,
        theta: float = 0.55,
        patience: float | None = 5.0,
        refresh_every: int | None = 500,
        probe_share: float = 0.005,
        sketch: Sketcher | None = None,
        **common: Any,
    ) -> None:
        if unknown := sorted({"quality", "gamma", "scale"} & set(common)):
            raise ValueError(f"{unknown[0]} is no setting of LiveADCS, whose quality is the loss")
        super().__init__(theta=theta, refresh_every=refresh_every, sketch=sketch, **common)
        if theta == 1.0:
            raise ValueError("theta must be below 1, got 1: for quality alone take PowerOfChoice")
        if patience is not None and not patience >= 1.0:
            raise ValueError(f"patience must be at least 1, or None, got {patience!r}")
        if not 0.0 <= probe_share < math.inf:
            raise ValueError(f"probe_share must be finite and at least 0, got {probe_share!r}")
        self.patience = patience
        self.budget = ProbeBudget(probe_share)
        self.signals = frozenset({"update", "loss"})
        self.loss_tracker = LossTracker()
        self._sketching = None if sketch is None else ReportSketcher(sketch)
        self._now = 0
        self._start_over()

    def _start_over(self) -> None:
        """Begin with nothing learned of anybody."""
        self.loss_tracker = type(self.loss_tracker)()
        self.live = LiveKernel()
        self._place: dict[ClientId, int] = {}
        self._chosen_at: IndexArray = np.empty(0, dtype=np.intp)
        self._unanswered: IndexArray = np.empty(0, dtype=np.intp)
        self._met: tuple[tuple[ClientId, ...], list[ClientId], IndexArray, int] | None = None
        self._weights: dict[ClientId, float] = {}

    # Whom to ask.

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask strangers, and those whose loss is no longer known, within the budget."""
        self.budget.open(server_round)
        known = self.known_clients(clients)
        everyone = len(known) == len(clients)
        strangers = [] if everyone else [c for c in clients if c not in self._place]
        silent = {client for client in self.budget.tried if client not in self._place}
        # Those who were asked before and never answered come last.
        new = [client for client in strangers if client not in silent]
        wanted = new + self._forgotten(server_round, known) + [c for c in strangers if c in silent]
        seen = len(self._place) + len(silent) + len(new)
        asked = self.budget.grant(server_round, wanted, seen)
        return Request(tuple(asked), self.signals, self.sketch) if asked else Request()

    def _forgotten(self, server_round: int, known: list[ClientId]) -> list[ClientId]:
        """Return clients whose loss must be asked for, the longest unheard first."""
        if not known:
            return []
        places = self._places(known)
        variance = self.loss_tracker.variance(server_round)[places]
        age = server_round - self.loss_tracker.heard[places]
        spread = float(clip_outliers(self.loss_tracker.loss[places]).var())
        lost = np.isfinite(variance) & (variance > spread) & (spread > 0.0)
        if self.refresh_every is not None:
            lost |= age >= self.refresh_every
        missing = lost.nonzero()[0]
        return [known[i] for i in missing[np.argsort(-age[missing], kind="stable")]]

    # What is learned.

    def observe(self, server_round: int, reports: Iterable[ClientReport], source: Source) -> None:
        """Take evidence, from training replies too."""
        if self._sketching is not None:
            sketched = self._sketching.of(reports)
            self._refused += sketched.refused
            if sketched.turned:
                self.reports.forget()
                self._start_over()
            reports = sketched.reports
        super().observe(server_round, reports, source)

    def knows(self, report: ClientReport | None) -> bool:
        """Return whether the report brings an update and a loss."""
        return report is not None and report.loss is not None and report.vector is not None

    def _observe(self, server_round: int, reports: Sequence[ClientReport], source: Source) -> None:
        """Refresh what is believed of those who report, and predict the rest."""
        # Updates are kept in the kernel, and once is enough.
        bare = [replace(report, update=None, sketch=None) for report in reports]
        super()._observe(server_round, bare, source)
        if self._place and self.live.unit.shape[1] != self.reports.width:
            self._start_over()  # most updates have another length than those believed so far
        telling = [report for report in reports if self.knows(report)]
        # By the round of their model, then by id, whatever the order in which they came.
        telling.sort(
            key=lambda r: (min(r.server_round, server_round), isinstance(r.client, str), r.client)
        )
        for when, group in groupby(
            telling, key=lambda report: min(int(report.server_round), server_round)
        ):
            self._hear(when, list(group))
        on_time = [report for report in telling if report.server_round >= server_round]
        if source == "training" and on_time:
            self._step(on_time)

    def _hear(self, server_round: int, reports: list[ClientReport]) -> None:
        """Take in reports on the model of a round, unless newer ones were heard before."""
        heard = self.loss_tracker.heard
        known = [self._place.get(report.client) for report in reports]
        latest = [-1 if place is None else int(heard[place]) for place in known]
        reports = [r for r, at in zip(reports, latest, strict=True) if at <= server_round]
        if not reports:
            return
        # A second word on the same model, a probe and then training, is no second look.
        new = np.array([at < server_round for at in latest if at <= server_round])
        names = [report.client for report in reports]
        places = np.array([self._place.setdefault(name, len(self._place)) for name in names])
        newcomers = np.zeros(len(self._place) - self._chosen_at.size, dtype=np.intp)
        self._chosen_at = np.append(self._chosen_at, newcomers + server_round)
        self._unanswered = np.append(self._unanswered, newcomers)
        self._unanswered[places] = 0
        vectors = [report.vector for report in reports]
        rows = np.stack([vector for vector in vectors if vector is not None])
        lengths = np.array([report.update_norm for report in reports], dtype=np.float64)
        self.live.put(places, unit_rows(rows), lengths)
        losses = np.array([report.loss for report in reports], dtype=np.float64)
        if new.any():
            self.loss_tracker.update(places[new], losses[new], server_round)

    def _step(self, reports: list[ClientReport]) -> None:
        """Predict how the global step of these replies changes everybody's loss."""
        weights = np.array([self._weights.get(report.client, 0.0) for report in reports])
        places = self._places([report.client for report in reports])
        lengths = self.live.lengths[places]
        longest = MAX_NORM_RATIO * np.median(self.live.lengths)
        shorter = np.divide(longest, lengths, out=np.ones(lengths.size), where=lengths > longest)
        weights = weights * shorter
        if weights.sum() > 0.0:
            self.loss_tracker.predict((weights / weights.sum()) @ self.live.products(places))

    # Who trains.

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Take the MAP among the known, draw among the unknown."""
        cohort = super()._select(server_round, clients, m)
        self._weights = dict(zip(cohort.clients, cohort.weights, strict=True))
        chosen = [self._place[client] for client in cohort.clients if client in self._place]
        self._chosen_at[chosen] = server_round
        self._unanswered[chosen] += 1
        self.budget.trained += len(cohort.clients)
        return cohort

    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Picked:
        """Take the greedy MAP, those who have waited too long first, and weigh it."""
        self._now = server_round
        due = self._due(server_round, known, m, constraints)
        required = [*constraints.required, *due]
        picked = super()._select_known(
            server_round, known, m, replace(constraints, required=required)
        )
        index = {client: i for i, client in enumerate(known)}
        weights = self.weights(known, np.array([index[client] for client in picked.clients]))
        notes = {**picked.diagnostics, "waited": [known[i] for i in due]}
        return Picked(picked.clients, weights.tolist(), notes)

    def kernel(self, known: list[ClientId]) -> tuple[FloatArray, Float64Array | None]:
        """Return the last directions of these clients and, unless they are many, C."""
        places = self._places(known)
        return self.live.directions(places), self.live.cosines(places)

    def scoring(self, unit: FloatArray, q: Float64Array) -> Scoring:
        """Return how exact the kernel is: its entries are rounded as the updates are."""
        return Scoring.of_kernel(unit, q, theta=self.theta)

    def oldest(self, known: list[ClientId]) -> int:
        """Return the round of the oldest report among these clients'."""
        return int(self.loss_tracker.heard[self._places(known)].min())

    def scores(self, known: list[ClientId]) -> Float64Array:
        """Return each loss, with what it may be above that, in deviations over clients.

        The deviation counts what is uncertain too: where losses differ no more than they are
        uncertain, quality hardly matters.
        """
        places = self._places(known)
        losses = clip_outliers(self.loss_tracker.loss[places])
        spread = float(losses.var())
        variance = np.minimum(self.loss_tracker.variance(self._now)[places], spread)
        upper = losses + np.sqrt(variance)
        scale = np.sqrt(spread + variance.mean())
        if scale == 0.0:
            return np.zeros(len(known))
        q = (upper - upper.mean()) / scale - self._unanswered[places]
        return np.asarray(np.clip(q, -MAX_QUALITY, MAX_QUALITY))

    def weights(self, known: list[ClientId], chosen: IndexArray) -> Float64Array:
        """Return weights with which the step of the chosen resembles that of all.

        In the step of all, client j counts exp(alpha q_j).
        """
        places = self._places(known)
        log_share = alpha(self.theta) * self.scores(known)
        share = np.exp(log_share - max(0.0, float(log_share.max()) - MAX_EXPONENT))
        share /= share.sum()
        lengths = self.live.lengths[places]
        lengths = np.minimum(lengths, OUTLIER_DEVIATIONS * np.median(lengths))
        return fitted_weights(self.live.rows(places[chosen])[:, places], lengths, share, chosen)

    def _due(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> list[int]:
        """Return those who have waited too long, longest first: at most half of the places."""
        if self.patience is None:
            return []
        waits = server_round - self._chosen_at[self._places(known)]
        over = (waits >= self.patience * len(known) / m).nonzero()[0]
        order = over[np.argsort(-waits[over], kind="stable")].tolist()
        places = min((m + 1) // 2, m - len(constraints.required))
        late = [i for i in order if i not in constraints.required]
        labels, caps = constraints.groups, constraints.caps
        if labels is None or caps is None:
            return late[:places]
        assert isinstance(caps, Mapping)
        room = Counter(caps) - Counter(labels[i] for i in constraints.required)
        due: list[int] = []
        for i in late:
            if len(due) < places and room[labels[i]] > 0:
                room[labels[i]] -= 1
                due.append(i)
        return due

    def known_clients(self, clients: tuple[ClientId, ...]) -> list[ClientId]:
        """Return those of the clients that have reported; their places are looked up once."""
        met = self._met
        if met is None or met[0] is not clients or met[3] != len(self._place):
            known = [client for client in clients if client in self._place]
            places = np.array([self._place[client] for client in known], dtype=np.intp)
            met = self._met = (clients, known, places, len(self._place))
        return met[1]

    def _places(self, known: list[ClientId]) -> IndexArray:
        """Return the places of familiar clients."""
        if self._met is not None and known is self._met[1]:
            return self._met[2]
        return np.array([self._place[client] for client in known], dtype=np.intp)

    def state(self) -> dict[str, Any]:
        """Return all that was learned."""
        return {
            **super().state(),
            "loss_tracker": self.loss_tracker.state(),
            "live": self.live.state(),
            "place": [[client, place] for client, place in self._place.items()],
            "chosen_at": self._chosen_at.copy(),
            "weights": [[client, weight] for client, weight in self._weights.items()],
            "budget": self.budget.state(),
            "unanswered": self._unanswered.copy(),
            "sketching": None if self._sketching is None else self._sketching.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self.loss_tracker.restore(state["loss_tracker"])
        self.live.restore(state["live"])
        self._place = dict(state["place"])
        self._chosen_at = np.array(state["chosen_at"])
        self._met = None
        self._weights = dict(state["weights"])
        self.budget.restore(state["budget"])
        self._unanswered = np.array(state["unanswered"])
        if self._sketching is not None:
            self._sketching.restore(state["sketching"])
