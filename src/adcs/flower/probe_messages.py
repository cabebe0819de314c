"""The messages of a probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from adcs.flower.replies import Model, ReplyChecks
from adcs.flower.transport import Purpose
from adcs.flower.wire import QUESTION, Question
from adcs.schedulers.base import Request


@dataclass(frozen=True)
class Probe:
    """A request of the scheduler, in the terms of Flower.

    Attributes
    ----------
    purpose
        What the replies are to be read as.
    contents
        What to send to each node.
    message_type
        `train`, or `evaluate` for a loss alone.
    is_training
        Whether the probe is the training of the round: whole updates are asked for.
    """

    purpose: Purpose
    contents: Mapping[int, RecordDict]
    message_type: str
    is_training: bool


def make_probe(
    request: Request,
    server_round: int,
    training: Mapping[int, Message],
    model: Model,
    *,
    rules: ReplyChecks,
    evaluate_config: ConfigRecord,
) -> Probe:
    """Return the probe for a request.

    Parameters
    ----------
    request, server_round
        What the scheduler asks for, and in which of its rounds.
    training
        The strategy's own training message for each node that is to be asked.
    model
        The model in them.
    rules
        The keys of loss and examples.
    evaluate_config
        The configuration of evaluate messages.
    """
    if request.signals == {"loss"}:
        config = ConfigRecord({**dict(evaluate_config.items()), "server-round": server_round + 1})
        contents = {
            node: _evaluation(message.content, config) for node, message in training.items()
        }
        return Probe(Purpose("probe", server_round), contents, MessageType.EVALUATE, False)
    if "update" in request.signals and request.sketch is None:
        contents = {node: message.content for node, message in training.items()}
        return Probe(Purpose("probe", server_round, model), contents, MessageType.TRAIN, True)
    sketch = request.sketch if "update" in request.signals else None
    question = Question(False, sketch, rules.loss_key, rules.weight_key or "", model.patterns)
    record = question.record()
    contents = {
        node: RecordDict({**dict(message.content.items()), QUESTION: record})
        for node, message in training.items()
    }
    return Probe(
        Purpose("probe", server_round, model, question), contents, MessageType.TRAIN, False
    )


def _evaluation(content: RecordDict, config: ConfigRecord) -> RecordDict:
    names = [name for name, record in content.items() if isinstance(record, ConfigRecord)]
    return RecordDict(
        {
            **{n: record for n, record in content.items() if isinstance(record, ArrayRecord)},
            names[0] if names else "config": config,
        }
    )
