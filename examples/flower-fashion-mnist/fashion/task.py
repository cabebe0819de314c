"""The paper's workload: softmax regression on images that are divided by class.

Data, partition and mini-batches are those of the simulator: in each round a client trains on the
same examples as that client of `adcs compare` with the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from adcs.experiments.config import Experiment
from adcs.simulation.federation import Federation
from adcs.simulation.models import MLP


class Workload:
    """What clients compute: an SGD step on a mini-batch, and the accuracy on their own test set."""

    def __init__(self, settings: Experiment) -> None:
        dataset = settings.dataset()
        seed = settings.run.first_seed
        self.lr = settings.training.lr
        self.model = MLP(dataset.x_train.shape[1], dataset.classes)
        self.federation = Federation(
            dataset,
            settings.divide(dataset, seed),
            batch_size=settings.training.batch_size,
            seed=seed,
            dtype=np.dtype(settings.run.dtype),
        )

    def initial(self) -> np.ndarray:
        """Return the initial model."""
        return self.model.initial(0).astype(self.federation.dtype)

    def train(self, w: np.ndarray, client: int, server_round: int) -> tuple[np.ndarray, float]:
        """Return the model after a client's step, and the loss before it; rounds count from 0."""
        x, y = self.federation.batches(server_round, np.array([client]))
        loss, gradient = self.model.loss_and_gradient(w, x[0], y[0])
        return w - w.dtype.type(self.lr) * gradient, loss

    def evaluate(self, w: np.ndarray, client: int) -> tuple[float, float, int]:
        """Return a client's test accuracy, its mean test loss, and the size of its test set."""
        index = self.federation.partition.test[client]
        x = self.federation.features(self.federation.dataset.x_test, index)
        y = self.federation.dataset.y_test[index]
        accuracy = float((self.model.predict(w, x).argmax(axis=1) == y).mean())
        return accuracy, float(self.model.loss_and_gradient(w, x, y)[0]), len(y)


@lru_cache(maxsize=1)
def _workload(settings: tuple[tuple[str, Any], ...]) -> Workload:
    return Workload(Experiment.of(**dict(settings)))


def workload(config: Mapping[str, Any]) -> Workload:
    """Return the workload of a run's config, which is loaded once in each process."""
    names = {
        "data": "data",
        "clients": "num-clients",
        "batch_size": "batch-size",
        "lr": "learning-rate",
        "dtype": "dtype",
        "first_seed": "seed",
    }
    return _workload(tuple((name, config[key]) for name, key in names.items()))
