"""What a scheduler knew when it chose a cohort, and why it chose these clients."""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs.dpp.constraints import Constraints
from adcs.dpp.explain import Explanation, Miss, Pick, Score, explain
from adcs.dpp.kernel import similarity, unit_rows
from adcs.schedulers.base import Cohort, Scheduler, in_order
from adcs.schedulers.client_dpp import ClientDPP, Determinantal
from adcs.schedulers.constraints import CohortConstraints
from adcs.schedulers.live_adcs import LiveADCS
from adcs.schedulers.snapshot import SnapshotScheduler

RECORDED_LIMIT = 200
"""Up to this many clients, the record of a choice has the reasons for all clients."""


@dataclass(frozen=True)
class Choice:
    """What a scheduler knew when it chose a cohort.

    Attributes
    ----------
    cohort
        The cohort, with its diagnostics.
    available
        The clients to choose from.
    theta
        Weight of quality, for schedulers with a DPP; None for others.
    known
        The clients with usable reports, in the order of the rows of `explanation`.
    explanation
        The picks and the rows left out; None for schedulers without a DPP.
    scores
        The numbers by which clients were ranked, where they were ranked.
    ranked_by
        The signal that these numbers are: "loss" or "norm".
    nearest
        For other schedulers that have updates: each client's most similar chosen one, and the
        similarity.
    required
        The required clients.
    capped
        Whether groups have caps.
    limited
        The clients that could not be selected because they had their share of slots.

    Examples
    --------
    >>> choice = Choice(Cohort.of([2], drawn=[2]), available=(1, 2))
    >>> choice.drawn
    True
    """

    cohort: Cohort
    available: tuple[ClientId, ...]
    theta: float | None = None
    known: tuple[ClientId, ...] = ()
    explanation: Explanation | None = None
    scores: Mapping[ClientId, float] = field(default_factory=dict)
    ranked_by: str | None = None
    nearest: Mapping[ClientId, tuple[ClientId, float]] = field(default_factory=dict)
    required: tuple[ClientId, ...] = ()
    capped: bool = False
    limited: tuple[ClientId, ...] = ()

    @property
    def waited(self) -> tuple[ClientId, ...]:
        """The clients that were chosen because they had waited too long."""
        return tuple(self.cohort.diagnostics.get("waited", ()))

    @property
    def pending(self) -> tuple[ClientId, ...]:
        """The clients that were at work; the search of a DPP starts from them."""
        return tuple(self.cohort.diagnostics.get("pending", ()))

    @property
    def balancing(self) -> tuple[ClientId, ...]:
        """The clients that were chosen to make the cohort represent all clients."""
        return tuple(self.cohort.diagnostics.get("balancing", ()))

    @property
    def drawn(self) -> bool:
        """Whether all chosen clients were drawn at random, for lack of usable reports."""
        drawn = self.cohort.diagnostics.get("drawn", ())
        return bool(self.cohort.clients) and set(self.cohort.clients) <= set(drawn)


def explain_choice(scheduler: Scheduler, available: Sequence[ClientId], cohort: Cohort) -> Choice:
    """Return what a scheduler knew, right after its `select` has returned the cohort.

    >>> from adcs.schedulers import PowerOfChoice
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = PowerOfChoice()
    >>> scheduler.observe(0, [ClientReport(c, 0, loss=c / 2) for c in range(3)], "probe")
    >>> choice = explain_choice(scheduler, range(3), scheduler.select(0, range(3), 1))
    >>> choice.ranked_by, choice.scores
    ('loss', {0: 0.0, 1: 0.5, 2: 1.0})
    """
    clients = tuple(in_order(available))
    diagnostics, constraints = cohort.diagnostics, scheduler.constraints
    capped = constraints.caps is not None
    choice = Choice(cohort, clients, required=constraints.required, capped=capped)
    if isinstance(scheduler, LiveADCS):
        # Those that were selected now may be at their limit since.
        beyond = scheduler.share_limit.beyond(clients)
        choice = replace(choice, limited=tuple(c for c in beyond if c not in cohort.clients))
    if choice.drawn:
        if isinstance(scheduler, (SnapshotScheduler, LiveADCS)):
            choice = replace(choice, known=tuple(scheduler.known_clients(clients)))
        return choice
    dpp = scheduler.dpp if isinstance(scheduler, Determinantal) else None
    if dpp is not None and "gains" in diagnostics:
        found = _explanation(dpp, constraints, diagnostics)
        theta = dpp.scorer.theta
        return replace(choice, theta=theta, known=tuple(dpp.clients), explanation=found)
    if dpp is not None and choice.balancing:  # they fill all slots
        return replace(choice, known=tuple(dpp.clients))
    if "scores" in diagnostics:
        name, scores = _ranking(scheduler, clients, dict(diagnostics["scores"]))
        return replace(choice, scores=scores, ranked_by=name)
    return replace(choice, nearest=_nearest(scheduler, clients, cohort))


