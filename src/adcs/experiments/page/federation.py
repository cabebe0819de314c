"""The page of a federation, as JSON values: its records hold cohorts and reasons of every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs.experiments.page.alerts import federation_alerts
from adcs.experiments.page.reasons import States, choice_states
from adcs.experiments.page.simulation import (
    cost_data,
    cost_table,
    curve_data,
    result_table,
    scheduler_styles,
)
from adcs.experiments.page.source import RunSource
from adcs.experiments.page.verdict import headings, who_is_left_behind
from adcs.experiments.page.views import (
    Moment,
    Run,
    left_behind,
    plane_of,
    states_without_choice,
    views,
)
from adcs.experiments.statistics import summarise
from adcs.experiments.styles import LOOKS, styles_of
from adcs.schedulers.base import Cohort
from adcs.schedulers.choice import from_record

LONGEST_SPEC = 100
"""A longer spec of a scheduler is shown among the settings only."""


def federation_page(source: RunSource) -> dict[str, Any]:
    """Return what the page of a federation shows.

    Parameters
    ----------
    source
        The run folder, read.
    """
    config = source.config
    metric, records = with_metric(source.records)
    label = str((config.get("scheduler") or {}).get("name", "scheduler"))
    lower = "loss" in metric.lower()
    clients = all_clients(records)
    names = [str(client) for client in clients]
    groups, group_names = client_groups(records, clients)
    run = federation_run(label, source, clients, metric)
    rows = summarise(records, [label])
    heads, cells = result_table(rows)
    last = records[-1]["server_round"] if records else 0
    return {
        "kind": "federation",
        "title": f"Federation with {label}, {last} rounds",
        "subtitle": _subtitle(config, clients),
        "verdict": _verdict(label, run, names, metric, records, lower=lower),
        "notes": [],
        "alerts": federation_alerts(records, clients, groups, group_names),
        "metric": {"name": metric, "lower_is_better": lower},
        "schedulers": scheduler_styles(styles_of({label: label if label in LOOKS else "Uniform"})),
        "proposed": label,
        "curves": curve_data(records, [label], headings(metric), seeds=1),
        "tables": [
            {
                "title": "Means over the last tenth of rounds",
                "heads": heads,
                "rows": cells,
                "note": f"worst, worst 20 %, average and std are of the clients' {metric}.",
            }
        ],
        "costs": cost_data(rows, "time for probes and training"),
        "cost_table": cost_table(rows, "time for probes and training"),
        "clients": {
            "names": names,
            "groups": groups,
            "group_names": group_names,
            "group_word": "site" if groups else "group",
            "counted": "trained",
            "seed": None,
        },
        "views": views([run], len(clients)),
        "settings": [
            [str(key), str(value)]
            for key, value in config.items()
            if key not in ("versions", "schema_version")
        ],
        "versions": config.get("versions", {}),
        "command": None,
        "made_by": made_by(config),
        "folder": source.folder.path.name,
        "rounds": last,
    }


def made_by(config: Mapping[str, Any]) -> str | None:
    """Return the call that a Flower server app makes for such a federation; None for others.

    >>> scheduler = {"name": "ADCS", "spec": "ADCS(theta=0.5)"}
    >>> made_by({"engine": "flower", "scheduler": scheduler, "strategy": "FedAvg"})
    'Scheduled(FedAvg(...), ADCS(theta=0.5), folder=...)'
    """
    if config.get("engine") != "flower":
        return None
    held = config.get("scheduler") or {}
    parts = [f"{config.get('strategy', 'strategy')}(...)", str(held.get("spec", "scheduler"))]
    if "clients_per_round" in config:
        parts.append(f"clients_per_round={config['clients_per_round']}")
    return f"Scheduled({', '.join([*parts, 'folder=...'])})"


def with_metric(
    records: Sequence[Mapping[str, Any]],
) -> tuple[str, list[dict[str, Any]]]:
    """Return the metric by which clients are judged, and records that have its summary.

    It is the accuracy, or else the first metric of the evaluations.

    >>> record = {"server_round": 1, "evaluation": {"eval_f1": {"worst": 0.2, "average": 0.4}}}
    >>> metric, (found,) = with_metric([record])
    >>> metric, found["worst"]
    ('eval_f1', 0.2)
    """
    if any("worst" in record for record in records):
        return "accuracy", [dict(record) for record in records]
    keys = [key for record in records for key in record.get("evaluation") or {}]
    if not keys:
        return "accuracy", [dict(record) for record in records]
    metric = keys[0]
    return metric, [
        {**record, **(record.get("evaluation") or {}).get(metric, {})} for record in records
    ]


def all_clients(records: Sequence[Mapping[str, Any]]) -> list[ClientId]:
    """Return every client that records name, ints first.

    >>> all_clients([{"chosen": [3, "b"]}, {"clients": [1, 3]}])
    [1, 3, 'b']
    """
    keys = ("clients", "chosen", "trained", "pending", "backing_off", "probed")
    found = {client for record in records for key in keys for client in record.get(key) or ()}
    return sorted(found, key=lambda client: (isinstance(client, str), client))


def client_groups(
    records: Sequence[Mapping[str, Any]], clients: Sequence[ClientId]
) -> tuple[list[int | None] | None, list[str]]:
    """Return the group of each client as a position in the groups' names.

    >>> client_groups([{"clients": [1, 2], "groups": ["B", "A"]}], [1, 2, 3])
    ([1, 0, None], ['A', 'B'])
    """
    held: dict[ClientId, str] = {}
    last: tuple[Any, Any] = (None, None)
    for record in records:
        now = record.get("clients"), record.get("groups")
        if now != last:  # They are seldom others than a round before.
            for client, group in zip(now[0] or (), now[1] or (), strict=False):
                if group is not None:
                    held[client] = str(group)
            last = now
    if not held:
        return None, []
    names = sorted(set(held.values()))
    return [names.index(held[c]) if c in held else None for c in clients], names


def federation_run(label: str, source: RunSource, clients: Sequence[ClientId], metric: str) -> Run:
    """Return the moments of a federation: each of its rounds."""
    position = {client: i for i, client in enumerate(clients)}
    given = (tuple(clients), metric)
    run = Run(label)
    cohorts = []
    for record in source.records:
        cohorts.append([position[client] for client in record.get("chosen") or ()])
        make = partial(_moment, record, position, metric)
        run.moments.append(source.once((record,), given, make))
    run.cohorts = cohorts
    return run


def _moment(record: Mapping[str, Any], position: Mapping[ClientId, int], metric: str) -> Moment:
    held = record.get("choice") or {}

    def states() -> States:
        if not held:
            chosen = [position[client] for client in record.get("chosen") or ()]
            return states_without_choice(len(position), chosen, ended=False)
        parts = tuple(record["chosen"]), tuple(record["weights"])
        cohort = Cohort(*parts, record["normalise"], record["diagnostics"])
        return choice_states(
            from_record(held, cohort),
            position,
            record.get("backing_off") or (),
            record.get("pending") or (),
        )

    counts = _by_client(record, "counts", position)
    moment = Moment(
        record["server_round"],
        _by_client(record, metric if metric == "accuracy" else "", position),
        _by_client(record, "losses", position),
        None if counts is None else np.nan_to_num(counts).astype(np.int64),
        states,
        ranked_by=held.get("ranked_by"),
    )
    if "cosines" in held:
        kernel = plane_of(held["cosines"], held["kernel_clients"], position)
        moment.plane, moment.cosines = kernel
    return moment


def _by_client(
    record: Mapping[str, Any], key: str, position: Mapping[ClientId, int]
) -> Float64Array | None:
    """Return a list of a record that has an entry for each of its clients, NaN for others."""
    clients, values = record.get("clients"), record.get(key)
    if clients is None or values is None:
        return None
    found = np.full(len(position), np.nan)
    for client, value in zip(clients, values, strict=False):
        if value is not None:
            found[position[client]] = value
    return found


def _subtitle(config: Mapping[str, Any], clients: Sequence[ClientId]) -> str:
    held = config.get("scheduler") or {}
    spec = str(held.get("spec", "a scheduler"))
    if len(spec) > LONGEST_SPEC:  # such as groups of many clients; the settings have it
        spec = str(held.get("name"))
    parts = [f"Engine {config.get('engine')}", f"scheduler {spec}"]
    if "strategy" in config:
        parts.append(f"strategy {config['strategy']}")
    return f"{'; '.join(parts)}; {len(clients)} clients seen."


def _verdict(
    label: str,
    run: Run,
    names: Sequence[str],
    metric: str,
    records: Sequence[Mapping[str, Any]],
    *,
    lower: bool,
) -> list[str]:
    if not records:
        return ["No round is done yet."]
    last = records[-1]
    said = [f"{label} has selected cohorts for {last['server_round']} rounds."]
    known = [record for record in records if record.get("worst20") is not None]
    if known:
        tenth = known[-max(1, len(known) // 10) :]
        worst, average = (float(np.mean([r[key] for r in tenth])) for key in ("worst20", "average"))
        said[0] += (
            f" The worst-off fifth of the clients reaches {metric} {worst:.3f}, all clients on "
            f"average {average:.3f}."
        )
    titles = [f"client {name}" for name in names]
    counts = next((m.counts for m in reversed(run.moments) if m.counts is not None), None)
    served = left_behind(run.moments, lower)
    said += who_is_left_behind(
        label,
        served,
        titles,
        None if counts is None else counts.astype(np.float64),
        last["server_round"],
        metric,
        "trained",
    )
    if counts is not None and (never := [titles[i] for i in np.flatnonzero(counts == 0)]):
        few = ", ".join(never[:5]) + (f" and {len(never) - 5} more" if len(never) > 5 else "")
        said.append(f"Never trained so far: {few}.")
    return said
