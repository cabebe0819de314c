"""The page of a large run: 1,000 clients, 2,000 evaluations, two schedulers, made up.

Prints the size of the page, the time to write it, and in chromium (CHROMIUM, or the one in PATH)
the time until everything is drawn and the time of a step of the slider. With `--viewers 200` it
prints instead how soon viewers of the live page get an event; with `--lag`, how soon the figures of
the live page have an evaluation: on such a run that goes on, or on a run in progress (`--run`).

    python benchmarks/bench_page.py [--clients 1000] [--evaluations 2000] [--run RUN]
                                    [--viewers 200 | --lag]
"""

import argparse
import asyncio
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np

from adcs.experiments.config import Experiment
from adcs.experiments.page import write_page
from adcs.experiments.runner import create_run, layout, tasks
from adcs.experiments.selections import SelectionWriter, compact, rounded, sample
from adcs.reports.report import ClientReport
from adcs.run_folder import RunFolder, record_line
from adcs.schedulers import ADCS
from adcs.schedulers.choice import as_record, explain_choice, pack_cosines

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def made_up(path: Path, clients: int, evaluations: int) -> RunFolder:
    """Write a run folder whose numbers are random and whose form is that of a run."""
    m = clients // 20
    experiment = Experiment.of(
        data="digits",
        partition="iid",
        clients=clients,
        m=m,
        rounds=10 * evaluations,
        eval_every=10,
        schedulers=["Uniform", "ADCS"],
    )
    folder = create_run(path, experiment)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((10, 20))
    scheduler = ADCS()
    reports = [
        ClientReport(c, 0, loss=rng.uniform(), update=centres[c % 10] + rng.standard_normal(20))
        for c in range(clients)
    ]
    scheduler.observe(0, reports, "probe")
    cohort = scheduler.select(0, range(clients), m)
    choice = compact(as_record(explain_choice(scheduler, range(clients), cohort)), clients)
    assert scheduler.dpp is not None
    assert scheduler.dpp.similarity is not None
    members = sample(clients)
    cosines = pack_cosines(scheduler.dpp.similarity[np.ix_(members, members)])
    (task,) = tasks(experiment)
    form = layout(experiment, task)
    writer = SelectionWriter(folder, task.name, form, 0)
    counts = np.zeros((2, clients), dtype=int)
    with folder.writer(task.name) as records:
        for step in range(evaluations + 1):
            done = 10 * step
            for run, label in enumerate(task.labels):
                accuracy = (1 - np.exp(-step / 300) * rng.uniform(0.5, 1, clients)).round(4)
                record = {
                    "scheduler": label,
                    "seed": 0,
                    "server_round": done,
                    "worst": accuracy.min(),
                    "worst20": np.sort(accuracy)[: clients // 5].mean(),
                    "average": accuracy.mean(),
                    "std": accuracy.std(),
                    "test_loss": 1.0,
                    "jain": 0.9,
                    "updates": m * done,
                    "extra_updates": 0,
                    "loss_evaluations": 0,
                    "bytes_up": 10 * done,
                    "bytes_down": 10 * done,
                    "seconds": float(done),
                    "accuracy": accuracy,
                    "losses": (1 - accuracy),
                    "counts": counts[run],
                }
                records.append(record)
                line = {
                    "scheduler": label,
                    "seed": 0,
                    "server_round": done,
                    "chosen": cohort.clients,
                    "weights": cohort.weights,
                    "normalise": True,
                    "diagnostics": {},
                    "choice": choice if run else {"available": []},
                    "plane": rounded((rng.standard_normal((clients, 2)) / 3).tolist(), 3),
                }
                if step % 40 == 0:
                    line["cosines"] = cosines
                if step < evaluations:
                    writer.write(b"", record_line(line))
            if step < evaluations:
                drawn = [
                    [rng.choice(clients, m, replace=False).tolist() for _ in range(10)]
                    for _ in range(2)
                ]
                writer.write(form.pack(drawn), b"")
                for run in range(2):
                    counts[run] += np.bincount(np.concatenate(drawn[run]), minlength=clients)
    writer.close()
    return folder


def in_browser(page: Path) -> None:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1200, "height": 900})
        started = time.perf_counter()
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-drawn]")
        print(f"opened and drawn: {1e3 * (time.perf_counter() - started):.0f} ms")
        opened.locator("#slider").focus()
        opened.keyboard.press("Home")
        steps = []
        for _ in range(60):
            opened.keyboard.press("ArrowRight")
            steps.append(float(opened.locator("html").get_attribute("data-drawn")))
        steps.sort()
        print(
            f"step of the slider: median {statistics.median(steps):.0f} ms, "
            f"95th percentile {steps[int(0.95 * len(steps))]:.0f} ms"
        )
        browser.close()


