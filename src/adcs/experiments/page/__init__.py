"""The page of a run: one HTML file (`adcs report`), or live while it runs (`adcs watch`).

`page_data` returns what the page shows as JSON values, `document` the HTML around it. The script
and the style are files of this package, without any library. The live page is the same document;
its data comes from a server (`server.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adcs.experiments.page.document import document, with_reasons
from adcs.experiments.page.federation import federation_page
from adcs.experiments.page.simulation import simulation_page
from adcs.experiments.page.source import RunSource
from adcs.experiments.records import checked_records
from adcs.experiments.report import record_warnings
from adcs.experiments.runner import ENGINE, experiment_of, tasks, unfinished
from adcs.run_folder import RunFolder, write_atomically

__all__ = ["LARGEST", "PAGE", "page_data", "write_page"]

PAGE = "report.html"
"""The name of the page in a run folder."""

LARGEST = 6_000_000
"""The page has at most this many bytes."""


def page_data(source: RunSource, seed: int | None = None) -> dict[str, Any]:
    """Return what the page of a run shows, as JSON values.

    Parameters
    ----------
    source
        The run folder, read.
    seed
        The seed whose clients are shown, for a comparison; the first by default.

    Examples
    --------
    The page of a run that has just been created:

    >>> from tempfile import TemporaryDirectory
    >>> from adcs.experiments import Experiment, create_run
    >>> experiment = Experiment.of(data="synthetic", clients=10, m=5, schedulers=["Uniform"])
    >>> with TemporaryDirectory() as path:
    ...     folder = create_run(Path(path) / "run", experiment)
    ...     data = page_data(RunSource(folder))
    >>> data["kind"], data["verdict"]
    ('simulation', ['No accuracy of clients is recorded yet.'])
    """
    if source.config.get("engine") != ENGINE:
        return with_reasons(federation_page(source))
    experiment = experiment_of(source.folder)
    if seed is not None and seed not in experiment.seed_list:
        seeds = ", ".join(map(str, experiment.seed_list))
        raise ValueError(f"seed must be one of the run's, {seeds}; got {seed}")
    notes = [*source.config.get("notes", []), *record_warnings(source.records, experiment)]
    return with_reasons(simulation_page(source, experiment, notes, seed))


def write_page(folder: RunFolder, seed: int | None = None, out: Path | None = None) -> Path:
    """Write the page of a run; return its path.

    Parameters
    ----------
    folder
        The run folder, of a comparison or of a federation.
    seed
        The seed whose clients are shown; the first by default.
    out
        The file; by default report.html in the run folder.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from adcs.experiments import Experiment, create_run
    >>> experiment = Experiment.of(data="synthetic", clients=10, m=5, schedulers=["Uniform"])
    >>> with TemporaryDirectory() as path:
    ...     write_page(create_run(Path(path) / "run", experiment)).name
    'report.html'
    """
    if folder.config.get("engine") == ENGINE:
        checked_records(folder, experiment_of(folder))
    source = RunSource(folder)
    source.read()
    data = page_data(source, seed)
    if folder.config.get("engine") == ENGINE:
        experiment = experiment_of(folder)
        if left := unfinished(folder, experiment):
            every = len(tasks(experiment, folder.config.get("part")))
            data["notes"].append(f"Unfinished: {len(left)} of {every} tasks are not done.")
    path = folder.path / PAGE if out is None else out
    write_atomically(path, document(data, data["title"]).encode())
    return path
