"""What a federation needs beside a scheduler, independent of any framework.

Reply checks, probes, client ids and pending clients, aggregation weights, and records. An adapter
for a framework carries the messages and calls a `RoundDriver`; `adcs.flower` is one.
"""

from adcs.federated.client_registry import ClientRegistry, PendingMessage, key_id
from adcs.federated.messages import (
    CHECKS,
    ClientReply,
    Exchange,
    PlainReply,
    Purpose,
    Refused,
    SentModel,
    check_arrays,
    clean_text,
)
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
    ReplyChecks,
    ReplyReader,
    apply_weights,
    check_metrics,
    has_weights,
)
from adcs.federated.round import FederatedRoundEvent, Round, RoundDriver, cohort_size
from adcs.federated.warn_once import WarnOnce

__all__ = [
    "ANSWER",
    "CHECKS",
    "QUESTION",
    "ClientRegistry",
    "ClientReply",
    "Exchange",
    "FederatedRoundEvent",
    "PendingMessage",
    "PlainReply",
    "Probe",
    "ProbeQuestion",
    "Purpose",
    "Recorder",
    "Refused",
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
    "clean_text",
    "cohort_size",
    "evaluation_summaries",
    "has_weights",
    "key_id",
    "plan_probe",
]
