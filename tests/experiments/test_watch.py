"""The live page's server: what it serves, to whom, and while the run is cut and resumed."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adcs.cli.app import app
from adcs.experiments.config import Experiment
from adcs.experiments.runner import create_run, run_task, tasks
from adcs.run_folder import RunFolder

pytest.importorskip("starlette", reason="needs adcs[page]")
pytest.importorskip("uvicorn", reason="needs adcs[page]")

from adcs.experiments.page.server import (
    Server,
    Watched,
    application,
    is_loopback,
    parsed_event,
)
from adcs.experiments.page.source import RunSource
from adcs.experiments.page.status import RunStatus

SETTINGS: dict[str, Any] = {
    "data": "synthetic:per_cluster=40",
    "clients": 10,
    "m": 4,
    "rounds": 40,
    "eval_every": 10,
    "schedulers": ["Uniform", "ADCS"],
    "lr": 0.05,
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "run", Experiment.of(**SETTINGS))


def run_to(folder: RunFolder, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the task until so many rounds are done; it can be resumed."""
    from adcs.experiments import runner

    experiment = Experiment.of(**SETTINGS)
    (task,) = tasks(experiment)

    class Stop(Exception):
        pass

    def progress(done: int) -> None:
        if done >= rounds:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)
        with suppress(Stop):
            run_task(folder, experiment, task, progress)


@contextmanager
def serving(
    folder: RunFolder, *, host: str = "127.0.0.1", token: str | None = None, port: int = 0
) -> Iterator[str]:
    watched = Watched(folder)
    watched.start()
    server = Server(watched, application(watched, host=host, token=token))
    listener = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


def wait_for(happened: Callable[[], Any], seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := happened():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def get(address: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def events(address: str, **headers: str) -> Iterator[dict[str, Any]]:
    request = urllib.request.Request(address + "events", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        block = b""
        for line in answer:
            block += line
            if line == b"\n":
                if b"data: " in block:
                    yield parsed_event(block)
                block = b""


def test_a_viewer_sees_rounds_between_evaluations(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder) as address:
        found = events(address)
        first = next(found)
        assert first["runs"]["ADCS"]["done"] == 0
        run_to(folder, 13, monkeypatch)
        now = next(
            e for e in found if e["runs"]["ADCS"]["done"] >= 13 and e["version"] != first["version"]
        )
        assert len(now["runs"]["ADCS"]["cohort"]) == 4
        assert now["sentence"].startswith("In progress: ")
        _, _, body = get(address + "data.json")
        assert json.loads(body)["views"]["ADCS"]["rounds"] == [0, 10]
        run_to(folder, 40, monkeypatch)  # resumed
        end = next(e for e in found if e["runs"]["ADCS"]["done"] == 40)
        assert end["sentence"].startswith("Finished: ")


def test_a_run_in_which_nothing_happens_may_have_stopped(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to(folder, 20, monkeypatch)
    source = RunSource(folder)
    source.read()
    assert "may have stopped" not in RunStatus(source).now()["sentence"]
    long_ago = time.time() - 1000.0
    for path in (folder.path / "selections").iterdir():
        os.utime(path, (long_ago, long_ago))
    said = RunStatus(source).now()["sentence"]
    assert said.startswith("In progress: ")
    assert said.endswith("; the run may have stopped.")


def test_a_viewer_connects_again_after_a_restart(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to(folder, 13, monkeypatch)
    with serving(folder) as address:
        first = next(events(address))
    with serving(folder) as address:
        again = next(events(address, **{"Last-Event-ID": "1234-7"}))
    assert again["version"] != first["version"]  # so the page fetches the data again
    assert again["runs"] == first["runs"]


def test_the_server_ends_quietly_while_viewers_are_connected(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(folder) as address:
        viewers = [events(address) for _ in range(5)]
        assert all(next(viewer) for viewer in viewers)
    assert [list(viewer) for viewer in viewers] == [[]] * 5  # ended, not broken off
    assert "".join(capfd.readouterr()) == ""


def test_what_is_served_is_read_only_and_unstored(folder: RunFolder) -> None:
    before = {p: p.stat().st_mtime_ns for p in folder.path.rglob("*")}
    with serving(folder) as address:
        for path in ("", "data.json", "metrics"):
            status, headers, body = get(address + path)
            assert status == 200
            assert body
            assert headers["x-content-type-options"] == "nosniff"
        _, headers, body = get(address + "data.json", **{"Accept-Encoding": "gzip"})
        assert headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(body))["kind"] == "simulation"
        request = urllib.request.Request(address, method="POST", data=b"x")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=10)
        assert get(address + "config.json")[0] == 404
        assert get(address + "../config.json")[0] == 404
    assert {p: p.stat().st_mtime_ns for p in folder.path.rglob("*")} == before


def test_other_host_names_are_refused_on_loopback(folder: RunFolder) -> None:
    with serving(folder) as address:
        assert get(address, Host="evil.example")[0] == 400


def test_a_token_is_needed_where_there_is_one(folder: RunFolder) -> None:
    with serving(folder, host="0.0.0.0", token="correct horse") as address:
        for path in ("", "data.json", "metrics", "events", "?token=wrong"):
            status, _, body = get(address + path)
            assert status == 401
            assert b"needs its token" in body
        bearer = {"Authorization": "Bearer correct horse"}
        assert get(address + "metrics", **bearer)[0] == 200
        assert next(events(address, **bearer))["runs"]

        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        opener = urllib.request.build_opener(Stay)
        with pytest.raises(urllib.error.HTTPError) as caught:
            opener.open(address + "?token=correct%20horse", timeout=10)
        assert caught.value.code == 303
        assert caught.value.headers["location"] == "/"
        cookie = caught.value.headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        assert get(address + "data.json", Cookie=cookie.partition(";")[0])[0] == 200


def test_many_viewers_get_the_same_event(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder) as address:
        viewers = [events(address) for _ in range(30)]
        assert len({json.dumps(next(viewer)) for viewer in viewers}) == 1
        run_to(folder, 40, monkeypatch)
        for viewer in viewers:
            last = next(e for e in viewer if e["runs"]["ADCS"]["done"] == 40)
            assert last["sentence"].startswith("Finished")


def test_a_broken_folder_is_said_and_survived(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to(folder, 13, monkeypatch)
    watched = Watched(folder)
    watched.look()
    data = watched.data
    (path,) = (folder.path / "records").iterdir()
    text = path.read_bytes()
    path.write_bytes(b"{broken\n")
    with pytest.raises(ValueError, match="line 1 is broken"):
        watched.look()
    assert watched.data == data
    path.write_bytes(text)
    watched.look()


def test_which_addresses_are_loopback() -> None:
    assert is_loopback("::1")
    assert is_loopback("127.8.9.1")
    assert not is_loopback("::")
    assert not is_loopback("example.org")


def test_watch_names_what_is_wrong(tmp_path: Path, folder: RunFolder) -> None:
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "none")])
    assert result.exit_code == 2
    result = CliRunner().invoke(app, ["watch", str(folder.path), "--token", "short"])
    assert result.exit_code == 2
    assert "token must have 8 characters or more, got 5" in result.stderr
