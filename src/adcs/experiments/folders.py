"""Run folders of experiments: where the next one goes, and the experiment that one holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adcs._validation import did_you_mean
from adcs.experiments.config import SETTINGS, Experiment, from_dict
from adcs.experiments.runner import data_fingerprint, tasks
from adcs.experiments.validation import check_value
from adcs.run_folder import RunFolder
from adcs.simulation.datasets.registry import Dataset

ENGINE = "simulation"

CONFIG = {
    "groups": list[int] | None,
    "classes": list[int] | list[str],
    "notes": list[str],
    "data_fingerprint": str | None,
}
"""What a run's config holds beside the experiment, by type."""


def next_folder(base: Path, name: str) -> Path:
    """Return the first of name-1, name-2, ... that does not exist under base.

    >>> next_folder(Path("nowhere"), "compare").name
    'compare-1'
    """
    count = 1
    while (base / f"{name}-{count}").exists():
        count += 1
    return base / f"{name}-{count}"


def create_run(
    path: Path, experiment: Experiment, dataset: Dataset | None = None, **more: Any
) -> RunFolder:
    """Make the folder of an experiment's run.

    The data is divided first, so that nothing is written for clients that cannot be had; the
    clients' groups and the data's fingerprint go into the config, and so does `more`. Where labels
    do not count from 0, they are there as `classes`, in the order of the models' own.
    """
    dataset = dataset or experiment.dataset()
    config = {
        "engine": ENGINE,
        **experiment.as_dict(),
        "groups": experiment.divide(dataset, experiment.run.first_seed).groups,
        "data_fingerprint": data_fingerprint(dataset),
        **({"classes": dataset.labels} if dataset.labels else {}),
        **more,
    }
    return RunFolder.create(path, config)


def experiment_of(folder: RunFolder) -> Experiment:
    """Return the experiment that a run folder holds.

    >>> import tempfile
    >>> experiment = Experiment.of(data="synthetic", clients=10, m=5)
    >>> folder = create_run(Path(tempfile.mkdtemp()) / "run", experiment)
    >>> experiment_of(folder) == experiment
    True
    >>> unfinished(folder, experiment)
    ['seed0-pass0', 'seed0-pass1']
    """
    config = folder.config
    if config.get("engine") != ENGINE:
        raise ValueError(
            f"{folder.path} is a run of the engine {config.get('engine')!r}, not of the simulation"
        )
    sections = Experiment.model_fields
    try:
        for key in sections:
            if key not in config:
                raise ValueError(f"{key} is missing")
        known = [*sections, *CONFIG, "engine", "versions"]
        for key in config:
            if key not in known:
                raise ValueError(f"unknown setting {key!r}; {did_you_mean(key, known)}")
        experiment = from_dict({key: config[key] for key in sections})
        for each in SETTINGS.values():
            if config[each.section] is not None and each.key not in config[each.section]:
                raise ValueError(f"{each.name} is missing")
        for key, kind in CONFIG.items():
            if key in config:
                check_value(key, config[key], kind)
        groups = config.get("groups")
        if groups is not None and (len(groups) != experiment.partition.clients or min(groups) < 0):
            raise ValueError(f"groups must have a number >= 0 for each client, got {groups!r}")
        return experiment
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder.path / 'config.json'} holds settings that cannot be used: {error}; bring "
            "back the file as it was, or start a new run"
        ) from error


def unfinished(folder: RunFolder, experiment: Experiment) -> list[str]:
    """Return the tasks that have not come to their end."""
    names = [task.name for task in tasks(experiment)]
    return [
        name
        for name in names
        if (checkpoint := folder.load_checkpoint(name)) is None or not checkpoint.get("done")
    ]
