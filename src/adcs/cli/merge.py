"""adcs merge: one run folder from the parts that a batch queue ran."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adcs.cli.compare import show_comparison
from adcs.cli.console import show_status
from adcs.cli.errors import guarded
from adcs.cli.sweep import show_sweep
from adcs.experiments.comparison import Comparison
from adcs.experiments.merge import SWEEP, merge_parts
from adcs.experiments.sweep import Sweep


@guarded
def merge(
    out: Annotated[Path, typer.Argument(help="Run folder to make.")],
    parts: Annotated[list[Path], typer.Argument(metavar="PART..", help="Folders of all parts.")],
) -> None:
    """Merge the parts (--part i/n) of a comparison or sweep; the bytes are those of one run."""
    merge_parts(out, parts)
    if (out / SWEEP).is_file():
        sweep = Sweep.open(out)
        sweep.run()
        show_sweep(sweep)
        return
    comparison = Comparison.open(out)
    comparison.report()
    show_comparison(comparison)
    show_status(f"{len(parts)} parts are merged: {out}/summary.md and {out}/figures")
