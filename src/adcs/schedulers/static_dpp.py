"""StaticDPP: a DPP whose kernel is built once, before training."""

from __future__ import annotations

from typing import Any

from adcs._types import ClientId
from adcs.dpp.constraints import Constraints
from adcs.dpp.sampling import sample_mdpp
from adcs.reports.quality import Quality, Scale
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Cohort
from adcs.schedulers.determinantal import DeterminantalScheduler


class StaticDPP(DeterminantalScheduler):
    """The MAP of the first round's kernel: the same cohort in every round.

    Parameters
    ----------
    theta
        Weight of quality, as reported in the first round. 0, the default and the paper's
        benchmark, is diversity alone.
    sample
        Sample each cohort from the m-DPP of the kernel instead of taking its mode. Where the
        kernel's rank is below m that distribution does not exist, and the mode is taken; the same
        holds where qualities are too far apart for float64.
    quality, scale, sketch
        As in `ADCS`.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`. Caps and required
        clients go with the mode only.

    Formula
    -------
    The set S of m clients that maximises (1 - theta) log det C_S + theta (sum of qualities), by the
    greedy algorithm, with C the cosine similarity of the first round's updates.

    Examples
    --------
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = StaticDPP()
    >>> updates = {1: [1.0, 0.0], 2: [1.0, 0.1], 3: [0.0, 1.0]}
    >>> scheduler.observe(0, [ClientReport(c, 0, update=updates[c]) for c in updates], "probe")
    >>> scheduler.select(0, (1, 2, 3), 2).clients, scheduler.request(20, (1, 2, 3), 2).clients
    ((1, 3), ())
    """

    family = "diversity"

    def __init__(
        self,
        *,
        theta: float = 0.0,
        sample: bool = False,
        quality: Quality = "loss",
        scale: Scale | None = None,
        sketch: Sketcher | None = None,
        **common: Any,
    ) -> None:
        super().__init__(
            theta=theta, refresh_every=None, quality=quality, scale=scale, sketch=sketch, **common
        )
        if sample and theta == 1.0:
            raise ValueError("sample needs theta below 1: at 1 there is no distribution")
        if sample and self.constraints:
            raise ValueError("sample goes without caps and required clients")
        self.sample = sample
        self.repeats = self.supports_constraints = not sample

    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Cohort:
        """Return the mode of the DPP, or a sample."""
        mode = super()._select_known(server_round, known, m, constraints)
        rank = mode.diagnostics["rank"]
        if not self.sample or rank < m:
            return mode
        assert self.dpp is not None
        try:
            chosen = sample_mdpp(
                self.dpp.cosines(),
                m,
                quality=self.dpp.quality,
                theta=self.theta,
                rng=self.rng(server_round, purpose=1),
                given=constraints.given,
            )
        except ValueError:  # qualities so far apart that nearly all probability is on the mode
            return mode
        return Cohort.of([known[i] for i in chosen], rank=rank)
