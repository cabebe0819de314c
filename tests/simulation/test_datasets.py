"""Data sets: the user's own, the bundled ones, and where Fashion-MNIST is looked for."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adcs.simulation.datasets import (
    Dataset,
    DataUnavailable,
    available,
    cache,
    fashion_mnist,
    fetch,
    from_arrays,
    from_npz,
    load,
    packages,
)
from adcs.simulation.datasets.synthetic import synthetic

GOOD: dict[str, Any] = {
    "x_train": np.arange(24.0).reshape(6, 2, 2),
    "y_train": np.array([3, 7, 3, 7, 3, 7]),
    "x_test": np.zeros((2, 2, 2)),
    "y_test": np.array([7, 3]),
}


# The user's own


def test_shapes_labels_and_types() -> None:
    made = from_arrays(**GOOD)
    assert made.x_train.shape == (6, 4)
    assert made.x_train.dtype == np.float32
    assert made.scale == 1.0
    assert made.y_train.tolist() == [0, 1, 0, 1, 0, 1]
    assert made.y_test.tolist() == [1, 0]
    assert made.y_test.dtype == np.int64
    assert made.label_names == ("3", "7")


def test_pixels_stay_uint8() -> None:
    pixels = {name: GOOD[name].astype(np.uint8) for name in ("x_train", "x_test")}
    made = from_arrays(**{**GOOD, **pixels})
    assert made.x_train.dtype == made.x_test.dtype == np.uint8
    assert made.scale == 1 / 255


@pytest.mark.parametrize(
    "y", [[-5, 2, -5, 2, 9, 9], [-5.0, 2.0, -5.0, 2.0, 9.0, 9.0], [[-5], [2], [-5], [2], [9], [9]]]
)
def test_labels_of_any_kind(y: list[Any]) -> None:
    made = from_arrays(**{**GOOD, "y_train": y, "y_test": [9, -5]})
    assert made.label_names == ("-5", "2", "9")
    assert made.y_train.tolist() == [0, 1, 0, 1, 2, 2]
    assert made.y_test.tolist() == [2, 0]


def test_labels_that_do_not_count_from_zero_are_kept() -> None:
    x = np.zeros((3, 1))
    assert from_arrays(x, [20, 5, 10], x, [5, 5, 10]).labels == (5, 10, 20)
    assert from_arrays(x, [0, 2, 1], x, [0, 0, 1]).labels == ()


def test_npz_is_the_same_as_from_python(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **GOOD)
    one, other = load(path), from_arrays(**GOOD)
    np.testing.assert_array_equal(one.x_train, other.x_train)
    np.testing.assert_array_equal(one.y_test, other.y_test)
    assert one.name == one.source == str(path)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"y_train": np.array([3, 7, 3])}, "x_train has 6 examples and y_train 3 labels"),
    ({"y_test": np.array([3])}, "x_test has 2 examples and y_test 1 labels"),
    ({"x_train": np.full((6, 2, 2), np.nan)}, "x_train holds nan in example 0"),
    ({"x_test": np.array([[[0, 1], [2, 3]], [[0, 1], [2, np.inf]]])}, "inf in example 1"),
    ({"x_test": np.full((2, 2, 2), 1e300)}, r"x_test holds 1e\+300 in example 0"),
    ({"y_train": np.array([3, 7.5, 3, 7, 3, 7])}, "y_train holds 7.5 at 1; labels are whole"),
    ({"y_train": np.array([3, np.nan, 3, 7, 3, 7])}, "y_train holds nan at 1"),
    ({"y_train": np.array([3, np.inf, 3, 7, 3, 7])}, "y_train holds inf at 1"),
    ({"y_train": np.array(list("abcabc"))}, "y_train holds 'a' and y_test 7; labels are all"),
    ({"y_train": np.array([1j] * 6)}, r"y_train holds 1j; labels are whole numbers or text"),
    ({"y_train": np.array([b"\xff"] * 6)}, "y_train holds bytes that are not ASCII text"),
    ({"y_train": np.eye(6)}, r"y_train has shape \(6, 6\)"),
    (
        {"y_train": np.full(6, 2**63 - 1)},
        r"y_train holds 9223372036854775807 at 0; labels are whole numbers from -2\^53 to 2\^53",
    ),
    ({"y_train": np.full(6, 2**31, "u4").view("<U1")}, "text.* not Unicode"),
    ({"y_train": np.array(["a"] * 5 + ["\ud800"])}, "text.* not Unicode"),
    ({"y_train": np.full(6, 3)}, "y_train holds the one label 3"),
    ({"y_test": np.array([7, 4])}, "y_test holds label 4, which has no training example$"),
    (
        {
            "x_train": np.eye(25),
            "y_train": np.arange(25),
            "x_test": np.eye(25)[:2],
            "y_test": [346, 1],
        },
        "no training example; for numbers instead of 25 classes use --task regression",
    ),
    ({"x_train": np.zeros((0, 2, 2))}, r"x_train is empty, of shape \(0, 2, 2\)"),
    ({"x_train": np.zeros((6, 0)), "x_test": np.zeros((2, 0))}, "x_train is empty"),
    ({"y_test": np.array([])}, "y_test is empty"),
    ({"x_test": np.zeros((2, 5))}, r"x_train has shape \(2, 2\), one of x_test \(5,\)"),
    ({"x_test": np.zeros((2, 2, 2), np.uint8)}, "x_train is float64 and x_test is uint8"),
    ({"x_train": np.zeros((6, 2, 2), complex)}, "x_train is an array of complex128"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_bad_arrays(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data: .*" + message):
        from_arrays(**{**GOOD, **wrong})
    path = tmp_path / "bad.npz"
    np.savez(path, **{**GOOD, **wrong})
    with pytest.raises(ValueError, match="bad.npz: .*" + message):
        from_npz(path)


def test_bad_files(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(ValueError, match=path.name + ": .*" + message):
            load(path)

    refused(tmp_path / "none.npz", "there is no such file")
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    refused(folder, "not an .npz file")
    os.mkfifo(tmp_path / "pipe.npz")
    refused(tmp_path / "pipe.npz", "not an .npz file")
    # Python fails to make strings of such numbers.
    for kind in ("<U1", ">U1"):
        labels = np.frombuffer(b"\xff" * 24, kind)
        np.savez(tmp_path / "wild.npz", **{**GOOD, "y_train": labels})
        refused(tmp_path / "wild.npz", "y_train cannot be read, .* text is not Unicode")
    rows = np.frombuffer(b"\xff" * 24, [("a", "<U1")])
    np.savez(tmp_path / "rows.npz", **{**GOOD, "y_train": rows})
    refused(tmp_path / "rows.npz", "y_train cannot be read, it is an array of .*, not of numbers")
    for content in (b"", b"hello", b"PK\x03\x04 broken"):
        text = tmp_path / "text.npz"
        text.write_bytes(content)
        refused(text, "not an .npz file")
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    refused(tmp_path / "single.npz", "a single array")
    np.savez(tmp_path / "part.npz", x_train=GOOD["x_train"], y_train=GOOD["y_train"])
    refused(tmp_path / "part.npz", "x_test is missing; the file holds x_train, y_train")
    objects = np.array([{}, 1, 2, 3, 4, 5], dtype=object)
    np.savez(tmp_path / "objects.npz", **{**GOOD, "y_train": objects})
    refused(tmp_path / "objects.npz", "y_train cannot be read, it holds Python objects")
    np.savez(tmp_path / "cut.npz", **GOOD)
    whole = bytearray((tmp_path / "cut.npz").read_bytes())
    whole[200] ^= 0xFF  # inside the first array: its checksum no longer holds
    (tmp_path / "cut.npz").write_bytes(whole)
    refused(tmp_path / "cut.npz", "x_train cannot be read")


def test_names() -> None:
    with pytest.raises(ValueError, match=r"'fashon-mnist' .* did you mean fashion-mnist\?"):
        load("fashon-mnist")
    with pytest.raises(ValueError, match="there are fashion-mnist, digits, synthetic"):
        load("zzz")
    with pytest.raises(ValueError, match=r"'mine.npz' is no data set that can be fetched"):
        fetch("mine.npz")


# Digits


def test_digits_are_split_by_class() -> None:
    one, two = load("digits"), load("digits")
    assert one.y_train.size + one.y_test.size == 1797
    assert one.x_train.max() * one.scale == 1.0
    share = np.bincount(one.y_test) / (np.bincount(one.y_test) + np.bincount(one.y_train))
    np.testing.assert_allclose(share, 0.2, atol=0.006)
    np.testing.assert_array_equal(one.x_test, two.x_test)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataUnavailable, match=r"pip install 'adcs\[cli\]'"):
        load("digits")


# Synthetic


def gradients(made: Dataset) -> np.ndarray:
    """Return each training example's gradient: softmax regression with a bias, zero parameters."""
    x = np.column_stack([made.x_train, np.ones(len(made.x_train))]).astype(np.float64)
    residual = 1.0 / made.classes - np.eye(made.classes)[made.y_train]
    return (x[:, :, None] * residual[:, None, :]).reshape(len(x), -1)


