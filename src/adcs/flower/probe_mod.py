"""The client's side: a mod that answers probes with the user's own train handler."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from adcs.federated.messages import SentModel
from adcs.federated.probes import ANSWER, QUESTION, answer_partition, answer_probe
from adcs.flower.transport import FlowerReply, find_question, sent_arrays

AT_CLIENT = frozenset({"values", "shapes"})
"""What is checked before an update is sketched; the server checks the rest."""


def probe_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answer a scheduler's probes; pass every other message on.

    A probe runs the train handler on a copy of the context and sends back a sketch of the update,
    its norm, the loss and the number of examples. Files and globals that the handler writes are not
    protected. Put this mod first in the list: what other mods do to an update (clipping, noise) is
    then done before it is sketched.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[probe_mod])
    """
    question = find_question(message.content) if message.has_content() else None
    if question is None:
        return call_next(message, context)
    order = {} if _is_first() else {"first": False}
    if question.partition:
        partition = answer_partition(context.node_config.get("partition-id"))
        return _answer(message, {**partition, **order})
    name, arrays = sent_arrays(message.content, question.record)
    model = SentModel(arrays, question.arrays, record_name=name, part=True)
    # The handler gets what it would get in training, in records that it may change.
    message.content = RecordDict(
        {name: record.copy() for name, record in message.content.items() if name != QUESTION}
    )
    started = time.perf_counter()
    reply = call_next(message, copy.deepcopy(context))
    seconds = time.perf_counter() - started
    if not reply.has_content():
        return reply
    trained = FlowerReply(reply)

    def update() -> list[Any]:
        return model.update(trained.checked_arrays(model, AT_CLIENT))

    answer = answer_probe(question, trained.metrics, update, seconds)
    return _answer(message, {**answer, **order})


def _answer(message: Message, values: dict[str, Any]) -> Message:
    return Message(RecordDict({ANSWER: ConfigRecord(values)}), reply_to=message)


def _is_first() -> bool:
    """Return whether no other mod is between the ClientApp and `probe_mod`.

    Flower gives a mod no access to the list of mods, so this reads the stack of calls. In doubt,
    the mod is the first.
    """
    frame = sys._getframe(1).f_back  # the caller of probe_mod
    others = 0
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("flwr.clientapp.client_app"):
            return others == 0
        # Flower calls each mod from a function of its own.
        others += not (module.startswith("flwr.") and frame.f_code.co_name == "new_ffn")
        frame = frame.f_back
    return True
