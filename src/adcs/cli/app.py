"""The typer application, and its command `data`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import adcs
from adcs._validation import did_you_mean
from adcs.cli.compare import compare
from adcs.cli.console import show_table
from adcs.cli.errors import guarded
from adcs.cli.explain import explain
from adcs.cli.merge import merge
from adcs.cli.options import check_folder
from adcs.cli.schedulers import schedulers
from adcs.cli.sweep import sweep
from adcs.cli.theory import theory
from adcs.simulation.datasets import available, fetch


class Commands(TyperGroup):
    """A group of commands; an unknown command gets one suggestion."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"there is no command {name!r}; {did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    help="Client scheduling for federated learning: compare schedulers on the simulator.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(cls=Commands, help="List and fetch data sets.", no_args_is_help=True)
app.add_typer(data, name="data")
app.command()(compare)
app.command()(sweep)
app.command()(merge)
app.command()(explain)
app.command()(theory)
app.command()(schedulers)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adcs {adcs.__version__}")
        raise typer.Exit


@app.callback()
def _set_up(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    # Messages of the library, such as those about downloads, go to stderr.
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("adcs").setLevel(logging.INFO)


@data.command("list")
@guarded
def list_data(
    folder: Annotated[Path | None, typer.Option(help="Folder to look in first.")] = None,
) -> None:
    """List the data sets that are known by name, and whether they are on this machine."""
    rows = [
        [entry.name, "yes" if entry.here else "no", entry.where, entry.what]
        for entry in available(folder)
    ]
    show_table("Data sets", ["name", "here", "from", "what"], rows, text=True)
    typer.echo("Your own: --data FILE.npz with x_train, y_train, x_test and y_test.")


@data.command("fetch")
@guarded
def fetch_data(
    name: Annotated[str, typer.Argument(help="Name of the data set: see adcs data list.")],
    folder: Annotated[Path | None, typer.Option(help="Folder with its files.")] = None,
) -> None:
    """Fetch a data set and verify it."""
    if name in [entry.name for entry in available()]:  # fetch refuses other names.
        check_folder(name, folder, "--folder")
    found = fetch(name, folder)
    typer.echo(
        f"{found.name}: {len(found.x_train):,} training and {len(found.x_test):,} test examples, "
        f"{found.x_train.shape[1]} features, {found.classes} classes; from {found.source}"
    )
