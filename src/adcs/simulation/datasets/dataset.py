"""The data set, and its construction from arrays and .npz files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._npz import Unreadable, is_unicode, read_npz
from adcs._validation import did_you_mean_path

Features = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64]

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples with their classes; made by `load` or `from_arrays`.

    Attributes
    ----------
    name : str
    x_train, x_test : array of shape (examples, features)
        Stored as uint8 where given so, as float32 otherwise.
    y_train, y_test : int64 array of shape (examples,)
        Classes, from 0 to classes - 1.
    classes : int
    label_names : tuple of str
        A name for each class; the original label where the user's were other integers or text.
    labels : tuple of int or of str
        The user's label of each class; empty where they are 0 to classes - 1.
    scale : float
        Models see ``x * scale``: 1/255 for uint8 pixels, 1 for floats.
    groups : pair of int64 arrays, or None
        The cluster of each training and of each test example, where they differ from the classes.
    source : str
        Where the data came from.
    input_shape : tuple of int
        The shape of one example before its axes were flattened into features.
    vocabulary : int or None
        For text: features are token ids from 0 to vocabulary - 1. None: features are quantities.

    Examples
    --------
    >>> data = from_arrays([[0.0], [1.0]], [3, 7], [[0.9]], [7])
    >>> data.classes, data.labels, data.y_test
    (2, (3, 7), array([1]))
    """

    name: str
    x_train: Features
    y_train: Labels
    x_test: Features
    y_test: Labels
    classes: int
    label_names: tuple[str, ...]
    scale: float = 1.0
    groups: tuple[Labels, Labels] | None = None
    source: str = "memory"
    labels: tuple[int, ...] | tuple[str, ...] = ()
    input_shape: tuple[int, ...] = ()
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if not self.input_shape:
            object.__setattr__(self, "input_shape", self.x_train.shape[1:])


def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    *,
    name: str = "data",
    label_names: Sequence[str] | None = None,
    scale: float | None = None,
    groups: tuple[Labels, Labels] | None = None,
    source: str = "memory",
) -> Dataset:
    """Return a data set from arrays.

    Parameters
    ----------
    x_train, x_test : array_like of shape (examples, ...)
        Finite numbers; all axes but the first are flattened into features.
    y_train, y_test : array_like of shape (examples,)
        Whole numbers, any of them, or text; every test label has training examples.
    name : str
        What error messages and records call the set.
    label_names : sequence of str, optional
        A name for each label in ascending order; the labels themselves by default.
    scale : float, optional
        What features are multiplied by; 1/255 for uint8 by default, 1 for all else.
    groups : pair of arrays, optional
        The cluster of each training and of each test example, counted from 0.
    source : str
        Where the data came from.

    Raises
    ------
    ValueError
        If something is wrong, with the name of the set, the array and the value.

    Examples
    --------
    >>> images = np.zeros((6, 28, 28), dtype=np.uint8)
    >>> data = from_arrays(images, [-1, 1, -1, 1, -1, 1], images[:2], [-1, 1])
    >>> data.x_train.shape, data.x_train.dtype, data.label_names
    ((6, 784), dtype('uint8'), ('-1', '1'))
    >>> data.input_shape
    (28, 28)
    >>> from_arrays(images[:2], ["dog", "cat"], images[:1], ["dog"]).label_names
    ('cat', 'dog')
    """
    a, b = np.asarray(x_train), np.asarray(x_test)
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(
            f"{name}: an example of x_train has shape {a.shape[1:]}, one of x_test {b.shape[1:]}"
        )
    if (a.dtype == np.uint8) != (b.dtype == np.uint8):
        raise ValueError(
            f"{name}: x_train is {a.dtype} and x_test is {b.dtype}; uint8 is scaled, so it is both "
            "or neither"
        )
    train, test = _features(a, f"{name}: x_train"), _features(b, f"{name}: x_test")
    labels, test_labels = _labels(y_train, f"{name}: y_train"), _labels(y_test, f"{name}: y_test")
    if labels.dtype.kind != test_labels.dtype.kind:
        raise ValueError(
            f"{name}: y_train holds {labels.tolist()[0]!r} and y_test {test_labels.tolist()[0]!r}; "
            "labels are all whole numbers or all text"
        )
    for part, x, y in (("train", train, labels), ("test", test, test_labels)):
        if len(x) != len(y):
            raise ValueError(f"{name}: x_{part} has {len(x)} examples and y_{part} {len(y)} labels")
    known, classes = np.unique(labels, return_inverse=True)
    if known.size < 2:
        raise ValueError(f"{name}: y_train holds the one label {known[0]}; it takes two classes")
    if (strange := ~np.isin(test_labels, known)).any():
        raise ValueError(
            f"{name}: y_test holds label {test_labels[strange][0]}, which has no training example"
        )
    if label_names is None:
        label_names = [str(label) for label in known]
    if len(label_names) != known.size:
        raise ValueError(f"{name}: {len(label_names)} label names for {known.size} classes")
    if groups is not None and [len(part) for part in groups] != [len(labels), len(test_labels)]:
        raise ValueError(f"{name}: groups do not have one entry for each example")
    return Dataset(
        name=name,
        x_train=train,
        y_train=classes.astype(np.int64),
        x_test=test,
        y_test=np.searchsorted(known, test_labels).astype(np.int64),
        classes=int(known.size),
        label_names=tuple(label_names),
        scale=scale if scale is not None else (1 / 255 if train.dtype == np.uint8 else 1.0),
        groups=groups,
        source=source,
        labels=() if known.tolist() == list(range(known.size)) else tuple(known.tolist()),
        input_shape=a.shape[1:],
    )


