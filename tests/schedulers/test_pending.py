"""Pending clients: never chosen, counted by caps, and complemented by schedulers that go by
similarity."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adcs
from adcs._serialization import pack, unpack
from adcs.dpp.constraints import Constraints
from adcs.dpp.exact import exact_map
from adcs.dpp.kernel import alpha, similarity, unit_rows
from adcs.schedulers.client_dpp import Determinantal
from adcs.testing import FakeClients

N = 12
SCHEDULERS: dict[str, Any] = {
    "Uniform": adcs.Uniform,
    "PowerOfChoice": adcs.PowerOfChoice,
    "OCS": adcs.OCS,
    "DivFL": adcs.DivFL,
    "StaticDPP": adcs.StaticDPP,
    "ADCS": adcs.ADCS,
    "LiveADCS": adcs.LiveADCS,
}
FREE = {
    "Uniform independent": partial(adcs.Uniform, independent=True),
    "OCS independent": partial(adcs.OCS, independent=True),
    "StaticDPP sampled": partial(adcs.StaticDPP, sample=True),
}
subsets = st.sets(st.integers(0, N - 1))


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from([*SCHEDULERS, *FREE]),
    available=subsets,
    pending=subsets,
    reporting=subsets,
    m=st.integers(1, N),
    rounds=st.integers(1, 4),
)
def test_exactly_m_others_are_chosen(name, available, pending, reporting, m, rounds) -> None:
    scheduler = (SCHEDULERS | FREE)[name]()
    fake = FakeClients(range(N))
    for server_round in range(rounds):
        request = scheduler.request(server_round, sorted(available), m)
        answers = fake.answer(server_round, request)
        scheduler.observe(server_round, [r for r in answers if r.client in reporting], "probe")
        cohort = scheduler.select(server_round, sorted(available), m, sorted(pending))
        assert len(set(cohort.clients)) == len(cohort.clients)
        assert set(cohort.clients) <= available - pending
        if scheduler.fixed_size:
            assert len(cohort.clients) == min(m, len(available - pending))
        replies = [fake.report(server_round, c) for c in cohort.clients if c in reporting]
        scheduler.observe(server_round, replies, "training")


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(list(SCHEDULERS)),
    pending=subsets,
    required=st.sets(st.integers(0, N - 1), max_size=3),
    cap=st.integers(1, 3),
    m=st.integers(1, 8),
    reporting=subsets,
)
def test_caps_count_pending_clients(name, pending, required, cap, m, reporting) -> None:
    groups = {c: c % 4 for c in range(N)}
    if max(Counter(groups[c] for c in required).values(), default=0) > cap:
        return
    scheduler = SCHEDULERS[name](groups=groups, caps=cap, required=sorted(required))
    fake = FakeClients(range(N))
    free = set(range(N)) - pending
    if not pending and len(required) > m:
        with pytest.raises(ValueError, match="more than m"):
            scheduler.select(0, range(N), m)
        return
    answers = fake.answer(0, scheduler.request(0, range(N), m))
    scheduler.observe(0, [r for r in answers if r.client in reporting], "probe")
    chosen = set(scheduler.select(0, range(N), m, sorted(pending)).clients)
    at_work = Counter(groups[c] for c in pending)
    room = {g: max(cap - at_work[g], 0) for g in range(4)}
    assert chosen <= free
    for group in range(4):
        assert sum(groups[c] == group for c in chosen) <= room[group]
    admissible = sum(min(room[g], sum(groups[c] == g for c in free)) for g in range(4))
    assert len(chosen) == min(m, admissible)
    # A required client is in, or pending, or its group is full, or all slots are required ones'.
    for client in required - chosen - pending:
        group = groups[client]
        full = sum(groups[c] == group for c in chosen & required) == room[group]
        assert full or len(chosen & required) == m


def objective(c: np.ndarray, q: np.ndarray, theta: float, rows: list[int]) -> float:
    log_det = float(np.linalg.slogdet(c[np.ix_(rows, rows)])[1]) if rows else 0.0
    return (1.0 - theta) * log_det + theta * float(q[rows].sum())


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["ADCS", "StaticDPP", "LiveADCS"]),
    theta=st.sampled_from([0.0, 0.3, 0.8]),
    n=st.integers(2, N),
    pending=subsets,
    m=st.integers(1, 8),
    seed=st.integers(0, 10**6),
)
def test_each_pick_is_the_best_beside_pending_clients(name, theta, n, pending, m, seed) -> None:
    """By brute force over determinants of pending clients, earlier picks and one more."""
    rng = np.random.default_rng(seed)
    rows, losses = rng.standard_normal((n, n + 2)), rng.uniform(0.5, 2.5, n)
    pending = {c for c in pending if c < n}
    settings_ = {"patience": None} if name == "LiveADCS" else {}
    scheduler = SCHEDULERS[name](theta=theta, **settings_)
    reports = [adcs.ClientReport(c, 0, loss=float(losses[c]), update=rows[c]) for c in range(n)]
    scheduler.observe(0, reports, "probe")
    # Whether pending clients are listed as available makes no difference.
    available = [c for c in range(n) if c not in pending or c % 2]
    picks = scheduler.select(0, available, m, sorted(pending)).clients
    assert len(picks) == min(m, n - len(pending))
    if not picks:
        return
    assert isinstance(scheduler, Determinantal)
    assert scheduler.dpp is not None
    assert list(scheduler.dpp.clients) == list(range(n))
    c, q = similarity(unit_rows(rows)), scheduler.dpp.quality
    together = sorted(pending)
    for pick in picks:
        values = {
            row: objective(c, q, theta, [*together, row]) for row in range(n) if row not in together
        }
        assert values[pick] == pytest.approx(max(values.values()), abs=1e-8)
        together.append(pick)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["ADCS", "StaticDPP", "LiveADCS"]),
    theta=st.sampled_from([0.0, 0.3, 0.8]),
    n=st.integers(2, N),
    pending=subsets,
    m=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_exact_search_beside_pending_clients(name, theta, n, pending, m, seed) -> None:
    """On the scheduler's own kernel, by exhaustive search; a resumed scheduler has the same."""
    rng = np.random.default_rng(seed)
    rows, losses = rng.standard_normal((n, n + 2)), rng.uniform(0.5, 2.5, n)
    held = sorted(c for c in pending if c < n)
    free = [c for c in range(n) if c not in held]
    m = min(m, len(free))
    settings_ = {"patience": None} if name == "LiveADCS" else {}
    scheduler, resumed = (SCHEDULERS[name](theta=theta, **settings_) for _ in range(2))
    reports = [adcs.ClientReport(c, 0, loss=float(losses[c]), update=rows[c]) for c in range(n)]
    scheduler.observe(0, reports, "probe")
    resumed.from_bytes(scheduler.to_bytes())
    if m == 0:
        return
    cohort = scheduler.select(0, range(n), m, held)
    assert resumed.select(0, range(n), m, held) == cohort
    assert resumed.to_bytes() == scheduler.to_bytes()
    assert isinstance(scheduler, Determinantal)
    assert scheduler.dpp is not None
    c, q = similarity(unit_rows(rows)), scheduler.dpp.quality
    exact = exact_map(c, m, quality=q, theta=theta, constraints=Constraints(given=held))
    base = objective(c, q, theta, held)
    found = {
        chosen: objective(c, q, theta, [*held, *chosen]) - base for chosen in combinations(free, m)
    }
    assert exact.objective == pytest.approx(max(found.values()), abs=1e-8)
    assert found[tuple(sorted(exact.indices.tolist()))] == pytest.approx(exact.objective, abs=1e-8)
    assert found[tuple(sorted(map(int, cohort.clients)))] <= exact.objective + 1e-8


