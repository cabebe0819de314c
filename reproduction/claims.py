"""Verdicts on the paper's claims, from the records of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from adcs import ADCS
from adcs.experiments import (
    BOUNDS,
    LEVEL,
    Curves,
    Estimate,
    Experiment,
    corrected,
    curves,
    estimate,
    format_estimate,
    format_margin,
    make_scheduler,
    paired,
)

Verdict = Literal["holds", "does not hold", "undecided"]
Records = Sequence[Mapping[str, Any]]

NEAR_AVERAGE = 0.02
"""An average accuracy within this of the best counts as competitive."""

NEAR_WORST = 0.03
"""Worst accuracies within this of each other count as "almost identical"."""

METHODS = ("Uniform", "PowerOfChoice", "OCS", "DivFL", "StaticDPP", "ADCS")
"""The paper's methods."""

ACCURACIES = {"worst": "worst accuracy", "worst20": "mean accuracy of the worst 20 %"}
"""Accuracies in which the paper compares ADCS with the others."""

SAME = 1e-12
"""Means closer than this count as equal; rounding depends on the order of summation."""


@dataclass(frozen=True)
class Claim:
    """A claim, its verdict, and the numbers it is based on.

    >>> Claim("A beats B", "holds", "By 0.1.").verdict
    'holds'
    """

    text: str
    verdict: Verdict
    numbers: str

    def line(self) -> str:
        """Return the claim as a line of Markdown.

        >>> Claim("A beats B", "holds", "+0.1").line()
        '- **holds**: A beats B. +0.1'
        """
        return f"- **{self.verdict}**: {self.text}. {self.numbers}"


def above(text: str, found: Estimate, p: float | None = None) -> Claim:
    """Judge whether a difference is above zero.

    Parameters
    ----------
    text
        The claim.
    found
        The difference, with the sign that the text gives it: B - A for "A is below B".
    p
        Its p-value, if it was corrected for several tests.

    Examples
    --------
    >>> above("A beats B", Estimate(0.1, 0.02, 5)).verdict
    'holds'
    >>> above("A beats B", Estimate(0.01, 0.02, 5)).verdict
    'does not hold'
    >>> above("A beats B", Estimate(0.1, 0.02, 5), p=0.08).numbers
    'By 0.100 [0.080, 0.120], p = 0.080: not shown, p being corrected.'
    >>> above("A beats B", Estimate(0.1, None, 1)).verdict
    'undecided'
    """
    if found.n == 0:
        return Claim(text, "undecided", "There is no number for it.")
    p = found.p if p is None else p
    numbers = f"By {format_margin(found, p)}"
    if p is None:
        count = "one seed, which gives" if found.n == 1 else f"{found.n} seeds, which give"
        return Claim(text, "undecided", f"{numbers}, from {count} no interval.")
    if found.mean > 0.0 and p < LEVEL:
        return Claim(text, "holds", f"{numbers}.")
    if max(abs(found.low), abs(found.high)) < SAME:
        return Claim(text, "does not hold", "They are equal in every seed.")
    if found.low > 0.0:
        why = "not shown, p being corrected"
    else:
        why = "the interval includes zero" if found.high >= 0.0 else "it is the other way round"
    return Claim(text, "does not hold", f"{numbers}: {why}.")


def all_above(differences: Mapping[str, Estimate]) -> list[Claim]:
    """Judge several differences, with p-values corrected by Holm's method.

    >>> together = {"A beats B": Estimate(0.1, 0.09, 5), "A beats C": Estimate(0.1, 0.09, 5)}
    >>> [claim.verdict for claim in all_above(together)]
    ['does not hold', 'does not hold']
    """
    p = corrected(differences)
    return [above(text, found, p.get(text)) for text, found in differences.items()]


def within(text: str, gap: float, most: float, numbers: str) -> Claim:
    """Judge whether a gap is at most `most`.

    >>> within("A is near B", 0.01, 0.02, "By 0.01.").verdict, within("", math.nan, 1, "").verdict
    ('holds', 'undecided')
    """
    if math.isnan(gap):
        return Claim(text, "undecided", "There is no number for it.")
    return Claim(text, "holds" if gap <= most else "does not hold", numbers)


def _means(numbers: Mapping[str, Any], field: str) -> str:
    return ", ".join(
        f"{label} {format_estimate(estimate(v, BOUNDS[field]), field)}"
        for label, v in numbers.items()
    )


