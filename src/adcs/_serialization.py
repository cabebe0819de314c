"""Serialises a scheduler's state: JSON and plain arrays, no pickle."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from adcs._npz import read_npz


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
    """Return the state from the bytes of `pack`; raise ValueError for other bytes.

    >>> unpack(b"bytes of another kind")
    Traceback (most recent call last):
    ...
    ValueError: not a packed scheduler state: it is not an .npz file
    """
    try:
        arrays = read_npz(io.BytesIO(data))
        tree = json.loads(arrays.pop("json").tobytes())
        if not isinstance(tree, dict):
            raise ValueError("its JSON is not an object")
        return {key: _fill(item, arrays) for key, item in tree.items()}
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a packed scheduler state: {error}") from error


def _fill(value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Return a value in which references to arrays are replaced by the arrays."""
    if isinstance(value, dict):
        if "__array__" in value:
            return arrays[value["__array__"]]
        return {key: _fill(item, arrays) for key, item in value.items()}
    return [_fill(item, arrays) for item in value] if isinstance(value, list) else value
