"""What a federation needs beside a scheduler, independent of any framework.

A framework adapter implements `ClientReply`, carries the messages, and calls a `RoundDriver`:
`adcs.flower` is one. Replies are checked, probes are planned and answered, pending clients are
tracked, and each round is recorded here.
"""

from adcs.federated.client_registry import ClientRegistry, PendingMessage, key_id
from adcs.federated.probes import (
    ANSWER,
    QUESTION,
    Probe,
    ProbeQuestion,
    answer_partition,
    answer_probe,
    plan_probe,
)
from adcs.federated.recorder import Recorder, RoundRecord, evaluation_summaries
from adcs.federated.replies import (
    ClientReply,
    Purpose,
    ReplyChecks,
    ReplyReader,
    SentModel,
    check_arrays,
    check_metrics,
)
from adcs.federated.round import Exchange, FederatedRoundEvent, Round, RoundDriver, cohort_size
from adcs.federated.warn_once import WarnOnce
from adcs.federated.weights import apply_weights, has_weights

__all__ = [
    "ANSWER",
    "QUESTION",
    "ClientRegistry",
    "ClientReply",
    "Exchange",
    "FederatedRoundEvent",
    "PendingMessage",
    "Probe",
    "ProbeQuestion",
    "Purpose",
    "Recorder",
    "ReplyChecks",
    "ReplyReader",
    "Round",
    "RoundDriver",
    "RoundRecord",
    "SentModel",
    "WarnOnce",
    "answer_partition",
    "answer_probe",
    "apply_weights",
    "check_arrays",
    "check_metrics",
    "cohort_size",
    "evaluation_summaries",
    "has_weights",
    "key_id",
    "plan_probe",
]
