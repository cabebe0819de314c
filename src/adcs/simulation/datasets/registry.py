"""Data sets by name: Fashion-MNIST, scikit-learn's digits, synthetic data, and .npz files."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adcs._validation import did_you_mean
from adcs.simulation.datasets import fashion_mnist
from adcs.simulation.datasets.dataset import Dataset, from_arrays, from_npz
from adcs.simulation.datasets.fashion_mnist import DataUnavailable
from adcs.simulation.datasets.synthetic import settings_of, synthetic


class Entry(NamedTuple):
    """A data set in `available`: its name, contents, presence on this machine, and source.

    >>> available()[-1].here
    True
    """

    name: str
    what: str
    here: bool
    where: str


def available(folder: str | Path | None = None) -> list[Entry]:
    """List the data sets that `load` knows by name; nothing is fetched.

    >>> [entry.name for entry in available()]
    ['fashion-mnist', 'digits', 'synthetic']
    """
    images = fashion_mnist.located(folder)
    sklearn = find_spec("sklearn") is not None
    return [
        Entry(
            "fashion-mnist",
            "70,000 images of clothing, 28 x 28 pixels, 10 classes",
            images is not None,
            str(images or "adcs data fetch fashion-mnist"),
        ),
        Entry(
            "digits",
            "1,797 images of digits, 8 x 8 pixels, 10 classes",
            sklearn,
            "scikit-learn" if sklearn else "pip install 'adcs[cli]'",
        ),
        Entry(
            "synthetic",
            "gradients in clusters as in Theorem 1; synthetic:clusters=10,r=0.05,mu=0.05 sets it",
            True,
            "made on the spot",
        ),
    ]


def load(name: str | Path, folder: str | Path | None = None) -> Dataset:
    """Return a data set by name, or the user's own by path.

    Parameters
    ----------
    name : str or Path
        ``fashion-mnist``, ``digits``, ``synthetic`` (with settings after a colon, as in
        ``synthetic:clusters=5,mu=0.1``), or the path of an .npz file (see `from_npz`).
    folder : str or Path, optional
        Where to look for Fashion-MNIST first.

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
    if name == "fashion-mnist":
        arrays, source = fashion_mnist.obtain(folder)
        x_train, y_train, x_test, y_test = (arrays[stem] for stem in fashion_mnist.SHA256)
        names = fashion_mnist.LABELS
        return from_arrays(
            x_train, y_train, x_test, y_test, name=name, label_names=names, source=source
        )
    if name == "digits":
        return digits()
    kind, _, settings = name.partition(":")
    if kind == "synthetic":
        return dataclasses.replace(synthetic(**settings_of(settings)), name=name)
    if Path(name).suffix == ".npz" or Path(name).exists():
        return from_npz(name)
    raise ValueError(f"{name!r} is no data set and no .npz file; {_hint(name)}")


def fetch(name: str, folder: str | Path | None = None) -> Dataset:
    """Download and check a named data set unless it is on this machine; `source` says where.

    >>> fetch("synthetic").source
    'made on the spot'
    """
    if name.partition(":")[0] not in [entry.name for entry in available()]:
        raise ValueError(f"{name!r} is no data set that can be fetched; {_hint(name)}")
    return load(name, folder)


def digits() -> Dataset:
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


def _hint(name: str) -> str:
    return did_you_mean(name, [entry.name for entry in available()])
