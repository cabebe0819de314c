"""The contract that every scheduler keeps, as checks that take any scheduler.

One line tests a scheduler of one's own:

    adcs.testing.check_scheduler(MyScheduler)

or, one test a check, with pytest:

    @pytest.mark.parametrize("check", adcs.testing.CHECKS)
    def test_contract(check):
        check(MyScheduler)

What is passed is a function of no arguments, or a class, that makes a new scheduler each time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adcs._serialization import pack, unpack
from adcs._types import ClientId
from adcs.reports.report import NUMBERS, ClientReport
from adcs.reports.sketch import Sketch
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Cohort, Request, Scheduler
from adcs.schedulers.constraints import CohortConstraints

Make = Callable[[], Scheduler]


def check_scheduler(make: Make) -> None:
    """Run every check on the schedulers that `make` returns; raise an error on a breach.

    >>> from adcs import Uniform
    >>> check_scheduler(Uniform)
    """
    for check in CHECKS:
        check(make)


class Crowd:
    """Made-up clients that answer requests: three to a direction, losses that move by round.

    Examples
    --------
    >>> crowd = Crowd([1, 2, 3])
    >>> [report.client for report in crowd.answer(0, Request((1, 3), frozenset({"loss"})))]
    [1, 3]
    """

    def __init__(self, clients: Sequence[ClientId], width: int = 12) -> None:
        self.clients = list(clients)
        self.width = width

    def report(self, server_round: int, client: ClientId) -> ClientReport:
        """Return everything there is to know about a client at a round."""
        order = self.clients.index(client)
        shared = np.random.default_rng([7, order // 3, server_round]).standard_normal(self.width)
        own = np.random.default_rng([8, order, server_round])
        update = shared + 0.3 * own.standard_normal(self.width)
        return ClientReport(
            client=client,
            server_round=server_round,
            loss=float(own.uniform(0.5, 2.5)),
            norm=float(np.linalg.norm(update)),
            update=update,
            examples=int(own.integers(10, 100)),
            compute_seconds=float(own.uniform(0.1, 2.0)),
            communication_seconds=float(own.uniform(0.1, 2.0)),
        )

    def answer(self, server_round: int, request: Request) -> list[ClientReport]:
        """Return the answers to a request, with the signals it asks for."""
        answers = []
        for client in request.clients:
            whole = self.report(server_round, client)
            update = np.asarray(whole.update)
            sketched = request.sketch is not None and "update" in request.signals
            answers.append(
                ClientReport(
                    client=client,
                    server_round=server_round,
                    loss=whole.loss if "loss" in request.signals else None,
                    norm=whole.norm if "norm" in request.signals else None,
                    update=update if "update" in request.signals and not sketched else None,
                    sketch=request.sketch.sketch(update) if request.sketch and sketched else None,
                    examples=whole.examples,
                    compute_seconds=whole.compute_seconds,
                    communication_seconds=whole.communication_seconds,
                )
            )
        return answers

    def enrol(self, scheduler: Scheduler) -> None:
        """Tell the scheduler every client's size."""
        sizes = [ClientReport(c, 0, examples=self.report(0, c).examples) for c in self.clients]
        scheduler.observe(0, sizes, "enrolment")

    def play(
        self,
        scheduler: Scheduler,
        server_round: int,
        m: int,
        available: Sequence[ClientId] | None = None,
    ) -> Cohort:
        """Drive one whole round of the contract and return its cohort."""
        present = self.clients if available is None else available
        request = scheduler.request(server_round, present, m)
        scheduler.observe(server_round, self.answer(server_round, request), "probe")
        cohort = scheduler.select(server_round, present, m)
        replies = [self.report(server_round, client) for client in cohort.clients]
        scheduler.observe(server_round, replies, "training")
        return cohort


