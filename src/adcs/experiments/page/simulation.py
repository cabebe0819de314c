"""The page of a comparison on the simulator, as JSON values."""

from __future__ import annotations

import shlex
import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs.experiments import tables
from adcs.experiments.config import SETTINGS, Experiment
from adcs.experiments.page.encoding import numbers, thinned
from adcs.experiments.page.reasons import States, choice_states
from adcs.experiments.page.source import RunSource
from adcs.experiments.page.verdict import headings, which_scheduler, who_is_left_behind
from adcs.experiments.page.views import (
    Moment,
    Run,
    client_values,
    left_behind,
    plane_of,
    states_without_choice,
    views,
)
from adcs.experiments.report import (
    FEW,
    baseline_of,
    data_name,
    horizontal,
    panel,
    reading,
    seeds_of,
    setting,
)
from adcs.experiments.runner import layout, tasks
from adcs.experiments.selections import (
    choice_of,
    named_if_broken,
    sample,
    selection_paths,
)
from adcs.experiments.statistics import METRICS, Row, curves, diverged, summarise, trained
from adcs.experiments.styles import Style, styles_of
from adcs.metrics import CLIENT_METRICS

CURVE_POINTS = 400
"""Curves have at most this many points."""

SEED_POINTS = 200
"""Curves of single seeds have at most this many points."""

SEED_NUMBERS = 60_000
"""The points of all seeds' curves."""

AXES = ("server_round", "bytes", "seconds")


def simulation_page(
    source: RunSource,
    experiment: Experiment,
    notes: Sequence[str] = (),
    seed: int | None = None,
) -> dict[str, Any]:
    """Return what the page of a comparison shows.

    Parameters
    ----------
    source
        The run folder, read.
    experiment
        Its settings.
    notes
        Sentences that a reader has to know.
    seed
        The seed whose clients are shown; the first by default.
    """
    seed = experiment.run.first_seed if seed is None else seed
    records, labels = source.records, list(experiment.schedulers)
    metric, clients = experiment.metric, experiment.partition.clients
    rows = summarise(records, labels, baseline_of(experiment))
    advice = which_scheduler(rows, baseline_of(experiment), diverged(records))
    names = client_names(source.config, clients)
    groups = source.config.get("groups")
    runs = client_runs(source, experiment, seed)
    lower = CLIENT_METRICS[metric].lower_is_better
    return {
        "kind": "simulation",
        "title": f"{data_name(experiment)}: {_compared(labels)}",
        "subtitle": setting(experiment),
        "verdict": [
            *_hardly_trained(records, experiment),
            *advice.sentences,
            *_left_behind(advice.label, runs, experiment, source.config, seed),
        ],
        "notes": list(notes),
        "alerts": [],
        "metric": {"name": CLIENT_METRICS[metric].label, "lower_is_better": lower},
        "schedulers": scheduler_styles(styles_of(experiment.schedulers)),
        "proposed": advice.label,
        "curves": curve_data(records, labels, headings(metric), experiment.run.seeds),
        "tables": _tables(rows, experiment),
        "costs": cost_data(rows),
        "cost_table": cost_table(rows),
        "clients": {
            "names": names,
            "groups": groups,
            "group_names": group_names(source.config),
            "group_word": "group",
            "counted": "selected",
            "seed": seed,
        },
        "views": views(runs, clients),
        "settings": settings_of(experiment),
        "versions": source.config.get("versions", {}),
        "command": command_of(experiment),
        "folder": source.folder.path.name,
        "rounds": experiment.training.rounds,
    }


def client_names(config: Mapping[str, Any], clients: int) -> list[str]:
    """Return the name of each client: that of its data, or its number.

    >>> client_names({}, 2), client_names({"client_names": ["Romeo", "Juliet"]}, 2)
    (['0', '1'], ['Romeo', 'Juliet'])
    """
    held = config.get("client_names")
    if isinstance(held, list) and len(held) == clients:
        return [str(name) for name in held]
    return [str(client) for client in range(clients)]


