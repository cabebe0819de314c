"""adcs compare: schedulers side by side, on any data, at any setting."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adcs.cli.errors import guarded, resumable
from adcs.cli.options import (
    absolute,
    check_folder,
    merged,
    open_run,
    pairs,
    schedulers,
    sizes,
)
from adcs.experiments import tables
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.console import progress, say, shout, show_table
from adcs.experiments.records import checked_records
from adcs.experiments.report import baseline_of, results, seeds_of, warnings, write_report
from adcs.experiments.runner import create_run, experiment_of, run_experiment
from adcs.experiments.statistics import FEWEST, Row
from adcs.run_folder import RunFolder, next_folder
from adcs.simulation.datasets import Dataset, DataUnavailable

WHAT, DATA, TRAINING, RUN = "What is compared", "Data and clients", "Training", "The run"
PAPER = Experiment()

SHOWN = 10
"""Labels that are named."""


def _option(*names: str, help: str, panel: str, **more: Any) -> Any:
    """Return an option; its help ends with the default of the experiment's setting."""
    key = names[0].split("/")[0].lstrip("-").replace("-", "_")
    default = getattr(PAPER, {"scheduler": "schedulers"}.get(key, key), None)
    if isinstance(default, bool):
        default = "yes" if default else "no"
    elif isinstance(default, Mapping):
        default = ", ".join(default)
    elif default == ():
        default = "none"
    help = f"{help} Default: {default}." if default not in (None, "") else help
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


