"""Python objects as settings of an experiment: schedulers and models as specs, data as files.

The config of a run holds text and numbers only, so that worker processes and a resume make every
object again. An object therefore becomes the spec from which it can be made.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adcs import schedulers as package
from adcs.experiments.specs import NAMES, absolute, make_scheduler
from adcs.run_folder import fingerprint, write_atomically
from adcs.schedulers.base import Scheduler
from adcs.simulation.datasets import Dataset, available, load

WORDS = ("name", "source", "label_names")
"""Attributes of a data set that have no effect on a run."""

Schedulers = str | Scheduler | Iterable[str | Scheduler] | Mapping[str, str | Scheduler]
"""Schedulers to compare: objects or specs, one, several, or several by label."""


def scheduler_specs(given: Schedulers) -> dict[str, str]:
    """Return the specs of schedulers by label.

    In a list, a spec or the repr of an object, without empty brackets, is its own label.

    >>> from adcs import ADCS
    >>> scheduler_specs(["Uniform", ADCS(theta=0.5)])
    {'Uniform': 'Uniform', 'ADCS(theta=0.5)': 'ADCS(theta=0.5)'}
    >>> scheduler_specs({"ours": ADCS(theta=0.5)})
    {'ours': 'ADCS(theta=0.5)'}
    """
    if isinstance(given, (str, Scheduler)):
        given = [given]
    if isinstance(given, Mapping):
        return {str(label): scheduler_spec(each) for label, each in given.items()}
    if not isinstance(given, Iterable):
        raise ValueError(f"schedulers must be a list of schedulers or specs, got {given!r}")
    found: dict[str, str] = {}
    for each in given:
        label = each.strip() if isinstance(each, str) else repr(each).removesuffix("()")
        if label in found:
            raise ValueError(f"schedulers must have distinct labels, got {label!r} twice")
        found[label] = scheduler_spec(each)
    return found


def scheduler_spec(given: str | Scheduler) -> str:
    """Return the spec of a scheduler, or a spec with the absolute path of its file.

    Settings count, evidence does not: a scheduler that has observed reports is made anew. The seed
    of each run is the scheduler's, unless the scheduler has a seed other than 0.

    >>> from adcs import DivFL
    >>> scheduler_spec(DivFL(refresh_every=5))
    'DivFL(refresh_every=5)'
    """
    if isinstance(given, str):
        return absolute(given)
    if not isinstance(given, Scheduler):
        wanted = "a scheduler such as adcs.ADCS(theta=0.5), or a spec such as 'ADCS(theta=0.5)'"
        called = "; a class has to be called" if isinstance(given, type) else ""
        raise ValueError(f"schedulers must each be {wanted}, got {given!r}{called}")
    kind = type(given)
    ours = kind.__name__ in NAMES and kind is getattr(package, kind.__name__)
    spec = repr(given) if ours else object_spec(given, f"scheduler {given!r}")
    if repr(make_scheduler(spec, seed=0)) != repr(given):
        raise ValueError(
            f"scheduler {given!r} cannot be made again from its repr, as each run does; give its "
            "settings to super().__init__, or to the class by name"
        )
    return spec


def object_spec(given: Any, name: str) -> str:
    """Return the spec of a user's own class, function or object; `name` begins errors.

    The repr of an object is to be the call that makes it.

    >>> from fractions import Fraction
    >>> object_spec(Fraction, "model")
    '...fractions.py:Fraction'
    >>> object_spec("mine.py:Net", "model").endswith("mine.py:Net")
    True
    >>> object_spec(3, "model")
    Traceback (most recent call last):
    ...
    ValueError: model 3 cannot be made again from its repr, as worker processes do; give a spec, or
    a class or function
    """
    if isinstance(given, str):
        return absolute(given)
    if isinstance(given, type) or inspect.isfunction(given):
        return f"{_importable_from(given, name)}:{given.__name__}"
    try:
        call: Any = ast.parse(repr(given), mode="eval").body
        is_call = isinstance(call, ast.Call) and ast.unparse(call.func) == type(given).__name__
    except (SyntaxError, ValueError):
        is_call = False
    if not is_call:
        raise ValueError(
            f"{name} {given!r} cannot be made again from its repr, as worker processes do; give a "
            "spec, or a class or function"
        )
    return f"{_importable_from(type(given), name)}:{given!r}"


def _importable_from(kind: Callable[..., Any], name: str) -> str:
    """Return the file or module from which a process can import a class or function."""
    if "." in kind.__qualname__:
        raise ValueError(
            f"{name}: {kind.__qualname__} is defined inside a function or class, where worker "
            "processes cannot import it; define it at the top level of a file"
        )
    module = sys.modules.get(kind.__module__)
    spec = getattr(module, "__spec__", None)
    module_name = kind.__module__ if kind.__module__ != "__main__" else getattr(spec, "name", "")
    if "." in module_name:  # Part of a package, whose modules may import each other.
        return module_name
    file = getattr(module, "__file__", None)
    if file is not None and file.endswith(".py"):
        return str(Path(file).resolve())
    if module_name:
        return module_name
    raise ValueError(
        f"{name}: {kind.__name__} is defined in a notebook or an interactive session, where worker "
        "processes cannot import it; write it to a file (%%writefile mine.py) and import it"
    )


def data_settings(data: Any, base: Path) -> dict[str, Any]:
    """Return the settings of data: a name, a path, a `Dataset` or a `Federation`.

    A data set in memory that is not one of the named ones is saved to `base`, as an .npz file that
    is named after its fingerprint, so that runs on the same data share it.

    >>> data_settings("digits", Path("runs"))
    {'data': 'digits'}
    """
    partition = getattr(data, "partition", None)
    if partition is not None and isinstance(getattr(data, "dataset", None), Dataset):
        settings = {"clients": len(partition.train), "partition": "natural"}
        dataset = with_clients(data.dataset, partition)
        return {**data_settings(dataset, base), **settings, "batch_size": data.batch_size}
    if isinstance(data, Dataset):
        return {"data": _named(data) or str(_save(data, base).resolve())}
    if not isinstance(data, (str, Path)):
        raise ValueError(
            "data must be the name of a data set, the path of a file, a Dataset or a Federation, "
            f"got {data!r}"
        )
    names = [entry.name for entry in available()]
    if isinstance(data, str) and data.partition(":")[0] in names:
        return {"data": data}
    is_path = isinstance(data, Path) or Path(data).suffix or Path(data).exists()
    return {"data": str(Path(data).resolve()) if is_path else data}


def with_clients(dataset: Dataset, partition: Any) -> Dataset:
    """Return a data set whose natural clients are those of a partition."""
    if "clients" not in {field.name for field in dataclasses.fields(Dataset)}:
        raise ValueError("data must be a Dataset or a path: clients of a Federation are not kept")
    columns = []
    for name, parts, labels in (
        ("training", partition.train, dataset.y_train),
        ("test", partition.test, dataset.y_test),
    ):
        column = np.full(len(labels), -1, dtype=np.int64)
        for client, rows in enumerate(parts):
            if (column[rows] >= 0).any():
                raise ValueError(f"data has {name} examples that belong to several clients")
            column[rows] = client
        columns.append(column)
    train, test = (column >= 0 for column in columns)
    changes: dict[str, Any] = {"clients": (columns[0][train], columns[1][test])}
    return dataclasses.replace(
        dataset,
        x_train=dataset.x_train[train],
        y_train=dataset.y_train[train],
        x_test=dataset.x_test[test],
        y_test=dataset.y_test[test],
        **changes,
    )


def _named(data: Dataset) -> str | None:
    """Return the name of a data set in memory, if it is what that name loads."""
    if data.name.partition(":")[0] not in [entry.name for entry in available()]:
        return None
    try:
        held = load(data.name)
    except (ValueError, OSError):
        return None
    return data.name if not _differences(data, held) else None


def _save(data: Dataset, base: Path) -> Path:
    """Save a data set as an .npz file in a folder; ValueError if the file does not hold all."""
    arrays = _arrays(data)
    path = base / f"data-{fingerprint(*arrays.values())[:16]}.npz"
    if not path.exists():
        file = io.BytesIO()
        np.savez(file, **arrays)
        write_atomically(path, file.getvalue())
    held = load(path)
    rows = {name: arrays[name].reshape(len(arrays[name]), -1) for name in ("x_train", "x_test")}
    lost = _differences(dataclasses.replace(data, scale=held.scale, **rows), held)
    if lost:
        path.unlink()
        raise ValueError(
            f"data {data.name!r} has {lost[0]}, which an .npz file does not hold; worker processes "
            "read the data from a file: give its name or path, or a data set without"
        )
    return path


def _arrays(data: Dataset) -> dict[str, Any]:
    """Return the arrays of the .npz file of a data set."""
    found: dict[str, Any] = {}
    for part in ("train", "test"):
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        if data.scale != (1 / 255 if x.dtype == np.uint8 else 1.0):
            x = (x * data.scale).astype(np.float32)
        found[f"x_{part}"] = x.reshape(len(x), *data.input_shape)
        found[f"y_{part}"] = np.array(data.labels)[y] if data.labels else y
    clients = getattr(data, "clients", None)
    if clients is not None:
        names = np.array(getattr(data, "client_names", ()) or range(1 + int(clients[0].max())))
        found |= {"client_train": names[clients[0]], "client_test": names[clients[1]]}
    return found


def _differences(data: Dataset, other: Dataset) -> list[str]:
    """Return the attributes in which two data sets differ, besides those without effect."""
    return [
        field.name
        for field in dataclasses.fields(Dataset)
        if field.name not in WORDS
        and not _same(getattr(data, field.name), getattr(other, field.name))
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
