"""Data of the user's own clients: from Python, from a folder with a file for each, from LEAF.

>>> x, y = np.eye(4), [0, 1, 0, 1]
>>> data = from_clients({"ann": ((x, y), (x, y)), "bob": ((x[:2], y[:2]), (x, y))})
>>> data.client_names, data.clients[0]
(('ann', 'bob'), array([0, 0, 0, 0, 1, 1]))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._validation import check_number
from adcs.simulation.datasets.columns import LABEL, SUFFIXES, columns_of, read_table
from adcs.simulation.datasets.dataset import (
    ARRAYS,
    Dataset,
    Task,
    features_of,
    from_arrays,
    from_npz,
    read_arrays,
)

TEST_FRACTION = 0.2
"""The part of a client's examples that are for testing, where the data do not say."""

PARTS = ("train", "test")

Part = tuple[NDArray[Any], NDArray[Any]]


def from_clients(
    clients: Mapping[Any, Any],
    *,
    name: str = "data",
    task: Task = "classification",
    features: str | Sequence[str] | None = None,
    label: str = LABEL,
    test_fraction: float = TEST_FRACTION,
    scale: float | None = None,
    vocabulary: int | None = None,
    source: str = "memory",
) -> Dataset:
    """Return a data set of the data of each client.

    Parameters
    ----------
    clients : mapping
        For each client id, whole numbers or text, its data: a pair of training and test data, or a
        mapping with "train" and "test", or training data alone, of which a part is taken for
        testing. Each of these is a pair of arrays (x, y), or a table: a `datasets.Dataset` of
        Hugging Face, which a partition of flwr-datasets is too.
    name : str
        What error messages and records call the set.
    task : {"classification", "regression"}
    features : str or sequence of str, optional
        The columns of tables that are features; by default all but the label.
    label : str
        The column of tables that has the labels.
    test_fraction : float
        The part taken for testing, of clients that have no test data.
    scale : float, optional
        What features are multiplied by; 1/255 for uint8 by default, 1 for all else.
    vocabulary : int, optional
        For text: features are token ids below this number.
    source : str
        Where the data came from.

    Raises
    ------
    ValueError
        If something is wrong, with the client and the value.

    Examples
    --------
    >>> table = {"height": [1.5, 0.5, 1.4], "label": ["cat", "dog", "cat"]}
    >>> data = from_clients({"ann": {"train": table, "test": table}})
    >>> data.x_train.shape, data.label_names
    ((3, 1), ('cat', 'dog'))
    """
    check_number("test_fraction", test_fraction, above=0, below=1)
    if not clients:
        raise ValueError(f"{name}: there are no clients")
    if len({isinstance(client, str) for client in clients}) > 1:
        raise ValueError(f"{name}: ids of clients are all whole numbers or all text")
    parts: dict[str, list[Part]] = {part: [] for part in PARTS}
    wanted = [features] if isinstance(features, str) else features
    for position, (client, data) in enumerate(clients.items()):
        who = f"{name}: client {client!r}"
        train, test = _train_and_test(data, who)
        pair = [_pair(part, who, wanted, label) for part in (train, test) if part is not None]
        if len(pair) == 1:
            pair = _split(pair[0], test_fraction, position, who)
        for part, (x, y) in zip(PARTS, pair, strict=True):
            if len(y) == 0:
                kind = "training" if part == "train" else "test"
                raise ValueError(f"{who} has no {kind} examples")
            features_of(x, f"{who}: x_{part}")
            _check_alike(parts, x, y, who, list(clients))
            parts[part].append((x, y))
    ids = list(clients)
    columns: dict[str, Any] = {}
    for part, pairs in parts.items():
        columns[f"x_{part}"] = np.concatenate([x for x, _ in pairs])
        columns[f"y_{part}"] = np.concatenate([y for _, y in pairs])
    made = from_arrays(
        **columns,
        name=name,
        source=source,
        task=task,
        scale=scale if vocabulary is None else 1.0,
        clients=tuple(  # type: ignore[arg-type]
            np.repeat(np.array(ids), [len(y) for _, y in pairs]) for pairs in parts.values()
        ),
    )
    return made if vocabulary is None else made.with_vocabulary(vocabulary)


def _train_and_test(data: Any, who: str) -> tuple[Any, Any]:
    """Return a client's training and test data; test data None if there is none."""
    if isinstance(data, Mapping):
        if "train" not in data:
            raise ValueError(f"{who} has {', '.join(map(str, data)) or 'nothing'}, but no 'train'")
        return data["train"], data.get("test")
    if columns_of(data) is not None:
        return data, None
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    raise ValueError(f"{who} has a {type(data).__name__}, not a pair of training and test data")


