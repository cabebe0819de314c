"""adcs explain: why a cohort was selected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adcs._types import ClientId
from adcs.cli.console import show_status, show_table, show_warning
from adcs.cli.errors import guarded
from adcs.cli.options import open_run
from adcs.experiments import explain as explanation
from adcs.experiments.config import Experiment
from adcs.experiments.progress import progress
from adcs.experiments.records import checked_records
from adcs.experiments.runner import check_trace, experiment_of, recorded_choice
from adcs.experiments.specs import make_scheduler
from adcs.run_folder import RunFolder
from adcs.schedulers.base import Cohort
from adcs.schedulers.choice import RECORDED_LIMIT, Choice, from_record
from adcs.schedulers.client_dpp import Determinantal
from adcs.schedulers.static_dpp import StaticDPP

FRAMEWORKS = {"flower": "Flower", "nvflare": "NVFlare"}
"""Engines whose records hold the choices, since a federation cannot be replayed."""


@guarded
def explain(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    server_round: Annotated[
        int,
        typer.Option("--round", min=0, help="Round, counted from 0; in a framework's runs from 1."),
    ],
    seed: Annotated[int | None, typer.Option(help="Seed; the first by default.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", "-s", help="Label; the first determinantal scheduler by default."
        ),
    ] = None,
    client: Annotated[str | None, typer.Option(help="Explain this client only.")] = None,
) -> None:
    """Explain why a round's cohort was selected, and why the other clients were not."""
    folder = open_run(run)
    framework = FRAMEWORKS.get(str(folder.config.get("engine")))
    if framework is not None:
        if seed is not None or scheduler is not None:
            raise ValueError(
                f"{run} is a run of {framework}'s, with one scheduler and no seeds: "
                "--seed and --scheduler do not go with it"
            )
        _print_recorded(folder, server_round, client)
        return
    experiment = experiment_of(folder)
    checked_records(folder, experiment)
    label = _label(experiment, scheduler)
    seed = experiment.run.first_seed if seed is None else seed
    if seed not in experiment.seed_list:
        seeds = ", ".join(map(str, experiment.seed_list))
        raise ValueError(f"seed must be one of the run's, {seeds}; got {seed}")
    rounds = experiment.training.rounds
    if server_round >= rounds:
        raise ValueError(f"round must be below {rounds}, the run's rounds; got {server_round}")
    number = None if client is None else _number(client, experiment.partition.clients)
    title = f"{label}, seed {seed}, round {server_round}"
    if (recorded := recorded_choice(folder, experiment, seed, label, server_round)) is not None:
        _print_choice(recorded, title, server_round, number)
        return
    check_trace(experiment, folder.config.get("trace_fingerprint"))
    held = folder.config.get("data_fingerprint")
    with progress("replay", "rounds") as report:
        choice, evaluated, counts = explanation.replay(
            experiment, seed, label, server_round, report, fingerprint=held
        )
    _check(folder, label, seed, evaluated, counts)
    _print_choice(choice, title, server_round, number)


def _print_choice(choice: Choice, title: str, server_round: int, client: ClientId | None) -> None:
    """Print the explanation of a selection, or of one client."""
    typer.echo(f"{title}: clients {', '.join(map(str, choice.cohort.clients))}")
    if client is not None:
        typer.echo(explanation.sentence(choice, client))
        return
    if choice.theta is not None:
        oldest = choice.cohort.diagnostics.get("oldest_report", server_round)
        typer.echo(
            f"Each pick maximises θ q + (1-θ) log r² at its turn, θ = {choice.theta:g}; r is the "
            f"part of its update outside the span of earlier picks. The oldest report is of round "
            f"{oldest}."
        )
    if waited := choice.cohort.diagnostics.get("waited"):
        late = ", ".join(map(str, waited))
        typer.echo(f"Selected first, because they had waited for too long: {late}.")
    found = explanation.tables(choice)
    if choice.explanation is not None and choice.explanation.left_out:
        typer.echo(explanation.REASONS)
    for table in found:
        show_table(*table)
    if not found:
        typer.echo(explanation.at_random(choice))


def _label(experiment: Experiment, wanted: str | None) -> str:
    labels = list(experiment.schedulers)
    if wanted is not None:
        if wanted not in labels:
            raise ValueError(f"scheduler must be one of {', '.join(labels)}; got {wanted!r}")
        return wanted

    def rank(label: str) -> int:
        made = make_scheduler(experiment.schedulers[label], seed=0)
        return 2 * (not isinstance(made, Determinantal)) + isinstance(made, StaticDPP)

    return min(labels, key=rank)


def _number(client: str, clients: int) -> ClientId:
    if not (client.isdecimal() and len(client) < 20 and int(client) < clients):
        raise ValueError(f"client must be a number from 0 to {clients - 1}, got {client!r}")
    return int(client)


def _check(folder: RunFolder, label: str, seed: int, server_round: int, counts: list[int]) -> None:
    """Warn if the replay differs from the run: another NumPy or processor rounds differently."""
    for record in folder.records():
        if (record["scheduler"], record["seed"], record["server_round"]) == (
            label,
            seed,
            server_round,
        ):
            if "counts" in record and record["counts"] != counts:
                show_warning(
                    f"the replay differs from the run's record at round {server_round}: this "
                    "machine or its NumPy rounds differently, so what follows is about the replay"
                )
            return
    show_status(f"the run has no record of round {server_round} to check the replay against")


def _print_recorded(folder: RunFolder, server_round: int, client: str | None) -> None:
    lines = [line for line in folder.lines() if line.record["server_round"] == server_round]
    if not lines:
        held = sorted({record["server_round"] for record in folder.records()})
        which = f"; it has rounds {held[0]} to {held[-1]}" if held else ""
        raise ValueError(f"{folder.path} has no record of round {server_round}{which}")
    for line in lines:
        with line.reading():
            _print_record(line.record, server_round, client)


def _print_record(record: Mapping[str, Any], server_round: int, client: str | None) -> None:
    title = f"{record['scheduler']}, round {server_round}"
    if "choice" in record:
        keys = ("chosen", "weights", "normalise", "diagnostics")
        clients, weights, normalise, diagnostics = (record[key] for key in keys)
        cohort = Cohort(tuple(clients), tuple(weights), normalise, diagnostics)
        choice = from_record(record["choice"], cohort)
        named = (one for one in choice.available if str(one) == client)
        _print_choice(choice, title, server_round, next(named, client))
        return
    typer.echo(title)
    if client is not None:
        selected = client in map(str, record.get("chosen") or ())
        typer.echo(f"Client {client} was {'selected' if selected else 'not selected'}.")
    for title, heads, rows in explanation.recorded_tables(record):
        kept: list[Any] = [row for row in rows if client is None or row[0] == client]
        if kept:
            show_table(title, heads, kept)
    typer.echo(
        "Why clients were left out is not in this record: records hold it for up to "
        f"{RECORDED_LIMIT} available clients."
    )
