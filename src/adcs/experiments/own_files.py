"""Files of the user that settings name: schedulers, models, local training, aggregation, traces.

A run's config holds the SHA-256 of each Python file, under `own_files`: one for each version that
its results are of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adcs.experiments.specs import split


def own_files(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the content of each file that settings name, by path: `file.py:Class` or a path.

    The data is not among them: it travels as arrays.

    >>> own_files({"schedulers": {"Uniform": "Uniform"}, "data": {"name": "mine.npz"}})
    {}
    """
    found: dict[str, bytes] = {}
    for text in _texts({key: value for key, value in config.items() if key != "data"}):
        path = Path(file_of(text))
        if path.suffix and path.is_file():
            found[file_of(text)] = path.read_bytes()
    return found


def code_versions(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the SHA-256 of each Python file that settings name, by path, as a list of one.

    >>> code_versions({"schedulers": {"Uniform": "Uniform"}})
    {}
    """
    return {
        path: [hashlib.sha256(content).hexdigest()]
        for path, content in own_files(config).items()
        if path.endswith(".py")
    }


def file_of(text: str) -> str:
    """Return the file that a setting names, if it names one.

    >>> file_of("b.py:Mine(k=1)"), file_of("trace.csv")
    ('b.py', 'trace.csv')
    """
    return split(text)[0] or text.strip()


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts among settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)
