"""One Flower round takes the files that docs/explanation/architecture.md names, and no others."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs adcs[flower]")

from flwr.serverapp.strategy import FedAvg

import adcs
from adcs import LiveADCS, Sketcher
from adcs.flower import Scheduled

SOURCE = Path(adcs.__file__).parent
LIMIT = 10

NOT_COUNTED = {"flower/local_grid.py", "flower/receive.py", "federated/warn_once.py"}
"""`LocalGrid` stands for Flower's own grid, and `ReplyStream` for the `send_and_receive` of a grid;
`WarnOnce` is a helper around the logger."""


def files_of(package: str) -> bool:
    return package.startswith(("flower/", "federated/")) or package == "run_folder.py"


def walked(run: Any) -> set[str]:
    """Return the files of the federation in which a function is called."""
    called: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            called.add(path.relative_to(SOURCE).as_posix())

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return {file for file in called if files_of(file)} - NOT_COUNTED


def named_on_the_page() -> set[str]:
    """Return the files in the last paragraph of the page's walk, which counts them."""
    page = (SOURCE.parents[1] / "docs" / "explanation" / "architecture.md").read_text()
    walk = page.split("## Following one Flower round")[1].split("\n## ")[0]
    counted = re.search(r"These are (\d+) files: ([\w,\s]+)\.", walk)
    assert counted is not None
    names = [name.strip() for name in counted[2].split(",")]
    assert len(names) == int(counted[1])
    return set(names)


def test_a_round_with_a_probe_and_weights_stays_in_the_files_of_the_page(
    toy: Any, tmp_path: Path
) -> None:
    scheduler = LiveADCS(sketch=Sketcher(size=32), seed=1)
    strategy = Scheduled(FedAvg(), scheduler, clients_per_round=3, folder=tmp_path)
    grid = toy.grid()
    files = walked(lambda: strategy.start(grid, toy.initial(), num_rounds=1))
    assert {Path(file).stem for file in files} == named_on_the_page()
    assert len(files) <= LIMIT
