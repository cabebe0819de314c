"""adcs export: the tables of a run for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adcs.cli.console import show_status
from adcs.cli.errors import guarded
from adcs.cli.options import open_run
from adcs.experiments.export import FORMATS, export_run


@guarded
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    to: Annotated[
        str, typer.Option("--to", metavar="|".join(FORMATS), help="Format of the tables.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where files go. Default: RUN/export."),
    ] = None,
) -> None:
    """Write records, clients, cohorts and summary of a run as tables, or the summary as LaTeX."""
    for path in export_run(open_run(run), to, out):
        show_status(str(path))
