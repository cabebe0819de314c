"""adcs watch: the page of a run in progress."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adcs.cli.console import show_status
from adcs.cli.errors import guarded
from adcs.cli.options import open_run


@guarded
def watch(
    run: Annotated[Path, typer.Argument(help="Run folder, of a comparison or a federation.")],
    host: Annotated[
        str, typer.Option(help="Address to serve on; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ADCS_TOKEN",
            help="What viewers must have. Made and printed if the address is not loopback.",
        ),
    ] = None,
) -> None:
    """Serve the page of a run while it runs; the run folder is only read."""
    folder = open_run(run)
    if token is not None and len(token) < 8:
        raise ValueError(f"token must have 8 characters or more, got {len(token)}")
    try:
        from adcs.experiments.page.server import serve
    except ImportError as error:
        raise ValueError(
            f"adcs watch needs {error.name}, which is missing; pip install 'adcs[page]' brings it"
        ) from error
    serve(
        folder,
        host=host,
        port=port,
        token=token,
        ready=lambda address: show_status(f"watching {run}: {address} (Ctrl-C ends it)"),
    )
