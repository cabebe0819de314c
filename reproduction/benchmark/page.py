"""The page of the benchmark: docs/evidence/benchmark.md, from results.csv.

`python -m reproduction.benchmark.page` writes it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from adcs.experiments import LEVEL, estimate, format_estimate, format_number, markdown_table
from reproduction.benchmark.protocol import (
    BASELINE,
    FOLDER,
    OURS,
    TUNED,
    Case,
    case_names,
    protocol,
)
from reproduction.benchmark.report import (
    CHEAP,
    case_section,
    draw,
    gain,
    is_cheap,
    judge,
    overview,
    rivals,
    shown,
    traffic,
)
from reproduction.benchmark.results import METRICS, Results, format_reached, read_rows
from reproduction.folder import ROOT, write_text

PUBLISHED = FOLDER / "results.csv"
"""The rows of the full tier, as on the page."""

PAGE = ROOT / "docs" / "evidence" / "benchmark.md"
FIGURE = ROOT / "docs" / "figures" / "benchmark.png"

WORTH = 0.01
"""A gain in worst 20 % for which the page advises another scheduler than Uniform."""

HOW = """## How it was made

- Learning rates are the best for `Uniform` by average accuracy, on a seed of their own
  (`python -m reproduction.benchmark.learning_rates`). They are the same for all schedulers.
- Schedulers have their papers' defaults. *tuned* is the best setting of a small grid, by mean
  worst 20 % over the development cases without networks, on a seed of its own
  (`python -m reproduction.benchmark.grids`). A scheduler whose default is its best has no such
  line.
- Cases with a star are held out: no setting was chosen on them.
- Seeds are paired: partition, initial model, mini-batches and network are those of `Uniform`.
  Accuracies are means over the last tenth of evaluations. Intervals are 95 % Student intervals.
- Traffic counts models and reports in both directions, those of probes included. Virtual time is
  that of the simulated network.
- `reproduction/benchmark/protocol.toml` declares all of it, and `results.csv` beside it has a line
  for each case, scheduler and seed."""

COMMANDS = """## Your own scheduler in the table

```
make benchmark SCHEDULER=mine.py:Mine                            # the quick tier, all schedulers
make benchmark TIER=full PUBLISHED=1 SCHEDULER=mine.py:Mine      # all cases, others as published
make benchmark TIER=full AGAIN=LiveADCS PUBLISH=1                # run one again, renew this page
make benchmark TIER=full PUBLISH=1 OUT=runs/benchmark-full       # everything; resumes
```

