"""Two data sets of R's package mlbench, as Debian ships it: Vowel and LetterRecognition.

R is not needed: `rdata` reads its files.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adcs.simulation.datasets.cache import Arrays
from adcs.simulation.datasets.dataset import Dataset, from_arrays, standardised
from adcs.simulation.datasets.packages import Package, Source, obtain

SPEAKERS = 15

VOWELS = ("hid", "hId", "hEd", "hAd", "hYd", "had", "hOd", "hod", "hUd", "hud", "hed")
"""The 11 vowels as the package names them, in the order of their classes."""

LETTERS = 16_000
"""The first so many letters are for training, as is usual."""


def vowel(folder: str | Path | None = None) -> Dataset:
    """Return the vowels of 15 speakers, with the speakers as clients: 990 rows, 11 classes.

    A speaker said each of 11 vowels six times. The first four times are for training and the last
    two for testing. (The usual split tests on other speakers, who would then be clients without
    training examples.) Features are standardised by the training examples.

    Parameters
    ----------
    folder : str or Path, optional
        Where to look for the package's file first.
    """
    arrays, where = obtain(VOWEL, folder)
    x, y, speaker = arrays["x"], arrays["y"], arrays["speaker"]
    order = np.lexsort((np.arange(y.size), y, speaker))
    groups = speaker[order] * len(VOWELS) + y[order]
    position = np.empty_like(order)
    position[order] = np.arange(y.size) - np.searchsorted(groups, groups)
    test = position >= 4
    x_train, x_test = standardised(x[~test], x[test])
    return from_arrays(
        x_train,
        y[~test],
        x_test,
        y[test],
        name="vowel",
        label_names=VOWELS,
        clients=(speaker[~test], speaker[test]),
        source=where,
    )


def letter(folder: str | Path | None = None) -> Dataset:
    """Return 20,000 printed letters with 16 features: 26 classes.

    The first 16,000 are for training and the others for testing, as is usual. Features are
    standardised by the training examples.

    Parameters
    ----------
    folder : str or Path, optional
        Where to look for the package's file first.
    """
    arrays, where = obtain(LETTER, folder)
    y = arrays["y"]
    x_train, x_test = standardised(arrays["x"][:LETTERS], arrays["x"][LETTERS:])
    return from_arrays(
        x_train,
        y[:LETTERS],
        x_test,
        y[LETTERS:],
        name="letter",
        label_names=[chr(ord("A") + i) for i in range(26)],
        source=where,
    )


def read_rda(data: bytes) -> Any:
    """Return the one data frame of an .rda file; OSError says what is wrong with it."""
    try:
        import rdata
    except ImportError as error:
        raise ImportError("rdata is missing; pip install 'adcs[data]' brings it") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that text of no stated encoding is ASCII
        try:
            [frame] = rdata.conversion.convert(rdata.parser.parse_data(data)).values()
        except Exception as error:  # Damaged files fail in many ways.
            raise OSError(f"the .rda file cannot be read ({error})") from error
    return frame


def _vowels(files: Mapping[str, bytes]) -> Arrays:
    [content] = files.values()
    frame = read_rda(content)
    return {
        "x": frame[[f"V{i}" for i in range(2, 11)]].to_numpy(np.float64),
        "y": frame["Class"].cat.codes.to_numpy(np.int64),
        "speaker": frame["V1"].astype(int).to_numpy(np.int64),
    }


def _letters(files: Mapping[str, bytes]) -> Arrays:
    [content] = files.values()
    frame = read_rda(content)
    return {
        "x": frame.drop(columns="lettr").to_numpy(np.float64),
        "y": frame["lettr"].cat.codes.to_numpy(np.int64),
    }


def _package(file: str, sha256: str) -> Package:
    members = f"mlbench/data/{file}"
    return Package(
        "apt", "r-cran-mlbench", "", "r-cran-mlbench_*.deb", members, contents={file: sha256}
    )


VOWEL = Source(
    "vowel",
    _package("Vowel.rda", "6577f9ca304153797ec7621d79020b010d160c425da2007639b9e6a2b23fb127"),
    "9662ab6867fbc7805d124c1948aea3dd47e16308b2223033337c7a194758482d",
    _vowels,
)

LETTER = Source(
    "letter",
    _package(
        "LetterRecognition.rda",
        "967a1a3e10b548d7269cbe50182bcecd6365cc58ea07638bbc34c51f17f34f1d",
    ),
    "cc0ed7299fa69ba45e0bf245fa9e8031840f32775f7fcbabbd43b218debf6b79",
    _letters,
)
