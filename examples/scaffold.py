"""SCAFFOLD (Karimireddy et al., 2020) with option II for the control variates.

adcs compare --local examples/scaffold.py:Scaffold --steps 5 --lr 0.01
"""

import numpy as np

from adcs.simulation import ClientResult, LocalTraining


class Scaffold(LocalTraining):
    """SGD whose steps are corrected by control variates: c_i of the client, c of the server."""

    def initial_shared(self, w):
        return {"c": np.zeros_like(w)}

    def train(self, work):
        c = work.shared["c"]
        c_i = work.state.get("c", np.zeros_like(c))
        local = work.w.copy()
        first = None
        for x, y in work.batches:
            loss, gradient = work.loss_and_gradient(local, x, y)
            first = loss if first is None else first
            local -= work.lr * (gradient - c_i + c)
        update = (work.w - local) / work.lr
        new = c_i - c + update / len(work.batches)
        return ClientResult(first, update, state={"c": new}, sent={"c": new - c_i})

    def combine(self, shared, sent, clients):
        return {"c": shared["c"] + sum(each["c"] for each in sent) / clients}
