"""Federations of real processes: killed SuperNodes, TLS, and authenticated SuperNodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs adcs[flower]")

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from adcs.flower import key_id
from adcs.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "flower-fashion-mnist"))

from credentials import make_certificates, make_node_key
from loopback import Loopback, process_tree, still_running, tail

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flower-fashion-mnist"

LIMIT = 300.0
"""Seconds until a test gives up; Flower notices a killed node after 60 seconds."""

CONFIG: dict[str, Any] = {"data": "synthetic", "dtype": "float64", "learning-rate": 0.1}


def wait_until(condition: Callable[[], Any], what: str, federation: Loopback) -> Any:
    """Return the condition's value once it is true; fail if a process ends before."""
    deadline = time.monotonic() + LIMIT
    while not (value := condition()):
        ended = any(process.poll() is not None for process in federation.processes.values())
        if ended or time.monotonic() > deadline:
            pytest.fail(f"{what} did not come:\n{tail(federation.log('run'), 60)}")
        time.sleep(0.1)
    return value


def records(folder: Path) -> list[dict[str, Any]]:
    there = (folder / "config.json").exists()
    return list(RunFolder.open(folder).records()) if there else []


def finished(federation: Loopback, folder: Path) -> list[dict[str, Any]]:
    """Wait for the end of a run and return its records; the table is written at a normal end."""
    federation.processes["run"].wait(timeout=LIMIT)
    assert (folder / "clients.txt").exists(), tail(federation.log("run"), 60)
    return records(folder)


def received(federation: Loopback, node: str) -> int:
    return federation.log(node).count("Receiving: train message")


@pytest.mark.minutes
def test_the_run_continues_when_a_supernode_is_killed_in_training(tmp_path: Path) -> None:
    folder, m, rounds = tmp_path / "run", 4, 4
    config = {
        **CONFIG,
        "num-server-rounds": rounds,
        "evaluate-every": rounds,
        "clients-per-round": m,
        "wait-for-nodes": 5,
        "scheduler": "ADCS(refresh_every=3)",
        "folder": str(folder),
    }
    with Loopback(tmp_path / "home") as federation:
        federation.start_superlink()
        # Five of thirty clients, of five classes.
        clients = [0, 6, 12, 18, 24]
        for client in clients:
            federation.start_node(f"node-{client}", client)
        federation.run(EXAMPLE, config)
        first = wait_until(lambda: records(folder), "the first round", federation)[0]
        # The kernel is kept, so the second round has the same cohort; one of its nodes is killed.
        victim = first["chosen"][0]
        name = f"node-{victim}"
        # The first message asked for the partition id, the second was round 1's probe and training.
        wait_until(lambda: received(federation, name) >= 3, "round 2's message", federation)
        federation.kill(name)
        lines = finished(federation, folder)

    rest = [client for client in clients if client != victim]
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["probed"] == lines[0]["answered"] == clients
    assert len(lines[0]["chosen"]) == m
    assert sorted(lines[0]["trained"]) == sorted(lines[0]["chosen"])
    assert lines[1]["chosen"] == lines[0]["chosen"]
    assert sorted(lines[1]["trained"]) == sorted(set(lines[1]["chosen"]) - {victim})
    assert [(one["client"], one["stage"]) for one in lines[1]["failed"]] == [(victim, "training")]
    assert lines[2]["probed"] == []
    assert lines[3]["probed"] == lines[3]["answered"] == rest
    for line in lines[2:]:
        assert sorted(line["chosen"]) == sorted(line["trained"]) == rest
        assert not line["failed"]
    assert lines[3]["clients"] == clients
    counts = [sum(client in line["trained"] for line in lines) for client in clients]
    assert lines[3]["counts"] == counts
    assert counts[clients.index(victim)] == 1
    accuracy = dict(zip(lines[3]["clients"], lines[3]["accuracy"], strict=True))
    assert [client for client in clients if accuracy[client] is None] == [victim]


