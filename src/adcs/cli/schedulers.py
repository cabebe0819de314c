"""adcs schedulers: what each scheduler selects by, what it asks of clients, and what that costs."""

from __future__ import annotations

from typing import Annotated

import typer

from adcs._validation import check_int
from adcs.cli.console import show_table
from adcs.cli.errors import guarded
from adcs.experiments.scheduler_costs import MEASURED_CLIENTS, SchedulerCosts, scheduler_costs
from adcs.experiments.specs import NAMES, describe, make_scheduler

FAMILIES = {
    "random": "At random",
    "loss": "By loss",
    "norm": "By norm",
    "time": "By time",
    "diversity": "By diversity",
    "mixed": "By loss or quality, and by time or diversity",
}
"""Titles of the groups, by `Scheduler.family`."""


@guarded
def schedulers(
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|file.py:Class]", help="Describe this one."),
    ] = None,
    clients: Annotated[int, typer.Option("--clients", "-n", help="N, for the costs.")] = 100,
    m: Annotated[int, typer.Option("--per-round", "-m", help="m, for the costs.")] = 10,
    size: Annotated[
        int, typer.Option("--parameters", "-d", help="Model parameters d, for the costs.")
    ] = 7850,
) -> None:
    """List the schedulers with what they ask of clients and its cost, or describe one."""
    check_int("--clients", clients, minimum=1)
    check_int("--per-round", m, minimum=1, maximum=clients)
    check_int("--parameters", size, minimum=1)
    if spec is not None:
        found = describe(spec)
        costs = scheduler_costs(make_scheduler(spec, seed=0), clients, m, size)
        typer.echo(
            f"{found.text.strip()}\n\nDefaults: {found.own}\n"
            f"Settings of all schedulers: {found.common}\n"
            f"Asks clients for: {_asks(costs)}\n"
            f"Costs a round at N = {clients}, m = {m}, d = {size}, beyond training: {_cost(costs)}"
        )
        return
    made = {name: make_scheduler(name, seed=0) for name in NAMES}
    for family, title in FAMILIES.items():
        rows = []
        for name, scheduler in made.items():
            if scheduler.family == family:
                costs = scheduler_costs(scheduler, clients, m, size)
                first = describe(name).text.partition("\n")[0]
                rows.append([name, first, _asks(costs), _cost(costs)])
        heads = ["name", "what it selects", "asks clients for", "cost of a round"]
        show_table(title, heads, rows, text=True)
    scaled = f", counted on {MEASURED_CLIENTS} clients" if clients > MEASURED_CLIENTS else ""
    typer.echo(
        f"Costs are means over 100 rounds at N = {clients}, m = {m}, d = {size}{scaled}, beyond\n"
        f"the cohort's own downloads, updates and uploads ({_bytes(8 * m * size)}). "
        f"Settings of all: {describe('Uniform').common};\nsketch=256 is a sketch of that size. "
        "Formula, settings, reading and reference: adcs schedulers NAME.\n"
        "Your own: file.py:Class, a subclass of adcs.Scheduler."
    )


def _asks(costs: SchedulerCosts) -> str:
    """Return the signals that a scheduler asks for.

    >>> _asks(SchedulerCosts((), ("loss",), ("compute_seconds",), 5.0, 0.0, 0.0, 0.0))
    'loss (probe); compute_seconds (any reply)'
    """
    parts = [
        (costs.probed, "probe"),
        (costs.with_training, "with training"),
        (costs.facts, "any reply"),
    ]
    words = [f"{', '.join(names)} ({when})" for names, when in parts if names]
    return "; ".join(words) or "nothing"


def _cost(costs: SchedulerCosts) -> str:
    """Return the costs of a round in words.

    >>> _cost(SchedulerCosts((), ("loss",), (), 5.0, 0.0, 2e6, 20.0))
    '5 evaluations, 2 MB down, 20 B up'
    >>> _cost(SchedulerCosts((), (), (), 0.0, 0.0, 0.0, 0.0))
    'nothing'
    """
    parts = [
        (costs.evaluations, f"{costs.evaluations:.3g} evaluations"),
        (costs.updates, f"{costs.updates:.3g} updates"),
        (costs.bytes_down, f"{_bytes(costs.bytes_down)} down"),
        (costs.bytes_up, f"{_bytes(costs.bytes_up)} up"),
    ]
    return ", ".join(words for amount, words in parts if amount > 0.0) or "nothing"


def _bytes(amount: float) -> str:
    """Return a number of bytes with its unit.

    >>> _bytes(31_400), _bytes(40)
    ('31.4 kB', '40 B')
    """
    for unit in ("B", "kB", "MB"):
        if abs(amount) < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
