"""Probes: the question to a client, its wire format, and the answer.

A probe asks clients for the signals that the scheduler requests before it selects. Which form it
takes depends on the signals:

- losses, accuracies and label histograms are an evaluation of the model that is about to be
  trained, whose metrics have these names;
- a whole update is the training of the round itself: replies of selected clients are aggregated;
- a sketch or a norm is a `ProbeQuestion`. The client's probe handler runs the user's training on a
  copy of the client's state and answers with these signals only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId
from adcs.federated.messages import Purpose, SentModel, clean_text
from adcs.federated.replies import ReplyChecks, metric_signals
from adcs.reports.report import PER_CLASS, SIGNALS
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Request

QUESTION = "adcs-question"
"""The name under which a question travels in a message."""

ANSWER = "adcs-answer"
"""The name under which an answer travels in a reply."""

VERSION = 1
"""The version of the wire format; server and client must agree on it."""


@dataclass(frozen=True)
class ProbeQuestion:
    """What a client's probe handler is asked for.

    Attributes
    ----------
    partition
        True asks for the client's partition id, and for nothing else.
    sketch
        How to sketch the update; None asks for its norm only.
    loss_key, weight_key
        The names of the loss and of the number of examples in the metrics of training.
    arrays
        Shell patterns of the arrays that make up the update; None takes all parameters.
    record
        The name of the record in which the model travels; empty takes the first.

    Examples
    --------
    >>> question = ProbeQuestion(sketch=Sketcher(size=64), loss_key="train_loss")
    >>> ProbeQuestion.decode(question.encode()) == question
    True
    """

    partition: bool = False
    sketch: Sketcher | None = None
    loss_key: str = ""
    weight_key: str = ""
    arrays: tuple[str, ...] | None = None
    record: str = ""

    def encode(self) -> dict[str, Any]:
        """Return the question as it travels: strings, integers, truth values and a list."""
        wire: dict[str, Any] = {"version": VERSION, "partition": self.partition}
        if self.partition:
            return wire
        wire |= {"loss-key": self.loss_key, "weight-key": self.weight_key}
        if self.record:
            wire["record"] = self.record
        if self.arrays is not None:
            wire["arrays"] = list(self.arrays)
        if self.sketch is not None:
            wire |= {
                "sketch-size": int(self.sketch.size),
                "sketch-kind": self.sketch.kind,
                "sketch-dtype": self.sketch.dtype,
                # Seeds go up to 2**64 - 1; frameworks carry integers up to 2**63 - 1.
                "sketch-seed": str(self.sketch.seed),
            }
        return wire

    @classmethod
    def decode(cls, wire: Mapping[str, Any]) -> ProbeQuestion:
        """Return the question in its wire format, or raise ValueError for another version."""
        if wire["version"] != VERSION:
            raise ValueError(
                f"probe must be of version {VERSION}, got {wire['version']}: "
                "server and client need the same version of adcs"
            )
        if wire["partition"]:
            return cls(partition=True)
        sketch = None
        if "sketch-size" in wire:
            sketch = Sketcher(
                size=wire["sketch-size"],
                kind=wire["sketch-kind"],
                dtype=wire["sketch-dtype"],
                seed=int(wire["sketch-seed"]),
            )
        arrays = tuple(wire["arrays"]) if "arrays" in wire else None
        record = wire.get("record", "")  # Servers of earlier versions do not name it.
        return cls(False, sketch, wire["loss-key"], wire["weight-key"], arrays, record)


def answer_partition(partition: object) -> dict[str, Any]:
    """Return the answer to a question for the partition id, which is empty if there is none.

    >>> answer_partition(3), answer_partition("three")
    ({'partition-id': 3}, {})
    """
    is_id = isinstance(partition, int) and not isinstance(partition, bool)
    return {"partition-id": partition} if is_id else {}


def answer_probe(
    question: ProbeQuestion,
    metrics: Mapping[str, Any],
    update: Callable[[], Sequence[NDArray[Any]]],
    seconds: float,
) -> dict[str, Any]:
    """Return a client's answer to a question for signals.

    Parameters
    ----------
    question
        What is asked for.
    metrics
        The metrics of the client's training.
    update
        Computes the update, one array for each layer. A ValueError from it becomes the answer's
        "refused", which the server records as the reason.
    seconds
        How long the training took.

    Examples
    --------
    >>> question = ProbeQuestion(loss_key="train_loss")
    >>> answer_probe(question, {"train_loss": 0.5}, lambda: [np.array([3.0, 4.0])], seconds=0.1)
    {'loss': 0.5, 'norm': 5.0, 'seconds': 0.1}
    """
    named = {"loss": metrics.get(question.loss_key), "examples": metrics.get(question.weight_key)}
    answer: dict[str, Any] = {
        name: value
        for name, value in {**named, **metric_signals(metrics)}.items()
        if isinstance(value, (int, float)) or name in PER_CLASS
    }
    try:
        layers = update()
        if not any(layer.any() for layer in layers):
            # It has no direction; the server counts the client all the same.
            return {**answer, "unchanged": True, "norm": 0.0, "seconds": seconds}
        if question.sketch is None:
            squares = [np.square(layer, dtype=np.float64).sum() for layer in layers]
            answer["norm"] = math.sqrt(float(sum(squares)))
        else:
            sketch = question.sketch.sketch(layers)
            answer |= {"sketch": sketch.encode(), "norm": float(sketch.norm)}
    except ValueError as error:
        answer["refused"] = clean_text(error)
    return {**answer, "seconds": seconds}


@dataclass(frozen=True)
class Probe:
    """A scheduler's request, as a framework carries it out.

    Attributes
    ----------
    purpose
        How the replies are read.
    handler
        Which of the client's handlers runs: "train" or "evaluate".
    question
        What travels beside the model; None sends a plain training or evaluation message.

    Examples
    --------
    >>> Probe(Purpose("probe", 0), "evaluate").is_training
    False
    """

    purpose: Purpose
    handler: Literal["train", "evaluate"]
    question: ProbeQuestion | None = None

    @property
    def is_training(self) -> bool:
        """Whether the probe is the training of its round: whole updates are requested."""
        return self.handler == "train" and self.question is None


def plan_probe(
    request: Request,
    server_round: int,
    model: SentModel,
    checks: ReplyChecks,
    model_of: Callable[[ClientId], SentModel] | None = None,
) -> Probe:
    """Return the probe for a request.

    Parameters
    ----------
    request, server_round
        The scheduler's request, and its round, counted from 0.
    model
        The model that clients train.
    checks
        The keys of the loss and of the number of examples.
    model_of
        As of `Purpose`.

    Examples
    --------
    >>> checks = ReplyChecks("num-examples", "train_loss")
    >>> model = SentModel({"w": np.zeros(2)})
    >>> plan_probe(Request((3, 7), frozenset({"loss"})), 0, model, checks).handler
    'evaluate'
    >>> plan_probe(Request((3, 7), frozenset({"update"})), 0, model, checks).is_training
    True
    """
    if all(SIGNALS[name].work != "update" for name in request.signals):
        return Probe(Purpose("probe", server_round, signals=request.signals), "evaluate")
    wants_update = "update" in request.signals
    if wants_update and request.sketch is None:
        return Probe(Purpose("probe", server_round, model, model_of=model_of), "train")
    sketch = request.sketch if wants_update else None
    question = ProbeQuestion(
        False, sketch, checks.loss_key, checks.weight_key or "", model.patterns, model.record_name
    )
    purpose = Purpose(
        "probe", server_round, model, expects_answer=True, sketch=sketch, model_of=model_of
    )
    return Probe(purpose, "train", question)
