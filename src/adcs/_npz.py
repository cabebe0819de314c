"""Reads arrays from .npz files; declared sizes are checked before memory is allocated.

NumPy's own reader allocates what an array's header declares, and raises errors of many kinds on
damaged files. This reader refuses files that declare more than they can hold, or more than memory
can hold, and files with Python objects (pickles). Every failure is a ValueError.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

DEFLATE_RATIO = 1032
"""The largest ratio of uncompressed to compressed bytes that Deflate can reach."""

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Unreadable(ValueError):
    """The reason why an .npz file cannot be read, without the file's name."""


def read_npz(source: BinaryIO, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name.

    Parameters
    ----------
    source
        The file, opened for reading in binary mode.
    names
        Which arrays to read; all by default.

    Raises
    ------
    Unreadable
        If the file is damaged, lacks an array, or declares more than memory can hold.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> np.savez(file, a=np.arange(3))
    >>> read_npz(file)
    {'a': array([0, 1, 2])}
    >>> read_npz(file, ["b"])
    Traceback (most recent call last):
    ...
    adcs._npz.Unreadable: b is missing; the file holds a
    """
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    single = source.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
    source.seek(0)
    if single:
        raise Unreadable("it is a single array, not an .npz file")
    try:
        archive = zipfile.ZipFile(source)
    except Exception as error:
        raise Unreadable("it is not an .npz file") from error
    with archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = list(members if names is None else names)
        for name in wanted:
            if name not in members:
                held = ", ".join(members) or "nothing"
                raise Unreadable(f"{name} is missing; the file holds {held}")
        left = memory()
        for name in wanted:
            left -= _declared(archive, name, members[name], size)
            if left < 0:
                raise Unreadable(f"{name} is larger than memory ({gigabytes(memory())})")
        return {name: _array(archive, name, members[name]) for name in wanted}


def names_in_npz(source: BinaryIO) -> list[str]:
    """Return the names of the arrays in an .npz file, none if it cannot be read.

    >>> import io
    >>> import numpy as np
    >>> file = io.BytesIO()
    >>> np.savez(file, a=np.arange(3))
    >>> names_in_npz(file), names_in_npz(io.BytesIO(b"no"))
    (['a'], [])
    """
    try:
        with zipfile.ZipFile(source) as archive:
            return [info.filename.removesuffix(".npy") for info in archive.infolist()]
    except Exception:  # `read_npz` says what is wrong.
        return []


def _declared(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo, size: int) -> int:
    """Return the size of an array by its header, in bytes; refuse one the file cannot hold."""
    ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATE_RATIO}.get(info.compress_type)
    if ratio is None or info.flag_bits & 1:
        raise Unreadable(f"{name} cannot be read, it is compressed or encrypted in an unknown way")
    try:
        with archive.open(info) as member:
            version = npy.read_magic(member)
            shape, _, dtype = HEADERS[version](member)
            start = member.tell()
    except Exception as error:  # Damaged headers fail in many ways: SyntaxError, TokenError, ...
        raise _damaged(name, error) from error
    if dtype.hasobject:
        raise Unreadable(
            f"{name} cannot be read, it holds Python objects (pickles); save it as numbers or, "
            "with astype(str), as text"
        )
    if dtype.kind == "V":
        raise Unreadable(
            f"{name} cannot be read, it is an array of {dtype}, not of numbers or text"
        )
    if min(shape, default=0) < 0:
        raise Unreadable(f"{name} declares the shape {shape}; lengths are at least 0")
    count: int = math.prod(map(int, shape))
    declared = count * dtype.itemsize
    if declared > memory():
        raise Unreadable(
            f"{name} declares {gigabytes(declared)}, more than the {gigabytes(memory())} of memory"
        )
    compressed = min(info.compress_size, size)
    holds = min(info.file_size, ratio * compressed) - start
    if declared != holds or (dtype.itemsize == 0 and count):
        raise Unreadable(f"{name} declares {declared} bytes, but the file holds {holds}")
    return declared


def _array(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> NDArray[Any]:
    try:
        with archive.open(info) as member:
            array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
            member.read()  # The checksum is compared at the end.
    except Exception as error:
        raise _damaged(name, error) from error
    if not is_unicode(array):
        raise Unreadable(f"{name} cannot be read, it is damaged (its text is not Unicode)")
    return array


def is_unicode(array: NDArray[Any]) -> bool:
    """Return whether an array holds no text, or text of Unicode characters alone.

    NumPy keeps any 32-bit numbers as characters, and Python fails to make a string of some.

    >>> is_unicode(np.array(["cat"])), is_unicode(np.array([2**31], "u4").view("U1"))
    (True, False)
    """
    if array.dtype.kind != "U" or array.dtype.itemsize == 0 or array.size == 0:
        return True
    codes = np.ascontiguousarray(array).view(f"{array.dtype.byteorder}u4")
    return not bool(((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any())


def _damaged(name: str, error: Exception) -> Unreadable:
    return Unreadable(f"{name} cannot be read, it is damaged ({type(error).__name__}: {error})")


def memory() -> int:
    """Return the memory limit of this process in bytes.

    >>> memory() > 2**20
    True
    """
    limits = [2**62]
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError):
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # "max" sets no limit
            limits.append(int(Path(path).read_text()))
    return min(limit for limit in limits if limit > 0)


def gigabytes(size: int) -> str:
    """Return a size as text.

    >>> gigabytes(3_250_000_000)
    '3.2 GB'
    """
    return f"{size / 1e9:,.1f} GB"