def client_gradients(made: Dataset, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return gradients of clients with `each` examples of one cluster, and their clusters."""
    assert made.groups is not None
    g = gradients(made)
    means = g.reshape(-1, each, g.shape[1]).mean(axis=1)
    return means, made.groups[0][::each]


@pytest.mark.parametrize("clusters", [2, 3, 10])
@pytest.mark.parametrize("mu", [0.0, 0.05, 0.3, 0.9])
def test_synthetic_has_exactly_r_and_mu(clusters: int, mu: float) -> None:
    exact = synthetic(clusters, r=0.0, mu=mu, per_cluster=1)
    centres = gradients(exact)
    norms = np.linalg.norm(centres, axis=1)
    np.testing.assert_allclose(norms, np.sqrt(clusters / 2), rtol=1e-6)
    cosines = np.abs(centres @ centres.T / np.outer(norms, norms))
    np.testing.assert_allclose(cosines[~np.eye(clusters, dtype=bool)], mu, atol=1e-6)
    noisy = synthetic(clusters, r=0.7, mu=mu, per_cluster=20)
    assert noisy.groups is not None
    away = np.linalg.norm(gradients(noisy) - centres[noisy.groups[0]], axis=1)
    np.testing.assert_allclose(away, 0.7, rtol=1e-5)


def test_cosines_between_clients_grow_with_mu() -> None:
    between = []
    for mu in (0.0, 0.1, 0.3, 0.6, 0.9):
        g, z = client_gradients(synthetic(6, r=0.3, mu=mu, per_cluster=60), each=20)
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        between.append(np.abs(g @ g.T)[z[:, None] != z].mean())
    assert np.all(np.diff(between) > 0.05)
    np.testing.assert_allclose(between, [0.0, 0.1, 0.3, 0.6, 0.9], atol=0.05)


def test_spread_within_clusters_grows_with_r() -> None:
    spread = []
    radii = (0.0, 0.05, 0.2, 0.5, 1.0)
    for r in radii:
        g, z = client_gradients(synthetic(6, r=r, per_cluster=60), each=5)
        centres = gradients(synthetic(6, r=0.0, per_cluster=1))
        spread.append(np.linalg.norm(g - centres[z], axis=1).max())
    assert np.all(np.diff(spread) > 0.01)
    assert np.all(np.array(spread) <= np.array(radii) + 1e-6)


def test_synthetic_by_name() -> None:
    named = load("synthetic:clusters=3,r=0.2,mu=0.1,seed=4")
    same = synthetic(3, r=0.2, mu=0.1, seed=4)
    np.testing.assert_array_equal(named.x_train, same.x_train)
    assert np.any(synthetic(3, r=0.2, mu=0.1, seed=5).x_train != same.x_train)
    uneven = synthetic(3, per_cluster=[1, 2, 3])
    assert uneven.groups is not None
    assert np.bincount(uneven.groups[0]).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clusters=1", "clusters is 1"),
        ("mu=1", "mu is 1.0"),
        ("mu=-0.1", "mu is -0.1"),
        ("r=nan", "r is nan"),
        ("dimension=9", "dimension is 9; it is at least the 10 clusters"),
        ("per_cluster=0", "each of the 10 clusters has at least one example"),
        ("radius=1", "'radius' is no setting of synthetic"),
        ("clusters=1.5", "clusters of synthetic is '1.5', not a whole number"),
    ],
)
def test_bad_synthetic(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("synthetic:" + text)


# Fashion-MNIST, by a tiny stand-in with its own checksums


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with four small IDX files; no other source has any."""
    folder = tmp_path / "original"
    folder.mkdir()
    sums = {}
    for stem, shape in zip(
        fashion_mnist.SHA256, [(20, 2, 2), (20,), (10, 2, 2), (10,)], strict=True
    ):
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
        content = header + (np.arange(np.prod(shape)) % 10).astype(np.uint8).tobytes()
        sums[stem] = hashlib.sha256(content).hexdigest()
        (folder / f"{stem}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(fashion_mnist, "SHA256", sums)
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "usr")
    monkeypatch.setattr(fashion_mnist, "OFFICIAL", "http://127.0.0.1:9/")
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    monkeypatch.setenv("ADCS_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def served(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve the folder as if it were the official address."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tiny))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *args: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(fashion_mnist, "OFFICIAL", address)
        yield tiny
        server.shutdown()
        thread.join()


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "fashion-mnist").glob("*"))


