"""The contract of schedulers as checks, for any scheduler.

One line tests a scheduler of your own:

    adcs.testing.check_scheduler(MyScheduler)

or, with pytest, one test for each check:

    @pytest.mark.parametrize("check", adcs.testing.CHECKS)
    def test_contract(check):
        check(MyScheduler)

The argument is a class, or a function without arguments, that makes a new scheduler each time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adcs._serialization import pack, unpack
from adcs._types import ClientId
from adcs.reports.report import (
    LEARNING_SIGNALS,
    NUMBERS,
    PER_CLASS,
    SIGNALS,
    ClientReport,
)
from adcs.reports.sketch import Sketch
from adcs.reports.table import ReportTable
from adcs.schedulers.base import Cohort, Request, Scheduler
from adcs.schedulers.constraints import CohortConstraints

__all__ = ["CHECKS", "FakeClients", "MakeScheduler", "check_scheduler"]

MakeScheduler = Callable[[], Scheduler]
"""A class, or a function without arguments, that makes a new scheduler each time."""


def check_scheduler(make: MakeScheduler) -> None:
    """Run every check on the schedulers that `make` returns; raise an error on a breach.

    >>> from adcs import Uniform
    >>> check_scheduler(Uniform)
    """
    for check in CHECKS:
        check(make)


class FakeClients:
    """Synthetic clients that answer requests: three to a direction, losses that vary by round.

    Parameters
    ----------
    clients
        Their ids.
    width
        How many numbers their updates have.

    Examples
    --------
    >>> fake = FakeClients([1, 2, 3])
    >>> [report.client for report in fake.answer(0, Request((1, 3), frozenset({"loss"})))]
    [1, 3]
    >>> from adcs import Uniform
    >>> len(fake.run_round(Uniform(), server_round=0, m=2).clients)
    2
    """

    def __init__(self, clients: Sequence[ClientId], width: int = 12) -> None:
        self.clients = list(clients)
        self.width = width

    def report(self, server_round: int, client: ClientId) -> ClientReport:
        """Return a client's report with every signal but the sketch."""
        order = self.clients.index(client)
        shared = np.random.default_rng([7, order // 3, server_round]).standard_normal(self.width)
        own = np.random.default_rng([8, order, server_round])
        update = shared + 0.3 * own.standard_normal(self.width)
        known: dict[str, Any] = {
            "loss": float(own.uniform(0.5, 2.5)),
            "norm": float(np.linalg.norm(update)),
            "update": update,
            "examples": int(own.integers(10, 100)),
        }
        for name in NUMBERS:
            largest = min(2.0, SIGNALS[name].maximum)
            known.setdefault(name, float(own.uniform(0.1, largest)))
        for name in PER_CLASS:
            known[name] = own.uniform(-1.0 if SIGNALS[name].belongs_to_model else 0.0, 9.0, 4)
        return ClientReport(client, server_round, **known)

    def answer(self, server_round: int, request: Request) -> list[ClientReport]:
        """Return the answers to a request: the signals it asks for, and facts sent unasked."""
        answers = []
        for client in request.clients:
            report = self.report(server_round, client)
            changes: dict[str, Any] = {
                name: None
                for name, signal in SIGNALS.items()
                if (signal.belongs_to_model or signal.requestable) and name not in request.signals
            }
            if request.sketch is not None and "update" in request.signals:
                sketch = request.sketch.sketch(np.asarray(report.update))
                changes |= {"update": None, "sketch": sketch}
            answers.append(replace(report, **changes))
        return answers

    def enrol(self, scheduler: Scheduler) -> None:
        """Report every client's number of examples to the scheduler."""
        counts = [ClientReport(c, 0, examples=self.report(0, c).examples) for c in self.clients]
        scheduler.observe(0, counts, "enrolment")

    def run_round(
        self,
        scheduler: Scheduler,
        server_round: int,
        m: int,
        available: Sequence[ClientId] | None = None,
        pending: Sequence[ClientId] = (),
    ) -> Cohort:
        """Drive one round of the contract and return its cohort."""
        clients = self.clients if available is None else available
        request = scheduler.request(server_round, clients, m)
        scheduler.observe(server_round, self.answer(server_round, request), "probe")
        cohort = scheduler.select(server_round, clients, m, pending)
        replies = [self.report(server_round, client) for client in cohort.clients]
        scheduler.observe(server_round, replies, "training")
        return cohort


def cohort_has_m_distinct_clients(make: MakeScheduler) -> None:
    """A cohort has m distinct available clients, finite positive weights, JSON diagnostics."""
    fake = FakeClients(range(12))
    for m in (1, 5, 12):
        scheduler = make()
        fake.enrol(scheduler)
        for server_round in range(3):
            cohort = fake.run_round(scheduler, server_round, m)
            _check_cohort(scheduler, cohort, fake.clients, m)


def cohort_has_all_clients_if_fewer_than_m(make: MakeScheduler) -> None:
    """With fewer than m clients all of them are chosen; with none the cohort is empty."""
    for n in (1, 4):
        fake = FakeClients(range(n))
        scheduler = make()
        cohort = fake.run_round(scheduler, 0, 7)
        _check_cohort(scheduler, cohort, fake.clients, 7)
        if scheduler.fixed_size:
            assert set(cohort.clients) == set(fake.clients), "all available clients are chosen"
    empty = make().select(0, (), 3)
    assert empty.clients == (), "the cohort is empty if no client is available"


def order_of_clients_does_not_matter(make: MakeScheduler) -> None:
    """The order in which clients are listed, or report, does not change who is chosen."""
    fake = FakeClients([5, 3, 11, 8, 2, 9, 14, 1, 20])
    first, second = make(), make()
    for server_round in range(3):
        one = fake.run_round(first, server_round, 4)
        rotated = fake.clients[server_round + 2 :] + fake.clients[: server_round + 2]
        request = second.request(server_round, rotated, 4)
        second.observe(server_round, fake.answer(server_round, request)[::-1], "probe")
        two = second.select(server_round, rotated[::-1], 4)
        replies = [fake.report(server_round, c) for c in reversed(two.clients)]
        second.observe(server_round, replies, "training")
        assert set(one.clients) == set(two.clients), "the order of clients does not matter"


def client_ids_are_opaque(make: MakeScheduler) -> None:
    """Strings and 64-bit numbers work as ids."""
    for clients in (["z", "b", "k", "a"], [2**63 + 11, 2**63 + 10, 5, 2**64 - 1]):
        fake = FakeClients(clients)
        scheduler = make()
        for server_round in range(2):
            _check_cohort(scheduler, fake.run_round(scheduler, server_round, 2), fake.clients, 2)


def request_changes_nothing(make: MakeScheduler) -> None:
    """A second request of a round equals the first, and cohorts do not depend on it."""
    fake = FakeClients(range(10))
    once, twice = make(), make()
    for server_round in range(3):
        request = twice.request(server_round, fake.clients, 4)
        for _ in range(server_round):
            again = twice.request(server_round, fake.clients, 4)
            assert request == again, "a second request equals the first"
        assert set(request.clients) <= set(fake.clients), "only available clients are probed"
        few = fake.clients[::2]
        request = make().request(server_round, few, 3)
        assert set(request.clients) <= set(few), "only available clients are probed"
        one = fake.run_round(once, server_round, 4)
        two = fake.run_round(twice, server_round, 4)
        assert one.clients == two.clients, "cohorts do not depend on repeated requests"


def same_seed_same_cohorts(make: MakeScheduler) -> None:
    """Two schedulers with the same settings agree, and global generators are not used."""
    fake = FakeClients(range(10))
    one, two = make(), make()
    for server_round in range(4):
        before = _global_random_states()
        first = fake.run_round(one, server_round, 4)
        assert before == _global_random_states(), "global random generators are not used"
        second = fake.run_round(two, server_round, 4)
        assert first.clients == second.clients, "the same seed gives the same cohorts"


def resume_equals_uninterrupted(make: MakeScheduler) -> None:
    """A state taken between rounds and restored from bytes continues as if uninterrupted."""
    fake = FakeClients(range(10))
    whole = make()
    fake.enrol(whole)
    for server_round in range(5):
        resumed = make()
        resumed.restore(unpack(pack(whole.state())))
        pending = fake.clients[: server_round % 3]
        expected = fake.run_round(whole, server_round, 4, pending=pending)
        got = fake.run_round(resumed, server_round, 4, pending=pending)
        assert got.clients == expected.clients, "a resumed run equals an uninterrupted one"
        assert got.weights == expected.weights, "and has the same weights"


def clients_come_and_go(make: MakeScheduler) -> None:
    """Clients leave and return, and new clients appear between probes."""
    fake = FakeClients(range(15))
    scheduler = make()
    for server_round in range(6):
        available = [
            c for c in range(15) if (c * 7 + server_round * 3) % 4 and c < 8 + 2 * server_round
        ]
        cohort = fake.run_round(scheduler, server_round, 5, available)
        _check_cohort(scheduler, cohort, available, 5)


def cohort_without_answers(make: MakeScheduler) -> None:
    """There is a cohort even if no client ever answers."""
    scheduler = make()
    for server_round in range(3):
        scheduler.request(server_round, range(9), 4)
        _check_cohort(scheduler, scheduler.select(server_round, range(9), 4), range(9), 4)


def expired_clients_can_be_chosen(make: MakeScheduler) -> None:
    """Clients whose reports have expired have none, can be chosen, and can report again."""
    fake = FakeClients(range(9))
    scheduler, resumed = make(), make()
    fake.enrol(scheduler)
    fake.run_round(scheduler, 0, 4)
    failing: list[ClientId] = [2, 5, "never seen"]
    scheduler.expire(failing)
    for client in failing:
        report = scheduler.reports.get(client)
        signals = [] if report is None else [getattr(report, name) for name in LEARNING_SIGNALS]
        assert all(signal is None for signal in signals), "no loss or update is left"
    resumed.restore(unpack(pack(scheduler.state())))
    for server_round in range(1, 4):
        cohort = fake.run_round(scheduler, server_round, 8)
        _check_cohort(scheduler, cohort, fake.clients, 8)
        same = fake.run_round(resumed, server_round, 8)
        assert same.clients == cohort.clients, "a resumed run equals an uninterrupted one"


def bad_reports_are_refused(make: MakeScheduler) -> None:
    """Each bad report is refused on its own, and the reason is in the diagnostics."""
    fake = FakeClients(range(24))
    scheduler = make()
    fake.enrol(scheduler)
    good: dict[str, Any] = {"loss": 1.0, "norm": 1.0, "update": np.ones(12)}
    bad: list[dict[str, Any]] = [
        *({**good, name: float("nan")} for name in NUMBERS),
        *({**good, name: [1.0, float("nan")]} for name in PER_CLASS),
        {**good, "loss": 1e300},
        {**good, "update": np.zeros(12)},
        {**good, "update": np.full(12, np.inf)},
        {**good, "norm": float("inf")},
        {"loss": "high", "norm": "long", "update": "garbage"},
        {**good, "sketch": "garbage"},
        {"loss": 1.0, "norm": 1.0, "sketch": Sketch(np.ones(64, np.float32), float("nan"))},
    ]
    for server_round in range(3):
        request = scheduler.request(server_round, fake.clients, 4)
        if "update" in request.signals:
            bad.append({"loss": 1.0, "norm": 1.0, "update": np.ones(fake.width + 1)})
        liars = dict(zip(request.clients, bad, strict=False))
        answers = [r for r in fake.answer(server_round, request) if r.client not in liars]
        lies = [ClientReport(client, server_round, **lie) for client, lie in liars.items()]
        scheduler.observe(server_round, [*lies, *answers], "probe")
        cohort = scheduler.select(server_round, fake.clients, 4)
        _check_cohort(scheduler, cohort, fake.clients, 4)
        if request.clients:
            refused = {entry["client"] for entry in cohort.diagnostics["refused"]}
            assert refused == set(liars), f"refuses {sorted(liars)}, not {sorted(refused)}"
            assert all(entry["reason"] for entry in cohort.diagnostics["refused"])


def table_equals_list_of_reports(make: MakeScheduler) -> None:
    """Reports in a table, as the simulator passes them, have the same effect as in a list."""
    fake = FakeClients(range(12))
    listed, tabled = make(), make()
    for server_round in range(5):
        available = fake.clients if server_round % 3 else fake.clients[3:]
        expected = fake.run_round(listed, server_round, 5, available)
        answers = fake.answer(server_round, tabled.request(server_round, available, 5))
        tabled.observe(server_round, _as_table(server_round, answers), "probe")
        got = tabled.select(server_round, available, 5)
        assert got == expected, "the same cohort from a table as from a list"
        replies = [fake.report(server_round, client) for client in got.clients]
        tabled.observe(server_round, _as_table(server_round, replies), "training")


def reports_are_copied(make: MakeScheduler) -> None:
    """Arrays of a report may be buffers that the engine reuses."""
    fake = FakeClients(range(9))
    one, two = make(), make()
    for server_round in range(2):
        expected = fake.run_round(one, server_round, 4)
        answers = fake.answer(server_round, two.request(server_round, fake.clients, 4))
        reports = answers if server_round else _as_table(server_round, answers)
        two.observe(server_round, reports, "probe")
        for report in answers:
            for name in ("update", *PER_CLASS):
                if getattr(report, name) is not None:
                    np.asarray(getattr(report, name))[:] = 1.0
        if isinstance(reports, ReportTable):
            for name in (*NUMBERS, *PER_CLASS):
                if (column := reports.column(name)) is not None:
                    column[:] = column[::-1].copy()
        got = two.select(server_round, fake.clients, 4)
        assert set(got.clients) == set(expected.clients), "arrays of reports are copied"
        two.observe(server_round, [fake.report(server_round, c) for c in got.clients], "training")


def pending_clients_are_not_chosen(make: MakeScheduler) -> None:
    """Pending clients, available or not, known or not, are not chosen, and m others are."""
    fake = FakeClients(range(12))
    scheduler, default = make(), make()
    pending: list[ClientId] = []
    for server_round in range(6):
        available = fake.clients[server_round % 2 :]
        cohort = fake.run_round(scheduler, server_round, 4, available, [*pending, "unknown"])
        _check_cohort(scheduler, cohort, [c for c in available if c not in pending], 4)
        pending = [*pending[-2:], *cohort.clients[:2]]
    everyone = scheduler.select(6, fake.clients, 4, fake.clients)
    assert everyone.clients == (), "the cohort is empty if all clients are pending"
    answers = fake.answer(0, default.request(0, fake.clients, 4))
    default.observe(0, answers, "probe")
    cohort = default.select(0, fake.clients, 4)
    assert fake.run_round(make(), 0, 4, pending=()) == cohort, "by default no client is pending"


def late_replies_are_evidence(make: MakeScheduler) -> None:
    """Late replies are evidence where training replies are, for a resumed run too."""
    fake = FakeClients(range(12))
    scheduler = make()
    late: list[ClientReport] = []
    for server_round in range(5):
        resumed = make()
        resumed.restore(unpack(pack(scheduler.state())))
        cohorts = []
        for each in (scheduler, resumed):
            request = each.request(server_round, fake.clients, 6)
            each.observe(server_round, fake.answer(server_round, request), "probe")
            cohorts.append(each.select(server_round, fake.clients, 6))
            each.observe(server_round, late, "late")
            if "training" in each.observed_sources:
                known = [report.client in each.reports for report in late]
                assert all(known), "clients that reply late have reported"
            in_time = cohorts[-1].clients[: len(cohorts[-1].clients) * 2 // 3]
            replies = [fake.report(server_round, client) for client in in_time]
            each.observe(server_round, replies, "training")
        cohort = cohorts[0]
        assert cohorts[1] == cohort, "a resumed run equals an uninterrupted one"
        _check_cohort(scheduler, cohort, fake.clients, 6)
        late = [fake.report(server_round, c) for c in cohort.clients if c not in in_time]


def constraints_are_kept(make: MakeScheduler) -> None:
    """Required clients are chosen, and no group, that of unknown clients included, is above its
    cap; pending clients count for both.
    """
    fake = FakeClients(range(12))
    required, capped, unknown = make(), make(), make()
    if not required.supports_constraints:
        return
    required.constraints = CohortConstraints(required=[11])
    groups: dict[ClientId, int] = {client: client % 3 for client in range(12)}
    if capped.fixed_size:  # independent inclusion cannot keep caps
        capped.constraints = CohortConstraints(groups, {0: 1, 1: 2})
        unknown.constraints = CohortConstraints({c: groups[c] for c in range(6)}, 1)
    for server_round in range(3):
        cohort = fake.run_round(required, server_round, 4)
        assert 11 in cohort.clients, "required clients are chosen"
        assert 11 in cohort.awaited, "required clients are waited for"
        chosen = fake.run_round(capped, server_round, 6).clients
        if capped.constraints:
            counts = [sum(groups[c] == group for c in chosen) for group in range(3)]
            assert counts[0] <= 1, "no group is above its cap"
            assert counts[1] <= 2, "no group is above its cap"
            assert sum(counts) == 6, "slots that a cap closes go to other groups"
            chosen = fake.run_round(unknown, server_round, 6).clients
            assert sum(int(c) > 5 for c in chosen) == 1, "clients in no group share one"
    chosen = fake.run_round(required, 3, 4, pending=[11]).clients
    assert 11 not in chosen, "a required client that is pending needs no slot"
    if capped.constraints:
        chosen = fake.run_round(capped, 3, 6, pending=[0, 4]).clients
        counts = [sum(groups[c] == group for c in chosen) for group in range(3)]
        assert counts[0] == 0, "pending clients count towards caps"
        assert counts[1] <= 1, "pending clients count towards caps"


def invalid_arguments_raise(make: MakeScheduler) -> None:
    """Invalid arguments raise a ValueError that names the value."""
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


CHECKS: tuple[Callable[[MakeScheduler], None], ...] = (
    cohort_has_m_distinct_clients,
    cohort_has_all_clients_if_fewer_than_m,
    order_of_clients_does_not_matter,
    client_ids_are_opaque,
    request_changes_nothing,
    same_seed_same_cohorts,
    resume_equals_uninterrupted,
    clients_come_and_go,
    cohort_without_answers,
    expired_clients_can_be_chosen,
    bad_reports_are_refused,
    table_equals_list_of_reports,
    reports_are_copied,
    pending_clients_are_not_chosen,
    late_replies_are_evidence,
    constraints_are_kept,
    invalid_arguments_raise,
)
"""Every check, for parametrised tests."""


def _global_random_states() -> tuple[Any, Any]:
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (np.asarray(key).tolist(), position)


def _as_table(server_round: int, reports: Sequence[ClientReport]) -> ReportTable:
    columns: dict[str, Any] = {}
    for name, signal in SIGNALS.items():
        values = [value for report in reports if (value := getattr(report, name)) is not None]
        if values:
            columns[name] = values if signal.kind == "sketch" else np.array(values)
    return ReportTable(tuple(report.client for report in reports), server_round, **columns)


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
    assert set(cohort.awaited) <= set(chosen), f"awaited clients are chosen, got {cohort.awaited}"
    assert all(np.isfinite(w) and w > 0 for w in cohort.weights), "weights are positive"
    json.dumps(dict(cohort.diagnostics), allow_nan=False)
