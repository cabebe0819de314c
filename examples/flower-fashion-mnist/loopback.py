"""Starts and stops Flower's processes on this machine.

Each process leads its own session, so that Ctrl-C in the terminal reaches only this script, which
then stops them in order. Ports are free ones, and Flower's home is a separate folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
NAME = "loopback"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # One thread each: there are more processes than cores.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class Loopback:
    """A SuperLink, SuperNodes and runs, which are stopped at the end of the `with` block.

    Parameters
    ----------
    home
        A folder for logs and Flower's own files.
    simulation
        Whether the SuperLink simulates its nodes (on Ray) rather than waiting for SuperNodes.
    certificates
        A folder with ca.crt, server.crt and server.key; enables TLS and node authentication.
    """

    def __init__(
        self, home: Path, *, simulation: bool = False, certificates: Path | None = None
    ) -> None:
        self.home = home.resolve()
        self.simulation = simulation
        self.certificates = None if certificates is None else certificates.resolve()
        self.port = free_port()
        # SuperNodes of Flower 1.38 have a port of their own at the SuperLink.
        old = version("flwr").split(".")[:2] == ["1", "38"]
        self.fleet_port = free_port() if old else self.port
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # Flower starts further programs by name.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": path}

    def __enter__(self) -> Loopback:
        self.home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true"
        if self.certificates is not None:
            trust = f'root-certificates = "{self.certificates / "ca.crt"}"'
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n'
            f'[superlink.{NAME}]\naddress = "{HOST}:{self.port}"\n{trust}\n'
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self, name: str) -> str:
        """Return the output of a process so far."""
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process in the background, with its output in a log file of its name."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def start_superlink(self, wait: float = 120.0) -> None:
        """Start the SuperLink and wait until it answers."""
        command = ["flower-superlink", "--disable-runtime-dependency-installation"]
        command += ["--host", HOST, "--port", str(self.port)]
        if self.fleet_port != self.port:
            command += ["--fleet-api-address", f"{HOST}:{self.fleet_port}"]
        if self.simulation:
            command.append("--simulation")
        if self.certificates is None:
            command.append("--insecure")
        else:
            command += ["--ssl-ca-certfile", str(self.certificates / "ca.crt")]
            command += ["--ssl-certfile", str(self.certificates / "server.crt")]
            command += ["--ssl-keyfile", str(self.certificates / "server.key")]
            command.append("--enable-supernode-auth")
        process = self.start("superlink", command)
        deadline = time.monotonic() + wait
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the SuperLink did not start:\n{tail(self.log('superlink'))}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        scheme, context = "http", None
        if self.certificates is not None:
            scheme = "https"
            context = ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        try:
            url = f"{scheme}://{HOST}:{self.port}/health"
            with urllib.request.urlopen(url, timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def start_node(
        self, name: str, partition: int, key: Path | None = None, *, slow_seconds: float = 0.0
    ) -> None:
        """Start a SuperNode with a partition.

        Parameters
        ----------
        name, partition
            The name of the process, and the partition id.
        key
            The private key.
        slow_seconds
            How much longer the node takes to train than it needs.
        """
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.fleet_port}"]
        command += ["--host", HOST, "--port", str(free_port())]
        slow = f" slow-seconds={float(slow_seconds)}" if slow_seconds else ""
        command += ["--node-config", f"partition-id={partition}{slow}"]
        if self.certificates is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(self.certificates / "ca.crt")]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key)]
        self.start(name, command)

    def register(self, public_key: Path) -> None:
        """Register a node's public key with the SuperLink."""
        command = ["flwr", "supernode", "register", str(public_key), NAME]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120
        )
        if "registered successfully" not in done.stdout:
            raise RuntimeError(f"{public_key} was not registered:\n{done.stdout}{done.stderr}")

    def run(
        self, app: Path, config: Mapping[str, Any], *, simulated_nodes: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a run; the returned process ends with the run, also if it fails."""
        command = ["flwr", "run", str(app), NAME, "--stream", "--run-config", toml_pairs(config)]
        if simulated_nodes is not None:
            resources = f"num-supernodes={simulated_nodes} client-resources-num-cpus=1"
            command += ["--federation-config", resources]
        return self.start("run", command)

    def kill(self, name: str) -> None:
        """Kill a process and its descendants."""
        process = self.processes.pop(name)
        _signal(process_tree([process.pid]), signal.SIGKILL)
        process.wait()

    def terminate(self, name: str) -> None:
        """End a process in an orderly way: a SuperNode disconnects."""
        process = self.processes.pop(name)
        process.terminate()
        process.wait()

    def stop(self, patience: float = 10.0) -> None:
        """Terminate every process, and kill those that remain after `patience` seconds."""
        if not self.processes:
            return
        # A second Ctrl-C must not interrupt this.
        before = _ignore_interrupts()
        started = list(self.processes.values())
        processes = self._all_processes()
        for process in started:
            process.terminate()
        deadline = time.monotonic() + patience
        while any(process.poll() is None for process in started) and time.monotonic() < deadline:
            time.sleep(0.1)
        # Descendants need no clean exit; more may have been started in the meantime.
        _signal(still_running(processes) | self._all_processes(), signal.SIGKILL)
        for process in started:
            process.wait()
        self.processes.clear()
        if before is not None:
            signal.signal(signal.SIGINT, before)

    def _all_processes(self) -> set[Process]:
        """Return all running processes that were started here, with their descendants."""
        running = {pid for (pid, _), _, _ in _list_processes()}
        # The id of a process that has ended may have been reused.
        return process_tree(
            process.pid
            for process in self.processes.values()
            if process.poll() is None or process.pid not in running
        )


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def toml_pairs(config: Mapping[str, Any]) -> str:
    """Return a run config as `flwr run` expects it: key=value pairs with TOML values."""
    # Strings, numbers and booleans are the same in JSON and TOML.
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def tail(text: str, lines: int = 25) -> str:
    """Return the last lines of a log."""
    return "\n".join(text.splitlines()[-lines:])


Process = tuple[int, str]
"""A process id and its start time, because ids are reused."""


def _list_processes() -> list[tuple[Process, int, int]]:
    """Return every process that is not a zombie, with its parent and its group."""
    columns = "pid=,ppid=,pgid=,stat=,lstart="
    listed = subprocess.run(["ps", "-A", "-o", columns], capture_output=True, text=True, check=True)
    rows = [line.split(None, 4) for line in listed.stdout.splitlines()]
    return [
        ((int(pid), start), int(parent), int(group))
        for pid, parent, group, stat, start in rows
        if stat[0] != "Z"
    ]


def process_tree(roots: Iterable[int]) -> set[Process]:
    """Return processes and all their descendants.

    Some descendants lead their own session but have a parent; others have lost their parent but are
    still in the process group.
    """
    listing = _list_processes()
    known = set(roots)
    found: set[Process] = set()
    while new := {
        process
        for process, parent, group in listing
        if process not in found and not known.isdisjoint((process[0], parent, group))
    }:
        found |= new
        known |= {pid for pid, _ in new}
    return found


def still_running(processes: set[Process]) -> set[Process]:
    """Return those of the processes that have not ended."""
    return processes & {process for process, _, _ in _list_processes()}


def _signal(processes: set[Process], number: int) -> None:
    for pid, _ in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _ignore_interrupts() -> Any:
    """Ignore Ctrl-C from now on; return the previous handler, if it can be set."""
    try:
        return signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread
        return None
