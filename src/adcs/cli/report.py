"""adcs report: the page of a run, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adcs.cli.console import show_status
from adcs.cli.errors import guarded
from adcs.cli.options import open_run
from adcs.experiments.page import write_page


@guarded
def report(
    run: Annotated[Path, typer.Argument(help="Run folder, of a comparison or a federation.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file. Default: RUN/report.html.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed whose clients are shown; the first by default.")
    ] = None,
) -> None:
    """Write the page of a run: one HTML file that needs no network."""
    path = write_page(open_run(run), seed, out)
    show_status(f"the page is {path}")