def _explanation(
    dpp: ClientDPP, constraints: CohortConstraints, diagnostics: Mapping[str, Any]
) -> Explanation:
    row = {client: i for i, client in enumerate(dpp.clients)}
    pending = [row[client] for client in diagnostics.get("pending", ()) if client in row]
    picks = [row[client] for client, _ in diagnostics["gains"]]
    first = dict.fromkeys((*constraints.required, *diagnostics.get("waited", ())))
    required = [row[client] for client in first if client in row and row[client] not in pending]
    # The search starts from the pending clients, as if they had been picked before all others.
    limits = Constraints(required=[*pending, *required])
    if constraints.caps is not None:
        labels = [constraints.group(client) for client in dpp.clients]
        # Slots that were drawn for are not the search's to fill.
        drawn = Counter(constraints.group(client) for client in diagnostics.get("drawn", ()))
        held = Counter(labels[i] for i in pending)  # may be above a cap, and are not searched for
        caps = {
            label: max(cap - drawn[label], held[label])
            for label in labels
            if (cap := constraints.cap(label)) is not None
        }
        limits = replace(limits, groups=labels, caps=caps)
    found = explain(
        dpp.cosines(), [*pending, *picks], dpp.quality, dpp.scorer.theta, dpp.scorer, limits
    )
    balancing = {row[client] for client in diagnostics.get("balancing", ())}
    left_out = [
        replace(miss, step=miss.step - len(pending))
        for miss in found.left_out
        if miss.row not in balancing
    ]
    return Explanation(found.picks[len(pending) :], tuple(left_out))


def _ranking(
    scheduler: Scheduler, clients: tuple[ClientId, ...], chosen: Mapping[ClientId, float]
) -> tuple[str, dict[ClientId, float]]:
    """Return the signal that the scores of the chosen clients are, and all clients' values."""
    newest = max(
        (scheduler.reports[c].server_round for c in chosen if c in scheduler.reports), default=0
    )
    for name in ("loss", "update_norm"):
        values = {
            client: float(value)
            for client in clients
            if (report := scheduler.reports.get(client)) is not None
            and report.server_round == newest
            and (value := getattr(report, name)) is not None
        }
        if all(values.get(client) == score for client, score in chosen.items()):
            return ("norm" if name == "update_norm" else name), values
    return "score", dict(chosen)


def _nearest(
    scheduler: Scheduler, clients: tuple[ClientId, ...], cohort: Cohort
) -> dict[ClientId, tuple[ClientId, float]]:
    vectors = {
        client: report.vector
        for client in clients
        if (report := scheduler.reports.get(client)) is not None and report.vector is not None
    }
    known = list(vectors)
    columns = [i for i, client in enumerate(known) if client in cohort.clients]
    if not columns:
        return {}
    c = similarity(unit_rows(np.stack([v for v in vectors.values() if v is not None])))
    np.fill_diagonal(c, -2.0)
    best = [columns[i] for i in c[:, columns].argmax(axis=1)]
    return {
        client: (known[j], float(c[i, j]))
        for i, (client, j) in enumerate(zip(known, best, strict=True))
        if i != j
    }


