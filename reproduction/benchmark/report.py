"""Tables, verdicts and the figure of the benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adcs.experiments import (
    corrected,
    estimate,
    format_difference,
    format_estimate,
    markdown_table,
)
from reproduction.benchmark.protocol import BASELINE, OURS, TUNED, Case, protocol
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
    """

    requirement: str
    holds: bool
    found: str


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
            verdicts.append(Verdict(what, found.mean >= -margin, words))
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


def overview(results: Results, cases: Sequence[str]) -> str:
    """Return one line for each scheduler: how often it is above and below Uniform, and its cost."""
    labels = dict.fromkeys(label for case in cases for label in results.schedulers(case))
    lines = []
    for label in labels:
        if label == BASELINE:
            continue
        on = [case for case in cases if label in results.schedulers(case)]
        found = {m: [results.difference(case, label, m) for case in on] for m in METRICS}
        above = sum(_surely(each) > 0 for each in found["worst20"])
        below = sum(_surely(each) < 0 for each in found["worst20"])
        ratio = float(np.mean([results.traffic_ratio(case, label) for case in on]))
        means = [f"{np.mean([each.mean for each in found[m]]):+.3f}" for m in METRICS]
        lines.append([label, str(len(on)), *means, str(above), str(below), f"{ratio:.2f}"])
    lines.sort(key=lambda line: -float(line[3]))
    heads = ["scheduler", "cases", "worst", "worst 20 %", "average"]
    heads += ["surely above", "surely below", "traffic / Uniform's"]
    return markdown_table(heads, lines)


def _surely(found: Any) -> int:
    """Return 1, -1 or 0: an interval wholly above zero, wholly below, or neither."""
    if found.half is None:
        return 0
    return int(found.low > 0.0) - int(found.high < 0.0)


def summary(results: Results, cases: Sequence[str]) -> str:
    """Return all tables and verdicts as Markdown."""
    declared = protocol()["cases"]
    parts = ["# Benchmark of client schedulers"]
    parts.append(
        "Mean differences to Uniform over the cases of each scheduler. *Surely*: the 95 % interval "
        "of the worst 20 % excludes zero."
    )
    parts += [overview(results, cases), "![benchmark](figures/benchmark.png)"]
    for case in cases:
        kind = "choices were made on it" if case in declared["development"] else "held out"
        parts += [f"## {Case(case).title}", f"{Case(case).experiment.in_words()}; {kind}."]
        parts.append(case_table(results, case))
        if OURS in results.schedulers(case):
            lines = [
                [v.requirement, "yes" if v.holds else "**no**", v.found]
                for v in judge(results, case)
            ]
            parts.append(markdown_table([f"{OURS}:", "holds", "difference"], lines))
    return "\n\n".join(parts)


def draw(results: Results, cases: Sequence[str], stem: Path) -> list[Path]:
    """Draw worst 20 % minus Uniform's for each scheduler and case, and the traffic beside it."""
    from matplotlib.figure import Figure

    labels = [
        label
        for label in dict.fromkeys(n for case in cases for n in results.schedulers(case))
        if label != BASELINE
    ]

    def mean(label: str) -> float:
        on = [case for case in cases if label in results.schedulers(case)]
        return float(np.mean([results.difference(case, label, "worst20").mean for case in on]))

    labels.sort(key=lambda label: (label.endswith(TUNED), -mean(label)))
    values = np.full((len(labels), len(cases)), np.nan)
    for i, label in enumerate(labels):
        for j, case in enumerate(cases):
            if label in results.schedulers(case):
                values[i, j] = results.difference(case, label, "worst20").mean
    figure = Figure(
        figsize=(3.2 + 0.85 * len(cases), 1.8 + 0.33 * len(labels)), layout="constrained"
    )
    ax, side = figure.subplots(1, 2, width_ratios=[len(cases), 2.2], sharey=True)
    top = 0.15
    shown = ax.imshow(values, cmap="PuOr", vmin=-top, vmax=top, aspect="auto")
    for i, label in enumerate(labels):
        for j, case in enumerate(cases):
            if np.isnan(values[i, j]):
                continue
            sure = _surely(results.difference(case, label, "worst20")) != 0
            dark = abs(values[i, j]) > 0.6 * top
            ax.text(
                j,
                i,
                f"{values[i, j]:+.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
                fontweight="bold" if sure else "normal",
            )
    ax.set_xticks(range(len(cases)), [_short(case) for case in cases], rotation=40, ha="right")
    ax.set_yticks(range(len(labels)), labels)
    for text, label in zip(ax.get_yticklabels(), labels, strict=True):
        text.set_fontweight("bold" if label == OURS else "normal")
    ratios = [
        np.mean([results.traffic_ratio(c, label) for c in cases if label in results.schedulers(c)])
        for label in labels
    ]
    side.barh(range(len(labels)), ratios, color="0.6")
    side.set_xscale("log")
    side.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    side.minorticks_off()
    side.axvline(1.0, color="black", linewidth=0.8)
    side.set_xlabel("traffic, multiple of Uniform's")
    figure.colorbar(shown, ax=side, label="worst 20 % minus Uniform's", extend="both")
    figure.suptitle(
        "Accuracy of the worst-off fifth of the clients, minus that with random cohorts "
        "(bold: 95 % interval excludes zero)",
        fontsize=10,
    )
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files


def _short(case: str) -> str:
    held_out = case in protocol()["cases"]["held_out"]
    return f"{case}{' *' if held_out else ''}"
