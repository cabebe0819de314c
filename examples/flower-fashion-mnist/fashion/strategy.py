"""FedAvg that evaluates every few rounds."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg


class EvaluateEvery(FedAvg):
    """FedAvg with all nodes, evaluated every `every` rounds and after the last."""

    def __init__(self, every: int, last: int) -> None:
        # With FedAvg's default numbers a round would wait for ever after nodes have disconnected.
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.every = every
        self.last = last

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round % self.every and server_round != self.last:
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)