def test_samples_are_conditioned_on_pending_clients() -> None:
    rng = np.random.default_rng(0)
    rows, losses = rng.standard_normal((6, 7)), rng.uniform(1.0, 2.0, 6)
    scheduler = adcs.StaticDPP(theta=0.5, sample=True)
    scheduler.observe(
        0, [adcs.ClientReport(c, 0, loss=losses[c], update=rows[c]) for c in range(6)], "probe"
    )
    weight = np.exp(alpha(0.5) * losses)
    kernel = weight[:, None] * similarity(unit_rows(rows)) * weight
    pairs = list(combinations([0, 1, 3, 5], 2))
    p = np.array([np.linalg.det(kernel[np.ix_([2, 4, *s], [2, 4, *s])]) for s in pairs])
    p /= p.sum()
    count = 3000
    found = Counter(
        tuple(sorted(scheduler.select(r, range(6), 2, [2, 4]).clients)) for r in range(count)
    )
    assert set(found) <= set(pairs)
    share = np.array([found[pair] for pair in pairs]) / count
    assert (np.abs(share - p) < 4.5 * np.sqrt(p * (1 - p) / count)).all()


def test_clients_similar_to_pending_ones_are_not_chosen() -> None:
    """Five groups of three; the cohort comes from the groups in which nobody is at work."""
    rng = np.random.default_rng(1)
    centres = np.repeat(rng.standard_normal((5, 40)), 3, axis=0)
    rows = centres + 0.1 * rng.standard_normal((15, 40))
    for make in (partial(adcs.ADCS, theta=0.2), adcs.StaticDPP, adcs.DivFL, adcs.LiveADCS):
        scheduler = make()
        scheduler.observe(
            0, [adcs.ClientReport(c, 0, loss=1.0, update=rows[c]) for c in range(15)], "probe"
        )
        chosen = scheduler.select(0, range(15), 3, pending=[0, 7]).clients
        assert sorted(c // 3 for c in chosen) == [1, 3, 4]


@pytest.mark.parametrize("name", [*SCHEDULERS, *FREE])
def test_a_sliding_window_resumes(name: str) -> None:
    """Two clients are replaced at a time, as in a buffered federation, with restores between."""
    make = (SCHEDULERS | FREE)[name]
    fake = FakeClients(range(N))
    whole, resumed = make(), make()
    window: list[Any] = []
    for server_round in range(20):
        one = fake.run_round(whole, server_round, 2, pending=window)
        two = fake.run_round(resumed, server_round, 2, pending=window)
        assert one == two
        assert not set(one.clients) & set(window)
        state = unpack(pack(resumed.state()))
        resumed = make()
        resumed.restore(state)
        window = [*window, *one.clients][-5:]


@pytest.mark.parametrize(
    ("pending", "named"),
    [([1, 1], "pending must be distinct, got 1"), ([1.5], "pending must be ints or strings")],
)
def test_pending_ids_are_checked(pending: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        adcs.Uniform().select(0, range(5), 2, pending)


def test_pending_is_reset_after_an_error() -> None:
    class Failing(adcs.Scheduler):
        def _select(self, server_round, clients, m):
            raise RuntimeError

    scheduler = Failing()
    with pytest.raises(RuntimeError):
        scheduler.select(0, range(5), 2, pending=[1])
    assert scheduler.pending == ()