def group_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of groups: the user's labels where groups are classes, or numbers.

    >>> group_names({"groups": [0, 1, 1]}), group_names({"groups": [0, 1], "classes": ["a", "b"]})
    (['0', '1'], ['a', 'b'])
    """
    groups = config.get("groups") or []
    count = max(groups, default=-1) + 1
    classes = config.get("classes") or []
    return [str(label) for label in (classes if len(classes) == count else range(count))]


def scheduler_styles(styles: Mapping[str, Style]) -> list[dict[str, Any]]:
    """Return label, colours and dash pattern of schedulers.

    The colour of a light background and the pattern are those of the figures.
    """
    return [
        {
            "label": label,
            "colour": style.colour,
            "dark": style.dark,
            "dash": [] if style.solid else [2 * length for length in style.dash[1]],
        }
        for label, style in styles.items()
    ]


def curve_data(
    records: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    fields: Mapping[str, str],
    seeds: int,
) -> dict[str, Any]:
    """Return the curves of all schedulers over rounds, bytes and seconds, with their bands.

    Parameters
    ----------
    records
        The records.
    labels
        The schedulers.
    fields
        What curves show, by field.
    seeds
        The number of seeds; with several, there is also a curve for each.
    """
    present = {record["scheduler"] for record in records}
    shown = [label for label in labels if label in present]
    known = [
        field
        for field in fields
        if any(isinstance(record.get(field), (int, float)) for record in records)
    ]
    found: dict[str, Any] = {"fields": {}, "axes": {}, "lines": {}, "points": 0}
    if not shown or not known:
        return found
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore", RuntimeWarning)  # Rounds that a run has not reached.
        by_field = {field: panel(records, field, "server_round", shown) for field in known}
        rounds = curves(records, known[-1], shown).rounds
        axes = {
            against: horizontal(records, rounds, against, shown)
            for against in AXES
            if against == "server_round" or all("seconds" in record for record in records)
        }
    count = rounds.size
    kept = thinned(count, CURVE_POINTS)
    found["points"], found["of_points"] = int(kept.size), int(count)
    for field, one in by_field.items():
        smoothed = one.y_label.partition("\n")[2].strip("()")
        found["fields"][field] = fields[field] + (f" ({smoothed})" if smoothed else "")
    found["axes"] = {against: name for against, (name, _) in axes.items()}
    for label in shown:
        line: dict[str, Any] = {
            "x": {a: numbers(x[label][kept].tolist(), 6) for a, (_, x) in axes.items()}
        }
        for field, one in by_field.items():
            drawn = one.lines[label]
            parts = [drawn.mean] if seeds == 1 else [drawn.mean, drawn.low, drawn.high]
            line[field] = [numbers(part[kept].tolist()) for part in parts]
        found["lines"][label] = line
    if seeds > 1:
        most = int(np.clip(SEED_NUMBERS // (len(shown) * seeds * len(known)), 20, SEED_POINTS))
        some = thinned(count, most)
        found["seeds"] = {"positions": some.tolist(), "lines": {}}
        for field in known:
            held = curves(records, field, shown)
            for label in shown:
                lines = [numbers(row[some].tolist()) for row in held.values[label]]
                found["seeds"]["lines"].setdefault(label, {})[field] = lines
            found["seeds"]["names"] = list(held.seeds)
            found["seeds"]["x"] = held.rounds[some].tolist()
    return found


def _tables(rows: Sequence[Row], experiment: Experiment) -> list[dict[str, Any]]:
    """Return the table of results and the one of paired differences."""
    heads, cells = result_table(rows)
    found = [
        {
            "title": tables.table_title(seeds_of(experiment)),
            "heads": heads,
            "rows": cells,
            "note": reading(experiment, costs=False),
        }
    ]
    heads, cells = tables.difference_table(rows)
    if experiment.run.seeds > 1 and cells:
        found.append(
            {
                "title": tables.difference_title(baseline_of(experiment), rows),
                "heads": heads,
                "rows": cells,
                "note": tables.difference_note(rows),
            }
        )
    return found


def result_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the table without its costs."""
    costs = {metric.heading for metric in METRICS.values() if metric.cost}
    return _columns(rows, lambda head: head not in costs)


