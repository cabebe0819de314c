"""`make benchmark`: all schedulers on all cases, and one's own beside them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from adcs.experiments import curves
from reproduction.benchmark.protocol import (
    BASELINE,
    FOLDER,
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
    next_folder,
    one_sentence,
    options,
    overrides_of,
    print_end,
    write_text,
)

PUBLISHED = FOLDER / "results.csv"
"""The rows of the full tier, as on the page."""


def best_of_grids(folder: ResultFolder, case: Case) -> dict[str, str]:
    """Return each tuned scheduler's best spec by worst 20 % on the seed of the grids."""
    run = case.grid_run()
    if run is None:
        return {}
    _, records = folder.read(run)
    found = {label: float(v.mean()) for label, v in curves(records, "worst20").last().items()}
    best = {}
    for name, specs in protocol()["grids"]["specs"].items():
        best[name] = max([name, *specs], key=lambda spec: found[spec])
    return best


def run_case(folder: ResultFolder, case: Case, given: argparse.Namespace) -> list[Row]:
    """Make the runs of a case that are missing, and return its rows."""
    own = given.scheduler
    if given.published:
        runs = [case.run("baseline", {BASELINE: BASELINE})]
        runs += [case.own_run(own)] if own else []
    else:
        runs = [*case.default_runs(), *([case.own_run(own)] if own else [])]
        if not given.quick and (grid := case.grid_run()) is not None:
            folder.execute([grid], given.jobs)
            if (tuned := case.tuned_run(best_of_grids(folder, case))) is not None:
                runs.append(tuned)
    folder.execute(runs, given.jobs)
    records = [record for run in runs for record in folder.read(run)[1]]
    rows = rows_of(case.name, records)
    if given.published:
        held = [r for r in read_rows(PUBLISHED) if r.case == case.name]
        rows = [*held, *(row for row in rows if row.scheduler != BASELINE)]
    return rows


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
    given = parser.parse_args(arguments)
    given.quick = given.tier == "quick"
    declared, overrides = protocol(), overrides_of(given)
    default: Mapping[bool, Sequence[str]] = {True: declared["quick"]["cases"], False: case_names()}
    if given.quick:
        overrides.setdefault("seeds", declared["quick"]["seeds"])
    path = given.out or next_folder("benchmark")
    with one_sentence(f"make benchmark OUT={path}"):
        if given.published and overrides.keys() - {"data_folder"}:
            raise ValueError("--published has the full tier's rounds and seeds: use --tier full")
        folder = ResultFolder.open(
            path, case_names(), given.outputs, overrides, default[given.quick]
        )
        print(f"results go to {path}", file=sys.stderr)
        rows = []
        for case in cases_of(folder.outputs, folder.overrides):
            rows += run_case(folder, case, given)
            write_rows(path / "results.csv", rows)
        results = Results(rows)
        write_text(path / "summary.md", summary(results, results.cases))
        draw(results, results.cases, path / "figures" / "benchmark")
        print_overview(results, given.scheduler)
        print_end(folder, None)


if __name__ == "__main__":
    main()
