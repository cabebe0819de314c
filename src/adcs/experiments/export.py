"""Exports of a run folder: tables for pandas, polars, DuckDB or a spreadsheet, and LaTeX.

    records    a row for each scheduler, seed and evaluation: every number of the record
    clients    a row for each client of those: its metric, loss and number of selections
    cohorts    a row for each client of a cohort of any round; with its weight, where recorded
    summary    the table of the comparison, a row for each scheduler and metric

The last one is also what LaTeX gets, as a table in the style of booktabs.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adcs._validation import check_choice
from adcs.experiments import tables
from adcs.experiments.records import checked_records
from adcs.experiments.report import baseline_of, seeds_of
from adcs.experiments.runner import ENGINE, experiment_of, layout, tasks
from adcs.experiments.selections import read_cohorts
from adcs.experiments.statistics import Record, Row, metric_of, summarise
from adcs.run_folder import RunFolder, write_atomically
from adcs.trackers.tracker import scalars

Table = dict[str, list[Any]]
"""Columns by name, all of one size."""

KEY = ("scheduler", "seed", "server_round")
"""The columns that say which evaluation a row belongs to."""


class Cohorts(NamedTuple):
    """The cohorts of one run, round by round from the first one on."""

    scheduler: str
    seed: int
    first: int
    rounds: Sequence[Sequence[int]]


LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
}


def export_run(folder: RunFolder, to: str, out: Path | None = None) -> list[Path]:
    """Write the tables of a run; return the files.

    Parameters
    ----------
    folder
        The run folder, of a comparison or a federation.
    to
        "parquet", "csv" or "latex".
    out
        Where the files go; by default the folder `export` of the run folder.

    Examples
    --------
    >>> import tempfile
    >>> folder = RunFolder.create(Path(tempfile.mkdtemp()) / "run", {"engine": "flower"})
    >>> with folder.writer("task") as lines:
    ...     lines.append({"scheduler": "ADCS", "seed": 0, "server_round": 1, "worst": 0.5})
    >>> [path.name for path in export_run(folder, "csv")]
    ['records.csv', 'summary.csv']
    >>> print((folder.path / "export" / "records.csv").read_text())
    scheduler,seed,server_round,worst
    ADCS,0,1,0.5
    """
    check_choice("to", to, FORMATS)
    records, rows, title = _read(folder)
    if not records:
        raise ValueError(f"{folder.path} has no records yet; there is nothing to export")
    target = folder.path / "export" if out is None else out
    if to == "latex":
        path = target / "summary.tex"
        write_atomically(path, latex_tables(rows, title).encode())
        return [path]
    names = folder.config.get("client_names")
    found = {
        "records": record_table(records),
        "clients": client_table(records, folder.config.get("groups"), names),
        "cohorts": cohort_table(records, recorded_cohorts(folder)),
        "summary": summary_columns(rows),
    }
    paths = []
    for name, table in found.items():
        if any(table.values()):
            path = target / f"{name}.{to}"
            write_atomically(path, WRITERS[to](table))
            paths.append(path)
    return paths


def _read(folder: RunFolder) -> tuple[list[dict[str, Any]], list[Row], str]:
    """Return the checked records of a run, the rows of its summary, and their title."""
    if folder.config.get("engine") == ENGINE:
        experiment = experiment_of(folder)
        records = checked_records(folder, experiment)
        labels, baseline = list(experiment.schedulers), baseline_of(experiment)
        seeds: Sequence[int] = seeds_of(experiment)
    else:
        records = list(folder.records())
        labels = list(dict.fromkeys(record["scheduler"] for record in records))
        baseline, seeds = labels[0] if labels else "", [0]
    records.sort(key=lambda r: (labels.index(r["scheduler"]), r["seed"], r["server_round"]))
    return records, summarise(records, labels, baseline), tables.table_title(seeds)


def record_table(records: Sequence[Record]) -> Table:
    """Return the numbers of records as columns; a number that a record lacks is None.

    >>> record_table([{"scheduler": "A", "seed": 0, "server_round": 0, "worst": 0.5, "tv": None}])
    {'scheduler': ['A'], 'seed': [0], 'server_round': [0], 'worst': [0.5]}
    """
    numbers = [scalars(record) for record in records]
    names = list(dict.fromkeys(name for each in numbers for name in each))
    table: Table = {key: [record[key] for record in records] for key in KEY}
    return table | {name: [each.get(name) for each in numbers] for name in names}


def client_table(
    records: Sequence[Record], groups: Sequence[int] | None, names: Sequence[str] | None
) -> Table:
    """Return the lists of records that have an entry for each client, a row for each client.

    >>> record = {"scheduler": "A", "seed": 0, "server_round": 5, "accuracy": [0.5, 0.75]}
    >>> table = client_table([record], [0, 1], None)
    >>> table["client"], table["accuracy"], table["group"]
    ([0, 1], [0.5, 0.75], [0, 1])
    """
    metric = metric_of(records)
    columns = {metric: metric, "losses": "loss", "counts": "selections"}
    table: Table = {name: [] for name in (*KEY, "client", *columns.values())}
    if groups is not None or any(record.get("groups") for record in records):
        table["group"] = []
    if names is not None:
        table["name"] = []
    for record in records:
        lists = {name: record[key] for key, name in columns.items() if record.get(key)}
        if not lists:
            continue
        count = len(next(iter(lists.values())))
        clients = record.get("clients") or range(count)
        for key in KEY:
            table[key] += [record[key]] * count
        table["client"] += clients
        for name in columns.values():
            table[name] += lists.get(name) or [None] * count
        if "group" in table:  # in a federation they are those of its record
            table["group"] += record.get("groups") or groups or [None] * count
        if names is not None:
            table["name"] += names
    return {name: column for name, column in table.items() if any(x is not None for x in column)}


def cohort_table(records: Sequence[Record], cohorts: Iterable[Cohorts] = ()) -> Table:
    """Return the recorded cohorts, a row for each selected client; rounds are counted from 0.

    Parameters
    ----------
    records
        Records. Those of a federation have the cohort of their round, in the order of preference.
        Those of a simulation have the weights of a cohort, which is None in other rounds.
    cohorts
        The recorded cohorts of a simulation.

    Examples
    --------
    >>> record = {"scheduler": "A", "seed": 0, "server_round": 5, "cohort_weights": [0.0, 1.0]}
    >>> cohort_table([record], [Cohorts("A", 0, 5, [[1], [0]])])["weight"]
    [1.0, None]
    """
    table: Table = {name: [] for name in (*KEY, "client", "weight")}

    def add(scheduler: str, seed: int, server_round: int, clients: Any, weights: Any) -> None:
        size = len(clients)
        key = (scheduler, seed, server_round)
        for name, value in zip(KEY, key, strict=True):
            table[name] += [value] * size
        table["client"] += clients
        table["weight"] += [None] * size if weights is None else weights

    weighted = {
        tuple(record[key] for key in KEY): record["cohort_weights"]
        for record in records
        if record.get("cohort_weights")
    }
    for record in records:
        if "chosen" in record:  # written after the round
            key = (record["scheduler"], record["seed"], record["server_round"] - 1)
            add(*key, record["chosen"], record["weights"])
    for label, seed, first, rounds in cohorts:
        for server_round, clients in enumerate(rounds, start=first):
            weights = weighted.get((label, seed, server_round))
            found = None if weights is None else [weights[client] for client in clients]
            add(label, seed, server_round, clients, found)
    return table


def recorded_cohorts(folder: RunFolder) -> Iterator[Cohorts]:
    """Yield the recorded cohorts of each run of a simulation; there are none in older runs."""
    if folder.config.get("engine") != ENGINE:
        return
    experiment, config = experiment_of(folder), folder.config
    for task in tasks(experiment, config.get("part")):
        form = layout(experiment, task, config.get("cohort_slots"))
        held = read_cohorts(folder, task.name, form)
        for label, rounds in zip(task.labels, held, strict=True):
            yield Cohorts(label, task.seed, 0, [clients.tolist() for clients in rounds])


def summary_columns(rows: Sequence[Row]) -> Table:
    """Return the table of a comparison as columns."""
    heads, lines = tables.number_table(rows)
    columns = zip(*lines, strict=True) if lines else ([] for _ in heads)
    return {head: list(column) for head, column in zip(heads, columns, strict=True)}


def as_csv(table: Table) -> bytes:
    """Return a table as CSV; None is an empty field.

    >>> as_csv({"a": [1, None], "b": ["x,y", "z"]})
    b'a,b\\n1,"x,y"\\n,z\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue().encode()