def cost_table(rows: Sequence[Row], time: str = "virtual time") -> dict[str, Any]:
    """Return the table of costs, with intervals over seeds."""
    costs = {metric.heading for metric in METRICS.values() if metric.cost}
    heads, cells = _columns(rows, costs.__contains__)
    heads = [time if head == METRICS["seconds"].heading else head for head in heads]
    return {"title": "Costs of the whole run", "heads": heads, "rows": cells}


def _columns(
    rows: Sequence[Row], shown: Callable[[str], bool]
) -> tuple[list[str], list[list[str]]]:
    heads, cells = tables.summary_table(rows)
    kept = [i for i, head in enumerate(heads) if i == 0 or shown(head)]
    return [heads[i] for i in kept], [[line[i] for i in kept] for line in cells]


def cost_data(rows: Sequence[Row], time: str = "virtual time") -> list[dict[str, Any]]:
    """Return what each scheduler has spent: updates, bytes, seconds (`time` in words)."""
    found = []
    for name, heading in (
        ("updates", "client updates, probes included"),
        ("bytes", "traffic up and down"),
        ("seconds", time),
    ):
        spent = [(row.label, row.cells[name]) for row in rows if row.cells[name].n]
        if spent:
            found.append(
                {
                    "name": heading,
                    "labels": [label for label, _ in spent],
                    "values": numbers([e.mean for _, e in spent], 6),
                    "texts": [METRICS[name].text(e.mean) for _, e in spent],
                }
            )
    return found


def client_runs(source: RunSource, experiment: Experiment, seed: int) -> list[Run]:
    """Return the moments of each scheduler's run at a seed."""
    clients, labels = experiment.partition.clients, list(experiment.schedulers)
    lines = {
        (line["scheduler"], line["server_round"]): line
        for line in source.selections
        if line["seed"] == seed
    }
    runs = {label: Run(label) for label in labels}
    paths = {}
    slots = source.config.get("cohort_slots")
    for task in tasks(experiment, source.config.get("part")):
        if task.seed == seed:
            held = source.cohorts(task.name, layout(experiment, task, slots))
            for label, cohorts in zip(task.labels, held, strict=True):
                runs[label].cohorts = cohorts
                paths[label] = selection_paths(source.folder, task.name)[1]
    for record in source.records:
        label = record["scheduler"]
        if record["seed"] == seed and label in paths:
            line = lines.get((label, record["server_round"]))
            with named_if_broken(paths[label], record):
                make = partial(_moment, record, line or {}, paths[label], experiment, clients)
                runs[label].moments.append(source.once((record, line), seed, make))
    for run in runs.values():
        run.moments.sort(key=lambda moment: moment.server_round)
    return list(runs.values())


def _moment(
    record: Mapping[str, Any],
    line: Mapping[str, Any],
    path: Path,
    experiment: Experiment,
    clients: int,
) -> Moment:
    position: dict[Any, int] = {client: client for client in range(clients)}

    def states() -> States:
        with named_if_broken(path, record):
            if (choice := choice_of(line, clients)) is not None:
                waiting = line.get("backing_off", ()), line.get("pending", ())
                return choice_states(choice, position, *waiting)
            ended = record["server_round"] >= experiment.training.rounds
            chosen = line.get("chosen", record.get("selected"))
            return states_without_choice(clients, chosen, ended=ended)

    counts = record.get("counts")
    moment = Moment(
        record["server_round"],
        client_values(record.get(experiment.metric), clients),
        client_values(record.get("losses"), clients),
        None if counts is None else np.array(counts, dtype=np.int64),
        states,
        ranked_by=line.get("choice", {}).get("ranked_by"),
    )
    if "cosines" in record:
        moment.plane, moment.cosines = plane_of(record["cosines"], range(clients), position)
    if "plane" in line:
        moment.plane = np.array(line["plane"], dtype=np.float64)
    if "cosines" in line:
        members: NDArray[np.intp] = sample(clients)
        moment.cosines = (line["cosines"], members)
    return moment


