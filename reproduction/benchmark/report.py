"""Tables, verdicts and the figure of the benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adcs.experiments import (
    LEVEL,
    corrected,
    estimate,
    format_difference,
    format_estimate,
    markdown_table,
)
from reproduction.benchmark.protocol import BASELINE, OURS, Case, protocol
from reproduction.benchmark.results import METRICS, Results, format_reached
from reproduction.uniform import MARGIN

CHEAP = 1.05
"""A scheduler is cheap on a case if its traffic is at most this multiple of Uniform's."""

REACH = 0.01
"""How far below the best of those that ask everybody LiveADCS may be, in worst accuracy."""

HEADS = ["scheduler", "worst", "worst 20 %", "average", "updates", "traffic"]


@dataclass(frozen=True)
class Verdict:
    """A requirement of LiveADCS on one case, and whether it holds.

    Attributes
    ----------
    requirement
        What is required, in words.
    holds
        Whether it holds.
    found
        The numbers behind it, in words.
    tested
        Where it is not met: what is left of it if the best rival is chosen by the other seeds.
    """

    requirement: str
    holds: bool
    found: str
    tested: str = ""


def judge(results: Results, case: str, ours: str = OURS) -> list[Verdict]:
    """Return the verdicts on a scheduler: never below Uniform, and best of what it costs."""
    verdicts = []
    for metric, name in (("worst20", "worst 20 %"), ("average", "average")):
        found = results.difference(case, ours, metric)
        below = found.mean < -MARGIN or (found.half is not None and found.high < 0.0)
        verdicts.append(Verdict(f"{name} not below Uniform's", not below, format_difference(found)))
    others = [label for label in results.schedulers(case) if label not in (ours, BASELINE)]
    cheap = [label for label in others if results.traffic_ratio(case, label) <= CHEAP]
    dear = [label for label in others if label not in cheap]
    for labels, what, margin in (
        (cheap, f"worst at least that of those with at most {CHEAP:.0%} of Uniform's traffic", 0.0),
        (dear, f"worst within {REACH} of the best of those that ask more", REACH),
    ):
        if labels:
            best = max(labels, key=lambda label: results.mean(case, label, "worst"))
            found = results.difference(case, ours, "worst", best)
            words = f"{format_difference(found)} to {best}"
            holds, tested = found.mean >= -margin, ""
            if not holds and found.n > 1:
                fair = results.difference_to_best(case, ours, "worst", labels)
                if fair.mean >= -margin:
                    luck = "by the luck of the best"
                elif fair.half is None or fair.high >= -margin:
                    luck = "within the noise of the seeds"
                else:
                    luck = "not by luck"
                tested = f"{luck}: {format_difference(fair)} to the best on the other seeds"
            verdicts.append(Verdict(what, holds, words, tested))
    return verdicts


def case_table(results: Results, case: str) -> str:
    """Return the table of a case, the largest worst 20 % first."""
    labels = sorted(
        results.schedulers(case), key=lambda label: -results.mean(case, label, "worst20")
    )
    rivals = [label for label in labels if label != BASELINE]
    differences = {label: results.difference(case, label, "worst20") for label in rivals}
    p = corrected(differences)
    lines = []
    for label in labels:
        cells = [label]
        for field in (*METRICS, "updates", "bytes"):
            bounds = (0.0, 1.0) if field in METRICS else (0.0, math.inf)
            found = estimate(results.values(case, label, field), bounds)
            cells.append(format_estimate(found, field))
        for field in ("bytes", "seconds"):
            cells.append(format_reached(results.values(case, label, f"{field}_to_reach"), field))
        cells.append(
            "" if label == BASELINE else format_difference(differences[label], p.get(label))
        )
        lines.append([f"**{cell}**" if cell == OURS else cell for cell in cells])
    heads = [*HEADS, "traffic to Uniform's average", "time to it", "worst 20 % minus Uniform's"]
    return markdown_table(heads, lines)


def shown(results: Results, case: str, field: str = "worst20") -> dict[str, int]:
    """Return for each scheduler 1 or -1 if it is shown to be above or below Uniform, otherwise 0.

    Shown: the p-value of the paired test, corrected by Holm's method for all schedulers of the
    case, is below 0.05.
    """
    labels = [label for label in results.schedulers(case) if label != BASELINE]
    differences = {label: results.difference(case, label, field) for label in labels}
    p = corrected(differences)
    return {
        label: int(np.sign(found.mean)) if p.get(label, 1.0) < LEVEL else 0
        for label, found in differences.items()
    }


def rivals(results: Results, cases: Sequence[str]) -> list[str]:
    """Return the schedulers of some cases without the baseline."""
    labels = dict.fromkeys(label for case in cases for label in results.schedulers(case))
    return [label for label in labels if label != BASELINE]


def gain(results: Results, cases: Sequence[str], label: str, field: str = "worst20") -> float:
    """Return a scheduler's mean difference to Uniform over those of the cases that it has."""
    on = [case for case in cases if label in results.schedulers(case)]
    return float(np.mean([results.difference(case, label, field).mean for case in on]))


def traffic(results: Results, cases: Sequence[str], label: str) -> float:
    """Return a scheduler's mean traffic over cases, as a multiple of Uniform's."""
    on = [case for case in cases if label in results.schedulers(case)]
    return float(np.mean([results.traffic_ratio(case, label) for case in on]))


