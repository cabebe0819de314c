"""`make ablation`: what each part of LiveADCS adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adcs.experiments import (
    curves,
    estimate,
    format_difference,
    format_number,
    markdown_table,
    paired,
)
from reproduction.folder import (
    CONFIGS,
    ResultFolder,
    Run,
    make_results,
    options,
    print_end,
    quick_look,
    read_toml,
    write_text,
)

OURS = "LiveADCS"
METRICS = ("worst", "worst20", "average")


def protocol() -> dict[str, Any]:
    """Return cases and variants as declared.

    >>> protocol()["cases"]
    ['by-class', 'dirichlet', 'letter', 'mlp']
    """
    return read_toml(CONFIGS / "ablation" / "protocol.toml")


def case_run(name: str, overrides: Mapping[str, Any]) -> Run:
    """Return the run of a case.

    >>> run = case_run("mlp", {"rounds": 100})
    >>> run.settings["rounds"], list(run.schedulers)[:2]
    (100, ['LiveADCS', 'replies not reused'])
    """
    declared = protocol()
    config = CONFIGS / "ablation" / f"{name}.toml"
    settings = quick_look(overrides)
    if "data" in read_toml(config):  # The folder is that of Fashion-MNIST.
        settings.pop("data_folder", None)
    return Run(name, config, settings, {OURS: OURS, **declared["variants"], **declared["others"]})


def runs_of(folder: ResultFolder) -> list[Run]:
    """Return the runs of the folder's cases."""
    return [case_run(name, folder.overrides) for name in folder.outputs]


def table(folder: ResultFolder, name: str) -> str:
    """Return LiveADCS's accuracies on a case, and by how much those of each variant differ."""
    experiment, records = folder.read(case_run(name, folder.overrides))
    labels = list(experiment.schedulers)
    last = {metric: curves(records, metric, labels).last() for metric in METRICS}
    ours = [format_number(estimate(last[metric][OURS]).mean, metric) for metric in METRICS]
    lines = [[OURS, *ours]]
    for label in labels[1:]:
        found = [paired(last[metric][label], last[metric][OURS]) for metric in METRICS]
        lines.append([label, *(format_difference(each) for each in found)])
    first = (CONFIGS / "ablation" / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
    title = f"{first.removeprefix('# ')}, {experiment.training.rounds:,} rounds"
    return markdown_table([title, "worst", "worst 20 %", "average"], lines)


def report(folder: ResultFolder) -> None:
    """Write summary.md."""
    parts = ["# What each part of LiveADCS adds"]
    parts += [table(folder, name) for name in folder.outputs]
    parts.append(
        "Accuracies of LiveADCS, means over the last tenth of evaluations; below them, by how much "
        "those of each variant differ, with paired 95 % Student intervals that are not corrected "
        "for their number."
    )
    write_text(folder.path / "summary.md", "\n\n".join(parts))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases."""
    cases = protocol()["cases"]
    parser = options("LiveADCS, and LiveADCS with one part replaced.")
    parser.add_argument("outputs", nargs="*", metavar="CASE", help=f"of {', '.join(cases)}")
    folder, _ = make_results("ablation", cases, parser.parse_args(arguments), runs_of, report)
    print_end(folder, None)


if __name__ == "__main__":
    main()
