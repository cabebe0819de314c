"""Partitions of a data set among clients: natural, by class, Dirichlet, shards, IID.

A new kind is a function of (dataset, clients, settings, seed) and an entry of `KINDS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np

from adcs._types import Float64Array, IndexArray
from adcs._validation import did_you_mean
from adcs.simulation.datasets.dataset import Dataset

Rng = np.random.Generator

LEAST_TEST = 10  # the smallest number of test examples of a client, if the data set has them

OF_CLASSES = ("by-class", "dirichlet", "shards")
"""The kinds that go by the classes of examples."""

EXAMPLES = {"alpha": 0.5}
"""Values that errors suggest for settings without a default."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The examples of each client.

    Attributes
    ----------
    train, test : tuple of int arrays, one for each client
        Indices into the data set's training and test examples; none is empty.
    groups : int array, or None
        The group of each client, where the partition has groups.
    names : tuple of str
        The name of each client, where the data has clients of its own.

    Examples
    --------
    >>> from adcs.simulation.datasets.dataset import from_arrays
    >>> data = from_arrays(np.eye(4), [0, 1, 0, 1], np.eye(4), [0, 1, 0, 1])
    >>> partition = by_class(data, 2, seed=0)
    >>> len(partition), partition.groups, partition.train[1], partition.test[1]
    (2, array([0, 1]), array([1, 3]), array([1, 3]))
    """

    train: tuple[IndexArray, ...]
    test: tuple[IndexArray, ...]
    groups: IndexArray | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, parts in (("training", self.train), ("test", self.test)):
            for client, part in enumerate(parts):
                if part.size == 0:
                    which = repr(self.names[client]) if self.names else client
                    raise ValueError(f"client {which} has no {name} examples")
        clients = len(self.train)
        if len(self.test) != clients or (self.groups is not None and self.groups.size != clients):
            raise ValueError("train, test and groups are not of one length")

    def __len__(self) -> int:
        return len(self.train)


def make_partition(
    dataset: Dataset, kind: str, clients: int, *, seed: int, **settings: Any
) -> Partition:
    """Return a partition by the name of its kind.

    Parameters
    ----------
    dataset : Dataset
    kind : str
        ``by-class``, ``dirichlet``, ``shards``, ``iid`` or ``natural``.
    clients : int
        Number of clients.
    seed : int
        The same data, settings and seed give the same partition in any process.
    **settings
        Those of the function of that name.

    Examples
    --------
    >>> from adcs.simulation.datasets.synthetic import synthetic
    >>> len(make_partition(synthetic(), "dirichlet", 20, alpha=0.3, seed=0))
    20
    """
    check_settings(kind, settings)
    name = _named(kind)
    if dataset.task == "regression" and name in OF_CLASSES:
        raise ValueError(
            f"a {name} partition is one of classes, and {dataset.name} is a regression; take "
            "--partition iid, or natural where the data has clients of its own"
        )
    return KINDS[name](dataset, clients, seed=seed, **settings)


def check_settings(kind: str, settings: Iterable[str]) -> dict[str, Any]:
    """Check the settings of a kind; return the type hints of all its settings.

    >>> check_settings("shards", ["per_client"])
    {'per_client': <class 'int'>}
    """
    name = _named(kind)
    parameters = inspect.signature(KINDS[name]).parameters
    takes = {k: v for k, v in parameters.items() if k not in ("dataset", "clients", "seed")}
    for setting in settings:
        if setting not in takes:
            known = did_you_mean(setting, [*takes, "clients", "kind"])
            raise ValueError(f"{setting!r} is no setting of {name}; {known}")
    for setting, parameter in takes.items():
        if parameter.default is parameter.empty and setting not in settings:
            raise ValueError(
                f"a {name} partition needs {setting}, for example "
                f"--partition-settings {setting}={EXAMPLES.get(setting, 'VALUE')}"
            )
    hints = get_type_hints(KINDS[name])
    return {setting: hints[setting] for setting in takes}


def _named(kind: str) -> str:
    """Return the name of a kind as `KINDS` has it."""
    name = kind.lower().replace("_", "-")
    if name not in KINDS:
        raise ValueError(f"{kind!r} is no kind of partition; {did_you_mean(name, KINDS)}")
    return name


def by_class(
    dataset: Dataset, clients: int, *, copies: bool = False, sizes: str = "balanced", seed: int
) -> Partition:
    """Return the paper's partition: clients in groups, each group with the data of one class.

    Group k has the same number of clients as every other. They hold disjoint parts of the class's
    training examples, or copies of all of them, and each is tested on all test examples of the
    class. Where the data set names clusters of its own (`Dataset.groups`), those are the groups.

    Parameters
    ----------
    dataset : Dataset
    clients : int
        N, a multiple of the number of groups; clients of a group are neighbours.
    copies : bool
        Whether the clients of a group all hold the whole class.
    sizes : {"balanced", "skewed"}
        How a class is divided, see `iid`.
    seed : int

    Examples
    --------
    >>> from adcs.simulation.datasets.synthetic import synthetic
    >>> partition = by_class(synthetic(4), 8, seed=0)
    >>> partition.groups, partition.train[0].size, partition.test[0].size
    (array([0, 0, 1, 1, 2, 2, 3, 3]), 100, 50)
    """
    train, test = dataset.groups or (dataset.y_train, dataset.y_test)
    groups = int(train.max()) + 1
    if clients < 1 or clients % groups:
        below = clients // groups * groups
        near = [f"--clients {count}" for count in (below, below + groups) if count > 0]
        others = ", ".join(kind for kind in KINDS if kind != "by-class")
        raise ValueError(
            f"clients is {clients}; by class it is a multiple of the {groups} groups: take "
            f"{' or '.join(near)}, or another --partition ({others})"
        )
    if copies and sizes != "balanced":
        raise ValueError(f"sizes is {sizes!r}; copies of a class are all of one size")
    each = clients // groups
    rng = np.random.default_rng(seed)
    held: list[IndexArray] = []
    tested: list[IndexArray] = []
    for group in range(groups):
        members, judges = np.flatnonzero(train == group), np.flatnonzero(test == group)
        named = dataset.groups is None
        which = f"class {dataset.label_names[group]}" if named else f"group {group}"
        if judges.size == 0:
            raise ValueError(f"{dataset.name}: {which} has no test examples for its clients")
        if members.size < each and not copies:
            raise ValueError(
                f"{dataset.name}: {each} clients cannot share the {members.size} training "
                f"examples of {which}; each needs at least one"
            )
        if copies:
            held += [members] * each
        else:
            counts = _sizes(members.size, each, sizes, rng)
            held += _split(rng.permutation(members), counts)
        tested += [judges] * each
    return Partition(tuple(held), tuple(tested), np.repeat(np.arange(groups), each))


def iid(dataset: Dataset, clients: int, *, sizes: str = "balanced", seed: int) -> Partition:
    """Return a partition at random: every client's data look like the whole.

    A client is tested on as large a part of the shuffled test set as it has of the training set,
    but on at least 10 examples; where clients need more than there are, they share examples.

    Parameters
    ----------
    dataset : Dataset
    clients : int
        N, at most the number of training examples.
    sizes : {"balanced", "skewed"}
        Balanced sizes differ by at most one. Skewed ones are, after one example for each,
        proportional to exp(z), z standard normal: the largest of 100 is about 12 times the median.
    seed : int

    Examples
    --------
    >>> from adcs.simulation.datasets.synthetic import synthetic
    >>> [part.size for part in iid(synthetic(4, per_cluster=5), 3, seed=0).train]
    [7, 7, 6]
    """
    rng = np.random.default_rng(seed)
    counts = _sizes(dataset.y_train.size, clients, sizes, rng)
    train = _split(rng.permutation(dataset.y_train.size), counts)
    want = _test_sizes(dataset, counts)
    return Partition(
        tuple(train), tuple(_deal(want[:, None], [np.arange(dataset.y_test.size)], rng))
    )


def dirichlet(
    dataset: Dataset, clients: int, alpha: float, *, sizes: str = "balanced", seed: int
) -> Partition:
    """Return a label-skewed partition: each client's class proportions are Dirichlet.

    Client i has a number of examples (`sizes`) and draws their classes from proportions of its own,
    Dirichlet(alpha C p) with p the classes' frequencies among all C: Dirichlet(alpha) for classes
    of one size. Where clients want more of a class than there is, they are served in random order,
    and the others draw again from the classes left. All training examples are used, once.

    A client is tested on examples drawn with the class proportions of its training examples: as
    large a part of the test set as it has of the training set, but at least 10 examples where
    each of its classes has enough. Where clients need more of a class than there is, they share
    examples.

    Parameters
    ----------
    dataset : Dataset
        Every class has test examples.
    clients : int
        N, at most the number of training examples.
    alpha : float
        Small: nearly one class for each client. Large: nearly IID. At least 1e-6.
    sizes : {"balanced", "skewed"}
        How many examples clients have, see `iid`.
    seed : int

    Examples
    --------
    >>> from adcs.simulation.datasets.synthetic import synthetic
    >>> data = synthetic(4)
    >>> partition = dirichlet(data, 10, 0.01, seed=0)
    >>> sum(part.size for part in partition.train)
    800
    """
    if not 1e-6 <= alpha < np.inf:
        raise ValueError(f"alpha is {alpha}; it is finite and at least 1e-6")
    rng = np.random.default_rng(seed)
    supply = np.bincount(dataset.y_train, minlength=dataset.classes)
    missing = _sizes(dataset.y_train.size, clients, sizes, rng)
    shape = alpha * dataset.classes * supply / supply.sum()
    # log of Gamma(a) as log Gamma(a + 1) + log(U) / a: no underflow at small a. Normalised, the
    # Gammas are Dirichlet.
    log_gamma = np.log(rng.standard_gamma(shape + 1.0, (clients, dataset.classes)))
    log_gamma += np.log1p(-rng.random(log_gamma.shape)) / shape
    table = np.zeros((clients, dataset.classes), dtype=np.intp)
    # Each pass fills every client or uses up a class: there are at most as many passes as classes.
    while (open_rows := np.flatnonzero(missing)).size:
        left = supply - table.sum(axis=0)
        logs = np.where(left > 0, log_gamma[open_rows], -np.inf)
        p = np.exp(logs - logs.max(axis=1, keepdims=True))
        wanted = rng.multinomial(missing[open_rows], p / p.sum(axis=1, keepdims=True))
        for label in np.flatnonzero(wanted.sum(axis=0) > left):
            order = rng.permutation(open_rows.size)
            served = np.minimum(np.cumsum(wanted[order, label]), left[label])
            wanted[order, label] = np.diff(served, prepend=0)
        table[open_rows] += wanted
        missing[open_rows] -= wanted.sum(axis=1)
    pools = [np.flatnonzero(dataset.y_train == label) for label in range(dataset.classes)]
    return Partition(tuple(_deal(table, pools, rng)), _matching_tests(dataset, table, rng))


def shards(dataset: Dataset, clients: int, *, per_client: int = 2, seed: int) -> Partition:
    """Return a label-skewed partition: examples sorted by class, cut into shards, dealt out.

    There are N times `per_client` shards, equal in size up to one example; a client gets
    `per_client` of them at random, and so has data of few classes. Its test examples are chosen as
    in `dirichlet`.

    Parameters
    ----------
    dataset : Dataset
        Every class has test examples.
    clients : int
        N; there are at least as many training examples as shards.
    per_client : int
        Shards of each client.
    seed : int

    Examples
    --------
    >>> from adcs.simulation.datasets.synthetic import synthetic
    >>> data = synthetic(4)
    >>> partition = shards(data, 2, per_client=1, seed=0)
    >>> [np.unique(data.y_train[part]).tolist() for part in partition.train]
    [[0], [1]]
    """
    total = clients * per_client
    if clients < 1 or per_client < 1 or total > dataset.y_train.size:
        raise ValueError(
            f"{clients} clients with {per_client} shards each is {total} shards; it is at least "
            f"one and at most the {dataset.y_train.size} training examples"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(dataset.y_train.size)
    order = order[np.argsort(dataset.y_train[order], kind="stable")]
    pieces = np.array_split(order, total)
    hands = rng.permutation(total).reshape(clients, per_client)
    train = [np.sort(np.concatenate([pieces[piece] for piece in hand])) for hand in hands]
    table = np.array([np.bincount(dataset.y_train[t], minlength=dataset.classes) for t in train])
    return Partition(tuple(train), _matching_tests(dataset, table, rng))


def natural(dataset: Dataset, clients: int, *, choice: str = "largest", seed: int) -> Partition:
    """Return the data's own clients, such as writers, speakers or devices.

    Parameters
    ----------
    dataset : Dataset
        With clients of its own (`Dataset.clients`).
    clients : int
        N, at most as many as the data has. Those chosen keep the order that they have there.
    choice : {"largest", "random"}
        Which clients are taken where N is below their number: those with most training examples
        (of equal ones the first), or some at random, others at each seed.
    seed : int

    Examples
    --------
    >>> from adcs.simulation.datasets import from_clients
    >>> x, y = np.eye(4), [0, 1, 0, 1]
    >>> held = {"ann": ((x[:2], y[:2]), (x, y)), "bob": ((x, y), (x, y))}
    >>> natural(from_clients(held), 1, seed=0).names
    ('bob',)
    """
    if dataset.clients is None:
        others = ", ".join(kind for kind in KINDS if kind != "natural")
        raise ValueError(
            f"{dataset.name} has no clients of its own; take another --partition ({others})"
        )
    there = len(dataset.client_names)
    if not 1 <= clients <= there:
        raise ValueError(
            f"clients is {clients}; {dataset.name} has {there} of its own, so it is from 1 to "
            f"{there}"
        )
    if choice not in ("largest", "random"):
        raise ValueError(f"choice is {choice!r}; it is 'largest' or 'random'")
    train, test = (_by_owner(owner, there) for owner in dataset.clients)
    if choice == "random":
        order = np.random.default_rng(seed).permutation(there)
    else:
        order = np.argsort([-part.size for part in train], kind="stable")
    kept = np.sort(order[:clients]).tolist()
    return Partition(
        tuple(train[i] for i in kept),
        tuple(test[i] for i in kept),
        names=tuple(dataset.client_names[i] for i in kept),
    )


def _by_owner(owner: IndexArray, clients: int) -> list[IndexArray]:
    """Return the positions of each client's examples.

    >>> _by_owner(np.array([1, 0, 1]), 2)
    [array([1]), array([0, 2])]
    """
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


KINDS: dict[str, Callable[..., Partition]] = {
    "by-class": by_class,
    "dirichlet": dirichlet,
    "shards": shards,
    "iid": iid,
    "natural": natural,
}


def _sizes(examples: int, clients: int, sizes: str, rng: Rng) -> IndexArray:
    """Return how many of the examples each client gets: at least one, all in all every one."""
    if not 1 <= clients <= examples:
        raise ValueError(
            f"{clients} clients cannot share {examples} training examples; each needs at least one"
        )
    if sizes not in ("balanced", "skewed"):
        raise ValueError(f"sizes is {sizes!r}; it is 'balanced' or 'skewed'")
    weights = np.ones(clients) if sizes == "balanced" else rng.lognormal(size=clients)
    counts: IndexArray = _apportion(np.array([examples - clients]), weights[None])[0]
    counts += 1
    return counts


def _apportion(totals: IndexArray, weights: Float64Array) -> IndexArray:
    """Return whole numbers near each row's weights, adding up to its total (largest remainders)."""
    share = weights / weights.sum(axis=1, keepdims=True) * totals[:, None]
    whole: IndexArray = np.floor(share).astype(np.intp)
    order = np.argsort(whole - share, axis=1, kind="stable")
    extra = np.arange(share.shape[1]) < (totals - whole.sum(axis=1))[:, None]
    np.put_along_axis(whole, order, np.take_along_axis(whole, order, axis=1) + extra, axis=1)
    return whole