def _pair(part: Any, who: str, features: Sequence[str] | None, label: str) -> Part:
    """Return training or test data as a pair of arrays."""
    columns = columns_of(part)
    if columns is not None:
        return _from_columns(columns, who, features, label)
    if isinstance(part, (tuple, list)) and len(part) == 2:
        x, y = np.asarray(part[0]), np.asarray(part[1])
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            shapes = f"{x.shape} and {y.shape}"
            raise ValueError(f"{who}: x and y have shapes {shapes}, not one entry for each example")
        return x, y
    raise ValueError(f"{who} has a {type(part).__name__}, not a pair of x and y or a table")


def _from_columns(
    columns: Mapping[str, NDArray[Any]], who: str, features: Sequence[str] | None, label: str
) -> Part:
    """Return the features and labels of a table."""
    if label not in columns:
        raise ValueError(f"{who}: there is no column {label!r}; there are {', '.join(columns)}")
    wanted = [name for name in columns if name != label] if features is None else list(features)
    if not wanted:
        raise ValueError(f"{who}: there is no column but {label!r}")
    for name in wanted:
        if name not in columns:
            raise ValueError(f"{who}: there is no column {name!r}; there are {', '.join(columns)}")
        if columns[name].dtype.kind not in "buif":
            held = columns[name]
            first = f"{held.flat[0]!s:.40}" if held.size else "nothing"
            raise ValueError(f"{who}: column {name!r} holds {first}; features are numbers")
    y = columns[label]
    if len(y) == 0:
        raise ValueError(f"{who} has a table without examples")
    if len(wanted) == 1 and columns[wanted[0]].ndim > 1:
        return columns[wanted[0]], y
    return np.column_stack([columns[name].reshape(len(y), -1) for name in wanted]), y


def _split(part: Part, fraction: float, position: int, who: str) -> list[Part]:
    """Return training and test data, test examples chosen at random, by the client's position."""
    x, y = part
    if len(y) < 2:
        raise ValueError(f"{who} has {len(y)} examples and no test data; a split takes two")
    count = min(max(1, round(fraction * len(y))), len(y) - 1)
    test = np.zeros(len(y), dtype=bool)
    test[np.random.default_rng([position, 0x7E57]).permutation(len(y))[:count]] = True
    return [(x[~test], y[~test]), (x[test], y[test])]


def _check_alike(
    parts: Mapping[str, list[Part]],
    x: NDArray[Any],
    y: NDArray[Any],
    who: str,
    ids: Sequence[Any],
) -> None:
    """Raise ValueError unless a client's data are of the form of the first client's."""
    if not parts["train"]:
        return
    first, labels = parts["train"][0]
    other = f"those of client {ids[0]!r}"
    if x.shape[1:] != first.shape[1:]:
        raise ValueError(f"{who}: examples have shape {x.shape[1:]}, {other} {first.shape[1:]}")
    if (x.dtype == np.uint8) != (first.dtype == np.uint8):
        raise ValueError(f"{who}: features are {x.dtype}, {other} {first.dtype}; uint8 is scaled")
    if (y.dtype.kind in "US") != (labels.dtype.kind in "US"):
        kinds = ["text" if one.dtype.kind in "US" else "numbers" for one in (y, labels)]
        raise ValueError(f"{who}: labels are {kinds[0]}, {other} {kinds[1]}")


def from_partitions(partitions: Any, **settings: Any) -> Dataset:
    """Return the data set of a partitioner or a federated data set of flwr-datasets.

    A federated data set with a partitioner for "test" too gives each client its test partition;
    else a part of each partition is for testing.

    Parameters
    ----------
    partitions
        A partitioner with its `dataset` set, or a `FederatedDataset`.
    **settings
        Those of `from_clients`: `features`, `label`, `task`, `test_fraction`, ...

    Examples
    --------
    >>> class Halves:  # Anything with these two names is a partitioner.
    ...     num_partitions = 2
    ...     def load_partition(self, i):
    ...         return {"train": {"a": [1.0, 2.0, 3.0], "label": [0, 1, i]}}
    >>> from_partitions(Halves(), test_fraction=0.3).client_names
    ('0', '1')
    """
    if hasattr(partitions, "partitioners"):
        made = partitions.partitioners
        # A partitioner is given its data when its first partition is loaded.
        first = {split: partitions.load_partition(0, split) for split in made}
        if "train" not in first:
            raise ValueError(f"the federated data set has {', '.join(first)}, but no 'train'")
        splits = [split for split in PARTS if split in first]
        number = made["train"].num_partitions
        for split in splits:
            if made[split].num_partitions != number:
                raise ValueError(
                    f"there are {number} partitions for 'train' and "
                    f"{made[split].num_partitions} for {split!r}"
                )
        clients = {
            i: {split: partitions.load_partition(i, split) for split in splits}
            for i in range(number)
        }
    elif hasattr(partitions, "load_partition"):
        clients = {i: partitions.load_partition(i) for i in range(partitions.num_partitions)}
    else:
        raise ValueError(
            f"partitions is a {type(partitions).__name__}, not a partitioner or a federated data "
            "set; from_clients takes the data of each client"
        )
    return from_clients(clients, **settings)


