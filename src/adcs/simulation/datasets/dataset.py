"""The data set, and its construction from arrays and .npz files.

`adcs.simulation.datasets.clients` makes one of the data of each client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adcs._npz import Unreadable, is_unicode, names_in_npz, read_npz
from adcs._validation import check_int, did_you_mean_path

Features = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64]
Task = Literal["classification", "regression"]
Clients = tuple[NDArray[np.int64], NDArray[np.int64]]

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
CLIENT_ARRAYS = ("client_train", "client_test")
OPTIONAL = (*CLIENT_ARRAYS, "vocabulary")

MANY_LABELS = 20
"""More whole numbers than this, as labels, may be numbers and not classes."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples with their classes; made by `load` or `from_arrays`.

    Attributes
    ----------
    name : str
    x_train, x_test : array of shape (examples, features)
        Stored as uint8 where given so, as float32 otherwise.
    y_train, y_test : array of shape (examples,)
        Classes as int64, from 0 to classes - 1; for regression the values as float64.
    classes : int
        1 for regression: the model has one output.
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
    task : {"classification", "regression"}
    clients : pair of int64 arrays, or None
        The client of each training and of each test example, where the data have clients of their
        own: an index into `client_names`.
    client_names : tuple of str
        The name of each client.

    Examples
    --------
    >>> data = from_arrays([[0.0], [1.0]], [3, 7], [[0.9]], [7])
    >>> data.classes, data.labels, data.y_test
    (2, (3, 7), array([1]))
    """

    name: str
    x_train: Features
    y_train: NDArray[Any]
    x_test: Features
    y_test: NDArray[Any]
    classes: int
    label_names: tuple[str, ...]
    scale: float = 1.0
    groups: tuple[Labels, Labels] | None = None
    source: str = "memory"
    labels: tuple[int, ...] | tuple[str, ...] = ()
    input_shape: tuple[int, ...] = ()
    vocabulary: int | None = None
    task: Task = "classification"
    clients: Clients | None = None
    client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.input_shape:
            object.__setattr__(self, "input_shape", self.x_train.shape[1:])

    def with_vocabulary(self, size: int) -> Dataset:
        """Return the set with features that are token ids below a number; ValueError if not.

        >>> from_arrays([[0], [1]], [0, 1], [[2]], [0]).with_vocabulary(2)
        Traceback (most recent call last):
        ...
        ValueError: data: x_test holds 2.0; token ids are whole numbers from 0 to 1
        """
        for part, x in (("train", self.x_train), ("test", self.x_test)):
            if not (fine := (x >= 0) & (x < size) & (x == np.floor(x))).all():
                raise ValueError(
                    f"{self.name}: x_{part} holds {x[~fine][0]}; token ids are whole numbers from "
                    f"0 to {size - 1}"
                )
        return replace(self, vocabulary=size, scale=1.0)


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
    task: Task = "classification",
    clients: tuple[ArrayLike, ArrayLike] | None = None,
) -> Dataset:
    """Return a data set from arrays.

    Parameters
    ----------
    x_train, x_test : array_like of shape (examples, ...)
        Finite numbers; all axes but the first are flattened into features.
    y_train, y_test : array_like of shape (examples,)
        Whole numbers, any of them, or text; every test label has training examples. For regression
        finite numbers.
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
    task : {"classification", "regression"}
    clients : pair of array_like, optional
        The client of each training and of each test example, whole numbers or text. Every client
        has training and test examples.

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
    train, test = features_of(a, f"{name}: x_train"), features_of(b, f"{name}: x_test")
    made = _targets(y_train, y_test, name, task, label_names)
    for part, x, y in (("train", train, made["y_train"]), ("test", test, made["y_test"])):
        if len(x) != len(y):
            raise ValueError(f"{name}: x_{part} has {len(x)} examples and y_{part} {len(y)} labels")
    lengths = [len(train), len(test)]
    if groups is not None and [len(part) for part in groups] != lengths:
        raise ValueError(f"{name}: groups do not have one entry for each example")
    if clients is not None:
        made |= _named_clients(*clients, name, lengths)
    return Dataset(
        name=name,
        x_train=train,
        x_test=test,
        scale=scale if scale is not None else (1 / 255 if train.dtype == np.uint8 else 1.0),
        groups=groups,
        source=source,
        input_shape=a.shape[1:],
        **made,
    )


