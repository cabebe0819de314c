"""Why each client is in a cohort or not, as one code for each client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId
from adcs.dpp.explain import Miss
from adcs.schedulers.choice import Choice

NOBODY = 65535
"""Stands for no other client."""


class Reason(NamedTuple):
    """A reason, in a word and in words; `{other}` and `{similarity}` stand for the other client.

    >>> REASONS[CODES["redundant"]].word
    'redundancy'
    """

    key: str
    word: str
    text: str


REASONS = (
    Reason("selected", "selected", "selected"),
    Reason(
        "picked",
        "selected",
        "selected for its quality, and because it differs from the others that are selected",
    ),
    Reason("ranked_first", "selected", "selected: few others have a larger {ranked_by}"),
    Reason("by_chance", "selected", "selected by chance: this scheduler draws at random"),
    Reason("waited", "selected", "selected first, because it had waited too long"),
    Reason("balancing", "selected", "selected so that the cohort represents all clients"),
    Reason("drawn", "selected", "selected at random: no usable report was known"),
    Reason("required", "selected", "selected because it is required"),
    Reason(
        "quality",
        "quality",
        "left out for its quality, the score made of its loss or update: others need training more",
    ),
    Reason(
        "redundant",
        "redundancy",
        "left out as redundant with client {other}, which is selected (similarity {similarity})",
    ),
    Reason(
        "several",
        "redundancy",
        "left out as redundant with several selected clients; the nearest is {other} "
        "(similarity {similarity})",
    ),
    Reason(
        "for_waiting", "waiting", "left out because clients that had waited too long went first"
    ),
    Reason(
        "for_pending",
        "slots held",
        "left out because clients that are at work, or had waited too long, hold the slots",
    ),
    Reason("rules", "rules", "left out by a rule: a cap or a required client left no slot"),
    Reason("tie", "tie", "left out by a tie, which goes to the smaller id"),
    Reason("share", "share", "left out because it had its share of slots"),
    Reason("failing", "failing", "not asked: it failed in earlier rounds"),
    Reason("unavailable", "unavailable", "not available in this round"),
    Reason("pending", "at work", "not asked: it is still at work"),
    Reason("unknown", "no report", "left out: no usable report was known, and it was not drawn"),
    Reason("ranked", "quality", "left out: others have a larger {ranked_by}"),
    Reason("not_asked", "not asked", "left out: it was not among the clients that were asked"),
    Reason("chance", "chance", "left out by chance: this scheduler draws at random"),
    Reason(
        "represented",
        "redundancy",
        "left out; the selected client nearest to it is {other} (similarity {similarity})",
    ),
    Reason(
        "unbalanced",
        "balance",
        "left out: with others, and after the time they had waited, the cohort represents all "
        "clients better",
    ),
    Reason("left_out", "left out", "left out; why is not recorded"),
    Reason("none", "no cohort", "the run has ended here: nobody is selected"),
)
"""All reasons; a code is a position in this tuple."""

LEFT_OUT = {
    "quality": "for lower quality",
    "redundancy": "as redundant",
    "waiting": "for clients that had waited",
    "slots held": "for slots that others hold",
    "rules": "by a rule",
    "tie": "by a tie",
    "share": "with its share of slots",
    "failing": "after failures",
    "unavailable": "as unavailable",
    "at work": "as still at work",
    "no report": "without a usable report",
    "not asked": "as not asked",
    "chance": "by chance",
    "balance": "for balance",
    "left out": "for a reason that is not recorded",
}
"""What follows "left out" in a summary, by the word of the reason."""

CODES = {reason.key: code for code, reason in enumerate(REASONS)}

SELECTED = frozenset(code for code, reason in enumerate(REASONS) if reason.word == "selected")
"""The codes of selected clients."""


class States(NamedTuple):
    """For each client a code, the other client that it names (a position), and their similarity.

    >>> States.of(2, "chance").codes.tolist() == [CODES["chance"]] * 2
    True
    """

    codes: NDArray[np.uint8]
    others: NDArray[np.uint16]
    similarities: NDArray[np.int8]

    @classmethod
    def of(cls, clients: int, key: str) -> States:
        """Return the states of clients that all have one reason."""
        return cls(
            np.full(clients, CODES[key], dtype=np.uint8),
            np.full(clients, NOBODY, dtype=np.uint16),
            np.zeros(clients, dtype=np.int8),
        )

    def set(self, positions: Iterable[int], key: str) -> None:
        """Give clients a reason that names nobody."""
        self.codes[list(positions)] = CODES[key]

    def name(self, position: int, key: str, other: int, similarity: float) -> None:
        """Give a client a reason that names another client."""
        self.codes[position] = CODES[key]
        self.others[position] = min(other, NOBODY)
        self.similarities[position] = round(100 * max(-1.0, min(1.0, similarity)))


def cohort_states(clients: int, chosen: Iterable[int]) -> States:
    """Return the states where nothing but the cohort is known.

    >>> cohort_states(3, [1]).codes.tolist() == [CODES[k] for k in ("left_out", "selected",
    ...                                                              "left_out")]
    True
    """
    states = States.of(clients, "left_out")
    states.set(chosen, "selected")
    return states


def choice_states(
    choice: Choice,
    position: Mapping[ClientId, int],
    backing_off: Sequence[ClientId] = (),
    pending: Sequence[ClientId] = (),
) -> States:
    """Return the states of all clients at a selection.

    Parameters
    ----------
    choice
        What the scheduler knew.
    position
        The position of each client.
    backing_off, pending
        Clients that were not asked because they failed before, and because they are at work.

    Examples
    --------
    >>> from adcs.schedulers import Cohort
    >>> choice = Choice(Cohort.of([2]), (1, 2), scores={1: 0.5, 2: 0.7}, ranked_by="loss")
    >>> found = choice_states(choice, {1: 0, 2: 1, 3: 2}, backing_off=[3])
    >>> [REASONS[code].key for code in found.codes]
    ['ranked', 'ranked_first', 'failing']
    """
    states = States.of(len(position), "unavailable")

    def known(clients: Iterable[ClientId]) -> list[int]:
        return [position[client] for client in clients if client in position]

    states.set(known(backing_off), "failing")
    states.set(known(pending), "pending")
    states.set(known(choice.available), _otherwise(choice))
    if choice.explanation is not None:
        _set_misses(states, choice, position)
    elif choice.balancing:
        reported = set(choice.known)
        states.set(known(c for c in choice.available if c in reported), "unbalanced")
    elif choice.ranked_by is not None:
        states.set(known(c for c in choice.available if c in choice.scores), "ranked")
    else:
        for client, (other, similarity) in choice.nearest.items():
            if client in position and other in position:
                states.name(position[client], "represented", position[other], similarity)
    states.set(known(choice.limited), "share")
    chosen = choice.cohort.clients
    for position_of in known(chosen):
        states.others[position_of] = NOBODY
    states.set(known(chosen), _chosen(choice))
    states.set(known(choice.balancing), "balancing")
    states.set(known(c for c in chosen if c in choice.required), "required")
    drawn = set(choice.cohort.diagnostics.get("drawn", ()))
    if choice.known or choice.drawn:
        states.set(known(c for c in chosen if c in drawn), "drawn")
    states.set(known(c for c in chosen if c in choice.waited), "waited")
    return states


def _otherwise(choice: Choice) -> str:
    """Return the reason of available clients that nothing else is said about."""
    if choice.explanation is not None or choice.drawn or choice.balancing:
        return "unknown"
    if choice.ranked_by is not None:
        return "not_asked"
    return "left_out" if choice.nearest else "chance"


def _chosen(choice: Choice) -> str:
    """Return the reason of selected clients that nothing else is said about."""
    if choice.explanation is not None:
        return "picked"
    if choice.ranked_by is not None:
        return "ranked_first"
    return "by_chance" if _otherwise(choice) == "chance" else "selected"


def miss_key(miss: Miss, choice: Choice) -> str:
    """Return the key of the reason for which a client was left out."""
    if miss.reason == "rules" and not choice.capped and not choice.required:
        if choice.pending:
            return "for_pending"
        if choice.waited:
            return "for_waiting"
    return miss.reason


def _set_misses(states: States, choice: Choice, position: Mapping[ClientId, int]) -> None:
    explanation = choice.explanation
    assert explanation is not None
    for miss in explanation.left_out:
        client, near = choice.known[miss.row], choice.known[miss.nearest]
        if client not in position or near not in position:
            continue
        key = miss_key(miss, choice)
        if key in ("redundant", "several"):
            states.name(position[client], key, position[near], miss.similarity)
        else:
            states.set([position[client]], key)
