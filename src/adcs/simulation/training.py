"""Settings of training and aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adcs._validation import did_you_mean
from adcs.simulation.local_training import LOCAL_TRAINING


@dataclass(frozen=True)
class Training:
    """How the model is trained.

    Attributes
    ----------
    m
        Clients per round.
    lr
        Learning rate of local steps.
    server_lr
        Learning rate of the global step; None takes `lr`, which for local steps means that the
        new model is the mean of the clients' models.
    local
        The kind of local training, a key of `LOCAL_TRAINING`. "steps": `steps` mini-batch steps of
        SGD. "full": one step on all of a client's data.
    steps
        Number of local steps, E; 1 where `local` is "full".
    weights
        The clients' weights p: "uniform", or "size" in proportion to their number of examples.
    paper_literal_weights
        Divide by m what is weighted by p already, as the paper's text does: (1/m) sum p_n g_n.

    Examples
    --------
    >>> Training(m=5, lr=0.1, steps=3).local
    'steps'
    """

    m: int
    lr: float = 0.001
    server_lr: float | None = None
    local: str = "steps"
    steps: int = 1
    weights: Literal["uniform", "size"] = "uniform"
    paper_literal_weights: bool = False

    def __post_init__(self) -> None:
        if self.local not in LOCAL_TRAINING:
            known = did_you_mean(self.local, LOCAL_TRAINING)
            raise ValueError(f"local must be a kind of local training, got {self.local!r}; {known}")
        if self.local == "full" and self.steps != 1:
            raise ValueError(f"steps must be 1 where local is full, got {self.steps}")
