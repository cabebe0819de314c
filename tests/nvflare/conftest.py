"""NVFlare's part of a round as function calls: each client moves the model to its own point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adcs.federated import Recorder, ReplyChecks, RoundDriver, SentModel, answer_probe
from adcs.federated.probes import ProbeQuestion
from adcs.nvflare.replies import WEIGHT_KEY, FlareReply
from adcs.nvflare.rounds import Answers, Rounds, Settings
from adcs.schedulers.base import Scheduler

WIDTH, LR = 6, 0.5
SITES = tuple(f"site-{i}" for i in range(1, 7))
POINTS = dict(zip(SITES, np.random.default_rng(5).normal(size=(len(SITES), WIDTH)), strict=True))

Reply = Callable[[str], FlareReply | None]


class FakeCommunicator:
    """Answers tasks at once; `faults` replaces the replies of some sites, None is no reply."""

    def __init__(self) -> None:
        self.w = np.zeros(WIDTH)
        self.sites = list(SITES)
        self.is_diff = False
        self.has_filter = True
        self.faults: dict[str, Reply] = {}
        self.sent: list[tuple[str, list[str], float]] = []
        self.late_replies: list[tuple[str, FlareReply]] = []
        self.now = 0.0

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def connected(self) -> list[str]:
        return list(self.sites)

    def steps(self, site: str) -> int:
        return 10 + SITES.index(site)

    def loss(self, site: str) -> float:
        return float(0.5 * np.square(POINTS[site] - self.w).sum())

    def train(self, site: str) -> FlareReply:
        step = LR * (POINTS[site] - self.w)
        params = {"w": step if self.is_diff else self.w + step}
        meta = {WEIGHT_KEY: self.steps(site)}
        return FlareReply(params, {"loss": self.loss(site)}, meta, is_diff=self.is_diff)

    def evaluate(self, site: str) -> FlareReply:
        accuracy = 1 / (1 + self.loss(site))
        return FlareReply(metrics={"loss": self.loss(site), "accuracy": accuracy})

    def answer(self, site: str, question: ProbeQuestion) -> FlareReply:
        model, trained = SentModel({"w": self.w}), self.train(site)
        update = model.update(trained.arrays(model))
        return FlareReply(answer=answer_probe(question, trained.metrics, lambda: update, 0.25))

    def send(
        self,
        task: str,
        model: Any,
        clients: Sequence[str],
        timeout: float,
        question: ProbeQuestion | None = None,
    ) -> Answers:
        self.sent.append((task, list(clients), timeout))
        answers = Answers()
        for site in clients:
            reply: FlareReply | None
            if site in self.faults:
                reply = self.faults[site](task)
            elif task == "validate":
                reply = self.evaluate(site)
            elif question is not None and self.has_filter:
                reply = self.answer(site, question)
            else:
                reply = self.train(site)
            if reply is None:
                answers.unanswered[f"{site}/{len(self.sent)}"] = site
            else:
                answers.replies[site] = reply
        return answers

    def late(self) -> list[tuple[str, FlareReply]]:
        late, self.late_replies = self.late_replies, []
        return late


class Federation:
    """FedAvg around `Rounds`, with the fake communicator."""

    def __init__(self, scheduler: Scheduler, m: float = 3, folder: Any = None, **more: Any) -> None:
        options = {key: more.pop(key) for key in ("stop_after", "unweighted") if key in more}
        patience = more.pop("patience", 600.0)
        checks = ReplyChecks(WEIGHT_KEY, "loss", equal_metrics=False)
        recorder = Recorder(folder, scheduler, "nvflare", {})
        self.driver = RoundDriver[FlareReply](scheduler, checks, recorder, **options)
        self.net = FakeCommunicator()
        if recorder.model is not None:
            self.net.w = recorder.model["w"]
        settings = Settings(m, timeout=60, probe_timeout=20, **more)
        self.rounds = Rounds(self.driver, self.net, settings, patience, self.net.clock)

    def round(self) -> Any:
        arrays = {"w": self.net.w}
        usable = self.rounds.train(SimpleNamespace(params=arrays), arrays)
        model = SentModel(arrays)
        if usable:
            weights = np.array([float(reply.metrics[WEIGHT_KEY]) for reply in usable.values()])
            trained = np.array([reply.arrays(model)["w"] for reply in usable.values()])
            self.net.w = weights @ trained / weights.sum()
        record = self.rounds.finish_training(list(usable))
        self.rounds.close(SimpleNamespace(params={}), {"w": self.net.w})
        return record


@pytest.fixture
def federation() -> type[Federation]:
    return Federation
