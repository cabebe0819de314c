"""A scheduler's state as bytes: JSON and plain arrays, no pickle."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np


def pack(state: dict[str, Any]) -> bytes:
    """Return a state (JSON values and NumPy arrays, nested in dicts and lists) as bytes.

    >>> unpack(pack({"server_round": 3, "kernel": {"rows": np.eye(2)}}))["kernel"]["rows"]
    array([[1., 0.],
           [0., 1.]])
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = f"array{len(arrays)}"
            arrays[name] = value
            return {"__array__": name}
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items()}
        return [strip(item) for item in value] if isinstance(value, (list, tuple)) else value

    text = json.dumps(strip(state), allow_nan=False)
    buffer = io.BytesIO()
    np.savez(buffer, json=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, Any]:
    """Return the state that `pack` made bytes of."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        tree: dict[str, Any] = json.loads(arrays["json"].tobytes())
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"not a packed scheduler state: {error}") from error

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            if "__array__" in value:
                return arrays[value["__array__"]]
            return {key: fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    return {key: fill(item) for key, item in tree.items()}