async def viewers(address: str, port: int, count: int, touch: Path) -> None:
    """Connect viewers and print how late they get the events of changes."""
    late: list[float] = []
    changed = [0.0]
    ready = asyncio.Semaphore(0)

    async def view() -> None:
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while line := await reader.readline():
            if line.startswith(b"data: "):
                if changed[0]:
                    late.append(time.monotonic() - changed[0])
                else:
                    ready.release()

    tasks = [asyncio.create_task(view()) for _ in range(count)]
    for _ in range(count):
        await ready.acquire()
    for number in range(10):
        changed[0] = time.monotonic()
        touch.write_text(
            f'{{"server_round": {number + 1}, "connected": ["a"], "at_work": ["a"], "time": 1}}'
        )
        await asyncio.sleep(1.5)
    for task in tasks:
        task.cancel()
    late.sort()
    print(
        f"{count} viewers, 10 changes, {len(late)} events received: median "
        f"{1e3 * statistics.median(late):.0f} ms, 99th percentile "
        f"{1e3 * late[int(0.99 * len(late))]:.0f} ms after the change"
    )


@contextmanager
def watched(folder: RunFolder) -> Iterator[str]:
    """Serve the live page of a run folder in a process of its own; yield its address."""
    command = [sys.executable, "-u", "-m", "adcs", "watch", str(folder.path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = (re.search(r"http://[^/]*", line) for line in process.stderr)
            yield next(found.group() for found in lines if found)
        finally:
            process.terminate()


def live(count: int, base: Path) -> None:
    folder = RunFolder.create(base / "live", {"engine": "flower", "scheduler": {"name": "ADCS"}})
    with watched(folder) as address:
        port = int(address.rpartition(":")[2])
        asyncio.run(viewers("127.0.0.1", port, count, folder.path / "status.json"))


def newest(folder: RunFolder) -> int:
    """Return the last evaluated round of the records."""
    found = -1
    for path in (folder.path / "records").glob("*.jsonl"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 1_000_000))
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines[-2:] if line.endswith(b"\n")]
        found = max([found, *(json.loads(line)["server_round"] for line in whole)])
    return found


def follow(address: str, versions: list[str]) -> None:
    """Append the version of the data whenever an event names another, as the page does."""
    with urllib.request.urlopen(f"{address}/events") as answer:
        for line in answer:
            if line.startswith(b"data: "):
                version = json.loads(line.removeprefix(b"data: "))["version"]
                if version not in versions[-1:]:
                    versions.append(version)


def shown(address: str) -> int:
    """Return the last evaluated round in the figures of the live page."""
    request = urllib.request.Request(f"{address}/data.json", headers={"accept-encoding": "gzip"})
    with urllib.request.urlopen(request) as answer:
        lines = json.loads(gzip.decompress(answer.read()))["curves"]["lines"].values()
    return max((line["x"]["server_round"][-1] for line in lines), default=-1)


def lag(folder: RunFolder, *, grow: bool, evaluations: int = 40) -> None:
    """Print how much later than the records the figures of the live page have an evaluation.

    Parameters
    ----------
    folder
        The run folder.
    grow
        Whether to add an evaluation every 0.6 s; otherwise the run is in progress.
    evaluations
        How many evaluations to wait for.
    """
    (file, *_) = (folder.path / "records").glob("*.jsonl")
    last = [json.loads(line) for line in file.read_text().splitlines()[-2:]] if grow else []
    written: dict[int, float] = {}
    late: list[float] = []
    versions: list[str] = []
    fetched = 0
    with watched(folder) as address:
        threading.Thread(target=follow, args=(address, versions), daemon=True).start()
        first, added = max(newest(folder), shown(address)), time.monotonic()
        ended = added + 120
        while len(late) < evaluations and time.monotonic() < ended:
            now = time.monotonic()
            if grow and now - added > 0.6:
                added = now
                for record in last:
                    record["server_round"] += 10
                with file.open("ab") as records:
                    records.writelines(map(record_line, last))
            if (done := newest(folder)) > first:
                written.setdefault(done, now)
                first = done
            if len(versions) > fetched:
                fetched = len(versions)
                there = shown(address)
                for done in [each for each in written if each <= there]:
                    late.append(time.monotonic() - written.pop(done))
            time.sleep(0.05)
    late.sort()
    print(
        f"{len(late)} evaluations: figures have them after {statistics.median(late):.1f} s "
        f"(median), {late[int(0.95 * len(late))]:.1f} s (95th percentile), at most {late[-1]:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--viewers", type=int, default=0)
    parser.add_argument("--lag", action="store_true")
    parser.add_argument("--run", type=Path, help="a run folder of one's own, instead")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        if given.viewers:
            live(given.viewers, base)
            return
        folder = (
            RunFolder.open(given.run)
            if given.run
            else made_up(base / "run", given.clients, given.evaluations)
        )
        if given.lag:
            lag(folder, grow=given.run is None)
            return
        started = time.perf_counter()
        page = write_page(folder, out=base / "report.html")
        print(f"written: {time.perf_counter() - started:.1f} s")
        print(f"size: {page.stat().st_size / 1e6:.2f} MB")
        in_browser(page)


if __name__ == "__main__":
    main()
