"""`make paper`: the paper's figures, tables and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adcs.experiments import LEVEL, Experiment, seeds_of, setting, table_note
from reproduction.claims import Records
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
from reproduction.outputs import Output, Section, make_section


def declared(name: str) -> dict[str, Any]:
    """Return the contents of a TOML file of the paper's.

    >>> declared("theta")["run"]["baseline"]
    'Uniform'
    """
    return read_toml(CONFIGS / "paper" / f"{name}.toml")


def outputs() -> dict[str, Output]:
    """Return all outputs by name.

    >>> outputs()["table-1"].run
    'methods'
    """
    return {name: Output(name=name, **entry) for name, entry in declared("outputs").items()}


def paper_run(name: str, overrides: Mapping[str, Any]) -> Run:
    """Return a run of the paper's, some of its settings replaced.

    A run that is declared with one seed keeps one seed.

    >>> paper_run("theta", {"seeds": 2}).settings, paper_run("kernels", {"seeds": 2}).settings
    ({'seeds': 2}, {'seeds': 1})
    """
    settings = quick_look(overrides)
    if "seeds" in settings and declared(name)["run"]["seeds"] == 1:
        settings["seeds"] = 1
    return Run(name, CONFIGS / "paper" / f"{name}.toml", settings)


def runs_of(folder: ResultFolder) -> list[Run]:
    """Return the runs that the outputs of a folder need, each once."""
    every = outputs()
    names = dict.fromkeys(every[name].run for name in folder.outputs)
    return [paper_run(name, folder.overrides) for name in names]


def caveat(overrides: Mapping[str, Any]) -> str | None:
    """Return a warning if the setting is not the paper's.

    >>> caveat({"rounds": 300})
    "This is not the paper's setting (rounds = 300): the verdicts are about this one."
    """
    changed = {k: v for k, v in overrides.items() if k in ("rounds", "data")}
    if not changed:
        return None
    shown = ", ".join(f"{key} = {value}" for key, value in changed.items())
    return f"This is not the paper's setting ({shown}): the verdicts are about this one."


def report(folder: ResultFolder) -> list[Section]:
    """Draw every output, write summary.md, and return its sections."""
    paper = declared("table-1")
    every = outputs()
    read: dict[str, tuple[Experiment, Records]] = {
        run.name: folder.read(run) for run in runs_of(folder)
    }
    sections = []
    for name in folder.outputs:
        output = every[name]
        experiment, records = read[output.run]
        sections.append(make_section(output, experiment, records, paper, folder.path / "figures"))
    first, _ = next(iter(read.values()))
    parts = [
        "# The paper, reproduced",
        _note(first, folder.overrides),
        *[section.markdown() for section in sections],
    ]
    write_text(folder.path / "summary.md", "\n\n".join(parts))
    return sections


def _note(experiment: Experiment, overrides: Mapping[str, Any]) -> str:
    """Return the setting, and how claims are judged."""
    lines = [setting(experiment)]
    if (warning := caveat(overrides)) is not None:
        lines.append(f"**{warning}**")
    lines.append(
        "A claim of a difference holds if the difference has the sign that it says and "
        f"p < {LEVEL}: p is that of the paired, two-sided t-test over seeds, corrected by "
        "Holm's method for all differences that are claimed of a figure. Brackets after a "
        "difference are its paired 95 % Student interval, for it alone. Accuracies are means "
        f"over the last tenth of evaluations. {table_note(seeds_of(experiment))}"
    )
    return "\n\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the outputs named on the command line."""
    parser = options("The paper's figures, tables and claims.")
    every = outputs()
    default = [name for name, output in every.items() if not output.on_demand]
    asked = ", ".join(name for name in every if name not in default)
    names = f"some of {', '.join(every)}; if none, all but {asked}"
    parser.add_argument("outputs", nargs="*", help=names)
    parser.add_argument("--data", help="another data set than the paper's")
    given = parser.parse_args(arguments)
    folder, sections = make_results("paper", list(every), given, runs_of, report, default)
    for section in sections:
        print(section.output.title)
        for claim in section.claims:
            print(f"  {claim.verdict}: {claim.text}. {claim.numbers}")
    print_end(folder, caveat(folder.overrides))


if __name__ == "__main__":
    main()