def _compared(labels: Sequence[str]) -> str:
    return f"{len(labels)} schedulers compared" if len(labels) > 1 else labels[0]


def _hardly_trained(records: Sequence[Mapping[str, Any]], experiment: Experiment) -> list[str]:
    """Return a sentence before the proposal if few updates came in with every scheduler."""
    shares = trained(records, experiment.training.m)
    if any(shares.get(label, 1.0) >= FEW for label in experiment.schedulers):
        return []
    return ["Hardly anybody trained: what follows says little about schedulers."]


def _left_behind(
    label: str | None,
    runs: Sequence[Run],
    experiment: Experiment,
    config: Mapping[str, Any],
    seed: int,
) -> list[str]:
    """Return the sentences about the clients that the scheduler to use leaves behind."""
    run = next((run for run in runs if run.label == label), None)
    if run is None or not run.moments:
        return []
    metric = CLIENT_METRICS[experiment.metric]
    served = left_behind(run.moments, metric.lower_is_better)
    counts = next((m.counts for m in reversed(run.moments) if m.counts is not None), None)
    groups, words = config.get("groups"), group_names(config)
    titles = [
        f"client {name}" + (f" (group {words[groups[i]]})" if groups else "")
        for i, name in enumerate(client_names(config, experiment.partition.clients))
    ]
    behind = who_is_left_behind(
        run.label,
        served,
        titles,
        None if counts is None else counts.astype(np.float64),
        run.moments[-1].server_round,
        metric.label,
    )
    if experiment.run.seeds > 1:
        behind = [f"{sentence} (Seed {seed}.)" for sentence in behind]
    return behind


def settings_of(experiment: Experiment) -> list[list[str]]:
    """Return the settings by name, and the schedulers.

    >>> settings_of(Experiment())[0]
    ['data.name', 'fashion-mnist']
    """
    found = [
        [each.name, str(getattr(section, each.key))]
        for name, section in experiment
        for each in SETTINGS.values()
        if each.section == name and section is not None
    ]
    return found + [[f"scheduler {label}", spec] for label, spec in experiment.schedulers.items()]


def command_of(experiment: Experiment) -> str:
    """Return the command that runs a comparison of these settings.

    >>> command_of(Experiment.of(data="digits", rounds=500, schedulers=["Uniform", "ADCS"]))
    'adcs compare --data digits --rounds 500 -s Uniform -s ADCS'
    """
    words = ["adcs", "compare"]
    usual = Experiment()
    for name, section in experiment:
        for each in SETTINGS.values():
            if each.section != name or section is None or name == "network":
                continue
            value, before = getattr(section, each.key), getattr(usual, name)
            default = each.default if before is None else getattr(before, each.key)
            if value is None or value == default:
                continue
            option = f"--{each.option.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
    if experiment.partition.settings:
        pairs = [f"{key}={value}" for key, value in experiment.partition.settings.items()]
        words += ["--partition-settings", ",".join(pairs)]
    if experiment.network is not None:
        pairs = [
            f"{each.key}={getattr(experiment.network, each.key)}"
            for each in SETTINGS.values()
            if each.section == "network" and getattr(experiment.network, each.key) != each.default
        ]
        words += ["--network", ",".join(pairs)]
    if dict(experiment.schedulers) != dict(usual.schedulers):
        for label, spec in experiment.schedulers.items():
            words += ["-s", spec if label == spec else f"{label}={spec}"]
    return shlex.join(words)
