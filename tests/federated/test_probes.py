"""The wire format of probes, and which form a request takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adcs import Request, Sketcher
from adcs.federated import ProbeQuestion, ReplyChecks, SentModel, answer_probe, plan_probe

CHECKS = ReplyChecks("num-examples", "train_loss")
MODEL = SentModel({"w": np.zeros(2)})


@pytest.mark.parametrize(
    "question",
    [
        ProbeQuestion(partition=True),
        ProbeQuestion(loss_key="train_loss", weight_key="n"),
        ProbeQuestion(sketch=Sketcher(size=16, seed=2**64 - 1), arrays=("head.*", "w")),
    ],
)
def test_questions_survive_the_wire(question: ProbeQuestion) -> None:
    wire = question.encode()
    assert ProbeQuestion.decode(wire) == question
    for value in wire.values():
        assert type(value) in (bool, int, str, list)
        assert not isinstance(value, int) or abs(value) < 2**63


def test_another_version_is_refused() -> None:
    wire = {**ProbeQuestion().encode(), "version": 2}
    with pytest.raises(ValueError, match="probe must be of version 1, got 2"):
        ProbeQuestion.decode(wire)


@pytest.mark.parametrize(
    ("signals", "sketch", "handler", "is_training"),
    [
        ({"loss"}, None, "evaluate", False),
        ({"loss"}, Sketcher(), "evaluate", False),
        ({"update"}, None, "train", True),
        ({"update", "loss"}, Sketcher(), "train", False),
        ({"norm"}, None, "train", False),
        ({"norm"}, Sketcher(), "train", False),
    ],
)
def test_the_form_of_a_probe_follows_from_the_signals(
    signals: Any, sketch: Sketcher | None, handler: str, is_training: bool
) -> None:
    probe = plan_probe(Request((1,), frozenset(signals), sketch), 3, MODEL, CHECKS)
    assert (probe.handler, probe.is_training) == (handler, is_training)
    assert (probe.purpose.model is None) == (handler == "evaluate")
    assert probe.purpose.expects_answer == (probe.question is not None)
    assert probe.purpose.sketch == (sketch if "update" in signals else None)
    assert probe.purpose.server_round == 3


def test_an_update_that_cannot_be_used_is_explained_in_the_answer() -> None:
    def update() -> list[Any]:
        raise ValueError("array 'w' must be finite")

    question = ProbeQuestion(sketch=Sketcher(), loss_key="loss", weight_key="n")
    answer = answer_probe(question, {"loss": 1.5, "n": [1, 2]}, update, 0.5)
    assert answer == {"loss": 1.5, "refused": "array 'w' must be finite", "seconds": 0.5}


@pytest.mark.parametrize("signals", [{"label_counts"}, {"held_out_accuracy"}, {"loss", "rms_loss"}])
def test_signals_without_an_update_are_an_evaluation(signals) -> None:
    probe = plan_probe(Request((1,), frozenset(signals)), 3, MODEL, CHECKS)
    assert (probe.handler, probe.question, probe.purpose.signals) == ("evaluate", None, signals)
