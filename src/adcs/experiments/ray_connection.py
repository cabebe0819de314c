"""The connection to a Ray cluster: checked in a child process first, quiet, closed at the end.

`ray.init` waits for minutes for an address where no cluster is, and its own threads print. Hence a
child process connects first, with a time limit. Ray is the extra `cluster`, imported here only.
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

import adcs
from adcs.experiments.runner import THREADS

CONNECT_SECONDS = 60.0
"""Time to connect to a cluster."""

PROBE = """
import logging, sys, warnings
warnings.simplefilter("ignore")
import ray
try:
    ray.init(address=sys.argv[1], logging_level=logging.CRITICAL, log_to_driver=False)
except Exception as error:
    sys.exit(" ".join(str(error).split()))
ray.shutdown()
"""
"""Connects to a cluster; ends with the reason if that fails."""


class ClusterError(ConnectionError):
    """A cluster cannot be reached, or cannot run the tasks.

    >>> raise ClusterError("the Ray cluster at 10.0.0.1:6379 cannot be reached")
    Traceback (most recent call last):
    ...
    adcs.experiments.ray_connection.ClusterError: the Ray cluster at 10.0.0.1:6379 cannot be reached
    """


def check_address(address: str) -> None:
    """Raise ValueError if no cluster can have the address, or if Ray is missing.

    >>> check_address("10.0.0.1")
    Traceback (most recent call last):
    ...
    ValueError: cluster must be auto or HOST:PORT, got '10.0.0.1'
    """
    if address.startswith("ray://"):
        raise ValueError(
            f"cluster must be auto or HOST:PORT, got {address!r}: results stream to a node of the "
            "cluster, so run this on a node, or let this machine join with: "
            "ray start --address=HOST:PORT --num-cpus=0"
        )
    if address != "auto" and not re.fullmatch(r"\S+:\d{1,5}", address):
        raise ValueError(f"cluster must be auto or HOST:PORT, got {address!r}")
    import_ray()


def import_ray() -> Any:
    """Return the module `ray`; raise ValueError if it is not installed.

    >>> import_ray().__name__
    'ray'
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "a cluster needs Ray, which is missing; pip install 'adcs[cluster]' brings it"
        ) from error
    return ray


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a cluster; yield the module `ray`, and disconnect at the end.

    Workers run the driver's copy of this package, with one thread each.

    Parameters
    ----------
    address
        HOST:PORT of the head node, or "auto": RAY_ADDRESS, else the cluster of this machine.
    """
    check_address(address)
    ray = import_ray()
    if ray.is_initialized():
        raise ValueError("this process is connected to Ray already; call ray.shutdown() first")
    _check_reachable(address)
    environment = {
        "py_modules": [str(Path(adcs.__file__).parent)],
        "excludes": ["__pycache__"],
        "env_vars": dict.fromkeys(THREADS, "1"),
    }
    with redirect_stdout(_WithoutRay(sys.stdout)):
        with _same_signals(), warnings.catch_warnings(action="ignore", category=FutureWarning):
            try:
                ray.init(
                    address=address,
                    logging_level=logging.CRITICAL,
                    log_to_driver=False,
                    runtime_env=environment,
                )
            except Exception as error:
                raise _unreachable(address, " ".join(str(error).split())) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise ClusterError if no connection to the cluster comes about in time."""
    host, _, port = address.rpartition(":")
    if host:
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise _unreachable(address, reason.lower()) from error
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE, address],
            capture_output=True,
            text=True,
            timeout=CONNECT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreachable(address, f"no answer in {CONNECT_SECONDS:.0f} s") from error
    if probe.returncode:
        reasons = probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"]
        raise _unreachable(address, reasons[-1])


def _unreachable(address: str, reason: str) -> ClusterError:
    where = "of this machine" if address == "auto" else f"at {address}"
    return ClusterError(f"the Ray cluster {where} cannot be reached: {reason.rstrip('.')}")


@contextmanager
def _same_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM, which `ray.init` replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray replaces none
            signal.signal(signal.SIGTERM, handler)


class _WithoutRay:
    """A stream without what Ray's own threads print, such as the logs of a lost node."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
