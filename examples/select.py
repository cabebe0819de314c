"""A small demonstration of `adcs.select`: who is chosen, and what diversity does to it."""

from __future__ import annotations

import numpy as np

import adcs

GROUPS, EACH, M = 5, 4, 6


def main() -> None:
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((GROUPS, 200))
    updates = np.repeat(directions, EACH, axis=0) + 0.4 * rng.standard_normal((GROUPS * EACH, 200))
    losses = np.repeat([2.4, 2.2, 1.0, 0.8, 0.5], EACH) + 0.05 * rng.standard_normal(GROUPS * EACH)
    print(f"{GROUPS} groups of {EACH} clients; groups 0 and 1 have the largest losses. m = {M}.")
    for theta in (1.0, 0.8, 0.5, 0.0):
        chosen = adcs.select(updates, m=M, quality=losses, theta=theta)
        groups = np.bincount(chosen // EACH, minlength=GROUPS)
        print(f"theta = {theta:3}: clients {chosen.tolist()}, per group {groups.tolist()}")


if __name__ == "__main__":
    main()
