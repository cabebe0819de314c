"""Damaged, truncated, edited and planted files: each ends in one sentence."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import stat
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import adcs
from adcs import _npz as npz
from adcs._serialization import pack, unpack
from adcs.cli import theory as theory_command
from adcs.cli.app import app
from adcs.experiments import report, runner
from adcs.experiments.config import Experiment
from adcs.experiments.runner import create_run, experiment_of, run_experiment, run_task, tasks
from adcs.run_folder import RunFolder, write_atomically
from adcs.schedulers.base import Cohort
from adcs.simulation.datasets import fashion_mnist, from_npz

SETTINGS = {
    "data": "synthetic:clusters=2,per_cluster=12,test_per_cluster=6,dimension=3",
    "clients": 4,
    "m": 2,
    "rounds": 8,
    "eval_every": 4,
    "schedulers": {"Uniform": "Uniform", "ours": "LiveADCS", "cover": "DivFL(sketch=4)"},
}


class Here:
    """Runs what is submitted at once, in this process."""

    def __init__(self, *_: Any, initializer: Any = None, initargs: Any = (), **__: Any) -> None:
        initializer(*initargs)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    _processes: dict[int, Any] = {}  # noqa: RUF012

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes are started, and nothing is drawn: hundreds of commands take seconds."""
    monkeypatch.setattr(runner, "ProcessPoolExecutor", Here)
    for figure in ("line_figure", "cost_figure"):
        monkeypatch.setattr(report, figure, lambda *_: [])
    monkeypatch.setattr(theory_command, "draw", lambda _, path: path)


def run_command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def is_clean(result: Result) -> bool:
    """Whether a command succeeded, or said in one sentence what is wrong with which file."""
    if result.exit_code == 0:
        return True
    said = [line for line in result.stderr.splitlines() if line.startswith("adcs: ")]
    named = re.search(r"/copy\b|/done\b|/begun\b|config\.json", "".join(said)) is not None
    return result.exit_code == 2 and len(said) == 1 and named and "Traceback" not in result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, one that was interrupted, and one of Flower's."""
    base = tmp_path_factory.mktemp("runs")
    experiment = Experiment.of(**SETTINGS)
    run_experiment(create_run(base / "done", experiment), experiment, jobs=1)
    begun = create_run(base / "begun", experiment)

    class Interrupted(Exception):
        pass

    def stop(rounds: int) -> None:
        if rounds >= 6:
            raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr(runner, "PROGRESS_SECONDS", -1.0)
        with pytest.raises(Interrupted):
            run_task(begun, experiment, tasks(experiment)[0], stop)
    flower(base / "flower")
    return {path.name: path for path in (begun.path, base / "done", base / "flower")}


def flower(folder: Path) -> Any:
    """A recorder with two rounds done, as Flower's strategy leaves it, or gone on with."""
    from adcs.federated.recorder import Recorder, RoundRecord

    recorder = Recorder(folder, adcs.ADCS(seed=1), "flower", {"strategy": "FedAvg"})
    for _ in range(2 - recorder.rounds_done):
        diagnostics = {"gains": [["a", 0.5], ["b", None]], "quality": [["a", 1.0], ["b", 2.0]]}
        cohort = Cohort(("a", "b"), (1.0, 1.0), diagnostics={**diagnostics, "drawn": ["b"]})
        recorder.close(RoundRecord(cohort=cohort, trained=["a", "b"]), ["a", "b", "c"])
    return recorder


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to three of them changed, put in, left out, or cut off."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place = rng.randrange(len(content) + 1)
        byte = rng.choice((rng.randrange(256), *b'0123456789-.,:"[]{}e \n\xff'))
        match rng.randrange(5):
            case 0:
                content[place : place + 1] = bytes([byte])
            case 1:
                content[place:place] = bytes([byte] * rng.choice((1, 1, 8)))
            case 2:
                del content[place : place + rng.choice((1, 1, 4, 40))]
            case 3:
                content[place : place + 1] = bytes(
                    b ^ (1 << rng.randrange(8)) for b in content[place : place + 1]
                )
            case _ if rng.random() < 0.2:
                del content[place:]
    return bytes(content)


COMMANDS: dict[str, list[list[object]]] = {
    "done": [["compare", "--resume"], ["explain", "--round", 5], ["theory"]],
    "begun": [["compare", "--resume"], ["theory"]],
    "flower": [["explain", "--round", 2], ["explain", "--round", 1, "--client", "a"]],
}


