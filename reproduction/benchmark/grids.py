"""Choose the settings of the strongest rivals: the best of a grid on the development cases.

`python -m reproduction.benchmark.grids` prints the mean worst 20 % of each setting and the best
ones, which `tuned` of protocol.toml has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adcs.experiments import curves
from reproduction.benchmark.protocol import Case, protocol
from reproduction.folder import ResultFolder, Run, next_folder, one_sentence, options


def candidates() -> dict[str, str]:
    """Return the settings of all grids by label; number 0 of a scheduler is its default.

    >>> found = candidates()
    >>> found["ADCS 0"], found["ADCS 1"]
    ('ADCS', 'ADCS(theta=0.5)')
    """
    declared = protocol()
    return {
        f"{name} {i}": spec
        for name, specs in declared["grids"]["specs"].items()
        for i, spec in enumerate([declared["schedulers"][name], *specs])
    }


def grid_run(case: Case) -> Run:
    """Return the run of all settings on a case, on the seed of the grids."""
    seed = protocol()["grids"]["seed"]
    return case.run("grids", candidates(), seeds=1, first_seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the grids on the development cases without networks."""
    given = options("Settings of the benchmark's strongest schedulers.").parse_args(arguments)
    known = [name for name in protocol()["cases"]["development"] if not Case(name).is_network]
    path = given.out or next_folder("grids")
    with one_sentence(f"python -m reproduction.benchmark.grids --out {path}"):
        folder = ResultFolder.open(path, known, (), {})
        found: dict[str, list[float]] = {label: [] for label in candidates()}
        for name in known:
            run = grid_run(Case(name))
            folder.execute([run], given.jobs)
            _, records = folder.read(run)
            for label, values in curves(records, "worst20").last().items():
                found[label].append(float(values.mean()))
        means = {label: float(np.mean(values)) for label, values in found.items()}
        for label, spec in candidates().items():
            print(f"{spec}: {means[label]:.4f}")
        print("[tuned]")
        for name in protocol()["grids"]["specs"]:
            own = [label for label in means if label.rpartition(" ")[0] == name]
            best = max(own, key=lambda label: means[label])
            if best != f"{name} 0":
                print(f'{name} = "{candidates()[best]}"')


if __name__ == "__main__":
    main()
