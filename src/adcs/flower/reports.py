"""From replies to what a scheduler is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Message

from adcs._types import ClientId
from adcs.flower.replies import (
    ReplyChecks,
    check_finite,
    check_metrics,
    check_records,
    metrics_of,
    model_record,
    read_arrays,
)
from adcs.flower.transport import Purpose
from adcs.flower.wire import find_answer
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketcher


def is_whole(purpose: Purpose, reply: Message) -> bool:
    """Return whether a reply is a whole training reply, which can be aggregated.

    A probe's reply is one if no mod was asked, or if the node has none.
    """
    return purpose.model is not None and _answer(purpose, reply) is None


def _answer(purpose: Purpose, reply: Message) -> dict[str, Any] | None:
    """Return what the mod answered; None if it was not asked, whatever the reply looks like."""
    return None if purpose.question is None else find_answer(reply.content)


def read_report(
    client: ClientId,
    purpose: Purpose,
    reply: Message,
    rules: ReplyChecks,
    sketch: Sketcher | None = None,
    *,
    update: bool = True,
) -> ClientReport:
    """Return what a reply tells of a client, or raise ValueError with what is wrong with it.

    Parameters
    ----------
    client, purpose, reply
        Who answered what, and how.
    rules
        What a reply's metrics must hold.
    sketch
        How the scheduler has updates sketched that come whole.
    update
        Whether the scheduler is to be told the update.
    """
    if purpose.model is None:
        return _from_evaluation(client, purpose, metrics_of(reply.content), rules)
    answer = _answer(purpose, reply)
    if answer is not None:
        return _from_answer(client, purpose, answer, rules)
    return _from_training(client, purpose, reply, rules, sketch, update=update)


def _from_answer(
    client: ClientId, purpose: Purpose, answer: Mapping[str, Any], rules: ReplyChecks
) -> ClientReport:
    assert purpose.model is not None
    if "refused" in answer:
        raise ValueError(str(answer["refused"])[:200])
    if rules.weight_key is not None and "examples" in answer:
        check_metrics({rules.weight_key: answer["examples"]}, rules.without_losses())
    asked = None if purpose.question is None else purpose.question.sketch
    sketch = None
    if asked is not None:
        sketch = asked.decode(answer.get("sketch", b""))
        if sketch.update_size != purpose.model.width:
            raise ValueError(
                f"sketch must be of an update of {purpose.model.width} numbers, "
                f"got {sketch.update_size}"
            )
    return ClientReport(
        client,
        purpose.server_round,
        loss=answer.get("loss"),
        norm=None if asked is not None else answer.get("norm"),
        sketch=sketch,
        examples=answer.get("examples"),
        compute_seconds=answer.get("seconds"),
    )


def _from_training(
    client: ClientId,
    purpose: Purpose,
    reply: Message,
    rules: ReplyChecks,
    sketch: Sketcher | None,
    *,
    update: bool,
) -> ClientReport:
    assert purpose.model is not None
    check_records(reply.content, rules, arrays=True)
    metrics = metrics_of(reply.content)
    check_metrics(metrics, rules)
    arrays = read_arrays(model_record(reply.content, purpose.model.name), purpose.model)
    signals: dict[str, Any] = {}
    if update and purpose.model.keys:
        vector = np.concatenate([layer.ravel() for layer in purpose.model.update(arrays)])
        # A part of the model may stand still; that is no reason to withhold the rest.
        if vector.any():
            if sketch is None:
                signals["update"] = vector
                signals["norm"] = float(np.linalg.norm(vector))
            else:
                signals["sketch"] = sketch.sketch(vector)
    return ClientReport(
        client,
        purpose.server_round,
        loss=metrics.get(rules.loss_key),
        examples=None if rules.weight_key is None else metrics[rules.weight_key],
        **signals,
    )


def _from_evaluation(
    client: ClientId, purpose: Purpose, metrics: Mapping[str, Any], rules: ReplyChecks
) -> ClientReport:
    key = rules.loss_key
    if key not in metrics:
        named = [name for name in metrics if "loss" in name.lower()]
        if len(named) != 1:
            raise ValueError(
                f"evaluate reply must have a metric {key!r}, or one with 'loss' in its name, "
                f"got {sorted(metrics)}"
            )
        key = named[0]
    check_finite({key: metrics[key]})
    return ClientReport(client, purpose.server_round, loss=metrics[key])