def from_folder(
    folder: str | Path,
    *,
    task: Task = "classification",
    label: str = LABEL,
    test_fraction: float = TEST_FRACTION,
) -> Dataset:
    """Return the data set of a folder with files for each client: .npz, .csv or .parquet.

    The name of a file is the client's id. Training and test data are told apart by folders
    (``train/ann.csv`` and ``test/ann.csv``) or by names (``ann_train.csv`` and ``ann_test.csv``);
    an .npz file may hold both, as x_train, y_train, x_test and y_test. Otherwise a file is all data
    of its client, and a part of it is for testing.

    Parameters
    ----------
    folder : str or Path
    task : {"classification", "regression"}
    label : str
        The column of .csv and .parquet files that has the labels; all others are features. In .npz
        files they are x and y.
    test_fraction : float
        The part of a client's examples that are for testing, where the files do not say.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("ann", "bob"):
    ...     text = "height,label\\n1.5,cat\\n0.5,dog\\n1.4,cat\\n0.6,dog\\n"
    ...     _ = (folder / f"{name}.csv").write_text(text)
    >>> from_folder(folder, test_fraction=0.5).client_names
    ('ann', 'bob')
    """
    folder = Path(folder)
    clients: dict[str, Any] = {}
    for client, files in _client_files(folder).items():
        try:
            if "all" in files:
                clients[client] = _read_all(files["all"], label)
            else:
                clients[client] = {part: _read(path, label) for part, path in files.items()}
        except ValueError as error:
            raise ValueError(f"{folder}: client {client!r}: {error}") from error
    columns = {client: _columns(data["train"]) for client, data in clients.items()}
    first, expected = next(iter(columns.items()))
    for client, names in columns.items():
        if names != expected:
            raise ValueError(
                f"{folder}: client {client!r} has the columns {', '.join(names)}, client "
                f"{first!r} {', '.join(expected)}"
            )
    settings: dict[str, Any] = {"task": task, "label": label, "test_fraction": test_fraction}
    return from_clients(clients, name=str(folder), source=str(folder), **settings)


def _columns(table: Any) -> list[str]:
    """Return the columns of a table, none of arrays."""
    return list(table) if isinstance(table, Mapping) else []


