"""The ServerApp: FedAvg, with clients selected by the scheduler in the config."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from adcs.experiments.specs import make_scheduler
from adcs.flower import Scheduled
from adcs.rounds import Buffered
from fashion.strategy import EvaluateEvery
from fashion.table import table
from fashion.task import workload

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    rounds = int(config["num-server-rounds"])
    folder = Path(str(config["folder"]) or time.strftime("runs/flower-%Y%m%d-%H%M%S"))
    strategy = Scheduled(
        EvaluateEvery(int(config["evaluate-every"]), last=rounds),
        make_scheduler(str(config["scheduler"]), seed=int(config["seed"])),
        **slow_clients(config),
        authenticated=bool(config["authenticated"]),
        folder=folder,
    )
    wait_for_nodes(grid, int(config["wait-for-nodes"]), float(config["wait-seconds"]))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(workload(config).initial())}),
        # After a restart of the server, the folder has the rounds that were done.
        num_rounds=rounds - strategy.rounds_done,
        timeout=float(config["timeout"]),
    )
    text = table(folder)
    (folder / "clients.txt").write_text(text + "\n")
    print(text)


def slow_clients(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how rounds end: with all replies, with the first ones, or with a full buffer."""
    text = str(config["deadline"])
    deadline: Any = text if text in ("", "adaptive") else float(text)
    if int(config["buffer-size"]):
        mode = Buffered(size=int(config["buffer-size"]), concurrency=int(config["concurrency"]))
        return {"mode": mode, "deadline": deadline or None}
    over_select = float(config["over-select"])
    return {
        "clients_per_round": int(config["clients-per-round"]),
        "over_select": over_select if over_select > 1.0 else None,
        "deadline": deadline or None,
    }


def wait_for_nodes(grid: Grid, nodes: int, seconds: float) -> None:
    """Wait until this many nodes are connected; raise TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while (connected := len(list(grid.get_node_ids()))) < nodes:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{connected} of {nodes} nodes are connected after {seconds:.0f} s")
        time.sleep(0.5)