def exactly_m_distinct(make: Make) -> None:
    """A cohort has m distinct available clients, finite positive weights, JSON diagnostics."""
    crowd = Crowd(range(12))
    for m in (1, 5, 12):
        scheduler = make()
        crowd.enrol(scheduler)
        for server_round in range(3):
            cohort = crowd.play(scheduler, server_round, m)
            _check_cohort(scheduler, cohort, crowd.clients, m)


def fewer_than_m(make: Make) -> None:
    """With fewer than m clients all of them are taken; with none the cohort is empty."""
    for n in (1, 4):
        crowd = Crowd(range(n))
        scheduler = make()
        cohort = crowd.play(scheduler, 0, 7)
        _check_cohort(scheduler, cohort, crowd.clients, 7)
        if scheduler.fixed_size:
            assert set(cohort.clients) == set(crowd.clients), "takes those that are there"
    empty = make().select(0, (), 3)
    assert empty.clients == (), "nobody available, nobody chosen"


def listing_order_is_nothing(make: Make) -> None:
    """The order in which clients are listed, or report, does not change who is chosen."""
    crowd = Crowd([5, 3, 11, 8, 2, 9, 14, 1, 20])
    straight, shuffled = make(), make()
    for server_round in range(3):
        one = crowd.play(straight, server_round, 4)
        turned = crowd.clients[server_round + 2 :] + crowd.clients[: server_round + 2]
        request = shuffled.request(server_round, turned, 4)
        shuffled.observe(server_round, crowd.answer(server_round, request)[::-1], "probe")
        two = shuffled.select(server_round, turned[::-1], 4)
        replies = [crowd.report(server_round, c) for c in reversed(two.clients)]
        shuffled.observe(server_round, replies, "training")
        assert set(one.clients) == set(two.clients), "the same clients in any order of listing"


def ids_are_opaque(make: Make) -> None:
    """Strings and 64-bit numbers do as well as small ints."""
    for clients in (["z", "b", "k", "a"], [2**63 + 11, 2**63 + 10, 5, 2**64 - 1]):
        crowd = Crowd(clients)
        scheduler = make()
        for server_round in range(2):
            _check_cohort(scheduler, crowd.play(scheduler, server_round, 2), crowd.clients, 2)


def request_is_pure(make: Make) -> None:
    """Asking twice gives the same request and changes nothing."""
    crowd = Crowd(range(10))
    once, twice = make(), make()
    for server_round in range(3):
        assert twice.request(server_round, crowd.clients, 4) == twice.request(
            server_round, crowd.clients, 4
        )
        asked = twice.request(server_round, crowd.clients, 4)
        assert set(asked.clients) <= set(crowd.clients), "asks only clients that are available"
        few = crowd.clients[::2]
        assert set(make().request(server_round, few, 3).clients) <= set(few), "whoever is available"
        assert (
            crowd.play(once, server_round, 4).clients == crowd.play(twice, server_round, 4).clients
        )


def same_seed_same_cohorts(make: Make) -> None:
    """Two of a kind agree round for round, and leave global generators alone."""
    crowd = Crowd(range(10))
    one, two = make(), make()
    for server_round in range(4):
        before = _global_states()
        first = crowd.play(one, server_round, 4)
        assert before == _global_states(), "global generators are not touched"
        second = crowd.play(two, server_round, 4)
        assert first.clients == second.clients, "same seed, same cohort"


def resume_equals_uninterrupted(make: Make) -> None:
    """A state taken between any two rounds, through bytes, goes on as if nothing had happened."""
    crowd = Crowd(range(10))
    whole = make()
    crowd.enrol(whole)
    for server_round in range(5):
        resumed = make()
        resumed.restore(unpack(pack(whole.state())))
        expected = crowd.play(whole, server_round, 4)
        got = crowd.play(resumed, server_round, 4)
        assert got.clients == expected.clients, "resumed equals uninterrupted"
        assert got.weights == expected.weights, "resumed equals uninterrupted, in weights too"


