"""The part of a cohort that makes it represent all clients."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adcs
from adcs import ClientReport
from adcs.dpp.constraints import Constraints
from adcs.experiments.explain import at_random, recorded_tables, sentence, tables
from adcs.experiments.page.reasons import REASONS, choice_states
from adcs.run_folder import plain
from adcs.schedulers.choice import as_record, explain_choice, from_record
from adcs.schedulers.live_adcs import LiveKernel
from adcs.schedulers.live_adcs import balance as module
from adcs.schedulers.live_adcs.balance import balancing_clients, target_shares, waiting_bonus


def kernel_of(updates: np.ndarray, gram_limit: int = 2000) -> tuple[LiveKernel, np.ndarray]:
    norms = np.linalg.norm(updates, axis=1)
    kernel = LiveKernel(gram_limit)
    kernel.update(np.arange(len(updates)), updates / norms[:, None], norms)
    return kernel, norms


def balance(updates, chosen, count, bonus=None, gram_limit=2000, **rules):
    n = len(updates)
    kernel, norms = kernel_of(updates, gram_limit)
    bonus = np.zeros(n) if bonus is None else bonus
    resolved = Constraints(**rules).resolve(n, len(chosen) + count - len(rules.get("given", ())))
    targets = updates @ updates.mean(axis=0)
    at = np.array(chosen, dtype=np.intp)
    return balancing_clients(kernel, np.arange(n), norms, targets, bonus, at, count, resolved)


@given(st.integers(0, 10_000), st.integers(4, 9), st.integers(0, 2))
def test_each_client_is_the_one_that_comes_closest_to_the_target(seed, n, given_slots) -> None:
    """Brute force: the distance of the sum to m times the mean update, for every candidate."""
    updates = np.random.default_rng(seed).normal(size=(n, 5))
    chosen, count = list(range(given_slots)), n // 2
    m = given_slots + count
    found = balance(updates, chosen, count)
    cohort = list(chosen)
    for row in found:
        rest = {
            i: np.linalg.norm(m * updates.mean(axis=0) - updates[[*cohort, i]].sum(axis=0))
            for i in range(n)
            if i not in cohort
        }
        assert rest[row] <= min(rest.values()) + 1e-5
        cohort.append(row)
    assert len(set(cohort)) == m


def test_a_balanced_cohort_is_nearer_to_the_mean_than_almost_all_cohorts() -> None:
    rng = np.random.default_rng(3)
    updates = rng.normal(size=(12, 6)) + 0.5
    distances = [
        np.linalg.norm(updates.mean(axis=0) - updates[list(s)].mean(axis=0))
        for s in combinations(range(12), 4)
    ]
    ours = updates.mean(axis=0) - updates[balance(updates, [], 4)].mean(axis=0)
    assert np.mean(np.array(distances) < np.linalg.norm(ours)) < 0.05


def test_rows_are_ignored_that_may_not_be_chosen_and_caps_hold() -> None:
    updates = np.random.default_rng(1).normal(size=(9, 4))
    groups = ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    found = balance(updates, [0, 3], 3, groups=groups, caps={"a": 1, "b": 2, "c": 2})
    assert sorted(groups[i] for i in found) == ["b", "c", "c"]
    given_too = balance(updates, [0, 3], 3, groups=groups, caps=2, given=[0])
    assert 0 not in given_too
    assert sum(groups[i] == "a" for i in given_too) <= 1
    only = balance(updates, [], 2, candidates=[4, 7, 8])
    assert set(only) <= {4, 7, 8}


def test_the_bonus_decides_between_equal_updates_and_the_smaller_position_without_one() -> None:
    updates = np.ones((5, 3))
    assert balance(updates, [], 2) == [0, 1]
    assert balance(updates, [], 2, bonus=np.array([0.0, 0.0, 0.1, 0.0, 0.2])) == [4, 2]


def test_the_pool_has_the_best_and_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without a matrix of cosines."""
    updates = np.random.default_rng(2).normal(size=(40, 8))
    whole = balance(updates, [5, 6], 6)
    assert balance(updates, [5, 6], 6, gram_limit=0) == whole
    monkeypatch.setattr(module, "POOL", 30)
    some = balance(updates, [5, 6], 6)
    assert balance(updates, [5, 6], 6, gram_limit=0) == some
    assert len(set(some) | {5, 6}) == 8
    assert some[0] == whole[0]


