"""From replies to what a scheduler is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Message

from adcs.flower.exchange import Errand
from adcs.flower.replies import (
    Rules,
    check_finite,
    check_metrics,
    check_records,
    metrics_of,
    model_record,
    read_arrays,
)
from adcs.flower.wire import find_answer
from adcs.signals.report import ClientId, ClientReport
from adcs.signals.sketch import Sketcher


def is_whole(errand: Errand, reply: Message) -> bool:
    """Return whether a reply is a whole training reply, which can be aggregated.

    A probe's reply is one if no mod was asked, or if the node has none.
    """
    return errand.model is not None and _answer(errand, reply) is None


def _answer(errand: Errand, reply: Message) -> dict[str, Any] | None:
    """Return what the mod answered; None if it was not asked, whatever the reply looks like."""
    return None if errand.question is None else find_answer(reply.content)


def read_report(
    client: ClientId,
    errand: Errand,
    reply: Message,
    rules: Rules,
    sketch: Sketcher | None = None,
    *,
    update: bool = True,
) -> ClientReport:
    """Return what a reply tells of a client, or raise ValueError with what is wrong with it.

    Parameters
    ----------
    client, errand, reply
        Who answered what, and how.
    rules
        What a reply's metrics must hold.
    sketch
        How the scheduler has updates sketched that come whole.
    update
        Whether the scheduler is to be told the update.
    """
    if errand.model is None:
        return _from_evaluation(client, errand, metrics_of(reply.content), rules)
    answer = _answer(errand, reply)
    if answer is not None:
        return _from_answer(client, errand, answer, rules)
    return _from_training(client, errand, reply, rules, sketch, update=update)


def _from_answer(
    client: ClientId, errand: Errand, answer: Mapping[str, Any], rules: Rules
) -> ClientReport:
    assert errand.model is not None
    if "refused" in answer:
        raise ValueError(str(answer["refused"])[:200])
    if rules.weight_key is not None and "examples" in answer:
        check_metrics({rules.weight_key: answer["examples"]}, rules.without_losses())
    asked = None if errand.question is None else errand.question.sketch
    sketch = None
    if asked is not None:
        sketch = asked.decode(answer.get("sketch", b""))
        if sketch.length != errand.model.width:
            raise ValueError(
                f"sketch must be of an update of length {errand.model.width}, got {sketch.length}"
            )
    return ClientReport(
        client,
        errand.round,
        loss=answer.get("loss"),
        norm=None if asked is not None else answer.get("norm"),
        sketch=sketch,
        examples=answer.get("examples"),
        compute_seconds=answer.get("seconds"),
    )


def _from_training(
    client: ClientId,
    errand: Errand,
    reply: Message,
    rules: Rules,
    sketch: Sketcher | None,
    *,
    update: bool,
) -> ClientReport:
    assert errand.model is not None
    check_records(reply.content, rules, arrays=True)
    metrics = metrics_of(reply.content)
    check_metrics(metrics, rules)
    arrays = read_arrays(model_record(reply.content, errand.model.name), errand.model)
    signals: dict[str, Any] = {}
    if update and errand.model.keys:
        vector = np.concatenate([layer.ravel() for layer in errand.model.update(arrays)])
        # A part of the model may stand still; that is no reason to withhold the rest.
        if vector.any():
            if sketch is None:
                signals["update"] = vector
                signals["norm"] = float(np.linalg.norm(vector))
            else:
                signals["sketch"] = sketch.sketch(vector)
    return ClientReport(
        client,
        errand.round,
        loss=metrics.get(rules.loss_key),
        examples=None if rules.weight_key is None else metrics[rules.weight_key],
        **signals,
    )


def _from_evaluation(
    client: ClientId, errand: Errand, metrics: Mapping[str, Any], rules: Rules
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
    return ClientReport(client, errand.round, loss=metrics[key])
