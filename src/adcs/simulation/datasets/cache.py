"""The folder that fetched data are kept in, for their owner alone."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._npz import read_npz
from adcs.run_folder import fingerprint, write_atomically

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]


class DataUnavailable(RuntimeError):
    """A data set is unavailable; the message says what was tried and how to get it by hand.

    >>> raise DataUnavailable("letter cannot be had: apt-get is not on this machine")
    Traceback (most recent call last):
    ...
    adcs.simulation.datasets.cache.DataUnavailable: letter cannot be had: apt-get is not on this
    machine
    """


def cache_folder() -> Path:
    """Return the folder that fetched data are kept in: $ADCS_CACHE, or `adcs` in the user's cache.

    >>> "ADCS_CACHE" in os.environ or cache_folder().name == "adcs"
    True
    """
    if named := os.environ.get("ADCS_CACHE"):
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "adcs"


def keep(target: Path, files: Mapping[str, bytes], name: str) -> str:
    """Write files into a folder of the cache and say so; if that fails, warn and go on.

    Parameters
    ----------
    target
        The folder.
    files
        Contents by file name.
    name
        The data set, for the warning.
    """
    try:
        make_private(target)
        for file, content in files.items():
            write_atomically(target / file, content)
    except OSError as error:
        log.warning("%s will be fetched again next time: %s", name, error)
        return f"not kept: {error}"
    log.info("kept in %s", target)
    return f"kept in {target}"


def make_private(folder: Path) -> None:
    """Make a folder and its parents, those that do not exist for their owner alone.

    An existing folder that everybody may write into is refused.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(0o700)  # whatever the umask is
    if folder.stat().st_mode & 0o002:
        raise OSError(f"{folder} may be written into by everybody")


def read_arrays(path: Path, expected: str) -> Arrays:
    """Return the arrays of an .npz file of the cache; OSError unless they have this fingerprint.

    >>> read_arrays(Path("no/such.npz"), "")
    Traceback (most recent call last):
    ...
    FileNotFoundError: there is no such file
    """
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    try:
        with path.open("rb") as file:
            arrays = read_npz(file)
    except ValueError as error:
        raise OSError(str(error)) from error
    check_arrays(arrays, expected)
    return arrays


def check_arrays(arrays: Mapping[str, NDArray[Any]], expected: str) -> None:
    """Raise OSError unless arrays, in the order of their names, have this fingerprint.

    >>> check_arrays({"x": np.zeros(3)}, "0123")
    Traceback (most recent call last):
    ...
    OSError: its content has SHA-256 f1ff0dfd951c…, not 0123…
    """
    found = fingerprint(*(arrays[name] for name in sorted(arrays)))
    if found != expected:
        raise OSError(f"its content has SHA-256 {found[:12]}…, not {expected[:12]}…")


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as the content of an .npz file.

    >>> npz_bytes({"x": np.zeros(3)})[:2]
    b'PK'
    """
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()