def noisy(seed: int = 0, rounds: int = 30, n: int = 20, m: int = 5, **settings):
    """Run LiveADCS on updates that hardly persist; return it and its last cohort."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(n, 30))
    scheduler = adcs.LiveADCS(**settings)
    counts = np.zeros(n, dtype=int)
    for server_round in range(rounds):
        sent = directions + 1.2 * rng.normal(size=directions.shape)
        reports = [
            ClientReport(c, server_round, loss=1.0 + 0.01 * c, update=sent[c]) for c in range(n)
        ]
        asked = scheduler.request(server_round, range(n), m).clients
        scheduler.observe(server_round, [reports[c] for c in asked], "probe")
        cohort = scheduler.select(server_round, range(n), m)
        assert len(set(cohort.clients)) == m
        counts[list(cohort.clients)] += 1
        if server_round < rounds - 1:
            scheduler.observe(server_round, [reports[c] for c in cohort.clients], "training")
    return scheduler, cohort, counts


def test_slots_are_shared_by_the_persistence_of_updates() -> None:
    scheduler, cohort, counts = noisy()
    rho = scheduler.kernel.persistence
    assert 0.3 < rho < 0.6
    picks = [client for client, _ in cohort.diagnostics.get("gains", ())]
    balancing = cohort.diagnostics["balancing"]
    assert [*picks, *balancing] == list(cohort.clients)
    assert len(picks) == max(int(rho**2 * 5 + 0.5), len(cohort.diagnostics["waited"]))
    assert balancing
    # Seven or eight of thirty rounds are fair. The DPP's slot goes to the largest two losses.
    assert counts.min() >= 5
    assert counts[:18].max() <= 9
    assert counts[18:].min() > 9


def by_labels(theta: float, losses: list[float]) -> adcs.LiveADCS:
    """Nine clients, three of each label."""
    scheduler = adcs.LiveADCS(kernel="labels", theta=theta, patience=None)
    for server_round in range(2):
        reports = [
            ClientReport(c, server_round, loss=loss, label_counts=np.eye(3)[c % 3] * 10)
            for c, loss in enumerate(losses)
        ]
        scheduler.observe(server_round, reports, "probe")
    return scheduler


def test_with_labels_half_of_the_slots_are_balanced_if_losses_count() -> None:
    scheduler = by_labels(0.6, [1.0] * 9)
    assert len(scheduler.select(1, range(9), 4).diagnostics["balancing"]) == 2
    without = by_labels(0.0, [1.0] * 9)
    assert without.select(1, range(9), 4).diagnostics["balancing"] == []


def test_a_label_with_large_losses_gets_more_than_one_slot() -> None:
    """A DPP alone has one client of each label: the histograms of two labels are orthogonal."""
    cohort = by_labels(0.9, [9.0, 1.0, 1.0] * 3).select(1, range(9), 3)
    assert sum(client % 3 == 0 for client in cohort.clients) == 2


def test_reasons_of_a_balanced_cohort() -> None:
    scheduler, cohort, _ = noisy()
    choice = explain_choice(scheduler, range(20), cohort)
    assert from_record(as_record(choice), cohort) == choice
    client = choice.balancing[0]
    assert "selected for balance" in sentence(choice, client)
    assert all(client != row[0] for row in tables(choice)[1][2])
    assert [str(client), "balance"] in [row[:2] for row in tables(choice)[0][2]]
    states = choice_states(choice, {c: c for c in range(20)})
    keys = [REASONS[code].key for code in states.codes]
    assert keys[client] == "balancing"
    assert sum(REASONS[code].word == "selected" for code in states.codes) == 5
    for left_out in set(range(20)) - set(cohort.clients):
        assert "left out" in sentence(choice, left_out)


class OnlyBalance(adcs.LiveADCS):
    """The DPP fills no slot but those of overdue and required clients."""

    def dpp_slots(self, m: int) -> int:
        return 0


def test_reasons_where_the_dpp_fills_no_slot() -> None:
    rng = np.random.default_rng(0)
    scheduler = OnlyBalance()
    reports = [ClientReport(c, 0, loss=1.0, update=rng.normal(size=6)) for c in range(8)]
    scheduler.observe(0, reports, "probe")
    cohort = scheduler.select(0, range(8), 3)
    assert len(set(cohort.clients)) == 3
    choice = explain_choice(scheduler, range(8), cohort)
    assert from_record(as_record(choice), cohort) == choice
    left_out = next(c for c in range(8) if c not in cohort.clients)
    assert "was left out" in sentence(choice, left_out)
    assert "selected for balance" in sentence(choice, cohort.clients[0])
    states = choice_states(choice, {c: c for c in range(8)})
    assert {REASONS[code].key for code in states.codes} == {"balancing", "unbalanced"}


def test_the_pool_has_clients_for_all_slots_that_caps_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best by themselves are all of a group that has one slot."""
    monkeypatch.setattr(module, "POOL", 6)
    updates = np.ones((60, 3)) + 0.1 * np.random.default_rng(4).normal(size=(60, 3))
    updates[40:] *= -1.0
    groups = ["a"] * 40 + ["b"] * 10 + ["c"] * 10
    found = balance(updates, [0], 8, groups=groups, caps={"a": 2, "b": 4})
    assert len(set(found)) == 8
    assert sum(groups[i] == "a" for i in found) <= 1
    assert sum(groups[i] == "b" for i in found) <= 4


