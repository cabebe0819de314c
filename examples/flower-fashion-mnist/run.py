"""Run the example on this machine, as a federation of processes or in Flower's simulation.

    python run.py federation             a SuperLink and five SuperNodes
    python run.py federation --secure    the same with TLS and authenticated SuperNodes
    python run.py simulation             thirty clients on Flower's simulation engine

prints each round's cohort and, at the end, a table of the clients. A federation then shows what one
slow SuperNode costs, in synchronous rounds and with over-selection. All processes are stopped at
the end, also on Ctrl-C. No network is needed beyond this machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from credentials import make_certificates, make_node_key
from loopback import Loopback, tail

from adcs.simulation.datasets import DataUnavailable, load

APP = Path(__file__).resolve().parent

# Five of the paper's thirty clients. The first two have the same class, so one of them is often
# redundant.
PARTITIONS = (0, 1, 9, 15, 21)

DEFAULTS: dict[str, dict[str, Any]] = {
    # A round takes seconds here, so there are few rounds with a larger learning rate.
    "federation": {
        "num-server-rounds": 8,
        "clients-per-round": 3,
        "evaluate-every": 8,
        "learning-rate": 0.05,
        "wait-for-nodes": len(PARTITIONS),
        "scheduler": "ADCS(theta=0.8, refresh_every=2)",
    },
    "simulation": {"num-server-rounds": 100},
}

STRAGGLER = {"num-server-rounds": 3, "clients-per-round": 4, "scheduler": "Uniform"}
"""The rounds that compare synchronous training with over-selection."""


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell starts background processes with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    simulation = options.engine == "simulation"
    folder = Path(options.folder or time.strftime(f"runs/{options.engine}-%Y%m%d-%H%M%S")).resolve()
    if (folder / "config.json").exists():
        print(f"{folder} already has a run: choose another --folder", file=sys.stderr)
        return 2
    config: dict[str, Any] = {**DEFAULTS[options.engine], "data": find_data(options.data)}
    config["folder"] = str(folder)
    if options.rounds is not None:
        config["num-server-rounds"] = options.rounds
    if options.scheduler is not None:
        config["scheduler"] = options.scheduler
    if options.secure:
        config["authenticated"] = True
    home = Path(tempfile.mkdtemp(prefix="adcs-flower-"))
    certificates = home / "certificates" if options.secure else None
    try:
        if certificates is not None:
            make_certificates(certificates)
        with Loopback(home, simulation=simulation, certificates=certificates) as federation:
            print("starting a SuperLink", flush=True)
            federation.start_superlink()
            if not simulation:
                print(f"starting {len(PARTITIONS)} SuperNodes", flush=True)
                start_nodes(federation, certificates)
            run = federation.run(APP, config, simulated_nodes=30 if simulation else None)
            print("waiting for the first round", flush=True)
            ended = follow(folder, run, int(config["num-server-rounds"]), options.limit)
            if not ended:
                print(tail(federation.log("run"), 40), file=sys.stderr)
                return 1
            print(f"\n{(folder / 'clients.txt').read_text()}\nthe record is in {folder}")
            if not (simulation or options.secure) and options.slow_seconds > 0:
                return outrun_straggler(federation, config, options)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except (RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=("federation", "simulation"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--scheduler", help='such as "ADCS(theta=0.5, sketch=256)" or Uniform')
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--folder", help="the run folder")
    parser.add_argument(
        "--limit", type=float, default=1200, help="seconds after which the run is stopped"
    )
    parser.add_argument(
        "--slow-seconds",
        type=float,
        default=30,
        help="how much slower one SuperNode is in the comparison at the end; 0 leaves it out",
    )
    parser.add_argument("--secure", action="store_true", help="TLS and authenticated SuperNodes")
    options = parser.parse_args()
    if options.secure and options.engine == "simulation":
        parser.error("--secure is for a federation: simulated nodes need no keys")
    return options


def find_data(name: str) -> str:
    """Return the name of the data set, or that of digits if it is unavailable."""
    try:
        load(name)
    except DataUnavailable as error:
        print(f"{error}\nusing scikit-learn's digits instead", file=sys.stderr)
        return "digits"
    return name


def start_nodes(federation: Loopback, certificates: Path | None) -> None:
    for number, partition in enumerate(PARTITIONS):
        private = None
        if certificates is not None:
            private, public = make_node_key(certificates, f"node-{number}")
            federation.register(public)
        federation.start_node(f"node-{number}", partition, private)


def outrun_straggler(
    federation: Loopback, config: dict[str, Any], options: argparse.Namespace
) -> int:
    """Train with a slow SuperNode, in synchronous rounds and over-selected; print both times."""
    last = len(PARTITIONS) - 1
    federation.terminate(f"node-{last}")
    federation.start_node("slow", PARTITIONS[last], slow_seconds=options.slow_seconds)
    rounds, m = STRAGGLER["num-server-rounds"], STRAGGLER["clients-per-round"]
    print(
        f"\nclient {PARTITIONS[last]} is now {options.slow_seconds:g} s slower: {rounds} rounds "
        f"with {m} replies",
        flush=True,
    )
    seconds: dict[str, float] = {}
    for name, factor in (("synchronous", 1.0), ("over-selected", len(PARTITIONS) / int(m))):
        folder = Path(f"{config['folder']}-{name}")
        settings = {**config, **STRAGGLER, "over-select": factor, "folder": str(folder)}
        settings["evaluate-every"] = int(rounds)
        run = federation.run(APP, settings)
        if not follow(folder, run, int(rounds), options.limit):
            print(tail(federation.log("run"), 40), file=sys.stderr)
            return 1
        lines = recorded(folder)
        seconds[name] = lines[-1]["seconds"]
        outrun = sum(PARTITIONS[last] in line.get("outrun", ()) for line in lines)
        print(f"{name}: {seconds[name]:.0f} s of training, outrun {outrun} times", flush=True)
    saved = seconds["synchronous"] - seconds["over-selected"]
    print(f"over-selection saved {saved:.0f} s of {seconds['synchronous']:.0f} s")
    return 0


def follow(folder: Path, run: subprocess.Popen[bytes], rounds: int, limit: float) -> bool:
    """Print each round's cohort as it is recorded; return whether the run was completed.

    The record decides: `flwr run` returns 0 also if the run fails.
    """
    deadline = time.monotonic() + limit
    shown = 0
    while True:
        ended = run.poll() is not None
        lines = recorded(folder)
        for line in lines[shown:]:
            if rounds <= 20 or line["server_round"] % (rounds // 10) == 0:
                chosen = " ".join(str(client) for client in line["chosen"])
                print(f"round {line['server_round']}/{rounds}: {chosen}", flush=True)
        shown = len(lines)
        if (folder / "clients.txt").exists():
            return shown == rounds
        if ended:
            print(f"the run ended after {shown} of {rounds} rounds:", file=sys.stderr)
            return False
        if time.monotonic() > deadline:
            print(f"{shown} of {rounds} rounds in {limit:.0f} s: stopped", file=sys.stderr)
            return False
        time.sleep(0.5)


def recorded(folder: Path) -> list[dict[str, Any]]:
    path = folder / "records" / "flower.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]


if __name__ == "__main__":
    sys.exit(main())
