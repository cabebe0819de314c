"""adcs compare: run schedulers side by side and report the results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from adcs.cli.console import show_status, show_table, show_warning
from adcs.cli.errors import guarded, resumable
from adcs.cli.options import (
    Cluster,
    Config,
    Exact,
    Jobs,
    Part,
    Resume,
    Track,
    check_folder,
    merged,
    open_run,
    panel_option,
    takes_settings,
)
from adcs.experiments import tables
from adcs.experiments.comparison import Comparison
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.merge import parse_part
from adcs.experiments.page import PAGE
from adcs.experiments.ray_connection import check_address
from adcs.experiments.report import baseline_of, seeds_of
from adcs.experiments.runner import tasks
from adcs.experiments.statistics import Row
from adcs.experiments.tracking import TRACKERS, check_trackers, make_tracker
from adcs.simulation.datasets import DataUnavailable

SHOWN = 10
"""Number of class labels that are listed."""


@guarded
@takes_settings
def compare(
    given: dict[str, Any],
    fallback_data: Annotated[
        str | None,
        panel_option(
            "--fallback-data", metavar="NAME", help="Used if the data is unavailable.", panel="Data"
        ),
    ] = None,
    exact: Exact = False,
    config: Config = None,
    out: Annotated[
        Path | None,
        panel_option(
            "--out", metavar="DIR", help="Run folder. Default: runs/NAME-1, -2, ..", panel="Run"
        ),
    ] = None,
    resume: Resume = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    part: Part = None,
    track: Track = None,
) -> None:
    """Compare schedulers: the paper's six at the paper's setting, unless options say otherwise."""
    with_exact(given, exact)
    check_trackers(track or ())
    if cluster is not None:
        check_address(cluster)
    if resume is not None:
        others = {"fallback_data": fallback_data, "config": config, "out": out, "part": part}
        refuse_with_resume(resume, given, others)
        comparison = Comparison(open_run(resume))
    else:
        experiment = from_dict(merged(config, given))
        check_folder(experiment.data.name, experiment.data.folder)
        name = "compare" if config is None else config.stem
        which = None if part is None else parse_part(part)
        comparison = _created(experiment, fallback_data, out=out, name=name, part=which)
    _run(comparison, jobs, cluster, track or ())
    if resume is None and config is None and "schedulers" not in given:
        show_status(
            "LiveADCS, which the README recommends, is not one of the paper's six: "
            "adcs compare -s Uniform -s LiveADCS compares it"
        )


def with_exact(given: dict[str, Any], exact: bool) -> None:
    """Put the pass width of --exact into the settings given.

    >>> given = {"rounds": 10}
    >>> with_exact(given, True)
    >>> given
    {'rounds': 10, 'pass_width': 1}
    """
    if exact and "pass_width" in given:
        raise ValueError("--exact is a pass width of 1: --pass-width cannot be given with it")
    if exact:
        given["pass_width"] = 1


def refuse_with_resume(resume: Path, given: dict[str, Any], others: dict[str, Any]) -> None:
    """Raise ValueError if settings are given beside --resume.

    >>> refuse_with_resume(Path("runs/a"), {}, {"out": None})
    >>> refuse_with_resume(Path("runs/a"), {"rounds": 10}, {})
    Traceback (most recent call last):
    ...
    ValueError: --resume keeps the settings of runs/a; 'rounds' cannot be given with it
    """
    conflicts = [*given, *(name for name, value in others.items() if value is not None)]
    if conflicts:
        raise ValueError(
            f"--resume keeps the settings of {resume}; {conflicts[0]!r} cannot be given with it"
        )


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words, shortened if there are many.

    >>> listed(["cat", "dog"]), listed([str(label) for label in range(100)])
    ('cat, dog', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more')
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _created(experiment: Experiment, fallback: str | None, **more: Any) -> Comparison:
    """Make the run folder, on the fallback if there is one and the data is unavailable."""
    try:
        return Comparison.create(experiment, **more)
    except DataUnavailable as error:
        if fallback is None:
            raise
        show_status(str(error))
        show_warning(f"{experiment.data.name} is unavailable: this run is on {fallback} instead")
        note = (
            f"{experiment.data.name} is unavailable, so this run is on {fallback}: its numbers are "
            "not the paper's."
        )
        experiment = experiment.replace(data=fallback, data_folder=None)
        return Comparison.create(experiment, notes=[note], **more)


def resume_command(name: str, folder: Path, cluster: str | None, track: Sequence[str] = ()) -> str:
    """Return the command that resumes a run.

    >>> resume_command("compare", Path("runs/a b"), "auto", ["mlflow"])
    "adcs compare --resume 'runs/a b' --cluster auto --track mlflow"
    """
    options = [] if cluster is None else ["--cluster", cluster]
    options += [part for each in track for part in ("--track", each)]
    return shlex.join(["adcs", name, "--resume", str(folder), *options])


def _run(
    comparison: Comparison, jobs: int | None, cluster: str | None, track: Sequence[str]
) -> None:
    folder = comparison.folder
    with resumable(folder, resume_command("compare", folder, cluster, track)):
        if comparison.labels:
            show_status(f"the labels of the data are {listed(comparison.labels)}")
        show_status(f"results go to {folder}")
        trackers = [make_tracker(name, folder) for name in track]
        files = comparison.run(jobs=jobs, cluster=cluster, observers=trackers)
        for name in track:
            show_status(f"logged: {TRACKERS[name].format(folder=folder)}")
    if comparison.part is not None:
        show_part(comparison.part, len(tasks(comparison.experiment, comparison.part)))
        return
    show_comparison(comparison)
    show_status(f"{len(files)} files: {folder}/summary.md and {folder}/figures")
    show_status(f"the page of this run, for a browser: {folder / PAGE}")


def show_part(part: tuple[int, int], count: int) -> None:
    """Say that a part is done, and what is to be done with it."""
    i, n = part
    show_status(f"part {i} of {n} is done: {count} tasks; adcs merge OUT PART.. merges all {n}")


def show_comparison(comparison: Comparison) -> None:
    """Print the tables of a comparison and its notes."""
    show_results(comparison.rows(), comparison.experiment)
    for note in comparison.notes:
        show_warning(note)


def show_results(rows: Sequence[Row], experiment: Experiment) -> None:
    """Print the table of a comparison and, with several seeds, the paired differences."""
    show_table(tables.table_title(seeds_of(experiment)), *tables.summary_table(rows))
    if experiment.run.seeds > 1:
        title = tables.difference_title(baseline_of(experiment), rows)
        show_table(title, *tables.difference_table(rows))