def as_record(choice: Choice) -> dict[str, Any]:
    """Return a choice, without its cohort, as JSON values; empty entries are left out.

    >>> as_record(Choice(Cohort.of([2]), (1, 2), scores={1: 0.5, 2: 0.7}, ranked_by="loss"))
    {'available': [1, 2], 'scores': [[1, 0.5], [2, 0.7]], 'ranked_by': 'loss'}
    """
    record: dict[str, Any] = {
        "available": list(choice.available),
        "theta": choice.theta,
        "known": list(choice.known),
        "scores": [list(pair) for pair in choice.scores.items()],
        "ranked_by": choice.ranked_by,
        "nearest": [[client, *near] for client, near in choice.nearest.items()],
        "required": list(choice.required),
        "capped": choice.capped or None,
        "limited": list(choice.limited),
    }
    if choice.explanation is not None:
        record |= asdict(choice.explanation)
    return {key: value for key, value in record.items() if value not in (None, [])}


def from_record(record: Mapping[str, Any], cohort: Cohort) -> Choice:
    """Return the choice of a record that `as_record` returned.

    >>> choice = Choice(Cohort.of([2]), (1, 2), scores={1: 0.5, 2: 0.7}, ranked_by="loss")
    >>> from_record(as_record(choice), choice.cohort) == choice
    True
    """
    explanation = None
    if "picks" in record:
        picks = [
            # JSON has no infinity.
            Pick(**{**pick, "gain": -math.inf if pick["gain"] is None else pick["gain"]})
            for pick in map(_with_scores, record["picks"])
        ]
        misses = [Miss(**miss) for miss in map(_with_scores, record.get("left_out", ()))]
        explanation = Explanation(tuple(picks), tuple(misses))
    return Choice(
        cohort,
        tuple(record.get("available", ())),
        record.get("theta"),
        tuple(record.get("known", ())),
        explanation,
        scores=dict(record.get("scores", ())),
        ranked_by=record.get("ranked_by"),
        nearest={client: (other, near) for client, other, near in record.get("nearest", ())},
        required=tuple(record.get("required", ())),
        capped=bool(record.get("capped")),
        limited=tuple(record.get("limited", ())),
    )


def _with_scores(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: Score(**value) if isinstance(value, Mapping) else value for key, value in row.items()
    }


def kernel_record(scheduler: Scheduler) -> dict[str, Any]:
    """Return the cosines of the clients that a scheduler with a DPP knows, as JSON values.

    >>> from adcs.schedulers import Uniform
    >>> kernel_record(Uniform())
    {}
    """
    dpp = scheduler.dpp if isinstance(scheduler, Determinantal) else None
    if dpp is None or not 1 < len(dpp.clients) <= RECORDED_LIMIT:
        return {}
    c = similarity(dpp.directions) if dpp.similarity is None else dpp.similarity
    return {"kernel_clients": list(dpp.clients), "cosines": pack_cosines(c)}


COSINE_STEPS = 127
"""Recorded cosines are whole multiples of 1/127."""


def pack_cosines(cosines: Float64Array) -> str:
    """Return the upper triangle of a matrix of cosines as text, a byte for each.

    >>> pack_cosines(np.array([[1.0, 0.5], [0.5, 1.0]]))
    'QA=='
    """
    upper = cosines[np.triu_indices(len(cosines), 1)]
    steps = np.round(np.clip(upper, -1.0, 1.0) * COSINE_STEPS).astype(np.int8)
    return base64.b64encode(steps.tobytes()).decode()


def unpack_cosines(text: str, n: int) -> Float64Array:
    """Return the matrix of n clients whose cosines were packed, to 1/254.

    >>> unpack_cosines("QA==", 2).round(2).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    >>> unpack_cosines("QA==", 3)
    Traceback (most recent call last):
    ...
    ValueError: the cosines of 3 clients are 3 bytes, got 1
    """
    try:
        steps = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.int8)
    except binascii.Error as error:
        raise ValueError(f"cosines must be base64 text: {error}") from error
    if steps.size != n * (n - 1) // 2:
        raise ValueError(
            f"the cosines of {n} clients are {n * (n - 1) // 2} bytes, got {steps.size}"
        )
    found = np.eye(n)
    rows, columns = np.triu_indices(n, 1)
    found[rows, columns] = found[columns, rows] = steps / COSINE_STEPS
    return found
