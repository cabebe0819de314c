"""adcs reproduce: the paper's figures and tables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from adcs.cli.console import console, progress, show_status, show_warning
from adcs.cli.errors import guarded, resumable
from adcs.cli.options import absolute, check_folder
from adcs.experiments.beyond.protocol import BeyondPlan, Verdict
from adcs.experiments.folders import next_folder
from adcs.experiments.outputs import Section
from adcs.experiments.reproduce import Plan

STYLES = {"holds": "green", "does not hold": "bold red", "undecided": "yellow"}


@guarded
def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            help="figure-1, figure-2, figure-3, table-1, communication, bias, kernels, or all: "
            "the paper. beyond: LiveADCS against the others at their best."
        ),
    ],
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds, 5 by default; 1 for a quick look.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Fewer rounds than the paper's, for a quick look.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Other data than the paper's.")] = None,
    data_folder: Annotated[str | None, typer.Option(help="Where the data's files are.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Default: runs/paper-1, -2, .., or runs/beyond-1, ..")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on in this folder, or draw more from its runs.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes; one for each core.")
    ] = None,
) -> None:
    """Reproduce figures and tables of the paper, and say of each claim whether it holds."""
    given = {
        "seeds": seeds,
        "rounds": rounds,
        "data": None if data is None else absolute(data),
        "data_folder": data_folder,
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    if data is not None:
        check_folder(data, data_folder)
    beyond = "beyond" in what
    if beyond and data is not None:
        raise ValueError(f"beyond has data sets of its own; --data {data} cannot be given with it")
    kind = BeyondPlan if beyond else Plan
    if resume is not None:
        if out is not None:
            raise ValueError(f"--resume goes on in {resume}; --out cannot be given with it")
        plan: Plan = kind.resume(resume, what, overrides)
    else:
        base = out or next_folder(Path("runs"), "beyond" if beyond else "paper")
        plan = kind.start(base, what, overrides)
    command = f"adcs reproduce {' '.join(what)} --resume {shlex.quote(str(plan.base))}"
    with resumable(plan.base, command):
        show_status(f"results go to {plan.base}")
        plan.execute(jobs, progress)
        found = plan.report()
    for part in found:
        if isinstance(part, Section):
            _say_section(part)
        else:
            _say_verdict(part)
    if plan.caveat is not None:
        show_warning(plan.caveat)
    show_status(f"{plan.base / 'summary.md'} has the tables, {plan.base / 'figures'} the figures")


def _say_section(section: Section) -> None:
    out = console()
    out.print(section.output.title, style="bold", markup=False)
    for claim in section.claims:
        out.print(f"  {claim.verdict}: ", style=STYLES[claim.verdict], end="")
        text = f"{claim.text}. {claim.numbers}"
        out.print(text, markup=False, highlight=False, soft_wrap=True)


def _say_verdict(verdict: Verdict) -> None:
    bad = verdict.failures
    out = console()
    out.print(f"{verdict.title}: ", style="bold", markup=False, end="")
    out.print(", ".join(bad) or "all shown", style="bold red" if bad else "green", end="")
    out.print(
        f". Worst {verdict.ours.mean:.3f}, {verdict.rival_name} {verdict.rival.mean:.3f}, "
        f"Uniform {verdict.uniform.mean:.3f}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
