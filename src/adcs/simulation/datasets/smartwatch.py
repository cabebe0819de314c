"""Exercises seen by a smartwatch: each subject is a client, and the task is to name the exercise.

The data are those of the `seglearn` package: 140 recordings of a six-axis inertial sensor, 50
samples a second, from 10 subjects who did seven shoulder exercises with the left and with the right
arm (arXiv:1802.01489).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from adcs._validation import check_int
from adcs.simulation.datasets.cache import Arrays
from adcs.simulation.datasets.dataset import Dataset, from_arrays, standardised
from adcs.simulation.datasets.packages import Package, Source, obtain
from adcs.simulation.datasets.pickles import read_pickle

EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
"""The exercises as the package names them."""

SUBJECTS = 10

SETTINGS = {"window": int, "stride": int}
"""Settings in the name, as in ``smartwatch:window=128``."""


def smartwatch(folder: str | Path | None = None, *, window: int = 64, stride: int = 32) -> Dataset:
    """Return windows of the recordings, with the subjects as clients.

    A subject did each exercise twice, once with each arm. One of the two recordings is for training
    and the other for testing, the left and the right one by turns, so that training and test
    windows never overlap. Channels are standardised by the training recordings.

    Parameters
    ----------
    folder : str or Path, optional
        Where to look for the package's file first.
    window : int
        Samples of an example, from 2 to 900; each has six numbers.
    stride : int
        Samples from the start of a window to the next.
    """
    check_int("window of smartwatch", window, minimum=2, maximum=900)
    check_int("stride of smartwatch", stride, minimum=1)
    arrays, where = obtain(SOURCE, folder)
    samples, ends = arrays["samples"], arrays["ends"]
    tested = arrays["side"] == (arrays["subject"] + arrays["exercise"]) % 2
    starts = np.concatenate([[0], ends[:-1]])
    parts = []
    for which in (~tested, tested):
        series = np.flatnonzero(which)
        found = [np.arange(starts[i], ends[i] - window + 1, stride) for i in series]
        first, of = np.concatenate(found), np.repeat(series, [one.size for one in found])
        view = np.lib.stride_tricks.sliding_window_view(samples, window, axis=0)
        parts.append(
            (view[first].transpose(0, 2, 1), arrays["exercise"][of], arrays["subject"][of])
        )
    (x_train, y_train, train), (x_test, y_test, test) = parts
    x_train, x_test = standardised(x_train, x_test)
    return from_arrays(
        x_train,
        y_train,
        x_test,
        y_test,
        name="smartwatch",
        label_names=EXERCISES,
        clients=(train, test),
        source=where,
    )


def _arrays(files: Mapping[str, bytes]) -> Arrays:
    """Return the samples of all recordings, where each ends, and what each is of."""
    [(name, content)] = files.items()
    file = io.BytesIO(content)
    try:
        npy.read_magic(file)
        npy.read_array_header_1_0(file)
    except ValueError as error:
        raise OSError(f"{name} is no array file ({error})") from error
    held = read_pickle(file.read(), name)
    # The file is an array of one object, a dict.
    held = held.item() if isinstance(held, np.ndarray) else held
    return {
        "samples": np.concatenate(held["X"]).astype(np.float32),
        "ends": np.cumsum([len(one) for one in held["X"]]).astype(np.int64),
        "exercise": held["y"].astype(np.int64),
        "subject": held["subject"].astype(np.int64),
        "side": held["side"].astype(np.int64),
    }


PACKAGE = Package(
    "pip",
    "seglearn",
    "1.2.5",
    "seglearn-1.2.5-py3-none-any.whl",
    "seglearn/data/watch_dataset.npy",
    sha256="ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd",
)

SOURCE = Source(
    "smartwatch",
    PACKAGE,
    "d562798a2e258a1cdebb536722ccd13c29d0a79d1e77ca0a370e6e1e6feec4d5",
    _arrays,
)
