"""Choose the learning rate of each case: the best for Uniform on a seed of its own.

`python -m reproduction.benchmark.learning_rates` prints the average accuracy of each rate and the
best one, which the file of the case has.
"""

from __future__ import annotations

from collections.abc import Sequence

from adcs.experiments import curves
from reproduction.benchmark.protocol import BASELINE, Case, case_names, cases_of, protocol
from reproduction.folder import (
    ResultFolder,
    next_folder,
    one_sentence,
    options,
    overrides_of,
)


def averages(folder: ResultFolder, case: Case, jobs: int | None) -> dict[float, float]:
    """Return Uniform's final average accuracy at each learning rate."""
    declared = protocol()["learning_rates"]
    found = {}
    for factor in declared["factors"]:
        lr = float(f"{case.experiment.training.lr * factor:.3g}")
        settings = {"lr": lr, "seeds": 1, "first_seed": declared["seed"]}
        run = case.run(f"lr-{lr:g}", {BASELINE: BASELINE}, **settings)
        folder.execute([run], jobs)
        _, records = folder.read(run)
        found[lr] = float(curves(records, "average").last()[BASELINE].mean())
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run Uniform at each learning rate of each case."""
    parser = options("Learning rates of the benchmark's cases.")
    parser.add_argument("outputs", nargs="*", metavar="CASE", help=f"of {', '.join(case_names())}")
    given = parser.parse_args(arguments)
    path = given.out or next_folder("learning-rates")
    with one_sentence(f"python -m reproduction.benchmark.learning_rates --out {path}"):
        folder = ResultFolder.open(path, case_names(), given.outputs, overrides_of(given))
        for case in cases_of(folder.outputs, folder.overrides):
            found = averages(folder, case, given.jobs)
            best = max(found, key=lambda lr: found[lr])
            values = ", ".join(f"{lr:g}: {value:.3f}" for lr, value in found.items())
            print(f"{case.name}: {values}; best {best:g}", flush=True)


if __name__ == "__main__":
    main()