def damage_and_read(runs: dict[str, Path], place: Path, seed: int) -> Iterator[tuple[str, Result]]:
    """Damage one file of a copy of a run; yield what every reader of it says."""
    rng = random.Random(seed)
    name = rng.choice(list(runs))
    copy = place / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(runs[name], copy)
    files = [
        path
        for path in sorted(copy.rglob("*"))
        if path.is_file() and path.parent.name != "figures" and path.stat().st_size
    ]
    file = rng.choice(files)
    file.write_bytes(damaged(file.read_bytes(), rng))
    for words in COMMANDS[name]:
        yield f"seed {seed}, {name}/{file.relative_to(copy)}", run_command(*words, copy)


@pytest.mark.usefixtures("in_process")
def test_damaged_files_end_in_a_sentence(runs: dict[str, Path], tmp_path: Path) -> None:
    for seed in range(150):
        for what, result in damage_and_read(runs, tmp_path, seed):
            assert is_clean(result), f"{what}: {result.exception!r} {result.output}"


def test_damaged_folders_of_flower_are_refused_in_a_sentence(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """Whether a strategy goes on with the folder, or says what is wrong with which file."""
    copy = tmp_path / "copy"
    whole = (runs["flower"] / "checkpoints" / "flower").read_bytes()
    edges = [*range(200), *range(len(whole) - 600, len(whole))]  # where the archive says what it is
    flipped = [(place, bit) for place in edges for bit in (1, 128)]
    went_on, refused = 0, []
    for seed in range(200 + len(flipped)):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(runs["flower"], copy)
        if seed < 200:
            rng = random.Random(seed)
            file = rng.choice([path for path in sorted(copy.rglob("*")) if path.is_file()])
            file.write_bytes(damaged(file.read_bytes(), rng))
        else:
            place, bit = flipped[seed - 200]
            content = bytearray(whole)
            content[place] ^= bit
            (copy / "checkpoints" / "flower").write_bytes(content)
        try:
            flower(copy)
            went_on += 1
        except (ValueError, FileNotFoundError) as error:
            refused.append(str(error))
    assert went_on > 10
    assert len(refused) > 500
    assert [sentence for sentence in refused if str(copy) not in sentence] == []


def test_a_line_that_is_no_record_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "copy")
    path = folder.path / "records" / "seed0-pass0.jsonl"
    whole = (runs["done"] / "records" / path.name).read_bytes().splitlines(keepends=True)
    wrong = {
        b'{"scheduler": "Uni\n': "Invalid control character",
        b"[" * 100_000 + b"\n": "RecursionError",
        b"\xff\n": "codec can't decode",
        b"null\n": "it holds no JSON object",
        b'{"scheduler": "Uniform", "seed": 0, "server_round": 4.0}\n': "its server_round is 4.0",
        whole[0]: "Uniform, seed 0, round 0 is there before",
        whole[0].replace(b'"server_round":0', b'"server_round":3'): "round 3 is not an evaluated",
        whole[0].replace(b'"seed":0', b'"seed":1'): "seed 1 is not of this run",
        whole[0].replace(b"Uniform", b"Unifosm"): "scheduler Unifosm is not of this run",
        whole[0].replace(b'"worst":', b'"wosst":'): "worst is missing",
        whole[0].replace(b'"counts":[0,', b'"counts":['): "counts has 3 entries, not 4",
        whole[0].replace(b'"updates":0', b'"updates":"0"'): "updates must be a whole number",
        whole[0].replace(b'"average":', b'"average":7'): "does not lie in [0, 1]",
    }
    for text, reason in wrong.items():
        shutil.rmtree(folder.path, ignore_errors=True)
        shutil.copytree(runs["done"], folder.path)
        path.write_bytes(b"".join([*whole, text]))
        for words in (["explain", "--round", 5], ["theory"]):
            result = run_command(*words, folder.path)
            assert is_clean(result), result.output
            assert f"{path}, line {len(whole) + 1} is broken (" in result.stderr
            assert reason in result.stderr


