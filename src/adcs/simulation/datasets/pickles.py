"""Pickled arrays, read without running what a pickle names.

A pickle may name any function and have it called. This reader admits arrays and plain containers
only: numbers, text, lists, tuples, dicts, and NumPy's arrays, types and scalars.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

ENCODINGS = ("latin1", "latin-1")


def _encode(text: str, encoding: str) -> bytes:
    """Stand in for the codec function by which Python 3 pickles bytes in protocol 2."""
    if encoding not in ENCODINGS:
        raise pickle.UnpicklingError(f"the encoding {encoding!r} is not admitted")
    return text.encode("latin1")


def _admitted() -> dict[tuple[str, str], Any]:
    multiarray = np.zeros(0).__reduce__()[0].__module__  # differs between versions of NumPy
    reconstruct = np.zeros(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    found: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }
    for module in {"numpy.core.multiarray", "numpy._core.multiarray", multiarray}:
        found[module, "_reconstruct"] = reconstruct
        found[module, "scalar"] = scalar
    return found


class _Unpickler(pickle.Unpickler):
    """Reads a pickle; refuses every name that is not admitted."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names, if it is admitted."""
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        """Refuse objects that are stored elsewhere."""
        raise pickle.UnpicklingError("it refers to another file")


ADMITTED = _admitted()


def read_pickle(data: bytes, what: str) -> Any:
    """Return the arrays of a pickle; OSError if it holds anything but arrays.

    Parameters
    ----------
    data
        The pickle.
    what
        The name of the file, for errors.

    Examples
    --------
    >>> read_pickle(pickle.dumps({"x": np.arange(3)}), "a.pkl")
    {'x': array([0, 1, 2])}
    >>> read_pickle(pickle.dumps(len), "a.pkl")
    Traceback (most recent call last):
    ...
    OSError: a.pkl is refused, it holds more than arrays (it names builtins.len)
    """
    try:
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # Damaged pickles fail in many ways.
        raise OSError(f"{what} is refused, it holds more than arrays ({error})") from error