def _client_files(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files of each client: by part, or under "all"."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    nested = all((folder / part).is_dir() for part in PARTS)
    places = [(part, folder / part) for part in PARTS] if nested else [("all", folder)]
    found: dict[str, dict[str, Path]] = {}
    for place, inside in places:
        for path in sorted(inside.iterdir()):
            if path.suffix.lower() not in SUFFIXES or not path.is_file():
                continue
            client, part = path.stem, place
            for ending in PARTS:
                if not nested and path.stem.endswith((f"_{ending}", f"-{ending}", f".{ending}")):
                    client, part = path.stem[: -len(ending) - 1], ending
            if part in found.setdefault(client, {}):
                raise ValueError(f"{folder}: client {client!r} has two files, {path.name} is one")
            found[client][part] = path
    if not found:
        kinds = ", ".join(SUFFIXES)
        raise ValueError(f"{folder}: it has no files of clients ({kinds})")
    for client, files in found.items():
        if "all" in files and len(files) > 1:
            raise ValueError(f"{folder}: client {client!r} has a file beside those for its parts")
        for part, kind in zip(PARTS, ("training", "test"), strict=True):
            if "all" not in files and part not in files:
                raise ValueError(f"{folder}: client {client!r} has no {kind} data")
    return found


def _read(path: Path, label: str) -> Any:
    """Return the training or test data of a file: a table or a pair of arrays."""
    if path.suffix.lower() != ".npz":
        return read_table(path, label)
    held = read_arrays(path, ("x", "y"), ())
    return held["x"], held["y"]


def _read_all(path: Path, label: str) -> dict[str, Any]:
    """Return all data of a file, as training data unless the file tells test data apart."""
    if path.suffix.lower() == ".npz":
        held = read_arrays(path, (), ARRAYS)
        if len(held) == len(ARRAYS):
            return {part: (held[f"x_{part}"], held[f"y_{part}"]) for part in PARTS}
    return {"train": _read(path, label)}


def from_leaf(folder: str | Path, *, task: Task = "classification") -> Dataset:
    """Return the data set of a folder of LEAF's: JSON files in its folders train and test.

    A file has `users` and `user_data`, with x and y of each user. Examples are lists of numbers, or
    texts of one length, whose characters become ids; labels are numbers or text.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> data = {"users": ["f0"], "num_samples": [2], "user_data": {"f0": {"x": ["ab", "ba"],
    ...     "y": ["a", "b"]}}}
    >>> for part in ("train", "test"):
    ...     (folder / part).mkdir()
    ...     _ = (folder / part / "data.json").write_text(json.dumps(data))
    >>> from_leaf(folder).x_train
    array([[0, 1],
           [1, 0]], dtype=uint8)
    """
    folder = Path(folder)
    parts = {part: _leaf_users(folder / part) for part in PARTS}
    for part, other, kind in (("train", "test", "test"), ("test", "train", "training")):
        if missing := [user for user in parts[part] if user not in parts[other]]:
            raise ValueError(f"{folder}: client {missing[0]!r} has no {kind} data")
    vocabulary: dict[str, int] | None = None
    if any(isinstance(x, str) for held in parts["train"].values() for x in held["x"][:1]):
        characters = sorted({c for held in parts["train"].values() for x in held["x"] for c in x})
        vocabulary = {c: i for i, c in enumerate(characters)}
        if len(vocabulary) > 256:
            raise ValueError(f"{folder}: {len(vocabulary)} characters; at most 256 have an id")
    clients = {
        user: {part: _leaf_pair(parts[part][user], vocabulary, folder, user) for part in PARTS}
        for user in parts["train"]
    }
    size = None if vocabulary is None else len(vocabulary)
    return from_clients(clients, name=str(folder), source=str(folder), task=task, vocabulary=size)


def _leaf_users(folder: Path) -> dict[str, Any]:
    """Return the data of each user in a folder of JSON files."""
    found: dict[str, Any] = {}
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"{folder}: it has no .json files")
    for path in paths:
        try:
            held = json.loads(path.read_bytes())
            users = {str(user): held["user_data"][user] for user in held["users"]}
            wrong = [user for user, data in users.items() if len(data["x"]) != len(data["y"])]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"{path}: it is not in LEAF's format ({what})") from error
        if wrong:
            raise ValueError(f"{path}: x and y of client {wrong[0]!r} differ in length")
        if twice := [user for user in users if user in found]:
            raise ValueError(f"{path}: client {twice[0]!r} is in another file too")
        found |= users
    return found


def _leaf_pair(
    held: Mapping[str, Any], vocabulary: Mapping[str, int] | None, folder: Path, user: str
) -> Part:
    x, y = held["x"], held["y"]
    if vocabulary is None:
        try:
            return np.asarray(x), np.asarray(y)
        except ValueError:
            raise ValueError(
                f"{folder}: client {user!r}: examples are not lists of numbers of one length"
            ) from None
    if len({len(text) for text in x}) > 1:
        raise ValueError(f"{folder}: client {user!r}: texts differ in length")
    try:
        ids = [[vocabulary[c] for c in text] for text in x]
    except KeyError as error:
        raise ValueError(
            f"{folder}: client {user!r}: the character {error.args[0]!r} is in no training example"
        ) from None
    return np.array(ids, dtype=np.uint8), np.asarray(y)


def _is_leaf(folder: Path) -> bool:
    return all(any((folder / part).glob("*.json")) for part in PARTS)


def from_path(path: Path, *, task: Task = "classification", **settings: Any) -> Dataset:
    """Return the user's data set: an .npz file, a folder of LEAF's, or one of clients' files."""
    if not path.is_dir() or path.suffix == ".npz":
        return from_npz(path, task=task)
    if _is_leaf(path):
        return from_leaf(path, task=task)
    return from_folder(path, task=task, **settings)


def count(path: Path) -> int | None:
    """Return how many clients of its own the user's data set has, None for none.

    Names of files are counted, not read; of an .npz file the ids are read alone.
    """
    if path.is_dir() and path.suffix != ".npz":
        return len(_leaf_users(path / "train") if _is_leaf(path) else _client_files(path))
    if not path.is_file():
        return None
    held = read_arrays(path, (), ("client_train",))
    return int(np.unique(held["client_train"]).size) if held else None
