"""Makes the pictures of docs/howto/page.md: a comparison and a federation, in a real browser.

    make screenshots

It needs the extras cli, flower and page, the Python package playwright, and a chromium: the one in
CHROMIUM, or the first of /usr/bin/chromium and playwright's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def compared(folder: Path) -> Path:
    """Run a comparison of five schedulers over five seeds; return its run folder."""
    words = "compare --data digits --rounds 1500 --eval-every 25 --seeds 5 --lr 0.01 --exact"
    schedulers = ["Uniform", "PowerOfChoice", "DivFL", "ADCS", "LiveADCS"]
    command = [sys.executable, "-m", "adcs", *words.split(), "--out", str(folder)]
    for name in schedulers:
        command += ["-s", name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def federation(folder: Path, rounds: int = 45, pause: float = 0.0) -> Any:
    """Return a function that runs a federation of 18 clients at three sites, two of them failing.

    Client 7 fails whenever it trains, and all the rest of site B is offline from round 8 on.
    """
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from adcs import LiveADCS
    from adcs.flower import LocalGrid, Scheduled, probe_mod
    from adcs.observers import Observer

    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 12)) * 2.0
    points = np.array([centres[c % 3] + rng.normal(size=12) * (0.3 + 0.1 * c) for c in range(18)])
    app = ClientApp(mods=[probe_mod])

    def loss(w: Any, client: int) -> float:
        return float(0.5 * np.mean((w - points[client]) ** 2))

    @app.train()
    def train(message: Message, context: Any) -> Message:
        client = int(context.node_config["partition-id"])
        if client == 7:
            raise RuntimeError("out of memory")
        w = message.content["arrays"]["w"].numpy()
        step = (w - points[client]) * 0.2 + rng.normal(size=12) * 0.02
        metrics = MetricRecord({"train_loss": loss(w, client), "num-examples": 10 + client})
        arrays = ArrayRecord({"w": Array(w - step)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        client = int(context.node_config["partition-id"])
        found = loss(message.content["arrays"]["w"].numpy(), client)
        values = {"eval_loss": found, "eval_acc": float(np.exp(-found)), "num-examples": 10}
        return Message(RecordDict({"metrics": MetricRecord(values)}), reply_to=message)

    grid = LocalGrid(app, 18)

    class Faults(Observer):
        def on_selection(self, event: Any) -> None:
            time.sleep(pause)
            for client, node in enumerate(grid.nodes):
                if client % 3 == 1:
                    node.online = event.server_round < 8
            grid.nodes[7].online = True

    groups = {client: "ABC"[client % 3] for client in range(18)}
    strategy = Scheduled(
        FedAvg(),
        LiveADCS(groups=groups, caps=4),
        clients_per_round=6,
        folder=folder,
        observers=[Faults()],
    )
    initial = ArrayRecord({"w": Array(np.zeros(12))})
    return lambda: strategy.start(grid, initial, num_rounds=rounds, timeout=5.0)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the live page of a run folder; yield its address."""
    command = [sys.executable, "-m", "adcs", "watch", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait()


def pictures(run: Path, flower: Path) -> None:
    """Take the pictures."""
    from playwright.sync_api import sync_playwright

    page_file = (run / "report.html").as_uri()
    found = os.environ.get("CHROMIUM") or "/usr/bin/chromium"
    path = found if Path(found).exists() else None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)

        def shot(name: str, address: str, width: int, height: int, **more: Any) -> None:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=more.get("scheme", "light"),
            )
            page = context.new_page()
            page.goto(address)
            page.wait_for_selector("html[data-drawn]")
            page.locator("#slider").focus()
            for _ in range(more.get("steps", 0)):
                page.keyboard.press("ArrowLeft")
            if more.get("scheduler"):
                page.select_option("#scheduler", more["scheduler"])
            if more.get("client"):
                page.select_option("#client", more["client"])
            page.wait_for_timeout(400)
            page.evaluate("document.activeElement.blur()")
            if more.get("section"):
                page.evaluate(
                    "y => window.scrollTo(0, document.querySelector(y).offsetTop - 90)",
                    more["section"],
                )
                page.wait_for_timeout(200)
            page.screenshot(path=HERE / f"{name}.png", full_page=more.get("full", False))
            context.close()

        shot("file", page_file, 1200, 900)
        clients = {"scheduler": "ADCS", "section": "#h-clients"}
        shot("clients", page_file, 1200, 900, steps=30, client="7", **clients)
        shot("dark", page_file, 1200, 900, scheme="dark", steps=10, **clients)
        shot("phone", page_file, 390, 844)
        with served(flower) as address:
            shot("live", address, 1200, 900)
        browser.close()


def main() -> None:
    """Run everything in a temporary folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        run = compared(Path(base) / "comparison")
        flower = Path(base) / "federation"
        threading.Thread(target=federation(flower, 400, pause=0.25), daemon=True).start()
        time.sleep(20)  # some rounds
        pictures(run, flower)
    for picture in sorted(HERE.glob("*.png")):
        print(f"{picture.name}: {picture.stat().st_size // 1000} kB")
    sys.stdout.flush()
    os._exit(0)  # the federation still runs


if __name__ == "__main__":
    main()