def test_of_equal_clients_the_pool_has_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POOL", 20)
    updates = np.ones((300, 3))
    assert balance(updates, [0], 3) == [1, 2, 3]
    allowed = [250, 120, 299, 7]  # fewer than the pool has room for
    assert balance(updates, [], 3, candidates=allowed) == [7, 120, 250]


def test_equal_clients_stay_equal_in_large_cohorts_whatever_float32_rounds() -> None:
    """Products are off by a bit of float32, and scores by 2 m times as much."""
    n, m = 3_000, 100
    kernel, rows, ones = LiveKernel(), np.arange(n), np.ones(n)
    kernel.update(rows, np.repeat(np.float32([[0.6, 0.8]]), n, axis=0), ones)
    bits = np.random.default_rng(0).integers(-1, 2, n) * float(np.finfo(np.float32).eps)
    none, rules = np.array([], dtype=np.intp), Constraints().resolve(n, m)
    found = balancing_clients(kernel, rows, ones, 1.0 + bits, np.zeros(n), none, m, rules)
    assert found == list(range(m))


def test_the_target_leaves_out_the_part_of_a_client_s_update_that_is_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its own update only the part rho counts in <u_i, g>."""
    from adcs.schedulers.live_adcs import scheduler as live

    seen = {}

    def spy(kernel, rows, norms, targets, *others):
        seen.update(rows=rows, norms=norms, targets=targets)
        return balancing_clients(kernel, rows, norms, targets, *others)

    monkeypatch.setattr(live, "balancing_clients", spy)
    rng = np.random.default_rng(2)
    scheduler = adcs.LiveADCS(theta=0.0, seed=0)
    own = rng.normal(size=(8, 5))
    for server_round in range(6):
        sent = own + rng.normal(size=own.shape)
        reports = [ClientReport(c, server_round, loss=1.0, update=sent[c]) for c in range(8)]
        asked = scheduler.request(server_round, range(8), 4).clients
        scheduler.observe(server_round, [reports[c] for c in asked], "probe")
        cohort = scheduler.select(server_round, range(8), 4)
        held, rho = scheduler.kernel, scheduler.kernel.persistence
        updates = (held.unit * held.norms[:, None])[seen["rows"]] if seen else own
        scheduler.observe(server_round, [reports[c] for c in cohort.clients], "training")
    assert 0.1 < rho < 0.9
    updates = updates / np.sqrt((np.linalg.norm(updates, axis=1) ** 2).mean())
    expected = [
        (updates[i] * rho / 8 + sum(updates[j] for j in range(8) if j != i) / 8) @ updates[i]
        for i in range(8)
    ]
    np.testing.assert_allclose(seen["targets"], expected)


def test_one_long_wait_leaves_the_others_their_differences() -> None:
    waits = np.array([1, 2, 3, 4, 5, 6, 10_000])
    bonus = waiting_bonus(waits, np.zeros(7, dtype=int))
    assert np.ptp(bonus[:-1]) > 0.5
    assert bonus.argmax() == 6
    # Most clients have just reported for the first time.
    assert waiting_bonus(np.array([0, 0, 0, 2]), np.zeros(4, dtype=int))[3] > 1.0


@pytest.mark.parametrize("seed", range(4))
def test_cohorts_under_rules_whatever_is_late_or_missing(seed: int) -> None:
    """Distinct, free, of m clients as far as rules allow, explained, and the same if restored."""
    n, m = 14, 4
    rules = [{}, {"required": [3]}, {"groups": {c: c % 3 for c in range(n - 2)}, "caps": 2}]
    settings = {"seed": seed, **[*rules, {"max_share": 1.0, "patience": 1.0}][seed]}
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(n, 8))
    directions[:3] *= 0.0 if seed == 0 else 1.0
    scheduler, resumed = adcs.LiveADCS(**settings), adcs.LiveADCS(**settings)
    for server_round in range(20):
        sent = directions + 2.0 * np.abs(directions) * rng.normal(size=directions.shape)
        reports = [
            ClientReport(c, server_round, loss=1.0 + 0.05 * c, update=sent[c]) for c in range(n)
        ]
        joined = n if server_round > 3 else 4  # the others come later
        here = [c for c in range(joined) if c == 3 or rng.random() < 0.8]
        busy = [c for c in range(n) if c != 3 and rng.random() < 0.1]
        silent, late = rng.random(n) < 0.2, rng.random(n) < 0.2
        cohorts = []
        for each in (scheduler, resumed):
            asked = each.request(server_round, here, m).clients
            each.observe(server_round, [reports[c] for c in asked if not silent[c]], "probe")
            cohorts.append(each.select(server_round, here, m, busy))
            free = [c for c in here if c not in busy]
            _check_reasons(each, free, cohorts[-1])
            replies = [c for c in cohorts[-1].clients if not silent[c]]
            in_time = [reports[c] for c in replies if not late[c]]
            each.observe(server_round, in_time, "training")
            each.observe(server_round, [reports[c] for c in replies if late[c]], "late")
        assert cohorts[0] == cohorts[1]
        assert len(set(cohorts[0].clients)) == len(cohorts[0].clients)
        assert len(cohorts[0].clients) == min(m, len(free)) or seed == 2
        assert set(cohorts[0].clients) <= set(free)
        data, resumed = resumed.to_bytes(), adcs.LiveADCS(**settings)
        resumed.from_bytes(data)


def _check_reasons(scheduler: adcs.LiveADCS, free: list[int], cohort: adcs.Cohort) -> None:
    choice = explain_choice(scheduler, free, cohort)
    assert from_record(plain(as_record(choice)), cohort) == choice
    codes = choice_states(choice, {c: c for c in range(14)}).codes
    for client in free:
        said = sentence(choice, client)
        assert ("left out" in said or "not drawn" in said) == (client not in cohort.clients)
        assert (REASONS[codes[client]].word == "selected") == (client in cohort.clients)


def test_reasons_of_new_and_limited_clients_where_the_dpp_fills_no_slot() -> None:
    rng = np.random.default_rng(0)
    scheduler = OnlyBalance(max_share=1.0, patience=None)
    reports = [ClientReport(c, 0, loss=1.0, update=rng.normal(size=6)) for c in range(8)]
    scheduler.observe(0, reports, "probe")
    first = scheduler.select(0, range(8), 3)
    cohort = scheduler.select(1, range(10), 3)
    assert cohort.diagnostics["balancing"]
    choice = explain_choice(scheduler, range(10), cohort)
    new = next(c for c in (8, 9) if c not in cohort.clients)
    limited = next(c for c in first.clients if c not in cohort.clients)
    assert "no usable report" in sentence(choice, new)
    assert "its share of slots" in sentence(choice, limited)
    keys = [REASONS[code].key for code in choice_states(choice, {c: c for c in range(10)}).codes]
    assert (keys[new], keys[limited]) == ("unknown", "share")
    drawn = cohort.diagnostics["drawn"]
    assert [keys[c] for c in drawn] == ["drawn"] * len(drawn)
    assert ("by a draw" in at_random(choice)) == bool(drawn)
    assert at_random(replace(choice, cohort=first)).endswith("represent all clients.")


def test_records_without_reasons_show_who_balances() -> None:
    _, cohort, _ = noisy()
    ((_, heads, rows),) = recorded_tables({"diagnostics": cohort.diagnostics})
    assert {row[0] for row in rows} == {str(client) for client in cohort.clients}
    at = heads.index("balancing")
    marked = [row[0] for row in rows if row[at] == "yes"]
    assert marked == [str(client) for client in cohort.diagnostics["balancing"]]


def test_who_is_left_out_is_told_that_there_were_two_parts() -> None:
    scheduler, cohort, _ = noisy()
    choice = explain_choice(scheduler, range(20), cohort)
    assert choice.explanation is not None
    for client in set(range(20)) - {*cohort.clients, *choice.limited}:
        assert sentence(choice, client).endswith("represent all clients.")


def test_shares_at_a_large_theta_are_numbers() -> None:
    """At theta = 0.999 alpha is 500; q is -3 for all clients if none has answered for long."""
    for q in (3.0, 0.0, -3.0):
        np.testing.assert_allclose(target_shares(np.full(4, 499.5 * q)), 0.25)
    assert target_shares(np.array([-1500.0, -750.0])).tolist() == [0.0, 1.0]