def as_parquet(table: Table) -> bytes:
    """Return a table as Parquet; ids that are numbers and texts become texts."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            "Parquet needs pyarrow, which is missing; pip install 'adcs[data]' brings it"
        ) from error
    columns = {name: _of_one_type(column) for name, column in table.items()}
    target = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), target)
    return target.getvalue()


def _of_one_type(column: Sequence[Any]) -> Sequence[Any]:
    """Return a column whose entries a Parquet file can hold.

    >>> _of_one_type([1, "site b", None]), _of_one_type([1, 2.5])
    (['1', 'site b', None], [1.0, 2.5])
    """
    kinds = {type(value) for value in column if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in column]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in column]
    return column


def latex_tables(rows: Sequence[Row], title: str) -> str:
    """Return the summary, and the differences to the baseline if there are any, as LaTeX."""
    parts = ["% \\usepackage{booktabs}", latex_table(title, *tables.summary_table(rows))]
    heads, cells = tables.difference_table(rows)
    if cells:
        base = next(row.label for row in rows if not row.differences)
        parts.append(latex_table(tables.difference_title(base, rows), heads, cells))
    return "\n\n".join(parts) + "\n"


def latex_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Return a table for LaTeX, in the style of booktabs.

    >>> print(latex_table("Results", ["scheduler", "worst 20 %"], [["ADCS", "0.6 ± 0.1"]]))
    \begin{table}
      \centering
      \caption{Results}
      \begin{tabular}{lr}
        \toprule
        scheduler & worst 20 \% \\
        \midrule
        ADCS & 0.6 $\pm$ 0.1 \\
        \bottomrule
      \end{tabular}
    \end{table}
    """

    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(map(latex_text, cells)) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex_text(caption)}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"    \toprule",
            line(heads),
            r"    \midrule",
            *map(line, rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def latex_text(text: str) -> str:
    r"""Return text for LaTeX.

    >>> print(latex_text("a_b & 50 % ± 1"), latex_text("-0.1 [-0.2, +0.1]"))
    a\_b \& 50 \% $\pm$ 1 $-$0.1 [$-$0.2, +0.1]
    """
    escaped = "".join(LATEX_ESCAPES.get(char, char) for char in text)
    return re.sub(r"-(?=\d)", "$-$", escaped)


WRITERS: Mapping[str, Callable[[Table], bytes]] = {"parquet": as_parquet, "csv": as_csv}
"""Formats of tables, by name."""

FORMATS = (*WRITERS, "latex")
"""The names of all formats."""
