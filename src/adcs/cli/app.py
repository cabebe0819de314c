"""The typer application."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import adcs
from adcs._validation import did_you_mean
from adcs.cli.compare import compare
from adcs.cli.data import fetch_data, list_data, show_data
from adcs.cli.explain import explain
from adcs.cli.export import export
from adcs.cli.merge import merge
from adcs.cli.report import report
from adcs.cli.schedulers import schedulers
from adcs.cli.sweep import sweep
from adcs.cli.theory import theory
from adcs.cli.watch import watch


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
data = typer.Typer(cls=Commands, help="List, fetch and show data sets.", no_args_is_help=True)
data.command("list")(list_data)
data.command("fetch")(fetch_data)
data.command("show")(show_data)
app.add_typer(data, name="data")
app.command()(compare)
app.command()(sweep)
app.command()(merge)
app.command()(report)
app.command()(watch)
app.command()(explain)
app.command()(export)
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
