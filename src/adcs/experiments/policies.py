"""How the schedulers of an experiment choose, as far as the paper's theorems ask."""

from __future__ import annotations

from adcs._types import Float64Array
from adcs.experiments.config import Experiment
from adcs.experiments.specs import make_scheduler
from adcs.reports.quality import rescale
from adcs.schedulers import ADCS, Uniform
from adcs.schedulers.base import Scheduler
from adcs.schedulers.client_dpp import Determinantal
from adcs.theory.report import Policy


def policies(experiment: Experiment) -> dict[str, Policy]:
    """Return how each scheduler of an experiment chooses, by label.

    >>> found = policies(Experiment())
    >>> found["Uniform"].unbiased, found["ADCS"].theta, found["ADCS"].unbiased
    (True, 0.8, False)
    """
    settings = experiment.network
    everyone = settings is None or (
        settings.availability == 1.0 and settings.dropout == 0.0 and settings.deadline is None
    )
    return {
        label: policy(make_scheduler(spec, seed=0), everyone)
        for label, spec in experiment.schedulers.items()
    }


def policy(scheduler: Scheduler, everyone: bool) -> Policy:
    """Return how one scheduler chooses, where everyone is always there or not."""
    if type(scheduler) is Uniform:
        plain = not (scheduler.by_size or scheduler.independent or scheduler.constraints)
        return Policy(unbiased=plain and everyone)
    if not isinstance(scheduler, Determinantal) or scheduler.theta == 0.0:
        return Policy()
    # The quality of StaticDPP is old, that of LiveADCS an estimate.
    if not isinstance(scheduler, ADCS) or type(scheduler) is not ADCS:
        return Policy(theta=None)
    if scheduler.quality not in ("loss", "norm") or scheduler.gamma > 0.0:
        return Policy(theta=None)

    def quality(losses: Float64Array, norms: Float64Array) -> Float64Array:
        return rescale(losses if scheduler.quality == "loss" else norms, scheduler.scale)

    return Policy(theta=scheduler.theta, quality=quality)
