"""Checked records of a run folder.

A line may be valid JSON and still not what the engine wrote, after a disk error or an edit by hand.
Tables and figures read records through `checked_records`, which checks the fields they use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adcs.experiments.config import Experiment
from adcs.experiments.statistics import METRICS, metric_of, metrics_of
from adcs.experiments.validation import check_value
from adcs.metrics import CLIENT_METRICS
from adcs.run_folder import RunFolder

LARGEST = 2**53
"""The largest whole number that records hold as a JSON number."""

NUMBER, NUMBERS = float | None, list[float | None]
"""Null stands for a number that is not finite."""

ALWAYS: Mapping[str, Any] = {
    **dict.fromkeys(("worst", "worst20", "average", "std", "test_loss", "jain"), NUMBER),
    **dict.fromkeys(
        ("updates", "extra_updates", "loss_evaluations", "bytes_up", "bytes_down"), int
    ),
    "seconds": float,
}
"""Fields of every record of the simulation, by type."""

TOGETHER: tuple[Mapping[str, Any], ...] = (
    {"group_ratios": NUMBERS, "tv": NUMBER},
    {"losses": NUMBERS, "counts": list[int]},
    {"bias": NUMBER, "gradient_norm": NUMBER},
    {"cohort_weights": NUMBERS, "gram": NUMBERS, "batch_losses": NUMBERS},
)
"""Groups of fields; a record has all fields of a group or none."""


def shares(metric: str) -> set[str]:
    """Return the fields whose numbers lie in [0, 1], where clients are judged by a metric.

    >>> "worst" in shares("accuracy"), "worst" in shares("rmse")
    (True, False)
    """
    found = {name for name, one in metrics_of(metric).items() if one.bounds[1] <= 1.0}
    return {*found, "group_ratios", *([metric] if CLIENT_METRICS[metric].bounds[1] <= 1.0 else [])}


def checked_records(folder: RunFolder, experiment: Experiment) -> list[dict[str, Any]]:
    """Return the records of a simulation's run; ValueError names the file and line of a wrong one.

    >>> import tempfile
    >>> from adcs.experiments.runner import create_run
    >>> experiment = Experiment.of(data="synthetic", clients=10, m=5)
    >>> folder = create_run(tempfile.mkdtemp() + "/run", experiment)
    >>> with folder.writer("task") as lines:
    ...     lines.append({"scheduler": "Uniform", "seed": 7, "server_round": 0})
    >>> checked_records(folder, experiment)
    Traceback (most recent call last):
    ...
    ValueError: ...task.jsonl, line 1 is broken (seed 7 is not of this run); bring back ...
    """
    groups = folder.config.get("groups")
    clients = experiment.partition.clients
    lengths = dict.fromkeys((experiment.metric, "losses", "counts"), clients)
    lengths |= dict.fromkeys(("cohort_weights", "batch_losses"), clients)
    lengths["gram"] = clients * (clients + 1) // 2
    if groups is not None:
        lengths["group_ratios"] = max(groups) + 1
    seen: set[tuple[str, int, int]] = set()
    records = []
    for line in folder.lines():
        record = line.record
        with line.reading():
            _check(record, experiment, lengths)
        key = (record["scheduler"], record["seed"], record["server_round"])
        if key in seen:
            raise line.broken(f"{key[0]}, seed {key[1]}, round {key[2]} is there before")
        seen.add(key)
        records.append(record)
    return records


def _check(record: Mapping[str, Any], experiment: Experiment, lengths: Mapping[str, int]) -> None:
    """Raise ValueError for a record that the experiment cannot have written."""
    for key, value in (("scheduler", experiment.schedulers), ("seed", experiment.seed_list)):
        if record[key] not in value:
            raise ValueError(f"{key} {record[key]} is not of this run")
    last = record["server_round"] == experiment.training.rounds
    if not last and record["server_round"] not in range(
        0, experiment.training.rounds, experiment.run.eval_every
    ):
        raise ValueError(f"round {record['server_round']} is not an evaluated one of this run")
    hints = {name: NUMBER for name in METRICS if name in record} | dict(ALWAYS)
    metric = experiment.metric
    if metric_of([record]) != metric:
        raise ValueError(f"metric {metric_of([record])} is not of this run")
    for fields in TOGETHER:
        if "losses" in fields:
            fields = {metric: NUMBERS, **fields}
        if any(name in record for name in fields):
            hints |= fields
    of_shares = shares(metric)
    for name, hint in hints.items():
        if name not in record:
            raise ValueError(f"{name} is missing")
        check_value(name, record[name], hint)
        _check_numbers(name, record[name], is_share=name in of_shares)
        if name in lengths and len(record[name]) != lengths[name]:
            raise ValueError(f"{name} has {len(record[name])} entries, not {lengths[name]}")
    if "gram" in record and "bias" not in record:
        raise ValueError("bias is missing")


def _check_numbers(name: str, value: Any, *, is_share: bool) -> None:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and abs(number) > LARGEST:
            raise ValueError(f"{name} holds {number}")
        # Sums of floats may exceed 1 by rounding.
        if is_share and number is not None and not -1e-9 <= number <= 1 + 1e-9:
            raise ValueError(f"{name} holds {number}, which does not lie in [0, 1]")