def _targets(
    y_train: ArrayLike,
    y_test: ArrayLike,
    name: str,
    task: Task,
    label_names: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the fields of a data set that follow from its labels."""
    if task not in get_args(Task):
        raise ValueError(f"{name}: task is {task!r}; it is {' or '.join(get_args(Task))}")
    if task == "regression":
        if label_names is not None:
            raise ValueError(f"{name}: {len(label_names)} label names; regression has none")
        return {
            "y_train": _values(y_train, f"{name}: y_train"),
            "y_test": _values(y_test, f"{name}: y_test"),
            "classes": 1,
            "label_names": ("value",),
            "task": task,
        }
    labels, test_labels = _labels(y_train, f"{name}: y_train"), _labels(y_test, f"{name}: y_test")
    if labels.dtype.kind != test_labels.dtype.kind:
        raise ValueError(
            f"{name}: y_train holds {labels.tolist()[0]!r} and y_test {test_labels.tolist()[0]!r}; "
            "labels are all whole numbers or all text"
        )
    known, classes = np.unique(labels, return_inverse=True)
    if known.size < 2:
        raise ValueError(f"{name}: y_train holds the one label {known[0]}; it takes two classes")
    if (strange := ~np.isin(test_labels, known)).any():
        numbers = labels.dtype.kind in "iu" and known.size > MANY_LABELS
        hint = f"; for numbers instead of {known.size} classes use --task regression"
        raise ValueError(
            f"{name}: y_test holds label {test_labels[strange][0]}, which has no training example"
            f"{hint if numbers else ''}"
        )
    if label_names is None:
        label_names = [str(label) for label in known]
    if len(label_names) != known.size:
        raise ValueError(f"{name}: {len(label_names)} label names for {known.size} classes")
    return {
        "y_train": classes.astype(np.int64),
        "y_test": np.searchsorted(known, test_labels).astype(np.int64),
        "classes": int(known.size),
        "label_names": tuple(label_names),
        "labels": () if known.tolist() == list(range(known.size)) else tuple(known.tolist()),
    }


def _named_clients(
    train: ArrayLike, test: ArrayLike, name: str, lengths: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of a data set that follow from the client of each example."""
    ids = _labels(train, f"{name}: client_train", "ids")
    test_ids = _labels(test, f"{name}: client_test", "ids")
    for part, column, length in (("train", ids, lengths[0]), ("test", test_ids, lengths[1])):
        if len(column) != length:
            raise ValueError(
                f"{name}: x_{part} has {length} examples and client_{part} {len(column)} ids"
            )
    if ids.dtype.kind != test_ids.dtype.kind:
        raise ValueError(
            f"{name}: client_train holds {ids.tolist()[0]!r} and client_test "
            f"{test_ids.tolist()[0]!r}; ids are all whole numbers or all text"
        )
    known, index = np.unique(ids, return_inverse=True)
    for what, some, others in (("test", known, test_ids), ("training", test_ids, known)):
        if (without := some[~np.isin(some, others)]).size:
            raise ValueError(f"{name}: client {without.tolist()[0]!r} has no {what} examples")
    return {
        "clients": (index.astype(np.int64), np.searchsorted(known, test_ids).astype(np.int64)),
        "client_names": tuple(str(one) for one in known.tolist()),
    }


def standardised(
    x_train: NDArray[Any], x_test: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return features with mean 0 and deviation 1 on the training examples.

    The last axis has the features; a feature that does not vary becomes 0.

    >>> standardised(np.array([[0.0], [2.0]]), np.array([[4.0]]))
    (array([[-1.],
           [ 1.]]), array([[3.]]))
    """
    axes = tuple(range(x_train.ndim - 1))
    mean = x_train.mean(axis=axes, dtype=np.float64)
    deviation = x_train.std(axis=axes, dtype=np.float64)
    deviation[deviation == 0.0] = 1.0
    return (x_train - mean) / deviation, (x_test - mean) / deviation


def from_npz(path: str | Path, *, task: Task = "classification") -> Dataset:
    """Return the user's data set from an .npz file with x_train, y_train, x_test and y_test.

    The file may also have client_train and client_test, the client of each example, and vocabulary,
    a whole number, where features are token ids below it. What the arrays may be is what
    `from_arrays` takes; object arrays (pickles) are refused.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
    >>> np.savez(path, x_train=np.eye(2), y_train=[0, 1], x_test=np.eye(2), y_test=[0, 1])
    >>> from_npz(path).classes
    2
    """
    arrays = read_arrays(path)
    found = [name in arrays for name in CLIENT_ARRAYS]
    if any(found) and not all(found):
        there, missing = CLIENT_ARRAYS if found[0] else CLIENT_ARRAYS[::-1]
        raise ValueError(f"{path}: {missing} is missing, but there is {there}")
    clients = (arrays["client_train"], arrays["client_test"]) if all(found) else None
    made = from_arrays(
        *(arrays[name] for name in ARRAYS),
        name=str(path),
        source=str(path),
        task=task,
        clients=clients,
    )
    if "vocabulary" not in arrays:
        return made
    try:
        size = check_int("vocabulary", arrays["vocabulary"].item(), minimum=1)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return made.with_vocabulary(size)


def read_arrays(
    path: str | Path, required: Sequence[str] = ARRAYS, optional: Sequence[str] = OPTIONAL
) -> dict[str, NDArray[Any]]:
    """Return arrays of the user's .npz file; ValueError says what is wrong with it."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: it is a folder, a pipe or a device, not an .npz file")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file{did_you_mean_path(path)}")
    try:
        with path.open("rb") as file:
            held = names_in_npz(file)
            return read_npz(file, [*required, *(name for name in optional if name in held)])
    except Unreadable as error:
        raise ValueError(f"{path}: {error}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read, {error.strerror or error}") from error
    except MemoryError as error:
        raise ValueError(f"{path}: its arrays are larger than memory") from error


def features_of(x: NDArray[Any], what: str) -> Features:
    """Return examples as rows, uint8 or float32; `what` names the array in errors.

    >>> features_of(np.zeros((2, 3, 4)), "x").shape
    (2, 12)
    """
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


def _values(y: ArrayLike, what: str) -> NDArray[np.float64]:
    """Return the values of a regression as float64."""
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.size == 0:
        raise ValueError(f"{what} is empty")
    if values.ndim != 1:
        raise ValueError(f"{what} has shape {values.shape}, not one value for each example")
    if values.dtype.kind not in "buif":
        raise ValueError(f"{what} holds {values[0]!s}; values of a regression are numbers")
    numbers = values.astype(np.float64)
    if not (finite := np.isfinite(numbers.astype(np.float32))).all():
        where = int(np.argmin(finite))
        raise ValueError(f"{what} holds {values[where]} at {where}; values are finite in float32")
    return numbers


def _labels(y: ArrayLike, what: str, words: str = "labels") -> NDArray[np.int64] | NDArray[np.str_]:
    """Return labels as int64 or as text; floats that are whole numbers and ASCII bytes will do."""
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.size == 0:
        raise ValueError(f"{what} is empty")
    if labels.ndim != 1:
        raise ValueError(f"{what} has shape {labels.shape}, not one entry for each example")
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
        raise ValueError(f"{what} holds {labels[0]!s}; {words} are whole numbers or text")
    limit = 2**53  # beyond it, floats are no longer exact
    whole = (labels == np.floor(labels)) & (labels >= -limit) & (labels <= limit)
    if not whole.all():
        where = int(np.argmin(whole))
        rule = f"{words} are whole numbers from -2^53 to 2^53"
        if words == "labels":
            rule += ", or any numbers if the task is regression"
        raise ValueError(f"{what} holds {labels[where]} at {where}; {rule}")
    return labels.astype(np.int64)
