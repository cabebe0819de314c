"""The client's side: a mod that answers probes from the user's own train handler."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from adcs.flower.replies import Model, metrics_of, model_record, read_arrays
from adcs.flower.wire import ANSWER, QUESTION, Question


def probe_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answer a scheduler's probes; pass every other message on.

    A probe runs the train handler on a copy of the context and sends back a sketch of the update,
    its norm, the loss and the number of examples. Files and globals that the handler writes are
    its own business. Put it first in the list: what other mods do to an update (clipping, noise)
    is then done before it is sketched.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[probe_mod])
    """
    if not message.has_content():
        return call_next(message, context)
    question = Question.find(message.content)
    if question is None:
        return call_next(message, context)
    if question.partition:
        partition = context.node_config.get("partition-id")
        known = isinstance(partition, int) and not isinstance(partition, bool)
        return _answer(message, {"partition-id": partition} if known else {})
    model = Model(message.content, question.arrays)
    # The handler gets what it would get in training, in records that it may empty.
    message.content = RecordDict(
        {name: record.copy() for name, record in message.content.items() if name != QUESTION}
    )
    started = time.perf_counter()
    reply = call_next(message, copy.deepcopy(context))
    seconds = time.perf_counter() - started
    if not reply.has_content():
        return reply
    return _answer(message, {**_signals(question, model, reply.content), "seconds": seconds})


def _signals(question: Question, model: Model, content: RecordDict) -> dict[str, Any]:
    metrics = metrics_of(content)
    answer: dict[str, Any] = {
        name: metrics[key]
        for name, key in (("loss", question.loss_key), ("examples", question.weight_key))
        if isinstance(metrics.get(key), (int, float))
    }
    try:
        update = model.update(read_arrays(model_record(content, model.name), model))
        if question.sketch is None:
            squares = [np.square(layer, dtype=np.float64).sum() for layer in update]
            answer["norm"] = math.sqrt(float(sum(squares)))
        else:
            sketch = question.sketch.sketch(update)
            answer |= {"sketch": sketch.encode(), "norm": float(sketch.norm)}
    except ValueError as error:
        answer["refused"] = str(error)
    return answer


def _answer(message: Message, values: dict[str, Any]) -> Message:
    return Message(RecordDict({ANSWER: ConfigRecord(values)}), reply_to=message)
