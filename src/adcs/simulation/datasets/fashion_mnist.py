"""Fashion-MNIST: from a folder, the cache, a Debian package or the web, checked by SHA-256.

The sums are those of the uncompressed files: archives differ by compressor.
"""

from __future__ import annotations

import gzip
import logging
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs.simulation.datasets.cache import DataUnavailable, cache_folder, keep
from adcs.simulation.datasets.packages import apt_download, check_sha256, unpack_deb

log = logging.getLogger(__name__)

PACKAGE = "dataset-fashion-mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
PAGE = "https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion"
OFFICIAL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
SHA256 = {  # training images and labels, test images and labels
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
LARGEST = 47_040_016
"""Bytes of the largest of the four files: 60,000 images and a header."""

LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

Images = NDArray[np.uint8]


def candidate_folders(folder: str | Path | None = None) -> list[tuple[str, Path]]:
    """Return the folders on this machine that may hold the files, in the order they are tried.

    >>> [what for what, _ in candidate_folders("mine")]
    ['the folder given', 'the cache', "Debian's package"]
    """
    named = [] if folder is None else [("the folder given", Path(folder))]
    return [*named, ("the cache", cache_folder() / "fashion-mnist"), ("Debian's package", DEBIAN)]


def located(folder: str | Path | None = None) -> Path | None:
    """Return the first folder on this machine that has all four files, unchecked.

    >>> located() is None or located().is_dir()
    True
    """
    for _, candidate in candidate_folders(folder):
        try:
            for stem in SHA256:
                _find(stem, candidate)
        except OSError:
            continue
        return candidate
    return None


def _find(stem: str, folder: Path) -> Path:
    """Return the path of one of the four files, compressed or not; OSError where there is none."""
    for name in (stem + ".gz", stem):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"it has no {stem}.gz")


def _read(folder: Path) -> dict[str, Images]:
    """Return the four arrays of a folder, keyed by file; OSError says what is wrong with it."""
    arrays = {}
    for stem, expected in SHA256.items():
        path = _find(stem, folder)
        # The sums are of what is inside, so that is read first: no more of it than there can be.
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                data = file.read(LARGEST + 1)
        except (EOFError, zlib.error) as error:
            raise OSError(f"{path.name} is damaged ({error})") from error
        if len(data) > LARGEST:
            raise OSError(f"{path.name} holds more than {LARGEST:,} bytes")
        check_sha256(path.name, data, expected)
        # IDX: two zero bytes, the type (8 is uint8), the number of axes, then their lengths.
        axes = data[3]
        shape = np.frombuffer(data, ">i4", axes, offset=4)
        # A copy may lie on large pages, where single images are found faster than in `bytes`.
        images = np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
        images.flags.writeable = False
        arrays[stem] = images
    return arrays


def obtain(folder: str | Path | None = None) -> tuple[dict[str, Images], str]:
    """Return the four arrays and where they came from.

    Tried in this order: the folder given, the cache, Debian's package where it is installed, that
    package downloaded and unpacked without root, the official files. What was downloaded is kept
    in the cache.

    Raises
    ------
    DataUnavailable
        If every source failed.
    """
    tried = []
    for what, candidate in candidate_folders(folder):
        try:
            return _read(candidate), str(candidate)
        except OSError as error:
            tried.append(f"{what}, {candidate}: {error}")
            if what == "the folder given":
                log.warning("Fashion-MNIST is not in %s (%s); looking elsewhere", candidate, error)
    downloads: tuple[tuple[str, Callable[[Path], Path]], ...] = (
        (f"Debian's package {PACKAGE} by apt-get", _from_apt),
        ("the official files over https", _from_https),
    )
    for what, download in downloads:
        log.info("fetching Fashion-MNIST (31 MB): %s", what)
        try:
            with tempfile.TemporaryDirectory(prefix="adcs-") as scratch:
                fetched = download(Path(scratch))
                arrays = _read(fetched)
                kept = _keep(fetched)
        except (OSError, ImportError, subprocess.SubprocessError) as error:
            log.info("that failed: %s", error)
            tried.append(f"{what}: {error}")
        else:
            return arrays, f"{what}, {kept}"
    raise DataUnavailable(
        "Fashion-MNIST could not be had; tried\n"
        + "".join(f"  - {line}\n" for line in tried)
        + f"To get it by hand, install Debian's {PACKAGE}, or put the four .gz files of\n{PAGE}\n"
        + f"into {cache_folder() / 'fashion-mnist'}"
    )


def _keep(fetched: Path) -> str:
    """Copy the files into the cache and say so; without a writable cache, warn and go on."""
    files = {path.name: path.read_bytes() for path in (_find(stem, fetched) for stem in SHA256)}
    return keep(cache_folder() / "fashion-mnist", files, "Fashion-MNIST")


def _from_apt(scratch: Path) -> Path:
    """Download Debian's package and unpack it into a scratch folder; needs no root."""
    unpacked = unpack_deb(apt_download(PACKAGE, scratch), scratch)
    return unpacked / DEBIAN.relative_to("/")


def _from_https(scratch: Path) -> Path:
    """Download the official files into a scratch folder."""
    try:
        import pooch
    except ImportError as error:
        raise ImportError("pooch is missing; pip install 'adcs[cli]' brings it") from error
    pooch.get_logger().setLevel("WARNING")
    settings: dict[str, Any] = {"known_hash": None, "path": scratch}  # _read checks the content
    for stem in SHA256:
        log.info("downloading %s.gz", stem)
        pooch.retrieve(f"{OFFICIAL}{stem}.gz", fname=f"{stem}.gz", downloader=_download, **settings)
    return scratch


def _download(url: str, path: str, source: Any) -> None:
    """Download a file, but no more bytes than the largest one has."""
    import pooch

    with _Bounded(path, "wb") as file:
        pooch.HTTPDownloader(timeout=30, chunk_size=1 << 16)(url, file, source)


class _Bounded(FileIO):
    """A file that takes no more bytes than the largest one has."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > LARGEST:
            raise OSError(f"the server sends more than {LARGEST:,} bytes")
        return super().write(data)
