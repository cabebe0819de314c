"""adcs theory: the paper's bounds next to the measurements of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adcs.cli.console import show_status, show_table
from adcs.cli.errors import guarded
from adcs.cli.options import open_run
from adcs.experiments.figures import write_csv
from adcs.experiments.records import checked_records
from adcs.experiments.runner import experiment_of
from adcs.experiments.theory import draw, policies
from adcs.theory.report import analyse

BIAS = {
    "scheduler": "scheduler",
    "bias": "bias",
    "gradient_norm": "‖g_N‖",
    "general": "general bound",
    "centred": "centred",
    "masses": "cluster bound",
    "clusters": "clusters chosen",
    "theorem1": "Theorem 1",
    "above_theorem1": "rounds above it",
    "epsilon": "largest bias",
}
CONVERGENCE = {
    "scheduler": "scheduler",
    "epsilon": "ε",
    "nu_sel": "ν_sel",
    "sigma": "σ",
    "optimisation": "optimisation",
    "bias": "bias",
    "variance": "variance",
    "drift": "drift",
    "total": "bound",
    "measured": "mean ‖g_N‖²",
}


@guarded
def theory(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    smoothness: Annotated[
        float | None, typer.Option(help="L of Theorem 2; by default the largest that lr allows.")
    ] = None,
) -> None:
    """Check the assumptions of the paper's theorems on a run, and draw its bounds."""
    folder = open_run(run)
    experiment = experiment_of(folder)
    checked_records(folder, experiment)
    found = analyse(folder, policies=policies(experiment), smoothness=smoothness)
    steps = experiment.training.steps
    of = "" if steps == 1 else f", of sums of E = {steps} gradients"
    _show(f"Bias and its bounds, means over rounds and seeds{of}", BIAS, found.schedulers)
    for row in found.schedulers:
        typer.echo(f"{row['scheduler']}: {_conditions(row)}")
    if found.convergence:
        square = "‖g_N‖²" if steps == 1 else f"‖g_N/{steps}‖²"
        columns = {**CONVERGENCE, "measured": f"mean {square}"}
        _show(f"Theorem 2: a bound on the mean of {square}", columns, found.convergence)
    for note in found.notes:
        typer.echo(f"- {note}")
    files = [draw(found, folder.figures / f"theory.{kind}") for kind in ("pdf", "png")]
    heads = [key for key in found.rounds[0] if key != "failed"]
    rows = [[row[key] for key in heads] for row in found.rounds]
    files.append(write_csv(folder.figures / "theory.csv", heads, rows))
    show_status("written: " + ", ".join(str(path) for path in files))


def _conditions(row: dict[str, Any]) -> str:
    if row["structured"] is not None and row["failed"] is None:
        share = row["structured"]
        some = f" in {100 * (1 - share):.0f} % of rounds" if share > 0 else ""
        return f"no cluster structure found{some}, so Theorem 1 does not apply"
    if row["failed"] is None:
        return "conditions of Theorem 1 not checked, for it has the general bound only"
    shares = [f"{name} in {100 * share:.0f} %" for name, share in row["failed"].items()]
    return "conditions of Theorem 1 that fail: " + (", ".join(shares) or "none")


def _show(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    cells = [[_cell(row.get(key)) for key in columns] for row in rows]
    show_table(title, list(columns.values()), cells)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.4g}"
