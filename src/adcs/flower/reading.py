"""Reading a batch of replies: each bad one is refused alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message

from adcs._types import ClientId
from adcs.flower.recorder import RoundRecord
from adcs.flower.replies import (
    Layout,
    ReplyChecks,
    check_finite,
    check_metrics,
    check_records,
    layout,
    metrics_of,
    usual_layout,
)
from adcs.flower.reports import is_whole, read_report
from adcs.flower.transport import Purpose
from adcs.reports.report import ClientReport, validate_report
from adcs.reports.sketch import Sketcher


@dataclass
class Read:
    """What a batch of replies holds.

    Attributes
    ----------
    reports
        What the scheduler is told, in the order of the clients.
    whole
        The replies that can be aggregated.
    """

    reports: list[ClientReport] = field(default_factory=list)
    whole: dict[ClientId, Message] = field(default_factory=dict)


class Reader:
    """Reads replies, and observed_sources what those of earlier rounds looked like.

    Parameters
    ----------
    rules
        What a reply's metrics must hold.
    """

    def __init__(self, rules: ReplyChecks) -> None:
        self.rules = rules
        self._layouts: dict[str, Layout] = {}

    def read(
        self,
        purpose: Purpose,
        replies: Mapping[ClientId, Message],
        note: RoundRecord,
        *,
        sketch: Sketcher | None,
        update: bool = True,
    ) -> Read:
        """Return what training replies and answers to probes hold; note what is refused."""
        read = Read()
        layouts: dict[ClientId, Layout] = {}
        for client, reply in _in_order(replies):
            if reply.has_error():
                note.failed.append(_entry(client, purpose.kind, _reason(reply)))
                continue
            try:
                report = read_report(client, purpose, reply, self.rules, sketch, update=update)
                if (reason := validate_report(report)) is not None:
                    raise ValueError(reason)
            except ValueError as error:
                note.refused.append(_entry(client, purpose.kind, str(error)))
                continue
            read.reports.append(report)
            if is_whole(purpose, reply):
                read.whole[client] = reply
                layouts[client] = layout(reply.content)
        for client in self._odd("training", layouts, note, purpose.kind):
            del read.whole[client]
            read.reports = [report for report in read.reports if report.client != client]
        return read

    def evaluations(
        self, replies: Mapping[ClientId, Message], note: RoundRecord
    ) -> dict[ClientId, tuple[Message, dict[str, Any]]]:
        """Return the evaluation replies that can be used, with their metrics."""
        good: dict[ClientId, tuple[Message, dict[str, Any]]] = {}
        for client, reply in _in_order(replies):
            if reply.has_error():
                note.failed.append(_entry(client, "evaluation", _reason(reply)))
                continue
            metrics = metrics_of(reply.content)
            try:
                check_records(reply.content, self.rules, arrays=False)
                check_metrics(metrics, self.rules.without_losses())
                check_finite(metrics)
            except ValueError as error:
                note.refused.append(_entry(client, "evaluation", str(error)))
                continue
            good[client] = (reply, metrics)
        layouts = {client: layout(reply.content) for client, (reply, _) in good.items()}
        for client in self._odd("evaluation", layouts, note, "evaluation"):
            del good[client]
        return good

    def _odd(
        self, name: str, layouts: dict[ClientId, Layout], note: RoundRecord, stage: str
    ) -> list[ClientId]:
        """Return and note the clients whose records differ from those of the others."""
        if not layouts:
            return []
        usual = usual_layout(list(layouts.values()), self._layouts.get(name))
        if len(layouts) > 1 or name not in self._layouts:
            self._layouts[name] = usual
        odd = [client for client, one in layouts.items() if one != usual]
        for client in odd:
            reason = (
                f"records must be those of the other replies, {_names(usual)}, "
                f"got {_names(layouts[client])}"
            )
            note.refused.append(_entry(client, stage, reason))
        return odd


def _in_order(replies: Mapping[ClientId, Message]) -> list[tuple[ClientId, Message]]:
    # The order of arrival would show in the last bits of an average.
    return sorted(replies.items(), key=lambda item: (isinstance(item[0], str), item[0]))


def _entry(client: ClientId, stage: str, reason: str) -> dict[str, Any]:
    return {"client": client, "stage": stage, "reason": reason}


def _reason(reply: Message) -> str:
    return f"error {reply.error.code}: {str(reply.error.reason)[:200]}"


def _names(layout: Layout) -> str:
    text = ", ".join(f"{name} ({' '.join(key for key, _ in keys)})" for name, _, keys in layout)
    return text[:200]