def overview(results: Results, cases: Sequence[str]) -> str:
    """Return one line for each scheduler: how often it is above and below Uniform, and its cost."""
    signs = {case: shown(results, case) for case in cases}
    lines = []
    for label in rivals(results, cases):
        on = [case for case in cases if label in results.schedulers(case)]
        means = [f"{gain(results, on, label, m):+.3f}" for m in METRICS]
        above = sum(signs[case][label] > 0 for case in on)
        below = sum(signs[case][label] < 0 for case in on)
        cost = f"{traffic(results, on, label):.2f}"
        lines.append([label, str(len(on)), *means, str(above), str(below), cost])
    lines.sort(key=lambda line: -float(line[3]))
    heads = ["scheduler", "cases", "worst", "worst 20 %", "average"]
    heads += ["shown above", "shown below", "traffic / Uniform's"]
    return markdown_table(heads, lines)


def verdict_table(results: Results, case: str, ours: str = OURS) -> str:
    """Return the verdicts on a scheduler as a table."""
    lines = [
        [
            v.requirement,
            "yes" if v.holds else "**no**",
            "; ".join(filter(None, (v.found, v.tested))),
        ]
        for v in judge(results, case, ours)
    ]
    return markdown_table([f"{ours}:", "holds", "difference"], lines)


def summary(results: Results, cases: Sequence[str]) -> str:
    """Return all tables and verdicts as Markdown."""
    parts = ["# Benchmark of client schedulers"]
    parts.append(
        "Mean differences to Uniform over the cases of each scheduler. *Shown*: the p-value of the "
        f"worst 20 %, paired and corrected by Holm's method, is below {LEVEL}."
    )
    parts += [overview(results, cases), "![benchmark](figures/benchmark.png)"]
    parts += [case_section(results, case) for case in cases]
    return "\n\n".join(parts)


def case_section(results: Results, case: str) -> str:
    """Return the table of a case and the verdicts on ours, with a heading."""
    development = Case(case).synchronous in protocol()["cases"]["development"]
    kind = "choices were made on it" if development else "held out"
    parts = [f"## {Case(case).title}", f"{Case(case).experiment.in_words()}; {kind}."]
    parts.append(case_table(results, case))
    if OURS in results.schedulers(case):
        parts.append(verdict_table(results, case))
    return "\n\n".join(parts)


def is_cheap(results: Results, cases: Sequence[str], label: str) -> bool:
    """Return whether a scheduler's traffic is that of Uniform, within 5 % on average over cases."""
    return traffic(results, cases, label) <= CHEAP


def draw(results: Results, cases: Sequence[str], stem: Path, *suffixes: str) -> list[Path]:
    """Draw worst 20 % minus Uniform's for each scheduler and case, and the traffic beside it.

    Parameters
    ----------
    results
        The results.
    cases
        The columns.
    stem
        The files, without their suffixes.
    suffixes
        Of the files; .png and .pdf by default.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    labels = rivals(results, cases)
    labels.sort(key=lambda n: (not is_cheap(results, cases, n), -gain(results, cases, n)))
    cheap = sum(is_cheap(results, cases, label) for label in labels)
    values = np.full((len(labels), len(cases)), np.nan)
    for i, label in enumerate(labels):
        for j, case in enumerate(cases):
            if label in results.schedulers(case):
                values[i, j] = results.difference(case, label, "worst20").mean
    figure = Figure(
        figsize=(4.2 + 0.72 * len(cases), 2.2 + 0.29 * len(labels)), layout="constrained"
    )
    ax, side = figure.subplots(1, 2, width_ratios=[len(cases), 2.6], sharey=True)
    top = 0.15
    drawn = ax.imshow(values, cmap="PuOr", vmin=-top, vmax=top, aspect="auto")
    for j, case in enumerate(cases):
        signs = shown(results, case)
        for i, label in enumerate(labels):
            if np.isnan(values[i, j]):
                continue
            ax.text(
                j,
                i,
                f"{values[i, j]:+.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if abs(values[i, j]) > 0.6 * top else "black",
                fontweight="bold" if signs[label] else "normal",
            )
        best = values[:cheap, j]
        if best.size and np.isfinite(best).any() and np.nanmax(best) > 0.0:
            at = (j - 0.48, int(np.nanargmax(best)) - 0.46)
            ax.add_patch(Rectangle(at, 0.96, 0.92, fill=False, linewidth=2.0))
    names = [f"{case}{'' if case in _development() else ' *'}" for case in cases]
    ax.set_xticks(range(len(cases)), names, rotation=40, ha="right")
    ax.set_yticks(range(len(labels)), labels)
    for text, label in zip(ax.get_yticklabels(), labels, strict=True):
        text.set_fontweight("bold" if label == OURS else "normal")
    side.barh(range(len(labels)), [traffic(results, cases, n) for n in labels], color="0.6")
    side.set_xscale("log")
    side.set_xlim(0.5, 12)
    side.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    side.minorticks_off()
    side.axvline(1.0, color="black", linewidth=0.8)
    side.set_xlabel("traffic, multiple\nof Uniform's")
    for each in (ax, side):
        each.axhline(cheap - 0.5, color="black", linewidth=1.5)
    figure.colorbar(drawn, ax=side, label="worst 20 % minus Uniform's", extend="both")
    figure.suptitle(
        "Accuracy of the worst-off fifth of the clients, minus that with Uniform.\n"
        "Above the line: traffic of Uniform; frame: the best of these. Bold: shown (Holm). "
        "*: held out",
        fontsize=10,
    )
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(suffix) for suffix in suffixes or (".png", ".pdf")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files


def _development() -> list[str]:
    return list(protocol()["cases"]["development"])
