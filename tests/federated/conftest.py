"""A federation without a framework: replies are Python objects and messages are function calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from adcs.federated import (
    Exchange,
    PlainReply,
    Recorder,
    ReplyChecks,
    RoundDriver,
    answer_probe,
    plan_probe,
)
from adcs.schedulers.base import Cohort, Scheduler

WIDTH, LR = 6, 0.5
CHECKS = ReplyChecks("num-examples", "train_loss")


class Quadratic:
    """A federated average in which client c has half the squared distance to a point as loss."""

    def __init__(self, scheduler: Scheduler, n: int = 6, **options: Any) -> None:
        self.points = np.random.default_rng(5).normal(size=(n, WIDTH))
        self.clients = tuple(range(n))
        self.w = np.zeros(WIDTH)
        self.pending: tuple[int, ...] = ()
        folder = options.pop("folder", None)
        recorder = Recorder(folder, scheduler, "quadratic", {})
        self.driver = RoundDriver[PlainReply](scheduler, CHECKS, recorder, **options)

    def train(self, client: int) -> PlainReply:
        step = self.points[client] - self.w
        metrics = {"train_loss": float(0.5 * step @ step), "num-examples": 10 + client}
        return PlainReply({"w": self.w + LR * step}, metrics)

    def evaluate(self, client: int) -> PlainReply:
        step = self.points[client] - self.w
        metrics = {"eval_loss": float(0.5 * step @ step), "num-examples": 10 + client}
        return PlainReply(metrics=metrics)

    def exchange(self, clients: Iterable[int], reply: Any) -> Exchange[PlainReply]:
        asked = list(clients)
        return Exchange(asked, {client: reply(client) for client in asked}, 8 * len(asked), 1.0)

    def probe(self, request: Any) -> None:
        current = self.driver.round
        probe = plan_probe(request, current.server_round, current.model, CHECKS)

        def answer(client: int) -> PlainReply:
            if probe.handler == "evaluate":
                return self.evaluate(client)
            trained = self.train(client)
            if probe.question is None:
                return trained
            update = current.model.update(trained.arrays(current.model))
            return PlainReply(
                answer=answer_probe(probe.question, trained.metrics, lambda: update, 0.25)
            )

        self.driver.observe_probe(probe, self.exchange(request.clients, answer))

    def round(self, m: int) -> Cohort:
        driver = self.driver
        current = driver.begin()
        current.clients = self.clients
        driver.set_model({"w": self.w})
        available = tuple(client for client in self.clients if client not in self.pending)
        request = driver.request(available, self.pending, m)
        if request.clients:
            self.probe(request)
        cohort = driver.select(available, self.pending, m)
        asked = [client for client in cohort.clients if client not in current.early_replies]
        usable = driver.observe_training(self.exchange(asked, self.train))
        weights = np.array([reply.metrics["num-examples"] for reply in usable.values()])
        models = np.array([reply.arrays(current.model)["w"] for reply in usable.values()])
        self.w = weights @ models / weights.sum()
        driver.finish_training(usable)
        driver.observe_evaluation({client: self.evaluate(client) for client in self.clients})
        driver.close()
        return cohort


@pytest.fixture
def quadratic() -> type[Quadratic]:
    return Quadratic
