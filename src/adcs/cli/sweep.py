"""adcs sweep: one scheduler at every point of a grid of settings."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

from adcs._validation import brief
from adcs.cli.compare import refuse_with_resume, resume_command, show_part, with_exact
from adcs.cli.console import show_status, show_table, show_warning
from adcs.cli.errors import guarded, resumable
from adcs.cli.options import (
    Cluster,
    Config,
    Exact,
    Jobs,
    Part,
    Resume,
    check_folder,
    literal,
    merged,
    panel_option,
    takes_settings,
)
from adcs.experiments import tables
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.merge import parse_part
from adcs.experiments.ray_connection import check_address
from adcs.experiments.statistics import COMPARED
from adcs.experiments.sweep import Grid, Sweep


@guarded
@takes_settings
def sweep(
    given: dict[str, Any],
    grid: Annotated[
        list[str] | None,
        panel_option(
            "--grid",
            metavar="NAME=V,V,..",
            help="Values of a setting of the scheduler, the experiment or the partition; repeat "
            "for more.",
            panel="Grid",
        ),
    ] = None,
    best_by: Annotated[
        str | None,
        panel_option(
            "--best-by",
            help=f"Metric of the best point: {', '.join(COMPARED)}.",
            panel="Grid",
            default="worst",
        ),
    ] = None,
    confirm: Annotated[
        int | None,
        panel_option(
            "--confirm",
            metavar="SEEDS",
            min=1,
            help="Run the best point again on so many other seeds.",
            panel="Grid",
        ),
    ] = None,
    exact: Exact = False,
    config: Config = None,
    out: Annotated[
        Path | None,
        panel_option(
            "--out", metavar="DIR", help="Folder. Default: runs/sweep-1, -2, ..", panel="Run"
        ),
    ] = None,
    resume: Resume = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    part: Part = None,
) -> None:
    """Run one scheduler at every point of a grid of settings, and name the best point."""
    with_exact(given, exact)
    if cluster is not None:
        check_address(cluster)
    if resume is not None:
        others = {"config": config, "out": out, "part": part, "grid": grid, "best_by": best_by}
        refuse_with_resume(resume, given, others)
        found = Sweep.open(resume)
    else:
        which = None if part is None else parse_part(part)
        experiment = from_dict(merged(config, given))
        check_folder(experiment.data.name, experiment.data.folder)
        found = Sweep.create(
            made_grid(experiment, grid or []), out, metric=best_by or "worst", part=which
        )
    with resumable(found.folder, resume_command("sweep", found.folder, cluster)):
        show_status(f"results go to {found.folder}")
        found.run(jobs=jobs, cluster=cluster, confirm=confirm)
    if found.part is not None:
        show_part(found.part, found.tasks)
        return
    show_sweep(found)


def made_grid(experiment: Experiment, texts: list[str]) -> Grid:
    """Return the grid of texts such as "theta=0.2,0.5"; the experiment has the one scheduler.

    >>> grid = made_grid(Experiment.of(schedulers=["ADCS"]), ["theta=0.2,0.5", "dtype=float64"])
    >>> grid.axes
    {'theta': [0.2, 0.5], 'dtype': ['float64']}
    """
    count = len(experiment.schedulers)
    if count != 1:
        raise ValueError(f"a sweep is of one scheduler (-s ADCS), got {count}")
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not values.strip():
            raise ValueError(f"--grid must look like theta=0.2,0.5,0.8; got {brief(text)}")
        if name in axes:
            raise ValueError(f"--grid has {name} twice; give its values in one list")
        axes[name] = grid_values(values)
    ((label, spec),) = experiment.schedulers.items()
    return Grid(spec, label, axes, experiment)


def grid_values(text: str) -> list[Any]:
    """Return the values of an axis; a value with a comma stands in brackets or quotes.

    >>> grid_values("0.2,0.5"), grid_values("iid,by-class"), grid_values("[64,32],[]")
    ([0.2, 0.5], ['iid', 'by-class'], [[64, 32], []])
    """
    try:
        return list(ast.literal_eval(f"[{text}]"))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return [literal(part.strip()) for part in text.split(",")]


def show_sweep(found: Sweep) -> None:
    """Print the table of a sweep, the best point and notes."""
    title = tables.table_title(range(found.grid.experiment.run.seeds))
    show_table(f"{found.grid.label}: {title[0].lower()}{title[1:]}", *found.table())
    show_status(found.conclusion())
    for note in dict.fromkeys(note for each in found.runs for note in each.notes):
        show_warning(note)
    show_status(f"{found.folder}/summary.md and {found.folder}/figures")
