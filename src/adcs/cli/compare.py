"""adcs compare: run schedulers side by side and report the results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from adcs._npz import gigabytes, memory
from adcs.cli.console import progress, show_status, show_table, show_warning
from adcs.cli.errors import guarded, resumable
from adcs.cli.options import check_folder, merged, open_run, panel_option, takes_settings
from adcs.experiments import tables
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.ray_connection import check_address
from adcs.experiments.records import checked_records
from adcs.experiments.report import baseline_of, results, seeds_of, warnings, write_report
from adcs.experiments.runner import create_run, experiment_of, run_experiment
from adcs.experiments.statistics import FEWEST, Row
from adcs.run_folder import RunFolder, next_folder
from adcs.simulation.datasets import Dataset, DataUnavailable

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
    exact: Annotated[
        bool,
        panel_option(
            "--exact",
            help="Run each scheduler alone: its bits then do not depend on the others.",
            panel="Run",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        panel_option(
            "--config",
            metavar="FILE.toml",
            help="File of settings; options take precedence.",
            panel="Run",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        panel_option(
            "--out", metavar="DIR", help="Run folder. Default: runs/NAME-1, -2, ..", panel="Run"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        panel_option("--resume", metavar="DIR", help="Resume an unfinished run.", panel="Run"),
    ] = None,
    jobs: Annotated[
        int | None,
        panel_option(
            "--jobs", "-j", min=1, help="Number of processes. Default: one per core.", panel="Run"
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        panel_option(
            "--cluster",
            metavar="HOST:PORT|auto",
            help="Run on a Ray cluster; auto is that of this machine.",
            panel="Run",
        ),
    ] = None,
) -> None:
    """Compare schedulers: the paper's six at the paper's setting, unless options say otherwise."""
    if exact and "pass_width" in given:
        raise ValueError("--exact is a pass width of 1: --pass-width cannot be given with it")
    if exact:
        given["pass_width"] = 1
    if cluster is not None:
        check_address(cluster)
    if resume is not None:
        others = {"fallback_data": fallback_data, "config": config, "out": out}
        conflicts = [*given, *(name for name, value in others.items() if value is not None)]
        if conflicts:
            raise ValueError(
                f"--resume keeps the settings of {resume}; {conflicts[0]!r} cannot be given with it"
            )
        folder = open_run(resume)
        experiment = experiment_of(folder)
        notes = list(folder.config.get("notes", []))
    else:
        experiment = from_dict(merged(config, given))
        check_folder(experiment.data.name, experiment.data.folder)
        experiment, dataset, notes = _with_data(experiment, fallback_data)
        _check_model(experiment, dataset)
        name = "compare" if config is None else config.stem
        path = out or next_folder(Path("runs"), name)
        folder = create_run(path, experiment, dataset, notes=notes)
        if dataset.labels:
            show_status(f"the labels of the data are {listed(dataset.label_names)}")
    _run(folder, experiment, notes, jobs, cluster)


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words, shortened if there are many.

    >>> listed(["cat", "dog"]), listed([str(label) for label in range(100)])
    ('cat, dog', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more')
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _check_model(experiment: Experiment, dataset: Dataset) -> None:
    """Refuse a model that memory cannot hold once; a worker process would be killed."""
    size = experiment.make_model(dataset).size
    if (needed := 8 * size) > memory():
        raise ValueError(
            f"model {experiment.model.name} has {size:,} parameters, "
            f"{gigabytes(needed)}, more than the {gigabytes(memory())} of memory"
        )


def _with_data(
    experiment: Experiment, fallback: str | None
) -> tuple[Experiment, Dataset, list[str]]:
    """Load the data, or the fallback if there is one and the data is unavailable."""
    try:
        return experiment, experiment.dataset(), []
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
        return experiment, experiment.dataset(), [note]


def _run(
    folder: RunFolder,
    experiment: Experiment,
    notes: list[str],
    jobs: int | None,
    cluster: str | None,
) -> None:
    command = f"adcs compare --resume {shlex.quote(str(folder.path))}"
    if cluster is not None:
        command += f" --cluster {shlex.quote(cluster)}"
    with resumable(folder.path, command):
        show_status(f"results go to {folder.path}")
        with progress("compare") as report:
            run_experiment(folder, experiment, jobs=jobs, progress=report, cluster=cluster)
        checked_records(folder, experiment)
        notes = [*notes, *warnings(folder, experiment)]
        files = write_report(folder, experiment, notes)
    show_results(results(folder, experiment), experiment)
    for note in notes:
        show_warning(note)
    show_status(f"{len(files)} files: {folder.path}/summary.md and {folder.path}/figures")


def show_results(rows: Sequence[Row], experiment: Experiment) -> None:
    """Print the table of a comparison and, with several seeds, the paired differences."""
    title = "Mean of the last tenth of evaluations"
    if experiment.run.seeds >= FEWEST:
        title += f", ± 95 % interval over {experiment.run.seeds} seeds"
    elif experiment.run.seeds > 1:
        title += f" of {' / '.join(f'seed {seed}' for seed in seeds_of(experiment))}"
    show_table(title, *tables.summary_table(rows))
    if experiment.run.seeds > 1:
        title = f"Paired differences to {baseline_of(experiment)}"
        if any(row.p for row in rows):
            title += ", 95 % interval of each alone, p by Holm's method"
        show_table(title, *tables.difference_table(rows))
