"""Partitions: laws that hold for every kind, and what each kind is for."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adcs.simulation.datasets.dataset import Dataset, from_arrays
from adcs.simulation.datasets.synthetic import synthetic
from adcs.simulation.partition import (
    LEAST_TEST,
    Partition,
    by_class,
    dirichlet,
    iid,
    make_partition,
    shards,
)


def dataset(train: list[int], test: list[int] | None = None) -> Dataset:
    """Return a set with so many training and test examples of each class."""
    y = np.repeat(np.arange(len(train)), train)
    z = np.repeat(np.arange(len(train)), test or [20] * len(train))
    return from_arrays(np.zeros((y.size, 1)), y, np.zeros((z.size, 1)), z)


def proportions(y: np.ndarray, parts: tuple[np.ndarray, ...], classes: int) -> np.ndarray:
    table = np.array([np.bincount(y[part], minlength=classes) for part in parts])
    return table / table.sum(axis=1, keepdims=True)


def digest(partition: Partition) -> str:
    arrays = [*partition.train, *partition.test]
    return hashlib.sha256(repr([a.tolist() for a in arrays]).encode()).hexdigest()


counts = st.lists(st.integers(1, 40), min_size=2, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    train=counts,
    clients=st.integers(1, 60),
    kind=st.sampled_from(["iid", "dirichlet", "shards"]),
    sizes=st.sampled_from(["balanced", "skewed"]),
    alpha=st.sampled_from([1e-6, 0.01, 0.5, 100.0]),
    per_client=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_laws(
    train: list[int],
    clients: int,
    kind: str,
    sizes: str,
    alpha: float,
    per_client: int,
    seed: int,
) -> None:
    data = dataset(train, [3] * len(train))
    options: dict[str, object] = {
        "iid": {"sizes": sizes},
        "dirichlet": {"sizes": sizes, "alpha": alpha},
        "shards": {"per_client": per_client},
    }[kind]
    needed = clients * (per_client if kind == "shards" else 1)
    if needed > sum(train):
        with pytest.raises(ValueError, match=f"{clients} clients"):
            make_partition(data, kind, clients, seed=seed, **options)
        return
    partition = make_partition(data, kind, clients, seed=seed, **options)
    assert len(partition) == len(partition.test) == clients
    used = np.concatenate(partition.train)
    np.testing.assert_array_equal(np.sort(used), np.arange(sum(train)))  # each example once
    for part in partition.test:
        assert part.size >= 1
        assert np.unique(part).size == part.size
        assert part.max() < data.y_test.size
    given_sizes = [part.size for part in partition.train]
    assert min(given_sizes) >= 1
    if sizes == "balanced" and kind != "shards":
        assert max(given_sizes) - min(given_sizes) <= 1
    if kind != "iid":
        for mine, tested in zip(partition.train, partition.test, strict=True):
            assert set(data.y_test[tested]) <= set(data.y_train[mine])


@settings(max_examples=30, deadline=None)
@given(train=counts, each=st.integers(1, 5), copies=st.booleans(), seed=st.integers(0, 99))
def test_by_class_laws(train: list[int], each: int, copies: bool, seed: int) -> None:
    data = dataset(train)
    clients = each * len(train)
    if not copies and each > min(train):
        with pytest.raises(ValueError, match="each needs at least one"):
            by_class(data, clients, copies=copies, seed=seed)
        return
    partition = by_class(data, clients, copies=copies, seed=seed)
    assert partition.groups is not None
    assert np.bincount(partition.groups).tolist() == [each] * len(train)
    for client, group in enumerate(partition.groups):
        assert set(data.y_train[partition.train[client]]) == {group}
        np.testing.assert_array_equal(partition.test[client], np.flatnonzero(data.y_test == group))
        if copies:
            assert partition.train[client].size == train[group]
    if not copies:
        used = np.concatenate(partition.train)
        np.testing.assert_array_equal(np.sort(used), np.arange(sum(train)))


OPTIONS: dict[str, dict[str, object]] = {
    "iid": {"sizes": "skewed"},
    "dirichlet": {"alpha": 0.01},
    "shards": {"per_client": 2},
    "by-class": {"sizes": "skewed"},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_seed_decides(kind: str) -> None:
    data = dataset([50, 70, 60])
    one = make_partition(data, kind, 12, seed=5, **OPTIONS[kind])
    assert digest(one) == digest(make_partition(data, kind, 12, seed=5, **OPTIONS[kind]))
    assert digest(one) != digest(make_partition(data, kind, 12, seed=6, **OPTIONS[kind]))


def test_same_partition_in_another_process() -> None:
    code = (
        "from adcs.simulation.partition import dirichlet\n"
        "from adcs.simulation.datasets.synthetic import synthetic\n"
        "print([p.tolist() for p in dirichlet(synthetic(4), 9, 0.1, seed=3).train])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    here = [part.tolist() for part in dirichlet(synthetic(4), 9, 0.1, seed=3).train]
    assert printed.strip() == str(here)


def test_other_draws_do_not_matter() -> None:
    data = dataset([30, 30])
    before = digest(iid(data, 7, seed=0))
    np.random.default_rng(0).random(5)
    np.random.seed(1)  # noqa: NPY002
    assert digest(iid(data, 7, seed=0)) == before


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 10.0])
def test_dirichlet_proportions_are_dirichlet(alpha: float) -> None:
    data = dataset([2000] * 10)
    partition = dirichlet(data, 100, alpha, seed=0)
    largest = proportions(data.y_train, partition.train, 10).max(axis=1)
    expected = np.random.default_rng(1).dirichlet([alpha] * 10, 20_000).max(axis=1)
    # 4 standard errors of a mean over 100 clients, and 0.03 for 200 examples' rounding.
    assert abs(largest.mean() - expected.mean()) < 0.03 + 0.4 * expected.std()


def test_dirichlet_follows_class_frequencies() -> None:
    data = dataset([900, 90, 10])
    mean = proportions(data.y_train, dirichlet(data, 50, 100.0, seed=0).train, 3).mean(axis=0)
    np.testing.assert_allclose(mean, [0.9, 0.09, 0.01], atol=1e-12)  # all of it is used
    spread = proportions(data.y_train, dirichlet(data, 50, 100.0, seed=0).train, 3).std(axis=0)
    assert spread[0] < 0.15


def test_dirichlet_tests_on_the_clients_own_distribution() -> None:
    data = dataset([1000] * 5, [400] * 5)
    partition = dirichlet(data, 20, 0.3, seed=1)
    train = proportions(data.y_train, partition.train, 5)
    test = proportions(data.y_test, partition.test, 5)
    assert np.abs(train - test).max() < 0.011  # 100 test examples each: off by less than one
    assert [part.size for part in partition.test] == [100] * 20


def test_small_clients_are_tested_on_ten() -> None:
    data = dataset([100, 100], [50, 50])
    for partition in (iid(data, 200, seed=0), dirichlet(data, 200, 0.5, seed=0)):
        assert {part.size for part in partition.test} == {LEAST_TEST}


def test_tests_are_shared_only_when_they_run_out() -> None:
    data = dataset([400, 400], [200, 200])
    tested = np.concatenate(iid(data, 10, seed=0).test)
    assert np.unique(tested).size == tested.size == 400
    crowded = np.concatenate(iid(data, 400, seed=0).test)
    assert np.bincount(crowded).tolist() == [10] * 400  # dealt out evenly


def test_shards_hold_few_classes() -> None:
    data = dataset([100] * 10)
    partition = shards(data, 50, per_client=2, seed=0)
    held = [np.unique(data.y_train[part]).size for part in partition.train]
    assert max(held) == 2
    assert {part.size for part in partition.train} == {20}


def test_skewed_sizes_are_lognormal() -> None:
    data = dataset([50_000, 50_000])
    sizes = [part.size for part in iid(data, 400, sizes="skewed", seed=0).train]
    assert sum(sizes) == 100_000
    assert np.std(np.log(sizes)) == pytest.approx(1.0, abs=0.15)


def test_by_class_takes_the_sets_own_groups() -> None:
    data = synthetic(6)
    assert data.groups is not None
    partition = by_class(data, 12, seed=0)
    for client, part in enumerate(partition.train):
        assert set(data.groups[0][part]) == {client // 2}
        assert set(data.groups[1][partition.test[client]]) == {client // 2}


def test_thirty_thousand_clients() -> None:
    data = dataset([6000] * 10, [1000] * 10)
    for partition in (
        dirichlet(data, 30_000, 0.01, sizes="skewed", seed=0),
        iid(data, 30_000, seed=0),
    ):
        assert len(partition) == 30_000
        assert np.unique(np.concatenate(partition.train)).size == 60_000


@pytest.mark.parametrize(
    ("kind", "clients", "options", "message"),
    [
        ("dirichlett", 4, {}, "'dirichlett' is no kind of partition; did you mean dirichlet?"),
        ("zzz", 4, {}, "there are by-class, dirichlet, shards, iid"),
        ("iid", 4, {"alpha": 1.0}, "'alpha' is no setting of iid; there are sizes"),
        ("dirichlet", 4, {}, "a dirichlet partition needs alpha"),
        ("dirichlet", 4, {"alpha": 0.0}, "alpha is 0.0"),
        ("dirichlet", 4, {"alpha": float("nan")}, "alpha is nan"),
        ("dirichlet", 0, {"alpha": 1.0}, "0 clients"),
        ("iid", 61, {}, "61 clients cannot share 60 training examples"),
        ("iid", 4, {"sizes": "odd"}, "sizes is 'odd'"),
        ("shards", 31, {}, "31 clients with 2 shards each is 62 shards"),
        ("by_class", 4, {}, "clients is 4; by class it is a multiple of the 3 groups"),
        ("by_class", 4, {}, "take --clients 3 or --clients 6, or another --partition .dirichlet,"),
        ("by_class", 2, {}, "groups: take --clients 3, or another"),
        ("by_class", 0, {}, "clients is 0"),
        ("by_class", 3, {"copies": True, "sizes": "skewed"}, "copies of a class are all of one"),
    ],
)
def test_errors(kind: str, clients: int, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        make_partition(dataset([20, 20, 20]), kind, clients, seed=0, **options)


@pytest.mark.parametrize("kind", ["by-class", "dirichlet", "shards"])
def test_class_without_test_examples(kind: str) -> None:
    data = dataset([20, 20, 20], [5, 0, 5])
    options = {"alpha": 1.0} if kind == "dirichlet" else {}
    with pytest.raises(ValueError, match="class 1 has no test examples"):
        make_partition(data, kind, 6, seed=0, **options)
    assert len(iid(data, 6, seed=0)) == 6


@pytest.mark.parametrize("kind", ["by-class", "shards"])
def test_errors_name_the_label(kind: str) -> None:
    y, z = [5, 5, 10, 10, 20, 20], [5, 10]
    data = from_arrays(np.zeros((6, 1)), y, np.zeros((2, 1)), z)
    with pytest.raises(ValueError, match="class 20 has no test examples"):
        make_partition(data, kind, 3, seed=0)
    data = from_arrays(np.zeros((5, 1)), y[:-1], np.zeros((3, 1)), [5, 10, 20])
    with pytest.raises(ValueError, match="2 clients cannot share the 1 training examples of cla"):
        by_class(data, 6, seed=0)
    assert len(by_class(data, 6, copies=True, seed=0)) == 6


def test_own_partition_is_checked() -> None:
    one = np.array([0])
    with pytest.raises(ValueError, match="client 1 has no test examples"):
        Partition((one, one), (one, one[:0]))
    with pytest.raises(ValueError, match="not of one length"):
        Partition((one, one), (one,))
