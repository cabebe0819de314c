"""Settings of training and aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from adcs._validation import check_choice
from adcs.simulation.local_training import LOCAL_TRAINING
from adcs.simulation.settings import FORBID_UNKNOWN, MILLION, check_settings, setting


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

    m: int = setting(18, "Clients per round.", ge=1, le=MILLION, summary="m = {} per round")
    lr: float = setting(0.001, "Learning rate.", gt=0, summary="lr {:g}")
    server_lr: float | None = setting(None, "Learning rate of the server; lr by default.", gt=0)
    local: str = setting(
        "steps", f"Local training: {' or '.join(LOCAL_TRAINING)} (mini-batches, or the full batch)."
    )
    steps: int = setting(1, "Local steps, E.", ge=1, le=MILLION, summary="{} step(s) of SGD")
    weights: Literal["uniform", "size"] = setting(
        "uniform", "Weights of clients: equal, or by their number of examples.", strict=None
    )
    paper_literal_weights: bool = setting(
        False, "Divide weights by m twice, as the paper's text does."
    )

    __pydantic_config__: ClassVar = FORBID_UNKNOWN

    def __post_init__(self) -> None:
        check_settings(self, "training")
        check_choice("training.local", self.local, LOCAL_TRAINING)
        if self.local == "full" and self.steps != 1:
            raise ValueError(f"training.steps must be 1 where local is full, got {self.steps}")