def from_npz(path: str | Path) -> Dataset:
    """Return the user's data set from an .npz file with x_train, y_train, x_test and y_test.

    What the arrays may be is what `from_arrays` takes; object arrays (pickles) are refused.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
    >>> np.savez(path, x_train=np.eye(2), y_train=[0, 1], x_test=np.eye(2), y_test=[0, 1])
    >>> from_npz(path).classes
    2
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: it is a folder, a pipe or a device, not an .npz file")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file{did_you_mean_path(path)}")
    try:
        with path.open("rb") as file:
            arrays = read_npz(file, ARRAYS)
    except Unreadable as error:
        raise ValueError(f"{path}: {error}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read, {error.strerror or error}") from error
    except MemoryError as error:
        raise ValueError(f"{path}: its arrays are larger than memory") from error
    return from_arrays(*(arrays[name] for name in ARRAYS), name=str(path), source=str(path))


def _features(x: NDArray[Any], what: str) -> Features:
    """Return examples as rows, uint8 or float32; `what` names the array in errors."""
    if x.dtype.kind not in "buif":
        raise ValueError(f"{what} is an array of {x.dtype}, not of numbers")
    if x.size == 0 or x.ndim == 0:
        raise ValueError(f"{what} is empty, of shape {x.shape}")
    rows = x.reshape(len(x), -1)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(rows)
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(rows, dtype=np.float32)
    if not (finite := np.isfinite(numbers)).all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(
            f"{what} holds {rows[row, column]} in example {row}; features are finite in float32"
        )
    return numbers


def _labels(y: ArrayLike, what: str) -> NDArray[np.int64] | NDArray[np.str_]:
    """Return labels as int64 or as text; floats that are whole numbers and ASCII bytes will do."""
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.size == 0:
        raise ValueError(f"{what} is empty")
    if labels.ndim != 1:
        raise ValueError(f"{what} has shape {labels.shape}, not one label for each example")
    if labels.dtype.kind == "S":
        try:
            labels = labels.astype(np.str_)
        except UnicodeDecodeError as error:
            raise ValueError(f"{what} holds bytes that are not ASCII text") from error
    if labels.dtype.kind == "U":
        if not is_unicode(labels):
            raise ValueError(f"{what} holds text that is not Unicode")
        return labels
    if labels.dtype.kind not in "buif":
        raise ValueError(f"{what} holds {labels[0]!s}; labels are whole numbers or text")
    limit = 2**53  # beyond it, floats are no longer exact
    whole = (labels == np.floor(labels)) & (labels >= -limit) & (labels <= limit)
    if not whole.all():
        where = int(np.argmin(whole))
        rule = "labels are whole numbers from -2^53 to 2^53"
        raise ValueError(f"{what} holds {labels[where]} at {where}; {rule}")
    return labels.astype(np.int64)