@guarded
def compare(
    scheduler: Annotated[
        list[str] | None,
        _option(
            "--scheduler",
            "-s",
            metavar="[LABEL=]SPEC",
            help="A scheduler (adcs schedulers) such as ADCS, 'ADCS(theta=0.5)' or file.py:Class; "
            "repeat for more.",
            panel=WHAT,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        _option(
            "--baseline",
            metavar="LABEL",
            help="Take differences to this one; to Uniform, or else the first, by default.",
            panel=WHAT,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        _option("--seeds", help="Number of seeds; three and more give intervals.", panel=WHAT),
    ] = None,
    first_seed: Annotated[
        int | None, _option("--first-seed", help="The first of them.", panel=WHAT)
    ] = None,
    data: Annotated[
        str | None,
        _option(
            "--data",
            metavar="NAME|FILE.npz",
            help="A data set (adcs data list), or a file with x_train, y_train, x_test, y_test.",
            panel=DATA,
        ),
    ] = None,
    data_folder: Annotated[
        str | None, _option("--data-folder", help="Where Fashion-MNIST's files are.", panel=DATA)
    ] = None,
    fallback_data: Annotated[
        str | None,
        _option(
            "--fallback-data", metavar="NAME", help="Used if the data cannot be had.", panel=DATA
        ),
    ] = None,
    partition: Annotated[
        str | None,
        _option("--partition", help="by-class, dirichlet, shards or iid.", panel=DATA),
    ] = None,
    partition_settings: Annotated[
        str | None,
        _option(
            "--partition-settings", metavar="NAME=VALUE,..", help="Such as alpha=0.1.", panel=DATA
        ),
    ] = None,
    clients: Annotated[
        int | None, _option("--clients", help="Their number, N.", panel=DATA)
    ] = None,
    network: Annotated[
        str | None,
        _option(
            "--network",
            metavar="NAME=VALUE,..",
            help="Settings of the virtual network, such as availability=0.8,deadline=30.",
            panel=DATA,
        ),
    ] = None,
    m: Annotated[int | None, _option("--m", help="Clients per round.", panel=TRAINING)] = None,
    rounds: Annotated[
        int | None, _option("--rounds", help="Number of rounds, T.", panel=TRAINING)
    ] = None,
    eval_every: Annotated[
        int | None, _option("--eval-every", help="Rounds between evaluations.", panel=TRAINING)
    ] = None,
    hidden: Annotated[
        str | None,
        _option("--hidden", metavar="SIZES", help="Hidden layers, such as 64,32.", panel=TRAINING),
    ] = None,
    batch_size: Annotated[
        int | None, _option("--batch-size", help="Examples in a mini-batch.", panel=TRAINING)
    ] = None,
    local: Annotated[
        str | None,
        _option("--local", help="steps (of mini-batches) or full (batch).", panel=TRAINING),
    ] = None,
    steps: Annotated[int | None, _option("--steps", help="Local steps, E.", panel=TRAINING)] = None,
    lr: Annotated[float | None, _option("--lr", help="Learning rate.", panel=TRAINING)] = None,
    server_lr: Annotated[
        float | None,
        _option("--server-lr", help="The server's; the same by default.", panel=TRAINING),
    ] = None,
    weights: Annotated[
        str | None, _option("--weights", help="Of clients: uniform or size.", panel=TRAINING)
    ] = None,
    paper_literal_weights: Annotated[
        bool | None,
        _option(
            "--paper-literal-weights",
            help="Divide twice, as the paper's text does.",
            panel=TRAINING,
        ),
    ] = None,
    dtype: Annotated[
        str | None, _option("--dtype", help="float32 or float64.", panel=TRAINING)
    ] = None,
    pass_width: Annotated[
        int | None,
        _option("--pass-width", help="Schedulers that share a pass over the data.", panel=RUN),
    ] = None,
    exact: Annotated[
        bool,
        _option(
            "--exact",
            help="Run each scheduler alone: its bits then do not depend on the others.",
            panel=RUN,
        ),
    ] = False,
    config: Annotated[
        Path | None,
        _option("--config", metavar="FILE.toml", help="Settings; options go first.", panel=RUN),
    ] = None,
    out: Annotated[
        Path | None, _option("--out", metavar="DIR", help="Default: runs/NAME-1, -2, ..", panel=RUN)
    ] = None,
    resume: Annotated[
        Path | None,
        _option("--resume", metavar="DIR", help="Go on with an unfinished run.", panel=RUN),
    ] = None,
    jobs: Annotated[
        int | None,
        _option("--jobs", "-j", min=1, help="Processes; one for each core by default.", panel=RUN),
    ] = None,
) -> None:
    """Compare schedulers: the paper's six at the paper's setting, unless options say otherwise."""
    texts: dict[str, Any] = {
        "schedulers": schedulers(scheduler) if scheduler else None,
        "baseline": baseline,
        "seeds": seeds,
        "first_seed": first_seed,
        "data": None if data is None else absolute(data),
        "data_folder": data_folder,
        "partition": partition,
        "partition_settings": (
            pairs(partition_settings, "--partition-settings") if partition_settings else None
        ),
        "clients": clients,
        "network": pairs(network, "--network") if network else None,
        "m": m,
        "rounds": rounds,
        "eval_every": eval_every,
        "hidden": None if hidden is None else sizes(hidden),
        "batch_size": batch_size,
        "local": local,
        "steps": steps,
        "lr": lr,
        "server_lr": server_lr,
        "weights": weights,
        "paper_literal_weights": paper_literal_weights,
        "dtype": dtype,
        "pass_width": 1 if exact else pass_width,
    }
    given = {key: value for key, value in texts.items() if value is not None}
    if exact and pass_width is not None:
        raise ValueError("--exact is a pass width of 1: --pass-width cannot be given with it")
    if resume is not None:
        if fallback_data is not None:
            given["fallback_data"] = fallback_data
        if given or config is not None or out is not None:
            stray = next(iter(given), "config" if config is not None else "out")
            raise ValueError(
                f"--resume keeps the settings of {resume}; {stray!r} cannot be given with it"
            )
        folder = open_run(resume)
        experiment = experiment_of(folder)
        notes = list(folder.config.get("notes", []))
    else:
        experiment = from_dict(merged(config, given))
        check_folder(experiment.data, experiment.data_folder)
        experiment, dataset, notes = _with_data(experiment, fallback_data)
        name = "compare" if config is None else config.stem
        path = out or next_folder(Path("runs"), name)
        folder = create_run(path, experiment, dataset, notes=notes)
        if dataset.labels:
            say(f"the labels of the data are {listed(dataset.label_names)}")
    _run(folder, experiment, notes, jobs)


def listed(names: Sequence[str]) -> str:
    """Return names in words; of many, the first ones.

    >>> listed(["cat", "dog"]), listed([str(label) for label in range(100)])
    ('cat, dog', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more')
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _with_data(
    experiment: Experiment, fallback: str | None
) -> tuple[Experiment, Dataset, list[str]]:
    """Load the data, or what to fall back on if that is wanted."""
    try:
        return experiment, experiment.dataset(), []
    except DataUnavailable as error:
        if fallback is None:
            raise
        say(str(error))
        shout(f"{experiment.data} could not be had: this run is on {fallback} instead")
        note = (
            f"{experiment.data} could not be had, so this run is on {fallback}: its numbers are "
            "not the paper's."
        )
        experiment = replace(experiment, data=fallback, data_folder=None)
        return experiment, experiment.dataset(), [note]


def _run(folder: RunFolder, experiment: Experiment, notes: list[str], jobs: int | None) -> None:
    with resumable(folder.path, f"adcs compare --resume {shlex.quote(str(folder.path))}"):
        say(f"results go to {folder.path}")
        with progress("compare") as report:
            run_experiment(folder, experiment, jobs=jobs, progress=report)
        checked_records(folder, experiment)
        notes = [*notes, *warnings(folder, experiment)]
        files = write_report(folder, experiment, notes)
    show_results(results(folder, experiment), experiment)
    for note in notes:
        shout(note)
    say(f"{len(files)} files: {folder.path}/summary.md and {folder.path}/figures")


def show_results(rows: Sequence[Row], experiment: Experiment) -> None:
    """Print the table of a comparison, and differences where there are intervals for them."""
    title = "Mean of the last tenth of evaluations"
    if experiment.seeds >= FEWEST:
        title += f", ± 95 % interval over {experiment.seeds} seeds"
    elif experiment.seeds > 1:
        title += f" of {' / '.join(f'seed {seed}' for seed in seeds_of(experiment))}"
    show_table(title, *tables.summary_table(rows))
    if experiment.seeds > 1:
        title = f"Paired differences to {baseline_of(experiment)}"
        if any(row.p for row in rows):
            title += ", 95 % interval of each alone, p by Holm's method"
        show_table(title, *tables.difference_table(rows))