def test_folder_comes_first(tiny: Path, tmp_path: Path) -> None:
    made = load("fashion-mnist", tiny)
    assert made.source == str(tiny)
    assert (made.x_train.shape, made.x_test.shape, made.classes) == ((20, 4), (10, 4), 10)
    assert made.label_names[9] == "Ankle boot"
    assert made.y_test.tolist() == list(range(10))
    assert cached(tmp_path) == []  # what is on the machine is not copied


def test_uncompressed_files_will_do(tiny: Path) -> None:
    for path in tiny.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert load("fashion-mnist", tiny).source == str(tiny)


def test_download_is_kept(served: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not available()[0].here
    with caplog.at_level(logging.INFO):
        made = fetch("fashion-mnist")
    assert "the official files over https, kept in" in made.source
    assert "downloading train-images-idx3-ubyte.gz" in caplog.text
    assert cached(tmp_path) == sorted(f"{stem}.gz" for stem in fashion_mnist.SHA256)
    assert available()[0].where == str(tmp_path / "cache" / "fashion-mnist")
    for path in served.glob("*"):
        path.unlink()
    again = load("fashion-mnist")
    assert again.source == str(tmp_path / "cache" / "fashion-mnist")
    np.testing.assert_array_equal(again.x_train, made.x_train)


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_damaged_cache_is_replaced(served: Path, tmp_path: Path, damage: str) -> None:
    load("fashion-mnist")
    path = tmp_path / "cache" / "fashion-mnist" / "t10k-images-idx3-ubyte.gz"
    sound = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(sound[:30] if damage == "cut" else gzip.compress(b"other"))
    assert "over https" in load("fashion-mnist").source
    assert path.read_bytes() == sound


def test_wrong_content_is_refused(served: Path, tmp_path: Path) -> None:
    (served / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"forged"))
    with pytest.raises(DataUnavailable, match=r"https: t10k-labels-idx1-ubyte.gz has SHA-256"):
        load("fashion-mnist")
    assert cached(tmp_path) == []


