"""Buffered (asynchronous) training: replies to older models count by their staleness.

A client's reply is based on the version of the model that it was sent. Strategies average replies
to the current model, so each reply is re-based first: (current model) + s (reply - model sent),
where s is what a reply of that staleness counts. The average of re-based replies is then the
current model plus the average of the discounted updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from adcs._types import ClientId
from adcs.federated.messages import Arrays, ClientReply, Purpose, SentModel, is_statistic
from adcs.rounds import Buffered
from adcs.schedulers.base import Cohort


@dataclass(frozen=True)
class Work:
    """What a client at work was sent.

    Attributes
    ----------
    client
        The client.
    purpose
        What its message asks for, with the version of the model (`server_round`) and the model.
    weight
        The weight that the scheduler gave it, from `relative_weights`.
    sent_at
        When the message was sent, in seconds.

    Examples
    --------
    >>> Work("a", Purpose("training", 3)).purpose.server_round
    3
    """

    client: ClientId
    purpose: Purpose
    weight: float = 1.0
    sent_at: float = 0.0


def rebase(reply: ClientReply, sent: SentModel, now: SentModel, discount: float) -> None:
    """Change a reply to an older model into one to the current model.

    Parameters
    ----------
    reply
        The reply; it is changed.
    sent, now
        The model that its client was sent, and the current one.
    discount
        What the reply counts, at most 1.

    Examples
    --------
    >>> from adcs.federated import PlainReply
    >>> reply = PlainReply({"w": np.array([3.0])})
    >>> sent, now = SentModel({"w": np.array([1.0])}), SentModel({"w": np.array([10.0])})
    >>> rebase(reply, sent, now, discount=0.5)
    >>> reply.arrays(now)
    {'w': array([11.])}
    """
    if sent is now and discount == 1.0:
        return
    changed: Arrays = {}
    for key, values in reply.arrays(sent).items():
        if key not in now.arrays or values.dtype.kind != "f":
            continue
        # Statistics are no sums of updates: a variance that is moved by a difference of two others
        # may become negative. Between the current and the reply's own it cannot.
        base = now if is_statistic(key) else sent
        # A Python float as discount keeps a float32 model float32.
        moved = now.arrays[key] + discount * (values - base.arrays[key])
        changed[key] = np.asarray(moved, dtype=values.dtype)
    reply.replace_arrays(changed, now)


@dataclass
class Buffer:
    """What the clients were sent whose replies are aggregated next.

    Attributes
    ----------
    mode
        What a reply counts by its staleness.
    works
        What each client was sent.

    Examples
    --------
    >>> from adcs.federated import PlainReply
    >>> sent, now = SentModel({"w": np.array([1.0])}), SentModel({"w": np.array([10.0])})
    >>> buffer = Buffer(Buffered(size=1, concurrency=2))
    >>> buffer.works["a"] = Work("a", Purpose("training", 0, sent))
    >>> replies = {"a": PlainReply({"w": np.array([3.0])})}
    >>> buffer.rebase(replies, now, server_round=3)
    {'a': 3}
    >>> replies["a"].arrays(now)
    {'w': array([11.])}
    """

    mode: Buffered
    works: dict[ClientId, Work] = field(default_factory=dict)

    def rebase(
        self, replies: Mapping[ClientId, ClientReply], now: SentModel, server_round: int
    ) -> dict[ClientId, int]:
        """Re-base replies; return the staleness of each.

        Parameters
        ----------
        replies
            The replies; they are changed.
        now, server_round
            The current model, and its version.
        """
        staleness: dict[ClientId, int] = {}
        for client, reply in replies.items():
            purpose = self.works[client].purpose
            assert purpose.model is not None
            staleness[client] = server_round - purpose.server_round
            rebase(reply, purpose.model, now, self.mode.discount(staleness[client]))
        return staleness

    def cohort(self, clients: Iterable[ClientId]) -> Cohort:
        """Return clients of this buffer with the weights that the scheduler gave them."""
        chosen = tuple(clients)
        return Cohort(chosen, tuple(self.works[client].weight for client in chosen))


def relative_weights(cohort: Cohort) -> dict[ClientId, float]:
    """Return the weights of a cohort over their mean, so that those of several cohorts compare.

    >>> relative_weights(Cohort(("a", "b"), (2.0, 6.0)))
    {'a': 0.5, 'b': 1.5}
    """
    total = sum(cohort.weights)
    return {
        client: weight * len(cohort.weights) / total
        for client, weight in zip(cohort.clients, cohort.weights, strict=True)
    }