def _ends(numbers: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the labels with the lowest and the highest mean: all that tie, none without numbers.

    >>> _ends({"A": [0.5], "B": [0.1], "C": [0.5]})
    (['B'], ['A', 'C'])
    """
    means = {label: found.mean for label, v in numbers.items() if (found := estimate(v)).n}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)
    lowest = [label for label, mean in means.items() if mean - low < SAME]
    highest = [label for label, mean in means.items() if high - mean < SAME]
    return lowest, highest


def judge_methods(records: Records, experiment: Experiment, labels: Sequence[str]) -> list[Claim]:
    """Judge the paper's claims on Figure 1, and on the extra work of clients."""
    return [*judge_accuracies(records, labels), judge_work(records, experiment)]


def judge_accuracies(
    records: Records, labels: Sequence[str], fields: Sequence[str] = ("worst",)
) -> list[Claim]:
    """Judge the paper's claims on the accuracies of its methods.

    Parameters
    ----------
    records
        The records of the run.
    labels
        The paper's methods.
    fields
        Accuracies, of those in `ACCURACIES`, in which ADCS is claimed to be the best.
    """
    worst = curves(records, "worst", labels).last()
    average = curves(records, "average", labels).last()
    others = [label for label in labels if label != "ADCS"]
    differences = {}
    for field in fields:
        found = curves(records, field, labels).last()
        for other in others:
            text = f"ADCS has a higher {ACCURACIES[field]} than {other}"
            differences[text] = paired(found["ADCS"], found[other])
    first = len(differences)
    for label in ("OCS", "PowerOfChoice", "DivFL"):
        text = f"{label} has a higher worst accuracy than Uniform"
        differences[text] = paired(worst[label], worst["Uniform"])
    claims = all_above(differences)
    means = {label: estimate(average[label]).mean for label in labels}
    known = [label for label in labels if not math.isnan(means[label])]
    best = max(known, key=lambda label: means[label], default="ADCS")
    competitive = within(
        f"ADCS keeps a competitive average accuracy, within {NEAR_AVERAGE} of the best",
        gap := means[best] - means["ADCS"],
        NEAR_AVERAGE,
        f"ADCS {means['ADCS']:.3f}, best {best} {means[best]:.3f}, gap {gap:.3f}.",
    )
    return [*claims[:first], competitive, *claims[first:], _judge_lowest(worst)]


def _judge_lowest(worst: Mapping[str, Any]) -> Claim:
    text = "StaticDPP has the lowest worst accuracy"
    lowest, _ = _ends(worst)
    if not lowest:
        return Claim(text, "undecided", "There is no number for it.")
    who = f"Lowest is {lowest[0]}"
    if len(lowest) == len(worst):
        who = "All are equal"
    elif len(lowest) > 1:
        who = f"Lowest, and equal, are {', '.join(lowest)}"
    verdict: Verdict = "holds" if lowest == ["StaticDPP"] else "does not hold"
    return Claim(text, verdict, f"{who}; {_means(worst, 'worst')}.")


def judge_work(records: Records, experiment: Experiment, label: str = "ADCS") -> Claim:
    """Judge the extra work of clients by the recorded costs: (N - m) ceil(T/R) updates over m T.

    >>> record = {"scheduler": "ADCS", "seed": 0, "server_round": 40, "updates": 18 * 40 + 12 * 2}
    >>> judge_work([record], Experiment.of(rounds=40)).verdict
    'holds'
    """
    e = experiment
    scheduler = make_scheduler(e.schedulers[label], seed=0)
    assert isinstance(scheduler, ADCS)
    every = scheduler.refresh_every or e.training.rounds
    last = {
        record["seed"]: record
        for record in records
        if record["scheduler"] == label and record["server_round"] == e.training.rounds
    }
    text = f"Probes cost clients 3.3 % more updates at R = {every}"
    if not last:
        return Claim(text, "undecided", "No run has come to its end.")
    clients, m, rounds = e.partition.clients, e.training.m, e.training.rounds
    formula = m * rounds + (clients - m) * -(-rounds // every)
    updates = sorted({int(record["updates"]) for record in last.values()})
    extra = (updates[-1] - m * rounds) / (m * rounds)
    exact = updates == [formula]
    agrees = exact and round(100 * extra, 1) == 3.3
    counted = " or ".join(f"{count:,}" for count in updates)
    return Claim(
        text,
        "holds" if agrees else "does not hold",
        f"The ledger counts {counted} updates, mT + (N - m) ceil(T/R) is {formula:,}: "
        f"{100 * extra:.2f} % beyond mT = {m * rounds:,}.",
    )


def judge_theta(records: Records, labels: Sequence[str]) -> list[Claim]:
    """Judge the paper's claims on Figure 2."""
    worst = curves(records, "worst", labels).last()
    average = curves(records, "average", labels).last()
    tried = [label for label in labels if label != "Uniform"]
    _, highest = _ends({label: worst[label] for label in tried})
    best, *equals = highest or tried[:1]
    name = f"{best}, and equally {', '.join(equals)}" if equals else best
    below, over, too = (
        "With θ = 0.2 the worst accuracy is below Uniform's",
        f"With the best θ of those tried ({name}) the worst accuracy is above Uniform's",
        f"With that θ the average accuracy is above Uniform's too ({best})",
    )
    return all_above(
        {
            below: paired(worst["Uniform"], worst["θ = 0.2"]),
            over: paired(worst[best], worst["Uniform"]),
            too: paired(average[best], average["Uniform"]),
        }
    )


def fluctuation(found: Curves) -> dict[str, Any]:
    """Return each run's standard deviation over the last tenth of evaluations.

    >>> run = {"scheduler": "A", "seed": 0}
    >>> fluctuation(curves([{**run, "server_round": r, "worst": r / 2} for r in (0, 1)], "worst"))
    {'A': array([0.25])}
    """
    count = max(2, found.rounds.size // 10)
    return {label: table[:, -count:].std(axis=1) for label, table in found.values.items()}


def judge_refresh(records: Records, labels: Sequence[str]) -> list[Claim]:
    """Judge the paper's claims on Figure 3."""
    found = curves(records, "worst", labels)
    worst = found.last()
    small = ["R = 1", "R = 5", "R = 20"]
    means = [estimate(worst[label]).mean for label in small]
    gap = max(means) - min(means)
    near = within(
        f"With R up to 20 the worst accuracy is almost that of R = 1, within {NEAR_WORST}",
        gap,
        NEAR_WORST,
        f"Largest gap {gap:.3f}; {_means({k: worst[k] for k in small}, 'worst')}.",
    )
    moves = fluctuation(found)
    differences = {}
    for label in ("R = 500", "R = 2000"):
        lower = f"{label} has a lower worst accuracy than R = 20"
        differences[lower] = paired(worst["R = 20"], worst[label])
        more = (
            f"{label} fluctuates more than R = 20 (standard deviation of the worst accuracy over "
            "the last tenth of evaluations)"
        )
        differences[more] = paired(moves[label], moves["R = 20"])
    return [near, *all_above(differences)]


def judge_bias(records: Records, labels: Sequence[str]) -> list[Claim]:
    """Judge the claims of the paper's comments on the selection bias."""
    found = curves(records, "bias", labels)
    count = max(1, found.rounds.size // 10)
    early = {label: float(np.nanmean(t[:, :count])) for label, t in found.values.items()}
    late = {label: float(np.nanmean(t[:, -count:])) for label, t in found.values.items()}
    top = {label: float(np.nanmax(t)) for label, t in found.values.items()}
    grown = [label for label in labels if late[label] > early[label]]
    thetas = [late[label] for label in labels if label != "Uniform"]
    steps = np.diff(thetas)
    monotone = bool((steps >= 0).all() or (steps <= 0).all())
    shown = ", ".join(f"{x} {early[x]:.3f} → {late[x]:.3f} (max {top[x]:.3f})" for x in labels)
    return [
        Claim(
            "The bias stays bounded: it is no larger in the last tenth of rounds than in the first",
            "does not hold" if grown else "holds",
            f"Means over the first → last tenth: {shown}.",
        ),
        Claim(
            "There is no simple pattern in how θ affects the bias",
            "does not hold" if monotone else "holds",
            "In the last tenth it is "
            + ("monotone" if monotone else "not monotone")
            + f" in θ: {', '.join(f'{x:.3f}' for x in thetas)}.",
        ),
    ]
