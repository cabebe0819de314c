"""Data sets by name, with their sources and terms, and the user's own by path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adcs._validation import did_you_mean
from adcs.simulation.datasets import (
    cifar10,
    clients,
    fashion_mnist,
    mlbench,
    packages,
    shakespeare,
    smartwatch,
    synthetic,
)
from adcs.simulation.datasets.cache import DataUnavailable
from adcs.simulation.datasets.columns import LABEL
from adcs.simulation.datasets.dataset import Dataset, Task, from_arrays

Settings = Mapping[str, Any]


class Entry(NamedTuple):
    """A data set in `available`.

    Attributes
    ----------
    name, what : str
        Its name and contents.
    here : bool
        Whether it is on this machine.
    where : str
        Where it is, or how it is fetched.
    clients : str
        Its own clients, "none" where partitions make them.
    size : str
        Size of the download.
    terms : str
        The data's own terms of use, "not stated" where there are none.
    source : str
        What it is fetched from.

    Examples
    --------
    >>> available()[2].name, available()[2].here
    ('synthetic', True)
    """

    name: str
    what: str
    here: bool
    where: str
    clients: str = "none"
    size: str = ""
    terms: str = ""
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Named:
    """A data set that has a name: how it is described, found and loaded.

    Attributes
    ----------
    load : callable
        Returns it, from the folder given and the settings in its name.
    here : callable
        Returns where it is on this machine, "" if it has to be fetched; takes the folder given.
    settings : mapping
        The settings in its name, by type.
    clients : callable or None
        Returns how many clients of its own it has with these settings.
    reads_folder : bool
        Whether it is looked for in a folder that the user gives.
    """

    what: str
    size: str
    terms: str
    source: str
    load: Callable[..., Dataset]
    here: Callable[[str | Path | None], str]
    settings: Mapping[str, type] = dataclasses.field(default_factory=dict)
    clients: Callable[[Settings], int] | None = None
    clients_are: str = "none"
    reads_folder: bool = True


def _packaged(source: packages.Source, *, size: str, terms: str, **more: Any) -> Named:
    """Return a data set that comes in a package."""
    return Named(
        size=size,
        terms=terms,
        source=source.package.described,
        here=lambda folder: str(packages.located(source, folder) or ""),
        **more,
    )


def _fashion_mnist(folder: str | Path | None) -> Dataset:
    arrays, source = fashion_mnist.obtain(folder)
    x_train, y_train, x_test, y_test = (arrays[stem] for stem in fashion_mnist.SHA256)
    return from_arrays(
        x_train,
        y_train,
        x_test,
        y_test,
        name="fashion-mnist",
        label_names=fashion_mnist.LABELS,
        source=source,
    )


def digits(folder: str | Path | None = None) -> Dataset:
    """Return scikit-learn's bundled digits: 8 x 8 pixels, a fifth of each class for testing.

    >>> digits().x_train.shape
    (1442, 64)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataUnavailable(
            "digits come with scikit-learn, which is missing; pip install 'adcs[cli]' brings it"
        ) from error
    bunch = load_digits()
    x, y = bunch.data.astype(np.uint8), bunch.target
    order = np.random.default_rng(0).permutation(y.size)
    tests = [order[y[order] == label][: (y == label).sum() // 5] for label in range(10)]
    test = np.zeros(y.size, dtype=bool)
    test[np.concatenate(tests)] = True
    return from_arrays(
        x[~test], y[~test], x[test], y[test], name="digits", scale=1 / 16, source="scikit-learn"
    )


NAMED: dict[str, Named] = {
    "fashion-mnist": Named(
        what="70,000 images of clothing, 28 x 28 pixels, 10 classes",
        size="31 MB",
        terms="MIT",
        source=f"Debian's package {fashion_mnist.PACKAGE} by apt-get, or the official files",
        load=_fashion_mnist,
        here=lambda folder: str(fashion_mnist.located(folder) or ""),
    ),
    "digits": Named(
        what="1,797 images of digits, 8 x 8 pixels, 10 classes",
        size="in scikit-learn",
        terms="not stated; scikit-learn: BSD-3-Clause",
        source="scikit-learn",
        load=digits,
        here=lambda _: "scikit-learn" if find_spec("sklearn") is not None else "",
        reads_folder=False,
    ),
    "synthetic": Named(
        what="gradients in clusters as in Theorem 1; synthetic:clusters=10,r=0.05,mu=0.05 sets it",
        size="none",
        terms="none",
        source="made on the spot",
        load=lambda folder, **settings: synthetic.synthetic(**settings),
        here=lambda _: "made on the spot",
        settings=synthetic.SETTINGS,
        reads_folder=False,
    ),
    "shakespeare": _packaged(
        shakespeare.SOURCE,
        what="37 plays, next of 66 characters after 80; shakespeare:clients=100,stride=5 sets it",
        size="5.4 MB",
        terms="the texts: Project Gutenberg's; the package: MIT, other content CC BY 2.5",
        load=shakespeare.shakespeare,
        settings=shakespeare.SETTINGS,
        clients=shakespeare.count,
        clients_are=f"{shakespeare.ROLES} roles",
    ),
    "smartwatch": _packaged(
        smartwatch.SOURCE,
        what="140 recordings of a wrist, 7 exercises; smartwatch:window=64,stride=32 sets it",
        size="11 MB",
        terms="BSD-3-Clause",
        load=smartwatch.smartwatch,
        settings=smartwatch.SETTINGS,
        clients=lambda settings: smartwatch.SUBJECTS,
        clients_are=f"{smartwatch.SUBJECTS} subjects",
    ),
    "vowel": _packaged(
        mlbench.VOWEL,
        what="990 spoken vowels, 9 features, 11 classes",
        size="1 MB",
        terms="not stated; the package: GPL-2",
        load=mlbench.vowel,
        clients=lambda settings: mlbench.SPEAKERS,
        clients_are=f"{mlbench.SPEAKERS} speakers",
    ),
    "letter": _packaged(
        mlbench.LETTER,
        what="20,000 printed letters, 16 features, 26 classes",
        size="1 MB",
        terms="not stated; the package: GPL-2",
        load=mlbench.letter,
    ),
    "cifar10": dataclasses.replace(
        _packaged(
            cifar10.SOURCE,
            what="60,000 colour images, 32 x 32 pixels, 10 classes",
            size="139 MB",
            terms="not stated; the package: ISC",
            load=cifar10.cifar10,
        ),
        source=f"your copy of the official files, or {cifar10.PACKAGE.described}",
        here=lambda folder: str(
            (folder and cifar10.official(folder)) or packages.located(cifar10.SOURCE, folder) or ""
        ),
    ),
}
"""The data sets by name. One more is an entry here and a function that returns it."""


def available(folder: str | Path | None = None) -> list[Entry]:
    """List the data sets that `load` knows by name; nothing is fetched.

    >>> [entry.name for entry in available()][:3]
    ['fashion-mnist', 'digits', 'synthetic']
    """
    found = []
    for name, one in NAMED.items():
        here = one.here(folder if one.reads_folder else None)
        how = "pip install 'adcs[cli]'" if name == "digits" else f"adcs data fetch {name}"
        found.append(
            Entry(
                name,
                one.what,
                bool(here),
                here or how,
                one.clients_are,
                one.size,
                one.terms,
                one.source,
            )
        )
    return found


def load(
    name: str | Path,
    folder: str | Path | None = None,
    *,
    task: Task = "classification",
    label: str = LABEL,
    test_fraction: float = clients.TEST_FRACTION,
) -> Dataset:
    """Return a data set by name, or the user's own by path.

    Parameters
    ----------
    name : str or Path
        A name of `available`, with settings after a colon where it has some, as in
        ``synthetic:clusters=5,mu=0.1`` or ``shakespeare:clients=100``; or the path of an .npz file
        (see `from_npz`) or of a folder (see `from_folder` and `from_leaf`).
    folder : str or Path, optional
        Where to look for the files of a named data set first.
    task : {"classification", "regression"}
        What the labels of the user's own data are.
    label, test_fraction
        Those of `from_folder`.

    Raises
    ------
    ValueError
        If there is no such data set, or the file is unusable.
    DataUnavailable
        If the data set exists but cannot be had.

    Examples
    --------
    >>> load("synthetic:clusters=5").x_train.shape
    (1000, 32)
    """
    name = str(name)
    if named := _named(name):
        if task != "classification":
            raise ValueError(f"{name} has classes; its task is classification, not {task}")
        one, settings = named
        made = one.load(folder if one.reads_folder else None, **settings)
        return dataclasses.replace(made, name=name)
    path = Path(name)
    if path.is_dir() and path.suffix != ".npz":
        return clients.from_path(path, task=task, label=label, test_fraction=test_fraction)
    if path.suffix == ".npz" or path.exists():
        return clients.from_path(path, task=task)
    raise ValueError(f"{name!r} is no data set, no .npz file and no folder; {_hint(name)}")


def natural_clients(name: str | Path) -> int | None:
    """Return how many clients of its own a data set has, without loading it; None for none.

    The number is known of named data sets. The user's own are looked into, as far as needed; what
    cannot be read has none.

    >>> natural_clients("smartwatch"), natural_clients("digits")
    (10, None)
    """
    name = str(name)
    if named := _named(name):
        one, settings = named
        return None if one.clients is None else one.clients(settings)
    try:
        return clients.count(Path(name))
    except (ValueError, OSError):
        return None


def reads_folder(name: str) -> bool:
    """Return whether a data set is looked for in a folder that the user gives.

    >>> reads_folder("cifar10"), reads_folder("digits")
    (True, False)
    """
    one = NAMED.get(name.partition(":")[0])
    return one is not None and one.reads_folder


def is_named(name: str) -> bool:
    """Return whether this is a name of a data set, with or without settings.

    >>> is_named("synthetic:clusters=5"), is_named("mine.npz")
    (True, False)
    """
    return name.partition(":")[0] in NAMED


def _named(name: str) -> tuple[Named, dict[str, Any]] | None:
    """Return a data set that has a name, and the settings in the name."""
    kind, colon, text = name.partition(":")
    one = NAMED.get(kind)
    if one is None:
        return None
    if colon and not one.settings:
        raise ValueError(f"{name!r}: {kind} has no settings")
    return one, settings_of(text, kind, one.settings)


def settings_of(text: str, of: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the settings in the name of a data set.

    >>> settings_of("clusters=5,mu=0.1", "synthetic", {"clusters": int, "mu": float})
    {'clusters': 5, 'mu': 0.1}
    """
    settings: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in kinds:
            raise ValueError(f"{name!r} is no setting of {of}; there are {', '.join(kinds)}")
        try:
            settings[name] = kinds[name](value)
        except ValueError:
            kind = "whole number" if kinds[name] is int else "number"
            raise ValueError(f"{name} of {of} is {value!r}, not a {kind}") from None
    return settings


def fetch(name: str, folder: str | Path | None = None) -> Dataset:
    """Download and check a named data set unless it is on this machine; `source` says where.

    >>> fetch("synthetic").source
    'made on the spot'
    """
    if not is_named(name):
        raise ValueError(f"{name!r} is no data set that can be fetched; {_hint(name)}")
    return load(name, folder)


def _hint(name: str) -> str:
    return did_you_mean(name, NAMED)