def _split(order: IndexArray, counts: IndexArray) -> list[IndexArray]:
    """Cut an array into parts of these sizes, each sorted."""
    owner = np.repeat(np.arange(counts.size), counts)
    return np.split(order[np.lexsort((order, owner))], np.cumsum(counts)[:-1])


def _deal(table: IndexArray, pools: list[IndexArray], rng: Rng) -> list[IndexArray]:
    """Give client i table[i, c] different examples of pool c; clients share when a pool runs out.

    Each pool is shuffled and read in a circle, so one deal never repeats within a client as long
    as it asks for no more than the pool has.
    """
    dealt = [
        rng.permutation(pool)[np.arange(wanted.sum()) % pool.size]
        for wanted, pool in zip(table.T, pools, strict=True)
    ]
    owners = [np.repeat(np.arange(len(table)), wanted) for wanted in table.T]
    by_client = np.argsort(np.concatenate(owners), kind="stable")
    return _split(np.concatenate(dealt)[by_client], table.sum(axis=1))


def _test_sizes(dataset: Dataset, counts: IndexArray) -> IndexArray:
    """Return how many test examples clients with so many training examples are tested on."""
    examples = dataset.y_test.size
    share = np.rint(counts * (examples / dataset.y_train.size)).astype(np.intp)
    wanted: IndexArray = np.minimum(np.maximum(share, LEAST_TEST), examples)
    return wanted


def _matching_tests(dataset: Dataset, table: IndexArray, rng: Rng) -> tuple[IndexArray, ...]:
    """Return test examples in the class proportions of each client's training examples."""
    pools = [np.flatnonzero(dataset.y_test == label) for label in range(dataset.classes)]
    for label, pool in enumerate(pools):
        if pool.size == 0:
            name = dataset.label_names[label]
            raise ValueError(
                f"{dataset.name}: class {name} has no test examples for its clients; leave rare "
                "classes out of the data, or split it into training and test examples by class"
            )
    wanted = _apportion(_test_sizes(dataset, table.sum(axis=1)), table.astype(np.float64))
    return tuple(_deal(np.minimum(wanted, [pool.size for pool in pools]), pools, rng))
