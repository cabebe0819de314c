"""FedProx with Adam on the server, one's own scheduler and one's own clients."""

import sys

import numpy as np

import adcs
from adcs.simulation import Federation


class Stale(adcs.Scheduler):
    """The clients that have waited longest since they last trained."""

    def _select(self, server_round, clients, m):
        rng = self.rng(server_round)  # all randomness comes from (seed, round)
        trained = {c: r.server_round for c in clients if (r := self.reports.get(c))}
        order = sorted(rng.permutation(list(clients)), key=lambda c: trained.get(c, -1))
        return adcs.Cohort.of(self.take(order, m))


def hospitals(count=12, features=5):
    """Each hospital has patients of its own kind: ((x_train, y_train), (x_test, y_test))."""
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(count):
        x = rng.normal(i % 3, 1.0, size=(120, features))
        y = (x.sum(axis=1) + rng.normal(size=120) > features * (i % 3)).astype(int)
        clients[f"hospital-{i}"] = ((x[:90], y[:90]), (x[90:], y[90:]))
    return clients


if __name__ == "__main__":  # worker processes import this file
    result = adcs.compare(
        [adcs.Uniform(), adcs.ADCS(refresh_every=5), Stale()],
        data=Federation.from_clients(hospitals()), m=4, rounds=60, eval_every=5, seeds=3, lr=0.05,
        prox=0.1, server_optimizer="adam", out=sys.argv[1] if sys.argv[1:] else None,
    )  # fmt: skip
    print(result)
