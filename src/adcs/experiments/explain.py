"""Why a past cohort was selected: the run is replayed, and the selection put into words.

A run is a function of its config, so a replay needs nothing else. It has the same schedulers in its
pass and the same measured rounds as the run, in a process with one BLAS thread; its selection
counts can be compared with the run's records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any

from adcs._types import ClientId
from adcs.dpp.explain import Miss
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.page.reasons import CODES, miss_key
from adcs.experiments.page.reasons import REASONS as PAGE_REASONS
from adcs.experiments.runner import Progress, report_rounds, same_data, worker_pool
from adcs.observers import Observer, SelectionEvent
from adcs.schedulers.choice import Choice, explain_choice

Table = tuple[str, list[str], list[list[str]]]

REASONS = (
    "The reason is what would have let a client in: rules, if there were no caps and nobody had a "
    "slot beforehand (waiting, if that was for having waited; slots held, if clients were at "
    "work); redundant with X, if X were absent (and not for the slot of X alone); "
    "quality, if its quality were the best among the selected; tie, if its id were the smaller "
    "one; redundant with several, if its update had nothing in common with the others'. It is "
    "about the slots that the DPP fills; LiveADCS fills others for balance."
)

ALIKE = 0.1
"""Updates of a smaller |cosine| than this are called neither similar nor opposite."""


class SelectionRecorder(Observer):
    """Keeps what a scheduler knew when it selected the cohort of one round.

    Parameters
    ----------
    run
        The name of the run.
    server_round
        The round.

    Attributes
    ----------
    choice
        What was known; None before the round.
    """

    def __init__(self, run: str, server_round: int) -> None:
        self.choice: Choice | None = None
        self._wanted = (run, server_round)

    def on_selection(self, event: SelectionEvent) -> None:
        """Keep the selection if it is the wanted one."""
        if (event.run, event.server_round) == self._wanted:
            self.choice = explain_choice(event.scheduler, event.available, event.cohort)


def replay(
    experiment: Experiment,
    seed: int,
    label: str,
    server_round: int,
    progress: Progress | None = None,
    *,
    fingerprint: str | None = None,
) -> tuple[Choice, int, list[int]]:
    """Replay a run up to a round; return what was known at its selection.

    Parameters
    ----------
    experiment, seed, label, server_round
        The run, and the round whose selection is explained.
    progress
        Called with progress a few times a second.
    fingerprint
        The `data_fingerprint` of the run's config: other data is refused. None does not compare.

    Returns
    -------
    choice
        What was known when the cohort of that round was selected.
    evaluated
        The last evaluated round up to it.
    counts
        How often each client had been selected before that one, as in its record.
    """
    with worker_pool(1, 1) as (pool, rounds_done):
        future = pool.submit(_replay, experiment.as_dict(), seed, label, server_round, fingerprint)
        while not wait([future], timeout=0.2).done:
            if progress is not None:
                progress(rounds_done[0], server_round + 1)
        found = future.result()
    if progress is not None:
        progress(server_round + 1, server_round + 1)
    return found


def _replay(
    config: dict[str, Any], seed: int, label: str, server_round: int, fingerprint: str | None
) -> tuple[Choice, int, list[int]]:
    experiment = from_dict(config)
    labels = next(labels for labels in experiment.passes() if label in labels)
    simulation = experiment.simulation(seed, labels, same_data(experiment, fingerprint))
    recorder = SelectionRecorder(label, server_round)
    simulation.observers.append(recorder)
    run = next(run for run in simulation.runs if run.name == label)
    evaluated, counts = 0, run.counts.tolist()
    while simulation.server_round <= server_round:
        measured = simulation.server_round % experiment.run.eval_every == 0
        if measured:
            evaluated, counts = simulation.server_round, run.counts.tolist()
            report_rounds(0, simulation.server_round)
        simulation.step(measured=measured)
    assert recorder.choice is not None
    return recorder.choice, evaluated, counts


def tables(choice: Choice) -> list[Table]:
    """Return titled tables of the selected clients and of those left out.

    >>> from adcs.schedulers import Cohort
    >>> choice = Choice(Cohort.of([2]), (1, 2), scores={1: 0.5, 2: 0.7}, ranked_by="loss")
    >>> tables(choice)[0][1:]
    (['client', 'selected', 'loss'], [['2', 'yes', '0.700'], ['1', 'no', '0.500']])
    """
    if choice.explanation is not None:
        return _determinantal(choice)
    if choice.ranked_by is not None:
        return [_ranked(choice)]
    gains = dict(choice.cohort.diagnostics.get("gains", []))
    near = choice.nearest
    if not gains and not near:
        return []
    selected = set(choice.cohort.clients)
    order = [*choice.cohort.clients, *[c for c in choice.available if c not in selected]]
    rows = [
        [
            str(client),
            "yes" if client in selected else "no",
            _number(gains.get(client)),
            str(near[client][0]) if client in near else "–",
            _likeness(near[client][1]) if client in near else "–",
        ]
        for client in order
    ]
    heads = ["client", "selected", "gain", "nearest selected", "similarity"]
    return [("Clients", heads, rows)]


def at_random(choice: Choice) -> str:
    """Return the sentence about a selection that has no tables."""
    if choice.balancing:
        drawn = choice.cohort.diagnostics.get("drawn")
        others = ", and by a draw to clients without a usable report" if drawn else ""
        return f"All slots went to clients that make the cohort represent all clients{others}."
    if not choice.drawn:
        return "This scheduler selects at random, by seed and round."
    if choice.known:
        return "All slots went to clients without a usable report, at random by seed and round."
    return "It had no usable report of anybody, so it drew at random, by seed and round."


def _determinantal(choice: Choice) -> list[Table]:
    found = choice.explanation
    assert found is not None
    name = choice.known
    picks = [
        [
            str(name[pick.row]),
            f"{step}, waited" if name[pick.row] in choice.waited else str(step),
            _number(pick.quality),
            _number(pick.score.quality),
            _number(pick.score.diversity),
            _number(pick.gain),
            "–" if pick.nearest is None else str(name[pick.nearest]),
            _likeness(pick.similarity),
        ]
        for step, pick in enumerate(found.picks, start=1)
    ]
    picks += [[str(client), "balance", *["–"] * 6] for client in choice.balancing]
    heads = ["client", "pick", "quality q", "θ q", "(1-θ) log r²", "gain"]
    heads += ["nearest selected", "similarity"]
    misses = [
        [
            str(name[miss.row]),
            _number(miss.quality),
            str(miss.step + 1),
            f"{winner}, waited" if (winner := name[miss.winner]) in choice.waited else str(winner),
            _behind(miss.winning.quality - miss.score.quality),
            _behind(miss.winning.diversity - miss.score.diversity),
            _behind(miss.winning.total - miss.score.total),
            _reason(miss, choice),
            str(name[miss.nearest]),
            _likeness(miss.similarity),
        ]
        for miss in found.left_out
    ]
    lost = ["client", "quality q", "closest at pick", "lost to", "in θ q", "in (1-θ) log r²"]
    lost += ["in score", "reason", "nearest selected", "similarity"]
    return [("Selected", heads, picks), ("Left out", lost, misses)]


def _ranked(choice: Choice) -> Table:
    position = {client: i for i, client in enumerate(choice.cohort.clients)}
    scores = choice.scores
    order = sorted(
        scores, key=lambda client: (position.get(client, len(position)), -scores[client])
    )
    rows = [
        [str(client), "yes" if client in position else "no", _number(scores[client])]
        for client in order
    ]
    return (f"Ranked by {choice.ranked_by}", ["client", "selected", str(choice.ranked_by)], rows)


def sentence(choice: Choice, client: ClientId) -> str:
    """Return the sentence about why one client is in the cohort or not."""
    if client not in choice.available:
        return f"Client {client} was not available in this round."
    selected = client in choice.cohort.clients
    if selected and client in choice.required and choice.explanation is None:
        return f"Client {client} was selected because it is required."
    if client in choice.cohort.diagnostics.get("drawn", []):
        return (
            f"Client {client} had no usable report and got its slot at random, by seed and round."
        )
    if client in choice.balancing:
        return (
            f"Client {client} was selected for balance: with its update, and after the time that "
            "it had waited, the cohort represents all clients best."
        )
    if choice.balancing or choice.explanation is not None:
        if client in choice.limited:
            return f"Client {client} was left out because it had its share of slots (max_share)."
        if client not in choice.known:
            return f"Client {client} had no usable report and was not drawn."
    if choice.explanation is not None:
        return _determinantal_sentence(choice, client)
    if choice.balancing:
        return (
            f"Client {client} was left out: with others, and after the time that they had waited, "
            "the cohort represents all clients better."
        )
    if choice.ranked_by is not None and client in choice.scores:
        return _ranked_sentence(choice, client, selected)
    if choice.ranked_by is not None:
        return f"Client {client} was not ranked: it was not asked, or it did not answer."
    if client in choice.nearest:
        other, likeness = choice.nearest[client]
        verb = "selected" if selected else "left out"
        return (
            f"Client {client} was {verb}; the nearest selected client is {other} "
            f"(similarity {_likeness(likeness)})."
        )
    if choice.drawn:
        return f"Client {client} was not drawn. {at_random(choice)}"
    how = "drawn" if selected else "not drawn"
    return f"Client {client} was {how}: this scheduler selects at random."


def _determinantal_sentence(choice: Choice, client: ClientId) -> str:
    found, name = choice.explanation, choice.known
    assert found is not None
    row = name.index(client)
    for step, pick in enumerate(found.picks, start=1):
        if pick.row == row:
            near = (
                "it is the only one selected"
                if pick.nearest is None
                else f"the nearest selected client is {name[pick.nearest]} "
                f"(similarity {_likeness(pick.similarity)})"
            )
            added = (
                "it added no direction of its own"
                if math.isinf(pick.gain)
                else f"it gained {pick.gain:+z.3f}: {pick.score.quality:+z.3f} for quality, "
                f"{pick.score.diversity:+z.3f} for diversity"
            )
            reason = ""
            if client in choice.waited:
                reason = ", not by score but for having waited too long"
            elif client in choice.required:
                reason = ", not by score but because it is required"
            return f"Client {client} was pick {step}{reason}: {added}; {near}."
    missed = _missed(next(miss for miss in found.left_out if miss.row == row), choice)
    if choice.balancing:
        missed += " Nor was it among those that make the cohort represent all clients."
    return missed


def _reason(miss: Miss, choice: Choice) -> str:
    """Return in a few words why a client was left out."""
    return {
        "rules": PAGE_REASONS[CODES[miss_key(miss, choice)]].word,
        "redundant": f"redundant with {choice.known[miss.nearest]}",
        "quality": "quality",
        "tie": "tie",
        "several": "redundant with several",
    }[miss.reason]


def _missed(miss: Miss, choice: Choice) -> str:
    name = choice.known
    client, winner, near = name[miss.row], name[miss.winner], name[miss.nearest]
    found = choice.explanation
    assert found is not None
    best = max(pick.quality for pick in found.picks)
    nearest = f"the nearest selected client is {near} (similarity {_likeness(miss.similarity)})"
    lifted = f"with a quality of {best:z.3f}, the best among the selected"
    if miss.reason == "rules":
        causes = ["a cap"] * choice.capped + ["a required client"] * bool(choice.required)
        causes += ["a client that had waited too long"] * bool(choice.waited)
        causes += ["clients at work"] * bool(choice.pending)
        return (
            f"Client {client} was left out by {' or '.join(causes) or 'a rule'}, which left no "
            f"slot for it; {nearest}."
        )
    if miss.reason == "tie":
        last = name[found.picks[-1].row]
        return (
            f"Client {client} was left out by a tie: its score was that of {last} at the last "
            f"pick, and ties go to the smaller id; {nearest}."
        )
    if miss.reason == "redundant":
        why = (
            f"as redundant with {near} (similarity {_likeness(miss.similarity)}): if {near} had "
            "been absent, it would have been selected."
        )
        if miss.with_quality:
            why += f" So it would {lifted}; its own is {miss.quality:z.3f}."
    elif miss.reason == "quality" and miss.with_quality:
        why = (
            f"for its quality, {miss.quality:z.3f}: {lifted}, it would have been selected; "
            f"{nearest}."
        )
    elif miss.reason == "quality":
        why = (
            f"for its quality, {miss.quality:z.3f}: it would have been left out even if its update "
            f"had nothing in common with the others; {nearest}."
        )
    else:
        why = (
            f"as redundant with several of the selected, not with {near} alone: if its update had "
            f"nothing in common with the others, it would have been selected; {nearest}."
        )
    quality = miss.winning.quality - miss.score.quality
    diversity = miss.winning.diversity - miss.score.diversity
    return (
        f"Client {client} was left out {why} It came closest at pick {miss.step + 1}, "
        f"{_behind(quality + diversity)} client {winner}: {_behind(quality)} in quality, "
        f"{_behind(diversity)} in diversity."
    )


def _likeness(similarity: float | None) -> str:
    """Return a cosine with what it means.

    >>> _likeness(0.993), _likeness(-0.404), _likeness(-0.096), _likeness(-1e-5)
    ('0.993, similar', '-0.404, opposite', '-0.096, hardly alike', '0.000, unrelated')
    """
    if similarity is None:
        return "–"
    if abs(similarity) < ALIKE:
        word = "unrelated" if abs(similarity) < 0.0005 else "hardly alike"
    else:
        word = "similar" if similarity > 0.0 else "opposite"
    return f"{_number(similarity)}, {word}"


def _behind(gap: float) -> str:
    """Return how far one score is behind another, in words.

    >>> _behind(0.25), _behind(-0.25), _behind(1e-4), _behind(0.0)
    ('0.250 behind', '0.250 ahead', '<0.001 behind', 'level')
    """
    if abs(gap) < 1e-9:
        return "level"
    amount = f"{abs(gap):.3f}" if abs(gap) >= 0.0005 else "<0.001"
    return f"{amount} {'behind' if gap > 0 else 'ahead'}"


def _ranked_sentence(choice: Choice, client: ClientId, selected: bool) -> str:
    score = choice.scores[client]
    inside = [choice.scores[c] for c in choice.cohort.clients if c in choice.scores]
    least = min(inside, default=float("nan"))
    if selected:
        return f"Client {client} was selected for its {choice.ranked_by}, {score:.4f}."
    if score >= least:
        return (
            f"Client {client} was left out though its {choice.ranked_by}, {score:.4f}, is no less "
            f"than {least:.4f}, the least among the selected: a cap, a required client or a tie "
            "decided."
        )
    return (
        f"Client {client} was left out: its {choice.ranked_by} is {score:.4f}, the least among "
        f"the selected {least:.4f}, so it lacked {least - score:.4f}."
    )


def recorded_tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a record that holds no more than its cohort's diagnostics."""
    diagnostics: Mapping[str, Any] = record.get("diagnostics") or record
    columns = {
        key: {str(client): value for client, value in diagnostics[key]}
        for key in ("quality", "gains", "scores")
        if diagnostics.get(key)
    }
    without = {
        key: [str(client) for client in diagnostics.get(key) or []]
        for key in ("balancing", "drawn")
        if key == "drawn" or diagnostics.get(key)
    }
    clients = list(dict.fromkeys(c for column in columns.values() for c in column))
    clients += [c for listed in without.values() for c in listed if c not in clients]
    if not clients:
        return []
    heads = ["client", *columns, *without]
    rows = [
        [
            client,
            *[_number(column.get(client)) for column in columns.values()],
            *["yes" if client in listed else "no" for listed in without.values()],
        ]
        for client in clients
    ]
    return [("Selected", heads, rows)]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return "-∞" if value == float("-inf") else f"{value:z.3f}"