@pytest.mark.minutes
def test_the_run_continues_when_a_supernode_is_killed_in_a_probe(tmp_path: Path) -> None:
    folder, clients = tmp_path / "run", [0, 6, 12, 18, 24]
    config = {
        **CONFIG,
        "num-server-rounds": 2,
        "evaluate-every": 2,
        "clients-per-round": 3,
        "wait-for-nodes": 5,
        "scheduler": "ADCS(refresh_every=1)",
        "folder": str(folder),
    }
    with Loopback(tmp_path / "home") as federation:
        federation.start_superlink()
        for client in clients:
            federation.start_node(f"node-{client}", client)
        federation.run(EXAMPLE, config)
        # One message asks for the partition id, then each round probes all nodes.
        wait_until(lambda: received(federation, "node-12") >= 3, "round 2's probe", federation)
        federation.kill("node-12")
        lines = finished(federation, folder)

    rest = [0, 6, 18, 24]
    assert lines[0]["probed"] == lines[0]["answered"] == clients
    assert lines[1]["probed"] == clients
    assert lines[1]["answered"] == rest
    assert [(one["client"], one["stage"]) for one in lines[1]["failed"]] == [(12, "probe")]
    assert len(lines[1]["chosen"]) == 3
    assert set(lines[1]["chosen"]) <= set(rest)
    assert sorted(lines[1]["trained"]) == sorted(lines[1]["chosen"])


@pytest.mark.minutes
def test_tls_and_authenticated_nodes(tmp_path: Path) -> None:
    certificates, foreign = tmp_path / "certificates", tmp_path / "foreign"
    make_certificates(certificates)
    make_certificates(foreign)
    names = ["node-0", "node-1", "other-authority", "unregistered"]
    keys = {name: make_node_key(certificates, name) for name in names}
    ids = {
        name: key_id(public_key_to_bytes(load_ssh_public_key(public.read_bytes())))
        for name, (_, public) in keys.items()
    }
    config = {
        **CONFIG,
        "num-server-rounds": 1,
        "clients-per-round": 2,
        "wait-for-nodes": 2,
        "authenticated": True,
    }
    with Loopback(tmp_path / "home", certificates=certificates) as federation:
        federation.start_superlink()
        for number, name in enumerate(names[:3]):
            federation.register(keys[name][1])
            # This node trusts another authority than the server's, and must not connect.
            federation.certificates = foreign if name == "other-authority" else certificates
            federation.start_node(name, number, keys[name][0])
        federation.certificates = certificates
        federation.start_node("unregistered", 3, keys["unregistered"][0])
        unregistered = federation.processes["unregistered"]

        federation.run(EXAMPLE, {**config, "folder": str(tmp_path / "first")})
        first = finished(federation, tmp_path / "first")
        assert unregistered.wait(timeout=LIMIT) != 0

        restarted = federation.processes["node-0"]
        restarted.terminate()
        restarted.wait(timeout=LIMIT)
        federation.start_node("node-0", 0, keys["node-0"][0])
        federation.run(EXAMPLE, {**config, "folder": str(tmp_path / "second")})
        second = finished(federation, tmp_path / "second")

        assert "Failed to activate SuperNode" in federation.log("unregistered")
        assert "CERTIFICATE_VERIFY_FAILED" in federation.log("other-authority")
        logs = {name: federation.log(name).count("SuperNode ID") for name in names}
        assert logs == {"node-0": 2, "node-1": 1, "other-authority": 0, "unregistered": 0}

    members = sorted([ids["node-0"], ids["node-1"]])
    for line in (*first, *second):
        assert line["clients"] == line["answered"] == line["trained"] == members
        assert line["counts"] == [1, 1]


def test_an_interrupted_federation_stops_all_processes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "run.py"), "federation", "--data", "synthetic"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("waiting"):
                break
        processes = process_tree([process.pid])
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    finally:
        process.kill()
        process.wait()
    # The script itself, a SuperLink, five SuperNodes, and `flwr run`.
    assert len(processes) >= 8
    assert not still_running(processes)
    assert not list(tmp_path.glob("adcs-flower-*"))


def server_apps(federation: Loopback) -> list[int]:
    """Return the processes of ServerApps that the SuperLink has started."""
    found = []
    for pid, _ in process_tree([federation.processes["superlink"].pid]):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(part.endswith(b"serverapp") for part in command[:3]):
                found.append(pid)
    return found


