"""What the slots of clients that do not tell the truth cost the honest, and what their reports do.

    python -m reproduction.slots                  # runs/slots-1; about ten minutes on two cores

Each attack of `make attacks` is run with LiveADCS, and it is noted who of the liars is selected in
which round. Then the same clients get the same slots and tell the truth. What the honest lose in
that run is the price of the slots; the rest is what false reports do to weights and quality.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np

from adcs import Cohort, LiveADCS
from adcs.experiments import estimate, markdown_table
from reproduction.attacks import ATTACKS, METRICS, experiment, liars_of, simulate
from reproduction.folder import next_folder, one_sentence, options, overrides_of, write_text

REPLAYED = tuple(name for name in ATTACKS if name != "sign-flip x 100")
"""Attacks whose slots are given to the same clients again."""

LIMITED = ("none", "claims of the 90th percentile")
"""Attacks that are run with smaller limits of participation, too."""

SHARES = (1.5, 1.25)
"""Smaller limits of participation than the default of 2."""

HEADS = ["run", "share of a liar", "worst", "worst 20 %", "average"]


class Noted(LiveADCS):
    """Notes which of some clients it selects in each round."""

    def __init__(self, liars: Sequence[int], **settings: Any) -> None:
        super().__init__(**settings)
        self.liars, self.slots = frozenset(liars), list[list[int]]()

    def select(self, server_round: int, *others: Any) -> Cohort:
        """Return the cohort."""
        cohort = super().select(server_round, *others)
        self.slots.append([client for client in cohort.clients if client in self.liars])
        return cohort


class Given(LiveADCS):
    """Gives some clients the slots that were noted, and the others' to whom LiveADCS selects."""

    def __init__(self, noted: Noted, **settings: Any) -> None:
        super().__init__(**settings)
        self.noted = noted

    def select(self, server_round: int, available: Sequence[Any], *others: Any) -> Cohort:
        """Return the cohort."""
        given = self.noted.slots[server_round]
        self.constraints = type(self.constraints)(required=given)
        left = self.noted.liars.difference(given)
        return super().select(server_round, [c for c in available if c not in left], *others)


def measure(attack: str, seed: int, overrides: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return share of slots and honest accuracy of each run of an attack."""
    liars = liars_of(attack, overrides, seed)

    def run(attack: str, scheduler: LiveADCS) -> dict[str, float]:
        return simulate(attack, liars, {"LiveADCS": scheduler}, overrides, seed)["LiveADCS"]

    noted = Noted(liars.tolist(), seed=seed)
    found = {attack: run(attack, noted)}
    if attack != "none":
        found[f"{attack}: the slots alone"] = run("none", Given(noted, seed=seed))
    if attack in LIMITED:
        for share in SHARES:
            found[f"{attack}, max_share={share}"] = run(
                attack, LiveADCS(max_share=share, seed=seed)
            )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all attacks, and write summary.md."""
    given = options("What the slots of liars cost.").parse_args(arguments)
    path = given.out or next_folder("slots")
    with one_sentence("reproduction.slots"):
        overrides = overrides_of(given)
        settings = experiment(overrides)
        start, held = time.monotonic(), dict[tuple[str, int], Any]()
        with ProcessPoolExecutor(given.jobs) as pool:
            todo = {
                pool.submit(measure, attack, seed, overrides): (attack, seed)
                for attack in REPLAYED
                for seed in settings.seed_list
            }
            for done, future in enumerate(as_completed(todo), start=1):
                held[todo[future]] = future.result()
                left = (time.monotonic() - start) / done * (len(todo) - done)
                print(f"{done} of {len(todo)} jobs, {left:.0f} s left", file=sys.stderr)
        rows = []
        for attack in REPLAYED:
            seeds = [held[attack, seed] for seed in settings.seed_list]
            for name in seeds[0]:
                share, *accuracies = (
                    estimate(np.array([one[name][metric] for one in seeds])).mean
                    for metric in METRICS
                )
                rows.append([name, f"{share:.2f}", *(f"{cell:.3f}" for cell in accuracies)])
        parts = [
            "# The slots of clients that do not tell the truth",
            f"{settings.in_words()}. LiveADCS; means over seeds, accuracies of the honest.",
            markdown_table(HEADS, rows),
        ]
        write_text(path / "summary.md", "\n\n".join(parts))
        write_text(path / "records.json", json.dumps([[*key, held[key]] for key in held]))
    print(f"{path / 'summary.md'} has the table", file=sys.stderr)


if __name__ == "__main__":
    main()