def test_records_that_were_cut_are_not_gone_on_with(runs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("done", "begun"):
        shutil.copytree(runs[name], tmp_path / name)
        path = tmp_path / name / "records" / "seed0-pass0.jsonl"
        path.write_bytes(path.read_bytes()[:-10])
        result = run_command("compare", "--resume", tmp_path / name, "--jobs", 1)
        assert is_clean(result), result.output
        assert f"{path} has {path.stat().st_size} bytes and had" in result.stderr


@pytest.mark.parametrize(
    ("setting", "value"), [("model", "mlp:3"), ("clients", 2), ("dtype", "float64")]
)
def test_a_checkpoint_of_other_settings_is_refused(
    runs: dict[str, Path], tmp_path: Path, setting: str, value: object
) -> None:
    folder = RunFolder(tmp_path / "copy")
    shutil.copytree(runs["begun"], folder.path)
    changed = experiment_of(folder).replace(**{setting: value})
    config = {**folder.config, **changed.as_dict()}
    config["groups"] = config["groups"][: changed.partition.clients]
    (folder.path / "config.json").write_text(json.dumps(config))
    result = run_command("compare", "--resume", folder.path, "--jobs", 1)
    assert is_clean(result), result.output
    path = folder.path / "checkpoints" / "seed0-pass0"
    assert f"{path} does not fit the settings of the run" in result.stderr


# Arrays


def member(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> bytes:
    """An array's bytes as in an .npz file, under a header of another shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + array.tobytes()


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("shape", [(10**15,), (2**62, 2**62), (10**5, 10**5, 10**5), (-1,), (7,)])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_header_that_declares_more_than_there_is(
    tmp_path: Path, shape: tuple[int, ...], compression: int
) -> None:
    names = ("x_train", "y_train", "x_test", "y_test", "json")
    honest = {name: member(np.zeros(6), (6,)) for name in names}
    for name in names:
        path = archive(
            tmp_path / "mine.npz", {**honest, name: member(np.zeros(6), shape)}, compression
        )
        tracemalloc.start()
        if name != "json":
            with pytest.raises(ValueError, match=rf"mine\.npz: {name} declares"):
                from_npz(path)
        with pytest.raises(ValueError, match=rf"not a packed scheduler state: {name} declares"):
            unpack(path.read_bytes())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10**6


def test_an_archive_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = tmp_path / "mine.npz", np.zeros((1000, 1000))
    np.savez_compressed(path, x_train=x, y_train=x[0], x_test=x, y_test=x[0])
    assert path.stat().st_size < 10**5  # a thousandth of what it holds
    for limit, named in ((4 * 10**6, "x_train declares"), (12 * 10**6, "x_test is larger than")):
        monkeypatch.setattr(npz, "memory", lambda limit=limit: limit)
        tracemalloc.start()
        with pytest.raises(ValueError, match=rf"mine\.npz: {named} .*memory"):
            from_npz(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10**6


def test_damaged_arrays_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path, x, y = tmp_path / "mine.npz", np.arange(12.0).reshape(6, 2), np.array(list("ababab"))
    np.savez_compressed(path, x_train=x, y_train=y, x_test=x, y_test=y)
    data = path.read_bytes()
    state = pack({"known": {"a": x}, "list": [y, 1.5, None]})
    refused = []
    for seed in range(400):
        path.write_bytes(damaged(data, random.Random(seed)))
        for read in (
            lambda: from_npz(path),
            lambda s=seed: unpack(damaged(state, random.Random(s))),
        ):
            try:
                read()
            except ValueError as error:
                refused.append(str(error))
    assert len(refused) > 300
    assert [sentence for sentence in refused if "\n" in sentence] == []


def test_states_that_pack_never_makes() -> None:
    def state(text: bytes, **arrays: Any) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, json=np.frombuffer(text, np.uint8), **arrays)
        return buffer.getvalue()

    assert unpack(state(b'{"a": {"__array__": "b"}}', b=np.ones(1)))["a"].tolist() == [1.0]
    for text in (
        b"[1]",
        b"3",
        b'{"a": {"__array__": "b"}}',
        b'{"a": {"__array__": []}}',
        b"{",
        b"",
    ):
        with pytest.raises(ValueError, match="not a packed scheduler state"):
            unpack(state(text))
    with pytest.raises(ValueError, match="not a packed scheduler state"):
        unpack(state(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"))
    with pytest.raises(ValueError, match="Python objects"):
        unpack(state(b"{}", b=np.array([{}, 1], dtype=object)))


# Writing


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "target").symlink_to(victim)
    (tmp_path / "target.part").symlink_to(victim)
    write_atomically(tmp_path / "target", b"new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "target").read_bytes() == b"new"
    assert not (tmp_path / "target").is_symlink()
    folder = RunFolder.create(tmp_path / "run", {})
    (folder.path / "records" / "task.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        folder.writer("task", 0)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("part", ["records", "checkpoints", "figures"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_subfolders_that_are_no_folders_are_refused(part: str, kind: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".mine.part").write_text("precious")
    folder = create_run(tmp_path / "run", Experiment.of(**SETTINGS))
    place = folder.path / part
    place.rmdir()
    if kind == "file":
        place.write_text("")
    else:
        place.symlink_to(outside if kind == "link" else tmp_path / "absent")
    for command in (["compare", "--resume"], ["theory"], ["explain", "--round", 0]):
        result = run_command(*command, folder.path)
        assert result.exit_code == 2, result.output
        assert f"{part} must be a folder inside the run folder" in " ".join(result.output.split())
    for write in (
        lambda: folder.writer("task"),
        lambda: folder.figures,
        lambda: folder.locked().__enter__(),
        lambda: RunFolder.create(tmp_path / "run2", {}),
    ):
        if not (tmp_path / "run2").exists():
            (tmp_path / "run2").mkdir()
            (tmp_path / "run2" / part).symlink_to(outside)
        with pytest.raises(ValueError, match="must be a folder inside the run folder"):
            write()
    assert [entry.name for entry in outside.iterdir()] == [".mine.part"]
    assert not (tmp_path / "absent").exists()


def test_planted_links_in_figures_and_tables_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ProcessPoolExecutor", Here)
    folder = create_run(tmp_path / "run", Experiment.of(**SETTINGS))
    assert run_command("compare", "--resume", folder.path).exit_code == 0
    assert run_command("theory", folder.path).exit_code == 0
    written = [*folder.figures.iterdir(), folder.path / "table.csv", folder.path / "summary.md"]
    assert {path.suffix for path in written} == {".png", ".pdf", ".csv", ".md"}
    assert folder.figures / "theory.csv" in written
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for number, path in enumerate(written):
        path.unlink()
        if number % 2:
            path.symlink_to(victim)
        else:
            path.hardlink_to(victim)
    assert run_command("compare", "--resume", folder.path).exit_code == 0
    assert run_command("theory", folder.path).exit_code == 0
    assert victim.read_text() == "precious"
    for path in written:
        assert path.is_file()
        assert not path.is_symlink()
        assert not path.samefile(victim)


def test_records_that_are_no_files_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = create_run(tmp_path / "run", Experiment.of(**SETTINGS))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder.path / "records" / "linked.jsonl").hardlink_to(victim)
    with pytest.raises(ValueError, match=r"linked\.jsonl is a hard link"):
        folder.writer("linked", 0)
    assert victim.read_text() == "precious"
    (folder.path / "records" / "linked.jsonl").unlink()
    pipe = folder.path / "records" / "zz.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="zz"):
        folder.writer("zz", 0)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ValueError, match="no regular file"):
            folder.writer("zz", 0)
    finally:
        os.close(reader)
    result = run_command("theory", folder.path)
    assert result.exit_code == 2
    assert "zz.jsonl is not a regular file" in " ".join(result.output.split())


def test_nothing_written_is_writable_by_everybody(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = create_run(tmp_path / "runs" / "a", Experiment.of(**SETTINGS))
        with folder.writer("task") as lines:
            lines.append({})
        folder.save_checkpoint("task", {})
    finally:
        os.umask(before)
    made = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    assert len(made) == 9
    assert [path for path in made if path.stat().st_mode & stat.S_IWOTH] == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a", b"old")]


def test_files_follow_the_umask_and_the_cache_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    fetched = tmp_path / "fetched"
    fetched.mkdir()
    for stem in fashion_mnist.SHA256:
        (fetched / f"{stem}.gz").write_bytes(gzip.compress(b"content"))
    monkeypatch.setenv("ADCS_CACHE", str(tmp_path / "caches" / "adcs"))
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "open", b"")
        kept = fashion_mnist._keep(fetched)
        os.umask(0o077)
        write_atomically(tmp_path / "closed", b"")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "open"), mode(tmp_path / "closed")) == (0o664, 0o600)
    target = tmp_path / "caches" / "adcs" / "fashion-mnist"
    assert kept == f"kept in {target}"
    assert [mode(path) for path in (target, *target.parents[:2])] == [0o700] * 3
    target.chmod(0o777)
    assert fashion_mnist._keep(fetched) == f"not kept: {target} may be written into by everybody"


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_no_more_is_unpacked_than_there_can_be(tmp_path: Path, suffix: str) -> None:
    stem = next(iter(fashion_mnist.SHA256))
    content = bytes(200_000_000)
    path = tmp_path / (stem + suffix)
    path.write_bytes(gzip.compress(content, 1) if suffix else content)
    del content
    tracemalloc.start()
    with pytest.raises(OSError, match=r"idx3-ubyte.* holds more than 47,040,016 bytes"):
        fashion_mnist._read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150_000_000


def test_no_more_is_downloaded_than_there_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "LARGEST", 10)
    with fashion_mnist._Bounded(tmp_path / "a", "wb") as file:
        file.write(b"12345")
        with pytest.raises(OSError, match="the server sends more than 10 bytes"):
            file.write(b"123456")