def clients_come_and_go(make: Make) -> None:
    """Clients vanish and return, and strangers turn up between probes."""
    crowd = Crowd(range(15))
    scheduler = make()
    for server_round in range(6):
        available = [
            c for c in range(15) if (c * 7 + server_round * 3) % 4 and c < 8 + 2 * server_round
        ]
        _check_cohort(scheduler, crowd.play(scheduler, server_round, 5, available), available, 5)


def silence_is_survived(make: Make) -> None:
    """Nobody ever answers, and there is a cohort all the same."""
    scheduler = make()
    for server_round in range(3):
        scheduler.request(server_round, range(9), 4)
        _check_cohort(scheduler, scheduler.select(server_round, range(9), 4), range(9), 4)


def bad_reports_are_refused(make: Make) -> None:
    """Each bad report is refused alone, and the reason is in the diagnostics."""
    crowd = Crowd(range(24))
    scheduler = make()
    crowd.enrol(scheduler)
    bad: list[dict[str, Any]] = [
        {"loss": float("nan"), "norm": 1.0, "update": np.ones(12)},
        {"loss": 1e300, "norm": 1.0, "update": np.ones(12)},
        {"loss": 1.0, "norm": 1.0, "update": np.zeros(12)},
        {"loss": 1.0, "norm": 1.0, "update": np.full(12, np.inf)},
        {"loss": 1.0, "norm": float("inf"), "update": np.ones(12)},
        {"loss": "high", "norm": "long", "update": "garbage"},
        {"loss": 1.0, "norm": 1.0, "update": np.ones(12), "sketch": "garbage"},
        {"loss": 1.0, "norm": 1.0, "sketch": Sketch(np.ones(64, np.float32), float("nan"))},
    ]
    for server_round in range(3):
        request = scheduler.request(server_round, crowd.clients, 4)
        if "update" in request.signals:
            bad.append({"loss": 1.0, "norm": 1.0, "update": np.ones(crowd.width + 1)})
        liars = dict(zip(request.clients, bad, strict=False))
        honest = [r for r in crowd.answer(server_round, request) if r.client not in liars]
        lies = [ClientReport(client, server_round, **lie) for client, lie in liars.items()]
        scheduler.observe(server_round, [*lies, *honest], "probe")
        cohort = scheduler.select(server_round, crowd.clients, 4)
        _check_cohort(scheduler, cohort, crowd.clients, 4)
        if request.clients:
            named = {entry["client"] for entry in cohort.diagnostics["refused"]}
            assert named == set(liars), f"refuses {sorted(liars)}, not {sorted(named)}"
            assert all(entry["reason"] for entry in cohort.diagnostics["refused"])


def tables_are_reports(make: Make) -> None:
    """Reports in a table, as simulations hand them over, are worth what they are in a list."""
    crowd = Crowd(range(12))
    listed, tabled = make(), make()
    for server_round in range(5):
        available = crowd.clients if server_round % 3 else crowd.clients[3:]
        expected = crowd.play(listed, server_round, 5, available)
        answers = crowd.answer(server_round, tabled.request(server_round, available, 5))
        tabled.observe(server_round, _table(server_round, answers), "probe")
        got = tabled.select(server_round, available, 5)
        assert got == expected, "the same cohort from a table as from a list"
        replies = [crowd.report(server_round, client) for client in got.clients]
        tabled.observe(server_round, _table(server_round, replies), "training")


def reports_are_copied(make: Make) -> None:
    """A report's array may be a buffer that is written into again."""
    crowd = Crowd(range(9))
    one, two = make(), make()
    for server_round in range(2):
        expected = crowd.play(one, server_round, 4)
        answers = crowd.answer(server_round, two.request(server_round, crowd.clients, 4))
        handed = answers if server_round else _table(server_round, answers)
        two.observe(server_round, handed, "probe")
        for report in answers:
            if report.update is not None:
                np.asarray(report.update)[:] = 1.0
        if isinstance(handed, ReportTable):
            for name in NUMBERS:
                column = getattr(handed, name)
                if column is not None:
                    column[:] = column[::-1].copy()
        got = two.select(server_round, crowd.clients, 4)
        assert set(got.clients) == set(expected.clients), "reports are copied"
        two.observe(server_round, [crowd.report(server_round, c) for c in got.clients], "training")


