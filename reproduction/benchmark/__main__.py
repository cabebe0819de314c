"""`make benchmark`: all schedulers on all cases, and one's own beside them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from adcs.experiments import make_scheduler
from reproduction.benchmark.page import PUBLISHED, write_page
from reproduction.benchmark.protocol import (
    BASELINE,
    TUNED,
    Case,
    case_names,
    cases_of,
    label_of,
    protocol,
)
from reproduction.benchmark.report import draw, judge, overview, summary
from reproduction.benchmark.results import Results, Row, read_rows, rows_of, write_rows
from reproduction.folder import (
    ResultFolder,
    make_command,
    next_folder,
    one_sentence,
    options,
    overrides_of,
    print_end,
    write_text,
)


def run_case(
    folder: ResultFolder, case: Case, given: argparse.Namespace, known: Results, where: str
) -> list[Row]:
    """Make the runs of a case that are missing, and return their rows.

    Parameters
    ----------
    folder
        Where the runs are.
    case
        The case.
    given
        The options of the command line.
    known
        Results so far, and the published ones where only some schedulers are run.
    where
        Which case it is, for the line that announces a run.
    """
    runs = case.runs(given.only)
    if given.scheduler:
        runs.append(case.own_run(given.scheduler))
    if not runs:
        return []
    folder.execute(runs, given.jobs, where=where)
    records = [record for run in runs for record in folder.read(run)[1]]
    has_baseline = any(BASELINE in run.schedulers for run in runs)
    if has_baseline and case.name == case.synchronous:
        return rows_of(case.name, records)
    if case.synchronous not in known.cases:
        raise ValueError(f"{case.name} needs {case.synchronous}, which has no results: name it too")
    return rows_of(case.name, records, known.target(case.synchronous))


def publish(rows: Sequence[Row]) -> None:
    """Put rows in the place of the published ones of the same case and scheduler."""
    held = read_rows(PUBLISHED) if PUBLISHED.is_file() else []
    replaced = {(row.case, row.scheduler) for row in rows}
    kept = [row for row in held if (row.case, row.scheduler) not in replaced]
    order = {name: i for i, name in enumerate(case_names())}
    merged = Results([*kept, *rows])
    labels = {case: Case(case).labels() for case in merged.cases}
    ordered = [row for row in merged.rows if row.scheduler in labels[row.case]]
    ordered.sort(key=lambda r: (order[r.case], labels[r.case].index(r.scheduler), r.seed))
    write_rows(PUBLISHED, ordered)
    for path in write_page(Results(ordered)):
        print(f"wrote {path}", file=sys.stderr)


def print_overview(results: Results, own: str | None) -> None:
    """Print the overview and, for one's own scheduler, where it is below Uniform."""
    print(overview(results, results.cases))
    if own:
        label = label_of(own)
        for case in results.cases:
            for verdict in judge(results, case, label):
                if not verdict.holds:
                    print(f"{label}, {case}: not so: {verdict.requirement} ({verdict.found})")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = options("All schedulers on all cases; one's own in the same table.")
    parser.add_argument("outputs", nargs="*", metavar="CASE", help=f"of {', '.join(case_names())}")
    parser.add_argument("--tier", choices=["quick", "full"], default="quick", help="how much")
    parser.add_argument("--scheduler", metavar="FILE.py:CLASS", help="one's own scheduler")
    parser.add_argument(
        "--published", action="store_true", help="take the others' results from results.csv"
    )
    parser.add_argument(
        "--again",
        metavar="NAME",
        nargs="+",
        help="run these schedulers of the table only; take the others' results from results.csv",
    )
    parser.add_argument(
        "--publish", action="store_true", help="write results.csv and docs/evidence/benchmark.md"
    )
    given = parser.parse_args(arguments)
    quick = given.tier == "quick"
    declared, overrides = protocol(), overrides_of(given)
    default: Sequence[str] = declared["quick"]["cases"] if quick else case_names()
    if quick:
        overrides.setdefault("seeds", declared["quick"]["seeds"])
    path = given.out or next_folder("benchmark")
    with one_sentence(make_command("benchmark", path, given)):
        given.only = _only(given)
        if (given.publish or given.only is not None) and overrides.keys() - {"data_folder"}:
            raise ValueError(
                "results.csv has the full tier's rounds and seeds: use --tier full, without others"
            )
        folder = ResultFolder.open(path, case_names(), given.outputs, overrides, default)
        cases = cases_of(folder.outputs, folder.overrides)
        if given.scheduler:
            for case in cases:  # before hours of runs, and a spec may name the case's numbers
                make_scheduler(case.spec(given.scheduler), seed=0)
        print(f"results go to {path}", file=sys.stderr)
        rows = [] if given.only is None else _held(folder.outputs, given.only)
        for number, case in enumerate(cases, start=1):
            where = f"case {number} of {len(cases)}, "
            made = run_case(folder, case, given, Results(rows), where)
            rows += made
            write_rows(path / "results.csv", rows)
            if given.publish:
                publish(made)
        results = Results(rows)
        names = [name for name in case_names() if name in results.cases]
        write_text(path / "summary.md", summary(results, names))
        draw(results, names, path / "figures" / "benchmark")
        print_overview(results, given.scheduler)
        print_end(folder, None)


def _only(given: argparse.Namespace) -> list[str] | None:
    """Return the schedulers of the table that are run; None are all of them."""
    if given.again is not None:
        tuned = [f"{name}{TUNED}" for name in protocol()["tuned"]]
        for name in given.again:
            if name not in [*protocol()["schedulers"], *tuned]:
                known = ", ".join([*protocol()["schedulers"], *tuned])
                raise ValueError(f"there is no scheduler {name!r}; there are {known}")
        return [*given.again, *(f"{name}{TUNED}" for name in given.again)]
    return [] if given.published else None


def _held(cases: Sequence[str], again: Sequence[str]) -> list[Row]:
    """Return the published rows, without those that are made again, and those of the baselines."""
    if not PUBLISHED.is_file():
        raise ValueError(f"{PUBLISHED} does not exist: run the others too")
    wanted = {*cases, *(Case(name).synchronous for name in cases)}
    return [
        row
        for row in read_rows(PUBLISHED)
        if row.case in wanted and not (row.case in cases and row.scheduler in again)
    ]


if __name__ == "__main__":
    main()
