"""A complete federated training loop with NumPy and adcs only, without a framework.

Thirty clients hold one class each of synthetic data; eighteen train in each round. The loop uses
the whole contract: enrolment, request, probe, select, training replies, and a state that is saved
and restored half-way. Run it with `python examples/own_loop.py`.
"""

from __future__ import annotations

import numpy as np

import adcs

CLASSES, PER_CLASS, FEATURES = 10, 3, 30
CLIENTS = [f"site-{k}{letter}" for k in range(CLASSES) for letter in "abc"]
M, ROUNDS, RATE = 18, 200, 0.5


def make_data(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each client's examples: one class each, normally distributed around its centre."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((CLASSES, FEATURES))
    # Two classes are hard to tell apart, so that some clients have a lower accuracy.
    centres[3] = centres[7] + 0.5 * rng.standard_normal(FEATURES)
    data = {}
    for i, client in enumerate(CLIENTS):
        label = i // PER_CLASS
        x = centres[label] + 0.9 * rng.standard_normal((60, FEATURES))
        data[client] = (x, np.full(60, label))
    return data


def loss_and_gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return loss and gradient of softmax regression."""
    logits = x @ w
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    loss = float(-np.log(p[np.arange(len(y)), y]).mean())
    p[np.arange(len(y)), y] -= 1
    return loss, x.T @ p / len(y)


def train(scheduler: adcs.Scheduler, rounds: int = ROUNDS) -> tuple[float, float]:
    """Train with a scheduler; return the worst and the mean accuracy over clients."""
    data = make_data()
    w = np.zeros((FEATURES, CLASSES))

    sizes = [adcs.ClientReport(c, 0, examples=len(data[c][1])) for c in CLIENTS]
    scheduler.observe(0, sizes, "enrolment")

    for server_round in range(rounds):
        available = [c for i, c in enumerate(CLIENTS) if (i + server_round) % 7]  # not everyone

        # Probe the clients that the scheduler requests, and report their answers.
        request = scheduler.request(server_round, available, M)
        answers = []
        for client in request.clients:
            loss, gradient = loss_and_gradient(w, *data[client])
            answers.append(adcs.ClientReport(client, server_round, loss=loss, update=gradient))
        scheduler.observe(server_round, answers, "probe")

        # Train with the cohort, and report its replies.
        cohort = scheduler.select(server_round, available, M)
        total, step, replies = 0.0, np.zeros_like(w), []
        for client, weight in zip(cohort.clients, cohort.weights, strict=True):
            loss, gradient = loss_and_gradient(w, *data[client])
            step += weight * gradient
            total += weight
            replies.append(adcs.ClientReport(client, server_round, loss=loss, update=gradient))
        if cohort.clients:
            w -= RATE * step / (total if cohort.normalise else len(CLIENTS))
        scheduler.observe(server_round, replies, "training")

        # The scheduler's state can be saved as bytes and restored at any time.
        if server_round == rounds // 2:
            saved = scheduler.to_bytes()
            scheduler.from_bytes(saved)

    accuracy = [float(((x @ w).argmax(axis=1) == y).mean()) for x, y in data.values()]
    return min(accuracy), float(np.mean(accuracy))


if __name__ == "__main__":
    for scheduler in (adcs.Uniform(), adcs.PowerOfChoice(), adcs.DivFL(), adcs.ADCS(theta=0.8)):
        worst, mean = train(scheduler)
        print(f"{type(scheduler).__name__:15} worst {worst:.3f}   average {mean:.3f}")