def test_unwritable_cache_is_no_obstacle(served: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert "not kept: " in load("fashion-mnist").source


def test_all_fail(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable) as caught:
        load("fashion-mnist", tmp_path / "mine")
    told = str(caught.value)
    for part in (
        f"the folder given, {tmp_path / 'mine'}: it has no train-images-idx3-ubyte.gz",
        f"the cache, {tmp_path / 'cache' / 'fashion-mnist'}: it has no",
        f"Debian's package, {tmp_path / 'usr'}: it has no",
        "by apt-get: apt-get and dpkg-deb are not on this machine",
        "over https: ",
        "by hand, install Debian's dataset-fashion-mnist, or put the four .gz files of",
    ):
        assert part in told


def test_without_pooch(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataUnavailable, match="over https: pooch is missing; pip install"):
        load("fashion-mnist")


@pytest.mark.parametrize("lists", ["fresh", "empty", "unreachable"])
def test_apt_needs_no_root(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str
) -> None:
    """A stand-in for apt-get that knows no package unless its lists are renewed privately."""
    calls: list[list[str]] = []

    def run(command: list[str], *, cwd: Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        failed = subprocess.CompletedProcess(
            command, 100, "", "W: ...\nE: Unable to locate package"
        )
        if command[0] == "dpkg-deb":
            assert Path(cwd, command[2]).is_file()
            target = Path(cwd, command[3], *fashion_mnist.DEBIAN.parts[1:])
            target.mkdir(parents=True)
            for path in tiny.glob("*.gz"):
                (target / path.name).write_bytes(path.read_bytes())
        elif command[-1] == "update":
            assert f"Dir::State={cwd / 'state'}" in command
            assert (cwd / "state" / "lists" / "partial").is_dir()
            if lists == "unreachable":
                return subprocess.CompletedProcess(command, 100, "", "E: Could not resolve")
            (cwd / "renewed").touch()
        elif lists == "fresh" or (cwd / "renewed").exists():
            (cwd / "dataset-fashion-mnist_1_all.deb").touch()
        else:
            return failed
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(packages.subprocess, "run", run)
    if lists == "unreachable":
        with pytest.raises(
            DataUnavailable, match=r"Unable to locate package .after apt-get: E: Could not resolve"
        ):
            load("fashion-mnist")
        return
    made = load("fashion-mnist")
    assert "by apt-get, kept in" in made.source
    assert len(calls) == (2 if lists == "fresh" else 4)
    assert len(cached(tmp_path)) == 4


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADCS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_folder() == Path("/somewhere/adcs")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.cache_folder() == Path("/home/someone/.cache/adcs")
    monkeypatch.setenv("ADCS_CACHE", "/here")
    assert cache.cache_folder() == Path("/here")


@pytest.mark.skipif(
    not os.path.isdir(fashion_mnist.DEBIAN),
    reason="Debian's dataset-fashion-mnist is not installed",
)
def test_the_real_thing() -> None:
    made = load("fashion-mnist", fashion_mnist.DEBIAN)
    assert made.x_train.shape == (60_000, 784)
    assert made.x_test.shape == (10_000, 784)
    assert np.bincount(made.y_train).tolist() == [6000] * 10
    assert np.bincount(made.y_test).tolist() == [1000] * 10
    assert made.y_train[:4].tolist() == [9, 0, 0, 3]