The quick tier takes about six minutes on two idle cores. `ONLY="digits letter"` names cases, so
that a run can be made in pieces or on several machines."""


def main_cases(results: Results) -> list[str]:
    """Return the cases with rounds that wait for everybody, in the order of the protocol."""
    return [n for n in case_names() if n in results.cases and Case(n).synchronous == n]


def advice(results: Results) -> str:
    """Return what a person should use, from the results of cases that have all schedulers."""
    cases = [name for name in main_cases(results) if not Case(name).is_network]
    everywhere = [
        label
        for label in rivals(results, cases)
        if all(label in results.schedulers(case) for case in cases)
    ]
    dear = [label for label in everywhere if not is_cheap(results, cases, label)]
    cheap = [n for n in everywhere if n not in dear and not n.endswith(TUNED)]
    lines = []
    best = max(cheap, key=lambda label: gain(results, cases, label))
    if gain(results, cases, best) > 0.0:
        lines.append(
            f"- **For the worst-off clients, at no extra cost: `{best}`.** "
            f"{_gains(results, cases, best)}{_misses(results) if best == OURS else ''}"
        )
    else:
        lines.append(
            "- **For the worst-off clients, at no extra cost: `Uniform`.** No scheduler with its "
            f"traffic is above it on average; the next is `{best}`. {_gains(results, cases, best)}"
        )
    if dear:
        lines.append(_asking(results, cases, best, dear))
    enough = [
        case
        for case in cases
        if max(results.difference(case, label, "worst20").mean for label in cheap) < WORTH
    ]
    most = max(cheap, key=lambda label: gain(results, cases, label, "average"))
    lines.append(
        "- **`Uniform` is enough** if the average over clients is what counts: "
        f"the largest mean gain in it is {gain(results, cases, most, 'average'):+.3f} (`{most}`)."
        + (
            f" Also where no scheduler of its traffic gains {WORTH} in the worst 20 %: "
            f"{', '.join(enough)}."
            if enough
            else ""
        )
    )
    lines += _slow(results)
    return "\n".join(lines)


def _asking(results: Results, cases: Sequence[str], best: str, dear: Sequence[str]) -> str:
    """Return what is gained by schedulers that ask clients before each round."""
    dearest = max(dear, key=lambda label: gain(results, cases, label))
    gains = _gains(results, cases, dearest)
    if gain(results, cases, dearest) > gain(results, cases, best):
        return f"- **If clients may be asked before each round: `{dearest}`.** {gains}"

    def worst(case: str, label: str) -> float:
        return results.difference(case, label, "worst").mean

    better = [case for case in cases if worst(case, dearest) >= worst(case, best) + WORTH]
    where = f" Its worst client is better by {WORTH} or more on {', '.join(better)}."
    return (
        f"- **To ask clients before each round gains less.** The best that does is `{dearest}`. "
        f"{gains}{where if better else ''}"
    )


def _misses(results: Results) -> str:
    """Return on how many cases something is better than ours."""
    cases = [case for case in main_cases(results) if OURS in results.schedulers(case)]
    verdicts = {case: [verdict.holds for verdict in judge(results, case)] for case in cases}
    below = [case for case, holds in verdicts.items() if not all(holds[:2])]
    beaten = sum(not all(holds[2:]) for holds in verdicts.values())
    return (
        f" On {len(cases)} cases, those with networks included, it is below `Uniform` by more than "
        f"[the margin](#what-is-required-of-liveadcs) on {', '.join(below) or 'none'}, and some "
        f"other scheduler has a better worst client on {beaten}."
    )


def _gains(results: Results, cases: Sequence[str], label: str) -> str:
    signs = [shown(results, case)[label] for case in cases]
    return (
        f"Worst 20 % {gain(results, cases, label):+.3f}, worst client "
        f"{gain(results, cases, label, 'worst'):+.3f} and average "
        f"{gain(results, cases, label, 'average'):+.3f} to `Uniform`, means over {len(cases)} "
        f"cases; shown above it on {signs.count(1)} and below on {signs.count(-1)}; "
        f"{traffic(results, cases, label):.2f} times its traffic."
    )


def _slow(results: Results) -> list[str]:
    """Return a line about rounds that do not wait for the slowest client."""
    ratios: dict[str, list[float]] = {}
    for name in protocol()["modes"]["cases"]:
        case = Case(name)
        if name in results.cases and case.synchronous in results.cases:
            now = results.values(name, BASELINE, "seconds_to_reach")
            before = results.values(case.synchronous, BASELINE, "seconds_to_reach")
            ratios.setdefault(case.mode, []).append(float(np.median(now / before)))
    if not ratios:
        return []
    waiting = []
    for name in protocol()["modes"]["cases"]:
        if Case(name).mode == "over-selected" and {OURS, BASELINE} <= {*results.schedulers(name)}:
            ours, theirs = (results.values(name, each, "seconds") for each in (OURS, BASELINE))
            waiting.append(f"{np.median(ours / theirs):.1f}")
    words = []
    for mode, found in ratios.items():
        each = [f"{x:.2f}" if np.isfinite(x) else "never" for x in found]
        words.append(f"{mode} {' and '.join(each)}")
    return [
        "- **If clients differ much in speed, change how rounds end before you change the "
        "scheduler.** Virtual time until `Uniform` has the final average of its synchronous run, "
        f"as a multiple of that run's: {'; '.join(words)} "
        f"(medians over seeds, {len(found)} cases)."
        + (
            f" Over-selected rounds of `{OURS}` wait for clients whose turn has come: they take "
            f"{' and '.join(waiting)} times as long as `Uniform`'s."
            if waiting
            else ""
        )
    ]


def mode_table(results: Results, name: str) -> str:
    """Return the table of a case for all ways in which rounds end."""
    lines = []
    for case in (n for n in case_names() if Case(n).synchronous == name and n in results.cases):
        for label in protocol()["modes"]["schedulers"]:
            if label not in results.schedulers(case):
                continue
            cells = [Case(case).mode, label]
            for field in METRICS:
                found = estimate(results.values(case, label, field), (0.0, 1.0))
                cells.append(format_estimate(found, field))
            for field in ("updates", "bytes", "seconds"):
                cells.append(format_number(results.mean(case, label, field), field))
            for field in ("bytes", "seconds"):
                values = results.values(case, label, f"{field}_to_reach")
                cells.append(format_reached(values, field))
            lines.append(cells)
    heads = ["rounds", "scheduler", "worst", "worst 20 %", "average", "updates", "traffic", "time"]
    return markdown_table([*heads, "traffic to the average", "time to it"], lines)


def verdicts(results: Results, cases: Sequence[str]) -> str:
    """Return on which cases ours does not do what is required of it."""
    on = [case for case in cases if OURS in results.schedulers(case)]
    if not on:
        return f"results.csv has no results of `{OURS}`."
    broken = [
        f"- **{case}: not so: {verdict.requirement}** ({verdict.found})"
        f"{f'; {verdict.tested}' if verdict.tested else ''}"
        for case in on
        for verdict in judge(results, case)
        if not verdict.holds
    ]
    kept = sum(all(v.holds for v in judge(results, case)) for case in on)
    text = (
        f"Required of `{OURS}` at its defaults on every case: worst 20 % and average not below "
        "`Uniform`'s (mean difference at least -0.005, and the interval not wholly below zero); "
        f"worst at least that of every scheduler with at most {CHEAP:.2f} times `Uniform`'s "
        "traffic, and within 0.01 of the best of the others, tuned ones included. "
        f"All of it holds on {kept} of {len(on)} cases. The best of many rivals on a few seeds is "
        "partly the luckiest, so that is tested: at each seed, the difference to the rival that is "
        "best on the other seeds. [Five of the misses were run again on fresh seeds]"
        "(beyond.md#the-benchmarks-misses-on-fresh-seeds)."
    )
    return "\n\n".join([text, "\n".join(broken)] if broken else [text])


def agreement(results: Results) -> str:
    """Return how the quick tier ranks schedulers, compared with the full one."""
    declared = protocol()["quick"]
    cases = [case for case in declared["cases"] if case in results.cases]
    quick = results.of_seeds(declared["seeds"], cases)
    lines = []
    for case in cases:
        labels = results.schedulers(case)
        few = [quick.mean(case, label, "worst20") for label in labels]
        all_ = [results.mean(case, label, "worst20") for label in labels]
        best = [labels[int(np.argmax(values))] for values in (few, all_)]
        top = [{labels[i] for i in np.argsort(values)[-5:]} for values in (few, all_)]
        sides = [
            np.sign(np.subtract(values, values[labels.index(BASELINE)])) for values in (few, all_)
        ]
        other = [n for n, a, b in zip(labels, *sides, strict=True) if a != b]
        lines.append(
            [
                case,
                f"{stats.spearmanr(few, all_).statistic:.2f}",
                best[0] if best[0] == best[1] else f"**{best[0]}**, not {best[1]}",
                f"{len(top[0] & top[1])} of 5",
                ", ".join(other) or "none",
            ]
        )
    heads = ["case", "rank correlation", "first", "first five in common", "other side of Uniform"]
    return markdown_table(heads, lines)


def page(results: Results) -> str:
    """Return the page."""
    cases = main_cases(results)
    networks = [name for name in cases if Case(name).is_network]
    others = [name for name in cases if name not in networks]
    seeds = results.values(others[0], BASELINE, "worst").size
    missing = [name for name in case_names() if name not in results.cases]
    without = f" No results yet: {', '.join(missing)}." if missing else ""
    parts = [
        "# Benchmark of client schedulers",
        "Which scheduler to use, by paired runs of all of them. `make benchmark` puts your own in "
        "the same table.",
        advice(results),
        f"![Worst 20 % minus Uniform's, by scheduler and case](../figures/{FIGURE.name})",
        f"Cases without networks have all schedulers and {seeds} seeds. *Shown*: the p-value of "
        "the paired difference in worst 20 %, corrected by Holm's method for all schedulers of the "
        f"case, is below {LEVEL}.{without}",
        "## Over all cases",
        overview(results, others),
    ]
    if networks:
        parts += [
            f"On the networks ({', '.join(networks)}), with three seeds:",
            overview(results, networks),
        ]
    parts += [f"## What is required of {OURS}", verdicts(results, cases)]
    slow = dict.fromkeys(Case(n).synchronous for n in protocol()["modes"]["cases"])
    parts += [
        "## Rounds that do not wait for the slowest",
        "Synchronous rounds wait for all m clients; over-selected ones ask 1.3 m and go on with "
        "the first m replies; buffered ones (FedBuff) keep m clients at work and change the model "
        "with every m / 2 replies. The last two columns are costs until the final average of "
        "`Uniform` with synchronous rounds.",
    ]
    for name in slow:
        if name in results.cases:
            parts += [f"{Case(name).title}:", mode_table(results, name)]
    parts += [
        "## The quick tier",
        f"`make benchmark` runs {', '.join(protocol()['quick']['cases'])} with the first "
        f"{protocol()['quick']['seeds']} seeds. Its ranking by worst 20 %, compared with that of "
        "the full tier; *other side of Uniform* names schedulers that are above `Uniform` in one "
        "tier and below in the other:",
        agreement(results),
        HOW,
        COMMANDS,
    ]
    parts += [case_section(results, case) for case in cases]
    return "\n\n".join(parts)


def write_page(results: Results) -> list[Path]:
    """Write the page and its figure; return the files."""
    write_text(PAGE, page(results))
    return [PAGE, *draw(results, main_cases(results), FIGURE.with_suffix(""), ".png")]


if __name__ == "__main__":
    for written in write_page(Results(read_rows(PUBLISHED))):
        print(written)