def rules_are_obeyed(make: Make) -> None:
    """Required clients are in, and no group, that of unknown clients included, is above its cap."""
    crowd = Crowd(range(12))
    required, capped, unknown = make(), make(), make()
    if not required.supports_constraints:
        return
    required.constraints = CohortConstraints(required=[11])
    if capped.fixed_size:  # Who includes clients independently cannot keep caps.
        capped.constraints = CohortConstraints(
            {client: client % 3 for client in range(12)}, {0: 1, 1: 2}
        )
        unknown.constraints = CohortConstraints({client: client % 3 for client in range(6)}, 1)
    for server_round in range(3):
        assert 11 in crowd.play(required, server_round, 4).clients, "required clients are in"
        groups = [int(client) % 3 for client in crowd.play(capped, server_round, 6).clients]
        if capped.constraints:
            assert groups.count(0) <= 1, "no group is above its cap"
            assert groups.count(1) <= 2, "no group is above its cap"
            assert len(groups) == 6, "places that a cap closes go to others"
            strangers = [
                client for client in crowd.play(unknown, server_round, 6).clients if int(client) > 5
            ]
            assert len(strangers) == 1, "clients in no group share one"


def wrong_calls_are_errors(make: Make) -> None:
    """The driver's own mistakes raise a ValueError that names the value."""
    mistakes: list[tuple[Any, Any, Any, str]] = [
        (0, [1, 2, 2], 2, "2"),
        (0, [1, 2], 0, "0"),
        (0, [1, 2], -3, "-3"),
        (-1, [1, 2], 1, "-1"),
        (0, [1.5, 2], 1, "1.5"),
    ]
    for server_round, available, m, named in mistakes:
        message = ""
        try:
            make().select(server_round, available, m)
        except ValueError as error:
            message = str(error)
        assert message, f"select({server_round}, {available}, {m}) must raise a ValueError"
        assert named in message, f"the message names {named}: {message}"


CHECKS: tuple[Callable[[Make], None], ...] = (
    exactly_m_distinct,
    fewer_than_m,
    listing_order_is_nothing,
    ids_are_opaque,
    request_is_pure,
    same_seed_same_cohorts,
    resume_equals_uninterrupted,
    clients_come_and_go,
    silence_is_survived,
    bad_reports_are_refused,
    tables_are_reports,
    reports_are_copied,
    rules_are_obeyed,
    wrong_calls_are_errors,
)
"""Every check, for parametrised tests."""


def _global_states() -> tuple[Any, Any]:
    _, key, place, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (np.asarray(key).tolist(), place)


def _table(server_round: int, reports: Sequence[ClientReport]) -> ReportTable:
    columns: dict[str, Any] = {
        name: np.array([getattr(report, name) for report in reports])
        for name in (*NUMBERS, "update")
        if reports and getattr(reports[0], name) is not None
    }
    sketches = [report.sketch for report in reports if report.sketch is not None]
    clients = tuple(report.client for report in reports)
    return ReportTable(clients, server_round, sketch=sketches or None, **columns)


def _check_cohort(
    scheduler: Scheduler, cohort: Cohort, available: Sequence[ClientId], m: int
) -> None:
    chosen = cohort.clients
    assert len(set(chosen)) == len(chosen), f"clients are distinct, got {chosen}"
    assert set(chosen) <= set(available), f"only available clients, got {chosen}"
    if scheduler.fixed_size:
        expected = min(m, len(available))
        assert len(chosen) == expected, f"{expected} clients, got {len(chosen)}"
    assert len(cohort.weights) == len(chosen), "one weight for each client"
    assert all(np.isfinite(w) and w > 0 for w in cohort.weights), "weights are positive"
    json.dumps(dict(cohort.diagnostics), allow_nan=False)