# On LocalGrid: tests/flower/test_checkpoints.py.
@pytest.mark.minutes
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes by /proc")
def test_a_killed_server_app_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, clients = tmp_path / "run", [0, 12]
    config = {
        **CONFIG,
        "num-server-rounds": 8,
        "evaluate-every": 8,
        "clients-per-round": 1,
        "wait-for-nodes": 2,
        "scheduler": "LiveADCS()",
        "folder": str(folder),
    }
    with Loopback(tmp_path / "home") as federation:
        federation.start_superlink()
        for client in clients:
            federation.start_node(f"node-{client}", client)
        for server_round in (3, 5, 7):
            federation.run(EXAMPLE, config)
            # The server is killed while this round is under way.
            done = server_round - 1
            wait_until(lambda n=done: len(records(folder)) >= n, f"round {done}", federation)
            killed = server_apps(federation)
            assert killed
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            federation.kill("run")
        federation.run(EXAMPLE, config)
        lines = finished(federation, folder)
    assert [line["server_round"] for line in lines] == list(range(1, 9))
    assert all(line["trained"] for line in lines)
    assert lines[-1]["counts"] == [sum(c in line["trained"] for line in lines) for c in clients]


SLOW = 20.0
"""Seconds by which a slow node is slower; a round of the others takes 3 to 10 seconds."""


def slow_federation(federation: Loopback, clients: list[int], slow: int | None) -> None:
    """Start a SuperLink with SuperNodes, one of which is slow."""
    federation.start_superlink()
    for client in clients:
        seconds = SLOW if client == slow else 0.0
        federation.start_node(f"node-{client}", client, slow_seconds=seconds)


@pytest.mark.minutes
def test_a_slow_supernode_is_outrun_and_its_late_reply_is_not_aggregated(tmp_path: Path) -> None:
    folder, clients, slow = tmp_path / "run", [0, 6, 12, 18], 18
    config = {
        **CONFIG,
        "num-server-rounds": 8,
        "evaluate-every": 8,
        "clients-per-round": 3,
        "over-select": 1.3,
        "wait-for-nodes": 4,
        "scheduler": "Uniform",
        "folder": str(folder),
    }
    with Loopback(tmp_path / "home") as federation:
        slow_federation(federation, clients, slow)
        federation.run(EXAMPLE, config)
        lines = finished(federation, folder)
    assert [line["server_round"] for line in lines] == list(range(1, 9))
    # The first round asks all four and ends with the third fastest.
    assert sorted(lines[0]["chosen"]) == clients
    assert lines[0]["outrun"] == [slow]
    assert all(sorted(line["trained"]) == [0, 6, 12] for line in lines)
    # While it works it is not asked; its reply comes later, is charged, and is not aggregated.
    arrived, late = next((line["server_round"], line["late"]) for line in lines if line["late"])
    assert late == [{"client": slow, "stage": "training", "server_round": 1}]
    assert all(line["pending"] == [slow] for line in lines[1 : arrived - 1])
    assert lines[arrived - 1]["updates"] - lines[arrived - 2]["updates"] == 4
    assert not any(line["timed_out"] or line["failed"] or line["refused"] for line in lines)


@pytest.mark.minutes
def test_a_buffer_takes_replies_to_old_models_and_frees_the_slot_of_a_dead_node(
    tmp_path: Path,
) -> None:
    folder, clients, slow, dead = tmp_path / "run", [0, 6, 12, 18], 18, 12
    config = {
        **CONFIG,
        "num-server-rounds": 20,
        "evaluate-every": 20,
        "deadline": "40",
        "buffer-size": 1,
        "concurrency": 4,
        "wait-for-nodes": 4,
        "scheduler": "Uniform",
        "folder": str(folder),
    }
    with Loopback(tmp_path / "home") as federation:
        slow_federation(federation, clients, slow)
        federation.run(EXAMPLE, config)
        # One message asks for the partition id; the second is the training.
        wait_until(lambda: received(federation, f"node-{dead}") >= 2, "its message", federation)
        federation.kill(f"node-{dead}")
        lines = finished(federation, folder)
    assert [line["server_round"] for line in lines] == list(range(1, 21))
    assert all(line["trained"] for line in lines)
    stale = [
        line["staleness"][line["trained"].index(slow)] for line in lines if slow in line["trained"]
    ]
    assert max(stale) >= 1
    # The others go on; the dead node's slot is free at the deadline, before its error comes.
    ended = next(i for i, line in enumerate(lines) if line["timed_out"])
    assert ended > 1
    assert lines[ended]["timed_out"] == {"training": [dead]}
    assert all(dead in line["pending"] for line in lines[1 : ended + 1])
    assert all(dead not in line["trained"] for line in lines)
